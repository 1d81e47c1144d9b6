"""Schema evolution: no column is lost, a promoted type does not depend on the order, and promotion keeps values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.base.base_reader import convert
from lakehouse.core.format.avro.schema import arrow_to_avro, avro_to_arrow
from lakehouse.core.planning.schema import normalise, plan_schema
from lakehouse.errors import UserError
from lakehouse.spec.options.schema import SchemaPolicy
from tests.support.tables import examples

STRICT, FILLING = SchemaPolicy(), SchemaPolicy(fill_missing_columns=True)
ANY = SchemaPolicy(type_change="any")
flat = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("ns"),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.decimal128(10, 2),
        pa.decimal128(20, 4),
        pa.dictionary(pa.int8(), pa.string()),
    ]
)
types = st.recursive(
    flat,
    lambda inner: st.one_of(
        st.builds(lambda kind, nullable: pa.list_(pa.field("item", kind, nullable)), inner, st.booleans()),
        st.builds(lambda kind: pa.map_(pa.string(), kind), inner),
        st.builds(lambda a, b: pa.struct([pa.field("a", a), pa.field("b", b)]), inner, inner),
    ),
    max_leaves=4,
)
schemas = st.dictionaries(st.sampled_from("abcdef"), types, min_size=1).map(lambda d: pa.schema(list(d.items())))
numbers = [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()]


@examples(60)
@given(schema=schemas)
def test_normalise_is_idempotent_and_its_types_round_trip_through_avro(schema: pa.Schema) -> None:
    stored = normalise(schema)
    assert normalise(stored).equals(stored)
    assert avro_to_arrow(arrow_to_avro(stored, table="t")).equals(stored)


@examples(60)
@given(schema=schemas)
def test_schema_plan_takes_the_first_batch_and_does_not_change_for_an_equal_batch(schema: pa.Schema) -> None:
    first = plan_schema(None, schema, STRICT)
    assert first.names == schema.names
    assert all(field.nullable for field in first)
    assert plan_schema(first, schema, STRICT).equals(first)


@examples(60)
@given(table=schemas, batch=schemas)
def test_schema_plan_keeps_all_columns_and_is_idempotent(table: pa.Schema, batch: pa.Schema) -> None:
    stored = plan_schema(None, table, STRICT)
    try:
        evolved = plan_schema(stored, batch, FILLING)
    except UserError as error:
        assert error.facts["column"].split(".")[0] in table.names
        return
    assert evolved.names == [*stored.names, *(name for name in batch.names if name not in stored.names)]
    assert plan_schema(evolved, batch, FILLING).equals(evolved)
    assert plan_schema(evolved, table, FILLING).equals(evolved)


@pytest.mark.parametrize("narrow", range(len(numbers)))
@pytest.mark.parametrize("wide", range(len(numbers)))
def test_schema_plan_promotes_numbers_to_the_wider_type(narrow: int, wide: int) -> None:
    table, batch = pa.schema([("x", numbers[narrow])]), pa.schema([("x", numbers[wide])])
    assert plan_schema(table, batch, ANY).field("x").type == numbers[max(narrow, wide)]


@pytest.mark.parametrize(
    ("table", "batch"),
    [
        (pa.bool_(), pa.int32()),
        (pa.int32(), pa.bool_()),
        (pa.date32(), pa.int32()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.date32()),
        (pa.timestamp("us"), pa.string()),
        (pa.decimal128(10, 2), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(10, 4)),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.list_(pa.int32()), pa.list_(pa.bool_())),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.bool_())])),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.date32())),
    ],
)
def test_schema_plan_refuses_other_type_changes_and_names_the_column(table: pa.DataType, batch: pa.DataType) -> None:
    with pytest.raises(UserError, match="'x"):
        plan_schema(pa.schema([("x", table)]), normalise(pa.schema([("x", batch)])), ANY)


def java(value: Any) -> str:
    """Return the text that Java prints for a number of moderate size."""
    return repr(value)


@examples(40)
@given(values=st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=8))
def test_convert_keeps_integers_as_long_double_and_string(values: list[int | None]) -> None:
    stored = pa.chunked_array([pa.array(values, pa.int32())])
    assert convert(stored, pa.int64()).to_pylist() == values
    assert convert(stored, pa.float64()).to_pylist() == values
    assert convert(stored, pa.string()).to_pylist() == [None if v is None else str(v) for v in values]


@examples(40)
@given(value=st.integers(-(2**63), 2**63 - 1))
def test_convert_gives_the_nearest_double_of_a_long(value: int) -> None:
    assert convert(pa.chunked_array([[value]]), pa.float64()).to_pylist() == [float(value)]


@examples(40)
@given(value=st.floats(0.001, 9_999_999, exclude_max=True))
def test_convert_gives_the_string_that_java_prints_for_a_double(value: float) -> None:
    assert convert(pa.chunked_array([[value]]), pa.string()).to_pylist() == [java(value)]


@examples(40)
@given(
    values=st.lists(
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "a": st.one_of(st.none(), st.integers(-5, 5)),
                    "tags": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=3)),
                    "by": st.one_of(
                        st.none(), st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 5)), max_size=2)
                    ),
                }
            ),
        ),
        max_size=8,
    ),
    start=st.integers(0, 4),
)
def test_convert_keeps_nested_values_with_promoted_and_added_fields(values: list[Any], start: int) -> None:
    old = pa.struct([("a", pa.int32()), ("tags", pa.list_(pa.int32())), ("by", pa.map_(pa.string(), pa.int32()))])
    new = pa.struct(
        [
            pa.field("fresh", pa.string()),
            pa.field("by", pa.map_(pa.string(), pa.int64())),
            pa.field("a", pa.string()),
            pa.field("tags", pa.list_(pa.field("element", pa.float64()))),
        ]
    )
    # A slice of an array has an offset, like rows from a larger batch.
    array = pa.array(values, old).slice(min(start, len(values)))
    found = convert(pa.chunked_array([array]), new).to_pylist()
    expected = [
        None
        if value is None
        else {
            "fresh": None,
            "by": value["by"],
            "a": None if value["a"] is None else str(value["a"]),
            "tags": value["tags"],
        }
        for value in values[start:]
    ]
    assert found == expected


def test_convert_keeps_dates_and_decimals_and_truncates_nanoseconds() -> None:
    day, money = dt.date(2026, 1, 31), Decimal("12.30")
    assert convert(pa.chunked_array([[day]]), pa.string()).to_pylist() == ["2026-01-31"]
    wide = convert(pa.chunked_array([pa.array([money], pa.decimal128(10, 2))]), pa.decimal128(20, 4))
    assert wide.to_pylist() == [Decimal("12.3000")]
    nanos = pa.chunked_array([pa.array([1_999], pa.timestamp("ns"))])
    assert convert(nanos, pa.timestamp("us")).cast(pa.int64()).to_pylist() == [1]
