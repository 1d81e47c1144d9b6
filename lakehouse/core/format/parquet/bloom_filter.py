"""Bloom filters of record keys in base file footers (DATA-3.3, DATA-3.4).

A filter is a list of bit rows with equal length. A SIMPLE filter has one row. A DYNAMIC_V0 filter, which this package
writes, adds a row for every `entries` keys up to `dynamic_max` keys, then adds keys to its rows in turn. A key may be
in the file if at least one row has all bits of the key set.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lakehouse.core.format.parquet.murmur_hash import I64, KeyBlock, key_blocks
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError

Keys: TypeAlias = pa.Array | pa.ChunkedArray
Bits: TypeAlias = NDArray[np.uint8]

SIMPLE = "SIMPLE"
DYNAMIC = "DYNAMIC_V0"

_VERSION = -1
# Maximum number of hashes: that of the minimum false-positive rate of a double. Each lookup needs as many steps.
_MOST_HASHES = 1_100
_MURMUR = 1
_HEADER = struct.Struct(">iibi")  # version, number of hashes, type of hash, number of bits
_DYNAMIC = struct.Struct(">iii")  # entries per row, keys in the last row, rows
_MAX_BITS = 2**31 - 1
_TEXT_STEP = 3 << 18
_DYNAMIC_MAX = 100_000  # default of hoodie.bloom.index.filter.dynamic.max.entries
#: Below one position per this many bits it is faster to set single bits than to expand the row to a byte per bit.
_SPARSE = 16
#: Number of rounds after which usually 15 of 16 keys that are not in a full row are excluded.
_FIRST_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BloomFilter:
    """An immutable filter; `add` returns a new one. The hash function is murmur, except for filters of older files."""

    type_code: str
    num_hashes: int
    num_bits: int
    rows: tuple[Bits, ...]
    hash_type: int = _MURMUR
    entries: int
    count: int
    dynamic_max: int = _DYNAMIC_MAX

    @classmethod
    def build(cls, keys: Keys, *, entries: int, fpp: float, dynamic_max: int = _DYNAMIC_MAX) -> BloomFilter:
        """Build the filter of `keys`, with a false-positive rate `fpp` per row of `entries` keys."""
        builder = BloomBuilder(entries, fpp, dynamic_max)
        builder.add(keys)
        return builder.finish()

    @property
    def hashes_murmur(self) -> bool:
        """Whether keys can be looked up and added; false for the hash function of older files."""
        return self.hash_type == _MURMUR

    @property
    def remaining(self) -> int:
        """Number of keys that fit before the false-positive rate increases; an estimate for SIMPLE filters."""
        return max(0, _max_rows(self.entries, self.dynamic_max, self.type_code) * self.entries - self.count)

    def add(self, keys: Keys) -> BloomFilter:
        """Return this filter with `keys` added, for a file that is rewritten with a few new keys."""
        self._refuse_other_hashes()
        builder = BloomBuilder._resumed(self)
        builder.add(keys)
        return builder.finish()

    def might_contain(self, keys: Keys) -> NDArray[np.bool_]:
        """Return for each key whether the file may contain it; False means that it does not."""
        return self.might_contain_blocks(list(key_blocks(keys)))

    def might_contain_blocks(self, blocks: Sequence[KeyBlock]) -> NDArray[np.bool_]:
        """Return the same for keys that are prepared for hashing, so that a batch is tested against many filters."""
        self._refuse_other_hashes()
        results = np.zeros(sum(block.size for block in blocks), np.bool_)
        first = 0
        for block in blocks:
            part = results[first : first + block.size]
            hits = np.zeros(block.size, np.bool_)
            for row in self.rows:
                hits |= _has_all(row, block, self.num_hashes, self.num_bits)
            part[... if block.order is None else block.order] = hits
            first += block.size
        return results

    def to_text(self) -> str:
        """Return the value of the footer key `org.apache.hudi.bloomfilter`; `type_code` has its own key."""
        return b"".join(self.text_pieces()).decode("ascii")

    @property
    def text_bytes(self) -> int:
        """Length of the encoded filter in bytes."""
        size = len(self.rows) * (_HEADER.size + _bytes_for(self.num_bits))
        if self.type_code == DYNAMIC:
            size += _HEADER.size + _DYNAMIC.size
        return -(-size // 3) * 4

    def text_pieces(self) -> Iterator[bytes]:
        """Yield the encoded filter in pieces, so that memory never holds all of it."""
        rest = b""
        for part in self._parts():
            for start in range(0, len(part), _TEXT_STEP):
                piece = rest + bytes(part[start : start + _TEXT_STEP])
                whole = len(piece) // 3 * 3
                yield base64.b64encode(piece[:whole])
                rest = piece[whole:]
        yield base64.b64encode(rest)

    def _parts(self) -> Iterator[bytes | memoryview]:
        header = _HEADER.pack(_VERSION, self.num_hashes, self.hash_type, self.num_bits)
        if self.type_code == DYNAMIC:
            in_last = self.count - (len(self.rows) - 1) * self.entries
            yield header + _DYNAMIC.pack(self.entries, in_last, len(self.rows))
        for row in self.rows:
            yield header
            yield row.data

    @classmethod
    def from_text(cls, text: str, type_code: str | None) -> BloomFilter:
        """Decode the filter of a footer; `type_code` None means SIMPLE, as in files before Hudi 0.6.

        Raises UnsupportedError for another type and CorruptTableError if the bytes contradict their header.
        """
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise CorruptTableError(f"bloom filter is not Base64: {error}") from error
        if type_code in (None, SIMPLE):
            return cls._from_simple(data)
        if type_code != DYNAMIC:
            raise UnsupportedError(f"bloom filter type {type_code!r} is not supported; supported: {SIMPLE}, {DYNAMIC}")
        return cls._from_dynamic(data)

    @classmethod
    def _from_simple(cls, data: bytes) -> BloomFilter:
        num_hashes, hash_type, num_bits = _read_header(data, 0)
        row = _read_row(data, 0, num_bits)
        # A SIMPLE filter stores neither its capacity nor its number of keys; both are estimated from its bits.
        entries = max(1, round(math.log(2) * num_bits / num_hashes))
        share = min(int(np.unpackbits(row).sum()) / num_bits, 1 - 1 / num_bits)
        return cls(
            type_code=SIMPLE,
            num_hashes=num_hashes,
            num_bits=num_bits,
            rows=(row,),
            hash_type=hash_type,
            entries=entries,
            count=round(-num_bits / num_hashes * math.log1p(-share)),
        )

    @classmethod
    def _from_dynamic(cls, data: bytes) -> BloomFilter:
        header = _read_header(data, 0)
        num_hashes, hash_type, num_bits = header
        if len(data) < _HEADER.size + _DYNAMIC.size:
            raise CorruptTableError(f"dynamic bloom filter of {len(data)} bytes is shorter than its header")
        entries, in_last, num_rows = _DYNAMIC.unpack_from(data, _HEADER.size)
        start = _HEADER.size + _DYNAMIC.size
        step = _HEADER.size + _bytes_for(num_bits)
        if entries < 1 or in_last < 0 or num_rows < 1 or len(data) != start + num_rows * step:
            raise CorruptTableError(
                f"dynamic bloom filter of {len(data)} bytes claims {num_rows} rows of {num_bits} bits, {entries} keys"
                f" a row and {in_last} in the last"
            )
        rows = []
        for at in range(start, len(data), step):
            if _read_header(data, at) != header:
                raise CorruptTableError(f"row at byte {at} of a dynamic bloom filter differs from the first in shape")
            rows.append(_read_row(data, at, num_bits))
        return cls(
            type_code=DYNAMIC,
            num_hashes=num_hashes,
            num_bits=num_bits,
            rows=tuple(rows),
            hash_type=hash_type,
            entries=entries,
            count=(num_rows - 1) * entries + in_last,
            # The maximum is not stored. A last row with more than `entries` keys shows that it was reached.
            dynamic_max=num_rows * entries if in_last > entries else max(_DYNAMIC_MAX, num_rows * entries),
        )

    def _refuse_other_hashes(self) -> None:
        if self.hash_type != _MURMUR:
            raise UnsupportedError(
                f"bloom filters with hash type {self.hash_type} (Jenkins) can be copied but not used for lookups; only"
                " murmur, which Hudi writes, is supported. Rewrite the file",
                hash_type=self.hash_type,
            )


def joined(filters: Sequence[BloomFilter], max_rows: int) -> BloomFilter | None:
    """Return one filter with the rows of several filters, or None if their rows have different shapes.

    No key is hashed. A lookup takes as long as one in each of the filters; `max_rows` bounds that.
    """
    kinds = {(f.type_code, f.num_hashes, f.num_bits, f.hash_type, f.entries) for f in filters}
    rows = tuple(row for bloom in filters for row in bloom.rows)
    if len(kinds) != 1 or filters[0].type_code != DYNAMIC or len(rows) > max_rows:
        return None
    # Rows in the middle may not be full. They stay partly filled, because the next key adds a row.
    return replace(filters[0], rows=rows, count=len(rows) * filters[0].entries)


def small_filters(keys: pa.Array, bounds: Sequence[int], builder: BloomBuilder) -> list[BloomFilter]:
    """Return the filters for many small sets of keys.

    Each equals the filter that `builder` would build; `builder` stays empty.

    Set n has the keys from `bounds[n]` up to `bounds[n + 1]`, at most as many as one row of a filter holds. All keys
    are hashed together, because hashing takes as long for a few keys as for a few thousand.
    """
    sets = len(bounds) - 1
    row_bytes = _bytes_for(builder._num_bits)
    packed = np.zeros(sets * row_bytes, np.uint8)
    starts = np.repeat(np.arange(sets, dtype=np.int64) * row_bytes, np.diff(bounds))
    first = 0
    for block in key_blocks(keys):
        rows = starts[first : first + block.size]
        rows = rows if block.order is None else rows[block.order]
        for index in block.positions(builder._num_hashes, builder._num_bits):
            np.bitwise_or.at(packed, rows + (index >> 3), np.left_shift(1, index & 7).astype(np.uint8))
        first += block.size
    empty = builder.finish()
    counts = np.diff(bounds).tolist()
    return [
        replace(empty, rows=(packed[row_bytes * place : row_bytes * (place + 1)],), count=count)
        for place, count in enumerate(counts)
    ]


class BloomBuilder:
    """Collects the keys of one file, batch by batch.

    While keys are added, the current row needs one byte per bit (43 bytes per key at a rate of 1e-9, 29 at 1e-6), later
    one bit. Therefore callers should add many keys together.
    """

    def __init__(self, entries: int, fpp: float, dynamic_max: int = _DYNAMIC_MAX) -> None:
        """Create an empty builder; raise UserError for sizes that no filter can have."""
        if entries < 1 or not 0 < fpp < 1:
            raise UserError(f"a bloom filter needs entries >= 1 and 0 < fpp < 1, not {entries} and {fpp}")
        self._num_bits = math.ceil(entries * (-math.log(fpp) / (math.log(2) * math.log(2))))
        if self._num_bits > _MAX_BITS:
            raise UserError(
                f"a bloom filter for {entries} keys with fpp {fpp} needs {self._num_bits} bits, more than {_MAX_BITS};"
                " use fewer entries per row or a larger fpp"
            )
        self._num_hashes = math.ceil(math.log(2) * self._num_bits / entries)
        self._type_code = DYNAMIC
        self._entries = entries
        self._dynamic_max = dynamic_max
        self._count = 0
        self._rows: list[Bits] = []
        self._row = -1
        self._spread: Bits | None = None
        self._may_be_sparse = False

    @classmethod
    def _resumed(cls, from_filter: BloomFilter) -> BloomBuilder:
        builder = cls.__new__(cls)
        builder._num_bits = from_filter.num_bits
        builder._num_hashes = from_filter.num_hashes
        builder._type_code = from_filter.type_code
        builder._entries = from_filter.entries
        builder._dynamic_max = from_filter.dynamic_max
        builder._count = from_filter.count
        builder._rows = list(from_filter.rows)
        builder._row = -1
        builder._spread = None
        builder._may_be_sparse = True
        return builder

    def add(self, keys: Keys) -> None:
        """Add keys (strings without nulls); slices of a batch may go to different rows."""
        max_rows = _max_rows(self._entries, self._dynamic_max, self._type_code)
        at = 0
        while at < len(keys):
            self._open_row((self._count // self._entries) % max_rows)
            fitting = len(keys) - at if max_rows == 1 else self._entries - self._count % self._entries
            part = keys.slice(at, fitting)
            self._put(part)
            self._count += len(part)
            at += len(part)
        self._close_row()

    @property
    def size_bytes(self) -> int:
        """Size of the bits in bytes."""
        return len(self._rows) * _bytes_for(self._num_bits)

    def finish(self) -> BloomFilter:
        """Return the filter of all added keys."""
        self._open_row(0 if self._row < 0 else self._row)
        return BloomFilter(
            type_code=self._type_code,
            num_hashes=self._num_hashes,
            num_bits=self._num_bits,
            rows=tuple(self._rows),
            entries=self._entries,
            count=self._count,
            dynamic_max=self._dynamic_max,
        )

    def _open_row(self, row: int) -> None:
        if row == self._row:
            return
        self._close_row()
        if row == len(self._rows):
            self._rows.append(np.zeros(_bytes_for(self._num_bits), np.uint8))
        self._row = row

    def _close_row(self) -> None:
        if self._spread is not None:
            self._rows[self._row] = np.packbits(self._spread, bitorder="little")
            self._spread = None

    def _put(self, keys: Keys) -> None:
        is_sparse = self._may_be_sparse and len(keys) * self._num_hashes * _SPARSE < self._num_bits
        if self._spread is None and is_sparse:
            packed = self._rows[self._row].copy()  # the row may belong to the filter that this builder extends
            for block in key_blocks(keys):
                for index in block.positions(self._num_hashes, self._num_bits):
                    np.bitwise_or.at(packed, index >> 3, np.left_shift(1, index & 7).astype(np.uint8))
            self._rows[self._row] = packed
            return
        if self._spread is None:
            self._spread = np.unpackbits(self._rows[self._row], count=self._num_bits, bitorder="little")
        for block in key_blocks(keys):
            for index in block.positions(self._num_hashes, self._num_bits):
                self._spread[index] = 1


def _has_all(row: Bits, block: KeyBlock, num_hashes: int, num_bits: int) -> NDArray[np.bool_]:
    positions = block.positions(num_hashes, num_bits)
    hits = np.ones(block.size, np.uint8)
    _clear_misses(hits, row, islice(positions, _FIRST_ROUNDS))
    left = np.flatnonzero(hits)
    if len(left) * 2 > block.size:
        _clear_misses(hits, row, positions)
    elif len(left):
        # Usually a key is excluded after a few rounds. Continue with the others only.
        of_left = np.ones(len(left), np.uint8)
        _clear_misses(of_left, row, block.take(left).positions(num_hashes, num_bits))
        hits[left] = of_left
    return hits.astype(np.bool_)


def _clear_misses(hits: Bits, row: Bits, positions: Iterable[I64]) -> None:
    """Set `hits` to 0 for each key that lacks a bit in one of the rounds; `hits` starts with ones and zeros."""
    of_key, shift = np.empty_like(hits), np.empty_like(hits)
    byte = np.empty(len(hits), np.int64)
    for index in positions:
        np.right_shift(index, 3, out=byte)
        np.take(row, byte, out=of_key, mode="clip")
        np.bitwise_and(index, 7, out=byte)
        np.copyto(shift, byte, casting="unsafe")
        np.right_shift(of_key, shift, out=of_key)
        np.bitwise_and(hits, of_key, out=hits)


@dataclass(frozen=True, slots=True)
class FilterLayout:
    """The shape of a stored filter with one row: the position of its bits in the bytes, and the number of all bytes.

    A SIMPLE filter may be followed by other bytes.
    """

    num_hashes: int
    num_bits: int
    start: int
    size: int


def read_layout(head: bytes, type_code: str | None) -> FilterLayout | None:
    """Return the layout of a filter from its first bytes, or None if it has several rows or a different hash function.

    Raises CorruptTableError for bytes that are not the headers of a filter.
    """
    num_hashes, hash_type, num_bits = _read_header(head, 0)
    start = _HEADER.size
    if type_code == DYNAMIC:
        if len(head) < _HEADER.size + _DYNAMIC.size:
            raise CorruptTableError(f"dynamic bloom filter of {len(head)} bytes is shorter than its header")
        entries, in_last, num_rows = _DYNAMIC.unpack_from(head, _HEADER.size)
        if entries < 1 or in_last < 0 or num_rows < 1:
            raise CorruptTableError(f"dynamic bloom filter claims {num_rows} rows of {entries} keys, {in_last} last")
        if num_rows > 1:
            return None
        start = _HEADER.size + _DYNAMIC.size
        if _read_header(head, start) != (num_hashes, hash_type, num_bits):
            raise CorruptTableError("the row of a dynamic bloom filter differs from the filter in shape")
        start += _HEADER.size
    return FilterLayout(num_hashes, num_bits, start, start + _bytes_for(num_bits)) if hash_type == _MURMUR else None


def _max_rows(entries: int, dynamic_max: int, type_code: str) -> int:
    return 1 if type_code == SIMPLE else max(1, -(-dynamic_max // entries))


def _bytes_for(num_bits: int) -> int:
    return (num_bits + 7) // 8


def _read_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Return (number of hashes, type of hash, number of bits) of the row header at byte `at`."""
    if len(data) < at + _HEADER.size:
        raise CorruptTableError(f"bloom filter of {len(data)} bytes is too short for a header at byte {at}")
    version, num_hashes, hash_type, num_bits = _HEADER.unpack_from(data, at)
    if version != _VERSION or not 1 <= num_hashes <= _MOST_HASHES or num_bits < 1 or hash_type not in (0, _MURMUR):
        raise CorruptTableError(
            f"bloom filter has version {version}, {num_hashes} hashes of type {hash_type} and {num_bits} bits"
        )
    return num_hashes, hash_type, num_bits


def _read_row(data: bytes, at: int, num_bits: int) -> Bits:
    start, size = at + _HEADER.size, _bytes_for(num_bits)
    if len(data) < start + size:
        raise CorruptTableError(f"bloom filter of {len(data)} bytes is too short for {num_bits} bits at byte {start}")
    return np.frombuffer(data, np.uint8, size, start)
