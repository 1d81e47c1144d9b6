"""Real processes are killed by SIGKILL while they write to a local disk. The parent takes over and cleans up.

LAKEHOUSE_KILLS=all pytest tests/property/test_kills.py     every step of every operation on every kind of table
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.local import LocalStorage, temporary_name
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from tests.reliability.kills import TABLES, case_of, kill, moments, operations_of
from tests.support.killed import (
    BASE,
    INDEXES,
    LOGGED,
    RECOVERY,
    VERBS,
    base_table,
    batch,
    insist,
    leftovers,
    open_as,
    rows_of,
    share,
)
from tests.support.processes import forked

T = TypeVar("T")
#: Whether to kill at every step of every operation on every kind of table, instead of at a sample of the steps.
ALL = os.environ.get("LAKEHOUSE_KILLS") == "all"
SAMPLES = 2
ALL_TABLES = (*INDEXES, *LOGGED)
#: Upper limit of the recovery time. It takes a fraction of a second unless other tests load the machine.
RECOVERY_S = 40
CRASHED, SURVIVOR = 101, 102


@pytest.mark.parametrize(
    ("operation", "index"),
    [(operation, index) for index in (ALL_TABLES if ALL else TABLES.values()) for operation in operations_of(index)],
)
def test_killed_process_is_detected_and_its_files_are_removed(operation: str, index: str, tmp_path: Path) -> None:
    case = case_of(operation, index, tmp_path)
    times = [kill(case, step, mode, tmp_path / f"{step}") for step, mode in moments(case, None if ALL else SAMPLES)]
    assert max(times) < RECOVERY_S, f"recovered within {max(times):.1f} s"


#: Steps on the metadata table after which a process is killed: the operation, its options, and the names of the steps.
METADATA_STEPS = {
    "commit": ("upsert", {}, r"create .*/metadata/.*_\d+\.deltacommit"),
    "compaction": (
        "upsert",
        {"hoodie.metadata.compact.max.delta.commits": "2"},
        r"create .*/metadata/.*(compaction.inflight|_\d+\.commit)|(close|put) .*column_stats/.*\.hfile",
    ),
    "rollback": (
        "rollback of failed",
        {},
        r"create .*/metadata/.*rollback\.\w+|delete .*/metadata/files/.*|create .*/metadata/.*_\d+\.rollback",
    ),
}


@pytest.mark.parametrize("name", METADATA_STEPS)
def test_metadata_table_is_right_after_a_kill_in_its_commit_compaction_or_rollback(name: str, tmp_path: Path) -> None:
    operation, options, pattern = METADATA_STEPS[name]
    case = case_of(operation, "SIMPLE", tmp_path, **options)
    steps = [number for number, step in enumerate(case.trace, start=1) if re.fullmatch(pattern, step)]
    assert len(steps) >= (1 if name == "commit" else 3), case.trace
    for step in steps:
        kill(case, step, FaultMode.KILL_AFTER, tmp_path / f"{step}")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_concurrent_writers_of_one_table_retry_and_lose_nothing(kind: str, tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    base_table(LocalStorage(place), "SIMPLE")
    writers = 3
    if kind == "threads":
        with ThreadPoolExecutor(writers) as pool:
            assert list(pool.map(insist, [place] * writers, range(writers))) == [None] * writers
    else:
        processes = forked()
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


class DiesBefore(FaultyStorage):
    """A store whose process crashes before the first step that matches a pattern.

    The number of that step differs between runs, so it cannot be given as a number.
    """

    def __init__(self, inner: Storage, pattern: str) -> None:
        super().__init__(inner)
        self.pattern = pattern

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Crash if the name of the step matches."""
        if re.fullmatch(self.pattern, name):
            self.fail_at = self.steps + 1
        return super().step(name, call)


@pytest.mark.parametrize("before", ["request", "commit"])
def test_partly_written_temporary_files_of_a_killed_process_are_deleted(before: str, tmp_path: Path) -> None:
    place = tmp_path / "table"
    base_table(LocalStorage(str(place)), "SIMPLE")
    suffix = {"request": "commit.requested", "commit": "_[0-9]+.commit"}[before]
    with pytest.raises(SimulatedCrash):
        VERBS["upsert"].run(open_as(DiesBefore(LocalStorage(str(place)), f"create .*{suffix}"), CRASHED))
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
    open_as(LocalStorage(str(place)), SURVIVOR, [CRASHED]).upsert(batch(RECOVERY))
    assert leftovers(LocalStorage(str(place))) == []
    assert rows_of(LocalStorage(str(place))) == {**BASE, **RECOVERY}
