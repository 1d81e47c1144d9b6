"""Upgrade and downgrade: crashes, lost replies and other processes at any storage step, and completion afterwards."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.version_marks import VersionChangedError, marks_among
from lakehouse.errors import LakehouseError, RetryableError, UnsupportedError, UserError
from lakehouse.model.instant import Action
from tests.support.archived import eager
from tests.support.killed import (
    BASE,
    CALLS,
    RECOVERY,
    VERBS,
    Host,
    Interrupted,
    Rows,
    batch,
    copy_of,
    leftovers,
    open_as,
    points,
    rows_of,
    share_of,
)

LOST, CRASHED, SURVIVOR, THIRD = 100, 101, 102, 103
NO_WAIT = {"hoodie.write.lock.wait_time_ms": "0"}
#: Table type, version before and version after.
CHANGES = (
    ("MERGE_ON_READ", 6, 9),
    ("MERGE_ON_READ", 9, 6),
    ("COPY_ON_WRITE", 6, 8),
    ("COPY_ON_WRITE", 9, 6),
    ("MERGE_ON_READ", 8, 9),
    ("MERGE_ON_READ", 9, 8),
)
Change = tuple[str, int, int]
FOLDERS = {6: ".hoodie", 8: ".hoodie/timeline", 9: ".hoodie/timeline"}


@cache
def history(change: Change) -> tuple[Storage, Rows]:
    """Return a table with archived commits, a few active commits and a crashed write, and its rows."""
    kind, version, _ = change
    storage = MemoryStorage()
    table = Table.create(
        storage.root,
        name="mortal",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type=kind,
        options=CALLS | {"hoodie.write.table.version": str(version)},
        env=Env(storage=storage, processes=Host(LOST)),
    )
    table.bulk_insert(batch(BASE))
    rows = BASE
    for name in ("delete", "upsert", "insert_overwrite"):
        VERBS[name].run(table)
        rows = VERBS[name].after(rows)
    if table.config.is_merge_on_read:
        eager(table).services.compaction.run(force=True)
    eager(table).services.clean.run(force=True)
    assert isinstance(eager(table).services.archive.run(force=True), Archived)
    table.upsert(batch({("a", "a1"): 3}))
    steps = FaultyStorage(copy_of(storage))
    VERBS["upsert"].run(open_as(steps, LOST))
    last = max(n for n, name in enumerate(steps.trace, start=1) if name.startswith("close") and name[-4:] != ".tmp")
    with pytest.raises(SimulatedCrash):
        VERBS["upsert"].run(open_as(FaultyStorage(storage, last), LOST))
    return storage, {**rows, ("a", "a1"): 3}


@cache
def archived_keys(change: Change) -> list[tuple[str, Action]]:
    """Return the archived actions of the history of a change."""
    return [i.key for i in open_as(history(change)[0], THIRD).refresh().store.archived_timeline.instants()]


def run(storage: Storage, change: Change, pid: int = CRASHED, **options: str) -> object:
    """Change the version, as a process for which all processes with smaller ids have ended."""
    table = open_as(storage, pid, range(LOST, pid), **options)
    verb = table.upgrade if change[2] > change[1] else table.downgrade
    return verb(change[2], grace_s=0)


@cache
def trace(change: Change) -> tuple[str, ...]:
    """Return the storage steps of a successful change."""
    storage = FaultyStorage(copy_of(history(change)[0]))
    run(storage, change)
    return tuple(storage.trace)


def settled(storage: Storage, change: Change, rows: Rows, *, version: int | None = None) -> None:
    """Check that the table has the new version, or `version`, with these rows and its archive, and can be written."""
    table = open_as(storage, THIRD, range(LOST, THIRD))
    present = change[2] if version is None else version
    assert table.config.version == present
    assert rows_of(storage) == rows
    for folder in {*FOLDERS.values()} - {FOLDERS[present]}:
        assert [name for name in storage.list_names(folder) if parse_instant(name)] == []
    marks = [mark for folder in set(FOLDERS.values()) for mark in marks_among(storage.list_names(folder))]
    assert [mark for mark in marks if mark.is_pending] == []
    assert [i.key for i in table.refresh().store.archived_timeline.instants()] == archived_keys(change)
    table.upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    assert open_as(storage, THIRD).validate(deep=True).findings == ()
    # In version 6 a rollback appends a command block to the slice, and the log file of the failed write stays.
    assert [path for path in leftovers(storage) if 6 not in change or ".log." not in path] == []


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_next_run_completes_the_change_after_a_crash_at_any_step(change: Change) -> None:
    versions = set()
    for step, mode in share_of(points(trace(change)), change, 9):
        storage, rows = copy_of(history(change)[0]), history(change)[1]
        earlier = open_as(storage, THIRD)
        with pytest.raises(SimulatedCrash):
            run(FaultyStorage(storage, step, mode), change)
        assert rows_of(storage) == rows
        if open_as(storage, THIRD).config.version == change[1]:
            versions.add("before")
        else:
            versions.add("after")
            with pytest.raises(VersionChangedError):
                earlier.loaded.reload()
        run(storage, change, SURVIVOR)
        settled(storage, change, rows)
    assert versions == {"before", "after"}


@pytest.mark.parametrize("change", CHANGES[:2], ids=str)
def test_next_run_completes_the_change_after_a_lost_reply_at_any_step(change: Change) -> None:
    for step, name in share_of(enumerate(trace(change), start=1), change, 16):
        storage, rows = copy_of(history(change)[0]), history(change)[1]
        try:
            run(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), change, SURVIVOR)
        except LakehouseError as error:
            assert isinstance(error, RetryableError), name
            assert rows_of(storage) == rows
            run(storage, change, SURVIVOR)
        settled(storage, change, rows)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_unfinished_change_is_abandoned_by_a_change_to_the_present_version(change: Change) -> None:
    pending = [step for step, name in enumerate(trace(change), start=1) if "to_version" in name and "create" in name]
    switched = next(n for n, name in enumerate(trace(change), start=1) if "replace_if .hoodie/hoodie.prop" in name)
    for step in (pending[0], (pending[0] + switched) // 2, switched - 1):
        storage, rows = copy_of(history(change)[0]), history(change)[1]
        with pytest.raises(SimulatedCrash):
            run(FaultyStorage(storage, step, FaultMode.CRASH_AFTER), change)
        table = open_as(storage, SURVIVOR, range(LOST, SURVIVOR))
        with pytest.raises(RetryableError, match=f"a change to table version {change[2]} is not finished"):
            table.upsert(batch(RECOVERY))
        table.upgrade(change[1], grace_s=0)
        settled(storage, change, rows, version=change[1])


def written_by_rival(storage: Storage, number: int, change: Change, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Change the version while another process reads and writes at one step; return whether its write committed."""
    before = history(change)[1]
    opened = open_as(storage, THIRD, [LOST], **NO_WAIT)
    opened.refresh()
    commits: list[str] = []

    def rival(store: Storage) -> None:
        assert rows_of(store) == before
        with suppress(RetryableError):
            scanned = opened.scan(columns=["p", "id", "v"]).to_arrow().to_pydict()
            assert dict(zip(zip(scanned["p"], scanned["id"], strict=True), scanned["v"], strict=True)) == before
        with suppress(RetryableError):
            opened.upsert(batch(RECOVERY))
            commits.append("upsert")

    with suppress(RetryableError):
        run(Interrupted(storage, number, rival, monkeypatch), change, SURVIVOR)
    return bool(commits)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_readers_and_writers_during_a_change_are_right(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = set()
    for number, name in share_of(enumerate(trace(change), start=1), change, 9):
        storage, before = copy_of(history(change)[0]), history(change)[1]
        written = written_by_rival(storage, number, change, monkeypatch)
        rows = {**before, **RECOVERY} if written else before
        outcomes.add(written)
        assert rows_of(storage) == rows, name
        run(storage, change, SURVIVOR)
        settled(storage, change, rows)
    assert outcomes == {True, False}


#: Services that another process runs without leases, as `table.services` and CALL do.
SERVICES = ("compaction", "clustering", "clean", "archive", "orphans")
#: Errors of a service or a change that the other one prevents.
REFUSALS = (RetryableError, UserError, UnsupportedError)


def serviced(table: Table, service: str) -> bool:
    """Run a service; return whether it changed the table."""
    try:
        return not isinstance(table.services.named(service).run(force=True), NothingToDo)
    except REFUSALS:
        return False


def is_sound(storage: Storage, rows: Rows) -> None:
    """Check that the table has these rows and no damage, and that the next write commits."""
    assert rows_of(storage) == rows
    table = open_as(storage, THIRD, range(LOST, THIRD))
    table.upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    assert open_as(storage, THIRD).validate(deep=True).findings == ()


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_services_without_leases_at_a_step_of_a_change_damage_nothing(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = dict.fromkeys(SERVICES, 0)
    # Before the first step the services find a table that does not change yet.
    for number, name in [(1, "begin"), *share_of(enumerate(trace(change), start=1), change, 17)]:
        storage, rows = copy_of(history(change)[0]), history(change)[1]
        opened = eager(open_as(storage, THIRD, [LOST]), **NO_WAIT)

        def rival(_: Storage, table: Table = opened) -> None:
            for service in SERVICES:
                ran[service] += serviced(table, service)

        with suppress(RetryableError):
            run(Interrupted(storage, number, rival, monkeypatch), change, SURVIVOR)
        assert rows_of(storage) == rows, name
        run(storage, change, SURVIVOR)
        assert open_as(storage, THIRD).config.version == change[2]
        is_sound(storage, rows)
    # It leaves no instant that would stop the change.
    assert ran["archive"] > 0


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_change_without_leases_at_a_step_of_a_service_damages_nothing(
    change: Change, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = FaultyStorage(copy_of(history(change)[0]))
    serviced(eager(open_as(steps, SURVIVOR, [LOST])), service)
    versions = set()
    for number, name in share_of(enumerate(steps.trace, start=1), (change, service), 13):
        storage, rows = copy_of(history(change)[0]), history(change)[1]

        def rival(store: Storage) -> None:
            with suppress(*REFUSALS):
                run(store, change, CRASHED, **NO_WAIT)

        serviced(eager(open_as(Interrupted(storage, number, rival, monkeypatch), SURVIVOR, [LOST])), service)
        versions.add(open_as(storage, THIRD).config.version)
        assert rows_of(storage) == rows, name
        is_sound(storage, rows)
    assert change[2] in versions
