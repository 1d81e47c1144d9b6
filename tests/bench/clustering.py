"""Clustering against a baseline in Arrow, copies of row groups against rewriting, and queries before and after.

All sides work in one thread on one group of eight files, so that the ratio does not depend on parallelism. The baseline
reads, sorts and writes with Arrow. It has no memory budget, writes no bloom filter and makes no commit.
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

from lakehouse.core.files.base import row_group_copy
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
#: The queries and one on a column that is not in the layout.
_MIXED = (*_QUERIES, "tip BETWEEN 3 AND 3.1")


def run(setting: Setting) -> list[Comparison]:
    """Measure each layout against the baseline, copies against rewriting, and queries after against before."""
    work = _Work(setting)
    baseline = Side(name="baseline", run=lambda _: work.baseline())
    ours = [Side(name=name, before=work.before(name), run=work.cluster(name)) for name in _LAYOUTS]
    samples = interleave([baseline, *ours], setting.rounds)
    found = [
        compare(f"clustering, {name}", samples, name, "baseline", SORT_TARGET)
        for name in ("sort", "z-order", "hilbert")
    ]
    found.append(compare("clustering, row groups copied", samples, "copying", "rewriting", COPY_TARGET))
    return [*found, *_queries(setting, work)]


def _queries(setting: Setting, work: _Work) -> list[Comparison]:
    """Measure range queries on unordered files and on the same number of files in the order of each curve."""
    unordered = work.spread(OUTPUTS)
    size = sum(file.size_bytes for file in unordered.scan().plan().plan.files)
    tables = {"unordered": unordered}
    for name in ("z-order", "hilbert"):
        options = {**_ANY_SIZE, **_LAYOUTS[name], _TARGET: str(size // OUTPUTS)}
        tables[name] = work.copy(f"queried-{name}", options, of=unordered)
        assert isinstance(tables[name].services.clustering.run(force=True), Committed)
    opened = {
        name: [len(table.scan(where=where).plan().plan.files) for where in _QUERIES] for name, table in tables.items()
    }
    for name, table in tables.items():
        print(f"    {name}: {len(table.scan().plan().plan.files)} files, the queries open {opened[name]}", flush=True)
        shares = [now / before for now, before in zip(opened[name], opened["unordered"], strict=True)]
        print("      share of the files of unordered: " + ", ".join(f"{share:.0%}" for share in shares), flush=True)
    rows = {name: [table.scan(where=where).count() for where in _MIXED] for name, table in tables.items()}
    assert len({tuple(counts) for counts in rows.values()}) == 1, rows
    sides = [Side(name=name, run=lambda _, table=table: _run_queries(table)) for name, table in tables.items()]  # type: ignore[misc]
    samples = interleave(sides, setting.rounds)
    return [
        compare(f"{len(_MIXED)} mixed queries, {name}", samples, name, "unordered", QUERY_TARGET)
        for name in ("z-order", "hilbert")
    ]


def _run_queries(table: Table) -> None:
    for where in _MIXED:
        table.scan(where=where).to_arrow()


@dataclass(slots=True)
class _Work:
    setting: Setting
    unclustered: Table = field(init=False)
    current: Table = field(init=False)

    def __post_init__(self) -> None:
        self.unclustered = create(self.setting.fresh("clustered"), partitioned=False)
        for part in range(FILES):
            rows = orders(np.arange(part, self.setting.rows, FILES))
            self.unclustered.bulk_insert(rows, options={"hoodie.parquet.max.file.size": str(1 << 40)})
        self.current = self.unclustered

    def spread(self, files: int) -> Table:
        """Return a table of the same rows in this number of files; each file has rows of the whole key range."""
        table = create(self.setting.fresh("spread"), partitioned=False)
        for part in range(files):
            table.bulk_insert(orders(np.arange(part, self.setting.rows, files)))
        return table

    def copy(self, name: str, options: Mapping[str, str], *, of: Table | None = None) -> Table:
        """Return a copy of the table `of`; the default is the table before clustering."""
        target = self.setting.fresh(name)
        shutil.copytree((of or self.unclustered).location.removeprefix("file://"), target)
        return Table.open(target, options=options)

    def before(self, name: str) -> Callable[[int], None]:
        """Return the function that prepares a side."""

        def prepare(_: int) -> None:
            self.current = self.copy("clustered-now", {**_ANY_SIZE, **_LAYOUTS[name]})
            row_group_copy.MIN_GROUP_BYTES = 1 << 60 if name == "rewriting" else 1 << 20

        return prepare

    def cluster(self, name: str) -> Callable[[int], None]:
        """Return the function that runs a side."""

        def cluster(_: int) -> None:
            outcome = self.current.services.clustering.run(force=True)
            assert isinstance(outcome, Committed), (name, outcome)

        return cluster

    def baseline(self) -> None:
        """Read all files, sort and write, in one thread."""
        root = Path(self.unclustered.location.removeprefix("file://"))
        files = [str(root / file.path) for file in self.unclustered.scan().plan().plan.files]
        rows = pa.concat_tables([pq.read_table(path, use_threads=False) for path in files])
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _COLUMNS])
        pq.write_table(rows.take(order), self.setting.fresh("baseline") + ".parquet", compression=CODEC)
