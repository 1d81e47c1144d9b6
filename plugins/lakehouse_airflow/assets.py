"""Tables as Airflow's assets."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset

from lakehouse.spec.job import JobCommand, JobReport
from lakehouse.spec.table import TableSpec, asset_uri

GROUP = "lakehouse"


def table_asset(spec: TableSpec) -> Asset:
    """Return the asset of a table: named like the table, with a URI that stays when the location moves."""
    return Asset(name=spec.table, uri=asset_uri(spec), group=GROUP)


def event_extra(command: JobCommand, report: JobReport) -> dict[str, Any]:
    """Return what an event of the table's asset says: the instant and the size of what was committed."""
    names = ("instant", "rows", "inserts", "updates", "deletes", "files", "bytes", "bad_records", "seconds")
    extra = {name: getattr(report, name) for name in names}
    if command.interval_start is not None:
        extra |= {"interval_start": command.interval_start, "interval_end": command.interval_end}
    return extra
