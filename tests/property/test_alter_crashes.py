"""`Table.alter()` is killed at any storage step: the columns are all changed or not at all, and no row is lost."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import ConflictError
from tests.support.killed import CHANGING, EXHAUSTIVE, Interrupted, copy_of, open_as

CRASHED, SURVIVOR = 101, 102
# A crash after a step is the crash before the next one, except for the last step.
MODES = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER) if EXHAUSTIVE else (FaultMode.CRASH_BEFORE,)
BEFORE = {"k1": ("one", 1), "k2": ("two", 2)}
AFTER = {"k1": ("one", None), "k2": ("two", None)}


def base(kind: str) -> Storage:
    storage = MemoryStorage()
    table = Table.create(storage.root, name="t", record_key=["id"], table_type=kind, env=Env(storage=storage))
    table.upsert(pa.table({"id": ["k1", "k2"], "name": ["one", "two"], "n": [1, 2]}))
    return storage


def alter(table: Table) -> None:
    table.alter().rename_column("name", "title").drop_column("n").add_column("n", "string").execute()


def content(storage: Storage) -> dict[str, tuple[str, object]]:
    table = open_as(storage, SURVIVOR, (CRASHED,))
    name = "title" if "title" in table.schema.names else "name"
    return {row["id"]: (row[name], row["n"]) for row in table.scan().to_arrow().to_pylist()}


def steps(kind: str) -> list[int]:
    storage = FaultyStorage(base(kind))
    alter(open_as(storage, CRASHED))
    assert content(storage.inner) == AFTER
    verbs = [step.partition(" ")[0] for step in storage.trace]
    return [n for n, verb in enumerate(verbs, 1) if EXHAUSTIVE or verb in CHANGING]


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_killed_change_is_complete_or_undone(kind: str) -> None:
    stored = base(kind)
    outcomes = []
    for step in steps(kind):
        for mode in MODES:
            storage = copy_of(stored)
            with pytest.raises(SimulatedCrash):
                alter(open_as(FaultyStorage(storage, step, mode), CRASHED))
            stored_rows = content(storage)
            assert stored_rows in (BEFORE, AFTER)
            table = open_as(storage, SURVIVOR, (CRASHED,))
            name = "title" if stored_rows == AFTER else "name"
            table.upsert(pa.table({"id": ["k3"], name: ["three"]}))
            assert content(storage) == {**stored_rows, "k3": ("three", None)}
            assert not any(not instant.is_completed for instant in table.timeline)
            if stored_rows == BEFORE:
                alter(table)
                assert content(storage) == {**AFTER, "k3": ("three", None)}
            outcomes.append(stored_rows == AFTER)
    assert {True, False} == set(outcomes) or not EXHAUSTIVE


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_write_between_whose_steps_the_columns_change_conflicts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = base(kind)
    options = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}

    def rival(storage: Storage) -> None:
        alter(open_as(storage, SURVIVOR).with_options(options))

    rows = pa.table({"id": ["k1"], "name": ["late"]})
    storage = copy_of(stored)
    interrupted = Interrupted(storage, "open_output", rival, monkeypatch)
    retries = {"hoodie.write.num.retries.on.conflict.failures": "0"}
    writer = open_as(interrupted, CRASHED).with_options({**options, **retries})
    with pytest.raises(ConflictError, match="changed the columns"):
        writer.upsert(rows)
    assert content(storage) == AFTER
