"""Soak test: many processes on one table, some of them killed repeatedly; then the table is checked.

SingleHistory   the rows are those of all committed changes, one after the other in order of completion
NothingLost     every change that a writer reported as committed is committed exactly once
HonestAnswers   no change that a writer reported as conflicting is committed
PrefixReads     what readers saw was such a history up to some commit, and they never went back
NoSurprise      no process ended by itself
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from typing import Any

from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.model.commit import CommitMetadata, Operation
from tests.reliability.actors import KINDS, OLDER, OPTIONS, SERVICES, STORED, act, digest, stored_change
from tests.simulation.actors import OPTIMISTIC
from tests.simulation.invariants import rows_of
from tests.simulation.model import Rows, after
from tests.simulation.tables import batch, row_of
from tests.support.processes import forked
from tests.support.waiting import until

WRITERS, READERS = 8, 2
KILL_EVERY_S = 2.0
#: Longest wait for the recovery of the table after a kill.
RECOVERY_LIMIT_S = 120.0
_LONGEST_START_S = 60.0


@dataclass
class Soak:
    """Result of a soak test: numbers and violations."""

    kind: str
    seconds: float
    commits: int = 0
    conflicts: int = 0
    settled: int = 0
    reads: int = 0
    services: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def settled_share(self) -> float:
        """Return the share of conflicting changes that were committed within five tries."""
        return self.settled / self.conflicts if self.conflicts else 1.0


class Cast:
    """The processes of a soak test; a killed one is started again with a new journal."""

    def __init__(self, kind: str, home: Path, random: Random) -> None:
        self.kind, self.home, self.random = kind, home, random
        self.place = str(home / "table")
        self.context = forked()
        self.active: dict[tuple[str, int], ForkServerProcess] = {}
        self.lives = 0

    def enter(self, role: str, number: int) -> None:
        """Start a process."""
        self.lives += 1
        journal = str(self.home / f"{self.lives:05d}-{role}-{number}.jsonl")
        args = (role, number, self.kind, self.place, journal, self.random.getrandbits(32))
        process = self.context.Process(target=act, args=args, daemon=True)
        process.start()
        self.active[role, number] = process

    def kill(self, role: tuple[str, int]) -> int:
        """Kill a process, wait for its end, and return its process id."""
        process = self.active[role]
        process.kill()
        process.join()
        return int(process.pid or 0)

    def dismiss(self) -> None:
        """Kill all processes."""
        for process in self.active.values():
            process.kill()
        for process in self.active.values():
            process.join()


def soak(kind: str, seconds: float, home: Path, seed: int = 1) -> Soak:
    """Run a soak test on a new table below `home` and return its result."""
    rows = _made(kind, home)
    random = Random(seed)
    cast, result = Cast(kind, home, random), Soak(kind=kind, seconds=seconds)
    roles = [("writer", number) for number in range(WRITERS)] + [("reader", number) for number in range(READERS)]
    roles += [(name, 0) for name in _services(kind)]
    try:
        for role in roles:
            cast.enter(*role)
        _await_first_commit(cast)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(KILL_EVERY_S * random.uniform(0.5, 1.5))
            victim = random.choice([role for role in roles if role[0] != "reader"])
            if not cast.active[victim].is_alive():
                result.violations.append(f"NoSurprise: {victim} ended by itself")
                break
            pid = cast.kill(victim)
            result.kills[victim[0]] = result.kills.get(victim[0], 0) + 1
            cast.enter(*victim)
            _await_recovery(result, cast, pid)
    finally:
        cast.dismiss()
    _judge(result, cast, rows)
    return result


def _services(kind: str) -> list[str]:
    """Return the services of a kind of table; version 6 has no log compaction."""
    table_type, options, _, _ = KINDS[kind]
    if table_type == "COPY_ON_WRITE":
        return ["rollback", "clean"]
    return [name for name in SERVICES if options != OLDER or name != "log compactor"]


def _made(kind: str, home: Path) -> Rows:
    table_type, index, ordered, _ = KINDS[kind]
    rows: Rows = {key: row_of(1, ordered=ordered) for key in STORED}
    table = Table.create(
        str(home / "table"),
        name="soaked",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts" if ordered else None,
        table_type=table_type,
        options=index | OPTIONS,
    )
    table.insert(batch(rows))
    return rows


def _await_first_commit(cast: Cast) -> None:
    """Wait for the first commit, because processes take seconds to start on a loaded machine."""
    started, timeline = time.monotonic(), _timeline(cast)
    before = _completed(timeline)
    while _completed(timeline) == before and time.monotonic() - started < _LONGEST_START_S:
        time.sleep(0.02)


def _await_recovery(result: Soak, cast: Cast, pid: int) -> None:
    """Wait until locks and heartbeats of the killed process are gone and another process has committed."""
    started, timeline = time.monotonic(), _timeline(cast)
    completed = _completed(timeline)
    recovered = until(
        lambda: not _left_by(pid, Path(cast.place, ".hoodie")) and _completed(timeline) > completed, RECOVERY_LIMIT_S
    )
    result.recoveries.append(time.monotonic() - started)
    if not recovered:
        result.violations.append(f"Recovery: the table did not recover after the end of {pid}")


def _timeline(cast: Cast) -> Path:
    return Path(cast.place, ".hoodie" if KINDS[cast.kind][1] == OLDER else ".hoodie/timeline")


def _completed(timeline: Path) -> int:
    instants = (parse_instant(entry.name) for entry in os.scandir(timeline))
    return sum(1 for instant in instants if instant is not None and instant.is_completed)


def _left_by(pid: int, directory: Path) -> bool:
    """Return whether a lock or heartbeat of a process exists."""
    for path in (*directory.glob(".heartbeat/*"), *directory.glob("lock*")):
        try:
            if json.loads(path.read_bytes()).get("pid") == pid:
                return True
        except (OSError, ValueError, AttributeError):
            continue
    return False


def _facts(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(home.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            # The last line may be incomplete.
            try:
                yield path.name, json.loads(line)
            except ValueError:
                continue


def _judge(result: Soak, cast: Cast, rows: Rows) -> None:
    table = Table.open(cast.place, options=OPTIONS | OPTIMISTIC)
    try:
        table.rollback_failed()
        found = rows_of(table)
    except (LakehouseError, AssertionError) as error:
        result.violations.append(f"SingleHistory: the table cannot be read: {error!r}")
        return
    ordered = KINDS[result.kind][2]
    facts = list(_facts(cast.home))
    changes = {c.name: c for _, fact in facts if "begin" in fact for c in (stored_change(fact["begin"]),)}
    versions, names = [digest(rows)], []
    for metadata in _in_order(cast, table):
        name = metadata.extra.get("did")
        if name is not None:
            names.append(name)
            rows = after(rows, changes[name], ordered=ordered)
            versions.append(digest(rows))
        elif metadata.operation in (Operation.COMPACT, Operation.LOG_COMPACT):
            result.services += 1
    result.commits = len(names)
    if found != rows:
        differ = {k: (found.get(k), rows.get(k)) for k in found.keys() | rows.keys() if found.get(k) != rows.get(k)}
        result.violations.append(f"SingleHistory: found and expected differ: {differ}")
    if len(set(names)) < len(names):
        result.violations.append("NothingLost: a change is committed twice")
    _judge_answers(result, facts, set(names))
    _judge_reads(result, facts, versions)


def _in_order(cast: Cast, table: Table) -> list[CommitMetadata]:
    """Return the commits in the order in which they completed.

    Version 6 stores no completion times, so its commits are ordered by the time at which their file was written.
    """
    commits = list(table.commits())
    if KINDS[cast.kind][1] == OLDER:
        name = table.config.layout.instant_name
        commits.sort(key=lambda pair: os.stat(_timeline(cast) / name(pair[0])).st_mtime_ns)
    return [metadata for _, metadata in commits]


def _judge_answers(result: Soak, facts: list[tuple[str, dict[str, Any]]], names: set[str]) -> None:
    for _, fact in facts:
        if "done" in fact and fact["done"] not in names:
            result.violations.append(f"NothingLost: {fact['done']} is not on the timeline")
        if "lost" in fact and fact["lost"] in names:
            result.violations.append(
                f"HonestAnswers: {fact['lost']} is on the timeline, but was reported as: {fact['why']}"
            )
        if "failed" in fact:
            result.violations.append(f"NoSurprise: {fact['failed']}")
        if fact.get("tries"):
            result.conflicts += 1
            result.settled += "done" in fact


def _judge_reads(result: Soak, facts: list[tuple[str, dict[str, Any]]], versions: list[str]) -> None:
    """Check that each reader saw states in the order of the versions; a version may be seen repeatedly."""
    place: dict[str, list[int]] = {}
    for number, version in enumerate(versions):
        place.setdefault(version, []).append(number)
    reached: dict[str, int] = {}
    for journal, fact in facts:
        if "seen" not in fact:
            continue
        result.reads += 1
        later = [number for number in place.get(fact["seen"], []) if number >= reached.get(journal, 0)]
        if not later:
            result.violations.append(f"PrefixReads: {journal} saw a state that never existed, or an old state")
            return
        reached[journal] = later[0]
