"""Test the codec of delete blocks: bytes of Hudi, types of ordering values, and invalid blocks."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.format.log.delete_block import decode_deletes, encode_deletes
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from tests.support.delete_list import Entry, read_entries, write_entries

KEYS = pa.array(["a", "b"])
LATE, EARLY = datetime(2024, 1, 7, tzinfo=UTC), datetime(2024, 1, 3, tzinfo=UTC)
#: Contents of delete blocks of Apache Hudi 1.2 on Spark for the keys a and b of partition x. Hudi cannot write dates;
#: their bytes are those that it reads.
HUDIS = [
    (pa.int32(), [7, 3], "04 02 02 61 02 02 78 04 0e 02 02 62 02 02 78 04 06 00"),
    (pa.int64(), [7, 3], "04 02 02 61 02 02 78 06 0e 02 02 62 02 02 78 06 06 00"),
    (pa.float32(), [7.5, 3.5], "04 02 02 61 02 02 78 08 00 00 f0 40 02 02 62 02 02 78 08 00 00 60 40 00"),
    (
        pa.float64(),
        [7.5, 3.5],
        "04 02 02 61 02 02 78 0a 00 00 00 00 00 00 1e 40 02 02 62 02 02 78 0a 00 00 00 00 00 00 0c 40 00",
    ),
    (pa.bool_(), [True, False], "04 02 02 61 02 02 78 02 01 02 02 62 02 02 78 02 00 00"),
    (pa.string(), ["c", "a"], "04 02 02 61 02 02 78 0e 02 63 02 02 62 02 02 78 0e 02 61 00"),
    (
        pa.timestamp("us", "UTC"),
        [LATE, EARLY],
        "04 02 02 61 02 02 78 06 80 80 eb b2 f8 93 87 06 02 02 62 02 02 78 06 80 80 ff bc e9 ff 86 06 00",
    ),
    (
        pa.decimal128(10, 2),
        [Decimal("7.50"), Decimal("3.50")],
        "04 02 02 61 02 02 78 12 0e 1a a5 35 d3 d0 c0 00 02 02 62 02 02 78 12 0e 0c 6f 3b 40 b6 c0 00 00",
    ),
    (
        pa.date32(),
        [date(2024, 1, 7), date(2024, 1, 3)],
        "04 02 02 61 02 02 78 04 a2 b4 02 02 02 62 02 02 78 04 9a b4 02 00",
    ),
]


def content(payload: bytes, version: int = 3) -> bytes:
    return struct.pack(">ii", version, len(payload)) + payload


@pytest.mark.parametrize(("kind", "values", "text"), HUDIS, ids=[str(kind) for kind, _, _ in HUDIS])
def test_ordering_values_are_encoded_like_hudi(kind: pa.DataType, values: list[Any], text: str) -> None:
    theirs = content(bytes.fromhex(text))
    ordering = pa.array(values, kind)
    assert encode_deletes(KEYS, "x", ordering) == theirs
    read = decode_deletes(theirs, [kind])
    assert (read.keys, read.partitions, read.ordering) == (KEYS, pa.array(["x", "x"]), (ordering,))
    assert not read.default.any()


def test_deletes_without_ordering_values_are_encoded_like_hudi() -> None:
    theirs = content(bytes.fromhex("02 02 02 63 02 02 78 04 00 00"))
    assert encode_deletes(pa.array(["c"]), "x") == theirs
    read = decode_deletes(theirs, [pa.int64(), pa.string()])
    assert read.default.tolist() == [True]
    assert [column.to_pylist() for column in read.ordering] == [[None], [None]]
    assert decode_deletes(theirs, []).ordering == ()


def test_several_ordering_columns_are_encoded_as_an_array() -> None:
    theirs = content(
        bytes.fromhex("04 02 02 61 02 02 78 18 02 04 06 0a 0e 02 7a 00 02 02 62 02 02 78 18 02 04 06 0a 0e 02 61 00 00")
    )
    read = decode_deletes(theirs, [pa.int64(), pa.string()])
    assert [column.to_pylist() for column in read.ordering] == [[5, 5], ["z", "a"]]
    assert decode_deletes(theirs, [pa.string(), pa.int64()]).default.all()
    assert decode_deletes(theirs, [pa.int64()]).default.all()
    assert decode_deletes(theirs, [pa.int64()] * 3).default.all()


def test_dates_and_times_of_several_ordering_columns_are_read_from_hudi() -> None:
    theirs = content(bytes.fromhex("02 02 02 61 02 02 78 18 02 04 18 9e b4 02 06 80 80 eb b2 f8 93 87 06 00 00"))
    read = decode_deletes(theirs, [pa.date32(), pa.timestamp("us")])
    assert [column.to_pylist() for column in read.ordering] == [[date(2024, 1, 5)], [LATE.replace(tzinfo=None)]]


MIXED: list[Entry] = [
    ("a", "x", ("Long", 5)),
    ("b", None, ("Int", 0)),
    ("c", "", None),
    ("", "yy", ("Long", 0)),
    ("d", "x", ("Int", 5)),
    ("e", "x", ("TimestampMicros", 7)),
    ("f", "x", ("Array", [("Long", 1)])),
    ("g", "x", ("Array", [])),
    ("h\u00e9", "x", ("String", "\x02\x02")),
    ("i", "x", ("Long", -(2**63))),
]


def test_a_value_of_another_class_is_treated_as_no_ordering_value() -> None:
    read = decode_deletes(write_entries(MIXED), [pa.int64()])
    assert read.keys.to_pylist() == [key for key, _, _ in MIXED]
    assert read.partitions.to_pylist() == [partition for _, partition, _ in MIXED]
    assert read.ordering[0].to_pylist() == [5, None, None, 0, None, None, None, None, None, -(2**63)]
    assert read.default.tolist() == [value is None for value in read.ordering[0].to_pylist()]


def test_dates_and_timestamps_are_read_from_either_wrapper() -> None:
    dates = write_entries([("a", "x", ("Date", 3)), ("b", "x", ("Int", 4)), ("c", "x", ("Long", 5))])
    assert decode_deletes(dates, [pa.date32()]).ordering[0].cast(pa.int32()).to_pylist() == [3, 4, None]
    times = write_entries([("a", "x", ("TimestampMicros", 7_000)), ("b", "x", ("Long", 7))])
    read = decode_deletes(times, [pa.timestamp("ms")])
    assert read.ordering[0].cast(pa.int64()).to_pylist() == [7, 7]
    assert decode_deletes(times, [pa.timestamp("us")]).ordering[0].cast(pa.int64()).to_pylist() == [7_000, 7]


def test_ordering_values_of_binary_columns_are_read() -> None:
    read = decode_deletes(write_entries([("a", "x", ("Bytes", b"\x00\xff"))]), [pa.binary()])
    assert read.ordering[0].to_pylist() == [b"\x00\xff"]


@pytest.mark.parametrize(
    "value", [Decimal("0.00"), Decimal("-0.01"), Decimal("123456789012345.67"), Decimal("-999999999999999.99")]
)
def test_decimals_of_each_size_round_trip(value: Decimal) -> None:
    ordering = pa.array([value], pa.decimal128(17, 2))
    read = decode_deletes(encode_deletes(pa.array(["k"]), "", ordering), [ordering.type])
    assert read.ordering[0].to_pylist() == [value]
    ((_, _, wrapped),) = read_entries(encode_deletes(pa.array(["k"]), "", ordering))
    unscaled = int(value.scaleb(15))
    assert wrapped == (
        "Decimal",
        unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, signed=True),
    )


def test_array_blocks_with_sizes_are_read() -> None:
    entry = bytes.fromhex("02 02 61 02 02 78 04 00")
    payload = b"\x02" + entry + b"\x03" + b"\x20" + entry * 2 + b"\x00"
    assert decode_deletes(content(payload), []).keys.to_pylist() == ["a", "a", "a"]


def test_sliced_arrays_are_encoded_without_hidden_values() -> None:
    keys, ordering = pa.array(["z", "a", "b", "y"])[1:3], pa.array([9, 7, 3, 8])[1:3]
    assert encode_deletes(keys, "x", ordering) == encode_deletes(KEYS, "x", pa.array([7, 3]))
    flags = pa.array([True, True, False, True])[1:3]
    assert encode_deletes(keys, "x", flags) == encode_deletes(KEYS, "x", pa.array([True, False]))
    decimals = pa.array([Decimal(9), Decimal(7), Decimal(3), Decimal(8)], pa.decimal128(5, 1))
    assert encode_deletes(keys, "x", decimals[1:3]) == encode_deletes(KEYS, "x", decimals.take(pa.array([1, 2])))


def test_no_deletes_are_encoded_as_an_empty_array() -> None:
    empty = encode_deletes(pa.array([], pa.string()), "x")
    assert empty == content(b"\x00")
    assert len(decode_deletes(empty, [pa.int64()]).keys) == 0
    assert encode_deletes(pa.array([], pa.string()), "x", pa.array([], pa.int64())) == empty


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.int32()), pa.decimal128(20, 2), pa.timestamp("ns")])
def test_unsupported_ordering_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedError, match="cannot be the ordering column of deletes"):
        encode_deletes(pa.array(["a"]), "x", pa.array([None], kind))


def test_nulls_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(UserError, match="1 of 2 deletes have no ordering value"):
        encode_deletes(KEYS, "x", pa.array([1, None]))
    with pytest.raises(UserError, match="1 of 1 keys to delete are null"):
        encode_deletes(pa.array([None], pa.string()), "x")
    with pytest.raises(UserError, match="2 keys to delete have 1 ordering values"):
        encode_deletes(KEYS, "x", pa.array([1]))


WHOLE = encode_deletes(KEYS, "x", pa.array([7, 3]))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "at least 8"),
        (WHOLE[:-1], "of version 3 has"),
        (content(b""), "ends inside its array"),
        (content(WHOLE[8:-1]), "ends inside its array"),
        (content(WHOLE[8:] + b"\x00"), "end 1 bytes before"),
        (content(b"\x06" + WHOLE[9:]), "not have 3 entries"),
        (content(b"\x02\x00\x02\x02x\x04\x00\x00"), "not have 1 entries"),
        (content(b"\x02\x02\x02\xff\x02\x02x\x04\x00\x00"), "not UTF-8"),
        (content(b"\x02\x02\x02a\x02\x02x\x1a\x00\x00"), "not have 1 entries"),
        (content(WHOLE[8:], version=4), "version 4"),
    ],
)
def test_invalid_delete_blocks_are_corrupt(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptTableError, match=problem):
        decode_deletes(data, [pa.int64()])


def test_values_outside_the_range_of_their_type_are_corrupt() -> None:
    block = write_entries([("a", "x", ("Int", 70_000))])
    with pytest.raises(CorruptTableError, match="not a valid int16"):
        decode_deletes(block, [pa.int16()])
    with pytest.raises(CorruptTableError, match="not a valid decimal128"):
        decode_deletes(write_entries([("a", "x", ("Decimal", b"\x01"))]), [pa.decimal128(10, 2)])


def test_keys_that_look_like_entries_are_read() -> None:
    entry = "\x02\x02a\x02\x02x\x04\x00"
    keys = pa.array([entry, f"{entry}{entry}", "\x02", "", entry * 50])
    read = decode_deletes(encode_deletes(keys, entry, pa.array(np.arange(5))), [pa.int64()])
    assert read.keys == keys and read.ordering[0].to_pylist() == [0, 1, 2, 3, 4]
