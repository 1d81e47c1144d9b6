"""Snapshot queries with a tenth of the rows in logs against the compacted table; read-optimized ones against Spark.

Every side reads all columns. On Spark the rows go to the noop sink; in this process they are counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from lakehouse.core.table.table import Table
from tests.bench.data import KEY
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.merge_on_read import loaded, update_set
from tests.bench.setting import Setting, read, spark

SHARE = 0.1
SNAPSHOT_TARGET, BASE_TARGET = 2.0, 1.05
_CHECKED = [KEY, "fare", "note"]


def run(setting: Setting) -> list[Comparison]:
    """Measure snapshot queries on Spark and in this process, and read-optimized queries."""
    logged = loaded(setting, "read-logged", {})
    logged.upsert(read(update_set(setting, SHARE, 0)))
    plain = setting.fresh("read-plain")
    shutil.copytree(logged.location.removeprefix("file://"), plain)
    compacted = Table.open(plain)
    compacted.services.compaction.run(force=True, spark=spark())
    first, second = (table.scan(columns=_CHECKED).to_arrow().sort_by(KEY) for table in (logged, compacted))
    assert first.equals(second) and first.num_rows == setting.rows, (first.num_rows, second.num_rows)
    return [
        _against(setting, "snapshot, Spark", lambda t: _drain(t.scan().to_spark(spark())), logged, compacted),
        _against(setting, "snapshot, in process", _count, logged, compacted),
        _read_optimized(setting, logged),
    ]


def _against(
    setting: Setting, what: str, act: Callable[[Table], object], logged: Table, compacted: Table
) -> Comparison:
    sides = [
        Side(name=f"{what}, {SHARE:.0%} in logs", run=lambda _: act(logged)),
        Side(name=f"{what}, compacted", run=lambda _: act(compacted)),
    ]
    samples = interleave(sides, setting.rounds)
    return compare(what, samples, sides[0].name, sides[1].name, SNAPSHOT_TARGET)


def _read_optimized(setting: Setting, table: Table) -> Comparison:
    files = [str(path) for path in Path(table.location.removeprefix("file://")).glob("zone-*/*.parquet")]
    sides = [
        Side(name="read-optimized", run=lambda _: _drain(table.scan(read_optimized=True).to_spark(spark()))),
        Side(name="spark.read.parquet", run=lambda _: _drain(spark().read.parquet(*files))),
    ]
    samples = interleave(sides, setting.rounds)
    return compare("read-optimized, Spark", samples, sides[0].name, sides[1].name, BASE_TARGET)


def _count(table: Table) -> int:
    return sum(batch.num_rows for batch in table.scan().to_batches())


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
