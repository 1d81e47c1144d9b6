"""Upserts by index: bloom and record index against the simple index, and each index against Apache Hudi with it.

All tables have the same rows in 200 files: 20 partitions with 10 files each, written by 10 bulk inserts. The keys are
random, so key ranges exclude no file. Kinds of batches:

    recent    1 % of the keys, all of the last bulk insert: one file of each partition has keys of the batch
    all       1 % of all keys: each file has a few of them; copy-on-write rewrites every file
    tenth     0.1 % of all keys

Two comparisons are printed: the whole upsert, and the look-up alone (from staged keys to the rows of each file). Apache
Hudi upserts the same batches into copies of the same tables, which `lakehouse` wrote with the same index.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq

from lakehouse.core.operations.placement.by_files import ByFiles
from lakehouse.core.operations.placement.by_hash import ByBucket, ByRing
from lakehouse.core.operations.placement.by_location import ByLocation
from lakehouse.core.operations.write import staged
from lakehouse.core.table.table import Table
from tests.bench.data import KEY, orders, write_orders
from tests.bench.hudi import Hudi, start
from tests.bench.measure import Comparison, Sample, Side, compare, cpu_seconds, interleave, show
from tests.bench.setting import CODEC, Setting, create, read

LOADS = 10
_PARTS = 2
#: The bound where each file has few keys of the batch.
FEW_TARGET = 0.5
HUDI_TARGET = 1 / 3
SIMPLE, BLOOM, STORED, RECORD, BUCKET = "simple", "bloom", "bloom in metadata", "record index", "bucket"
_METADATA = {"hoodie.metadata.enable": "true"}
_RECORD_INDEX = {"hoodie.metadata.global.record.level.index.enable": "true"}
_FILTERS = {"hoodie.metadata.index.bloom.filter.enable": "true", "hoodie.bloom.index.use.metadata": "true"}
INDEXES: dict[str, dict[str, str]] = {
    SIMPLE: {"hoodie.index.type": "SIMPLE"},
    BLOOM: {"hoodie.index.type": "BLOOM"},
    STORED: {"hoodie.index.type": "BLOOM", **_FILTERS},
    RECORD: {"hoodie.index.type": "RECORD_INDEX", **_RECORD_INDEX},
    BUCKET: {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": str(LOADS),
        "hoodie.bucket.index.hash.field": KEY,
    },
}
#: A table serves the indexes that need the same files.
_TABLE_OF = {BLOOM: SIMPLE}
#: Inserts open new file groups, so that all tables keep their files.
_FILES = {"hoodie.parquet.small.file.limit": "0"}
_ARROW = "from Arrow, "


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of one comparison: their share of the rows, whose keys they have, and the sides."""

    name: str
    merge_on_read: bool
    recent: bool
    indexes: tuple[str, ...]
    share: float = 0.01
    from_arrow: bool = False
    hudi: tuple[str, ...] = ()


KINDS = (
    Batches(
        name="1 % recent keys, merge-on-read",
        merge_on_read=True,
        recent=True,
        indexes=(SIMPLE, BLOOM, STORED, RECORD, BUCKET),
        hudi=(SIMPLE, BLOOM, RECORD, BUCKET),
    ),
    Batches(
        name="1 % recent keys, merge-on-read",
        merge_on_read=True,
        recent=True,
        indexes=(SIMPLE, BLOOM, RECORD),
        from_arrow=True,
    ),
    Batches(
        name="1 % of all keys, merge-on-read",
        merge_on_read=True,
        recent=False,
        indexes=(SIMPLE, BLOOM, RECORD),
    ),
    Batches(
        name="0.1 % of all keys, merge-on-read",
        merge_on_read=True,
        recent=False,
        indexes=(SIMPLE, BLOOM, RECORD),
        share=0.001,
    ),
    Batches(
        name="1 % recent keys, copy-on-write",
        merge_on_read=False,
        recent=True,
        indexes=(SIMPLE, BLOOM, RECORD),
        hudi=(SIMPLE, BLOOM, RECORD),
    ),
)
_WARM_UP = 1
#: The comparisons have many sides, of which those of Hudi take several seconds.
_MOST_ROUNDS = 2


def run(setting: Setting) -> list[Comparison]:
    """Measure the kinds of batches, and print the comparisons of each kind when it is done."""
    hudi = start()
    for merge_on_read in (True, False):
        kinds = [kind for kind in KINDS if kind.merge_on_read == merge_on_read]
        for name in dict.fromkeys(_TABLE_OF.get(name, name) for kind in kinds for name in kind.indexes):
            _build(setting, name, merge_on_read=merge_on_read)
        for kind in kinds:
            print(f"  {kind.name}{' (Arrow)' if kind.from_arrow else ''}", flush=True)
            show(_measure(setting, kind, hudi))
    if hudi is not None:
        hudi.__exit__()
    return []


def _batch(setting: Setting, kind: Batches, number: int) -> str:
    """Return the directory of a batch: keys of the last bulk insert, or of all of them."""
    source = np.array_split(np.arange(setting.rows), LOADS)[-1] if kind.recent else np.arange(setting.rows)
    count = min(int(setting.rows * kind.share), len(source))
    chosen = np.random.default_rng(number).choice(source, count, replace=False)
    scope = f"{'recent' if kind.recent else 'all'}-{kind.share}"
    folder = setting.home / f"batch-{setting.rows}-{scope}-{number}"
    return write_orders(folder, chosen, files=_PARTS, version=number + 1)


def _loaded(setting: Setting, name: str, *, merge_on_read: bool) -> Path:
    """Return the directory of a table with all rows, of which each side gets a copy."""
    kind = "merge-on-read" if merge_on_read else "copy-on-write"
    return setting.home / f"loaded-{_TABLE_OF.get(name, name)}-{kind}".replace(" ", "-")


def _copied(setting: Setting, name: str, *, merge_on_read: bool, side: str = "") -> str:
    path = setting.fresh(f"run-{side}{name}".replace(", ", "-").replace(" ", "-"))
    shutil.copytree(_loaded(setting, name, merge_on_read=merge_on_read), path)
    # Apache Hudi refuses a write with another index than the one that the properties name.
    properties = Path(path, ".hoodie", "hoodie.properties")
    stored = INDEXES[_TABLE_OF.get(name, name)]["hoodie.index.type"]
    text, line = properties.read_text(), "hoodie.index.type="
    assert f"{line}{stored}\n" in text, text
    properties.write_text(text.replace(f"{line}{stored}\n", f"{line}{INDEXES[name]['hoodie.index.type']}\n"))
    return path


def _options(name: str) -> dict[str, str]:
    return {**INDEXES[name], **_METADATA, **_FILES}


def _build(setting: Setting, name: str, *, merge_on_read: bool) -> None:
    """Load a table, unless an earlier run did; with Arrow, in a fifth of the time of a load with Spark."""
    began, folder = perf_counter(), _loaded(setting, name, merge_on_read=merge_on_read)
    done = folder.with_suffix(f".{setting.rows}-rows")
    if done.exists():
        return
    path = setting.fresh(folder.name)
    table = create(path, options=_options(name), merge_on_read=merge_on_read)
    for numbers in np.array_split(np.arange(setting.rows), LOADS):
        # The bucket index has one file for each bucket, so its rows come by one load.
        table.bulk_insert(orders(numbers if name != BUCKET else np.arange(setting.rows)))
        if name == BUCKET:
            break
    done.touch()
    print(f"    loaded: {folder.name} in {perf_counter() - began:.0f} s", flush=True)


class _LookUps:
    """Measures the look-ups of upserts: the search in indexes and the search in files."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure the look-up of one upsert."""
        taken: list[Sample] = []

        running: list[str] = []

        def timed(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                if running:
                    # A search by locations may call the search by files.
                    return function(*arguments, **named)
                running.append(function.__name__)
                wall, cpu = perf_counter(), cpu_seconds()
                try:
                    return function(*arguments, **named)
                finally:
                    running.clear()
                    taken.append(Sample(wall_s=perf_counter() - wall, cpu_s=cpu_seconds() - cpu))

            return call

        with ExitStack() as stack:
            for placement in (ByFiles, ByLocation, ByBucket, ByRing):
                stack.enter_context(patch.object(placement, "search", timed(placement.search)))
            stack.enter_context(patch.object(staged, "look_up", timed(staged.look_up)))
            yield
        self.samples.append(Sample(wall_s=sum(one.wall_s for one in taken), cpu_s=sum(one.cpu_s for one in taken)))


def _measure(setting: Setting, kind: Batches, hudi: Hudi | None) -> list[Comparison]:
    prefix = _ARROW if kind.from_arrow else ""
    tables = {
        f"{prefix}{name}": Table.open(
            _copied(setting, name, merge_on_read=kind.merge_on_read, side=prefix),
            options={**_options(name), "hoodie.parquet.compression.codec": CODEC},
        )
        for name in kind.indexes
    }
    look_ups = {name: _LookUps() for name in tables}

    def upsert(name: str, number: int) -> None:
        rows = (pq.read_table if kind.from_arrow else read)(_batch(setting, kind, number))
        with look_ups[name].watched():
            tables[name].upsert(rows)

    sides = [
        Side(
            name=name,
            before=lambda number: _batch(setting, kind, number),
            run=partial(upsert, name),
        )
        for name in tables
    ]
    against = kind.hudi if hudi is not None else ()
    sides += [_hudi_side(setting, kind, hudi, name) for name in against if hudi is not None]
    samples = interleave(sides, min(setting.rounds, _MOST_ROUNDS), warmup=_WARM_UP)
    counts = {name: table.scan(columns=[KEY]).count() for name, table in tables.items()}
    assert set(counts.values()) == {setting.rows}, counts
    found_in = {name: look_up.samples[_WARM_UP:] for name, look_up in look_ups.items()}
    what, simple = f"{prefix}{kind.name}", f"{prefix}{SIMPLE}"
    others = [name for name in tables if not name.endswith((SIMPLE, BUCKET))]
    return [
        *(compare(f"upsert of {what}: {name}", samples, name, simple, FEW_TARGET) for name in others),
        *(compare(f"look-up of {what}: {name}", found_in, name, simple, FEW_TARGET) for name in others),
        *(compare(f"upsert of {what}: {name}", samples, name, f"Hudi, {name}", HUDI_TARGET) for name in against),
    ]


def _hudi_side(setting: Setting, kind: Batches, hudi: Hudi, name: str) -> Side:
    """Return the same upserts with Apache Hudi and its index of the same type."""
    options = {
        **_options(name),
        "hoodie.datasource.write.table.type": "MERGE_ON_READ" if kind.merge_on_read else "COPY_ON_WRITE",
        "hoodie.compact.inline": "false",
    }
    path = _copied(setting, name, merge_on_read=kind.merge_on_read, side="Hudi, ")
    return Side(
        name=f"Hudi, {name}",
        run=lambda number: hudi.request("upsert", path, _batch(setting, kind, number), **options),
    )
