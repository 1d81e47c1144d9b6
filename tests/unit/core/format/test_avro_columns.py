"""Test the columnar Avro codec on known bytes in both directions, and its errors for invalid input."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.encode import encode_avro_rows
from lakehouse.core.format.avro.schema import arrow_to_avro, avro_to_arrow
from lakehouse.core.format.spread import spread
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError


def schema_of(*kinds: Any, **named: Any) -> str:
    """Return a record schema with the fields a, b, .. of these types, or with the fields of `named`."""
    fields = named or dict(zip("abcdefgh", kinds, strict=False))
    return json.dumps(
        {"type": "record", "name": "t", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    )


def block(*datums: str, version: int = 3) -> bytes:
    """Return the content of a block with these records, which are hexadecimal text."""
    raw = [bytes.fromhex(datum) for datum in datums]
    return struct.pack(">ii", version, len(raw)) + b"".join(struct.pack(">i", len(datum)) + datum for datum in raw)


def one(kind: Any, *datums: str) -> list[Any]:
    """Return the values of records with one field, and check that they are encoded to the same bytes."""
    content, schema = block(*datums), schema_of(kind)
    table = decode_avro_rows(content, schema)
    table.validate(full=True)
    assert table.schema == avro_to_arrow(schema)
    assert encode_avro_rows(table, schema) == content
    values: list[Any] = table.column("a").to_pylist()
    return values


def decimal(physical: Any, precision: int, scale: int) -> dict[str, Any]:
    declared = physical if isinstance(physical, dict) else {"type": physical}
    return {**declared, "logicalType": "decimal", "precision": precision, "scale": scale}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "f", "size": size}


@pytest.mark.parametrize(
    ("kind", "datums", "values"),
    [
        ("boolean", ["00", "01"], [False, True]),
        ("int", ["00", "01", "02", "ac02", "feffffff0f", "ffffffff0f"], [0, -1, 1, 150, 2**31 - 1, -(2**31)]),
        (
            "long",
            ["feffffffffffffffff01", "ffffffffffffffffff01", "80808080808080808001"],
            [2**63 - 1, -(2**63), 2**62],
        ),
        ("long", ["808080808080808002"], [2**56]),
        ("float", ["0000c03f"], [1.5]),
        ("double", ["000000000000f8bf"], [-1.5]),
        ("string", ["00", "06e282ac"], ["", "€"]),
        ("bytes", ["00", "04ff00"], [b"", b"\xff\x00"]),
        (fixed(3), ["010203"], [b"\x01\x02\x03"]),
        ({"type": "enum", "name": "e", "symbols": ["X", "Y"]}, ["02", "00"], ["Y", "X"]),
        ({"type": "string", "logicalType": "uuid"}, ["0261"], ["a"]),
        ({"type": "int", "logicalType": "date"}, ["02", "01"], [dt.date(1970, 1, 2), dt.date(1969, 12, 31)]),
        ({"type": "int", "logicalType": "time-millis"}, ["d00f"], [dt.time(0, 0, 1)]),
        ({"type": "long", "logicalType": "time-micros"}, ["04"], [dt.time(0, 0, 0, 2)]),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, ["d00f"], [dt.datetime(1970, 1, 1, 0, 0, 1)]),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            ["01"],
            [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)],
        ),
        (["null", "int"], ["00", "0202"], [None, 1]),
        (["int", "null"], ["02", "0002"], [None, 1]),
        (["int"], ["0002"], [1]),
        (["null", "string"], ["00", "00"], [None, None]),
        ({"type": {"type": "string", "avro.java.string": "String"}}, ["0261"], ["a"]),
    ],
)
def test_avro_columns_decode_and_encode_known_bytes(kind: Any, datums: list[str], values: list[Any]) -> None:
    assert one(kind, *datums) == values


def test_avro_columns_keep_nanoseconds() -> None:
    content = block("02")
    schema = schema_of({"type": "long", "logicalType": "timestamp-nanos"})
    table = decode_avro_rows(content, schema)
    assert table.column("a").cast(pa.int64()).to_pylist() == [1]
    assert encode_avro_rows(table, schema) == content


@pytest.mark.parametrize(
    ("number", "shortest"),
    [
        (0, "00"),
        (-1, "ff"),
        (127, "7f"),
        (128, "0080"),
        (-128, "80"),
        (-129, "ff7f"),
        (255, "00ff"),
        (256, "0100"),
        (2**63, "008000000000000000"),
        (-(2**63), "8000000000000000"),
        (2**64, "010000000000000000"),
        (10**38 - 1, "4b3b4ca85a86c47a098a223fffffffff"),
        (1 - 10**38, "b4c4b357a5793b85f675ddc000000001"),
    ],
)
def test_decimals_have_the_fewest_bytes_or_the_fixed_size(number: int, shortest: str) -> None:
    value = [Decimal(number)]
    assert one(decimal("bytes", 38, 0), f"{len(shortest):02x}{shortest}") == value
    padding = ("ff" if number < 0 else "00") * (16 - len(shortest) // 2)
    assert one(decimal(fixed(16), 38, 0), padding + shortest) == value
    assert one(decimal(fixed(len(shortest) // 2), 38, 0), shortest) == value


def test_nested_records_lists_and_maps_are_decoded_and_encoded() -> None:
    inner = {
        "type": "record",
        "name": "n",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "string"]}],
    }
    lists = {"type": "array", "items": ["null", inner]}
    kind = ["null", {"type": "map", "values": lists}]
    values = one(
        kind,
        "00",
        "0200",
        "02" + "02" + "026b" + "04" + "00" + "02" + "02" + "020278" + "00" + "00",
        "02" + "04" + "0261" + "00" + "0262" + "02" + "02" + "04" + "00" + "00" + "00",
    )
    assert values == [None, [], [("k", [None, {"x": 1, "y": "x"}])], [("a", []), ("b", [{"x": 2, "y": None}])]]


def test_lists_in_blocks_with_sizes_are_decoded() -> None:
    schema = schema_of({"type": "array", "items": "double"}, "int")
    number = struct.pack("<d", 2.5).hex()
    content = block("04" + number * 2 + "0110" + number + "00" + "0e", "00" + "02")
    table = decode_avro_rows(content, schema)
    assert table.to_pylist() == [{"a": [2.5, 2.5, 2.5], "b": 7}, {"a": [], "b": 1}]


def test_nested_lists_in_blocks_with_sizes_are_decoded() -> None:
    schema = schema_of({"type": "array", "items": {"type": "array", "items": "int"}})
    content = block("04" + "03040a0000" + "020600" + "00")
    assert decode_avro_rows(content, schema).column("a").to_pylist() == [[[5, 0], [3]]]


def test_a_list_much_longer_than_the_others_is_decoded_completely() -> None:
    schema = schema_of({"type": "array", "items": ["null", "string"]}, {"type": "map", "values": "long"})
    lists = [["x" * (i % 3) if i % 7 else None for i in range(5000 if row == 50 else row % 4)] for row in range(100)]
    maps = [[(str(i), i) for i in range(700 if row == 20 else row % 3)] for row in range(100)]
    table = pa.table({"a": lists, "b": pa.array(maps, pa.map_(pa.string(), pa.int64()))}).cast(avro_to_arrow(schema))
    content = encode_avro_rows(table, schema)
    assert decode_avro_rows(content, schema).equals(table)
    assert decode_avro_rows(content, schema, ["b"]).equals(table.select(["b"]))


def test_a_named_type_is_resolved_by_its_name() -> None:
    """Change records have two images of one record type; the second one refers to the type by name."""
    row = {"type": "record", "name": "row", "namespace": "n", "fields": [{"name": "id", "type": ["null", "string"]}]}
    schema = schema_of(op=["string", "null"], ts_ms=["string", "null"], before=["null", row], after=["null", "n.row"])
    rows = [
        {"op": "i", "ts_ms": "1", "before": None, "after": {"id": "a"}},
        {"op": "u", "ts_ms": "2", "before": {"id": "a"}, "after": {"id": None}},
        {"op": "d", "ts_ms": "3", "before": {"id": None}, "after": None},
    ]
    parsed = fastavro.parse_schema(json.loads(schema))
    content = struct.pack(">ii", 3, 3)
    for values in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, values)
        content += struct.pack(">i", len(out.getvalue())) + out.getvalue()
    table = decode_avro_rows(content, schema)
    assert table.to_pylist() == rows
    assert encode_avro_rows(table, schema) == content


@pytest.mark.parametrize("wrap", [bytes, memoryview, pa.py_buffer, bytearray])
def test_content_is_accepted_as_bytes_memoryview_or_buffer(wrap: Any) -> None:
    assert decode_avro_rows(wrap(block("02", "04")), schema_of("int")).column("a").to_pylist() == [1, 2]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_block_versions_with_a_count_have_the_same_layout(version: int) -> None:
    content = block("02", version=version)
    assert decode_avro_rows(content, schema_of("int")).column("a").to_pylist() == [1]


def test_a_block_without_records_decodes_to_all_columns() -> None:
    schema = schema_of("int", ["null", {"type": "array", "items": "string"}])
    table = decode_avro_rows(block(), schema)
    assert (table.num_rows, table.schema) == (0, avro_to_arrow(schema))
    assert encode_avro_rows(table, schema) == block()


def test_requested_columns_are_returned_in_schema_order() -> None:
    schema = schema_of("string", ["null", {"type": "map", "values": "int"}], fixed(2), "double")
    content = block("0261" + "02020278" + "0200" + "ffff" + "00" * 8, "00" + "00" + "0000" + "00" * 8)
    table = decode_avro_rows(content, schema, ["d", "a"])
    assert table.to_pylist() == [{"a": "a", "d": 0.0}, {"a": "", "d": 0.0}]
    with pytest.raises(UserError, match=r"no column 'aa'.* Did you mean 'a'"):
        decode_avro_rows(content, schema, ["aa"])
    with pytest.raises(UserError, match="at least one column"):
        decode_avro_rows(content, schema, [])


def test_fields_of_record_columns_are_chosen_and_the_others_are_checked() -> None:
    inner = [{"name": "x", "type": "int"}, {"name": "y", "type": "string"}]
    schema = schema_of(["null", {"type": "record", "name": "r", "fields": inner}], "int")
    content = block("02" + "02" + "0261" + "04", "00" + "06")
    table = decode_avro_rows(content, schema, fields=["y", "not there"])
    assert table.to_pylist() == [{"a": {"y": "a"}, "b": 2}, {"a": None, "b": 3}]
    assert decode_avro_rows(content, schema, ["a"], []).to_pylist() == [{"a": {"x": 1}}, {"a": None}]
    with pytest.raises(CorruptTableError, match="past the end of its record"):
        decode_avro_rows(block("02" + "02" + "7e61" + "04"), schema, fields=["x"])


@pytest.mark.parametrize(
    ("kind", "datum", "message"),
    [
        ("int", "", "column 'a' of record 1 extends past the end of its record"),
        ("int", "0200", "record 1 is shorter than its length"),
        ("int", "8080808080", "extends past the end"),
        ("int", "8080808010", "an int of more than 32 bits"),
        ("long", "ffffffffffffffffff02", "an integer of more than 64 bits"),
        ("long", "ffffffffffffffffffffff01", "an integer of more than 64 bits"),
        ("boolean", "02", "a boolean other than 0 and 1"),
        ("double", "00" * 7, "extends past the end"),
        ("string", "0461", "a length of 2 bytes"),
        ("string", "01", "a length of -1 bytes"),
        ("string", "feffffffffffffffff01", "a length of 9223372036854775807 bytes"),
        ("string", "02ff", "'a' has text that is not UTF-8"),
        (["null", "int"], "0402", "branch byte 0x04"),
        (["int"], "02", "branch byte 0x02"),
        ({"type": "enum", "name": "e", "symbols": ["X"]}, "02", "symbol 1 of an enum of 1 symbols"),
        ({"type": "array", "items": "int"}, "0602", "declares 3 items"),
        ({"type": "array", "items": "int"}, "ffffffffffffffffff01", "extends past the end"),
        ({"type": "array", "items": "int"}, "ffffffffffffffffff010200", "declares -9223372036854775808 items"),
        ({"type": "array", "items": "int"}, "0202", "extends past the end"),
        ({"type": "array", "items": "string"}, "020461", "items that cannot be parsed"),
        (
            {"type": "array", "items": "string"},
            "04ffffffffffffffffff0100",
            "items that cannot be parsed: a negative length",
        ),
        ({"type": "array", "items": "string"}, "04ffffffffffffffffff0200", "items that cannot be parsed"),
        ({"type": "array", "items": "string"}, "02" + "ff" * 12, "cannot be parsed: an integer of more than 64 bits"),
        ({"type": "map", "values": "int"}, "02026101", "extends past the end"),
        (decimal("bytes", 3, 0), "0403e8", "not a valid decimal128"),
        (decimal("bytes", 3, 0), "00", "a decimal whose size is not 1 to 16 bytes"),
        (decimal("bytes", 38, 0), "22" + "00" * 17, "a decimal whose size is not 1 to 16 bytes"),
        (decimal(fixed(2), 3, 0), "fc18", "not a valid decimal128"),
        ({"type": "int", "logicalType": "time-millis"}, "01", "not a valid time32"),
    ],
)
def test_an_invalid_datum_raises_an_error_with_column_and_record(kind: Any, datum: str, message: str) -> None:
    good = {"int": "02", "long": "02", "boolean": "01", "double": "00" * 8, "string": "00"}
    first = good[kind] if isinstance(kind, str) else None
    content, record = (block(first, datum), 1) if first else (block(datum), 0)
    with pytest.raises(CorruptTableError, match=message) as caught:
        decode_avro_rows(content, schema_of(kind))
    assert caught.value.facts.get("record", record) == record


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes"),
        (b"\0\0\0\3", "has 4 bytes"),
        (block(version=0), "version 0; expected 1 to 3"),
        (block(version=4), "version 4; expected 1 to 3"),
        (struct.pack(">ii", 3, -1), "declares -1 records"),
        (struct.pack(">ii", 3, 2**31 - 1), "declares 2147483647 records"),
        (struct.pack(">iii", 3, 1, 5), "end at byte 17, but its content ends at 12"),
        (struct.pack(">iii", 3, 1, -1), "end at byte 4294967307"),
        (struct.pack(">iiiii", 3, 2, 5, 0, 0), "ends inside its 2 records"),
        (block("02") + b"\0", "end at byte 13, but its content ends at 14"),
    ],
)
def test_a_block_with_inconsistent_lengths_is_corrupt(content: bytes, message: str) -> None:
    with pytest.raises(CorruptTableError, match=message):
        decode_avro_rows(content, schema_of("int"))


def test_the_record_number_in_an_error_is_counted_across_batches() -> None:
    content = bytearray(block(*["02"] * 40_000))
    content[8 + 5 * 33_333 + 4] = 0x80
    with pytest.raises(CorruptTableError, match="column 'a' of record 33333 ") as caught:
        decode_avro_rows(bytes(content), schema_of("int"))
    assert caught.value.facts == {"column": "a", "record": 33_333}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (["null", "int", "string"], r"column 'a' is a union of several types, \[\"null\", \"int\", \"string\"\]"),
        ({"type": "array", "items": ["int", "long"]}, "column 'a' is a union of several types"),
        (["null", {"type": "record", "name": "n", "fields": []}], "column 'a' is a record without fields"),
        (["null", "null", "int"], "column 'a' is a union that contains null twice"),
        (fixed(0), "column 'a' is a fixed type of 0 bytes"),
        (decimal(fixed(17), 38, 0), "column 'a' is a decimal of 17 bytes; at most 16"),
    ],
)
def test_an_unsupported_type_is_refused_with_its_column(kind: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        decode_avro_rows(block(), schema_of(kind))
    assert caught.value.facts["column"] == "a"


def test_a_nested_union_is_refused_with_its_path() -> None:
    inner = {"type": "record", "name": "n", "fields": [{"name": "x", "type": ["int", "string"]}]}
    with pytest.raises(UnsupportedError, match=r"column 'a\.x' is a union"):
        decode_avro_rows(block(), schema_of(inner))


@pytest.mark.parametrize("schema", ["{", "[]", '"int"', schema_of({"type": "enum", "name": "e"}), '{"type": "record"}'])
def test_a_malformed_schema_is_corrupt(schema: str) -> None:
    with pytest.raises(CorruptTableError, match="schema"):
        decode_avro_rows(block(), schema)


def test_rows_are_written_from_slices_chunks_dictionaries_and_wide_strings() -> None:
    plain = pa.table({"s": ["a", None, "bb", "a"], "b": [True, False, None, True], "n": [[1], [], None, [2, 3]]})
    schema = arrow_to_avro(plain.schema, table="t")
    expected = encode_avro_rows(plain, schema)
    for kind in (pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.string_view()):
        other = plain.set_column(0, "s", plain.column("s").cast(kind))
        assert encode_avro_rows(other, schema) == expected
    chunked = pa.concat_tables([plain.slice(0, 1), plain.slice(1, 2), plain.slice(3)])
    assert encode_avro_rows(chunked, schema) == expected
    assert encode_avro_rows(plain.select(["n", "s", "b"]), schema) == expected
    assert decode_avro_rows(expected, schema).equals(plain)


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("int", pa.array([1, None], pa.int32()), "column 'a' has 1 nulls, but its Avro type allows none"),
        ({"type": "array", "items": "int"}, pa.array([[1, None]]), "column 'a.element' has 1 nulls"),
        ("int", pa.array([2**31]), "column 'a' of type int64 cannot be written as int32"),
        ("int", pa.array(["1"]), "column 'a' has type string, but its Avro schema needs int32; cast it"),
        ("string", pa.array([1]), "column 'a' has type int64, but its Avro schema needs string; cast it"),
        ("float", pa.array([0.1]), "column 'a' has type double, but its Avro schema needs float; cast it"),
        ({"type": "enum", "name": "e", "symbols": ["X", "Y"]}, pa.array(["Z"]), "value 'Z'; its enum allows X, Y"),
        (
            decimal(fixed(1), 3, 0),
            pa.array([Decimal(128)], pa.decimal128(3, 0)),
            "value 128, which does not fit 1 bytes",
        ),
    ],
)
def test_values_that_do_not_fit_the_avro_type_are_refused(kind: Any, column: pa.Array, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        encode_avro_rows(pa.table({"a": column}), schema_of(kind))
    assert str(caught.value.facts["column"]).startswith("a")


def test_rows_with_missing_or_extra_columns_are_refused() -> None:
    for rows in (pa.table({"a": [1]}), pa.table({"a": [1], "b": [1], "c": [1]})):
        with pytest.raises(UserError, match="do not have exactly the columns"):
            encode_avro_rows(rows, schema_of("long", "long"))
    twice = pa.Table.from_arrays([pa.array([1])] * 3, names=["a", "b", "a"])
    with pytest.raises(UserError, match="do not have exactly the columns"):
        encode_avro_rows(twice, schema_of("long", "long"))


def test_rows_of_two_batches_are_decoded_in_order() -> None:
    count = 70_001
    rows = pa.table({"a": np.arange(count), "b": pa.array(np.arange(count)).cast(pa.string())})
    schema = arrow_to_avro(rows.schema, table="t")
    decoded = decode_avro_rows(encode_avro_rows(rows, schema), schema)
    assert decoded.equals(rows)
    assert decoded.column("a").num_chunks > 1


def test_spread_fills_non_nullable_fields_of_null_structs_with_empty_values() -> None:
    kind = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("s", pa.string())])
    values = pa.array([{"x": 1, "s": None}, {"x": 2, "s": "b"}], kind)
    has_value = np.array([False, True, False, True])
    array = spread(values, has_value, nullable=True)
    array.validate(full=True)
    assert array.to_pylist() == [None, {"x": 1, "s": None}, None, {"x": 2, "s": "b"}]
    assert (array.field(0).null_count, array.field(0).to_pylist()) == (0, [0, 1, 0, 2])
    assert spread(values.field(1), has_value, nullable=True).to_pylist() == [None, None, None, "b"]
