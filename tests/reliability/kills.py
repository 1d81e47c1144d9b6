"""Run each operation in a new process that is killed at a numbered step on a local disk.

A kill is over when the table was looked at, the operation finished or undone by another process, a write committed on
top, and nothing was left lying about; the time that took is the recovery.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    COMPACTED,
    LOGGED,
    RECOVERY,
    SERVICES,
    VERBS,
    Rows,
    base_table,
    batch,
    call_options,
    killed,
    leftovers,
    logged_table,
    points,
    rows_of,
    run_verb,
    writes_of,
)
from tests.support.metadata_check import check_metadata
from tests.support.processes import forked

#: What undoes or keeps: on a table, by the instant concerned.
UNDOING: dict[str, Callable[[Table, str], object]] = {
    "rollback": lambda table, target: table.rollback(target),
    "restore": lambda table, target: table.restore(target),
    "savepoint": lambda table, target: table.savepoint(target),
    "rollback of failed": lambda table, target: table.rollback_failed(),
}
COMMIT = re.compile(r"create .*/\d+(_\d+)?\.(replace|delta)?commit")
TABLES = {
    "COPY_ON_WRITE": "SIMPLE",
    "MERGE_ON_READ": "LOGS_SIMPLE",
    "COPY_ON_WRITE 6": "SIMPLE_6",
    "MERGE_ON_READ 6": "LOGS_SIMPLE_6",
}


@dataclass(frozen=True, slots=True)
class Case:
    """An operation on a table of some index, the instant it is about, and the rows before and after.

    `between` are states that readers may see on the way: a restore goes back commit by commit. `options` are options of
    the operation.
    """

    operation: str
    index: str
    base: Path
    target: str
    before: Rows
    after: Rows
    trace: tuple[str, ...]
    between: tuple[Rows, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def operations_of(index: str) -> list[str]:
    """Return the operations of a table; only a merge-on-read table has compactions, and version 6 none of logs."""
    compactions = [service for compacted, service in COMPACTED if compacted == index]
    return [*VERBS, *(["plan compaction", *compactions] if compactions else ()), *UNDOING]


def case_of(operation: str, index: str, home: Path, **options: str) -> Case:
    """Create the table, and run the operation on a copy of it to record its steps."""
    base = home / "base"
    storage = LocalStorage(str(base))
    if index in LOGGED:
        logged_table(storage, index, operation if operation in SERVICES and not operation.startswith("plan") else "")
    else:
        base_table(storage, index)
    commits = Table.open(str(base)).commits()
    target = commits[0 if operation == "restore" else -1][0].requested
    if operation == "rollback of failed":
        die_before_the_commit(base, index, home)
    rehearsal = home / "rehearsal"
    shutil.copytree(base, rehearsal)
    faulty = FaultyStorage(LocalStorage(str(rehearsal)))
    table = Table.open(str(rehearsal), options=_options(index, options), env=Env(storage=faulty))
    # Steps of opening count, because the killed process opens the table too.
    perform(operation, table, target)
    after = VERBS[operation].after(BASE) if operation in VERBS else rows_of(LocalStorage(str(rehearsal)))
    between = [_rows_as_of(base, instant.requested) for instant, _ in commits] if operation == "restore" else []
    return Case(operation, index, base, target, BASE, after, tuple(faulty.trace), tuple(between), options)


def _options(index: str, options: Mapping[str, str]) -> dict[str, str]:
    return call_options(index) | options


def _rows_as_of(base: Path, instant: str) -> Rows:
    found = Table.open(str(base)).scan(columns=["p", "id", "v"], as_of=instant).to_arrow().to_pydict()
    return dict(zip(zip(found["p"], found["id"], strict=True), found["v"], strict=True))


def die_before_the_commit(base: Path, index: str, home: Path) -> None:
    """Leave a failed upsert on the table, with all of its files written."""
    tried = home / "tried"
    shutil.copytree(base, tried)
    faulty = FaultyStorage(LocalStorage(str(tried)))
    run_verb("upsert", Table.open(str(tried), options=call_options(index), env=Env(storage=faulty)))
    commit = next(number for number, step in enumerate(faulty.trace, start=1) if COMMIT.fullmatch(step))
    assert killed(str(base), index, "upsert", commit, FaultMode.KILL_BEFORE) == -signal.SIGKILL


def perform(operation: str, table: Table, target: str) -> None:
    """Run the operation."""
    if operation in UNDOING:
        UNDOING[operation](table, target)
    else:
        run_verb(operation, table)


def perform_and_die(root: str, case: Case, step: int, mode: str) -> None:
    """Run the operation in this process, which is killed at a step."""
    storage = FaultyStorage(LocalStorage(root), step, mode)
    table = Table.open(root, options=_options(case.index, case.options), env=Env(storage=storage))
    perform(case.operation, table, case.target)


def kill(case: Case, step: int, mode: FaultMode, place: Path) -> float:
    """Kill a process at a step and recover; return the seconds of the recovery, or raise AssertionError."""
    case_text = f"{case.operation} on {case.index}, {mode} of step {step}: {case.trace[step - 1]}"
    shutil.copytree(case.base, place)
    processes = forked()
    child = processes.Process(target=perform_and_die, args=(str(place), case, step, str(mode)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, f"{case_text}: it ended with {child.exitcode}"
    died = monotonic()
    storage = LocalStorage(str(place))
    seen = rows_of(storage)
    assert seen in (case.before, case.after, *case.between), f"{case_text}: a partial change is visible"
    table = Table.open(str(place), options=CALLS)
    if case.operation in VERBS:
        done = writes_of(storage) > writes_of(LocalStorage(str(case.base)))
        rows = case.after if done else case.before
        assert seen == rows, case_text
        # A rollback or restore that was killed has deleted some of its files.
        check_metadata(table)
    elif case.operation in SERVICES:
        run_verb(case.operation, table)
        # A scheduled plan stays on the timeline until it is executed.
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
    assert rows_of(storage) == {**rows, **RECOVERY}, case_text
    assert leftovers(storage) == [], case_text
    check_metadata(table)
    shutil.rmtree(place)
    return seconds


def moments(case: Case, number: int | None) -> Sequence[tuple[int, FaultMode]]:
    """Return the steps to kill at: all that change storage, or `number` of them spread evenly, with the commit."""
    kinds = {FaultMode.CRASH_BEFORE: FaultMode.KILL_BEFORE, FaultMode.CRASH_AFTER: FaultMode.KILL_AFTER}
    every = [(step, kinds[mode]) for step, mode in points(case.trace, every=False)]
    if number is None or number >= len(every):
        return every
    chosen = {every[1 + (len(every) - 2) * part // max(1, number - 1)] for part in range(number)}
    commit = [(step, FaultMode.KILL_AFTER) for step, name in enumerate(case.trace, 1) if COMMIT.fullmatch(name)]
    return sorted(chosen | set(commit))
