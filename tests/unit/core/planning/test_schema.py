"""Schema evolution: the changes that a batch may make to the schema of a table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.planning.schema import Role, evolve, normalise, plan_schema
from lakehouse.errors import UserError
from lakehouse.spec.options.schema import SchemaPolicy

TABLE = pa.schema([("id", pa.string()), ("n", pa.int32())])
STRICT, FILLING = SchemaPolicy(), SchemaPolicy(fill_missing_columns=True)


def test_new_column_is_appended_and_nullable() -> None:
    batch = pa.schema([pa.field("fresh", pa.int64(), nullable=False), ("n", pa.int32()), ("id", pa.string())])
    planned = plan_schema(TABLE, batch, STRICT)
    assert planned.names == ["id", "n", "fresh"]
    assert planned.field("fresh").nullable


def drift(batch: pa.Schema, policy: SchemaPolicy = STRICT, table: pa.Schema = TABLE) -> list[tuple[str, str]]:
    return [(one.column, str(one.change)) for one in evolve(table, normalise(batch), policy).drift]


def test_missing_column_is_kept_nulled_or_refused_by_policy() -> None:
    batch = pa.schema([("id", pa.string()), ("m", pa.int32())])
    assert plan_schema(TABLE, batch, STRICT).names == ["id", "n", "m"]
    assert drift(batch) == [("n", "kept"), ("m", "added")]
    for filling in (FILLING, SchemaPolicy(missing_column="null")):
        assert plan_schema(TABLE, batch, filling).names == ["id", "n", "m"]
        assert drift(batch, filling) == [("n", "nulled"), ("m", "added")]
    with pytest.raises(UserError, match=r"'n' of the table is not in the data\..*null.for.missing.columns=true"):
        plan_schema(TABLE, batch, SchemaPolicy(missing_column="fail"))


def test_new_column_is_added_ignored_or_refused_by_policy() -> None:
    batch = pa.schema([("id", pa.string()), ("n", pa.int32()), ("name", pa.string())])
    assert drift(batch) == [("name", "added")]
    ignoring = SchemaPolicy(new_column="ignore")
    assert plan_schema(TABLE, batch, ignoring).equals(TABLE)
    assert drift(batch, ignoring) == [("name", "ignored")]
    with pytest.raises(UserError, match=r"column 'name' of the data is not in the table.*new\.column=ignore"):
        plan_schema(TABLE, batch, SchemaPolicy(new_column="fail"))


def test_struct_fields_follow_the_column_policy_and_are_nulled_if_missing() -> None:
    table = pa.schema([("s", pa.struct([("a", pa.int32())]))])
    wider = pa.schema([("s", pa.struct([("a", pa.int32()), ("b", pa.string())]))])
    assert drift(wider, table=table) == [("s.b", "added")]
    assert drift(wider, SchemaPolicy(new_column="ignore"), table) == [("s.b", "ignored")]
    assert plan_schema(table, wider, SchemaPolicy(new_column="ignore")).equals(table)
    with pytest.raises(UserError, match=r"'s\.b' of the data is not in the table"):
        plan_schema(table, wider, SchemaPolicy(new_column="fail"))
    assert drift(table, FILLING, wider) == [("s.b", "nulled")]
    assert drift(table, STRICT, wider) == [("s.b", "nulled")]
    with pytest.raises(UserError, match=r"'s\.b' of the table is not in the data"):
        plan_schema(wider, table, SchemaPolicy(missing_column="fail"))


def test_new_column_that_differs_only_in_case_is_refused() -> None:
    with pytest.raises(UserError, match="'n' and 'N'"):
        plan_schema(TABLE, pa.schema([("id", pa.string()), ("n", pa.int32()), ("N", pa.int32())]), STRICT)
    with pytest.raises(UserError, match="'n' and 'N'"):
        plan_schema(TABLE, pa.schema([("id", pa.string()), ("N", pa.int32())]), STRICT)


EXACT, LOSSY, TEXT, ANY = (SchemaPolicy(type_change=kind) for kind in ("promote", "lossy", "text", "any"))
FIXED = SchemaPolicy(type_change="fail")


@pytest.mark.parametrize(
    ("narrow", "wide", "allowing", "change"),
    [
        (pa.int32(), pa.int64(), {EXACT, LOSSY, TEXT, ANY}, "promoted"),
        (pa.int32(), pa.float64(), {EXACT, LOSSY, TEXT, ANY}, "promoted"),
        (pa.float32(), pa.float64(), {EXACT, LOSSY, TEXT, ANY}, "promoted"),
        (pa.decimal128(10, 2), pa.decimal128(12, 3), {EXACT, LOSSY, TEXT, ANY}, "promoted"),
        (pa.int32(), pa.float32(), {LOSSY, ANY}, "rounded"),
        (pa.int64(), pa.float32(), {LOSSY, ANY}, "rounded"),
        (pa.int64(), pa.float64(), {LOSSY, ANY}, "rounded"),
        (pa.int64(), pa.string(), {TEXT, ANY}, "widened_to_text"),
        (pa.float64(), pa.string(), {TEXT, ANY}, "widened_to_text"),
        (pa.date32(), pa.string(), {TEXT, ANY}, "widened_to_text"),
    ],
)
def test_type_change_is_allowed_or_refused_by_policy(
    narrow: pa.DataType, wide: pa.DataType, allowing: set[SchemaPolicy], change: str
) -> None:
    table, batch = pa.schema([("x", narrow)]), pa.schema([("x", wide)])
    for policy in (EXACT, LOSSY, TEXT, ANY, FIXED):
        if policy in allowing:
            (one,) = evolve(table, batch, policy).drift
            assert (one.change, one.before, one.after) == (change, str(narrow), str(wide))
        else:
            with pytest.raises(
                UserError, match=r"column 'x' is .* in the table and .*lakehouse\.schema\.type\.change="
            ):
                evolve(table, batch, policy)
        # A batch with the narrower type does not change the table.
        back = evolve(batch, table, policy)
        assert (back.schema, back.drift) == (batch, ())


@pytest.mark.parametrize(
    ("narrow", "wide", "kept_by"),
    [
        (pa.int32(), pa.int64(), {Role.KEY, Role.PARTITION, Role.ORDERING}),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), {Role.KEY, Role.PARTITION, Role.ORDERING}),
        (pa.decimal128(10, 2), pa.decimal128(12, 3), {Role.ORDERING}),
        (pa.int32(), pa.float64(), {Role.ORDERING}),
        (pa.float32(), pa.float64(), {Role.ORDERING}),
        (pa.int64(), pa.float64(), set()),
        (pa.int64(), pa.string(), {Role.KEY, Role.PARTITION}),
        (pa.float64(), pa.string(), set()),
        (pa.date32(), pa.string(), {Role.KEY, Role.PARTITION}),
    ],
)
def test_key_partition_and_ordering_columns_allow_only_safe_type_changes(
    narrow: pa.DataType, wide: pa.DataType, kept_by: set[Role]
) -> None:
    table, batch = pa.schema([("x", narrow)]), pa.schema([("x", wide)])
    for role in Role:
        fixed = {"x": frozenset({role})}
        if role in kept_by:
            assert evolve(table, batch, ANY, fixed=fixed).schema.equals(batch)
        else:
            with pytest.raises(UserError, match=f"it is a {role} column"):
                evolve(table, batch, ANY, fixed=fixed)
    if pa.types.is_string(wide):
        # A number in a text column is stored as text.
        for role in (Role.ORDERING, *((Role.KEY,) if pa.types.is_floating(narrow) else ())):
            with pytest.raises(UserError, match=f"it is a {role} column"):
                evolve(batch, table, ANY, fixed={"x": frozenset({role})})


def test_contradicting_schema_options_are_refused() -> None:
    with pytest.raises(UserError, match=r"missing\.columns=true and lakehouse\.schema\.missing\.column=fail"):
        SchemaPolicy(fill_missing_columns=True, missing_column="fail")
    with pytest.raises(UserError, match=r"partial\.update=true and lakehouse\.schema\.missing\.column=null"):
        SchemaPolicy(partial_update=True, missing_column="null")
    assert SchemaPolicy(partial_update=True, fill_missing_columns=True).missing == "keep"


def test_missing_non_nullable_column_is_refused() -> None:
    table = pa.schema([("id", pa.string()), pa.field("n", pa.int32(), nullable=False)])
    with pytest.raises(UserError, match="'n' of the table"):
        plan_schema(table, pa.schema([("id", pa.string())]), FILLING)


def test_missing_required_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"'order_id' is not in the data\. Did you mean 'orderid'"):
        plan_schema(None, pa.schema([("orderid", pa.string())]), STRICT, required=("order_id",))
    planned = plan_schema(None, pa.schema([("a", pa.struct([("b", pa.int32())]))]), STRICT, required=("a.b",))
    assert planned.names == ["a"]


def test_column_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(UserError, match="'Id' and 'iD'"):
        plan_schema(None, pa.schema([("Id", pa.string()), ("iD", pa.string())]), STRICT)


def test_column_without_type_is_refused() -> None:
    with pytest.raises(UserError, match="'x' has no type"):
        plan_schema(None, pa.schema([("x", pa.null())]), STRICT)
    with pytest.raises(UserError, match=r"'x\.y' has no type"):
        plan_schema(None, pa.schema([("x", pa.struct([("y", pa.null())]))]), STRICT)


def test_meta_columns_of_a_batch_are_ignored() -> None:
    batch = pa.schema([("_hoodie_commit_time", pa.string()), ("id", pa.string()), ("n", pa.int32())])
    assert plan_schema(TABLE, batch, STRICT).equals(TABLE)


def test_fields_are_added_to_structs_in_lists_and_maps() -> None:
    def nested(*fields: tuple[str, pa.DataType]) -> pa.Schema:
        inner = pa.struct([*fields])
        return normalise(pa.schema([("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner)), ("s", inner)]))

    planned = plan_schema(nested(("a", pa.int32())), nested(("b", pa.string()), ("a", pa.int64())), STRICT)
    assert planned.equals(nested(("a", pa.int64()), ("b", pa.string())))


def test_list_elements_become_nullable_and_columns_do_not() -> None:
    strict = pa.schema([pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)])
    loose = normalise(pa.schema([("l", pa.list_(pa.int32()))]))
    planned = plan_schema(strict, loose, STRICT)
    assert planned.field("l").type.value_field.nullable
    assert not planned.field("l").nullable


@pytest.mark.parametrize(
    ("batch_type", "stored"),
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
def test_types_are_normalised_to_hudi_types(batch_type: pa.DataType, stored: pa.DataType) -> None:
    assert normalise(pa.schema([("x", batch_type)])).field("x").type == stored


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("A", pa.int64()), ("a", pa.int64())]),
        pa.list_(pa.struct([("A", pa.int64()), ("a", pa.int64())])),
        pa.map_(pa.string(), pa.struct([("A", pa.int64()), ("a", pa.int64())])),
        pa.struct([("inner", pa.struct([("A", pa.int64()), ("a", pa.int64())]))]),
    ],
    ids=["struct", "list", "map", "nested"],
)
def test_fields_of_one_struct_that_differ_only_in_case_are_refused(kind: pa.DataType) -> None:
    batch = pa.schema([("id", pa.string()), ("s", kind)])
    with pytest.raises(UserError, match=r"fields 'A' and 'a' of 's.*' differ only in case; rename one"):
        plan_schema(None, batch, STRICT)


def test_fields_of_two_structs_may_differ_only_in_case() -> None:
    batch = pa.schema([("A", pa.struct([("x", pa.int64())])), ("b", pa.struct([("X", pa.int64()), ("A", pa.int64())]))])
    assert plan_schema(None, batch, STRICT).names == ["A", "b"]
