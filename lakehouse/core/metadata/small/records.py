"""Metadata records as plain values: keys, encoding, decoding, merging (MDT-4).

The bytes equal the bytes of the encoders in `core/format/metadata`. Damaged records are refused, and records with
another schema than this package writes: the general decoder reports the damage.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import pyarrow as pa

from lakehouse.core.format.metadata.bounds import BOOLEAN, DATA, DOUBLE, FLOAT, NUMBERS
from lakehouse.core.format.metadata.keys import ALL_PARTITIONS, NON_PARTITIONED, hash64
from lakehouse.core.format.metadata.records import FILE_LIST, PARTITION_LIST, PARTITION_STATS, STATS
from lakehouse.core.format.metadata.schema import WRAPPERS

P = ParamSpec("P")
R = TypeVar("R")

#: Encoded prefix of each record: the null meta columns and the empty key.
_HEAD = bytes(6)
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_FLAGS = (b"\0", b"\1")
#: The maximum number of statistics records that are cached with their rows, and the maximum bytes of one.
_KEPT_STATISTICS, _KEPT_BYTES = 4096, 4096
#: Size in bytes up to which `files` records are decoded one by one; larger ones contain many names.
FEW_BYTES = 32_768


class Bound(NamedTuple):
    """A bound with the number of its Avro wrapper type; 0 and None mean no bound. Strings and decimals are bytes."""

    wrapper: int = 0
    value: Any = None


class Statistic(NamedTuple):
    """A row of `STAT_ROWS` without its key."""

    type: int
    name: str
    column: str
    low: Bound
    high: Bound
    value_count: int | None
    null_count: int | None
    size_bytes: int | None
    raw_bytes: int | None
    deleted: bool = False
    tight: bool = False
    type_ordinal: int | None = None
    type_info: str | None = None


#: Cached rows by stored record, for records that this process wrote or decoded.
_statistics: dict[bytes, Statistic] = {}


class UnusualRecordError(Exception):
    """Records have a form that plain values do not support; the kernels for whole tables do."""


def refuse() -> NoReturn:
    """Leave the fast path: its entry function returns None."""
    raise UnusualRecordError


def door(function: Callable[P, R]) -> Callable[P, R | None]:
    """Make a function of the fast path return None for records that it refuses."""

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except UnusualRecordError:
            return None

    return opened


@lru_cache(maxsize=8192)
def hash64_of(text: str) -> bytes:
    """Return the 64-bit hash of a string, as `hash64` does."""
    hashed: str = hash64(pa.array([text], pa.string()))[0].as_py()
    return hashed.encode()


def hash128_of(text: str) -> bytes:
    """Return the 128-bit hash of a string, as `hash128` does."""
    return base64.b64encode(hashlib.md5(text.encode(), usedforsecurity=False).digest())


def partition_key(column: str, partition: str) -> bytes:
    """Return the key in `partition_stats`."""
    return hash64_of(column) + hash64_of(partition or NON_PARTITIONED)


def file_suffix(partition: str, name: str) -> bytes:
    """Return the part of the keys in `column_stats` that follows the hash of the column."""
    return hash64_of(partition or NON_PARTITIONED) + hash128_of(name)


def encode_statistic(row: Statistic) -> bytes:
    """Return the stored record of statistics."""
    data = _encoded_statistic(row)
    _remember(data, row)
    return data


def _encoded_statistic(row: Statistic) -> bytes:
    parts = [
        _HEAD,
        _long(row.type),
        b"\0\0\2",  # the payload is the third of five fields
        b"\2" + _text(row.name.encode()),
        b"\2" + _text(row.column.encode()),
        _encoded_bound(row.low),
        _encoded_bound(row.high),
    ]
    for count in (row.value_count, row.null_count, row.size_bytes, row.raw_bytes):
        parts.append(b"\0" if count is None else b"\2" + _long(count))
    parts += (_FLAGS[row.deleted], _FLAGS[row.tight])
    if row.type_ordinal is None:
        parts.append(b"\0")
    else:
        parts.append(b"\2" + _long(row.type_ordinal))
        parts.append(b"\0" if row.type_info is None else b"\2" + _text(row.type_info.encode()))
    parts.append(b"\0\0")
    return b"".join(parts)


def decode_statistic(data: bytes) -> Statistic:
    """Return the statistics of a stored record."""
    row = _statistics.get(data)
    if row is None:
        row = _decoded_statistic(data)
        _remember(data, row)
    return row


def _remember(data: bytes, row: Statistic) -> None:
    """Keep a stored record with its row: the next commit and the next compaction read it."""
    if len(data) > _KEPT_BYTES:
        return
    if len(_statistics) >= _KEPT_STATISTICS:
        _statistics.clear()
    _statistics[data] = row


def _decoded_statistic(data: bytes) -> Statistic:
    source = _Source(data)
    source.expect(_HEAD)
    kind = source.long()
    source.expect(b"\0\0\2")
    name, column = source.optional(source.text), source.optional(source.text)
    low, high = source.bound(), source.bound()
    values, nulls, size, raw = (source.optional(source.long) for _ in range(4))
    deleted, tight = source.flag(), source.flag()
    typed = source.optional(lambda: (source.long(), source.optional(source.text)))
    source.expect(b"\0\0")
    if source.at != len(data) or kind not in (STATS, PARTITION_STATS) or name is None or column is None:
        refuse()
    ordinal, info = typed or (None, None)
    return Statistic(kind, name, column, low, high, values, nulls, size, raw, deleted, tight, ordinal, info)


def merged_statistics(key: bytes, versions: Sequence[bytes]) -> bytes | None:
    """Merge the versions of a statistics record, oldest first. Return None if the record is deleted.

    Versions that must be combined are refused.
    """
    newest = decode_statistic(versions[-1])
    if newest.deleted:
        return None
    if len(versions) > 1 and not newest.tight:
        refuse()
    return versions[-1]


def merged_file_maps(key: bytes, versions: Sequence[bytes]) -> bytes | None:
    """Merge the versions of a `files` record, oldest first. Return None if no file is left.

    Tombstones without a matching file are kept.
    """
    if len(versions) == 1:
        return versions[0]
    if sum(map(len, versions)) > FEW_BYTES:
        refuse()
    maps = [decode_file_map(version) for version in versions]
    files: dict[str, tuple[int, bool]] = {}
    for newer in maps:
        add_files(files, newer)
    if not files and all(maps):
        return None
    return encode_file_map(files, partitions=key == ALL_PARTITIONS.encode())


def add_files(files: dict[str, tuple[int, bool]], newer: Mapping[str, tuple[int, bool]]) -> None:
    """Merge the files of two versions of a record: a tombstone removes the file with the same name."""
    for name, (size, deleted) in newer.items():
        older = files.get(name)
        is_live = older is not None and not older[1]
        if deleted and is_live:
            del files[name]
        elif is_live and older is not None:
            files[name] = (max(older[0], size), False)
        else:
            files[name] = (size, deleted)


def encode_file_map(files: Mapping[str, tuple[int, bool]], *, partitions: bool = False) -> bytes:
    """Encode a record of `files` from (size, deleted) by file name, or from the names of partitions."""
    parts = [_HEAD, _long(PARTITION_LIST if partitions else FILE_LIST), b"\2"]
    if files:
        parts.append(_long(len(files)))
        for name, (size, deleted) in files.items():
            parts += (_text(name.encode()), _long(size), _FLAGS[deleted])
    parts.append(b"\0\0\0\0\0")
    return b"".join(parts)


def decode_file_map(data: bytes) -> dict[str, tuple[int, bool]]:
    """Decode a record of `files` to (size, deleted) by file name."""
    source = _Source(data)
    source.expect(_HEAD)
    kind = source.long()
    source.expect(b"\2")
    files: dict[str, tuple[int, bool]] = {}
    while count := source.long():
        if count < 0 or count > len(data):
            refuse()
        for _ in range(count):
            name = source.text()
            files[name] = (source.long(), source.flag())
    source.expect(b"\0\0\0\0")
    if source.at != len(data) or kind not in (PARTITION_LIST, FILE_LIST):
        refuse()
    return files


def _long(number: int) -> bytes:
    """Return a number as an Avro varint."""
    rest = (number << 1) ^ (number >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _text(data: bytes) -> bytes:
    return _long(len(data)) + data


def _encoded_bound(bound: Bound) -> bytes:
    wrapper, value = bound
    if wrapper == 0:
        return b"\0"
    branch = bytes((2 * wrapper,))
    if wrapper in DATA:
        return branch + _text(value)
    if wrapper == BOOLEAN:
        return branch + _FLAGS[bool(value)]
    if wrapper == FLOAT:
        return branch + _FLOAT.pack(value)
    return branch + (_DOUBLE.pack(value) if wrapper == DOUBLE else _long(value))


class _Source:
    """Reads the parts of a record one after the other."""

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def expect(self, expected: bytes) -> None:
        end = self.at + len(expected)
        if self._data[self.at : end] != expected:
            refuse()
        self.at = end

    def long(self) -> int:
        data, at, value, shift = self._data, self.at, 0, 0
        while at < len(data) and shift < 64:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return (value >> 1) ^ -(value & 1)
            shift += 7
        refuse()

    def bytes(self) -> bytes:
        length = self.long()
        begin, end = self.at, self.at + length
        if length < 0 or end > len(self._data):
            refuse()
        self.at = end
        return self._data[begin:end]

    def text(self) -> str:
        try:
            return self.bytes().decode()
        except UnicodeDecodeError:
            refuse()

    def flag(self) -> bool:
        at = self.at
        if at >= len(self._data) or self._data[at] > 1:
            refuse()
        self.at = at + 1
        return self._data[at] == 1

    def optional(self, read: Any) -> Any:
        branch = self.long()
        if branch not in (0, 1):
            refuse()
        return read() if branch else None

    def bound(self) -> Bound:
        wrapper = self.long()
        if not 0 <= wrapper <= len(WRAPPERS):
            refuse()
        if wrapper == 0:
            return Bound()
        if wrapper in DATA:
            return Bound(wrapper, self.bytes())
        if wrapper == BOOLEAN:
            return Bound(wrapper, int(self.flag()))
        if wrapper in NUMBERS:
            return Bound(wrapper, self.long())
        form = _FLOAT if wrapper == FLOAT else _DOUBLE
        begin, end = self.at, self.at + form.size
        if end > len(self._data):
            refuse()
        self.at = end
        return Bound(wrapper, form.unpack(self._data[begin:end])[0])
