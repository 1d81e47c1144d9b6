"""Numbers of requests of small commits on an object store, by purpose; performance.md has a table of all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.files.stage import near_files
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.services import plan_executor
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.errors import RetryableError
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.killed import Host, batch
from tests.support.requests import ObjectStore, RequestLog

T = TypeVar("T")
_numbers = itertools.count(1)
OURS, OTHER = 201, 202
PARTITIONS = "abc"


def rows(value: int, first: int = 0, count: int = 3, partitions: str = PARTITIONS) -> pa.Table:
    return batch({(p, f"{p}{i}"): value for p in partitions for i in range(first, first + count)})


def made(table_type: str = "COPY_ON_WRITE") -> tuple[Table, RequestLog]:
    """Return a table with rows in three partitions, written by this process, and its request log."""
    store = RequestLog(ObjectStore(f"s3://lake/small-commits-{next(_numbers)}"))
    env = Env(storage=store, process_state=ProcessState(), processes=Host(OURS, frozenset({OTHER})))
    table = Table.create(
        store.root, name="t", record_key="id", partition_by="p", ordering="ts", table_type=table_type, env=env
    )
    table.bulk_insert(rows(1))
    table.upsert(rows(2))
    store.reset()
    return table, store


def opened(storage: Storage) -> Table:
    """Return the table as another process, which will have ended, opens it."""
    env = Env(storage=storage, process_state=ProcessState(), processes=Host(OTHER))
    return Table.open(storage.root, env=env)


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_small_upsert_stages_its_rows_in_memory(table_type: str) -> None:
    table, store = made(table_type)
    table.upsert(rows(3))
    assert not store.of("staged rows and claims")
    assert {row["v"] for row in table.scan(["v"]).to_arrow().to_pylist()} == {3}


def test_staged_rows_that_do_not_fit_go_to_storage_and_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    table, store = made()
    monkeypatch.setattr(near_files, "_MOST_BYTES", 1_000)
    table.upsert(rows(3))
    assert store.of("staged rows and claims")["PUT"] > 0
    assert store.list(".hoodie/.staging") == []
    assert {row["v"] for row in table.scan(["v"]).to_arrow().to_pylist()} == {3}


def test_upsert_reads_each_small_base_file_once() -> None:
    table, store = made()
    table.upsert(rows(3))
    assert store.of("data files") == {"GET": len(PARTITIONS), "PUT": len(PARTITIONS)}


def test_large_base_file_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    table, store = made()
    monkeypatch.setattr(near_files, "_MOST_BYTES", 1_000)
    table.upsert(rows(3))
    assert store.of("data files")["GET"] == 2 * len(PARTITIONS)


@pytest.mark.parametrize("verb", ["upsert", "bulk_insert"])
def test_commit_swaps_the_lock_four_times_and_reads_it_once(verb: str) -> None:
    table, store = made()
    getattr(table, verb)(rows(3))
    # The read is between the commit of the metadata table and the commit of the table.
    assert store.of("table lock") == {"PUT": 4, "GET": 1}


def test_writer_reads_the_lock_that_another_process_held_in_between() -> None:
    table, store = made()
    opened(store).upsert(rows(3))
    store.reset()
    table.upsert(rows(4))
    # A refused swap and a read more than without the other process.
    assert store.of("table lock") == {"PUT": 5, "GET": 2}


@pytest.mark.parametrize("verb", ["upsert", "bulk_insert", "insert", "delete"])
def test_commit_of_one_process_lists_no_markers_and_leaves_none(verb: str) -> None:
    table, store = made()
    getattr(table, verb)(rows(3))
    assert store.of("markers") == {"PUT": 2}
    assert store.list(".hoodie/.temp") == []


def test_process_searches_leftover_files_until_it_has_cleaned_up_a_write() -> None:
    table, store = made()
    assert isinstance(table.upsert(rows(3)), Committed)
    assert not store.of("search for leftover files")
    table = opened(store)
    store.reset()
    table.upsert(rows(4))
    assert store.of("search for leftover files") == {"LIST": 1}


class CrashBeforeCleanup(FaultyStorage):
    """A storage whose process crashes when it deletes its markers."""

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Run a storage step; crash before the step that deletes a marker."""
        if name.startswith("delete .hoodie/.temp/"):
            self.fail_at, self.mode = self.steps + 1, FaultMode.CRASH_BEFORE
        return super().step(name, call)


def test_writer_cleans_up_after_a_process_that_crashed_between_its_writes() -> None:
    table, store = made()
    table.upsert(rows(3))
    with pytest.raises(SimulatedCrash):
        opened(CrashBeforeCleanup(store)).upsert(rows(4))
    assert store.list(".hoodie/.temp") != []
    table.upsert(rows(5))
    assert store.list(".hoodie/.temp") == []


def test_compaction_of_a_new_plan_searches_no_earlier_executor() -> None:
    table, store = made("MERGE_ON_READ")
    table.upsert(rows(3))
    store.reset()
    assert isinstance(table.services.compaction.run(force=True), Committed)
    # The claims are listed before the claim, and before the commit.
    assert store.of("staged rows and claims") == {"LIST": 2, "PUT": 1}
    assert store.of("heartbeat") == {"PUT": 1}
    assert store.of("markers") == {"PUT": 2}
    assert store.of("timeline") == {"LIST": 6, "GET": 1, "PUT": 3}
    assert [store.list(f".hoodie/{name}") for name in (".staging", ".temp", ".heartbeat")] == [[], [], []]


def test_executor_refuses_a_new_plan_that_another_program_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    table, store = made("MERGE_ON_READ")
    claim_as = plan_executor.claim_as

    def start(env: Env, instant: str, number: int) -> int:
        store.create(f".hoodie/timeline/{instant}.compaction.inflight", b"")
        Heartbeat(env, TransactionPolicy()).start(instant)
        return claim_as(env, instant, number)

    monkeypatch.setattr(plan_executor, "claim_as", start)
    with pytest.raises(RetryableError, match="another executor, whose heartbeat is valid, runs the compaction"):
        table.services.compaction.run(force=True)
