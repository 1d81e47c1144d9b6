"""Ingestion writes each record once and each bad record to one dead letter, despite crashes and concurrent processes.

LAKEHOUSE_KILLS=20000 pytest tests/property/test_ingest_kills.py     more kills than usual
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit import complete as commit
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import RetryableError, UserError
from tests.support.ingested import Landing
from tests.support.killed import Interrupted, batch, leftovers, open_as, share_of

_WANTED = os.environ.get("LAKEHOUSE_KILLS", "")
KILLS = int(_WANTED) if _WANTED.isdigit() else 1000
KILLS_PER_TABLE = 10
#: A crash is planned at one of the first this many storage steps. Most runs have fewer.
STEPS = 110
MODES = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.LOSE_REPLY)
MANY_WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


def landing_of(random: Random, seed: int) -> Landing:
    """Return a landing zone with a random table type and ingestion settings."""
    return Landing(
        f"ingest-kills-{seed % 4}",
        operation=random.choice(("insert", "insert", "bulk_insert", "upsert")),
        table_type=random.choice(("COPY_ON_WRITE", "MERGE_ON_READ")),
        by_interval=random.random() < 0.4,
        options=random.choice(({}, MANY_WRITERS)),
    )


def die_again_and_again(seed: int) -> tuple[int, Counter[str]]:
    """Ingest until KILLS_PER_TABLE runs have crashed, and check the rows after each run.

    Returns:
        The number of crashes, and their number by kind of storage step.
    """
    random = Random(seed)
    landing = landing_of(random, seed)
    kills, day, at = 0, -1, Counter[str]()
    while kills < KILLS_PER_TABLE:
        if day < 0 or random.random() < 0.5:
            # A run of an interval ignores files that arrive after it, so all files of one day arrive together.
            day += 1
            for number in range(random.randint(1, 3)):
                landing.land(f"f{day}.{number}", random.randint(1, 4), random.choice((0, 0, 1, 2)), day)
        storage = FaultyStorage(landing.store, random.randint(1, STEPS), random.choice(MODES))
        # A retry has the run id of the run that it retries.
        with suppress(SimulatedCrash, RetryableError):
            landing.run(storage, day=random.choice((day, max(0, day - 1))), run_id=f"run-{len(landing.dead) // 3}")
        landing.dead.add(landing.last_pid)
        if storage.fail_at is not None and storage.steps >= storage.fail_at:
            kills += 1
            at[storage.trace[storage.fail_at - 1].split()[0]] += 1
        found = landing.rows()
        assert found <= landing.landed, f"seed {seed}, kill {kills}: written twice: {found - landing.landed}"
    for landed in range(day + 1):
        landing.run(day=landed, run_id="last")
    assert landing.rows() == landing.landed, f"seed {seed}: lost rows: {landing.landed - landing.rows()}"
    assert landing.named_letters() == landing.letters, f"seed {seed}"
    survivor = open_as(landing.store, landing.last_pid, landing.dead)
    survivor.upsert(batch({("p0", "last"): 1}).select(["id", "p", "ts"]))
    assert leftovers(landing.store) == [], f"seed {seed}"
    return kills, at


def test_ingestion_writes_each_record_once_despite_many_kills() -> None:
    kills, seed, at = 0, 0, Counter[str]()
    while kills < KILLS:
        died, steps = die_again_and_again(seed)
        kills, at, seed = kills + died, at + steps, seed + 1
    assert KILLS < 1000 or at.keys() >= {"create", "put", "open_output", "close", "list_dir", "delete", "get"}


ONE, OTHER = 901, 902
RivalOf = Callable[[Landing], object]


def ingests(landing: Landing) -> object:
    """Ingest the same records, as a second try does while the first one is active."""
    return landing.run(pid=OTHER, run_id="other")


def ingests_after_expiry(landing: Landing) -> object:
    """Ingest the same records, as a second try does after the lease of the first one expired."""
    return landing.run(pid=OTHER, run_id="other", dead={ONE})


def ingests_another_interval(landing: Landing) -> object:
    """Ingest the interval of the next day."""
    return landing.run(pid=OTHER, run_id="other", day=1)


def refreshes(landing: Landing) -> object:
    """Ingest all records again with a full refresh."""
    return landing.run(pid=OTHER, run_id="other", full_refresh=True)


def writes(landing: Landing) -> object:
    """Write to the same file groups without ingestion."""
    return open_as(landing.store, OTHER, **landing.options).upsert(plain())


def rolls_back(landing: Landing) -> object:
    """Roll back the newest commit, whose checkpoint the other run started from."""
    newest = landing.table.commits()[-1][0]
    return open_as(landing.store, OTHER, **landing.options).rollback(newest.requested)


def plain() -> pa.Table:
    """Return a row that no source delivered."""
    return pa.table({"id": ["plain"], "p": ["p0"], "ts": pa.array([1], pa.int64())})


#: By name: the process that interrupts a run, whether runs ingest by interval, and the operation.
MEETINGS: dict[str, tuple[RivalOf, bool, str]] = {
    "a retry": (ingests, False, "insert"),
    "a retry of an interval": (ingests, True, "insert"),
    "a retry after expiry": (ingests_after_expiry, False, "insert"),
    "another interval": (ingests_another_interval, True, "insert"),
    "a full refresh": (refreshes, False, "upsert"),
    "a plain writer": (writes, False, "insert"),
    "a rollback of its checkpoint": (rolls_back, False, "insert"),
}


def meeting(name: str, mode: str, first: bool) -> Landing:
    """Return a landing zone with new records. Unless `first`, an earlier run has created the table."""
    _, by_interval, operation = MEETINGS[name]
    landing = Landing(
        f"meeting-{os.getpid()}",
        operation=operation,
        by_interval=by_interval,
        # The interrupted run cannot release its lock meanwhile, so the other process must not wait for it.
        options={"hoodie.write.lock.wait_time_ms": "0"} | (MANY_WRITERS if mode == "many" else {}),
    )
    if not first:
        landing.land("before", 3, 1, day=5)
        landing.run(day=5, run_id="before")
    landing.land("x", 3, 2)
    landing.land("y", 2, 0, day=1)
    return landing


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("mode", ["single", "many"])
@pytest.mark.parametrize("name", MEETINGS)
def test_ingestion_writes_each_record_once_when_another_process_runs_at_any_step(
    name: str, mode: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival_of, by_interval, _ = MEETINGS[name]
    if first and rival_of in (rolls_back, writes):
        pytest.skip("the other process needs a table, which the first run has not created yet")
    landing = meeting(name, mode, first)
    alone = FaultyStorage(landing.store)
    landing.run(alone, pid=ONE)
    turns: list[bool] = []

    def rival(_: Storage, landing: Landing) -> None:
        with suppress(RetryableError, UserError):
            turns.append(False)
            rival_of(landing)
            turns[-1] = True

    for number in share_of(range(1, alone.steps + 1), (name, mode, first), 10):
        step = alone.trace[number - 1]
        if rival_of is ingests_after_expiry and re.search(r"create .*\d+_\d+\.commit", step):
            # Between the last lock check and the commit, only the remaining lease time keeps a rival away.
            continue
        landing = meeting(name, mode, first)
        storage = Interrupted(landing.store, number, partial(rival, landing=landing), monkeypatch)
        with suppress(RetryableError):
            landing.run(storage, pid=ONE)
        # Run refused ingestions again, as a scheduler does.
        for day in range(2) if by_interval else range(1):
            landing.run(pid=OTHER + 1, run_id="again", day=day, dead={ONE, OTHER})
        rows = landing.rows() - Counter(["plain"])
        assert rows == landing.landed, f"interrupted at {number}, {step}: {rows - landing.landed}"
        if rival_of is not refreshes:
            assert landing.named_letters() == landing.letters, f"interrupted at {number}, {step}"
    assert True in turns


@pytest.mark.parametrize("name", ["a retry", "a retry of an interval", "a rollback of its checkpoint"])
def test_interrupted_runs_detect_a_commit_without_its_precondition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "precondition_conflict", lambda *_: None)
    with pytest.raises(AssertionError, match="interrupted at"):
        test_ingestion_writes_each_record_once_when_another_process_runs_at_any_step(name, "many", False, monkeypatch)
