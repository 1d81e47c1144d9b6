"""Clustering: small files become large ones, and rows are laid out so that queries skip files.

A backfill reclusters the partitions of its days, those of March for example: `airflow backfill create --dag-id
services.clustering --from-date 2026-03-01 --to-date 2026-03-31`. What is due, and why, is in the log of `due` and in
`lakehouse services explain namespace.table`. Trigger it with a form: tables, partitions, dry run, force.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lakehouse_airflow.services import service_dag

dag = service_dag("clustering", schedule="0 0 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), doc=__doc__)
