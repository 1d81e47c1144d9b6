"""Upserts of 1 % of the keys with the bloom index and the record index, against the simple index and Apache Hudi.

All tables have the same rows in 200 files: 20 partitions with 10 files each, written by 10 bulk inserts. The keys are
random, so key ranges exclude no file. Two kinds of batches, on copy-on-write and on merge-on-read tables:

    recent    keys of the last bulk insert: one file of each partition has keys of the batch
    all       keys of all files, so that each file has a few of them; copy-on-write rewrites every file

The bound of 0.5 is for batches that rewrite few files: recent keys, and all merge-on-read batches. Where every file is
rewritten the ratio can only approach 1. Batches come as DataFrames, and as Arrow tables without Spark's start of tasks.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lakehouse.core.table.table import Table
from tests.bench.data import KEY, write_orders
from tests.bench.hudi import Hudi, start
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import CODEC, Setting, create, read

SHARE = 0.01
LOADS = 10
#: The bound where few files have keys of the batch, and the bound where all files are rewritten.
FEW_TARGET, LIMIT = 0.5, 1.1
HUDI_TARGET = 1 / 3
_METADATA = {"hoodie.metadata.enable": "true"}
_RECORD_INDEX = {"hoodie.metadata.global.record.level.index.enable": "true"}
_FILTERS = {"hoodie.metadata.index.bloom.filter.enable": "true", "hoodie.bloom.index.use.metadata": "true"}
INDEXES: dict[str, dict[str, str]] = {
    "simple index": {"hoodie.index.type": "SIMPLE"},
    "bloom index": {"hoodie.index.type": "BLOOM"},
    "bloom index, filters in metadata": {"hoodie.index.type": "BLOOM", **_FILTERS},
    "record index": {"hoodie.index.type": "RECORD_INDEX", **_RECORD_INDEX},
}
#: The default of Hudi is to read the filters in footers.
HUDI_INDEXES = ("simple index", "bloom index", "record index")
#: Inserts open new file groups, so that all tables keep their files.
_FILES = {"hoodie.parquet.small.file.limit": "0"}
_ARROW = "from Arrow, "


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of one comparison."""

    name: str
    merge_on_read: bool
    recent: bool
    target: float


KINDS = (
    Batches(name="recent keys, copy-on-write", merge_on_read=False, recent=True, target=FEW_TARGET),
    Batches(name="recent keys, merge-on-read", merge_on_read=True, recent=True, target=FEW_TARGET),
    Batches(name="keys of all files, merge-on-read", merge_on_read=True, recent=False, target=FEW_TARGET),
    Batches(name="keys of all files, copy-on-write", merge_on_read=False, recent=False, target=LIMIT),
)


def run(setting: Setting) -> list[Comparison]:
    """Measure the kinds of batches."""
    comparisons: list[Comparison] = []
    hudi = start()
    for merge_on_read in (False, True):
        for name in INDEXES:
            _build(setting, name, merge_on_read=merge_on_read)
        for name in HUDI_INDEXES if hudi is not None else ():
            assert hudi is not None
            _build_hudi(setting, hudi, name, merge_on_read=merge_on_read)
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


def _loaded(setting: Setting, name: str, *, merge_on_read: bool) -> Path:
    """Return the directory of a table with all rows, of which each comparison gets a copy."""
    kind = "merge-on-read" if merge_on_read else "copy-on-write"
    return setting.home / f"{name}, {kind}".replace(", ", "-").replace(" ", "-")


def _copied(setting: Setting, name: str, *, merge_on_read: bool, side: str = "") -> str:
    path = setting.fresh("run-" + f"{side}{name}".replace(", ", "-").replace(" ", "-"))
    shutil.copytree(_loaded(setting, name, merge_on_read=merge_on_read), path)
    return path


def _options(name: str) -> dict[str, str]:
    return {**INDEXES[name], **_METADATA, **_FILES}


def _build(setting: Setting, name: str, *, merge_on_read: bool) -> None:
    path = setting.fresh(_loaded(setting, name, merge_on_read=merge_on_read).name)
    table = create(path, options=_options(name), merge_on_read=merge_on_read)
    for number in range(LOADS):
        table.bulk_insert(read(_load(setting, number)))


def _measure(setting: Setting, kind: Batches, hudi: Hudi | None) -> list[Comparison]:
    tables = {
        f"{prefix}{name}": Table.open(
            _copied(setting, name, merge_on_read=kind.merge_on_read, side=prefix),
            options={**_options(name), "hoodie.parquet.compression.codec": CODEC},
        )
        for prefix in ("", _ARROW)
        for name in INDEXES
    }
    sides = [
        Side(
            name=name,
            before=lambda number: _batch(setting, kind, number),
            run=lambda number, table=table, name=name: table.upsert(
                (pq.read_table if name.startswith(_ARROW) else read)(_batch(setting, kind, number))
            ),
        )
        for name, table in tables.items()
    ]
    if hudi is not None:
        sides += [_hudi_side(setting, kind, hudi, name) for name in HUDI_INDEXES]
    samples = interleave(sides, setting.rounds, warmup=2)
    counts = {name: table.scan(columns=[KEY]).count() for name, table in tables.items()}
    assert set(counts.values()) == {setting.rows}, counts
    what = f"upsert of {SHARE:.0%}, {kind.name}"
    found = [
        compare(f"{what}, {prefix}{name}", samples, f"{prefix}{name}", f"{prefix}simple index", kind.target)
        for prefix in ("", _ARROW)
        for name in INDEXES
        if name != "simple index"
    ]
    if hudi is None:
        return found
    return found + [compare(f"{what}, {name}", samples, name, f"Hudi, {name}", HUDI_TARGET) for name in HUDI_INDEXES]


def _hudi_options(name: str, *, merge_on_read: bool) -> dict[str, str]:
    return {
        **_options(name),
        "hoodie.datasource.write.table.type": "MERGE_ON_READ" if merge_on_read else "COPY_ON_WRITE",
        "hoodie.compact.inline": "false",
    }


def _build_hudi(setting: Setting, hudi: Hudi, name: str, *, merge_on_read: bool) -> None:
    path = setting.fresh(_loaded(setting, f"Hudi {name}", merge_on_read=merge_on_read).name)
    options = _hudi_options(name, merge_on_read=merge_on_read)
    for number in range(LOADS):
        hudi.request("load" if number else "bulk_insert", path, _load(setting, number), **options)


def _hudi_side(setting: Setting, kind: Batches, hudi: Hudi, name: str) -> Side:
    """Return the same upserts with Apache Hudi and its index of the same type."""
    options = _hudi_options(name, merge_on_read=kind.merge_on_read)
    path = _copied(setting, f"Hudi {name}", merge_on_read=kind.merge_on_read)
    return Side(
        name=f"Hudi, {name}",
        run=lambda number: hudi.request("upsert", path, _batch(setting, kind, number), **options),
    )
