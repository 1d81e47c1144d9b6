"""Planners make no Python object for each file of a table, and list no data directory with a metadata table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.model.commit import WriteStat
from lakehouse.model.files import BaseFile, FileSlice, LogFile

PARTITIONS = tuple(f"p{number}" for number in range(6))
OBJECTS = (FileSlice, BaseFile, LogFile, WriteStat)
PLANNED_GROUPS = 2
OPTIONS = {
    "lakehouse.ttl.max.partitions": "4",
    "hoodie.write.lock.provider": "InProcessLockProvider",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.clustering.plan.strategy.max.num.groups": str(PLANNED_GROUPS),
}


@dataclass
class Made:
    """Objects of files that were made."""

    counts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """The number of objects."""
        return sum(self.counts.values())


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Count the objects of files that are made."""
    made = Made()
    with monkeypatch.context() as patch:
        for kind in OBJECTS:
            patch.setattr(kind, "__init__", _counting(kind, made))
        yield made


def _counting(kind: type, made: Made) -> Callable[..., None]:
    original = kind.__init__  # type: ignore[misc]

    def count(self: Any, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        # The metadata table has its own files, a few for each commit since its last compaction.
        if self.partition in PARTITIONS:
            made.counts[kind.__name__] += 1

    return count


def stored(path: Path, commits: int, **declared: str) -> tuple[Table, CountingStorage]:
    """Return a table with `commits` files in each partition, opened again, and its counting storage."""
    storage = CountingStorage(LocalStorage(str(path)))
    table = Table.create(
        storage.root, name="t", record_key="id", partition_by="p", ordering="ts", env=Env(storage=storage), **declared
    ).with_options(OPTIONS)
    for commit in range(commits):
        count = len(PARTITIONS)
        rows = {"id": [f"{commit}-{name}" for name in PARTITIONS], "p": PARTITIONS, "ts": [commit] * count}
        table.bulk_insert(pa.table(rows))
    storage.reset()
    return Table.open(storage.root, env=Env(storage=storage)).with_options(OPTIONS), storage


PLANNERS: dict[str, Callable[[Table], object]] = {
    "clustering": lambda table: table.services.clustering.plan(force=True),
    "compaction": lambda table: table.services.compaction.plan(force=True),
    "clean": lambda table: table.services.clean.plan(force=True),
    "describe": lambda table: table.describe(),
    "health": lambda table: table.health(),
    "ttl": lambda table: table.services.ttl.plan(force=True),
    "read": lambda table: table.scan(where="ts >= 0").plan(),
}


@pytest.mark.parametrize("planner", PLANNERS)
def test_planner_makes_as_many_file_objects_for_a_table_of_more_files(
    planner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "MERGE_ON_READ" if planner == "compaction" else "COPY_ON_WRITE"
    totals = []
    for commits in (3, 9):
        table, storage = stored(tmp_path / str(commits), commits, table_type=kind)
        with counted(monkeypatch) as made:
            PLANNERS[planner](table)
        assert storage.listed_data() == ()
        # A group of the plan has the files of one partition.
        planned = PLANNED_GROUPS * commits * 2 if planner == "clustering" else 0
        assert made.counts["FileSlice"] == planned // 2
        # The newest commits tell the schema and the index of the table. A summary shows the newest ten, and statistics
        # of partitions are built from all.
        stats = made.counts.pop("WriteStat", 0)
        assert stats <= len(PARTITIONS) * (commits if planner in ("describe", "ttl") else 3)
        totals.append(made.total - planned)
    assert totals[0] == totals[1]


def test_change_read_makes_file_objects_for_changed_groups_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for commits in (3, 9):
        table, storage = stored(tmp_path / str(commits), commits, cdc="DATA_BEFORE_AFTER")
        begin = table.commits()[-2][0].completion
        storage.reset()
        with counted(monkeypatch) as made:
            table.incremental(begin, format="cdc").plan()
        assert storage.listed_data() == ()
        counts.append(made.counts)
    assert counts[0] == counts[1]
    assert counts[0]["FileSlice"] > 0
