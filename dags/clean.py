"""Clean: files that no retained version needs are removed.

Savepoints, pins and readers within the retention keep what they need. What is due, and why, is in the log of `due`
and in `lakehouse services explain namespace.table`. Trigger it with a form: tables, partitions, dry run, force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("clean", schedule="30 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
