"""Every operation in a process of its own, killed at a numbered step of its work on a local disk.

A kill is over when the table was looked at, the operation finished or undone by another process, a write committed on
top, and nothing was left lying about; the time that took is the recovery.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from tests.support.killed import (
    BASE,
    CALLS,
    INDEXES,
    LOGGED,
    RECOVERY,
    SERVICES,
    VERBS,
    Rows,
    base_table,
    batch,
    killed,
    leftovers,
    logged_table,
    points,
    rows_of,
    run_verb,
    writes_of,
)
from tests.support.processes import forked

#: What undoes or keeps: on a table, by the instant concerned.
UNDOING: dict[str, Callable[[Table, str], object]] = {
    "rollback": lambda table, target: table.rollback(target),
    "restore": lambda table, target: table.restore(target),
    "savepoint": lambda table, target: table.savepoint(target),
    "rollback of the dead": lambda table, target: table.rollback_failed(),
}
COMMIT = re.compile(r"create .*/\d+_\d+\.(replace|delta)?commit")
TABLES = {"COPY_ON_WRITE": "SIMPLE", "MERGE_ON_READ": "LOGS_SIMPLE"}


@dataclass(frozen=True, slots=True)
class Case:
    """An operation on a table of some index, the instant it is about, and the rows before and after.

    `between` are states that readers may see on the way: a restore goes back commit by commit.
    """

    operation: str
    index: str
    base: Path
    target: str
    before: Rows
    after: Rows
    trace: tuple[str, ...]
    between: tuple[Rows, ...] = ()


def operations_of(index: str) -> list[str]:
    """Return what can be done to a table; only one with logs has compactions."""
    return [*VERBS, *(SERVICES if index in LOGGED else ()), *UNDOING]


def case_of(operation: str, index: str, home: Path) -> Case:
    """Make the table, and rehearse the operation on a copy of it."""
    base = home / "base"
    storage = LocalStorage(str(base))
    if index in LOGGED:
        logged_table(storage, index, operation if operation in SERVICES and not operation.startswith("plan") else "")
    else:
        base_table(storage, index)
    commits = Table.open(str(base)).commits()
    target = commits[0 if operation == "restore" else -1][0].requested
    if operation == "rollback of the dead":
        die_before_the_commit(base, index, home)
    rehearsal = home / "rehearsal"
    shutil.copytree(base, rehearsal)
    faulty = FaultyStorage(LocalStorage(str(rehearsal)))
    table = Table.open(str(rehearsal), options={**INDEXES, **LOGGED}[index] | CALLS, env=Env(storage=faulty))
    # Steps of opening count: the process that dies opens the table, too.
    perform(operation, table, target)
    after = VERBS[operation].after(BASE) if operation in VERBS else rows_of(LocalStorage(str(rehearsal)))
    between = [_rows_as_of(base, instant.requested) for instant, _ in commits] if operation == "restore" else []
    return Case(operation, index, base, target, BASE, after, tuple(faulty.trace), tuple(between))


def _rows_as_of(base: Path, instant: str) -> Rows:
    found = Table.open(str(base)).scan(columns=["p", "id", "v"], as_of=instant).to_arrow().to_pydict()
    return dict(zip(zip(found["p"], found["id"], strict=True), found["v"], strict=True))


def die_before_the_commit(base: Path, index: str, home: Path) -> None:
    """Leave an upsert on the table that died when all of its files were there."""
    tried = home / "tried"
    shutil.copytree(base, tried)
    faulty = FaultyStorage(LocalStorage(str(tried)))
    run_verb("upsert", Table.open(str(tried), options={**INDEXES, **LOGGED}[index] | CALLS, env=Env(storage=faulty)))
    commit = next(number for number, step in enumerate(faulty.trace, start=1) if COMMIT.fullmatch(step))
    assert killed(str(base), index, "upsert", commit, FaultMode.KILL_BEFORE) == -signal.SIGKILL


def perform(operation: str, table: Table, target: str) -> None:
    """Do it."""
    if operation in UNDOING:
        UNDOING[operation](table, target)
    else:
        run_verb(operation, table)


def perform_and_die(root: str, index: str, operation: str, target: str, step: int, mode: str) -> None:
    """Do it, and be killed at a step; for a process of its own."""
    storage = FaultyStorage(LocalStorage(root), step, mode)
    table = Table.open(root, options={**INDEXES, **LOGGED}[index] | CALLS, env=Env(storage=storage))
    perform(operation, table, target)


def kill(case: Case, step: int, mode: FaultMode, place: Path) -> float:
    """Kill one process at a step and recover; return the seconds that took. Raises AssertionError for a violation."""
    told = f"{case.operation} on {case.index}, {mode} of step {step}: {case.trace[step - 1]}"
    shutil.copytree(case.base, place)
    processes = forked()
    child = processes.Process(
        target=perform_and_die, args=(str(place), case.index, case.operation, case.target, step, str(mode))
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, f"{told}: it ended with {child.exitcode}"
    died = monotonic()
    storage = LocalStorage(str(place))
    seen = rows_of(storage)
    assert seen in (case.before, case.after, *case.between), f"{told}: half of it is to be seen"
    table = Table.open(str(place), options=CALLS)
    if case.operation in VERBS:
        done = writes_of(storage) > writes_of(LocalStorage(str(case.base)))
        rows = case.after if done else case.before
        assert seen == rows, told
    elif case.operation in SERVICES:
        run_verb(case.operation, table)
        # A plan stays until it is run.
        while not isinstance(table.services.compaction.run(), NothingToDo):
            pass
        rows = case.after
    else:
        UNDOING[case.operation](table, case.target)
        rows = case.after
    table = Table.open(str(place))
    outcome = table.upsert(batch(RECOVERY))
    seconds = monotonic() - died
    assert not isinstance(outcome, NothingToDo)
    assert rows_of(storage) == {**rows, **RECOVERY}, told
    assert leftovers(storage) == [], told
    shutil.rmtree(place)
    return seconds


def moments(case: Case, number: int | None) -> Sequence[tuple[int, FaultMode]]:
    """Return where to kill: at every step that changes storage, or at `number` of them, spread, the commit included."""
    kinds = {FaultMode.CRASH_BEFORE: FaultMode.KILL_BEFORE, FaultMode.CRASH_AFTER: FaultMode.KILL_AFTER}
    every = [(step, kinds[mode]) for step, mode in points(case.trace, every=False)]
    if number is None or number >= len(every):
        return every
    chosen = {every[1 + (len(every) - 2) * part // max(1, number - 1)] for part in range(number)}
    commit = [(step, FaultMode.KILL_AFTER) for step, name in enumerate(case.trace, 1) if COMMIT.fullmatch(name)]
    return sorted(chosen | set(commit))
