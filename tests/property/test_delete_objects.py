"""Property tests of delete blocks with Java objects: they decode like version 3, and damage is detected cheaply."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.log.delete_block import DeletedKeys
from lakehouse.core.format.log.delete_objects import decode_any_deletes
from lakehouse.errors import CorruptTableError, UnsupportedError
from tests.support.delete_list import Entry, write_entries
from tests.support.java_deletes import AVRO_8, AVRO_10, HUDI_0_12, HUDI_0_13, framed, write_objects
from tests.support.tables import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["a", "p=1", "\u00e9" * 70, "k" * 64]
)


def fifths(number: int) -> Decimal:
    """Return `number` * 1e-5 as a decimal with five fractional digits."""
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -5))


SCALARS = st.one_of(
    st.tuples(st.just("Boolean"), st.booleans()),
    st.tuples(st.just("Int"), st.integers(-2, 2) | st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("Long"), st.integers(-2, 2) | st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("Float"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("Double"), st.floats(allow_nan=False)),
    st.tuples(st.sampled_from(["String", "Utf8"]), TEXT),
    st.tuples(st.just("Date"), st.integers(-1000, 30_000)),
    st.tuples(st.just("Decimal"), st.integers(-(10**12), 10**12).map(fifths)),
    st.tuples(st.just("TimestampMicros"), st.integers(-(10**15), 10**16) | st.integers(-9, 9)),
)
ARRAYS = st.tuples(st.just("Array"), st.lists(st.none() | SCALARS, max_size=3))
ENTRIES = st.lists(st.tuples(TEXT, st.none() | TEXT, st.none() | SCALARS | ARRAYS), max_size=8)
FORMS = st.sampled_from([AVRO_8, AVRO_10, HUDI_0_12, HUDI_0_13])
KINDS: list[list[pa.DataType]] = [
    [pa.int32()],
    [pa.int8()],
    [pa.int64()],
    [pa.float32()],
    [pa.float64()],
    [pa.bool_()],
    [pa.string()],
    [pa.date32()],
    [pa.timestamp("us", "UTC")],
    [pa.timestamp("ms")],
    [pa.decimal128(20, 5)],
    [pa.int32(), pa.string()],
    [pa.date32(), pa.timestamp("us")],
    [],
]


def in_version_3(value: tuple[str, Any] | None, *, within: bool = False) -> tuple[str, Any] | None:
    """Return a value in the representation of version 3."""
    if value is None:
        return None
    name, content = value
    if name == "Array":
        return name, [in_version_3(item, within=True) for item in content]
    if name == "Decimal":
        number = int(content.scaleb(15))
        return name, number.to_bytes(16, signed=True)
    return {"Utf8": "String", "Date": "LocalDate" if within else "Date"}.get(name, name), content


def read_or_refused(content: bytes, kinds: list[pa.DataType]) -> DeletedKeys | str:
    try:
        return decode_any_deletes(content, kinds)
    except CorruptTableError as error:
        return error.message.partition(":")[0]


@examples(400)
@given(ENTRIES, st.booleans(), FORMS)
def test_java_objects_decode_like_version_3_entries(entries: list[Entry], shared: bool, utf8: str | int) -> None:
    plain = [(key, partition, in_version_3(value)) for key, partition, value in entries]
    objects, avro = write_objects(entries, 2, shared=shared, utf8=utf8), write_entries(plain)
    for kinds in KINDS:
        ours, theirs = read_or_refused(objects, kinds), read_or_refused(avro, kinds)
        if isinstance(ours, str) or isinstance(theirs, str):
            assert ours == theirs
            continue
        assert (ours.keys, ours.partitions) == (theirs.keys, theirs.partitions)
        assert ours.ordering == theirs.ordering
        assert ours.default.tolist() == theirs.default.tolist()


@examples(100)
@given(st.lists(st.tuples(TEXT, st.none() | TEXT, st.none()), max_size=8), st.booleans())
def test_version_1_deletes_have_no_ordering_value(entries: list[Entry], shared: bool) -> None:
    read = decode_any_deletes(write_objects(entries, 1, shared=shared), [pa.int64()])
    assert read.keys.to_pylist() == [key for key, _, _ in entries]
    assert read.partitions.to_pylist() == [partition for _, partition, _ in entries]
    assert read.default.all()


@examples(300)
@given(ENTRIES, st.booleans(), FORMS, st.sampled_from([1, 2]), st.data())
def test_truncated_java_objects_are_corrupt(
    entries: list[Entry], shared: bool, utf8: str | int, version: int, data: st.DataObject
) -> None:
    payload = write_objects(entries, version, shared=shared, utf8=utf8)[8:]
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    with pytest.raises(CorruptTableError):
        decode_any_deletes(framed(version, cut), [pa.string()])


@examples(500)
@given(ENTRIES, st.booleans(), FORMS, st.sampled_from([1, 2]), st.data())
def test_damaged_java_objects_are_refused_or_decode_to_complete_columns(
    entries: list[Entry], shared: bool, utf8: str | int, version: int, data: st.DataObject
) -> None:
    content = bytearray(write_objects(entries, version, shared=shared, utf8=utf8))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(8, len(content) - 1))] = data.draw(st.integers(0, 255))
    for kinds in ([pa.string()], [pa.decimal128(20, 5), pa.float64()], [pa.timestamp("us")], [pa.int8()]):
        try:
            result = decode_any_deletes(bytes(content), kinds)
        except (CorruptTableError, UnsupportedError):
            continue
        result.keys.validate(full=True)
        assert len(result.keys) == len(result.partitions) == len(result.default)
        assert [column.type for column in result.ordering] == kinds
        for column in result.ordering:
            column.validate(full=True)
            assert column.is_null().to_pylist() == result.default.tolist()


@examples(300)
@given(st.sampled_from([1, 2]), st.binary(max_size=200), st.booleans())
def test_random_bytes_are_refused(version: int, tail: bytes, after_the_head: bool) -> None:
    head = write_objects([("k", "p", ("Int", 1))], version)[8:-6] if after_the_head else b""
    try:
        result = decode_any_deletes(framed(version, head + tail), [pa.int64()])
    except (CorruptTableError, UnsupportedError):
        return
    assert len(result.keys) == len(result.default)


@pytest.mark.parametrize(
    "tail", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x07" + b"\x01" * 500, b"\x01\xff\xff\xff\x07"]
)
def test_wrong_lengths_allocate_no_memory(tail: bytes) -> None:
    heads = {
        "entries": write_objects([], 2)[8:-1],
        "a key": write_objects([("key", None, ("Int", 0))], 2)[8:-6] + b"\x01\xff",
        "a value": write_objects([("key", None, ("Utf8", ""))], 2)[8:-1],
        "a decimal": write_objects([("key", None, ("Decimal", Decimal(1)))], 2)[8:-3],
    }
    for head in heads.values():
        tracemalloc.start()
        try:
            with pytest.raises((CorruptTableError, UnsupportedError)):
                decode_any_deletes(framed(2, head + tail), [pa.string()])
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
