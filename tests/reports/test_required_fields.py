"""Structs with required fields in columns that a batch lacks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr

from lakehouse.core.rows.casting import fill_required, writable
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import make_env

INNER = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string())])
VALUE: Mapping[str, Any] = {"x": 1, "y": "a"}
LEAVES: Mapping[pa.DataType, Any] = {
    pa.string(): "s",
    pa.bool_(): True,
    pa.decimal128(9, 2): Decimal("1.50"),
    pa.date32(): date(2026, 1, 31),
    pa.binary(): b"b",
    pa.timestamp("us", "UTC"): datetime(2026, 1, 31, tzinfo=UTC),
    pa.list_(pa.int64()): [1],
    pa.map_(pa.string(), pa.int64()): [("k", 1)],
}
#: By name, a type with required fields and a value of it.
TYPES: Mapping[str, tuple[pa.DataType, Any]] = {
    "struct": (INNER, VALUE),
    "struct in struct": (pa.struct([pa.field("in", INNER, nullable=False)]), {"in": VALUE}),
    "list": (pa.list_(INNER), [VALUE, None]),
    "list of required": (pa.list_(pa.field("element", INNER, nullable=False)), [VALUE]),
    "map": (pa.map_(pa.string(), INNER), [("k", VALUE), ("l", None)]),
    "all types": (
        pa.struct([pa.field(f"f{kind.id}", kind, nullable=False) for kind in LEAVES]),
        {f"f{kind.id}": value for kind, value in LEAVES.items()},
    ),
}


def created(kind: str, location: str | None = None, **declared: Any) -> Table:
    """Return a new table, in memory by default; services run without waiting for more commits."""
    env = make_env(location)
    return Table.create(
        env.storage.root,
        name="t",
        record_key="id",
        table_type=kind,
        cdc="DATA_BEFORE_AFTER",
        env=env,
        **declared,
        options={"hoodie.compact.inline.max.delta.commits": "1", "hoodie.clustering.async.max.commits": "1"},
    )


def stored(table: Table) -> dict[str, tuple[int | None, Any]]:
    """Return the columns `n` and `s` of each key."""
    rows = table.scan(["id", "n", "s"]).to_arrow().to_pylist()
    return {row["id"]: (row["n"], row["s"]) for row in rows}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("name", TYPES)
def test_writes_without_a_column_of_required_fields_give_new_rows_null(name: str, kind: str) -> None:
    """apache/arrow#37202, apache/hudi#10483: a null struct is legal, whatever its fields require."""
    type_, value = TYPES[name]
    table = created(kind)
    table.upsert(pa.table({"id": ["a", "b"], "n": [1, 2], "s": pa.array([value, None], type_)}))

    table.upsert(pa.table({"id": ["a", "c"], "n": [3, 4]}))
    table.insert(pa.table({"id": ["d"], "n": [5]}))
    table.bulk_insert(pa.table({"id": ["e"], "n": [6]}))
    expected = {"a": (3, value), "b": (2, None), "c": (4, None), "d": (5, None), "e": (6, None)}
    assert stored(table) == expected

    if kind == "MERGE_ON_READ":
        assert table.services.compaction.run()
        assert stored(table) == expected
    assert table.services.clustering.run()
    assert stored(table) == expected
    table.upsert(pa.table({"id": ["b", "f"], "n": [7, 8], "s": pa.array([value, None], type_)}))
    assert stored(table) == {**expected, "b": (7, value), "f": (8, None)}
    table.with_options({"lakehouse.schema.missing.column": "null"}).insert_overwrite(pa.table({"id": ["g"], "n": [9]}))
    assert stored(table) == {"g": (9, None)}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_new_column_with_required_fields_is_null_in_stored_rows(kind: str) -> None:
    """apache/hudi#19654, apache/hudi#10483: a column that is added to a table with rows."""
    table = created(kind)
    table.upsert(pa.table({"id": ["a", "b"], "n": [1, 2]}))
    table.upsert(pa.table({"id": ["a"], "n": [3], "s": pa.array([VALUE], INNER)}))
    table.upsert(pa.table({"id": ["b"], "n": [4]}))
    if kind == "MERGE_ON_READ":
        assert table.services.compaction.run()
    assert stored(table) == {"a": (3, VALUE), "b": (4, None)}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("name", ["struct", "list", "map"])
def test_structs_that_lack_a_required_field_make_it_optional(name: str, kind: str) -> None:
    """apache/hudi#6321: later batches lack fields of structs, also inside of lists and maps."""
    type_, value = TYPES[name]
    short = {"y": "b"}
    narrow = pa.struct([("y", pa.string())])
    batches = {
        "struct": (narrow, short, {"x": None, "y": "b"}),
        "list": (pa.list_(narrow), [short], [{"x": None, "y": "b"}]),
        "map": (pa.map_(pa.string(), narrow), [("k", short)], [("k", {"x": None, "y": "b"})]),
    }
    kind_, given, expected = batches[name]
    table = created(kind)
    table.upsert(pa.table({"id": ["a", "b"], "n": [1, 2], "s": pa.array([value, value], type_)}))
    table.upsert(pa.table({"id": ["a", "c"], "n": [3, 4], "s": pa.array([given, given], kind_)}))
    table.upsert(pa.table({"id": ["d"], "n": [5], "s": pa.array([value], type_)}))
    if kind == "MERGE_ON_READ":
        assert table.services.compaction.run()
    assert stored(table) == {"a": (3, expected), "b": (2, value), "c": (4, expected), "d": (5, value)}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_conditions_on_required_fields_of_null_structs_find_null(kind: str) -> None:
    """apache/arrow#37202: the content that a null struct gets for the writer is in no result and no statistics."""
    table = created(kind, partition_by="p")
    table.upsert(pa.table({"id": ["a", "b"], "p": ["1", "1"], "s": pa.array([{"x": 5, "y": "a"}] * 2, INNER)}))
    table.upsert(pa.table({"id": ["c"], "p": ["2"]}))
    table.upsert(pa.table({"id": ["a", "d"], "p": ["2", "1"]}))
    found = {
        where: sorted(table.scan(["id"], where).to_arrow().column("id").to_pylist())
        for where in ("s.x IS NULL", "s.x IS NOT NULL", "s.x = 0", "s.x < 5", "s IS NULL")
    }
    nulls = ["a", "c", "d"]
    assert found == {
        "s.x IS NULL": nulls,
        "s.x IS NOT NULL": ["a", "b"],
        "s.x = 0": [],
        "s.x < 5": [],
        "s IS NULL": nulls,
    }
    assert not table.validate(deep=True).findings


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_partial_updates_keep_a_struct_with_required_fields(kind: str) -> None:
    """apache/hudi#10483: null in the newer version takes the stored value."""
    table = created(kind, partial_update="IGNORE_DEFAULTS")
    table.upsert(pa.table({"id": ["a", "b"], "n": [1, 2], "s": pa.array([VALUE, None], INNER)}))
    table.upsert(pa.table({"id": ["a", "b", "c"], "n": [3, 4, 5], "s": pa.array([None] * 3, INNER)}))
    table.upsert(pa.table({"id": ["a", "a", "d"], "n": [None, 6, 7], "s": pa.array([None, None, VALUE], INNER)}))
    if kind == "MERGE_ON_READ":
        assert table.services.compaction.run()
    assert stored(table) == {"a": (6, VALUE), "b": (4, None), "c": (5, None), "d": (7, VALUE)}


def test_a_batch_with_null_in_a_required_field_is_refused_with_the_field() -> None:
    """apache/arrow#37202: such an array is invalid, and Arrow does not check it."""
    invalid = pa.StructArray.from_arrays([pa.array([None], pa.int64()), pa.array(["a"])], fields=list(INNER))
    table = created("COPY_ON_WRITE")
    with pytest.raises(UserError, match=r"column 's\.x' must not be null, but 1 of 1 values are"):
        table.upsert(pa.table({"id": ["a"], "s": invalid}))
    assert not list(table.timeline)


def test_filled_arrays_keep_values_and_offsets_of_slices() -> None:
    """apache/arrow#37202: the content of null structs changes, and nothing else."""
    kind = pa.list_(INNER)
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, None, 3, None], pa.int64()), pa.array(["a", None, None, "d"])],
        fields=list(INNER),
        mask=pa.array([False, True, False, True]),
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, None, 2, 4], pa.int32()), hidden, type=kind)
    for array in (hidden, hidden[1:], lists, lists[1:3], lists[:0]):
        filled = fill_required(array, "s")
        assert filled.to_pylist() == array.to_pylist()
        filled.validate(full=True)
    filled = writable(pa.table({"s": lists[1:]}), pa.schema([("s", kind)]))
    assert pc_nulls(filled) == 0


def pc_nulls(rows: pa.Table) -> int:
    """Return the number of nulls in the required field of the lists' structs."""
    return sum(chunk.flatten().field(0).null_count for chunk in rows.column("s").chunks)


@pytest.mark.spark
def test_spark_writes_named_structs_and_batches_without_them(spark: SparkSession, tmp_path: Path) -> None:
    """apache/hudi#10483: `named_struct` of literals has required fields in Spark."""
    table = created("MERGE_ON_READ", str(tmp_path / "t"))
    frame = spark.range(2).select(
        col("id").cast("string").alias("id"),
        expr("1L n"),
        expr("named_struct('x', id, 'y', 'a')").alias("s"),
    )
    table.upsert(frame)
    table.upsert(spark.range(1, 3).select(col("id").cast("string").alias("id"), expr("2L n")))
    table.bulk_insert(spark.range(3, 4).select(col("id").cast("string").alias("id"), expr("3L n")))
    expected = {"0": (1, {"x": 0, "y": "a"}), "1": (2, {"x": 1, "y": "a"}), "2": (2, None), "3": (3, None)}
    assert stored(table) == expected
    read = table.scan(["id", "n", "s"]).to_spark(spark).collect()
    assert {row["id"]: (row["n"], row["s"] and row["s"].asDict()) for row in read} == expected
