"""Columns of lists inside of lists without a value in a batch: Spark's Arrow batches lack offsets of such lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.rows.list_offsets import with_offsets
from lakehouse.core.table.table import Table

NO_TEXTS = pa.Array.from_buffers(pa.list_(pa.string()), 0, [None, None], children=[pa.array([], pa.string())])
ZEROS = pa.py_buffer(b"\0" * 12)


def lists(values: pa.Array) -> pa.Array:
    """Return two lists that are null."""
    kind = pa.list_(values.type)
    return pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\0"), ZEROS], null_count=2, children=[values])


def maps(length: int, offsets: pa.Buffer | None) -> pa.Array:
    """Return empty maps to lists of strings."""
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", NO_TEXTS.type)]
    entries = pa.StructArray.from_arrays([pa.array([], pa.string()), NO_TEXTS], fields=fields)
    return pa.Array.from_buffers(pa.map_(pa.string(), NO_TEXTS.type), length, [None, offsets], children=[entries])


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (lists(NO_TEXTS), [None, None]),
        (lists(maps(0, None)), [None, None]),
        (maps(2, ZEROS), [[], []]),
        (
            pa.StructArray.from_arrays([lists(NO_TEXTS), pa.array([1, 2])], ["a", "n"]),
            [{"a": None, "n": 1}, {"a": None, "n": 2}],
        ),
    ],
    ids=["list", "list of maps", "map", "struct"],
)
def test_batch_gets_the_offsets_that_it_lacks(column: pa.Array, values: list[Any]) -> None:
    """apache/arrow-java#967: `nbytes` and other kernels of Arrow end the process for such arrays."""
    given = pa.RecordBatch.from_arrays([column, pa.array([1, 2])], names=["a", "n"])
    (batch,) = with_offsets([given])
    batch.validate(full=True)
    assert batch.nbytes > 0 and batch.schema == given.schema
    assert batch.take(pa.array([1, 0])).column("n").to_pylist() == [2, 1]
    assert batch.column("a").to_pylist() == values


def test_complete_batches_are_not_copied() -> None:
    """apache/arrow-java#967."""
    given = pa.RecordBatch.from_pydict({"a": [[[1]], None], "s": [{"m": [1]}, None]})
    assert next(with_offsets([given])) is given


@pytest.mark.spark
def test_rows_without_nested_lists_are_written_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """apache/spark#53822: the worker crashed, and the message was that its host has too little memory."""
    columns = "id string, a array<array<string>>, s struct<m: map<string, array<int>>>, l array<struct<x: array<int>>>"
    rows = [(str(number), None, None, None) for number in range(3)]
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"])
    table.upsert(spark.createDataFrame(rows, columns))
    table.upsert(spark.createDataFrame([("0", [["x"], []], ({"k": [1]},), [([2],)]), ("9", [], ({},), [])], columns))
    found = table.scan(columns=["id", "a", "s", "l"]).to_arrow().sort_by("id").to_pylist()
    assert found[0] == {"id": "0", "a": [["x"], []], "s": {"m": [("k", [1])]}, "l": [{"x": [2]}]}
    assert found[3] == {"id": "9", "a": [], "s": {"m": []}, "l": []}
    assert [row["a"] for row in found[1:3]] == [None, None]
