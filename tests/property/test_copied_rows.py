"""Rows of binary COPY are decoded to the values that were encoded, wherever the stream is cut (values, damage)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import RetryableError
from lakehouse.platform.sources.pgoutput.columns import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    OID,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    PgColumn,
    arrow_type,
)
from lakehouse.platform.sources.postgres.copied import CopyDecoder
from tests.support.tables import examples

TOKEN = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0ff"
HEAD, END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
EPOCH = datetime(2000, 1, 1)

Encode = Callable[[Any], bytes]


def packed(form: str) -> Encode:
    return lambda value: struct.pack(form, value)


def numeric(value: Decimal | None) -> bytes:
    """Return a numeric as `numeric_send` writes it; None is NaN."""
    if value is None:
        return struct.pack(">HhHH", 0, 0, 0xC000, 0)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    text = "".join(map(str, digits)) + "0" * max(exponent, 0)
    whole, part = (text[:-scale] if scale else text), (text[-scale:].rjust(scale, "0") if scale else "")
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    part = part.ljust(-(-len(part) // 4) * 4, "0")
    groups = [int((whole + part)[at : at + 4]) for at in range(0, len(whole + part), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    head = struct.pack(">HhHH", len(groups), weight if groups else 0, 0x4000 if sign and groups else 0, scale)
    return head + struct.pack(f">{len(groups)}H", *groups)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal | None]:
    most = 10**precision - 1
    return st.none() | st.integers(-most, most).map(lambda n: Decimal(f"{n}e-{scale}"))


def number_column(precision: int, scale: int) -> PgColumn:
    return PgColumn(name=f"n{precision}_{scale}", oid=NUMERIC, modifier=(precision << 16 | scale) + 4)


def micros(value: datetime) -> bytes:
    return struct.pack(">q", (value.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1))


#: Each column with its values, their encoding, and the value that is expected.
KINDS: list[tuple[PgColumn, st.SearchStrategy[Any], Encode]] = [
    (PgColumn(name="bool", oid=BOOL), st.booleans(), packed("?")),
    (PgColumn(name="int2", oid=INT2), st.integers(-(1 << 15), (1 << 15) - 1), packed(">h")),
    (PgColumn(name="int4", oid=INT4), st.integers(-(1 << 31), (1 << 31) - 1), packed(">i")),
    (PgColumn(name="int8", oid=INT8), st.integers(-(1 << 63), (1 << 63) - 1), packed(">q")),
    (PgColumn(name="oid", oid=OID), st.integers(0, (1 << 32) - 1), packed(">q")),
    (PgColumn(name="float4", oid=FLOAT4), st.floats(width=32, allow_nan=False), packed(">f")),
    (PgColumn(name="float8", oid=FLOAT8), st.floats(allow_nan=False), packed(">d")),
    (
        PgColumn(name="date", oid=DATE),
        st.dates(),
        lambda value: struct.pack(">i", (value - EPOCH.date()).days),
    ),
    (PgColumn(name="timestamp", oid=TIMESTAMP), st.datetimes(), micros),
    (PgColumn(name="timestamptz", oid=TIMESTAMPTZ), st.datetimes(timezones=st.just(UTC)), micros),
    (PgColumn(name="text", oid=TEXT), st.text(max_size=20), lambda value: value.encode()),
    (PgColumn(name="bytea", oid=BYTEA), st.binary(max_size=20), lambda value: value),
    *((number_column(*digits), decimals(*digits), numeric) for digits in ((1, 0), (5, 5), (12, 2), (18, 0), (18, 9))),
    (number_column(18, 18), decimals(18, 18), numeric),
    (number_column(30, 3), decimals(30, 3).filter(lambda v: v is not None), lambda value: f"{value:f}".encode()),
]
#: A NULL of SQL; the value None is a numeric NaN.
NULL = object()


def stream(decoder: CopyDecoder, rows: Sequence[dict[str, Any]]) -> bytes:
    """Return the stream of a query, as the server sends it."""
    encoders = {column.name: encode for column, _, encode in KINDS}
    parts = [HEAD]
    for row in rows:
        parts += [struct.pack(">hiq", len(decoder.selected) + 1, 8, decoder.mark)]
        for column in decoder.selected:
            value = row[column.name]
            data = None if value is NULL else encoders[column.name](value)
            parts.append(struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data)
    return b"".join((*parts, END))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[PgColumn], list[dict[str, Any]]]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8, unique_by=lambda kind: kind[0].name))
    row = st.fixed_dictionaries({column.name: st.just(NULL) | values for column, values, _ in kinds})
    return [column for column, _, _ in kinds], draw(st.lists(row, max_size=12))


def decoded(decoder: CopyDecoder, pieces: Sequence[bytes], last: Sequence[bytes] = ()) -> Iterator[dict[str, Any]]:
    batches = [decoder.rows([piece], is_end=False) for piece in pieces] + [decoder.rows(list(last), is_end=True)]
    for batch in batches:
        if batch is not None:
            batch.validate(full=True)
            yield from batch.to_pylist()


@examples(300)
@given(table=tables(), cuts=st.lists(st.integers(0, 2_000), max_size=5))
def test_rows_are_those_that_were_encoded(table: tuple[list[PgColumn], list[dict[str, Any]]], cuts: list[int]) -> None:
    columns, rows = table
    decoder = CopyDecoder(columns, TOKEN)
    data = stream(decoder, rows)
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(bounds)]
    # The end of the stream is known to be complete only with the last piece.
    found = list(decoded(decoder, pieces[:-1], pieces[-1:]))
    expected = [{name: None if value is NULL else value for name, value in row.items()} for row in rows]
    assert found == expected


def test_columns_have_the_types_of_the_table() -> None:
    columns = [column for column, _, _ in KINDS]
    decoder = CopyDecoder(columns, TOKEN)
    rows = [{column.name: NULL for column in columns}]
    (batch,) = [b for b in [decoder.rows([stream(decoder, rows)], is_end=True)] if b is not None]
    assert batch.schema == pa.schema([(column.name, arrow_type(column)) for column in columns])
    assert batch.to_pylist() == [dict.fromkeys(batch.schema.names)]


INFINITE: list[tuple[int, bytes]] = [
    (DATE, struct.pack(">i", (1 << 31) - 1)),
    (DATE, struct.pack(">i", -(1 << 31))),
    (DATE, struct.pack(">i", (date.max - EPOCH.date()).days + 1)),
    (DATE, struct.pack(">i", (date.min - EPOCH.date()).days - 1)),
    (TIMESTAMP, struct.pack(">q", (1 << 63) - 1)),
    (TIMESTAMPTZ, struct.pack(">q", -(1 << 63))),
    (TIMESTAMP, struct.pack(">q", (datetime.min - EPOCH) // timedelta(microseconds=1) - 1)),
    (TIMESTAMP, struct.pack(">q", (datetime.max - EPOCH) // timedelta(microseconds=1) + 1)),
]


@pytest.mark.parametrize(("oid", "value"), INFINITE)
def test_dates_that_spark_does_not_have_are_null(oid: int, value: bytes) -> None:
    decoder = CopyDecoder([PgColumn(name="c", oid=oid)], TOKEN)
    row = struct.pack(">hiqi", 2, 8, decoder.mark, len(value)) + value
    batch = decoder.rows([HEAD + row + END], is_end=True)
    assert batch is not None and batch.to_pylist() == [{"c": None}]


@examples(300)
@given(table=tables(), data=st.data())
def test_damaged_streams_are_refused_or_have_other_values(
    table: tuple[list[PgColumn], list[dict[str, Any]]], data: st.DataObject
) -> None:
    """Damage never gives another number of rows, and no error of another kind."""
    columns, rows = table
    decoder = CopyDecoder(columns, TOKEN)
    damaged = bytearray(stream(decoder, rows))
    place = data.draw(st.integers(0, len(damaged) - 1))
    if data.draw(st.booleans()):
        damaged[place] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[place : place + data.draw(st.integers(1, 30))]
    try:
        found = decoder.rows([bytes(damaged)], is_end=True)
    except (RetryableError, pa.ArrowInvalid):
        return
    assert (0 if found is None else found.num_rows) == len(rows)
