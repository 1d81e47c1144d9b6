"""A writer is suspended after its last check of the lock, before the create of its commit, until its lease expires.

Meanwhile another writer takes the lock over, commits and releases it. If one store keeps the lock and the timeline, it
compares the lock at the create and refuses the create. Otherwise the late commit is created, but its writer does not
report it as committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.locks.filesystem import HOLDER
from lakehouse.core.timeline.locks.lease import LeaseLock
from lakehouse.errors import CommitStateUnknownError, RetryableError
from lakehouse.model.instant import Action
from tests.support.killed import BASE, Host, Interrupted, base_table, batch, copy_of, logged_table, open_as, rows_of

ONE, OTHER = 201, 202
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
ROW = ("a", "a1")
RIVALS_ROW = ("c", "rival")


def newest(table: Table) -> str:
    """Return the requested time of the newest completed write."""
    return table.timeline.writes().by_completion()[-1].requested


def oldest(table: Table) -> str:
    """Return the requested time of the oldest completed write."""
    return table.timeline.writes().by_completion()[0].requested


@dataclass(frozen=True)
class Committing:
    """An operation and the extension of its completed file; `merges` if it needs a table with log files.

    `index` is a suffix of the table's name in `tests.support.killed`, for another table version.
    """

    run: Callable[[Table], object]
    ends: str
    merges: bool = False
    index: str = ""


OPERATIONS = {
    "upsert": Committing(lambda table: table.upsert(batch({ROW: 2})), ".commit"),
    "insert_overwrite": Committing(lambda table: table.insert_overwrite(batch({ROW: 2})), ".replacecommit"),
    "rollback": Committing(lambda table: table.rollback(newest(table)), ".rollback"),
    "savepoint": Committing(lambda table: table.savepoint(newest(table)), ".savepoint"),
    "clean": Committing(lambda table: table.services.clean.run(force=True), ".clean"),
    "clustering": Committing(lambda table: table.services.clustering.run(force=True), ".replacecommit"),
    "compaction": Committing(lambda table: table.services.compaction.run(force=True), ".commit", merges=True),
    "log compaction": Committing(lambda table: table.services.log_compaction.run(), ".deltacommit", merges=True),
}
#: Version 6 has no log compaction.
OPERATIONS |= {
    f"{name}, version 6": replace(operation, index="_6")
    for name, operation in OPERATIONS.items()
    if name != "log compaction"
}
#: During a pending restore, only another executor of this restore can commit.
RESTORE = Committing(lambda table: table.restore(oldest(table)), ".restore")
OPTIONS = {
    **OPTIMISTIC,
    "hoodie.clean.commits.retained": "1",
    "hoodie.clustering.plan.strategy.sort.columns": "v",
}


def table_for(operation: Committing) -> MemoryStorage:
    """Return a table in which the operation has work to do."""
    if operation.merges:
        return copy_of(logged_table(MemoryStorage(), f"LOGS_SIMPLE{operation.index}"))
    storage = base_table(MemoryStorage(), f"SIMPLE{operation.index}")
    open_as(storage, ONE).upsert(batch({("a", "a0"): 1}))
    return copy_of(storage)


def commit_step(base: Storage, operation: Committing) -> int:
    """Return the number of the step that creates the completed file."""
    probe = FaultyStorage(copy_of(base))
    operation.run(open_as(probe, ONE, **OPTIONS))
    return max(
        n
        for n, s in enumerate(probe.trace, 1)
        if s.startswith(("create .hoodie/timeline", "create .hoodie/2")) and _completes(s, operation)
    )


def _completes(step: str, operation: Committing) -> bool:
    return step.endswith(operation.ends)


def completed(storage: Storage, operation: Committing) -> int:
    """Return the number of completed files with the operation's extension on the timeline."""
    files, _ = storage.list_dir(".hoodie" if operation.index else ".hoodie/timeline")
    return sum(file.name.endswith(operation.ends) for file in files)


def take_over(store: Storage) -> None:
    """Take over the lock of a process whose lease has expired, and commit."""
    store.delete_many([f".hoodie/{HOLDER}", ".hoodie/lock"])
    outcome = open_as(store, OTHER, **OPTIMISTIC).insert(batch({RIVALS_ROW: 3}))
    assert isinstance(outcome, Committed)


@pytest.fixture
def _lock_in_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the comparison of the lock at a create, as for a lock in a database or in another store."""
    monkeypatch.setattr(LeaseLock, "guard", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", OPERATIONS)
def test_late_commit_is_refused_if_the_store_compares_the_lock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS[name]
    base = table_for(operation)
    late = Interrupted(base, commit_step(base, operation), take_over, monkeypatch)
    before = completed(base, operation)
    with pytest.raises(RetryableError, match="lost"):
        operation.run(open_as(late, ONE, **OPTIONS))
    assert completed(base, operation) == before + (
        operation.ends in (".commit", ".deltacommit") and _ends_as_rival(operation)
    )
    assert rows_of(base)[RIVALS_ROW] == 3


def _ends_as_rival(operation: Committing) -> bool:
    return (operation.ends == ".deltacommit") == operation.merges


@pytest.mark.usefixtures("_lock_in_another_store")
@pytest.mark.parametrize("name", OPERATIONS)
def test_late_commit_is_not_reported_as_committed_if_the_lock_is_in_another_store(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = OPERATIONS[name]
    base = table_for(operation)
    late = Interrupted(base, commit_step(base, operation), take_over, monkeypatch)
    with pytest.raises(CommitStateUnknownError, match=r"lock was lost .*commit\) committed in between") as raised:
        operation.run(open_as(late, ONE, **OPTIONS))
    rival = newest_of(base, RIVALS_ROW)
    assert rival in str(raised.value)
    assert rows_of(base)[RIVALS_ROW] == 3


def newest_of(storage: Storage, row: tuple[str, str]) -> str:
    """Return the requested time of the write of a row."""
    found = open_as(storage, OTHER).scan(columns=["_hoodie_commit_time", "id", "p"]).to_arrow().to_pylist()
    return next(r["_hoodie_commit_time"] for r in found if (r["p"], r["id"]) == row)


class Later(SystemClock):
    """A clock that is one minute ahead, so that no requested time is used twice."""

    def now_ms(self) -> int:
        """Return the time of the next minute."""
        return super().now_ms() + 60_000


def finish_restore(store: Storage) -> None:
    """Take over the lock and the restore of another process, and complete the restore."""
    store.delete_many([f".hoodie/{HOLDER}", ".hoodie/lock"])
    env = Env(storage=store, processes=Host(OTHER, frozenset([ONE])), clock=Later())
    table = Table.open(store.root, options=OPTIMISTIC, env=env)
    table.restore(oldest(table))


@pytest.mark.parametrize(("is_elsewhere", "reason"), [(False, "lost to"), (True, "another executor completed it")])
def test_late_restore_that_another_executor_finished_leaves_one_restore(
    is_elsewhere: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = table_for(RESTORE)
    if is_elsewhere:
        monkeypatch.setattr(LeaseLock, "guard", lambda *_, **__: None)
    late = Interrupted(base, commit_step(base, RESTORE), finish_restore, monkeypatch)
    with pytest.raises(RetryableError, match=reason):
        RESTORE.run(open_as(late, ONE, **OPTIONS))
    assert len([file for file in base.list(".hoodie/timeline") if file.name.endswith(".restore")]) == 1
    assert rows_of(base) == {**BASE, ("a", "a0"): 0}


@pytest.mark.usefixtures("_lock_in_another_store")
def test_late_commit_is_valid_without_another_commit_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS["upsert"]
    base = table_for(operation)

    def only_check(store: Storage) -> None:
        store.delete_many([f".hoodie/{HOLDER}", ".hoodie/lock"])
        open_as(store, OTHER, **OPTIMISTIC).rollback_failed()

    late = Interrupted(base, commit_step(base, operation), only_check, monkeypatch)
    assert isinstance(operation.run(open_as(late, ONE, **OPTIONS)), Committed)
    assert rows_of(base) == {**BASE, ROW: 2}


@pytest.mark.usefixtures("_lock_in_another_store")
def test_late_commit_is_withdrawn_when_its_instant_was_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS["upsert"]
    base = table_for(operation)

    def roll_back(store: Storage) -> None:
        store.delete_many([f".hoodie/{HOLDER}", ".hoodie/lock"])
        table = open_as(store, OTHER, [ONE], **OPTIMISTIC)
        [pending] = table.timeline.where(pending=True)
        table.rollback(pending.requested, force=True)

    late = Interrupted(base, commit_step(base, operation), roll_back, monkeypatch)
    with pytest.raises(RetryableError, match=r"lock was lost before the commit, and .* withdrawn"):
        operation.run(open_as(late, ONE, **OPTIONS))
    assert rows_of(base) == BASE
    table = open_as(base, OTHER)
    assert not table.timeline.where(pending=True)
    assert [i.is_completed for i in table.timeline.where(action=Action.ROLLBACK)] == [True]


@pytest.mark.usefixtures("_lock_in_another_store")
def test_late_commit_is_reported_as_unknown_when_the_timeline_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS["upsert"]
    base = table_for(operation)

    class Gone(Interrupted):
        """Sends no replies after the commit."""

        def step(self, name: str, call: Callable[[], object]) -> object:
            if self.at < 0:
                raise RetryableError("no answer")
            return super().step(name, call)

    late = Gone(base, commit_step(base, operation), take_over, monkeypatch)
    with pytest.raises(CommitStateUnknownError, match="not known: no answer"):
        operation.run(open_as(late, ONE, **OPTIONS))


@pytest.mark.usefixtures("_lock_in_another_store")
def test_commit_after_an_expired_lease_is_valid_if_no_process_took_the_lock_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operation = OPERATIONS["upsert"]
    base = table_for(operation)
    check, renewed = LeaseLock.check, LeaseLock.renew
    renewals: list[int] = []

    def expired(lock: LeaseLock) -> None:
        if len(open_as(base, OTHER).timeline.writes()) > before and not renewals:
            raise RetryableError("the lease has expired")
        check(lock)

    def renew(lock: LeaseLock) -> None:
        renewals.append(1)
        renewed(lock)

    before = len(open_as(base, OTHER).timeline.writes())
    monkeypatch.setattr(LeaseLock, "renew", renew)
    monkeypatch.setattr(LeaseLock, "check", expired)
    assert isinstance(operation.run(open_as(base, ONE)), Committed)
    assert renewals
    assert rows_of(base) == {**BASE, ROW: 2}
