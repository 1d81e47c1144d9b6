"""Queries of DuckDB and Polars on a scan, against the same queries on the same Parquet files.

The merge-on-read table has a tenth of its rows in logs, so queries on its files alone return older rows. They show the
cost of the merge. All sides use the same number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import polars

from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.table.table import Table
from tests.bench.data import PARTITION, orders, updates
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import CORES, Setting, create

SHARE = 0.1
TARGETS = {"copy-on-write": 1.2, "merge-on-read": 2.0}
_COUNT = "count(*)"
_QUERIES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "filter 10 % and group": (
        "SELECT status, sum(fare) FROM {} WHERE tip < 2 GROUP BY status",
        lambda frame: frame.filter(polars.col("tip") < 2).group_by("status").agg(polars.col("fare").sum()),
    ),
    "one partition": (
        f"SELECT status, sum(fare) FROM {{}} WHERE {PARTITION} = 'zone-03' GROUP BY status",
        lambda frame: frame.filter(polars.col(PARTITION) == "zone-03").group_by("status").agg(polars.col("fare").sum()),
    ),
    "3 columns of all rows": (
        "SELECT sum(fare), sum(tip), sum(seats) FROM {}",
        lambda frame: frame.select(polars.col("fare", "tip", "seats").sum()),
    ),
    _COUNT: ("SELECT count(*) FROM {}", lambda frame: frame.select(polars.len())),
}


def run(setting: Setting) -> list[Comparison]:
    """Measure each query on both types of tables with both engines."""
    duckdb.sql(f"SET threads = {CORES}")
    lines = []
    for kind, target in TARGETS.items():
        table = _loaded(setting, is_merge_on_read=kind == "merge-on-read")
        for what, (text, query) in _QUERIES.items():
            # DuckDB counts the rows of files by their footers only.
            lines += _measure(setting, table, f"{kind}: {what}", (text, query), None if what == _COUNT else target)
    return lines


def _loaded(setting: Setting, *, is_merge_on_read: bool) -> Table:
    table = create(setting.fresh("dataset"), merge_on_read=is_merge_on_read)
    table.bulk_insert(orders(np.arange(setting.rows)))
    if is_merge_on_read:
        table.upsert(orders(updates(setting.rows, SHARE, 1), version=1))
    return table


def _measure(
    setting: Setting, table: Table, what: str, query: tuple[str, Callable[[Any], Any]], target: float | None
) -> list[Comparison]:
    text, on_frame = query
    dataset, frame, planned = table.scan().to_pyarrow_dataset(), table.scan().to_polars(), table.scan().plan()
    assert isinstance(planned, Scan)
    root = table.location.removeprefix("file://")
    files = [f"{root}/{base.path}" for base in planned.plan.slices.bases()]
    duckdb.register("dataset", dataset)
    table.scan().to_duckdb(name="relation")
    sides = [
        Side(name="DuckDB, relation", run=lambda _: duckdb.sql(text.format("relation")).fetchall()),
        Side(name="DuckDB, dataset", run=lambda _: duckdb.sql(text.format("dataset")).fetchall()),
        Side(name="Polars, frame", run=lambda _: on_frame(frame).collect()),
        Side(name="DuckDB, files", run=lambda _: duckdb.sql(text.format(f"read_parquet({files!r})")).fetchall()),
        Side(name="Polars, files", run=lambda _: on_frame(polars.scan_parquet(files)).collect()),
    ]
    samples = interleave(sides, setting.rounds)
    return [
        compare(f"{what}, relation", samples, "DuckDB, relation", "DuckDB, files", target),
        # A dataset is for engines without a reader of their own; its rows pass Arrow.
        compare(f"{what}, dataset", samples, "DuckDB, dataset", "DuckDB, files"),
        compare(f"{what}, frame", samples, "Polars, frame", "Polars, files", target),
        compare(f"{what}, frame", samples, "Polars, frame", "DuckDB, files"),
    ]
