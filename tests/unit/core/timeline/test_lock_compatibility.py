"""Writers whose locks do not exclude each other are refused before the lock is acquired."""

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
from lakehouse.core.timeline import lock_compatibility as compatibility
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
    """A store behind an S3 address that honours conditional writes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = self.root.replace("memory://", "s3://since-2024/")
        for file in TABLE.list(""):
            self.put(file.path, TABLE.get(file.path))

    def list_dir(self, prefix: str) -> Level:
        """Return files with the time of the store, because its clock is compared with the local one."""
        files, names = super().list_dir(prefix)
        return [replace(file, modified_ms=SystemClock().now_ms()) for file in files], names


@pytest.fixture
def database(tmp_path: Path) -> dict[str, str]:
    """Return the options of a lock in a database."""
    return OPTIMISTIC | {PROVIDER: "sqlalchemy", "lakehouse.lock.sqlalchemy.url": f"sqlite:///{tmp_path}/locks.db"}


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget(monkeypatch)
    yield


def forget(patch: pytest.MonkeyPatch) -> None:
    """Continue as a process that has not checked any table yet."""
    patch.setattr(process_state(), "compared_locks", {})
    patch.setattr(process_state(), "conditional_storages", set())


def left(storage: Storage) -> list[str]:
    """Return the leftover files except the lock, which an object store cannot delete."""
    return [path for path in leftovers(storage) if path != LOCK_PATH]


@pytest.mark.parametrize("provider", ["filesystem", "storage"])
def test_store_that_ignores_conditions_is_refused_for_a_lock_of_many_writers(provider: str) -> None:
    storage = UnconditionalStorage(TABLE)
    before = [file.path for file in storage.list("")]
    with pytest.raises(UserError, match=rf"{provider} would admit several writers.*sqlalchemy, zookeeper"):
        open_as(storage, 1, **OPTIMISTIC, **{PROVIDER: provider}).upsert(batch(CHANGE))
    assert [file.path for file in storage.list("")] == before
    assert rows_of(storage) == BASE


def test_store_that_ignores_only_the_tag_is_refused() -> None:
    class Half(UnconditionalStorage):
        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            return MemoryStorage.create(self, path, data, unique=unique)

    with pytest.raises(UserError, match="If-Match"):
        open_as(Half(TABLE), 1, **STORAGE).upsert(batch(CHANGE))


def test_store_without_conditional_writes_is_refused_by_name() -> None:
    class Older(UnconditionalStorage):
        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            raise RequestRefusedError("refused: not implemented", status=501)

    with pytest.raises(UserError, match="does not support conditional writes"):
        open_as(Older(TABLE), 1, **STORAGE).upsert(batch(CHANGE))


def test_store_without_conditions_is_accepted_with_a_database_lock_and_for_a_single_writer(
    database: dict[str, str],
) -> None:
    for options in (database, {}):
        storage = UnconditionalStorage(TABLE)
        assert isinstance(open_as(storage, 1, **options).upsert(batch(CHANGE)), Committed)
        assert rows_of(storage) == BASE | CHANGE


def test_conditions_are_tested_once_per_process_and_never_on_local_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    for inner, asked in ((Conditional(), 1), (copy_of(TABLE), 0)):
        forget(monkeypatch)
        storage = FaultyStorage(inner)
        for value in (2, 3):
            open_as(storage, 1, **STORAGE).upsert(batch({("a", "a1"): value}))
        creations = [step for step in storage.trace if step.startswith("create") and "conditions" in step]
        records = [step for step in storage.trace if step.endswith(compatibility.SHARED_LOCK)]
        assert len(creations) == 2 * asked
        assert len(records) == 3, "read, made, read"
        assert left(storage.inner) == []


def test_process_killed_during_the_test_write_leaves_only_files_that_cleanup_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = FaultyStorage(Conditional())
    open_as(probe, 1, **STORAGE).upsert(batch(CHANGE))
    steps = [n for n, step in enumerate(probe.trace, 1) if "conditions" in step or compatibility.SHARED_LOCK in step]
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


def test_writers_services_and_single_writers_with_another_lock_are_refused(database: dict[str, str]) -> None:
    storage = copy_of(TABLE)
    open_as(storage, 1, **STORAGE).upsert(batch(CHANGE))
    for options in (OPTIMISTIC, database, {}, {PROVIDER: "in_process"}):
        with pytest.raises(UserError, match=r"by the lock 'storage \.hoodie/\.locks/table_lock\.json'.*delete"):
            open_as(storage, 2, **options).upsert(batch({("a", "a1"): 3}))
    assert rows_of(storage) == BASE | CHANGE
    assert left(storage) == []


def test_lock_can_be_changed_when_no_writer_is_active(
    monkeypatch: pytest.MonkeyPatch, database: dict[str, str]
) -> None:
    storage = copy_of(TABLE)
    open_as(storage, 1, **STORAGE).upsert(batch(CHANGE))
    storage.delete(compatibility.SHARED_LOCK)
    forget(monkeypatch)
    open_as(storage, 1, **database).upsert(batch({("a", "a1"): 3}))
    with pytest.raises(UserError, match="sqlalchemy"):
        open_as(storage, 2, **STORAGE).upsert(batch(CHANGE))
    assert rows_of(storage) == {**BASE, ("a", "a1"): 3}


def test_running_writer_detects_another_lock_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    storage: Storage = copy_of(TABLE)
    table = open_as(storage, 1, **STORAGE)
    table.upsert(batch(CHANGE))
    storage.put(compatibility.SHARED_LOCK, b'{"lock": "another"}')
    table.upsert(batch({("a", "a1"): 3}))
    monkeypatch.setattr(compatibility, "_COMPARED_MS", 0)
    with pytest.raises(UserError, match="'another'"):
        table.upsert(batch({("a", "a1"): 4}))


def test_single_writer_records_no_lock_and_reads_once() -> None:
    storage = CountingStorage(copy_of(TABLE))
    open_as(storage, 1).upsert(batch(CHANGE))
    assert compatibility.SHARED_LOCK not in {file.path for file in storage.list("")}


@pytest.mark.parametrize("found", [b"", b"[]", b'{"other": 1}'])
def test_unreadable_lock_record_counts_as_another_lock(found: bytes) -> None:
    storage = copy_of(TABLE)
    storage.put(compatibility.SHARED_LOCK, found)
    with pytest.raises(UserError, match="unreadable"):
        open_as(storage, 1, **STORAGE).upsert(batch(CHANGE))
