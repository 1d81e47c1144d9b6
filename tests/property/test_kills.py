"""Real processes, killed by SIGKILL while they write to a local disk: the parent takes over and leaves no trace."""

from __future__ import annotations

import multiprocessing
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakehouse.storage.faults import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.storage.local import LocalStorage, temporary_name
from lakehouse.storage.protocol import Storage
from lakehouse.table import Table
from lakehouse.txn.env import Env
from tests.support.killed import (
    BASE,
    LOGGED,
    RECOVERY,
    SERVICES,
    VERBS,
    base_table,
    batch,
    copy_of,
    insist,
    killed,
    leftovers,
    logged_table,
    open_as,
    rows_of,
    run_verb,
    share,
    writes_of,
)

#: Steps of a write that are tried, spread over the whole of it; the last ones come after the commit.
SAMPLES = 6
DEAD, SURVIVOR = 101, 102
COMMIT = re.compile(r"create .*/\d+_\d+\.(replace|delta)?commit")


def made_for(storage: LocalStorage, index: str, verb: str) -> Storage:
    """Fill a store with what the verb works on; a service finds its plan there."""
    if index in LOGGED:
        return logged_table(storage, index, verb if verb in SERVICES else "")
    return base_table(storage, index)


@pytest.mark.parametrize(
    ("verb", "index"),
    [
        ("upsert", "SIMPLE"),
        ("upsert", "BUCKET"),
        ("bulk_insert", "SIMPLE"),
        ("insert_overwrite", "BUCKET"),
        ("upsert", "LOGS_SIMPLE"),
        ("compaction", "LOGS_BUCKET"),
    ],
)
def test_a_killed_writer_is_known_to_be_dead_and_leaves_nothing(verb: str, index: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    before = writes_of(made_for(LocalStorage(str(base)), index, verb))
    rehearsal = tmp_path / "rehearsal"
    shutil.copytree(base, rehearsal)
    storage = FaultyStorage(LocalStorage(str(rehearsal)))
    run_verb(verb, Table.open(str(rehearsal), env=Env(storage=storage)))
    commit = next(number for number, step in enumerate(storage.trace, start=1) if COMMIT.fullmatch(step))
    steps = sorted({1 + (storage.steps - 1) * sample // (SAMPLES - 1) for sample in range(SAMPLES)} | {commit})
    outcomes = set()
    for step in steps:
        mode = FaultMode.KILL_AFTER if step == commit or step % 2 else FaultMode.KILL_BEFORE
        place = tmp_path / f"{step}"
        shutil.copytree(base, place)
        assert killed(str(place), index, verb, step, mode) == -signal.SIGKILL
        table = LocalStorage(str(place))
        done = writes_of(table) == before + 1
        rows = VERBS[verb].after(BASE) if done and verb in VERBS else BASE
        outcomes.add(done)
        assert rows_of(table) == rows
        if verb in SERVICES:
            run_verb(verb, Table.open(str(place)))
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


@pytest.mark.parametrize("before", ["request", "commit"])
def test_what_a_kill_in_the_middle_of_a_file_leaves_is_deleted_too(before: str, tmp_path: Path) -> None:
    place = tmp_path / "table"
    base_table(LocalStorage(str(place)), "SIMPLE")
    suffix = {"request": "commit.requested", "commit": "_[0-9]+.commit"}[before]
    steps = FaultyStorage(copy_of(LocalStorage(str(place))))
    VERBS["upsert"].run(open_as(steps, DEAD))
    number = next(n for n, name in enumerate(steps.trace, start=1) if re.fullmatch(f"create .*{suffix}", name))
    with pytest.raises(SimulatedCrash):
        VERBS["upsert"].run(open_as(FaultyStorage(LocalStorage(str(place)), number), DEAD))
    (instant,) = [path.name for path in (place / ".hoodie/.heartbeat").iterdir()]
    lock = (place / ".hoodie/lock").read_bytes()
    unfinished = {
        ".hoodie": {"lock": lock},
        ".hoodie/.heartbeat": {instant: lock},
        ".hoodie/timeline": {f"{instant}.commit.requested": b"", f"{instant}.inflight": b"Obj"},
    }
    if before == "commit":
        unfinished["a"] = {f"0000-0_0-1-0_{instant}.parquet": b"PAR1", ".hoodie_partition_metadata": b"#"}
        unfinished[f".hoodie/.temp/{instant}/a"] = {"x.marker.CREATE": b""}
        unfinished[f".hoodie/.staging/{instant}"] = {"0-0-0-0.arrow": b"ARROW1"}
    for directory, files in unfinished.items():
        for name, data in files.items():
            (place / directory).mkdir(parents=True, exist_ok=True)
            (place / directory / temporary_name(name, "1-1")).write_bytes(data)
    assert len([path for path in leftovers(LocalStorage(str(place))) if path.endswith(".tmp")]) >= 4
    open_as(LocalStorage(str(place)), SURVIVOR, [DEAD]).upsert(batch(RECOVERY))
    assert leftovers(LocalStorage(str(place))) == []
    assert rows_of(LocalStorage(str(place))) == {**BASE, **RECOVERY}
