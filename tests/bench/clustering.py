"""Clustering against its floors: bare Arrow that reads, sorts and writes; our own rewriting; queries before and after.

All work in one thread on one group of eight files, so a ratio says what the work costs and not how it is spread. The
floor knows no budget, writes no filter of keys, makes no commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files import row_group_copy
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from tests.bench.data import orders
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import CODEC, Setting, create

FILES = 8
OUTPUTS = 128
SORT_TARGET, COPY_TARGET, QUERY_TARGET = 1 / 0.6, 1 / 5, 0.6
_COLUMNS = ("rider_id", "fare")
_SORT, _LAYOUT = "hoodie.clustering.plan.strategy.sort.columns", "hoodie.layout.optimize.strategy"
_TARGET = "hoodie.clustering.plan.strategy.target.file.max.bytes"
_ANY_SIZE = {"lakehouse.clustering.whole.partitions": "true", _TARGET: str(1 << 40)}
_LAYOUTS: Mapping[str, Mapping[str, str]] = {
    "sort": {_SORT: ",".join(_COLUMNS)},
    "z-order": {_SORT: ",".join(_COLUMNS), _LAYOUT: "z-order"},
    "hilbert": {_SORT: ",".join(_COLUMNS), _LAYOUT: "hilbert"},
    "rewriting": {},
    "copying": {},
}
_QUERIES = (
    "rider_id BETWEEN 1000 AND 6000",
    "fare BETWEEN 40 AND 40.5",
    "rider_id BETWEEN 90000 AND 140000 AND fare BETWEEN 10 AND 20",
)
#: With one that no layout by these columns helps.
_MIXED = (*_QUERIES, "tip BETWEEN 3 AND 3.1")


def run(setting: Setting) -> list[Comparison]:
    """Measure each layout against the floor, copying against rewriting, and queries after against before."""
    work = _Work(setting)
    floor = Side(name="floor", run=lambda _: work.floor())
    ours = [Side(name=name, before=work.before(name), run=work.cluster(name)) for name in _LAYOUTS]
    samples = interleave([floor, *ours], setting.rounds)
    found = [
        compare(f"clustering, {name}", samples, name, "floor", SORT_TARGET) for name in ("sort", "z-order", "hilbert")
    ]
    found.append(compare("clustering, row groups copied", samples, "copying", "rewriting", COPY_TARGET))
    return [*found, *_queries(setting, work)]


def _queries(setting: Setting, work: _Work) -> list[Comparison]:
    """Measure range queries on as many files as they came in, and laid out along each curve in as many."""
    came = work.spread(OUTPUTS)
    size = sum(file.size_bytes for file in came.scan().plan().plan.files)
    tables = {"as it came": came}
    for name in ("z-order", "hilbert"):
        options = {**_ANY_SIZE, **_LAYOUTS[name], _TARGET: str(size // OUTPUTS)}
        tables[name] = work.copy(f"queried-{name}", options, of=came)
        assert isinstance(tables[name].services.clustering.run(force=True), Committed)
    opened = {
        name: [len(table.scan(where=where).plan().plan.files) for where in _QUERIES] for name, table in tables.items()
    }
    for name, table in tables.items():
        print(f"    {name}: {len(table.scan().plan().plan.files)} files, the queries open {opened[name]}", flush=True)
        shares = [now / before for now, before in zip(opened[name], opened["as it came"], strict=True)]
        print("      of the files opened before: " + ", ".join(f"{share:.0%}" for share in shares), flush=True)
    rows = {name: [table.scan(where=where).count() for where in _MIXED] for name, table in tables.items()}
    assert len({tuple(counts) for counts in rows.values()}) == 1, rows
    sides = [Side(name=name, run=lambda _, table=table: _ask(table)) for name, table in tables.items()]  # type: ignore[misc]
    samples = interleave(sides, setting.rounds)
    return [
        compare(f"{len(_MIXED)} mixed queries, {name}", samples, name, "as it came", QUERY_TARGET)
        for name in ("z-order", "hilbert")
    ]


def _ask(table: Table) -> None:
    for where in _MIXED:
        table.scan(where=where).to_arrow()


@dataclass(slots=True)
class _Work:
    setting: Setting
    made: Table = field(init=False)
    now: Table = field(init=False)

    def __post_init__(self) -> None:
        self.made = create(self.setting.fresh("clustered"), partitioned=False)
        for part in range(FILES):
            rows = orders(np.arange(part, self.setting.rows, FILES))
            self.made.bulk_insert(rows, options={"hoodie.parquet.max.file.size": str(1 << 40)})
        self.now = self.made

    def spread(self, files: int) -> Table:
        """Return the same rows in another number of files, each with rows of everywhere."""
        table = create(self.setting.fresh("spread"), partitioned=False)
        for part in range(files):
            table.bulk_insert(orders(np.arange(part, self.setting.rows, files)))
        return table

    def copy(self, name: str, options: Mapping[str, str], *, of: Table | None = None) -> Table:
        """Return a copy of a table, of that as it came if none is named."""
        target = self.setting.fresh(name)
        shutil.copytree((of or self.made).location.removeprefix("file://"), target)
        return Table.open(target, options=options)

    def before(self, name: str) -> Callable[[int], None]:
        """Return what prepares a side."""

        def prepare(_: int) -> None:
            self.now = self.copy("clustered-now", {**_ANY_SIZE, **_LAYOUTS[name]})
            row_group_copy.MIN_GROUP_BYTES = 1 << 60 if name == "rewriting" else 1 << 20

        return prepare

    def cluster(self, name: str) -> Callable[[int], None]:
        """Return what runs a side."""

        def cluster(_: int) -> None:
            outcome = self.now.services.clustering.run(force=True)
            assert isinstance(outcome, Committed), (name, outcome)

        return cluster

    def floor(self) -> None:
        """Read all files, sort and write, in one thread."""
        root = Path(self.made.location.removeprefix("file://"))
        files = [str(root / file.path) for file in self.made.scan().plan().plan.files]
        rows = pa.concat_tables([pq.read_table(path, use_threads=False) for path in files])
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _COLUMNS])
        pq.write_table(rows.take(order), self.setting.fresh("floor") + ".parquet", compression=CODEC)
