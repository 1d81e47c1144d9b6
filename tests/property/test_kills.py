"""Real processes, killed by SIGKILL while they write to a local disk: the parent takes over and leaves no trace."""

from __future__ import annotations

import multiprocessing
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakehouse.storage.faults import FaultMode, FaultyStorage
from lakehouse.storage.local import LocalStorage
from lakehouse.table import Table
from lakehouse.txn.env import Env
from tests.support.killed import (
    BASE,
    RECOVERY,
    VERBS,
    base_table,
    batch,
    insist,
    killed,
    leftovers,
    rows_of,
    share,
    writes_of,
)

#: Steps of a write that are tried, spread over the whole of it; the last ones come after the commit.
SAMPLES = 7
COMMIT = re.compile(r"create .*/\d+_\d+\.(replace)?commit")


@pytest.mark.parametrize(
    ("verb", "index"),
    [("upsert", "SIMPLE"), ("upsert", "BUCKET"), ("bulk_insert", "SIMPLE"), ("insert_overwrite", "BUCKET")],
)
def test_a_killed_writer_is_known_to_be_dead_and_leaves_nothing(verb: str, index: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base_table(LocalStorage(str(base)), index)
    rehearsal = tmp_path / "rehearsal"
    shutil.copytree(base, rehearsal)
    storage = FaultyStorage(LocalStorage(str(rehearsal)))
    VERBS[verb].run(Table.open(str(rehearsal), env=Env(storage=storage)))
    commit = next(number for number, step in enumerate(storage.trace, start=1) if COMMIT.fullmatch(step))
    steps = sorted({1 + (storage.steps - 1) * sample // (SAMPLES - 1) for sample in range(SAMPLES)} | {commit})
    outcomes = set()
    for step in steps:
        mode = FaultMode.KILL_AFTER if step == commit or step % 2 else FaultMode.KILL_BEFORE
        place = tmp_path / f"{step}"
        shutil.copytree(base, place)
        assert killed(str(place), index, verb, step, mode) == -signal.SIGKILL
        table = LocalStorage(str(place))
        rows = VERBS[verb].after(BASE) if writes_of(table) == 3 else BASE
        outcomes.add(rows == BASE)
        assert rows_of(table) == rows
        Table.open(str(place)).upsert(batch(RECOVERY))
        assert rows_of(table) == {**rows, **RECOVERY}
        assert leftovers(table) == [], f"killed at {storage.trace[step - 1]}"
    assert outcomes == {True, False}


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_writers_that_race_for_one_table_are_told_to_retry_and_lose_nothing(kind: str, tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    base_table(LocalStorage(place), "SIMPLE")
    writers = 3
    if kind == "threads":
        with ThreadPoolExecutor(writers) as pool:
            assert list(pool.map(insist, [place] * writers, range(writers))) == [None] * writers
    else:
        processes = multiprocessing.get_context("forkserver")
        children = [processes.Process(target=insist, args=(place, number)) for number in range(writers)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * writers
    shares = {key: value for number in range(writers) for key, value in share(number).items()}
    assert rows_of(LocalStorage(place)) == {**BASE, **shares}
    Table.open(place).upsert(batch(RECOVERY))
    assert leftovers(LocalStorage(place)) == []
