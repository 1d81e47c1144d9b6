"""Clustering on Spark: one task for each group; rows of all types are unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse import Table
from lakehouse.core.operations.commit.results import Committed
from tests.spark.test_merge_on_read import SCHEMA, TINY, batch, row
from tests.support.fixture_tables import canonical_rows

pytestmark = pytest.mark.spark

CURVE = {
    "hoodie.clustering.plan.strategy.sort.columns": "price,born,flag",
    "hoodie.layout.optimize.strategy": "z-order",
}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_clustering_on_spark_keeps_rows_of_all_types(kind: str, spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    table = Table.create(
        location, name="t", record_key=["id"], partition_by=["day"], ordering="ts", table_type=kind, schema=SCHEMA
    )
    table = Table.open(location, options=TINY | CURVE)
    for part in range(3):
        table.bulk_insert(batch([row(number) for number in range(part, 60, 3)]))
        table.bulk_insert(batch([row(number) for number in range(60 + part, 90, 3)]))
    table.upsert(batch([row(number, version=2) for number in range(0, 90, 10)]))
    before = table.scan().to_arrow()
    outcome = table.services.clustering.run(force=True, spark=spark)
    assert isinstance(outcome, Committed)
    assert len(outcome.metadata.stats) == 3 < sum(map(len, outcome.metadata.replaced.values()))
    after = table.scan().to_arrow()
    names = [name for name in before.column_names if name != "_hoodie_file_name"]
    assert canonical_rows(after.select(names), with_meta=True) == canonical_rows(before.select(names), with_meta=True)
    through_spark = table.scan(["id", "ts"]).to_spark(spark).toArrow().sort_by("id")
    assert through_spark.equals(before.select(["id", "ts"]).sort_by("id").cast(through_spark.schema))
