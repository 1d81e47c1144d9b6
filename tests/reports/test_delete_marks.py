"""Columns that mark rows as deletes, in batches that have them and batches that do not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.index_type import RECORD_MOVES, SIMPLE_MOVES
from tests.support.tables import DELETED, make_env

#: Options of each index; rows with global indexes move to the partition of their update.
INDEXES = {
    "SIMPLE": {},
    "GLOBAL_SIMPLE": {SIMPLE_MOVES: "true"},
    "RECORD_INDEX": {RECORD_MOVES: "true", "hoodie.metadata.record.index.enable": "true"},
    "BUCKET": {"hoodie.bucket.index.num.buckets": "2"},
}
KINDS = ["COPY_ON_WRITE", "MERGE_ON_READ"]
NULLS = {"lakehouse.schema.missing.column": "null"}


def created(kind: str, index: str = "SIMPLE", **declared: Any) -> Table:
    """Return a new table in memory with the rows a and b in partition x."""
    env = make_env()
    options = {"hoodie.index.type": index, **INDEXES[index]}
    table = Table.create(
        env.storage.root,
        name="t",
        record_key="id",
        partition_by="p",
        table_type=kind,
        options=options,
        env=env,
        **declared,
    )
    table.upsert(rows(a=("x", 1), b=("x", 2)))
    return table


def rows(**values: tuple[str, int]) -> pa.Table:
    """Return a batch of keys with their partition and value, without marks."""
    places, numbers = zip(*values.values(), strict=True)
    return pa.table({"id": [*values], "p": places, "n": numbers})


def marked(batch: pa.Table, *flags: bool | None) -> pa.Table:
    """Return the batch with delete marks."""
    return batch.append_column(DELETED, pa.array(flags, pa.bool_()))


def stored(table: Table) -> dict[str, tuple[str, int]]:
    """Return partition and value of each key."""
    found = table.scan(["id", "p", "n"]).to_arrow().to_pylist()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: (row["p"], row["n"]) for row in found}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", INDEXES)
def test_all_writes_accept_batches_without_marks_after_one_with_marks(index: str, kind: str) -> None:
    """apache/hudi#5385, apache/hudi#1482: a batch with deletes adds the column, and later batches lack it again."""
    table = created(kind, index)
    table.upsert(marked(rows(a=("x", 3), c=("x", 4)), True, False))
    assert stored(table) == {"b": ("x", 2), "c": ("x", 4)}

    outcome = table.upsert(rows(b=("x", 5), d=("x", 6)))
    assert outcome.drift == ()
    table.insert(rows(e=("x", 7)))
    table.bulk_insert(rows(f=("x", 8)))
    expected = {"b": ("x", 5), "c": ("x", 4), "d": ("x", 6), "e": ("x", 7), "f": ("x", 8)}
    assert stored(table) == expected
    if index in ("GLOBAL_SIMPLE", "RECORD_INDEX"):
        table.upsert(rows(b=("y", 9)))
        expected["b"] = ("y", 9)
        assert stored(table) == expected
    table.insert_overwrite(rows(g=("x", 10)))
    table.upsert(marked(rows(h=("z", 11), g=("x", 0)), False, True))
    assert {key: row for key, row in stored(table).items() if row[0] != "y"} == {"h": ("z", 11)}
    table.insert_overwrite_table(rows(i=("x", 12)))
    assert stored(table) == {"i": ("x", 12)}
    assert table.scan([DELETED]).to_arrow().to_pylist() == [{DELETED: False}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_required_mark_is_false_where_a_batch_lacks_it(kind: str) -> None:
    """apache/hudi#1482, apache/hudi#10483: the mark is `boolean not null` in the schemas of the reporters."""
    env = make_env()
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), pa.field(DELETED, pa.bool_(), nullable=False)])
    table = Table.create(env.storage.root, name="t", record_key="id", table_type=kind, schema=schema, env=env)
    table.upsert(pa.table({"id": ["a", "b"], "n": [1, 2]}))
    table.upsert(marked(pa.table({"id": ["a", "b"], "n": [3, 4]}), True, None))
    assert table.scan(["id", "n", DELETED]).to_arrow().to_pylist() == [{"id": "b", "n": 4, DELETED: False}]


@pytest.mark.parametrize("declared", [{}, {"delete_field": "op", "delete_marker": "D"}], ids=["flag", "field"])
def test_marks_are_added_where_other_new_columns_are_ignored(declared: dict[str, str]) -> None:
    """apache/hudi#1482: an ignored mark would turn deletes into rows."""
    table = created("COPY_ON_WRITE", **declared).with_options({"lakehouse.schema.new.column": "ignore"})
    batch = rows(a=("x", 3), c=("x", 4)).append_column("other", pa.array(["o", "o"]))
    if declared:
        batch = batch.append_column("op", pa.array(["D", "U"]))
    else:
        batch = marked(batch, True, False)
    table.upsert(batch)
    assert stored(table) == {"b": ("x", 2), "c": ("x", 4)}
    assert "other" not in table.schema.names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["GLOBAL_SIMPLE", "RECORD_INDEX"])
def test_a_refused_move_names_the_missing_columns_and_ways_out_that_work(index: str, kind: str) -> None:
    """apache/hudi#5385: the columns that a batch lacks decide, and the error names them."""
    table = created(kind, index)
    table.upsert(marked(rows(c=("x", 4)), False).append_column("v", pa.array(["v"])))
    with pytest.raises(UnsupportedError, match=r"1 stored rows would move .* the batch lacks v, whose stored values"):
        table.upsert(rows(c=("y", 5)))
    assert stored(table)["c"] == ("x", 4)

    table.upsert(rows(c=("y", 5)).append_column("v", pa.array(["w"])))
    assert stored(table)["c"] == ("y", 5)
    table.with_options(NULLS).upsert(rows(c=("x", 6)))
    assert stored(table)["c"] == ("x", 6)
    table.with_options({SIMPLE_MOVES: "false", RECORD_MOVES: "false"}).upsert(rows(c=("y", 7)))
    assert stored(table)["c"][1] == 7


def test_partition_key_and_ordering_columns_are_never_optional() -> None:
    """apache/hudi#5452: columns with a role have no value that an absent one could mean."""
    table = created("COPY_ON_WRITE", ordering="n")
    for name in ("id", "p", "n"):
        batch = rows(a=("x", 5)).drop_columns([name])
        for write in (table.upsert, table.insert, table.bulk_insert, table.insert_overwrite):
            with pytest.raises(UserError, match=f"column '{name}' is not in the data"):
                write(batch)
    assert stored(table) == {"a": ("x", 1), "b": ("x", 2)}


def test_meta_columns_of_a_batch_are_replaced_by_those_of_the_write() -> None:
    """apache/hudi#5385: rows that were read from a table are written to it again."""
    table = created("COPY_ON_WRITE")
    read = table.scan().to_arrow()
    assert "_hoodie_record_key" in read.column_names
    table.upsert(read.set_column(read.schema.get_field_index("_hoodie_record_key"), "_hoodie_record_key", [["q", "r"]]))
    assert stored(table) == {"a": ("x", 1), "b": ("x", 2)}
    assert sorted(table.scan(["_hoodie_record_key"]).to_arrow().column(0).to_pylist()) == ["a", "b"]


def test_a_stored_column_of_that_name_that_is_no_mark_is_kept_like_others() -> None:
    """apache/hudi#1482: tables of other writers may store the mark as text, which marks nothing."""
    env = make_env()
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), (DELETED, pa.string())])
    table = Table.create(env.storage.root, name="t", record_key="id", schema=schema, env=env)
    outcome = table.upsert(pa.table({"id": ["a"], "n": [1]}))
    assert [drift.column for drift in outcome.drift] == [DELETED]
    assert table.scan(["n", DELETED]).to_arrow().to_pylist() == [{"n": 1, DELETED: None}]
