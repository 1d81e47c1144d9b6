"""Writers that could not exclude each other are refused before the first of them takes a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.core.env import process_state
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Level, RequestRefusedError, Storage
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.timeline import lock_compatibility as agreement
from lakehouse.core.timeline.locks.storage import LOCK_PATH
from lakehouse.errors import RetryableError, UserError
from tests.support.killed import BASE, base_table, batch, copy_of, leftovers, open_as, rows_of
from tests.support.unconditional import UnconditionalStorage

PROVIDER = "hoodie.write.lock.provider"
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
STORAGE = OPTIMISTIC | {PROVIDER: "storage"}
CHANGE = {("a", "a1"): 2}
TABLE = base_table(MemoryStorage(), "SIMPLE")


class Conditional(MemoryStorage):
    """A store that keeps conditions, and whose address does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.root = self.root.replace("memory://", "s3://since-2024/")
        for file in TABLE.list(""):
            self.put(file.path, TABLE.get(file.path))

    def list_dir(self, prefix: str) -> Level:
        """Return files with the time of a store: its clock is compared with ours."""
        files, names = super().list_dir(prefix)
        return [replace(file, modified_ms=SystemClock().now_ms()) for file in files], names


@pytest.fixture
def database(tmp_path: Path) -> dict[str, str]:
    """The options of a lock in a database."""
    return OPTIMISTIC | {PROVIDER: "sqlalchemy", "lakehouse.lock.sqlalchemy.url": f"sqlite:///{tmp_path}/locks.db"}


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget(monkeypatch)
    yield


def forget(patch: pytest.MonkeyPatch) -> None:
    """Go on as a process that has not looked at any table yet."""
    patch.setattr(process_state(), "compared_locks", {})
    patch.setattr(process_state(), "conditional_storages", set())


def left(storage: Storage) -> list[str]:
    """Return what is left over, but for the lock, which an object store cannot delete."""
    return [path for path in leftovers(storage) if path != LOCK_PATH]


@pytest.mark.parametrize("provider", ["filesystem", "storage"])
def test_a_store_that_ignores_conditions_keeps_no_lock_among_many_writers(provider: str) -> None:
    storage = UnconditionalStorage(TABLE)
    before = [file.path for file in storage.list("")]
    with pytest.raises(UserError, match=rf"{provider} would admit several writers.*sqlalchemy, zookeeper"):
        open_as(storage, 1, **OPTIMISTIC, **{PROVIDER: provider}).upsert(batch(CHANGE))
    assert [file.path for file in storage.list("")] == before
    assert rows_of(storage) == BASE


def test_a_store_that_ignores_the_tag_alone_is_found_out_too() -> None:
    class Half(UnconditionalStorage):
        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            return MemoryStorage.create(self, path, data, unique=unique)

    with pytest.raises(UserError, match="If-Match"):
        open_as(Half(TABLE), 1, **STORAGE).upsert(batch(CHANGE))


def test_a_store_that_does_not_know_conditions_is_named() -> None:
    class Older(UnconditionalStorage):
        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            raise RequestRefusedError("refused: not implemented", status=501)

    with pytest.raises(UserError, match="does not support conditional writes"):
        open_as(Older(TABLE), 1, **STORAGE).upsert(batch(CHANGE))


def test_such_a_store_will_do_with_a_lock_kept_elsewhere_and_for_a_single_writer(database: dict[str, str]) -> None:
    for options in (database, {}):
        storage = UnconditionalStorage(TABLE)
        assert isinstance(open_as(storage, 1, **options).upsert(batch(CHANGE)), Committed)
        assert rows_of(storage) == BASE | CHANGE


def test_a_store_is_asked_once_per_process_and_not_at_all_where_it_is_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for inner, asked in ((Conditional(), 1), (copy_of(TABLE), 0)):
        forget(monkeypatch)
        storage = FaultyStorage(inner)
        for value in (2, 3):
            open_as(storage, 1, **STORAGE).upsert(batch({("a", "a1"): value}))
        creations = [step for step in storage.trace if step.startswith("create") and "conditions" in step]
        records = [step for step in storage.trace if step.endswith(agreement.SHARED_LOCK)]
        assert len(creations) == 2 * asked
        assert len(records) == 3, "read, made, read"
        assert left(storage.inner) == []


def test_a_process_killed_while_it_asks_leaves_what_is_swept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = FaultyStorage(Conditional())
    open_as(probe, 1, **STORAGE).upsert(batch(CHANGE))
    steps = [n for n, step in enumerate(probe.trace, 1) if "conditions" in step or agreement.SHARED_LOCK in step]
    for mode in (FaultMode.CRASH_AFTER, FaultMode.LOSE_REPLY):
        for step in steps:
            forget(monkeypatch)
            inner = Conditional()
            with suppress(SimulatedCrash, RetryableError):
                open_as(FaultyStorage(inner, step, mode), 1, **STORAGE).upsert(batch(CHANGE))
            forget(monkeypatch)
            open_as(inner, 2, [1], **STORAGE).rollback_failed()
            open_as(inner, 2, [1], **STORAGE).upsert(batch(CHANGE))
            assert left(inner) == [], (mode, probe.trace[step - 1])
            assert rows_of(inner) == BASE | CHANGE


def test_writers_under_two_locks_are_refused_services_and_single_writers_too(database: dict[str, str]) -> None:
    storage = copy_of(TABLE)
    open_as(storage, 1, **STORAGE).upsert(batch(CHANGE))
    for options in (OPTIMISTIC, database, {}, {PROVIDER: "in_process"}):
        with pytest.raises(UserError, match=r"by the lock 'storage \.hoodie/\.locks/table_lock\.json'.*delete"):
            open_as(storage, 2, **options).upsert(batch({("a", "a1"): 3}))
    assert rows_of(storage) == BASE | CHANGE
    assert left(storage) == []


def test_the_lock_is_changed_when_nobody_is_at_work(monkeypatch: pytest.MonkeyPatch, database: dict[str, str]) -> None:
    storage = copy_of(TABLE)
    open_as(storage, 1, **STORAGE).upsert(batch(CHANGE))
    storage.delete(agreement.SHARED_LOCK)
    forget(monkeypatch)
    open_as(storage, 1, **database).upsert(batch({("a", "a1"): 3}))
    with pytest.raises(UserError, match="sqlalchemy"):
        open_as(storage, 2, **STORAGE).upsert(batch(CHANGE))
    assert rows_of(storage) == {**BASE, ("a", "a1"): 3}


def test_a_writer_that_runs_on_finds_out_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    storage: Storage = copy_of(TABLE)
    table = open_as(storage, 1, **STORAGE)
    table.upsert(batch(CHANGE))
    storage.put(agreement.SHARED_LOCK, b'{"lock": "another"}')
    table.upsert(batch({("a", "a1"): 3}))
    monkeypatch.setattr(agreement, "_COMPARED_MS", 0)
    with pytest.raises(UserError, match="'another'"):
        table.upsert(batch({("a", "a1"): 4}))


def test_a_single_writer_records_nothing_and_reads_once() -> None:
    storage = CountingStorage(copy_of(TABLE))
    open_as(storage, 1).upsert(batch(CHANGE))
    assert agreement.SHARED_LOCK not in {file.path for file in storage.list("")}


@pytest.mark.parametrize("found", [b"", b"[]", b'{"other": 1}'])
def test_what_cannot_be_read_is_another_lock(found: bytes) -> None:
    storage = copy_of(TABLE)
    storage.put(agreement.SHARED_LOCK, found)
    with pytest.raises(UserError, match="unreadable"):
        open_as(storage, 1, **STORAGE).upsert(batch(CHANGE))
