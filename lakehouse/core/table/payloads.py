"""Translate the merge settings of a `WriteJob`, such as a payload class, and compare them with those of a table."""

from __future__ import annotations

from typing import Any

from lakehouse.core.table.table import Table
from lakehouse.spec.options.hudi.write_job import WriteJob


def create_arguments(job: WriteJob) -> dict[str, Any]:
    """Return the arguments of `Table.create` for the merge settings of a job."""
    return {
        "ordering": job.ordering or None,
        "merge_mode": job.merge_mode or None,
        "partial_update": job.partial_update or None,
        "delete_field": job.delete_field or None,
        "delete_marker": job.delete_marker or None,
    }


def require_same_rule(table: Table, job: WriteJob) -> None:
    """Raise UserError if the job merges records by another rule than the table."""
