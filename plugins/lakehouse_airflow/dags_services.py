"""The DAG of each table service with its usual schedule and its documentation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from airflow.sdk import DAG

from lakehouse.errors import UserError, nearest
from lakehouse_airflow.services import service_dag

#: Cron expression of each service, in UTC, for deployments without `services.schedule`.
SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "compaction": "*/15 * * * *",
        "logcompaction": "*/30 * * * *",
        "clustering": "0 0 * * *",
        "index": "10 * * * *",
        "ttl": "15 2 * * *",
        "clean": "30 * * * *",
        "archive": "45 * * * *",
        "orphans": "0 4 * * *",
        "validation": "0 1 * * *",
        "sync": "*/15 * * * *",
    }
)
#: The schedule of a DAG whose scheduled runs decide nothing: it gives backfills their days.
DAYS = "0 0 * * *"
_COMPACTION = (
    "Compaction: merges the log files of merge-on-read tables into base files, so that readers have less to merge.\n\n"
    "A run plans and executes while writers are active. The next run resumes the plan of a failed run. Between two "
    "compactions, a log compaction merges the log files of a file group into one, without base files."
)
_DOCS = {
    "compaction": _COMPACTION,
    "logcompaction": _COMPACTION,
    "clustering": "Clustering: merges small files into large ones and sorts rows, so that queries skip files.\n\n"
    "A backfill clusters the partitions of its days again. Example for March: `airflow backfill create --dag-id "
    "services.clustering --from-date 2026-03-01T00:00:00+00:00 --to-date 2026-03-31T00:00:00+00:00`. Without the "
    "offset the dates are in Airflow's time zone, and the days of this DAG are in UTC.",
    "index": "Index: builds declared indexes of the metadata table beside writers.\n\n"
    "From the plan on all commits maintain the index; readers use it when the build is complete. The next run resumes "
    "the plan of a failed run. `lakehouse index create` and `drop` declare and drop indexes.",
    "ttl": "TTL: partitions expire by age, count or size; the next clean removes their files.\n\n"
    "`lakehouse ttl policy` edits the rules.",
    "clean": "Clean: removes files that no retained version needs.\n\n"
    "Files of savepoints, of pinned versions and of versions within the retention stay.",
    "orphans": "Orphans: deletes data files that no write names, left by failed tasks.\n\n"
    "Files of pending writes and files younger than `lakehouse.clean.orphans.hours` stay. Orphans of tables that other "
    "programs write are reported, unless `lakehouse.clean.orphans.shared` is true. Each table is searched every "
    "`lakehouse.orphans.every.hours`.",
    "validation": "Validation: checks a sample of the tables each night, and repairs nothing.\n\n"
    "A run compares the listing, the timeline and the metadata table, and reads footers of base files. A violation "
    "fails the run with its details. Each table is due every `lakehouse.validation.every.hours`.",
    "sync": "Sync: declares a table with its partitions in a Hive Metastore, so that engines find it by name.\n\n"
    "A table whose spec sets `hoodie.datasource.hive_sync.enable: true` is due after each write that was not synced. A "
    "run compares all partitions, so a second run changes nothing.",
    "archive": "Archive: moves the oldest instants from the active timeline to the archived timeline.\n\n"
    "Readers still find the times of archived commits.",
}
_DUE = (
    " The log of the task `due` and `lakehouse services explain --table namespace.table` show which tables are due, "
    "and why. An empty trigger form starts an ordinary run."
)
_START = datetime(2026, 1, 1, tzinfo=UTC)


def usual_service_dag(service: str, **changes: Any) -> DAG:
    """Build the DAG `services.<service>` for triggers and backfills; `services.schedule` decides about other runs.

    Args:
        service: Name of the service.
        changes: Arguments of `service_dag` that differ from the usual ones, such as `default_args`. With a `schedule`,
            the runs of this DAG decide about the service, so `services.schedule` must leave it out.
    """
    if service not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise UserError(f"unknown service {service!r}.{nearest(service, SCHEDULES)} Known: {known}.", service=service)
    usual = {"schedule": DAYS, "decide": "schedule" in changes, "start_date": _START, "doc": _DOCS[service] + _DUE}
    return service_dag(service, **{**usual, **changes})
