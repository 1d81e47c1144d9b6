"""Merge-on-read upsert against copy-on-write upsert, the size of log files, and the upsert of one row into a bucket.

Both tables have the same rows in the same partitions. Each round upserts the same change set of stored keys to both.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np

from lakehouse.core.table.table import Table
from tests.bench.data import KEY, orders, updates, write_orders
from tests.bench.measure import Comparison, Side, compare, interleave, show_lines
from tests.bench.setting import Setting, create, read, spark

SHARE = 0.01
UPSERT_TARGET, BYTES_TARGET, ONE_ROW_TARGET_S = 1 / 5, 1.2, 1.0
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
INDEXES: dict[str, dict[str, str]] = {"simple index": {}, "bucket index": BUCKETS}
_SHARES = (40, 4, 1)
_ROWS_PER_BUCKET = 50_000
_WARM_UPS = 2


def run(setting: Setting) -> list[Comparison]:
    """Measure both indexes, then the upsert of one row into tables of three sizes."""
    comparisons = [_upsert(setting, name, options) for name, options in INDEXES.items()]
    _one_row(setting)
    return comparisons


def update_set(setting: Setting, share: float, number: int) -> str:
    """Return the directory with new versions of a share of the stored rows; each round has other rows."""
    directory = setting.home / f"updates-{setting.rows}-{share}-{number}"
    return write_orders(directory, updates(setting.rows, share, number + 1), files=2, version=number + 1)


def loaded(setting: Setting, name: str, options: dict[str, str], *, merge_on_read: bool = True) -> Table:
    """Return a table with all rows in base files."""
    table = create(setting.fresh(name), options=options, merge_on_read=merge_on_read)
    table.bulk_insert(read(setting.input()))
    return table


def _upsert(setting: Setting, index: str, options: dict[str, str]) -> Comparison:
    ours, other = f"merge on read, {index}", f"copy on write, {index}"
    tables = {ours: loaded(setting, "mor", options), other: loaded(setting, "cow", options, merge_on_read=False)}
    sides = [
        Side(
            name=name,
            before=lambda number: update_set(setting, SHARE, number),
            run=lambda number, table=table: table.upsert(read(update_set(setting, SHARE, number))),
        )
        for name, table in tables.items()
    ]
    samples = interleave(sides, setting.rounds)
    _, last = tables[ours].commits()[-1]
    batch = sum(file.stat().st_size for file in Path(update_set(setting, SHARE, setting.rounds)).glob("*.parquet"))
    ratio = sum(stat.size_bytes for stat in last.stats) / batch
    print(f"    {index}: log files have {ratio:.2f}x the bytes of the batch (target <= {BYTES_TARGET})", flush=True)
    first, second = (table.scan(columns=[KEY, "fare", "note"]).to_arrow().sort_by(KEY) for table in tables.values())
    assert first.equals(second) and first.num_rows == setting.rows, (first.num_rows, second.num_rows)
    return compare(f"upsert of {SHARE:.0%}, {index}", samples, ours, other, UPSERT_TARGET)


def _one_row(setting: Setting) -> None:
    tables = {setting.rows // share: _bucketed(setting, setting.rows // share) for share in _SHARES}
    seconds: dict[int, list[float]] = {rows: [] for rows in tables}
    for number in range(_WARM_UPS + max(setting.rounds, 5)):
        for rows, table in tables.items():
            frame = spark().createDataFrame(orders(np.array([number * 7919 % rows]), version=number + 1))
            started = time.perf_counter()
            table.upsert(frame)
            if number >= _WARM_UPS:
                seconds[rows].append(time.perf_counter() - started)
    lines = [("one row, bucket index", "Spark s", "target")]
    for rows, took in seconds.items():
        middle = statistics.median(took)
        missed = "" if middle <= ONE_ROW_TARGET_S else "  MISSED"
        lines.append((f"{rows:,} rows", f"{middle:.2f}", f"<= {ONE_ROW_TARGET_S:.0f} s{missed}"))
    show_lines(lines)


def _bucketed(setting: Setting, rows: int) -> Table:
    buckets = str(max(rows // _ROWS_PER_BUCKET, 1))
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": buckets}
    table = create(setting.fresh(f"one-row-{rows}"), partitioned=False, options=options, merge_on_read=True)
    table.bulk_insert(orders(np.arange(rows)))
    return table
