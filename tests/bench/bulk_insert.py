"""bulk_insert against Spark's Parquet writer with the same input and codec.

bulk_insert also writes meta columns and bloom filters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tests.bench.data import KEY, PARTITION, orders
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import Setting, create, read

TARGET = 1.3
MANY_PARTITIONS, MANY_TARGET = 10_000, 2.0


def run(setting: Setting) -> list[Comparison]:
    """Measure a partitioned and an unpartitioned table, then one row for each of many partitions."""
    partitions = min(MANY_PARTITIONS, setting.rows)
    return [
        *(_measure(setting, partitioned) for partitioned in (True, False)),
        _measure(setting, False, converted=True),
        _measure_many(setting, partitions),
    ]


def _measure(setting: Setting, partitioned: bool, *, converted: bool = False) -> Comparison:
    """Compare writes of the same rows; with `converted` Spark hands its rows over, because it filters them first."""
    source = setting.input()

    def rows() -> DataFrame:
        return read(source).filter(f"{KEY} IS NOT NULL") if converted else read(source)

    ours, other = "bulk_insert", "Spark write.parquet"

    def write_ours(number: int) -> None:
        create(setting.fresh("bulk-ours"), partitioned=partitioned).bulk_insert(rows())

    def write_spark(number: int) -> None:
        writer = rows().write
        writer = writer.partitionBy(PARTITION) if partitioned else writer
        writer.parquet(setting.fresh("bulk-spark"))

    samples = interleave([Side(name=ours, run=write_ours), Side(name=other, run=write_spark)], setting.rounds)
    what = f"bulk_insert, {'20 partitions' if partitioned else 'no partitions'}{', rows of Spark' if converted else ''}"
    return compare(what, samples, ours, other, TARGET)


def _measure_many(setting: Setting, partitions: int) -> Comparison:
    source = Path(setting.fresh("bulk-many-input"))
    source.mkdir()
    names = pa.array([f"zone-{number:05d}" for number in range(partitions)])
    rows = orders(np.arange(partitions))
    place = rows.schema.get_field_index(PARTITION)
    pq.write_table(rows.set_column(place, PARTITION, names), source / "rows.parquet")
    ours, other = "bulk_insert", "Spark write.parquet"

    def write_ours(number: int) -> None:
        create(setting.fresh("bulk-many-ours")).bulk_insert(read(str(source)))

    def write_spark(number: int) -> None:
        read(str(source)).write.partitionBy(PARTITION).parquet(setting.fresh("bulk-many-spark"))

    samples = interleave([Side(name=ours, run=write_ours), Side(name=other, run=write_spark)], setting.rounds)
    return compare(f"bulk_insert, {partitions:,} partitions", samples, ours, other, MANY_TARGET)
