"""Effects of each write method on files and commits; property tests check the effects on rows."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Action
from tests.support.tables import SCHEMA, Shape, batch, check_storage, data_rows, make_env, make_table, row


def written(outcome: Committed | NothingToDo) -> CommitMetadata:
    """Return the metadata of a committed write."""
    assert isinstance(outcome, Committed), outcome
    return outcome.metadata


def counts(outcome: Committed | NothingToDo) -> list[tuple[int, int, int]]:
    """Return inserts, updates and deletes per file."""
    return [(s.num_inserts, s.num_updates, s.num_deletes) for s in written(outcome).stats]


@pytest.mark.parametrize(
    ("verb", "action", "operation"),
    [
        ("upsert", Action.COMMIT, "UPSERT"),
        ("insert", Action.COMMIT, "INSERT"),
        ("bulk_insert", Action.COMMIT, "BULK_INSERT"),
        ("insert_overwrite", Action.REPLACECOMMIT, "INSERT_OVERWRITE"),
        ("insert_overwrite_table", Action.REPLACECOMMIT, "INSERT_OVERWRITE_TABLE"),
    ],
)
def test_write_method_commits_its_operation_and_action(verb: str, action: Action, operation: str) -> None:
    table = make_table()
    outcome = getattr(table, verb)(batch([row("k1"), row("k2", p="b")]), commit_metadata={"run": "7"})
    assert (outcome.instant.action, outcome.metadata.operation) == (action, operation)
    assert counts(outcome) == [(1, 0, 0), (1, 0, 0)] and outcome.rows == 2
    (stored,) = table.commits()
    assert stored[1].extra["run"] == "7" and '"name":"events_record"' in stored[1].extra["schema"]
    check_storage(table)


def test_upsert_counts_updates_deletes_and_inserts_separately() -> None:
    table = make_table(Shape(rows_per_file=10))
    table.upsert(batch(row(f"k{n}") for n in range(4)))
    rows = [row("k0", ts=2), row("k1", ts=0), row("k2", ts=2, _hoodie_is_deleted=True), row("k9")]
    outcome = table.upsert(batch(rows))
    assert counts(outcome) == [(1, 1, 1)]
    assert [r["id"] for r in data_rows(table, ["id"])] == ["k0", "k1", "k3", "k9"]


def test_delete_older_than_its_row_has_no_effect_by_event_time() -> None:
    for merge, left in (("event", 1), ("commit", 0)):
        table = make_table(Shape(merge=merge))
        table.upsert(batch([row("k1", ts=5)]))
        table.upsert(batch([row("k1", ts=4, _hoodie_is_deleted=True)]))
        assert table.scan().count() == left


def test_delete_by_key_ignores_ordering() -> None:
    table = make_table()
    table.upsert(batch([row("k1", ts=5), row("k1", p="b"), row("k2")]))
    assert counts(table.delete(batch([row("k1", p="b")]).select(["id", "p"]))) == [(0, 0, 1)]
    assert len(data_rows(table)) == 2
    assert counts(table.delete(["k1", "k2", "absent"])) == [(0, 0, 2)]
    assert data_rows(table) == []
    assert table.upsert(batch([row("k1")])).rows == 1
    check_storage(table)


@pytest.mark.parametrize("verb", ["upsert", "insert", "bulk_insert", "insert_overwrite"])
def test_write_of_no_rows_makes_no_commit(verb: str) -> None:
    table = make_table()
    table.upsert(batch([row("k1")]))
    outcome = getattr(table, verb)(batch([]))
    assert isinstance(outcome, NothingToDo) and "no rows" in outcome.reason
    assert len(table.commits()) == 1
    check_storage(table)


def test_insert_overwrite_table_with_no_rows_empties_the_table() -> None:
    for index in ("SIMPLE", "BUCKET"):
        table = make_table(Shape(index=index))
        table.upsert(batch([row("k1"), row("k2", p="b")]))
        outcome = table.insert_overwrite_table(batch([]))
        assert sorted(written(outcome).replaced) == ["a", "b"]
        assert (table.scan().count(), table.partitions()) == (0, ())
        assert isinstance(table.insert_overwrite_table(batch([])), NothingToDo)
        check_storage(table)


def test_insert_overwrite_replaces_only_partitions_of_its_rows() -> None:
    table = make_table()
    table.upsert(batch([row("k1"), row("k2", p="b"), row("k3", p="c")]))
    outcome = table.insert_overwrite(batch([row("k4", p="b"), row("k5", p="d")]))
    assert list(written(outcome).replaced) == ["b"]
    assert [(r["id"], r["p"]) for r in data_rows(table, ["id", "p"])] == [
        ("k1", "a"),
        ("k3", "c"),
        ("k4", "b"),
        ("k5", "d"),
    ]


def test_deleted_partition_contains_only_rows_inserted_later() -> None:
    table = make_table()
    table.upsert(batch([row("k1"), row("k2", p="b")]))
    outcome = table.delete_partitions(["/a/"])
    assert written(outcome).operation == "DELETE_PARTITION" and written(outcome).stats == ()
    assert table.partitions() == ("b",)
    table.upsert(batch([row("k3")]))
    assert [r["id"] for r in data_rows(table, ["id"])] == ["k2", "k3"]
    check_storage(table)


def test_inserts_fill_small_files_before_new_files() -> None:
    table = make_table(Shape(rows_per_file=4))
    first = {stat.file_id for stat in written(table.insert(batch(row(f"k{n:02d}") for n in range(6)))).stats}
    for number in range(3):
        metadata = written(table.insert(batch([row(f"n{number}")])))
        (stat,) = metadata.stats
        assert stat.file_id in first and stat.prev_commit is not None
    check_storage(table)


def test_small_files_are_not_filled_if_the_limit_is_zero() -> None:
    table = make_table(Shape(fills_small_files=False))
    for number in range(3):
        (stat,) = written(table.insert(batch([row(f"k{number}")]))).stats
        assert stat.prev_commit is None
    assert len({stat.file_id for _, metadata in table.commits() for stat in metadata.stats}) == 3


def test_commit_writes_at_most_one_small_file_per_partition() -> None:
    table = make_table(Shape(rows_per_file=5))
    metadata = written(table.upsert(batch(row(f"k{n:03d}", p="ab"[n % 2]) for n in range(34))))
    for partition in "ab":
        rows = sorted(stat.num_writes for stat in metadata.stats if stat.partition == partition)
        assert rows == [2, 5, 5, 5]
    check_storage(table)


def test_bulk_insert_starts_a_new_file_at_the_maximum_size() -> None:
    table = make_table(Shape(budget=40_000, options={"hoodie.parquet.max.file.size": "20000"}))
    rows = [row(f"k{n:05d}", p="ab"[n % 2], v=f"text {n * 7919 % 10007}" * 3) for n in range(6_000)]
    reader = pa.RecordBatchReader.from_batches(SCHEMA, batch(rows).to_batches(max_chunksize=500))
    metadata = written(table.bulk_insert(reader))
    for partition in "ab":
        sizes = [stat.size_bytes for stat in metadata.stats if stat.partition == partition]
        assert len(sizes) > 1
        assert max(sizes) < 100_000
    assert sorted(r["id"] for r in data_rows(table, ["id"])) == [r["id"] for r in rows]
    check_storage(table)


def test_first_batch_declares_the_schema() -> None:
    table = make_table(schema=None)
    table.upsert(batch([row("k1")]))
    assert table.schema.equals(SCHEMA)


def test_batch_columns_have_any_order_and_meta_columns_are_ignored() -> None:
    table = make_table()
    table.upsert(batch([row("k1", v="x")]))
    back = table.scan().to_arrow()
    table.upsert(back.select(back.column_names[::-1]))
    assert data_rows(table) == [row("k1", v="x")]
    assert table.schema.names == SCHEMA.names


def test_frame_may_be_a_table_a_batch_or_a_reader() -> None:
    table = make_table()
    rows = [batch([row(f"k{n}")]) for n in range(3)]
    frames: list[Any] = [rows[0], rows[1].to_batches()[0], rows[2].to_reader()]
    for frame in frames:
        table.upsert(frame)
    assert [r["id"] for r in data_rows(table, ["id"])] == ["k0", "k1", "k2"]


def test_options_of_a_call_apply_to_that_call_only() -> None:
    table = make_table(Shape(fills_small_files=True))
    table.insert(batch([row("k1")]))
    (apart,) = written(table.insert(batch([row("k2")]), options={"hoodie.parquet.small.file.limit": "0"})).stats
    (filled,) = written(table.insert(batch([row("k3")]))).stats
    assert (apart.prev_commit is None, filled.prev_commit is None) == (True, False)


def test_inserts_are_combined_by_option() -> None:
    rows = batch([row("k1", ts=1), row("k1", ts=2), row("k2")])
    for verb, index in itertools.product(("insert", "bulk_insert", "insert_overwrite"), ("SIMPLE", "BUCKET")):
        plain, combining = make_table(Shape(index=index)), make_table(Shape(index=index, combines_inserts=True))
        getattr(plain, verb)(rows)
        getattr(combining, verb)(rows)
        assert [r["ts"] for r in data_rows(plain, ["id", "ts"])] == [1, 2, 1], (verb, index)
        assert [r["ts"] for r in data_rows(combining, ["id", "ts"])] == [2, 1], (verb, index)


def test_new_key_is_inserted_if_another_key_of_the_batch_is_stored_twice() -> None:
    table = make_table(Shape(fills_small_files=False))
    table.insert(batch([row("k1", v="one")]))
    table.insert(batch([row("k1", v="two")]))
    table.upsert(batch([row("k1", v="both", ts=2), row("new")]))
    assert [(r["id"], r["v"]) for r in data_rows(table, ["id", "v"])] == [("k1", "both"), ("k1", "both"), ("new", None)]


def test_global_index_moves_a_row_or_updates_it_in_place() -> None:
    for moves, path in ((True, "b"), (False, "a")):
        table = make_table(Shape(index="GLOBAL_SIMPLE", moves=moves))
        table.upsert(batch([row("k1"), row("k2")]))
        table.upsert(batch([row("k1", p="b", ts=2)]))
        found = table.scan(["_hoodie_partition_path", "p"], where="id = 'k1'").to_arrow().to_pylist()
        assert found == [{"_hoodie_partition_path": path, "p": "b"}]
        assert table.scan(["id"], where="p = 'b'").to_arrow().to_pylist() == [{"id": "k1"}]
        check_storage(table)


def test_stored_form_of_single_field_complex_keys_is_kept() -> None:
    # Releases of Hudi differ: version 9 stores `id:k1`, version 8 mostly `k1`.
    for version, key in ((9, "id:k1"), (8, "k1")):
        table = make_table(Shape(keys="complex_single", version=version))
        table.upsert(batch([row("k1")]))
        table.upsert(batch([row("k1", ts=2)]))
        assert table.scan(["_hoodie_record_key"]).to_arrow().to_pylist() == [{"_hoodie_record_key": key}]


def test_several_table_objects_write_in_turn() -> None:
    env = make_env()
    first = make_table(env=env)
    second = Table.open(env.storage.root, env=env)
    first.upsert(batch([row("k1", v="first")]))
    second.upsert(batch([row("k1", v="second", ts=2), row("k2")]))
    first.upsert(batch([row("k2", v="third", ts=2)]))
    assert [r["v"] for r in data_rows(second, ["id", "v"])] == ["second", "third"]
