"""Test the conversion of table schemas between Arrow and Avro, and partition metadata."""

from __future__ import annotations

import json

import fastavro
import pyarrow as pa
import pytest

from lakehouse.core.format.avro.schema import META_COLUMNS, arrow_to_avro, avro_to_arrow, with_meta_fields
from lakehouse.core.format.partition_metadata import parse_partition_metadata, render_partition_metadata
from lakehouse.errors import CorruptTableError, UserError

POINT = pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("price", pa.decimal128(15, 2))])


def kinds_of(schema: pa.Schema) -> dict[str, object]:
    return {field["name"]: field["type"] for field in json.loads(arrow_to_avro(schema, table="t"))["fields"]}


def test_a_record_has_the_tables_name_and_nullable_columns_default_to_null() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    assert json.loads(arrow_to_avro(schema, table="orders")) == {
        "type": "record",
        "name": "orders_record",
        "namespace": "hoodie.orders",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
        ],
    }


@pytest.mark.parametrize(
    ("table", "name"), [("sales.orders-eu", "sales__orders__eu"), ("2024", "__024"), ("_ok1", "_ok1")]
)
def test_table_names_mask_forbidden_characters_like_hudi(table: str, name: str) -> None:
    schema = json.loads(arrow_to_avro(pa.schema([("a", pa.int32())]), table=table))
    assert (schema["name"], schema["namespace"]) == (f"{name}_record", f"hoodie.{name}")


def test_nested_types_have_the_names_of_sparks_converter() -> None:
    schema = pa.schema([("p", POINT), ("ps", pa.list_(POINT)), ("m", pa.map_(pa.string(), POINT))])
    kinds = kinds_of(schema)
    record = kinds["p"][1]  # type: ignore[index]
    assert (record["name"], record["namespace"]) == ("p", "hoodie.t.t_record")
    assert record["fields"][1]["type"][1] == {
        "type": "fixed",
        "name": "fixed",
        "namespace": "hoodie.t.t_record.p.price",
        "size": 7,
        "logicalType": "decimal",
        "precision": 15,
        "scale": 2,
    }
    assert kinds["ps"][1]["items"][1]["name"] == "ps"  # type: ignore[index]
    assert kinds["m"][1]["values"][1]["namespace"] == "hoodie.t.t_record"  # type: ignore[index]
    fastavro.parse_schema(json.loads(arrow_to_avro(schema, table="t")))


@pytest.mark.parametrize(
    ("kind", "read_kind"),
    [
        (pa.int8(), pa.int32()),
        (pa.int16(), pa.int32()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
    ],
)
def test_types_without_an_avro_equivalent_are_read_as_the_nearest_type(
    kind: pa.DataType, read_kind: pa.DataType
) -> None:
    assert avro_to_arrow(arrow_to_avro(pa.schema([("c", kind)]), table="t")).field("c").type == read_kind


@pytest.mark.parametrize(
    ("kind", "logical"),
    [
        (pa.date32(), "date"),
        (pa.timestamp("us", "UTC"), "timestamp-micros"),
        (pa.timestamp("ms", "UTC"), "timestamp-millis"),
        (pa.timestamp("us"), "local-timestamp-micros"),
        (pa.time64("us"), "time-micros"),
    ],
)
def test_dates_and_times_are_logical_types(kind: pa.DataType, logical: str) -> None:
    assert kinds_of(pa.schema([("c", kind)]))["c"][1]["logicalType"] == logical  # type: ignore[index]


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.uint32(),
        pa.float16(),
        pa.timestamp("ns", "UTC"),
        pa.duration("s"),
        pa.decimal256(60, 2),
        pa.map_(pa.int32(), pa.string()),
        pa.struct([]),
    ],
)
def test_an_unsupported_arrow_type_is_refused_with_its_column(kind: pa.DataType) -> None:
    with pytest.raises(UserError, match=r"column 's\.c'"):
        arrow_to_avro(pa.schema([("s", pa.struct([("c", kind)]))]), table="t")


def test_column_names_that_avro_forbids_are_refused() -> None:
    for name in ("unit price", "1st", "", "a.b", "a-b", "a`b", "cafe\u0301", "\U0001f600", "\u00bd"):
        with pytest.raises(UserError, match="not a name that Avro"):
            arrow_to_avro(pa.schema([(name, pa.int32())]), table="t")
    with pytest.raises(UserError, match="column 'a' occurs twice"):
        arrow_to_avro(pa.schema([("a", pa.int32()), ("a", pa.int32())]), table="t")


def test_letters_and_digits_of_all_scripts_are_legal_in_column_names() -> None:
    names = ["caf\u00e9", "\u540d\u524d", "\u043a\u043b\u044e\u0447", "_1", "a\u0663"]
    schema = pa.schema([(name, pa.int32()) for name in names])
    assert avro_to_arrow(arrow_to_avro(schema, table="t")).names == names


def test_schemas_of_other_writers_are_read() -> None:
    fields = [
        {"name": "a", "type": ["string", "null"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X"]}},
        {"name": "again", "type": ["null", "E"]},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 4, "namespace": "other"}},
        {"name": "g", "type": "other.F"},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "j", "type": {"type": "string", "avro.java.string": "String"}},
        {"name": "w", "type": {"type": {"type": "int", "logicalType": "date"}}},
        {"name": "o", "type": ["long"]},
    ]
    schema = avro_to_arrow(json.dumps({"type": "record", "name": "r", "namespace": "n", "fields": fields}))
    assert schema == pa.schema(
        [
            pa.field("a", pa.string()),
            pa.field("e", pa.string(), nullable=False),
            pa.field("again", pa.string()),
            pa.field("f", pa.binary(4), nullable=False),
            pa.field("g", pa.binary(4), nullable=False),
            pa.field("u", pa.string(), nullable=False),
            pa.field("d", pa.decimal128(9, 0), nullable=False),
            pa.field("j", pa.string(), nullable=False),
            pa.field("w", pa.date32(), nullable=False),
            pa.field("o", pa.int64(), nullable=False),
        ]
    )


@pytest.mark.parametrize("kind", [["null", "int", "string"], "null", "Unknown", {"type": "array", "items": "r"}])
def test_an_unsupported_avro_type_is_refused_with_its_column(kind: object) -> None:
    fields = [{"name": "c", "type": kind}]
    with pytest.raises(UserError, match="column 'c'"):
        avro_to_arrow(json.dumps({"type": "record", "name": "r", "fields": fields}))


@pytest.mark.parametrize(
    "text", ["{", '"string"', "[]", '{"type": "record", "name": "r"}', '{"type":"record","name":"r","fields":[1]}']
)
def test_text_that_is_not_a_record_schema_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptTableError, match="the table schema is"):
        avro_to_arrow(text)


def test_meta_columns_are_first_and_unique() -> None:
    schema = with_meta_fields(pa.schema([pa.field("id", pa.int64(), nullable=False)], metadata={"k": "v"}))
    assert schema.names == [*META_COLUMNS, "id"]
    assert all(schema.field(name) == pa.field(name, pa.string()) for name in META_COLUMNS)
    assert with_meta_fields(schema) == schema and schema.metadata == {b"k": b"v"}


def test_partition_metadata_round_trips_and_damage_is_detected() -> None:
    data = render_partition_metadata("20250101000000000", 2)
    assert data == b"#partition metadata\ncommitTime=20250101000000000\npartitionDepth=2\n"
    assert parse_partition_metadata(data) == ("20250101000000000", 2)
    with pytest.raises(CorruptTableError, match="partitionDepth ''"):
        parse_partition_metadata(b"commitTime=20250101000000000\n")
