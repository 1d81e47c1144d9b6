"""Translate the merge settings of a `WriteJob`, such as a payload class, and compare them with those of a table."""

from __future__ import annotations

from typing import Any

from lakehouse.core.state.merge_config import payload_rule
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.merge import MergeMode
from lakehouse.spec.options.hudi.write_job import (
    DELETE_FIELD,
    DELETE_MARKER,
    MERGE_MODE,
    ORDERING,
    PARTIAL_UPDATE,
    PAYLOAD,
    WriteJob,
)


def create_arguments(job: WriteJob) -> dict[str, Any]:
    """Return the arguments of `Table.create` for the merge settings of a job."""
    return {
        "ordering": job.ordering or None,
        "merge_mode": job.merge_mode or None,
        "partial_update": job.partial_update or None,
        "delete_field": job.delete_field or None,
        "delete_marker": job.delete_marker or None,
        "payload_class": job.payload or None,
    }


def require_same_rule(table: Table, job: WriteJob) -> None:
    """Raise UserError if the job merges records by another rule than the table.

    Raises UnsupportedError for a payload class that cannot be translated.
    """
    rule, config = table.config.merge_rule, table.config
    ordering = rule.ordering or config.ordering_fields
    pairs: list[tuple[str, object, object]] = [
        (MERGE_MODE, job.merge_mode, config.merge_mode.value),
        (PARTIAL_UPDATE, job.partial_update, rule.partial.value),
        (DELETE_FIELD, job.delete_field, rule.delete_field),
        (DELETE_MARKER, job.delete_marker, rule.delete_marker),
    ]
    wanted_ordering = job.ordering
    if job.payload:
        wanted = payload_rule(job.payload, job.ordering, config.layout)
        wanted_ordering = wanted.ordering
        settings = (wanted.mode, wanted.partial, wanted.delete_field or rule.delete_field)
        stored = (rule.mode, rule.partial, rule.delete_field)
        if rule.merger or settings != stored:
            raise UserError(
                f"option {PAYLOAD}={job.payload} contradicts the table at {table.location}, whose records are merged "
                f"by {rule.foreign or rule.merger or rule.mode}. Remove the option, or write to another location",
                option=PAYLOAD,
            )
        if job.merge_mode in ("", MergeMode.CUSTOM):
            pairs = pairs[1:]
    pairs.append((ORDERING, ",".join(wanted_ordering), ",".join(ordering)))
    for option, declared, stored_value in pairs:
        if declared and declared != stored_value:
            raise UserError(
                f"option {option}={declared} contradicts the table at {table.location}, which was created with "
                f"{stored_value or 'none'}. Remove the option, or write to another location",
                option=option,
                stored=str(stored_value),
            )
