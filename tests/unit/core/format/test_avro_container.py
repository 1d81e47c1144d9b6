"""Container files of Avro of other writers, read as Arrow."""

from __future__ import annotations

import io
import zlib
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from lakehouse.core.format.avro.container import AvroContainer
from lakehouse.core.format.avro.record_writer import write_bytes, write_long
from lakehouse.errors import CorruptTableError, LakehouseError, UnsupportedError, UserError

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "opens", "type": ["null", {"type": "int", "logicalType": "time-millis"}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "items", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
        {
            "name": "place",
            "type": ["null", {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}],
        },
    ],
}


def records(count: int) -> list[dict[str, Any]]:
    """Return records of SCHEMA."""
    return [
        {
            "id": number,
            "note": None if number % 3 else "n" * (number % 200),
            "fare": Decimal(number).scaleb(-2),
            "day": date(2026, 1, 1 + number % 28),
            "at": datetime(2026, 1, 1, tzinfo=UTC),
            "opens": time(9, 30) if number % 2 else None,
            "kind": ("NEW", "OLD")[number % 2],
            "items": [{"a": 1.5}] * (number % 4),
            "place": {"x": number} if number % 5 else None,
        }
        for number in range(count)
    ]


def container(rows: list[dict[str, Any]], codec: str = "null", schema: Any = SCHEMA) -> bytes:
    """Return a file of another writer, in several blocks."""
    out = io.BytesIO()
    fastavro.writer(out, schema, rows, codec=codec, sync_interval=2000)
    return out.getvalue()


def packed(rows: list[dict[str, Any]], codec: str) -> bytes:
    """Return a file whose blocks Arrow compresses, for codecs of which the writer has no library."""
    plain = container(rows)
    out = bytearray(b"Obj\x01\4")
    write_bytes(out, b"avro.schema")
    source = AvroContainer(io.BytesIO(plain))
    write_bytes(out, source.schema.encode())
    write_bytes(out, b"avro.codec")
    write_bytes(out, codec.encode())
    sync = source._sync
    out += b"\0" + sync
    for count, data in source._blocks():
        if codec == "snappy":
            body = pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")
        else:
            body = pa.compress(data, "zstd", asbytes=True)
        write_long(out, count)
        write_bytes(out, body)
        out += sync
    return bytes(out)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_records_of_every_codec_equal_those_of_a_general_reader(codec: str) -> None:
    rows = records(500)
    data = packed(rows, codec) if codec in ("snappy", "zstandard") else container(rows, codec)
    file = AvroContainer(io.BytesIO(data))
    table = pa.concat_tables(file.batches())
    assert table.schema.names == [one["name"] for one in SCHEMA["fields"]] == file.columns.names
    assert [{**row, "items": [dict(one) for one in row["items"]]} for row in table.to_pylist()] == rows


def test_file_without_records_has_columns_only() -> None:
    file = AvroContainer(io.BytesIO(container([])))
    assert (len(file.columns), list(file.batches())) == (9, [])


def test_every_cut_off_or_changed_byte_is_an_error_of_the_package_or_harmless() -> None:
    data = container(records(40))
    for end in range(0, len(data) - 1, 7):
        if end and data[:end].endswith(AvroContainer(io.BytesIO(data))._sync):
            continue  # a file may end after any block
        with pytest.raises(LakehouseError):
            list(AvroContainer(io.BytesIO(data[:end])).batches())
    for place in range(0, len(data), 11):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        try:
            list(AvroContainer(io.BytesIO(bytes(changed))).batches())
        except LakehouseError:
            continue


@pytest.mark.parametrize(
    ("type", "error", "text"),
    [
        (["string", "long"], UnsupportedError, "column 'x' is a union of several types"),
        ("null", UserError, "column 'x' has Avro type 'null'"),
    ],
)
def test_types_without_columns_are_refused_with_the_name_of_the_field(type: Any, error: Any, text: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": type}]}
    with pytest.raises(error, match=text):
        AvroContainer(io.BytesIO(container([], schema=schema)))


def test_unknown_codec_is_refused() -> None:
    data = container(records(1)).replace(b"\x08null", b"\x08lzma")
    with pytest.raises(UnsupportedError, match="its codec is 'lzma'; supported are null, deflate, snappy"):
        AvroContainer(io.BytesIO(data))
    with pytest.raises(CorruptTableError, match="it begins with b'PAR1'"):
        AvroContainer(io.BytesIO(b"PAR1"))
