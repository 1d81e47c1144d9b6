"""TTL: partitions expire by age, count or size; their files go with the next clean.

Rules are edited with `lakehouse ttl policy`. What is due, and why, is in the log of `due` and in `lakehouse services
explain namespace.table`. Trigger it with a form: tables, partitions, dry run, force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("ttl", schedule="15 2 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
