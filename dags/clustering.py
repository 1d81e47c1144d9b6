"""Clustering: merges small files into large ones and sorts rows, so that queries skip files.

A backfill clusters the partitions of its days again. Example for March: `airflow backfill create --dag-id
services.clustering --from-date 2026-03-01 --to-date 2026-03-31`. The log of the task `due` and `lakehouse services
explain namespace.table` show which tables are due, and why. The trigger form has tables, partitions, dry run and force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("clustering", schedule="0 0 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
