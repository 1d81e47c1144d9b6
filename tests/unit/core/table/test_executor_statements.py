"""Statements as executors run them: shards, keys that another task compares, and rows that were computed again."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.engine.pieces import pieces_of, report_piece, shards_of
from lakehouse.core.table import statement_tasks
from lakehouse.core.table.executor_statements import ExecutorRun
from lakehouse.errors import RetryableError, UserError
from tests.support.arrow_shuffle import ArrowShuffle, use_executors

NUMBERS = itertools.count()
STORED = pa.table({"id": [f"k{number}" for number in range(40)], "v": pa.array(range(40)), "w": pa.array([0] * 40)})
SOURCE = pa.table({"id": [f"k{number}" for number in range(20, 60)], "v": pa.array(range(40)), "w": pa.array([1] * 40)})


@pytest.fixture
def shuffles(monkeypatch: pytest.MonkeyPatch) -> list[ArrowShuffle]:
    return use_executors(monkeypatch)


def created(rows: pa.Table = STORED, **declared: Any) -> Table:
    """Return a table with rows in two files."""
    table = Table.create(f"memory://executors/{next(NUMBERS)}", name="t", record_key="id", **declared)
    table.bulk_insert(rows.slice(0, 15))
    table.bulk_insert(rows.slice(15))
    return table


def stored(table: Table) -> dict[str, tuple[int, int]]:
    """Return the stored rows by key."""
    rows = table.scan(columns=["id", "v", "w"]).to_arrow().to_pydict()
    return {key: (v, w) for key, v, w in zip(*rows.values(), strict=True)}


def test_pieces_hold_the_rows_of_their_shards_in_order() -> None:
    rows = pa.table({"n": range(10_000)})
    shards = np.arange(10_000) % 100
    batches = [*pieces_of(rows, shards, 1), report_piece("not a row")]
    assert max(batch.num_rows for batch in batches) <= 64
    decoded: dict[int, list[int]] = {}
    for shard, pieces in shards_of(batches[:-1]):
        decoded[shard] = [n for side, table in pieces for n in table.column("n").to_pylist() if side == 1]
    assert decoded == {shard: list(range(shard, 10_000, 100)) for shard in range(100)}
    assert list(pieces_of(rows.slice(0, 0), shards[:0], 1)) == []


@pytest.mark.parametrize("budget", ["536870912", "60000"])
def test_shard_above_its_part_of_the_budget_is_divided_in_local_files(
    budget: str, shuffles: list[ArrowShuffle], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.arange(4_000)
    rows = pa.table({"id": [f"k{number}" for number in numbers], "v": numbers, "w": np.zeros(4_000, np.int64)})
    table, divided = created(rows), list[object]()
    original = statement_tasks.JoinTask._divided

    def observed(*arguments: Any) -> Any:
        divided.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(statement_tasks.JoinTask, "_divided", observed)
    # All rows of both sides are in one shard.
    monkeypatch.setattr(statement_tasks, "SHARDS", 1)
    (
        table.merge(rows.slice(1_000), "source.id = target.id")
        .when_matched_delete("source.v = 3000")
        .when_matched_update({"v": "target.v + source.v"})
        .when_not_matched_by_source_update({"w": "9"}, "target.v >= 500")
        .execute(options={"lakehouse.write.memory.budget": budget})
    )
    assert bool(divided) == (budget == "60000")
    expected = {f"k{number}": (number, 0 if number < 500 else 9) for number in range(1_000)}
    expected |= {f"k{number}": (2 * number, 0) for number in range(1_000, 4_000) if number != 3_000}
    assert stored(table) == expected


def test_source_with_one_value_above_the_budget_is_refused(shuffles: list[ArrowShuffle]) -> None:
    table = created()
    same = pa.table({"id": ["k1"] * 500, "v": pa.array(range(500)), "w": pa.array([1] * 500)})
    with pytest.raises(UserError, match="too few distinct values in the columns that `on` compares"):
        table.merge(same, ["id"]).when_matched_update_all("source.v = 1").execute(
            options={"lakehouse.write.memory.budget": "2000"}
        )
    assert stored(table)["k1"] == (1, 0)


@pytest.mark.parametrize(("on", "steps"), [(["id"], ["JoinTask"]), (["id", "v"], ["JoinTask", "KeyTask"])])
def test_keys_are_compared_again_only_if_a_shard_does_not_show_all_rows_of_a_key(
    on: list[str], steps: list[str], shuffles: list[ArrowShuffle]
) -> None:
    table = created()
    source = pa.table({"id": ["k1"], "v": pa.array([1]), "w": pa.array([5])})
    table.merge(source, on).when_matched_update({"w": "source.w"}).execute()
    assert shuffles[-1].steps == steps
    assert stored(table)["k1"] == (1, 5)


def test_keys_of_several_rows_in_other_files_are_refused(shuffles: list[ArrowShuffle]) -> None:
    table = created()
    table.insert(STORED.slice(3, 1).set_column(1, "v", pa.array([300])))
    source = pa.table({"v": pa.array([3, 4, 300]), "id": ["n1", "n2", "k5"]})
    changes = (
        lambda: table.merge(source.slice(0, 1), ["v"]).when_matched_update({"w": "7"}).execute(),
        lambda: table.merge(source.slice(0, 1), ["v"]).when_matched_delete().execute(),
        lambda: table.update({"w": "7"}, "v = 300"),
        lambda: table.update({"w": "7"}),
        lambda: table.delete_where("v = 3"),
    )
    for change in changes:
        with pytest.raises(UserError, match=r"several rows have the key {'id': 'k3'}"):
            change()
    table.merge(source.slice(1, 1), ["v"]).when_matched_update({"w": "7"}).execute()
    assert stored(table)["k4"] == (4, 7)
    table.delete_where("id = 'k3'")
    assert "k3" not in stored(table)


def test_inserted_keys_that_are_stored_or_repeated_in_other_shards_are_refused(shuffles: list[ArrowShuffle]) -> None:
    table = created()

    def insert(ids: list[str]) -> None:
        source = pa.table({"id": ids, "v": pa.array(range(1_000, 1_000 + len(ids)))})
        table.merge(source, ["v"]).when_not_matched_insert_all().execute()

    with pytest.raises(UserError, match=r"MERGE inserts the key {'id': 'k7'}, which is stored"):
        insert(["n1", "k7"])
    with pytest.raises(UserError, match=r"several rows of the source insert the key {'id': 'n1'}"):
        insert(["n1", "n2", "n1"])
    insert(["n1", "n2"])
    assert stored(table)["n2"] == (1_001, None)


def test_rows_that_were_computed_again_and_differ_are_not_committed(
    shuffles: list[ArrowShuffle], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created()
    monkeypatch.setattr(ArrowShuffle, "rows_read", lambda shuffle, frame: frame.num_rows - 1)
    with pytest.raises(RetryableError, match="changes 20 rows, but 19 were written"):
        table.merge(SOURCE, ["id"]).when_matched_update({"v": "0"}).execute()
    assert stored(table) == {f"k{number}": (number, 0) for number in range(40)}
    assert not table.timeline.where(pending=True)


def test_files_without_a_compared_value_are_not_read(
    shuffles: list[ArrowShuffle], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, read = created(), list[int]()
    original = ArrowShuffle.of_slices

    def observed(shuffle: ArrowShuffle, slices: Any, function: Any) -> pa.Table:
        read.append(len(slices))
        return original(shuffle, slices, function)

    monkeypatch.setattr(ArrowShuffle, "of_slices", observed)
    source = pa.table({"id": ["k30", "k31"], "v": pa.array([30, 31])})
    table.merge(source, "source.id = target.id AND source.v = target.v").when_matched_delete().execute()
    # All files may have the keys of the changed rows.
    assert read == [1, 2]
    assert len(stored(table)) == 38


def test_condition_without_equality_compares_each_file_with_all_rows_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = [created(), created()]
    source = SOURCE.slice(25).set_column(1, "v", pa.array(range(25, 40)))

    def merge(table: Table, rows: pa.Table) -> None:
        builder = table.merge(
            rows, "source.v + 5 < target.v AND source.v + 12 >= target.v AND (source.v - target.v) % 7 = 0"
        )
        builder = builder.when_matched_update({"w": "source.v"}, "target.v < 39").when_matched_delete()
        builder = builder.when_not_matched_insert({"id": "source.id", "v": "-source.v"}, "source.v < 36")
        builder.when_not_matched_by_source_update({"v": "target.v + 100"}, "target.v < 5").execute()

    merge(tables[0], source)
    with monkeypatch.context() as context:
        shuffles = use_executors(context)
        merge(tables[1], source)
        assert shuffles[-1].steps == ["KeyTask"]
        with pytest.raises(UserError, match="rows of the source change the row with the key"):
            merge(created(), pa.concat_tables([source, source]))
    expected = stored(tables[0])
    # An updated, an inserted and an unmatched row; the row 39 was deleted.
    assert (expected["k32"], expected["k55"], expected["k4"]) == ((32, 25), (-35, None), (104, 0))
    assert "k39" not in expected
    assert stored(tables[1]) == expected


WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


@pytest.mark.parametrize(("column", "runs", "v"), [("w", 1, 100), ("v", 2, 101)])
def test_only_a_commit_that_changed_the_same_column_is_a_conflict(
    column: str, runs: int, v: int, shuffles: list[ArrowShuffle], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(options=WRITERS)
    other, original, attempts = Table.open(table.location, options=WRITERS), ExecutorRun._stored, list[int]()

    def stored_before_another_commit(run: ExecutorRun, *arguments: Any) -> Any:
        """Commit by another writer after the rows were read."""
        changes = original(run, *arguments)
        attempts.append(len(attempts))
        if len(attempts) == 1:
            other.update({column: "1" if column == "w" else "v + 1"}, "id = 'k0'")
            del attempts[1:]
        return changes

    monkeypatch.setattr(ExecutorRun, "_stored", stored_before_another_commit)
    source = pa.table({"id": ["k0"], "n": pa.array([100])})
    table.merge(source, ["id"]).when_matched_update({"v": "target.v + source.n"}).execute()
    assert len(attempts) == runs
    assert stored(table)["k0"] == (v, 1 if column == "w" else 0)


@pytest.mark.parametrize("kind", ["COW", "MOR"])
def test_rows_with_keys_that_have_no_order_are_changed(kind: str, shuffles: list[ArrowShuffle]) -> None:
    table = Table.create(f"memory://executors/{next(NUMBERS)}", name="t", record_key="x", table_type=kind)
    keys = [float("nan"), -1.5, 2.5]
    table.upsert(pa.table({"x": keys, "v": [1, 2, 3]}))
    table.update({"v": "v + 10"}, "v < 3")
    table.merge(pa.table({"x": keys[1:], "v": [2, 3]}), ["x"]).when_matched_update({"v": "source.v * 100"}).execute()
    rows = table.scan(columns=["x", "v"]).to_arrow()
    assert sorted(rows.column("v").to_pylist()) == [11, 200, 300]
