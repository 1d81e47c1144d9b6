"""Many processes on one table for a while, some of them killed again and again; then the table is held to account.

SingleHistory   the rows are those of all committed changes, one after the other in order of completion
NothingLost     every change that a writer was told is committed, is; once
HonestAnswers   no change that a writer was told has lost is committed
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

from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.model.commit import Operation
from tests.reliability.actors import KINDS, OPTIONS, SERVICES, STORED, act, digest, stored_change
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
    """What a soak told: figures, and what was violated."""

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
        """The share of changes that met a conflict and were committed within five tries."""
        return self.settled / self.conflicts if self.conflicts else 1.0


class Cast:
    """The processes of a soak; whoever is killed begins anew with a new journal."""

    def __init__(self, kind: str, home: Path, random: Random) -> None:
        self.kind, self.home, self.random = kind, home, random
        self.place = str(home / "table")
        self.context = forked()
        self.living: dict[tuple[str, int], ForkServerProcess] = {}
        self.lives = 0

    def enter(self, role: str, number: int) -> None:
        """Start a process."""
        self.lives += 1
        journal = str(self.home / f"{self.lives:05d}-{role}-{number}.jsonl")
        args = (role, number, self.kind, self.place, journal, self.random.getrandbits(32))
        process = self.context.Process(target=act, args=args, daemon=True)
        process.start()
        self.living[role, number] = process

    def kill(self, who: tuple[str, int]) -> int:
        """Kill a process at once and return its number; it is gone when this returns."""
        process = self.living[who]
        process.kill()
        process.join()
        return int(process.pid or 0)

    def dismiss(self) -> None:
        """Kill all."""
        for process in self.living.values():
            process.kill()
        for process in self.living.values():
            process.join()


def soak(kind: str, seconds: float, home: Path, seed: int = 1) -> Soak:
    """Run it on a new table below `home` and return what it told."""
    rows = _made(kind, home)
    random = Random(seed)
    cast, told = Cast(kind, home, random), Soak(kind=kind, seconds=seconds)
    roles = [("writer", number) for number in range(WRITERS)] + [("reader", number) for number in range(READERS)]
    merges = KINDS[kind][0] == "MERGE_ON_READ"
    roles += [(name, 0) for name in SERVICES if merges or name in ("rollback", "clean")]
    try:
        for role in roles:
            cast.enter(*role)
        _await_first_commit(cast)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(KILL_EVERY_S * random.uniform(0.5, 1.5))
            who = random.choice([role for role in roles if role[0] != "reader"])
            if not cast.living[who].is_alive():
                told.violations.append(f"NoSurprise: {who} ended by itself")
                break
            pid = cast.kill(who)
            told.kills[who[0]] = told.kills.get(who[0], 0) + 1
            cast.enter(*who)
            _await_recovery(told, cast, pid)
    finally:
        cast.dismiss()
    _judge(told, cast, rows)
    return told


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
    """Wait until somebody is at work: processes take seconds to start where others share the machine."""
    started, timeline = time.monotonic(), Path(cast.place, ".hoodie/timeline")
    before = _completed(timeline)
    while _completed(timeline) == before and time.monotonic() - started < _LONGEST_START_S:
        time.sleep(0.02)


def _await_recovery(told: Soak, cast: Cast, pid: int) -> None:
    """Wait until nothing of the dead process is left in anybody's way, and somebody committed since."""
    started, timeline = time.monotonic(), Path(cast.place, ".hoodie/timeline")
    completed = _completed(timeline)
    recovered = until(
        lambda: not _left_by(pid, Path(cast.place, ".hoodie")) and _completed(timeline) > completed, RECOVERY_LIMIT_S
    )
    told.recoveries.append(time.monotonic() - started)
    if not recovered:
        told.violations.append(f"Recovery: the table did not recover after the end of {pid}")


def _completed(timeline: Path) -> int:
    return sum(1 for entry in os.scandir(timeline) if "_" in entry.name and not entry.name.startswith("."))


def _left_by(pid: int, directory: Path) -> bool:
    """Tell whether a sign of life of a process is still there: its lock, or that of a write."""
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
            # The last line may be half of one.
            try:
                yield path.name, json.loads(line)
            except ValueError:
                continue


def _judge(told: Soak, cast: Cast, rows: Rows) -> None:
    table = Table.open(cast.place, options=OPTIONS | OPTIMISTIC)
    try:
        table.rollback_failed()
        found = rows_of(table)
    except (LakehouseError, AssertionError) as error:
        told.violations.append(f"SingleHistory: nobody can read the table: {error!r}")
        return
    ordered = KINDS[told.kind][2]
    facts = list(_facts(cast.home))
    changes = {c.name: c for _, fact in facts if "begin" in fact for c in (stored_change(fact["begin"]),)}
    versions, names = [digest(rows)], []
    for _, metadata in table.commits():
        name = metadata.extra.get("did")
        if name is not None:
            names.append(name)
            rows = after(rows, changes[name], ordered=ordered)
            versions.append(digest(rows))
        elif metadata.operation in (Operation.COMPACT, Operation.LOG_COMPACT):
            told.services += 1
    told.commits = len(names)
    if found != rows:
        differ = {k: (found.get(k), rows.get(k)) for k in found.keys() | rows.keys() if found.get(k) != rows.get(k)}
        told.violations.append(f"SingleHistory: found and expected differ: {differ}")
    if len(set(names)) < len(names):
        told.violations.append("NothingLost: a change is committed twice")
    _judge_answers(told, facts, set(names))
    _judge_reads(told, facts, versions)


def _judge_answers(told: Soak, facts: list[tuple[str, dict[str, Any]]], names: set[str]) -> None:
    for _, fact in facts:
        if "done" in fact and fact["done"] not in names:
            told.violations.append(f"NothingLost: {fact['done']} is not on the timeline")
        if "lost" in fact and fact["lost"] in names:
            told.violations.append(f"HonestAnswers: {fact['lost']} is on the timeline, and was told: {fact['why']}")
        if "failed" in fact:
            told.violations.append(f"NoSurprise: {fact['failed']}")
        if fact.get("tries"):
            told.conflicts += 1
            told.settled += "done" in fact


def _judge_reads(told: Soak, facts: list[tuple[str, dict[str, Any]]], versions: list[str]) -> None:
    """Every reader's states must come in the order of the versions; equal versions may come again."""
    place: dict[str, list[int]] = {}
    for number, version in enumerate(versions):
        place.setdefault(version, []).append(number)
    reached: dict[str, int] = {}
    for journal, fact in facts:
        if "seen" not in fact:
            continue
        told.reads += 1
        later = [number for number in place.get(fact["seen"], []) if number >= reached.get(journal, 0)]
        if not later:
            told.violations.append(f"PrefixReads: {journal} saw a state that was never there, or not any more")
            return
        reached[journal] = later[0]
