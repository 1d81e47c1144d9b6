"""bulk_insert against Spark's Parquet writer with the same input and codec.

bulk_insert also writes meta columns and bloom filters.
"""

from __future__ import annotations

from tests.bench.data import PARTITION
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import Setting, create, read

TARGET = 1.3


def run(setting: Setting) -> list[Comparison]:
    """Measure a partitioned and an unpartitioned table."""
    return [_measure(setting, partitioned) for partitioned in (True, False)]


def _measure(setting: Setting, partitioned: bool) -> Comparison:
    source = setting.input()
    ours, other = "bulk_insert", "Spark write.parquet"

    def write_ours(number: int) -> None:
        create(setting.fresh("bulk-ours"), partitioned=partitioned).bulk_insert(read(source))

    def write_spark(number: int) -> None:
        writer = read(source).write
        writer = writer.partitionBy(PARTITION) if partitioned else writer
        writer.parquet(setting.fresh("bulk-spark"))

    samples = interleave([Side(name=ours, run=write_ours), Side(name=other, run=write_spark)], setting.rounds)
    what = f"bulk_insert, {'20 partitions' if partitioned else 'no partitions'}"
    return compare(what, samples, ours, other, TARGET)
