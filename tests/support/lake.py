"""Build a small table with commits and a savepoint, in Spark's environment: `python -m tests.support.lake DIR [TABLE]`.

Airflow's environment has no pyarrow, so tests of pages run this module as a process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SPEC = """\
table: {table}
location: {place}/orders
type: MERGE_ON_READ
record_key: order_id
ordering: updated
partition_by: day
schema:
  order_id: int64
  day: string
  amount: float64
  updated: int64
services:
  compaction: {{max_delta_commits: 3}}
  clean: {{commits_retained: 20}}
  ttl: {{creation_age: 400d}}
"""
#: What an ingestion says in its commit; it is in the last commit.
INGESTED = {
    "lakehouse.ingest.run_id": "ingest.sales.orders/manual__7/ingest",
    "lakehouse.ingest.dead_letters": "/lake/orders_dead_letters/manual__7",
}


def build(place: Path, table_name: str = "sales.orders") -> None:
    """Create a table with its spec in the catalog of LAKEHOUSE_CATALOG, and write commits."""
    import pyarrow as pa

    from lakehouse.platform.catalog.catalog import load_catalog
    from lakehouse.spec.table.table_spec import load_spec

    spec = place / "orders.yaml"
    spec.write_text(SPEC.format(place=place, table=table_name), encoding="utf-8")
    with load_catalog() as catalog:
        table = catalog.create_table(load_spec(spec), author="ada")
        for commit in range(6):
            # The last commits only update, which writes log files.
            keys = list(range(min(commit, 3) * 20, min(commit, 3) * 20 + 60))
            days = [f"2026-03-{1 + key % 4:02d}" for key in keys]
            rows = {
                "order_id": pa.array(keys, pa.int64()),
                "day": days,
                "amount": [float(key) for key in keys],
                "updated": pa.array([commit] * len(keys), pa.int64()),
            }
            table.upsert(pa.table(rows), commit_metadata=INGESTED if commit == 5 else None)
        table.savepoint(comment="before the migration", user="ada")


if __name__ == "__main__":
    os.environ.setdefault("LAKEHOUSE_CATALOG", f"sqlite:///{sys.argv[1]}/catalog.db")
    build(Path(sys.argv[1]), *sys.argv[2:])
