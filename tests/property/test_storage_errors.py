"""Disk errors at any system call of a write or a service: no space, I/O errors and missing permissions.

There are two kinds of fault. Either one system call fails, or this call and all later writing calls fail until the disk
is repaired. The operation succeeds, or it raises a LakehouseError that names the error of the disk. In both cases the
rows are those of the timeline, and the next writer can write the table.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import is_temporary
from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, LakehouseError
from tests.support.killed import (
    BASE,
    CALLS,
    INDEXES,
    LOGGED,
    RECOVERY,
    VERBS,
    Host,
    Rows,
    base_table,
    batch,
    leftovers,
    logged_table,
    open_as,
    rows_of,
    share_of,
)
from tests.support.syscalls import WRITING, System, failing
from tests.support.tables import SteadyClock

FAILED, SURVIVOR = 101, 102
#: The file with the partition statistics of TTL runs.
STATISTICS = ".hoodie/.lakehouse/statistics"
LOCK_WAIT_MS = 2_000
#: The limit of the total waiting time of an operation: several lock acquisitions and retries of calls.
PATIENCE_MS = 20 * LOCK_WAIT_MS
ERRNOS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR)
#: A usual test run covers each 160th step, starting at another step for each operation, error number and kind of fault.
SHARE = 160
OPTIONS = {"hoodie.write.lock.wait_time_ms": str(LOCK_WAIT_MS), "lakehouse.lock.lease_ms": "2000"}
SORTED = {"hoodie.clustering.plan.strategy.sort.columns": "v,id"}
SHORT = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


@dataclass(frozen=True, slots=True)
class Act:
    """An operation: the kind of its table, the call, and its effect on the rows."""

    kind: str
    run: Callable[[Table], object]
    after: Callable[[Rows], Rows] = dict
    options: tuple[tuple[str, str], ...] = ()
    #: Whether the effect becomes visible at the commit. An undo removes commits before its own instant completes.
    commits: bool = True


def _last(table: Table) -> str:
    return tuple(table.timeline.writes())[-1].requested


def _restore(table: Table) -> object:
    return table.restore(table.savepoints()[0].requested)


ACTS: dict[str, Act] = {
    **{verb: Act("SIMPLE", VERBS[verb].run, VERBS[verb].after) for verb in VERBS},
    **{f"{verb} into logs": Act("LOGS_SIMPLE", VERBS[verb].run, VERBS[verb].after) for verb in ("upsert", "delete")},
    "upsert into buckets": Act("LOGS_BUCKET", VERBS["upsert"].run, VERBS["upsert"].after),
    "compaction": Act("LOGS_SIMPLE", lambda table: table.services.compaction.run(force=True)),
    "log compaction": Act("LOGS_SIMPLE", lambda table: table.services.log_compaction.run()),
    "clustering": Act("SIMPLE", lambda table: table.services.clustering.run(force=True), options=tuple(SORTED.items())),
    "clean": Act("LONG", lambda table: table.services.clean.run(), options=tuple(SHORT.items())),
    "archive": Act("LONG", lambda table: table.services.archive.run(force=True), options=tuple(SHORT.items())),
    "ttl": Act(
        "SIMPLE",
        lambda table: table.services.ttl.run(),
        lambda rows: {key: value for key, value in rows.items() if key[0] == "b"},
        options=(("lakehouse.ttl.max.partitions", "1"),),
    ),
    "savepoint": Act("SIMPLE", lambda table: table.savepoint(comment="kept")),
    "rollback": Act(
        "LONG", lambda table: table.rollback(_last(table)), lambda rows: {**rows, ("b", "b1"): 1}, commits=False
    ),
    "restore": Act("SAVED", _restore, lambda rows: dict(BASE), commits=False),
}
#: The same operations on tables of version 6, which has no log compaction.
ACTS |= {
    f"{name}, version 6": replace(act, kind=f"{act.kind}_6") for name, act in ACTS.items() if name != "log compaction"
}
#: The rows before the operation, by kind of table; other kinds have BASE.
ROWS = {f"{kind}{version}": {**BASE, ("b", "b1"): 5} for kind in ("LONG", "SAVED") for version in ("", "_6")}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns the folder of a table of a kind; tests copy the folder."""

    @cache
    def template(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("templates") / kind
        storage = LocalStorage(str(folder))
        if kind in LOGGED:
            logged_table(storage, kind)
        else:
            base_table(storage, kind if kind in INDEXES else "SIMPLE_6" if kind.endswith("_6") else "SIMPLE")
        table = open_as(storage, 1)
        if kind.startswith("SAVED"):
            table.savepoint(comment="base")
        if kind.startswith(("LONG", "SAVED")):
            for _ in range(3):
                table.upsert(batch(BASE))
            table.upsert(batch({("b", "b1"): 5}))
        return folder

    return template


def open_for(act: Act, root: Path) -> tuple[Table, SteadyClock]:
    """Open the table of an operation with a clock that advances without waiting."""
    clock = SteadyClock(step_ms=1)
    clock.now = Env(storage=LocalStorage(str(root))).clock.now_ms() + 1_000
    env = Env(storage=LocalStorage(str(root)), clock=clock, processes=Host(FAILED))
    return Table.open(str(root), options=CALLS | OPTIONS | dict(act.options), env=env), clock


def measured(act: Act, template: Path, root: Path) -> System:
    """Run an operation on a disk without faults; return its system calls."""
    shutil.copytree(template, root)
    table, _ = open_for(act, root)
    with failing(System()) as whole:
        act.run(table)
    before = ROWS.get(act.kind, BASE)
    assert rows_of(LocalStorage(str(root))) == act.after(before)
    return whole


@pytest.fixture(scope="module")
def whole_of(templates: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], System]:
    """Return a function that returns the system calls of an operation; it runs each operation once."""

    @cache
    def whole(name: str) -> System:
        return measured(ACTS[name], templates(ACTS[name].kind), tmp_path_factory.mktemp("act") / "whole")

    return whole


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("number", ERRNOS, ids=[errno.errorcode[number] for number in ERRNOS])
@pytest.mark.parametrize("name", ACTS)
def test_operation_keeps_rows_and_names_the_cause_when_the_disk_fails_at_any_call(
    name: str,
    number: int,
    lasting: bool,
    templates: Callable[[str], Path],
    whole_of: Callable[[str], System],
    tmp_path: Path,
) -> None:
    act = ACTS[name]
    template = templates(act.kind)
    whole = whole_of(name)
    steps = [at for at, call in enumerate(whole.trace, 1) if number != errno.ENOSPC or call.startswith(WRITING)]
    assert len(steps) > 3
    for step in share_of(steps, (name, number, lasting), SHARE):
        root = tmp_path / f"at-{step}"
        shutil.copytree(template, root)
        check(act, root, System(errno=number, fail_at=step, lasting=lasting), whole)
        shutil.rmtree(root)


def check(act: Act, root: Path, system: System, whole: System) -> None:
    """Run an operation on a disk with a fault; check its outcome, the rows, and that the next writer succeeds."""
    storage = LocalStorage(str(root))
    where = whole.trace[(system.fail_at or 1) - 1].replace("/whole/", "/…/")
    before = ROWS.get(act.kind, BASE)
    table, clock = open_for(act, root)
    began = clock.now
    error: LakehouseError | None = None
    with failing(system):
        try:
            act.run(table)
        except LakehouseError as raised:
            error = raised
    if not system.failed:
        # Threads share some reads, so a run may need a few calls fewer than the one that was counted.
        assert error is None and 0.9 * whole.steps < system.steps < (system.fail_at or 0), where
    assert clock.now - began < PATIENCE_MS, f"{where}: waited {clock.now - began} ms"
    assert system.steps < 20 * whole.steps + 2_000, f"{where}: {system.steps} calls, {whole.steps} without a fault"
    named = error is None or os.strerror(system.errno) in str(error)
    assert named, f"{where}: {error!r} does not name the cause"
    rows, after = rows_of(storage), act.after(before)
    assert rows in (before, after), where
    if error is None:
        assert rows == after, where
    elif act.commits and after != before and not isinstance(error, CommitStateUnknownError):
        assert rows == before, f"{where}: {error!r}"
    recover(act, storage, rows, where)
    # Temporary files that could not be deleted are cleaned up when they are older than a lease.
    stays = [left for left in leftovers(storage) if not left.startswith(("missing", STATISTICS))]
    if act in (ACTS["archive"], ACTS["archive, version 6"]):
        # The archived timeline names the files of archived commits.
        stays = [left for left in stays if left.startswith((".hoodie", "pending"))]
    assert [left for left in stays if not is_temporary(left)] == [], where


def recover(act: Act, storage: LocalStorage, rows: Rows, where: str) -> None:
    """Complete a pending restore and the service, then write as the next process."""
    expected = rows
    if act.kind.startswith("SAVED"):
        # A pending restore has to be completed before any other operation.
        table = open_as(storage, SURVIVOR, (FAILED,), **OPTIONS)
        table.restore(table.savepoints()[0].requested)
        expected = dict(BASE)
    table = open_as(storage, SURVIVOR, (FAILED,), **OPTIONS, **dict(act.options))
    if act.after is dict:
        act.run(table)
    table.upsert(batch(RECOVERY))
    assert rows_of(storage) == {**expected, **RECOVERY}, where
