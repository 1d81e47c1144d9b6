"""Upserts of 1 % of the keys with the bloom index and the record index, against the simple index and Apache Hudi.

All tables have the same rows in 200 files: 20 partitions with 10 files each, written by 10 bulk inserts. The keys are
random, so key ranges exclude no file. Three batches:

    recent    copy-on-write, keys of the last bulk insert: one file of each partition has keys of the batch
    few       merge-on-read, keys of all files, so that each file has a few of them
    spread    copy-on-write, keys of all files: every file is rewritten, so that no index can save much
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lakehouse.core.table.table import Table
from tests.bench.data import KEY, write_orders
from tests.bench.hudi import Hudi, start
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import Setting, create, read

SHARE = 0.01
LOADS = 10
#: The bound where few files have keys of the batch, and the bound where all files are rewritten.
FEW_TARGET, LIMIT = 0.5, 1.1
HUDI_TARGET = 1 / 3
_METADATA = {"hoodie.metadata.enable": "true"}
_RECORD_INDEX = {"hoodie.metadata.global.record.level.index.enable": "true"}
INDEXES: dict[str, dict[str, str]] = {
    "simple index": {"hoodie.index.type": "SIMPLE"},
    "bloom index": {"hoodie.index.type": "BLOOM"},
    "record index": {"hoodie.index.type": "RECORD_INDEX", **_RECORD_INDEX},
}
#: Inserts open new file groups, so that all tables keep their files.
_FILES = {"hoodie.parquet.small.file.limit": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of one comparison."""

    name: str
    merge_on_read: bool
    recent: bool
    target: float


KINDS = (
    Batches(name="recent keys, copy-on-write", merge_on_read=False, recent=True, target=FEW_TARGET),
    Batches(name="few keys per file, merge-on-read", merge_on_read=True, recent=False, target=FEW_TARGET),
    Batches(name="all files rewritten, copy-on-write", merge_on_read=False, recent=False, target=LIMIT),
)


def run(setting: Setting) -> list[Comparison]:
    """Measure the three kinds of batches."""
    comparisons: list[Comparison] = []
    hudi = start()
    for kind in KINDS:
        comparisons += _measure(setting, kind, hudi)
    if hudi is not None:
        hudi.__exit__()
    return comparisons


def _load(setting: Setting, number: int) -> str:
    """Return the directory with the rows of one bulk insert."""
    numbers = np.array_split(np.arange(setting.rows), LOADS)[number]
    return write_orders(setting.home / f"load-{setting.rows}-{number}", numbers, files=2)


def _batch(setting: Setting, kind: Batches, number: int) -> str:
    """Return the directory of a batch: keys of the last bulk insert, or of all of them."""
    source = np.array_split(np.arange(setting.rows), LOADS)[-1] if kind.recent else np.arange(setting.rows)
    count = int(setting.rows * SHARE)
    chosen = np.random.default_rng(number).choice(source, min(count, len(source)), replace=False)
    scope = "recent" if kind.recent else "all"
    return write_orders(setting.home / f"batch-{setting.rows}-{scope}-{number}", chosen, files=2, version=number + 1)


def _table(setting: Setting, kind: Batches, name: str) -> Table:
    options = {**INDEXES[name], **_METADATA, **_FILES}
    path = setting.fresh(f"index-{name.replace(' ', '-')}")
    table = create(path, options=options, merge_on_read=kind.merge_on_read)
    for number in range(LOADS):
        table.bulk_insert(read(_load(setting, number)))
    return table


def _measure(setting: Setting, kind: Batches, hudi: Hudi | None) -> list[Comparison]:
    tables = {name: _table(setting, kind, name) for name in INDEXES}
    sides = [
        Side(
            name=name,
            before=lambda number: _batch(setting, kind, number),
            run=lambda number, table=table: table.upsert(read(_batch(setting, kind, number))),
        )
        for name, table in tables.items()
    ]
    if hudi is not None:
        sides += [_hudi_side(setting, kind, hudi, name) for name in INDEXES]
    samples = interleave(sides, setting.rounds)
    counts = {name: table.scan(columns=[KEY]).count() for name, table in tables.items()}
    assert set(counts.values()) == {setting.rows}, counts
    what = f"upsert of {SHARE:.0%}, {kind.name}"
    found = [
        compare(f"{what}, {name}", samples, name, "simple index", kind.target)
        for name in ("bloom index", "record index")
    ]
    if hudi is None:
        return found
    return found + [compare(f"{what}, {name}", samples, name, f"Hudi, {name}", HUDI_TARGET) for name in INDEXES]


def _hudi_side(setting: Setting, kind: Batches, hudi: Hudi, name: str) -> Side:
    """Return the same upserts with Apache Hudi and its index of the same type."""
    options = {
        **INDEXES[name],
        **_METADATA,
        **_FILES,
        "hoodie.datasource.write.table.type": "MERGE_ON_READ" if kind.merge_on_read else "COPY_ON_WRITE",
        "hoodie.compact.inline": "false",
    }
    path = setting.fresh(f"hudi-{name.replace(' ', '-')}")
    for number in range(LOADS):
        hudi.request("load" if number else "bulk_insert", path, _load(setting, number), **options)
    return Side(
        name=f"Hudi, {name}",
        run=lambda number: hudi.request("upsert", path, _batch(setting, kind, number), **options),
    )
