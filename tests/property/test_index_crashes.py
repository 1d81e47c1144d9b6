"""Index builds crash at any storage step: rows and metadata stay right, and the next run completes the build."""

from __future__ import annotations

from functools import cache

import pytest

from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from tests.support.killed import BASE, RECOVERY, batch, copy_of, create, open_as, points, rows_of, share_of

CRASHED, SURVIVOR = 101, 102
INDEX = "secondary_index_v"


@cache
def base(kind: str) -> Storage:
    """Return a table with rows and a declared index that is not built; tests work on copies."""
    storage = MemoryStorage()
    table = create(storage, kind)
    table.upsert(batch(BASE))
    if "files" not in listed_partitions(table.refresh().config.raw)[0]:
        table.metadata.rebuild()
    table.services.create_index("v")
    return storage


def build(storage: Storage, pid: int = CRASHED, dead: tuple[int, ...] = ()) -> None:
    open_as(storage, pid, dead).services.index.run()


@cache
def trace(kind: str) -> tuple[str, ...]:
    """Return the storage steps of a build that succeeds."""
    storage = FaultyStorage(copy_of(base(kind)))
    build(storage)
    return tuple(storage.trace)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SIMPLE", "LOGS_SIMPLE"])
def test_next_run_completes_an_index_after_a_crash_at_any_step(kind: str) -> None:
    crashes = 0
    for step, mode in share_of(points(trace(kind)), kind, 4):
        storage = copy_of(base(kind))
        with pytest.raises(SimulatedCrash):
            build(FaultyStorage(storage, step, mode))
        assert rows_of(storage) == BASE, (step, mode)
        # A write beside the unfinished build maintains the index.
        open_as(storage, SURVIVOR, (CRASHED,)).upsert(batch(RECOVERY))
        build(storage, SURVIVOR, (CRASHED,))
        table = open_as(storage, SURVIVOR, (CRASHED,))
        usable, building = listed_partitions(table.refresh().config.raw)
        assert INDEX in usable and building == (), (step, mode)
        report = table.metadata.validate()
        wrong = [f"{check!r} {check.examples}" for check in report.checks if not check.ok]
        assert report.usable and not wrong, (step, mode, wrong)
        assert rows_of(storage) == {**BASE, **RECOVERY}
        crashes += 1
    assert crashes > 5
