"""Copy-on-write upsert against a rewrite with Spark (anti-join and union) and against the merge of deltalake.

All sides start with the same rows in the same partitions. Each round applies the same change set to all sides, read
from the same Parquet files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties, write_deltalake

from lakehouse.core.table.table import Table
from tests.bench.data import KEY, PARTITION, changes, write_orders
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import CODEC, Setting, create, read

SHARES = (0.01, 0.1)
REWRITE_TARGET, DELTA_TARGET = 0.5, 1.3
_FILES = 2


def run(setting: Setting) -> list[Comparison]:
    """Measure small and large change sets."""
    comparisons: list[Comparison] = []
    for share in SHARES:
        comparisons += _measure(setting, share)
    return comparisons


def change_set(setting: Setting, share: float, number: int) -> str:
    """Return the directory of the change set of one round."""
    directory = setting.home / f"changes-{setting.rows}-{share}-{number}"
    return write_orders(directory, changes(setting.rows, share, number + 1), files=_FILES, version=number + 1)


def loaded(setting: Setting, name: str, options: dict[str, str] | None = None) -> Table:
    """Return a table with all rows."""
    table = create(setting.fresh(name), options=options)
    table.bulk_insert(read(setting.input()))
    return table


@dataclass(slots=True)
class _Rewrite:
    """A directory of plain Parquet files; each upsert writes a new directory."""

    setting: Setting
    current: str = field(init=False)

    def __post_init__(self) -> None:
        self.current = self.setting.fresh("rewrite-base")
        read(self.setting.input()).repartition(PARTITION).write.partitionBy(PARTITION).parquet(self.current)

    def upsert(self, changed: str, number: int) -> None:
        base, batch = read(self.current), read(changed)
        kept = base.join(batch.select(KEY, PARTITION), [KEY, PARTITION], "left_anti")
        following = self.setting.fresh(f"rewrite-{number % 2}")
        kept.unionByName(batch).write.partitionBy(PARTITION).parquet(following)
        self.current = following


def _load_delta(setting: Setting) -> str:
    path = setting.fresh("delta")
    rows = pq.read_table(setting.input(), partitioning=None)
    write_deltalake(path, rows, partition_by=[PARTITION], writer_properties=WriterProperties(compression=CODEC.upper()))
    return path


def _merge(path: str, changed: str) -> None:
    batch = pq.read_table(Path(changed), partitioning=None)
    merge = DeltaTable(path).merge(
        batch,
        predicate=f"t.{KEY} = s.{KEY} AND t.{PARTITION} = s.{PARTITION}",
        source_alias="s",
        target_alias="t",
        writer_properties=WriterProperties(compression=CODEC.upper()),
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _measure(setting: Setting, share: float) -> list[Comparison]:
    ours, spark_side, delta_side = "upsert", "Spark anti-join and union", "deltalake merge"
    table, rewrite, delta = loaded(setting, "upsert-ours"), _Rewrite(setting), _load_delta(setting)
    sides = [
        Side(
            name=ours,
            before=lambda number: change_set(setting, share, number),
            run=lambda number: table.upsert(read(change_set(setting, share, number))),
        ),
        Side(name=spark_side, run=lambda number: rewrite.upsert(change_set(setting, share, number), number)),
        Side(name=delta_side, run=lambda number: _merge(delta, change_set(setting, share, number))),
    ]
    samples = interleave(sides, setting.rounds)
    expected = setting.rows + sum(len(changes(setting.rows, share, n + 1)) for n in range(setting.rounds + 1)) // 11
    counts = (table.scan(columns=[KEY]).count(), read(rewrite.current).count(), DeltaTable(delta).count())
    assert all(abs(count - expected) <= setting.rounds + 1 for count in counts) and len(set(counts)) == 1, counts
    what = f"upsert of {share:.0%}"
    return [
        compare(what, samples, ours, spark_side, REWRITE_TARGET),
        compare(what, samples, ours, delta_side, DELTA_TARGET),
    ]
