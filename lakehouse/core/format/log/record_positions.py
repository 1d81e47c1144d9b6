"""Read and write the block header RECORD_POSITIONS: the row numbers of records in a base file (DATA-4.2).

The string is Base64 of a 64-bit Roaring bitmap in its portable format, little-endian:

    uint64 buckets | per bucket: uint32 high half of its numbers | 32-bit Roaring bitmap of the low halves
    bitmap = cookie | containers: uint16 key, uint16 count - 1 | uint32 offsets | contents of the containers
             12346, uint32 containers                      no run containers
             12347 | (containers - 1) << 16, one bit each  a set bit is a run container; no offsets if fewer than 4
    container = up to 4096 numbers: uint16 each | more: 65536 bits | run: uint16 runs, each uint16 start, count - 1
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lakehouse.errors import CorruptTableError, UserError

I64: TypeAlias = NDArray[np.int64]

#: The maximum number of rows that is decoded. Without it, a few bytes of runs could declare 4 billion rows of 8 bytes.
MOST_ROWS = 1 << 26
_COOKIE = 12_346
_COOKIE_WITH_RUNS = 12_347
_MOST_IN_ARRAY = 4_096
_FEWEST_WITH_OFFSETS = 4
_SPAN = 1 << 16
_BITMAP_BYTES = _SPAN // 8
_RUNS = np.dtype("<u2")


def decode_positions(text: str) -> I64:
    """Return the row numbers in ascending order.

    Raises CorruptTableError if the string is not a bitmap or has more than MOST_ROWS rows.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptTableError(f"record positions are not Base64: {error}") from error
    reader = _Reader(data)
    parts = [np.zeros(0, np.int64)]
    for _ in range(reader.number("<u8")):
        high = reader.number("<u4")
        if high >= 1 << 31:
            raise CorruptTableError(
                f"record positions have row numbers of more than 63 bits, with the high half {high}"
            )
        parts += ((high << 32) + low for low in _containers(reader))
    reader.expect_end()
    rows = np.concatenate(parts)
    if len(rows) and (rows[0] < 0 or (np.diff(rows) <= 0).any()):
        raise CorruptTableError("record positions are not in ascending order")
    return rows


def encode_positions(rows: I64) -> str:
    """Return the header string for row numbers in any order; UserError if one is negative or occurs twice."""
    ordered = np.sort(rows).astype(np.int64)
    if (ordered[:1] < 0).any() or (np.diff(ordered) == 0).any():
        raise UserError("record positions must be unique and not negative")
    buckets = _split(ordered, 32)
    parts = [_bytes(len(buckets), "<u8")]
    for bucket in buckets:
        parts += (_bytes(int(bucket[0] >> 32), "<u4"), _bitmap(bucket & 0xFFFFFFFF))
    return base64.b64encode(b"".join(parts)).decode()


class _Reader:
    """Reads little-endian numbers in sequence."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._rows = 0

    def numbers(self, dtype: str, count: int) -> NDArray[Any]:
        """Return the next `count` numbers of type `dtype`."""
        size = np.dtype(dtype).itemsize * count
        if size > len(self._data) - self._position:
            raise CorruptTableError(f"record positions end at byte {len(self._data)}, inside a bitmap")
        numbers = np.frombuffer(self._data, dtype, count, self._position)
        self._position += size
        return numbers

    def number(self, dtype: str) -> int:
        """Return the next number of type `dtype`."""
        return int(self.numbers(dtype, 1)[0])

    def expect_rows(self, count: int) -> None:
        """Count `count` more row numbers before they are decoded; CorruptTableError if there are too many."""
        self._rows += count
        if self._rows > MOST_ROWS:
            raise CorruptTableError(f"record positions have {self._rows} row numbers; at most {MOST_ROWS} are possible")

    def expect_end(self) -> None:
        """Raise CorruptTableError if bytes are left."""
        if self._position != len(self._data):
            raise CorruptTableError(f"record positions end at byte {self._position}, but have {len(self._data)} bytes")


def _containers(reader: _Reader) -> list[I64]:
    """Return the numbers per container of a 32-bit bitmap."""
    cookie = reader.number("<u4")
    if cookie == _COOKIE:
        count = reader.number("<u4")
        is_run = np.zeros(0, bool)
    elif cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        is_run = np.unpackbits(reader.numbers("u1", -(-count // 8)), bitorder="little")[:count] != 0
    else:
        raise CorruptTableError(f"record positions have a bitmap with the unknown cookie {cookie}")
    if count > _SPAN:
        raise CorruptTableError(f"record positions have a bitmap of {count} containers; at most {_SPAN} are possible")
    heads = reader.numbers("<u2", 2 * count).reshape(count, 2).astype(np.int64)
    if cookie == _COOKIE or count >= _FEWEST_WITH_OFFSETS:
        reader.numbers("<u4", count)
    reader.expect_rows(int(heads[:, 1].sum()) + count)
    containers = []
    for number, (key, last) in enumerate(heads.tolist()):
        if number < len(is_run) and is_run[number]:
            low = _runs(reader, last + 1)
        elif last < _MOST_IN_ARRAY:
            low = reader.numbers("<u2", last + 1).astype(np.int64)
        else:
            low = np.flatnonzero(np.unpackbits(reader.numbers("u1", _BITMAP_BYTES), bitorder="little"))
        if len(low) != last + 1:
            raise CorruptTableError(
                f"record positions have a container of {len(low)} numbers that declares {last + 1} numbers"
            )
        containers.append(key * _SPAN + low)
    return containers


def _runs(reader: _Reader, expected: int) -> I64:
    pairs = reader.numbers("<u2", 2 * reader.number("<u2")).reshape(-1, 2).astype(np.int64)
    starts, counts = pairs[:, 0], pairs[:, 1] + 1
    if counts.sum() != expected:
        raise CorruptTableError(
            f"record positions have a container with runs of {counts.sum()} numbers that declares {expected} numbers"
        )
    first = np.cumsum(counts) - counts
    return np.repeat(starts - first, counts) + np.arange(counts.sum())


def _bitmap(low: I64) -> bytes:
    parts = _split(low, 16)
    heads = np.array([(part[0] >> 16, len(part) - 1) for part in parts]).astype("<u2")
    containers, is_run = zip(*(_container(part & (_SPAN - 1)) for part in parts), strict=True)
    if any(is_run):
        flags = np.packbits(is_run, bitorder="little").tobytes()
        cookie = _bytes(_COOKIE_WITH_RUNS | (len(parts) - 1) << 16, "<u4") + flags
    else:
        cookie = _bytes(_COOKIE, "<u4") + _bytes(len(parts), "<u4")
    offsets = b""
    if not any(is_run) or len(parts) >= _FEWEST_WITH_OFFSETS:
        sizes = np.array([len(container) for container in containers])
        start = len(cookie) + heads.nbytes + 4 * len(parts)
        offsets = (start + np.cumsum(sizes) - sizes).astype("<u4").tobytes()
    return b"".join((cookie, heads.tobytes(), offsets, *containers))


def _container(numbers: I64) -> tuple[bytes, bool]:
    """Return the container with the fewest bytes for numbers below 65536, and whether it is a run container."""
    firsts = np.flatnonzero(np.diff(np.append(-2, numbers)) != 1)
    if _RUNS.itemsize + 2 * _RUNS.itemsize * len(firsts) < _plain_bytes(len(numbers)):
        counts = np.diff(np.append(firsts, len(numbers)))
        pairs = np.stack([numbers[firsts], counts - 1], axis=1).astype(_RUNS)
        return _bytes(len(firsts), "<u2") + pairs.tobytes(), True
    if len(numbers) <= _MOST_IN_ARRAY:
        return numbers.astype("<u2").tobytes(), False
    bits = np.zeros(_SPAN, np.uint8)
    bits[numbers] = 1
    return np.packbits(bits, bitorder="little").tobytes(), False


def _plain_bytes(count: int) -> int:
    return 2 * count if count <= _MOST_IN_ARRAY else _BITMAP_BYTES


def _split(ordered: I64, bits: int) -> list[I64]:
    """Return the ascending numbers divided into groups that differ only in their low `bits` bits."""
    cuts = np.flatnonzero(np.diff(ordered >> bits)) + 1
    return np.split(ordered, cuts) if len(ordered) else []


def _bytes(number: int, dtype: str) -> bytes:
    return np.array(number, dtype).tobytes()
