"""Property tests of the columnar Avro codec: it agrees with fastavro, and damaged bytes raise an error."""

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
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.encode import encode_avro_rows
from lakehouse.core.format.avro.varints import MARGIN, Window, encode_varints
from lakehouse.errors import CorruptTableError
from tests.support.tables import examples

I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NAIVE = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2262, 1, 1))
MILLIS = NAIVE.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))
TIMES = st.times()
FLOATS = st.floats(width=32, allow_nan=False)

Kind = tuple[Any, st.SearchStrategy[Any]]


def logical(physical: str, name: str) -> dict[str, str]:
    return {"type": physical, "logicalType": name}


def utc(values: st.SearchStrategy[dt.datetime]) -> st.SearchStrategy[dt.datetime]:
    return values.map(lambda t: t.replace(tzinfo=dt.UTC))


PRIMITIVES: list[Kind] = [
    ("boolean", st.booleans()),
    ("int", I32),
    ("long", I64),
    ("float", FLOATS),
    ("double", st.floats(allow_nan=False)),
    ("string", TEXT),
    ("bytes", st.binary(max_size=20)),
    (logical("int", "date"), st.dates()),
    (logical("int", "time-millis"), TIMES.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    (logical("long", "time-micros"), TIMES),
    (logical("long", "timestamp-millis"), utc(MILLIS)),
    (logical("long", "timestamp-micros"), utc(NAIVE)),
    (logical("long", "local-timestamp-millis"), MILLIS),
    (logical("long", "local-timestamp-micros"), NAIVE),
]


@st.composite
def decimals(draw: st.DrawFn, name: str) -> Kind:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    fitting = next(size for size in range(1, 17) if 2 ** (8 * size - 1) >= 10**precision)
    declared: dict[str, Any] = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if draw(st.booleans()):
        declared |= {"type": "fixed", "name": f"{name}_decimal", "size": draw(st.integers(fitting, 16))}
    limit = 10**precision - 1
    # For -128, -32768 and so on, Java and this package write the fewest bytes; fastavro writes one more.
    edges = {-(2 ** (8 * size - 1)) for size in range(1, 17)}
    numbers = st.integers(-limit, limit).filter(lambda number: number not in edges)
    return declared, numbers.map(lambda number: Decimal(f"{number}E-{scale}"))


@st.composite
def kinds(draw: st.DrawFn, name: str, depth: int) -> Kind:
    """Draw a type and a strategy for its values; named types derive their names from `name`."""
    choices = ["primitive", "primitive", "decimal", "enum", "fixed"]
    if depth:
        choices += ["record", "array", "map"]
    match draw(st.sampled_from(choices)):
        case "decimal":
            return draw(decimals(name))
        case "enum":
            symbols = draw(st.lists(st.from_regex(r"[A-Z][A-Z0-9_]{0,5}", fullmatch=True), min_size=1, unique=True))
            return {"type": "enum", "name": f"{name}_enum", "symbols": symbols}, st.sampled_from(symbols)
        case "fixed":
            size = draw(st.integers(1, 40))
            return {"type": "fixed", "name": f"{name}_fixed", "size": size}, st.binary(min_size=size, max_size=size)
        case "record":
            return draw(records(f"{name}_r", depth - 1))
        case "array":
            item, values = draw(maybe_null(f"{name}_i", depth - 1))
            return {"type": "array", "items": item}, st.lists(values, max_size=5)
        case "map":
            item, values = draw(maybe_null(f"{name}_v", depth - 1))
            return {"type": "map", "values": item}, st.dictionaries(TEXT, values, max_size=4)
    return draw(st.sampled_from(PRIMITIVES))


@st.composite
def maybe_null(draw: st.DrawFn, name: str, depth: int) -> Kind:
    declared, values = draw(kinds(name, depth))
    match draw(st.sampled_from(["bare", "null first", "null last", "alone"])):
        case "null first":
            return ["null", declared], st.none() | values
        case "null last":
            return [declared, "null"], st.none() | values
        case "alone":
            return [declared], values
    return declared, values


@st.composite
def records(draw: st.DrawFn, name: str, depth: int) -> Kind:
    fields = [(f"{name}{i}", draw(maybe_null(f"{name}{i}", depth))) for i in range(draw(st.integers(1, 4)))]
    declared = {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, (kind, _) in fields]}
    return declared, st.fixed_dictionaries({n: values for n, (_, values) in fields})


@st.composite
def written(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], bytes]:
    """Draw a schema, rows, and the block that fastavro writes for them.

    Half of the blocks have enough rows for the decoder to read lists in rounds; in the others it walks over the items.
    """
    declared, values = draw(records("f", 2))
    rows = draw(st.lists(values, max_size=12)) * draw(st.sampled_from([1, 12]))
    return json.dumps(declared), rows, block(declared, rows)


def block(declared: Any, rows: list[dict[str, Any]]) -> bytes:
    schema = fastavro.parse_schema(declared)
    parts = [struct.pack(">ii", 3, len(rows))]
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        parts.append(struct.pack(">i", len(out.getvalue())) + out.getvalue())
    return b"".join(parts)


def pylist(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist(maps_as_pydicts="strict")


@given(written())
@examples(150)
def test_blocks_of_fastavro_are_decoded_and_encoded_to_equal_bytes(case: tuple[str, list[Any], bytes]) -> None:
    schema, rows, content = case
    table = decode_avro_rows(content, schema)
    table.validate(full=True)
    assert pylist(table) == rows
    assert encode_avro_rows(table, schema) == content


@given(written(), st.integers(0, 20))
@examples(80)
def test_sliced_and_dictionary_columns_are_encoded_like_plain_columns(
    case: tuple[str, list[Any], bytes], start: int
) -> None:
    schema, rows, content = case
    table = decode_avro_rows(content, schema)
    sliced = pa.concat_tables([table.slice(start, 3), table.slice(start + 3)])
    for position, field in enumerate(sliced.schema):
        if pa.types.is_string(field.type):
            sliced = sliced.set_column(position, field.name, sliced.column(position).dictionary_encode())
    expected = block(json.loads(schema), rows[start:])
    assert encode_avro_rows(sliced, schema) == expected
    assert encode_avro_rows(table.slice(start), schema) == expected


@given(written(), st.data())
@examples(120)
def test_chosen_fields_of_nestedare_those_of_whole_records(
    case: tuple[str, list[Any], bytes], data: st.DataObject
) -> None:
    schema, _, content = case
    whole = decode_avro_rows(content, schema)
    structs = [field for field in whole.schema if pa.types.is_struct(field.type)]
    nested = {field.name: [one.name for one in field.type] for field in structs}
    known = sorted({name for names in nested.values() for name in names})
    fields = data.draw(st.sets(st.sampled_from(known)) if known else st.just(set()))
    found = decode_avro_rows(content, schema, fields=fields)
    found.validate(full=True)
    for name, column in zip(whole.column_names, whole.columns, strict=True):
        if name not in nested:
            assert found.column(name).equals(column)
            continue
        # A record without any of the fields keeps its first one, so that null and a record differ.
        kept = [one for one in nested[name] if one in fields] or nested[name][:1]
        assert [one.name for one in found.column(name).type] == kept
        values = [row and {one: row[one] for one in kept} for row in column.to_pylist()]
        assert found.column(name).to_pylist() == values


@given(written(), st.data())
@examples(80)
def test_requested_columns_decode_like_all_columns(case: tuple[str, list[Any], bytes], data: st.DataObject) -> None:
    schema, _, content = case
    table = decode_avro_rows(content, schema)
    names = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
    chosen = [name for name in table.column_names if name in names]
    assert decode_avro_rows(content, schema, names).equals(table.select(chosen))


@given(written())
@examples(80)
def test_decoded_columns_can_be_written_as_parquet(case: tuple[str, list[Any], bytes]) -> None:
    schema, rows, content = case
    file = io.BytesIO()
    pq.write_table(decode_avro_rows(content, schema), file)
    assert pylist(pq.read_table(file)) == rows


@given(written(), st.data())
@examples(250)
def test_damaged_blocks_are_decoded_or_corrupt(case: tuple[str, list[Any], bytes], data: st.DataObject) -> None:
    schema, _, content = case
    broken = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del broken[data.draw(st.integers(0, len(broken))) :]
    try:
        table = decode_avro_rows(bytes(broken), schema)
    except CorruptTableError as error:
        assert str(error)
    else:
        table.validate(full=True)


@given(written(), st.binary(max_size=200))
@examples(80)
def test_random_nestedare_decoded_or_corrupt(case: tuple[str, list[Any], bytes], datum: bytes) -> None:
    schema = case[0]
    content = struct.pack(">iii", 3, 1, len(datum)) + datum
    try:
        table = decode_avro_rows(content, schema)
    except CorruptTableError as error:
        assert str(error)
    else:
        table.validate(full=True)
        again = encode_avro_rows(table, schema)
        assert encode_avro_rows(decode_avro_rows(again, schema), schema) == again


def varint(value: int) -> bytes:
    """Encode an integer by the rules of the Avro specification."""
    raw, out = (value << 1) ^ (value >> 63), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


@given(st.lists(st.one_of(I64, st.integers(-200, 200)), min_size=1, max_size=30))
@examples(150)
def test_varints_equal_those_of_the_avro_specification(values: list[int]) -> None:
    expected = [varint(value) for value in values]
    data, sizes = encode_varints(np.array(values, np.int64))
    assert data.tobytes() == b"".join(expected)
    assert sizes.tolist() == [len(part) for part in expected]
    read, taken = Window(data).varints_at(np.cumsum(sizes) - sizes + MARGIN)
    assert (read.tolist(), taken.tolist()) == (values, sizes.tolist())


LISTS = st.lists(st.lists(st.lists(st.none() | I64, min_size=1, max_size=4), max_size=4), max_size=8)


@given(LISTS, st.data())
@examples(80)
def test_lists_in_several_blocks_decode_like_lists_in_one_block(
    rows: list[list[list[int | None]]], data: st.DataObject
) -> None:
    rows = rows * data.draw(st.sampled_from([1, 12]))
    content = struct.pack(">ii", 3, len(rows))
    for blocks in rows:
        datum = b""
        for items in blocks:
            encoded = b"".join(b"\x00" if item is None else b"\x02" + varint(item) for item in items)
            sized = data.draw(st.booleans())
            datum += (varint(-len(items)) + varint(len(encoded)) if sized else varint(len(items))) + encoded
        datum += b"\x00"
        content += struct.pack(">i", len(datum)) + datum
    items = {"type": "array", "items": ["null", "long"]}
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "v", "type": items}]})
    table = decode_avro_rows(content, schema)
    table.validate(full=True)
    assert table.column("v").to_pylist() == [[item for items in blocks for item in items] for blocks in rows]
