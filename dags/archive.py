"""Archive: the oldest instants leave the active timeline for the archive, so that it stays short.

Readers still find the times of what was archived. What is due, and why, is in the log of `due` and in `lakehouse
services explain namespace.table`. Trigger it with a form: tables, partitions, dry run, force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("archive", schedule="45 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
