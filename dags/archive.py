"""Archive: moves the oldest instants from the active timeline to the archived timeline.

Readers still find the times of archived commits. The log of the task `due` and `lakehouse services explain
namespace.table` show which tables are due, and why. The trigger form has tables, partitions, dry run and force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("archive", schedule="45 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
