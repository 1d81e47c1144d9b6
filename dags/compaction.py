"""Compaction: merges the log files of merge-on-read tables into base files, so that readers have less to merge.

A run plans and executes while writers are active. The next run resumes the plan of a failed run. Between two
compactions, a log compaction merges the log files of a file group into one, without base files. The log of the task
`due` and `lakehouse services explain namespace.table` show which tables are due, and why. The trigger form has tables,
partitions, dry run and force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("compaction", schedule="*/15 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
log_dag = service_dag(
    "logcompaction", schedule="*/30 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__
)
