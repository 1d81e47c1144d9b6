"""Two actors in every order of their steps with up to two switches, and with a crash after each of their changes.

LAKEHOUSE_SWITCHES=3 pytest tests/simulation/test_pairs.py       more switches
LAKEHOUSE_EXAMPLES=1 pytest tests/simulation/test_pairs.py       all schedules with two switches, not only a share
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulation.actors import Setting, serve, write
from tests.simulation.model import Change, Key, Row
from tests.simulation.schedules import Actor, Pair, Played, Schedule, deaths, play, schedules
from tests.simulation.store import SimulatedStorage
from tests.simulation.tables import Shape
from tests.simulation.world import Process

_IDS = re.compile(r"\d{17}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: By default only every fourth schedule with one switch is extended by a second one, with LAKEHOUSE_SHARE fewer.
EVERY = (
    1
    if "LAKEHOUSE_EXAMPLES" in os.environ or "LAKEHOUSE_SWITCHES" in os.environ
    else round(4 / float(os.environ.get("LAKEHOUSE_SHARE", "1")))
)
SWITCHES = int(os.environ.get("LAKEHOUSE_SWITCHES", "2"))


def brings(name: str, verb: str, *keys: Key, row: Row | None = None) -> Actor:
    """Return an actor that writes a change."""
    value = 10 * int(name[1:])
    change = Change(name=name, verb=verb, rows={key: row or {"v": value, "w": value} for key in keys})

    def act(setting: Setting, store: SimulatedStorage, process: Process) -> None:
        write(setting, store, process, change)

    return act


def serves(name: str) -> Actor:
    """Return an actor that runs a service."""

    def act(setting: Setting, store: SimulatedStorage, process: Process) -> None:
        serve(setting, store, process, name)

    return act


A0, A1, NEW = ("a", "a0"), ("a", "a1"), ("a", "n0")
UPSERT = brings("w1", "upsert", A0)
PAIRS = {
    "upsert, upsert of the same group": Pair(
        shape=Shape("COW_SIMPLE", False), actors=(UPSERT, brings("w2", "upsert", A1))
    ),
    "upserts of the same new key": Pair(
        shape=Shape("MOR_SIMPLE", False),
        actors=(brings("w1", "upsert", ("c", "n0")), brings("w2", "upsert", ("c", "n0"))),
    ),
    "upsert of a new key, delete of it": Pair(
        shape=Shape("COW_SIMPLE", False), actors=(brings("w1", "upsert", NEW), brings("w2", "delete", NEW, ("b", "b0")))
    ),
    "upsert, plan of a compaction": Pair(shape=Shape("MOR_BUCKET", False), actors=(UPSERT, serves("plan"))),
    "one plan, two executors": Pair(
        shape=Shape("MOR_BUCKET", False, "compaction"), actors=(serves("compaction"), serves("compaction"))
    ),
    "upsert, rollback of failed writes": Pair(shape=Shape("COW_SIMPLE", False), actors=(UPSERT, serves("rollback"))),
    "insert_overwrite, upsert": Pair(
        shape=Shape("COW_SIMPLE", False),
        actors=(brings("w1", "insert_overwrite", ("a", "o1")), brings("w2", "upsert", A0)),
    ),
    "partial, partial of the same column": Pair(
        shape=Shape("MOR_BUCKET", False),
        actors=(brings("w1", "partial", A0, row={"v": 10}), brings("w2", "partial", A0, row={"v": 20})),
    ),
    "partial, partial of another column": Pair(
        shape=Shape("MOR_BUCKET", False),
        actors=(brings("w1", "partial", A0, row={"v": 10}), brings("w2", "partial", A0, row={"w": 20})),
    ),
    "partial, partial, non-blocking": Pair(
        shape=Shape("MOR_BUCKET", False),
        actors=(brings("w1", "partial", A0, row={"x1": 10}), brings("w2", "partial", A0, row={"x2": 20})),
        non_blocking=True,
    ),
}

#: The same pairs on tables of version 6, which has no non-blocking writers.
PAIRS |= {
    f"{name}, version 6": replace(pair, shape=replace(pair.shape, version=6))
    for name, pair in PAIRS.items()
    if not pair.non_blocking
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", PAIRS)
def test_every_invariant_holds_in_every_order_of_two_actors(name: str) -> None:
    played = [schedule for schedule, _ in schedules(PAIRS[name], SWITCHES, every=EVERY)]
    assert {schedule.first for schedule in played} == {0, 1}
    assert len(played) > 20, "the pair has no conflicting steps, so it tests nothing"
    assert len(set(played)) == len(played)


@pytest.mark.parametrize("name", PAIRS)
def test_every_invariant_holds_after_a_crash_at_each_change_of_an_actor(name: str) -> None:
    assert sum(1 for _ in deaths(PAIRS[name])) >= 20


def test_run_of_a_schedule_is_repeatable() -> None:
    pair = PAIRS["upserts of the same new key"]
    for schedule in (Schedule(0, (30, 20)), Schedule(1, (40,))):
        assert play(pair, schedule) == play(pair, schedule)


def test_schedules_skip_only_equivalent_orders() -> None:
    pair = PAIRS["upsert, rollback of failed writes"]
    alone = play(pair, Schedule(0))
    own = sum(process == "A" for process, *_ in alone.steps)
    every = {_outcome(play(pair, Schedule(0, (number,)))) for number in range(2, own + 1)}
    chosen = {_outcome(played) for schedule, played in schedules(pair, 1) if schedule.first == 0}
    assert chosen >= every


def _outcome(played: Played) -> tuple[tuple[str, ...], ...]:
    """Return the steps of each process without ids and times. The order of commuting steps does not change it."""
    steps = [(name, _IDS.sub("#", f"{verb} {path}")) for name, verb, path in played.steps]
    return tuple(tuple(step for name, step in steps if name == process) for process in ("A", "B"))
