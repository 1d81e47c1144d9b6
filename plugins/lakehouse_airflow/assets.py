"""Tables as Airflow's assets."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetAlias, BaseOperator

from lakehouse.spec.contracts.job import JobCommand, JobReport
from lakehouse.spec.table import TableSpec, asset_uri

GROUP = "lakehouse"
#: Every event of a published partition passes through it: who is interested in all publications waits for this.
PUBLISHED = AssetAlias("lakehouse.published", group=GROUP)


def table_asset(spec: TableSpec) -> Asset:
    """Return the asset of a table: named like the table, with a URI that stays when the location moves."""
    return Asset(name=spec.table, uri=asset_uri(spec), group=GROUP)


def published_asset(target: str) -> Asset:
    """Return the asset of a published table, `database.table` of the metastore: `hive://database/table`.

    Each partition that appears is an event, with its name in `extra["partition"]`.
    """
    uri = _hive_uri(target)
    return Asset(name=uri, uri=uri, group=GROUP)


def partitions_asset(target: str) -> Asset:
    """Return the asset of the partitions of a published table, for a PartitionedAssetTimetable: one run each.

    The events of the partitions have their names as keys. Airflow starts no plain schedule by events with a key, so
    these are events of an asset of their own.
    """
    uri = f"{_hive_uri(target)}/partitions"
    return Asset(name=uri, uri=uri, group=GROUP)


def _hive_uri(target: str) -> str:
    return f"hive://{target.replace('.', '/')}"


def drop_events(operator: BaseOperator) -> None:
    """Make the task succeed without events: Airflow makes one of each asset among the outlets, whatever the task did.

    An alias among them stays, because it has the events only that were added to it.
    """
    operator.outlets = [outlet for outlet in operator.outlets if isinstance(outlet, AssetAlias)]


def event_extra(command: JobCommand, report: JobReport) -> dict[str, Any]:
    """Return what an event of the table's asset says: the instant and the size of what was committed."""
    names = ("instant", "rows", "inserts", "updates", "deletes", "files", "bytes", "bad_records", "seconds")
    extra: dict[str, Any] = {name: getattr(report, name) for name in (*names, "late_rows_dropped")}
    if report.drift:
        extra["drift"] = [one.to_mapping() for one in report.drift]
    if report.missing:
        extra["missing"] = len(report.missing)
    if command.interval_start is not None:
        extra |= {"interval_start": command.interval_start, "interval_end": command.interval_end}
    return extra
