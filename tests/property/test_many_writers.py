"""Writers that meet: wherever one has its turn inside of the other, they end as if one came after the other."""

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
#: The same keys, and others in the same partitions: updates of one group, new keys twice, deletes of what one updates.
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
    """A table of BASE; tests work on copies."""
    return logged_table(MemoryStorage(), index) if index in LOGGED else base_table(MemoryStorage(), index)


@cache
def trace(index: str, verb: str) -> tuple[str, ...]:
    """The steps of an optimistic write that nobody disturbs."""
    storage = FaultyStorage(copy_of(base(index)))
    VERBS[verb].run(open_as(storage, ONE, **OPTIMISTIC))
    return tuple(storage.trace)


def order_of(storage: Storage, known: set[str]) -> list[int]:
    """Return whose writes completed, by the process that its extra metadata names, in the order of completion."""
    table = open_as(storage, 999)
    return [int(m.extra["by"]) for i, m in table.commits() if i.requested not in known and "by" in m.extra]


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("verb", ["upsert", "delete", "insert_overwrite"])
@pytest.mark.parametrize("index", [*INDEXES, *LOGGED])
def test_optimistic_writers_that_meet_at_any_step_end_as_if_one_after_the_other(
    index: str, verb: str, rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = trace(index, verb)
    run, after = RIVALS[rival]
    ours = VERBS[verb]
    orders = set()
    for number in share_of(range(1, len(steps) + 1), (index, verb, rival), 16):
        storage = copy_of(base(index))
        turns: list[str] = []

        def turn(store: Storage, turns: list[str] = turns) -> None:
            # Who holds the lock while the other has its turn is waited for in vain: that is told, and nothing is lost.
            try:
                run(open_as(store, OTHER, **OPTIMISTIC, **{"hoodie.write.lock.wait_time_ms": "0"}))
                turns.append("done")
            except RetryableError as error:
                assert "the table lock" in str(error), error
                turns.append("locked out")

        ours.run(open_as(Interrupted(storage, number, turn, monkeypatch), ONE, **OPTIMISTIC))
        first_ours, first_theirs = after(ours.after(BASE)), ours.after(after(BASE))
        where = (steps[number - 1], turns)
        if turns == ["done"]:
            found = rows_of(storage)
            assert found in (first_ours, first_theirs), where
            orders.add("theirs first" if found == first_theirs else "ours first")
        else:
            assert rows_of(storage) == ours.after(BASE), where
        assert leftovers(storage) == [], where
    assert orders


def wide(storage: Storage, index: str = "BUCKET", *, options: dict[str, str] | None = None) -> Table:
    """A merge-on-read table of two columns beside its key, with two rows."""
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


PARTIAL = {"lakehouse.write.partial.update": "true"}


def cells(storage: Storage) -> dict[str, dict[str, object]]:
    """The rows by key."""
    rows = open_as(storage, 999).scan().to_arrow().to_pylist()
    return {r["id"]: {k: v for k, v in r.items() if k != "id" and not k.startswith("_hoodie")} for r in rows}


@pytest.mark.parametrize("mode", [OPTIMISTIC, NON_BLOCKING], ids=["optimistic", "non-blocking"])
def test_two_writers_of_different_columns_lose_no_cell_and_add_columns_in_the_order_of_their_commits(
    mode: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    wide(storage)

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **mode, **PARTIAL).upsert(pa.table({"id": ["a", "c"], "y": [2, 2], "w": ["w", "w"]}))

    probe = FaultyStorage(copy_of(storage))
    open_as(probe, ONE, **mode, **PARTIAL).upsert(pa.table({"id": ["a", "c"], "x": [1, 1], "z": [1.5, 1.5]}))
    first_data = next(n for n, step in enumerate(probe.trace, 1) if step.startswith("open_output"))
    store = Interrupted(storage, first_data, turn, monkeypatch)
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
def test_different_columns_of_rows_that_are_written_whole_conflict(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    # A column that marks deletes: readers find it in whole rows only.
    flagged = pa.table({"id": ["a", "b"], "x": [0, 0], "y": [0, 0], "_hoodie_is_deleted": [False, False]})
    Table.create(
        storage.root,
        name="flagged",
        record_key=["id"],
        table_type="MERGE_ON_READ",
        options=INDEXES[index] | CALLS,
        env=Env(storage=storage, processes=Host(1)),
    ).upsert(flagged)

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC, **PARTIAL).upsert(pa.table({"id": ["a"], "y": [2]}))

    def write(store: Storage) -> None:
        open_as(store, ONE, **OPTIMISTIC, **PARTIAL).upsert(pa.table({"id": ["a"], "x": [1]}))

    probe = FaultyStorage(copy_of(storage))
    write(probe)
    first_data = next(n for n, step in enumerate(probe.trace, 1) if step.startswith("open_output"))
    write(Interrupted(storage, first_data, turn, monkeypatch))
    assert cells(storage) == {"a": {"x": 1, "y": 2}, "b": {"x": 0, "y": 0}}


def test_the_same_column_of_the_same_group_conflicts_and_the_loser_comes_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    wide(storage)

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC, **PARTIAL).upsert(pa.table({"id": ["a"], "x": [2]}))

    def lose(retries: str) -> None:
        probe = FaultyStorage(copy_of(storage))
        options = {**OPTIMISTIC, **PARTIAL, "hoodie.write.num.retries.on.conflict.failures": retries}
        open_as(probe, ONE, **options).upsert(pa.table({"id": ["a"], "x": [1]}))
        first_data = next(n for n, step in enumerate(probe.trace, 1) if step.startswith("open_output"))
        store = Interrupted(storage, first_data, turn, monkeypatch)
        open_as(store, ONE, **options).upsert(pa.table({"id": ["a"], "x": [1]}))

    with pytest.raises(ConflictError, match=r"another writer won.*column 'x'") as refused:
        lose("0")
    assert refused.value.winner == open_as(storage, 999).commits()[-1][0].requested
    assert cells(storage)["a"]["x"] == 2
    assert leftovers(storage) == []
    lose("1")
    assert cells(storage)["a"]["x"] == 1
    assert leftovers(storage) == []


def test_a_batch_that_can_be_read_only_once_is_tried_again_from_what_was_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = copy_of(base("SIMPLE"))
    rows = batch({("a", "a1"): 2})
    reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches()))
    probe = FaultyStorage(copy_of(storage))
    open_as(probe, ONE, **OPTIMISTIC).upsert(rows)
    locks = [n for n, step in enumerate(probe.trace, 1) if step == "get_tagged .hoodie/holder.json"]
    signs = max(n for n, step in enumerate(probe.trace, 1) if step == "replace_if .hoodie/lock")
    # The first look at the lock under which it commits: nobody has it yet.
    commit = max(n for n in locks if n < signs)

    def turn(store: Storage) -> None:
        # The schema changes too, so the staged rows lack a column.
        other = batch({("a", "a1"): 1, ("a", "a2"): 3}).append_column("new", pa.array(["n", "n"]))
        open_as(store, OTHER, **OPTIMISTIC).upsert(other)

    options = {**OPTIMISTIC, "hoodie.write.set.null.for.missing.columns": "true"}
    open_as(Interrupted(storage, commit, turn, monkeypatch), ONE, **options).upsert(reader)
    assert rows_of(storage) == {**BASE, ("a", "a1"): 2, ("a", "a2"): 3}
    assert leftovers(storage) == []


@pytest.mark.parametrize("index", [*INDEXES, *LOGGED])
def test_threads_that_upsert_the_same_keys_end_as_their_commits_say(index: str) -> None:
    storage = copy_of(base(index))
    failures: list[LakehouseError] = []

    def work(pid: int) -> None:
        table = open_as(storage, 300 + pid, **OPTIMISTIC, **{"hoodie.write.num.retries.on.conflict.failures": "50"})
        for turn in range(3):
            value = 10 * (turn + 1) + pid
            rows = batch({("a", "a1"): value, ("a", f"new{turn}"): value, ("b", f"b{pid}"): value})
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
def test_a_mode_that_cannot_be_safe_is_refused(index: str, options: dict[str, str], message: str) -> None:
    storage = copy_of(base(index))
    before = leftovers(storage)
    with pytest.raises(UserError, match=message):
        open_as(storage, ONE, **options).upsert(batch({("a", "a1"): 3}))
    assert leftovers(storage) == before


def test_writers_that_never_wait_replace_no_base_files() -> None:
    storage = copy_of(base("LOGS_BUCKET"))
    with pytest.raises(UserError, match=r"INSERT_OVERWRITE.*OPTIMISTIC_CONCURRENCY_CONTROL"):
        open_as(storage, ONE, **NON_BLOCKING).insert_overwrite(batch({("a", "a1"): 3}))
    assert rows_of(storage) == BASE


def test_what_a_writer_that_never_waits_brings_after_an_overwrite_is_seen() -> None:
    storage = copy_of(base("LOGS_BUCKET"))
    rows = dict(BASE)
    for value in (3, 4, 5):
        # A new bucket by its number alone, then an overwrite that hides this group, then the bucket begins anew.
        open_as(storage, ONE, **NON_BLOCKING).upsert(batch({("e", "e1"): value, ("e", "e2"): value}))
        assert rows_of(storage) == {**rows, ("e", "e1"): value, ("e", "e2"): value}
        open_as(storage, ONE, **OPTIMISTIC).delete_partitions(["e"])
        assert rows_of(storage) == rows
    open_as(storage, ONE, **NON_BLOCKING).upsert(batch({("e", "e1"): 6}))
    open_as(storage, ONE).services.compaction.run(force=True)
    assert rows_of(storage) == {**rows, ("e", "e1"): 6}
    assert leftovers(storage) == []
