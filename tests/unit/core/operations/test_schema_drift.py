"""Batches whose columns or types differ from those of the table: refused, or counted in the commit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.planning import schema as schema_module
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import data_rows, make_env

LARGE = 2**53 + 1


def make(
    schema: dict[str, pa.DataType], *, record_key: str = "order_id", table_type: str = "COPY_ON_WRITE", **declared: Any
) -> Table:
    env = make_env()
    return Table.create(
        env.storage.root,
        name="orders",
        record_key=[record_key],
        schema=pa.schema(list(schema.items())),
        table_type=table_type,
        env=env,
        **declared,
    )


def drift_of(outcome: object) -> dict[str, tuple[str, int]]:
    assert isinstance(outcome, Committed)
    return {one.column: (str(one.change), one.rows) for one in outcome.drift}


def refused(table: Table, rows: pa.Table, message: str, **options: str) -> None:
    before = data_rows(table)
    with pytest.raises(UserError, match=message):
        table.upsert(rows, options={key.replace("_", "."): value for key, value in options.items()})
    assert data_rows(table) == before


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("allowed", ["promote", "any"])
def test_integer_record_key_refuses_floats_under_all_policies(table_type: str, allowed: str) -> None:
    table = make({"order_id": pa.int64(), "v": pa.string()}, table_type=table_type)
    table.upsert(pa.table({"order_id": [1, 2, 3], "v": ["a", "b", "c"]}))
    floats = pa.table({"order_id": pa.array([1.0, 2.0], pa.float64()), "v": ["x", "y"]})
    refused(
        table,
        floats,
        r"'order_id' is int64 .* double .* record key column.*Int64",
        lakehouse_schema_type_change=allowed,
    )
    table.upsert(pa.table({"order_id": pa.array([1, 4], pa.int32()), "v": ["x", "y"]}))
    assert [(row["order_id"], row["v"]) for row in data_rows(table)] == [
        (1, "x"),
        (2, "b"),
        (3, "c"),
        (4, "y"),
    ]


def test_string_record_key_refuses_floats_and_accepts_integers() -> None:
    table = make({"order_id": pa.string(), "v": pa.string()})
    table.upsert(pa.table({"order_id": ["1"], "v": ["a"]}))
    refused(table, pa.table({"order_id": [1.0], "v": ["x"]}), "record key column")
    table.upsert(pa.table({"order_id": [1], "v": ["x"]}))
    assert [row["v"] for row in data_rows(table)] == ["x"]


def test_timestamps_of_different_units_are_the_same_key() -> None:
    table = make({"at": pa.timestamp("us"), "v": pa.string()}, record_key="at")
    for unit, value, v in (("ms", 1_000, "a"), ("us", 1_000_000, "b"), ("ns", 1_000_000_000, "c"), ("s", 1, "d")):
        table.upsert(pa.table({"at": pa.array([value], pa.timestamp(unit)), "v": [v]}))
    assert [row["v"] for row in data_rows(table)] == ["d"]
    table.delete(pa.table({"at": pa.array([1_000], pa.timestamp("ms"))}))
    assert data_rows(table) == []


def test_delete_matches_keys_of_another_type() -> None:
    table = make({"order_id": pa.int64(), "v": pa.string()})
    table.upsert(pa.table({"order_id": [1, 2], "v": ["a", "b"]}))
    table.delete(pa.table({"order_id": [1.0]}))
    assert [row["order_id"] for row in data_rows(table)] == [2]
    with pytest.raises(UserError, match="'order_id' cannot be int64"):
        table.delete(pa.table({"order_id": [2.5]}))


def test_integer_partition_column_refuses_floats() -> None:
    table = make({"order_id": pa.int64(), "p": pa.int32()}, partition_by=["p"])
    table.upsert(pa.table({"order_id": [1], "p": pa.array([7], pa.int32())}))
    refused(table, pa.table({"order_id": [1], "p": [7.0]}), "'p' .* partition column")
    table.upsert(pa.table({"order_id": [1], "p": pa.array([7], pa.int64())}))
    assert table.partitions() == ("7",)


def test_ordering_column_refuses_text_and_doubles() -> None:
    table = make({"order_id": pa.int64(), "ts": pa.int64()}, ordering="ts")
    table.upsert(pa.table({"order_id": [1], "ts": [10]}))
    rows = pa.table({"order_id": [1], "ts": ["9"]})
    refused(table, rows, "'ts' .* ordering column.*'9' is greater than '10'", lakehouse_schema_type_change="any")
    doubles = pa.table({"order_id": [1], "ts": [11.0]})
    refused(table, doubles, "'ts' .* ordering column", lakehouse_schema_type_change="any")


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_long_column_changes_to_double_or_text_only_by_option(table_type: str) -> None:
    table = make({"order_id": pa.int64(), "n": pa.int64()}, table_type=table_type)
    table.upsert(pa.table({"order_id": [1, 2], "n": [LARGE, 5]}))
    doubles, texts = pa.table({"order_id": [2], "n": [0.5]}), pa.table({"order_id": [2], "n": ["n/a"]})
    refused(table, doubles, r"'n' is int64 .*lose digits.*lakehouse\.schema\.type\.change=lossy")
    refused(table, texts, r"'n' is int64 .*become text.*lakehouse\.schema\.type\.change=text")
    refused(table, doubles, "type.change=lossy", lakehouse_schema_type_change="text")
    refused(table, texts, "type.change=text", lakehouse_schema_type_change="lossy")
    outcome = table.upsert(texts, options={"lakehouse.schema.type.change": "text"})
    assert drift_of(outcome) == {"n": ("widened_to_text", 1)}
    assert [row["n"] for row in data_rows(table)] == [str(LARGE), "n/a"]


def test_lossless_promotion_is_applied_and_counted() -> None:
    table = make({"order_id": pa.int64(), "n": pa.int32(), "f": pa.float32()})
    table.upsert(pa.table({"order_id": [1], "n": pa.array([1], pa.int32()), "f": pa.array([0.5], pa.float32())}))
    outcome = table.upsert(pa.table({"order_id": [2, 3], "n": pa.array([0.5, 2.0]), "f": pa.array([0.1, 1.0])}))
    assert drift_of(outcome) == {"n": ("promoted", 2), "f": ("promoted", 2)}
    assert [(row["n"], row["f"]) for row in data_rows(table)] == [(1.0, 0.5), (0.5, 0.1), (2.0, 1.0)]


def test_double_column_accepts_only_exact_integers_by_default() -> None:
    table = make({"order_id": pa.int64(), "f": pa.float64()})
    table.upsert(pa.table({"order_id": [1], "f": [0.5]}))
    assert drift_of(table.upsert(pa.table({"order_id": [2], "f": [7]}))) == {}
    large = pa.table({"order_id": [3], "f": [LARGE]})
    refused(table, large, "column 'f' cannot be double")
    table.upsert(large, options={"lakehouse.schema.type.change": "lossy"})
    assert [row["f"] for row in data_rows(table)] == [0.5, 7.0, float(LARGE)]


def test_new_columns_are_added_or_counted_as_ignored() -> None:
    table = make({"order_id": pa.int64()})
    table.upsert(pa.table({"order_id": [1]}))
    rows = pa.table({"order_id": [2, 3], "v": ["a", "b"]})
    refused(table, rows, "'v' of the data is not in the table", lakehouse_schema_new_column="fail")
    assert drift_of(table.upsert(rows, options={"lakehouse.schema.new.column": "ignore"})) == {"v": ("ignored", 2)}
    assert table.schema.names == ["order_id"]
    assert drift_of(table.upsert(rows)) == {"v": ("added", 2)}
    assert [row["v"] for row in data_rows(table)] == [None, "a", "b"]


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_validation_compares_stored_keys_with_their_columns(monkeypatch: pytest.MonkeyPatch, table_type: str) -> None:
    table = make({"order_id": pa.int64(), "p": pa.int32()}, table_type=table_type, partition_by=["p"])
    table.upsert(pa.table({"order_id": [1, 2], "p": pa.array([7, 8], pa.int32())}))
    assert [finding.invariant for finding in table.validate(deep=True).findings] == []
    # Simulate a writer that changes the type of a key column.
    monkeypatch.setattr(schema_module._Merge, "_check_fixed", lambda *_: None)
    floats = pa.table({"order_id": [1.0, 2.0], "p": [7.0, 8.0]})
    table.upsert(floats, options={"lakehouse.schema.type.change": "any"})
    found = [f for f in table.validate(deep=True).findings if f.invariant == "file.key_values"]
    assert any("'1' is stored, the columns produce '1.0'" in finding.problem for finding in found)
    assert any("partition path" in finding.problem for finding in found)
