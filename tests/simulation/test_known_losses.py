"""Known data losses of table formats, each tested in every order of two actors with one switch.

The list names the tests for each loss.

instant collision                                     here; with a lost lock: test_undo_regressions
missing primary-key check                             here; for deleted keys: test_undo_regressions
late instant                                          here
compaction planned beside an in-flight delta commit   here
one plan run twice                                    here
cleaner against a live writer                         here
wrong log chosen after a retried task                 unit/test_markers: the files of one task attempt remain
insert_overwrite against a pending compaction         here; with a clustering: property/test_clustering_crashes
lost reply that deleted committed data                here
early lock expiry                                     test_undo_regressions: a rollback whose lock is lost
late commit of a writer whose lock expired            test_late_commits, for every operation; a planted bug
lost partial update of parallel column writers        here; with a log compaction: test_undo_regressions
incremental reader behind an archive                  test_regressions; all ranges: property/test_archive
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CommitStateUnknownError
from tests.simulation.schedules import Pair, schedules
from tests.simulation.tables import Shape
from tests.simulation.test_pairs import A0, NEW, brings, serves
from tests.support.killed import BASE, Interrupted, Unanswered, base_table, batch, copy_of, open_as, rows_of

ONE, OTHER = 201, 202
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
LOSSES = {
    "instant collision": Pair(
        shape=Shape("COW_SIMPLE", False), actors=(brings("w1", "upsert", A0), brings("w2", "insert_overwrite", NEW))
    ),
    "missing primary-key check": Pair(
        shape=Shape("COW_SIMPLE", False),
        actors=(brings("w1", "upsert", ("c", "n0")), brings("w2", "upsert", ("c", "n0"))),
    ),
    "compaction planned beside an in-flight delta commit": Pair(
        shape=Shape("MOR_SIMPLE", False), actors=(brings("w1", "upsert", A0), serves("compaction"))
    ),
    "one plan run twice": Pair(
        shape=Shape("MOR_SIMPLE", False, "log compaction"), actors=(serves("log compaction"), serves("log compaction"))
    ),
    "cleaner against a live writer": Pair(
        shape=Shape("COW_SIMPLE", False), actors=(brings("w1", "upsert", A0), serves("clean"))
    ),
    "insert_overwrite against a pending compaction": Pair(
        shape=Shape("MOR_BUCKET", False, "compaction"),
        actors=(brings("w1", "insert_overwrite", ("a", "o1")), serves("compaction")),
    ),
    "lost partial update of parallel column writers": Pair(
        shape=Shape("MOR_BUCKET", False),
        actors=(brings("w1", "partial", A0, row={"x1": 10}), brings("w2", "partial", A0, row={"x2": 20})),
    ),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", LOSSES)
def test_known_loss_does_not_happen_in_any_order(name: str) -> None:
    assert sum(1 for _ in schedules(LOSSES[name], 1)) > 10


def test_incremental_read_returns_a_commit_that_was_requested_before_its_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = base_table(MemoryStorage(), "SIMPLE")
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    written = next(number for number, step in enumerate(probe.trace, 1) if step.startswith("close a/"))
    seen: list[str] = []

    def turn(store: Storage) -> None:
        table = open_as(store, OTHER, **OPTIMISTIC)
        table.upsert(batch({("b", "b1"): 3}))
        seen.append(table.timeline.writes().by_completion()[-1].completion)

    storage = copy_of(base)
    open_as(Interrupted(storage, written, turn, monkeypatch), ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    late = open_as(storage, OTHER).timeline.writes().by_completion()[-1]
    assert late.requested < seen[0] < late.completion
    assert open_as(storage, OTHER).incremental(seen[0], columns=["id", "v"]).to_arrow().to_pylist() == [
        {"id": "a1", "v": 2}
    ]


@pytest.mark.parametrize("lands", [False, True])
def test_write_with_a_lost_reply_deletes_no_data(lands: bool) -> None:
    storage = base_table(MemoryStorage(), "SIMPLE")
    unanswered = Unanswered(storage, lands=lands)
    with pytest.raises(CommitStateUnknownError):
        open_as(unanswered, ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    assert not [path for path in unanswered.deleted if path.endswith(".parquet")]
    assert rows_of(storage) == ({**BASE, ("a", "a1"): 2} if lands else BASE)
