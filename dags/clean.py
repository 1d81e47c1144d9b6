"""Clean: removes files that no retained version needs.

Files of savepoints, of pinned versions and of versions within the retention stay. The log of the task `due` and
`lakehouse services explain namespace.table` show which tables are due, and why. The trigger form has tables,
partitions, dry run and force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("clean", schedule="30 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
