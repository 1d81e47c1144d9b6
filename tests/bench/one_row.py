"""Upsert of one row with the bucket index: after warm-up its time must not depend on the size of the table.

All tables have the same number of rows per bucket, so larger tables have more buckets.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from lakehouse.core.table.table import Table
from tests.bench.data import orders
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting, create, spark

ROWS_PER_BUCKET = 50_000
SHARES = (40, 4, 1)
TARGET_S = 2.0
_WARM_UPS = 2


def run(setting: Setting) -> list[Comparison]:
    """Measure tables with a fortieth, a quarter and all of the rows, on Spark and with Arrow, in turn."""
    tables = {setting.rows // share: _table(setting, setting.rows // share) for share in SHARES}
    seconds: dict[tuple[int, str], list[float]] = {}
    for number in range(_WARM_UPS + max(setting.rounds, 5)):
        for rows, table in tables.items():
            for way, upsert in _ways(table, rows, number).items():
                started = time.perf_counter()
                upsert()
                took = time.perf_counter() - started
                if number >= _WARM_UPS:
                    seconds.setdefault((rows, way), []).append(took)
    lines = [("rows of the table", "buckets", "Spark s", "target", "Arrow s")]
    for rows in tables:
        through_spark = statistics.median(seconds[(rows, "spark")])
        target = f"<= {TARGET_S:.0f} s" + ("" if through_spark <= TARGET_S else "  MISSED")
        arrow = statistics.median(seconds[(rows, "arrow")])
        lines.append((f"{rows:,}", str(_buckets(rows)), f"{through_spark:.2f}", target, f"{arrow:.3f}"))
    show_lines(lines)
    largest, smallest = max(tables), min(tables)
    for way in ("spark", "arrow"):
        ratio = statistics.median(seconds[(largest, way)]) / statistics.median(seconds[(smallest, way)])
        print(f"  {way}: {largest:,} rows take {ratio:.2f}x the time of {smallest:,} rows")
    return []


def _buckets(rows: int) -> int:
    return max(rows // ROWS_PER_BUCKET, 1)


def _table(setting: Setting, rows: int) -> Table:
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": str(_buckets(rows))}
    table = create(setting.fresh(f"one-row-{rows}"), partitioned=False, options=options)
    table.bulk_insert(orders(np.arange(rows)))
    return table


def _ways(table: Table, rows: int, number: int) -> dict[str, Callable[[], object]]:
    row = orders(np.array([number * 7919 % rows]), version=number + 1)
    frame = spark().createDataFrame(row)
    return {"spark": lambda: table.upsert(frame), "arrow": lambda: table.upsert(row)}
