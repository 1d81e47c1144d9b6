"""The report of an ingestion counts the rows that the write dropped, and those that the source dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import _report
from tests.support.tables import make_env


def test_insert_into_buckets_reports_the_rows_of_repeated_keys() -> None:
    env = make_env()
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
    table = Table.create(
        env.storage.root, name="t", record_key="id", table_type="MERGE_ON_READ", options=options, env=env
    )
    outcome: Any = table.insert(pa.table({"id": ["a", "a", "a", "b"], "v": [1, 2, 3, 4]}))
    run: Any = SimpleNamespace(spec=SimpleNamespace(table="sales.t"))
    batch: Any = SimpleNamespace(bad_records=0, duplicates=5)
    report = _report(run, outcome, batch)
    assert (report.rows, report.inserts, report.duplicates_dropped) == (2, 2, 7)
