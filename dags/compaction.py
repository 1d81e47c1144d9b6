"""Compaction: the logs of merge-on-read tables become base files, so that readers have less to merge.

A plan is made and run beside live writers; a run that died is resumed by the next one. Between two compactions, a log
compaction makes one log of the many of a file group without reading or writing base files. What is due, and why, is
in the log of `due` and in `lakehouse services explain namespace.table`. Trigger it with a form: tables, partitions,
dry run, force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("compaction", schedule="*/15 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
log_dag = service_dag(
    "logcompaction", schedule="*/30 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__
)
