"""Reports per table for a run whose source is a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakehouse.errors import LakehouseError
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus, combined
from lakehouse.spec.table.table_spec import TableSpec


def failed_report(spec: TableSpec, error: LakehouseError) -> IngestReport:
    """Return the report of a table that cannot be read or committed."""
    return IngestReport(status=JobStatus.FAILED, table=spec.table, error=JobError.of(error))


def joined_report(parts: Sequence[IngestReport]) -> IngestReport:
    """Return a table's report with the sums over its passes."""
    if len(parts) == 1:
        return parts[0]
    # A pass without work contains the numbers of a commit that another pass, or an earlier attempt, reports.
    counted = [one for one in parts if one.status is not JobStatus.NOTHING_TO_DO] or [parts[-1]]
    written = [one for one in counted if one.status is JobStatus.COMMITTED]
    last = (written or [one for one in parts if one.instant] or counted)[-1]
    taken = {name: getattr(last, name) for name in ("table", "instant", "folders", "drift", "lineage")}
    seconds, warnings = sum(one.seconds for one in parts), (one.warning for one in parts if one.warning)
    whole = replace(combined(counted), seconds=seconds, warning="; ".join(warnings))
    return replace(whole, parts=(), previous=parts[0].previous, **taken)
