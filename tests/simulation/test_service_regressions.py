"""Defects of services with concurrent writers that the simulation found, each as a fixed sequence of steps."""

from __future__ import annotations

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.operations.services import plan_executor
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.operations.undo.rollback import roll_back
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from lakehouse.model.instant import Action
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.simulation import invariants
from tests.simulation.actors import NON_BLOCKING, OPTIMISTIC, SERVING
from tests.simulation.tables import CALLS, INDEXES, Shape, prepared
from tests.simulation.tables import batch as rows
from tests.support.killed import Host, Interrupted, copy_of

ONE, OTHER = 201, 202


def opened(storage: Storage, pid: int, dead: tuple[int, ...] = (), **options: str) -> Table:
    """Open a table of the simulation as the process `pid`; the processes `dead` no longer run."""
    env = Env(storage=storage, processes=Host(pid, frozenset(dead)))
    return Table.open(storage.root, options=CALLS | options, env=env)


@pytest.mark.parametrize("kind", ["COW_SIMPLE", "MOR_SIMPLE"])
def test_stale_executor_of_a_clustering_duplicates_no_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, _ = prepared(Shape(kind, False, "clustering"))
    before = invariants.read(copy_of(base))
    probe = FaultyStorage(copy_of(base))
    opened(probe, ONE, **OPTIMISTIC).services.clustering.run()
    writes = next(number for number, step in enumerate(probe.trace, 1) if step.startswith("open_output a/"))

    def turn(store: Storage) -> None:
        assert isinstance(opened(store, OTHER, (ONE,), **OPTIMISTIC).services.clustering.run(), Committed)

    storage = copy_of(base)
    # The stale executor crashes before it deletes its files.
    monkeypatch.setattr(plan_executor, "abandon_plan", lambda *_: None)
    with pytest.raises(RetryableError, match="taken over"):
        opened(Interrupted(storage, writes, turn, monkeypatch), ONE, **OPTIMISTIC).services.clustering.run()
    assert invariants.read(storage) == before


@pytest.mark.parametrize("early", [True, False])
def test_writer_lists_file_groups_again_after_a_concurrent_compaction_and_clean(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _ = prepared(Shape("MOR_BUCKETS", False, "compaction"))
    options = INDEXES["BUCKETS"] | NON_BLOCKING
    brought = rows({("a", f"i{number}"): {"v": 7, "w": 7} for number in range(4)})
    probe = FaultyStorage(copy_of(base))
    opened(probe, ONE, **options).insert(brought)
    locks = next(number for number, step in enumerate(probe.trace, 1) if "shared_lock" in step)
    lists = next(number for number, step in enumerate(probe.trace, 1) if step == "list_dir a")

    def turn(store: Storage) -> None:
        opened(store, OTHER, **OPTIMISTIC, **SERVING).services.compaction.run()
        opened(store, OTHER, **options).insert(rows({("b", "i8"): {"v": 8, "w": 8}}))
        if early:
            cleans(store)

    def cleans(store: Storage) -> None:
        outcome = opened(store, OTHER, **OPTIMISTIC, **SERVING).services.clean.run(force=True)
        assert isinstance(outcome, Cleaned) or not early

    storage = copy_of(base)
    first = Interrupted(storage, locks, turn, monkeypatch)
    store = first if early else Interrupted(first, lists, lambda _: cleans(storage), monkeypatch)
    opened(store, ONE, **options).insert(brought)
    assert sum(partition == "a" for partition, _ in invariants.read(storage)) == 7
    opened(storage, ONE, **options).insert(rows({("a", "i9"): {"v": 8, "w": 8}}))
    assert invariants.read(storage)["a", "i9"] == {"v": 8, "w": 8}


def test_rollback_ignores_a_write_that_completed_in_the_meantime() -> None:
    storage = copy_of(prepared(Shape("COW_SIMPLE", False))[0])
    table = opened(storage, ONE)
    before = invariants.read(storage)
    newest = table.timeline.writes().by_completion()[-1]
    assert roll_back(load_table(Env(storage=storage)), TransactionPolicy(), newest.requested) is None
    assert not table.timeline.where(action=Action.ROLLBACK)
    assert invariants.read(storage) == before
