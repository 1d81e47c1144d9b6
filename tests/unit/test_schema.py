"""What a batch may change in a table's schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.errors import UserError
from lakehouse.plan.schema import normalise, plan_schema
from lakehouse.spec.options import SchemaPolicy

TABLE = pa.schema([("id", pa.string()), ("n", pa.int32())])
STRICT, FILLING = SchemaPolicy(), SchemaPolicy(fill_missing_columns=True)


def test_a_new_column_goes_to_the_end_and_is_nullable() -> None:
    batch = pa.schema([pa.field("fresh", pa.int64(), nullable=False), ("n", pa.int32()), ("id", pa.string())])
    planned = plan_schema(TABLE, batch, STRICT)
    assert planned.names == ["id", "n", "fresh"]
    assert planned.field("fresh").nullable


def test_a_missing_column_is_refused_or_filled_as_the_policy_says() -> None:
    batch = pa.schema([("id", pa.string()), ("m", pa.int32())])
    with pytest.raises(UserError, match=r"'n' of the table is not in the data\..*null.for.missing.columns=true"):
        plan_schema(TABLE, batch, STRICT)
    assert plan_schema(TABLE, batch, FILLING).names == ["id", "n", "m"]


def test_a_column_that_must_not_be_null_is_never_filled() -> None:
    table = pa.schema([("id", pa.string()), pa.field("n", pa.int32(), nullable=False)])
    with pytest.raises(UserError, match="'n' of the table"):
        plan_schema(table, pa.schema([("id", pa.string())]), FILLING)


def test_a_required_column_is_named_with_its_nearest() -> None:
    with pytest.raises(UserError, match=r"'order_id' is not in the data\. Did you mean 'orderid'"):
        plan_schema(None, pa.schema([("orderid", pa.string())]), STRICT, required=("order_id",))
    planned = plan_schema(None, pa.schema([("a", pa.struct([("b", pa.int32())]))]), STRICT, required=("a.b",))
    assert planned.names == ["a"]


def test_names_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(UserError, match="'Id' and 'iD'"):
        plan_schema(None, pa.schema([("Id", pa.string()), ("iD", pa.string())]), STRICT)


def test_a_column_without_type_is_refused() -> None:
    with pytest.raises(UserError, match="'x' has no type"):
        plan_schema(None, pa.schema([("x", pa.null())]), STRICT)
    with pytest.raises(UserError, match=r"'x\.y' has no type"):
        plan_schema(None, pa.schema([("x", pa.struct([("y", pa.null())]))]), STRICT)


def test_meta_columns_of_a_batch_are_not_data() -> None:
    batch = pa.schema([("_hoodie_commit_time", pa.string()), ("id", pa.string()), ("n", pa.int32())])
    assert plan_schema(TABLE, batch, STRICT).equals(TABLE)


def test_fields_are_added_inside_structs_of_lists_and_maps() -> None:
    def nested(*fields: tuple[str, pa.DataType]) -> pa.Schema:
        inner = pa.struct([*fields])
        return normalise(pa.schema([("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner)), ("s", inner)]))

    planned = plan_schema(nested(("a", pa.int32())), nested(("b", pa.string()), ("a", pa.int64())), STRICT)
    assert planned.equals(nested(("a", pa.int64()), ("b", pa.string())))


def test_inside_a_column_values_may_become_optional_but_a_column_itself_not() -> None:
    strict = pa.schema([pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)])
    loose = normalise(pa.schema([("l", pa.list_(pa.int32()))]))
    planned = plan_schema(strict, loose, STRICT)
    assert planned.field("l").type.value_field.nullable
    assert not planned.field("l").nullable


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.int8(), pa.int32()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.large_list(pa.int8()), pa.list_(pa.field("element", pa.int32()))),
    ],
)
def test_types_are_stored_as_hudi_has_them(given: pa.DataType, stored: pa.DataType) -> None:
    assert normalise(pa.schema([("x", given)])).field("x").type == stored
