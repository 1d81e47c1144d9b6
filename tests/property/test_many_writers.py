"""Concurrent writers: if a write runs inside another one at any step, the result is that of some serial order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import ConflictError, LakehouseError, RetryableError, UserError
from tests.support.killed import (
    BASE,
    CALLS,
    INDEXES,
    LOGGED,
    VERBS,
    Host,
    Interrupted,
    Rows,
    base_table,
    batch,
    copy_of,
    leftovers,
    logged_table,
    open_as,
    rows_of,
    share_of,
)

ONE, OTHER = 201, 202
MODE = "hoodie.write.concurrency.mode"
OPTIMISTIC = {MODE: "optimistic_concurrency_control"}
NON_BLOCKING = {MODE: "non_blocking_concurrency_control"}
#: Writes of the second writer: upserts of the same keys, upserts of other keys in the same partitions, deletes of keys
#: that the first writer updates, and an overwrite of partitions.
RIVALS: dict[str, tuple[Callable[[Table], object], Callable[[Rows], Rows]]] = {
    "same keys": (
        lambda table: table.upsert(batch({("a", "a1"): 3, ("a", "a9"): 3, ("c", "c1"): 3})),
        lambda rows: {**rows, ("a", "a1"): 3, ("a", "a9"): 3, ("c", "c1"): 3},
    ),
    "other keys": (
        lambda table: table.upsert(batch({("a", "a8"): 3, ("c", "c9"): 3})),
        lambda rows: {**rows, ("a", "a8"): 3, ("c", "c9"): 3},
    ),
    "deletes": (
        lambda table: table.delete(batch({("a", "a1"): 9, ("a", "a9"): 9}).select(["id", "p"])),
        lambda rows: {key: value for key, value in rows.items() if key not in (("a", "a1"), ("a", "a9"))},
    ),
    "overwrite": (
        lambda table: table.insert_overwrite(batch({("c", "c5"): 3, ("a", "a5"): 3})),
        lambda rows: {
            **{key: value for key, value in rows.items() if key[0] not in ("a", "c")},
            ("c", "c5"): 3,
            ("a", "a5"): 3,
        },
    ),
}


@cache
def base(index: str) -> Storage:
    """Return a table with the rows of BASE; tests work on copies."""
    return logged_table(MemoryStorage(), index) if index in LOGGED else base_table(MemoryStorage(), index)


@cache
def trace(index: str, verb: str) -> tuple[str, ...]:
    """Return the storage steps of an optimistic write without a concurrent writer."""
    storage = FaultyStorage(copy_of(base(index)))
    VERBS[verb].run(open_as(storage, ONE, **OPTIMISTIC))
    return tuple(storage.trace)


def order_of(storage: Storage, earlier: set[str]) -> list[int]:
    """Return the processes of the new commits in the order of completion, from the extra metadata of each commit."""
    table = open_as(storage, 999)
    return [int(m.extra["by"]) for i, m in table.commits() if i.requested not in earlier and "by" in m.extra]


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("verb", ["upsert", "delete", "insert_overwrite"])
@pytest.mark.parametrize("index", [*INDEXES, *LOGGED])
def test_optimistic_writes_are_serializable_when_they_interleave_at_any_step(
    index: str, verb: str, rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = trace(index, verb)
    run, after = RIVALS[rival]
    ours = VERBS[verb]
    orders = set()
    for number in share_of(range(1, len(steps) + 1), (index, verb, rival), 16):
        storage = copy_of(base(index))
        rival_outcomes: list[str] = []

        def rival_write(store: Storage, rival_outcomes: list[str] = rival_outcomes) -> None:
            # The first writer may hold the table lock. Then the second writer fails with a retryable error.
            try:
                run(open_as(store, OTHER, **OPTIMISTIC, **{"hoodie.write.lock.wait_time_ms": "0"}))
                rival_outcomes.append("done")
            except RetryableError as error:
                assert "the table lock" in str(error), error
                rival_outcomes.append("locked out")

        ours.run(open_as(Interrupted(storage, number, rival_write, monkeypatch), ONE, **OPTIMISTIC))
        first_ours, first_theirs = after(ours.after(BASE)), ours.after(after(BASE))
        where = (steps[number - 1], rival_outcomes)
        if rival_outcomes == ["done"]:
            found = rows_of(storage)
            assert found in (first_ours, first_theirs), where
            orders.add("theirs first" if found == first_theirs else "ours first")
        else:
            assert rows_of(storage) == ours.after(BASE), where
        assert leftovers(storage) == [], where
    # Writers of version 6 hold the lock at most steps, so all steps of a share may be such ones.
    assert orders or index.endswith("_6")


def wide(storage: Storage, index: str = "BUCKET", *, options: dict[str, str] | None = None) -> Table:
    """Return a merge-on-read table with two columns besides its key, and two rows."""
    table = Table.create(
        storage.root,
        name="wide",
        record_key=["id"],
        table_type="MERGE_ON_READ",
        options=INDEXES[index] | CALLS | (options or {}),
        env=Env(storage=storage, processes=Host(1)),
    )
    table.upsert(pa.table({"id": ["a", "b"], "x": [0, 0], "y": [0, 0]}))
    return table


#: A write creates its first data file. It does not hold the lock.
FIRST_DATA = "open_output"
PARTIAL = {"lakehouse.write.partial.update": "true"}


def cells(storage: Storage) -> dict[str, dict[str, object]]:
    """Return the values of each row by its key, without meta columns."""
    rows = open_as(storage, 999).scan().to_arrow().to_pylist()
    return {r["id"]: {k: v for k, v in r.items() if k != "id" and not k.startswith("_hoodie")} for r in rows}


@pytest.mark.parametrize("mode", [OPTIMISTIC, NON_BLOCKING], ids=["optimistic", "non-blocking"])
def test_partial_updates_of_different_columns_keep_all_values_and_add_columns_in_commit_order(
    mode: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    wide(storage)

    def rival_write(store: Storage) -> None:
        open_as(store, OTHER, **mode, **PARTIAL).upsert(pa.table({"id": ["a", "c"], "y": [2, 2], "w": ["w", "w"]}))

    store = Interrupted(storage, FIRST_DATA, rival_write, monkeypatch)
    open_as(store, ONE, **mode, **PARTIAL).upsert(pa.table({"id": ["a", "c"], "x": [1, 1], "z": [1.5, 1.5]}))
    assert cells(storage) == {
        "a": {"x": 1, "y": 2, "w": "w", "z": 1.5},
        "b": {"x": 0, "y": 0, "w": None, "z": None},
        "c": {"x": 1, "y": 2, "w": "w", "z": 1.5},
    }
    names = [name for name in open_as(storage, 999).schema.names if not name.startswith("_hoodie")]
    assert names == ["id", "x", "y", "w", "z"]
    open_as(storage, 999).services.compaction.run(force=True)
    assert cells(storage)["c"] == {"x": 1, "y": 2, "w": "w", "z": 1.5}


@pytest.mark.parametrize("index", ["BUCKET", "SIMPLE"])
def test_partial_updates_of_different_columns_conflict_when_full_rows_are_written(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    # A table with a delete flag column stores full rows, because readers look for the flag only in full rows.
    flagged = pa.table({"id": ["a", "b"], "x": [0, 0], "y": [0, 0], "_hoodie_is_deleted": [False, False]})
    Table.create(
        storage.root,
        name="flagged",
        record_key=["id"],
        table_type="MERGE_ON_READ",
        options=INDEXES[index] | CALLS,
        env=Env(storage=storage, processes=Host(1)),
    ).upsert(flagged)

    def rival_write(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC, **PARTIAL).upsert(pa.table({"id": ["a"], "y": [2]}))

    def write(store: Storage) -> None:
        open_as(store, ONE, **OPTIMISTIC, **PARTIAL).upsert(pa.table({"id": ["a"], "x": [1]}))

    write(Interrupted(storage, FIRST_DATA, rival_write, monkeypatch))
    assert cells(storage) == {"a": {"x": 1, "y": 2}, "b": {"x": 0, "y": 0}}


def test_partial_updates_of_the_same_column_conflict_and_a_retry_commits_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    wide(storage)

    def rival_write(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC, **PARTIAL).upsert(pa.table({"id": ["a"], "x": [2]}))

    def lose(retries: str) -> None:
        options = {**OPTIMISTIC, **PARTIAL, "hoodie.write.num.retries.on.conflict.failures": retries}
        store = Interrupted(storage, FIRST_DATA, rival_write, monkeypatch)
        open_as(store, ONE, **options).upsert(pa.table({"id": ["a"], "x": [1]}))

    with pytest.raises(ConflictError, match=r"another writer won.*column 'x'") as refused:
        lose("0")
    assert refused.value.winner == open_as(storage, 999).commits()[-1][0].requested
    assert cells(storage)["a"]["x"] == 2
    assert leftovers(storage) == []
    lose("1")
    assert cells(storage)["a"]["x"] == 1
    assert leftovers(storage) == []


def test_write_of_a_record_batch_reader_retries_from_staged_rows_after_a_conflict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = copy_of(base("SIMPLE"))
    rows = batch({("a", "a1"): 2})
    reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches()))

    def rival_write(store: Storage) -> None:
        # The other writer adds a column, so the staged rows lack it.
        other = batch({("a", "a1"): 1, ("a", "a2"): 3}).append_column("new", pa.array(["n", "n"]))
        open_as(store, OTHER, **OPTIMISTIC).upsert(other)

    options = {**OPTIMISTIC, "hoodie.write.set.null.for.missing.columns": "true"}
    open_as(Interrupted(storage, FIRST_DATA, rival_write, monkeypatch), ONE, **options).upsert(reader)
    assert rows_of(storage) == {**BASE, ("a", "a1"): 2, ("a", "a2"): 3}
    assert leftovers(storage) == []


@pytest.mark.parametrize("index", [*INDEXES, *LOGGED])
def test_concurrent_threads_that_upsert_the_same_keys_give_the_rows_of_their_commits(index: str) -> None:
    storage = copy_of(base(index))
    failures: list[LakehouseError] = []

    def work(pid: int) -> None:
        table = open_as(storage, 300 + pid, **OPTIMISTIC, **{"hoodie.write.num.retries.on.conflict.failures": "50"})
        for round_ in range(3):
            value = 10 * (round_ + 1) + pid
            rows = batch({("a", "a1"): value, ("a", f"new{round_}"): value, ("b", f"b{pid}"): value})
            try:
                table.upsert(rows, commit_metadata={"value": str(value)})
            except LakehouseError as error:
                failures.append(error)

    workers = [threading.Thread(target=work, args=(pid,)) for pid in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    expected: Rows = dict(BASE)
    commits = [(i, m) for i, m in open_as(storage, 999).commits() if "value" in m.extra]
    assert len(commits) == 12
    for _, metadata in sorted(commits, key=lambda pair: pair[0].completed or ""):
        value = int(metadata.extra["value"])
        for key in (("a", "a1"), ("a", f"new{value // 10 - 1}"), ("b", f"b{value % 10}")):
            expected[key] = max(expected.get(key, 0), value)
    assert rows_of(storage) == expected
    assert leftovers(storage) == []


@pytest.mark.parametrize(
    ("index", "options", "message"),
    [
        ("SIMPLE", {**OPTIMISTIC, "hoodie.clean.failed.writes.policy": "EAGER"}, "policy=EAGER.*LAZY"),
        (
            "SIMPLE",
            {**OPTIMISTIC, "hoodie.write.lock.provider": "in_process"},
            "in_process excludes writers of the same process",
        ),
        ("BUCKET", NON_BLOCKING, "merge-on-read table with hoodie.index.type=BUCKET.*copy-on-write with BUCKET"),
        ("LOGS_SIMPLE", NON_BLOCKING, "merge-on-read with SIMPLE"),
    ],
)
def test_write_refuses_options_that_are_unsafe_for_its_concurrency_mode(
    index: str, options: dict[str, str], message: str
) -> None:
    storage = copy_of(base(index))
    before = leftovers(storage)
    with pytest.raises(UserError, match=message):
        open_as(storage, ONE, **options).upsert(batch({("a", "a1"): 3}))
    assert leftovers(storage) == before


def test_non_blocking_mode_refuses_insert_overwrite() -> None:
    storage = copy_of(base("LOGS_BUCKET"))
    with pytest.raises(UserError, match=r"INSERT_OVERWRITE.*OPTIMISTIC_CONCURRENCY_CONTROL"):
        open_as(storage, ONE, **NON_BLOCKING).insert_overwrite(batch({("a", "a1"): 3}))
    assert rows_of(storage) == BASE


def test_non_blocking_upsert_is_visible_after_its_bucket_was_replaced() -> None:
    storage = copy_of(base("LOGS_BUCKET"))
    rows = dict(BASE)
    for value in (3, 4, 5):
        # The file id of a new bucket depends only on its number. The delete replaces this file group, and the next
        # round creates the bucket again.
        open_as(storage, ONE, **NON_BLOCKING).upsert(batch({("e", "e1"): value, ("e", "e2"): value}))
        assert rows_of(storage) == {**rows, ("e", "e1"): value, ("e", "e2"): value}
        open_as(storage, ONE, **OPTIMISTIC).delete_partitions(["e"])
        assert rows_of(storage) == rows
    open_as(storage, ONE, **NON_BLOCKING).upsert(batch({("e", "e1"): 6}))
    open_as(storage, ONE).services.compaction.run(force=True)
    assert rows_of(storage) == {**rows, ("e", "e1"): 6}
    assert leftovers(storage) == []
