"""Murmur2 hashes of key columns, equal to Hadoop's `MurmurHash` (DATA-3.4).

A bloom filter hashes each key dozens of times, with the last hash as the next seed. Mixing a word does not depend on
the seed, so it is computed once per block. A round then needs two operations per word, on arrays that stay in the
cache. The keys of a block are sorted by their number of words, descending, so that the keys with a word j are a prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from lakehouse.errors import CorruptTableError

U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]

_M = np.uint32(0x5BD1E995)
_BLOCK_KEYS = 32_768
#: Size of a block's mixed words; with the working arrays they fit into a second-level cache of 1 MiB.
_BLOCK_BYTES = 512 * 1024


class KeyBlock:
    """Keys prepared for repeated hashing. `order` has their original positions; None means unchanged."""

    __slots__ = ("_factor", "_lengths", "_tail", "_words", "order", "size")

    # parameters: the prepared arrays of a block; only functions of this module build one
    def __init__(
        self, words: list[U32], lengths: Any, tail: U32 | None, factor: Any, size: int, order: I64 | None
    ) -> None:
        self._words = words
        self._lengths = lengths
        self._tail = tail
        self._factor = factor
        self.size = size
        self.order = order

    def positions(self, rounds: int, bits: int) -> Iterator[I64]:
        """Yield the bit of each key for every round; the next round overwrites the yielded array."""
        scratch = np.empty(self.size, np.uint32)
        index = np.empty(self.size, np.int64)
        modulus = np.uint32(bits)
        for rest in self.hashes(rounds):
            np.floor_divide(rest, modulus, out=scratch)
            np.multiply(scratch, modulus, out=scratch)
            np.subtract(rest, scratch, out=rest)
            np.copyto(index, rest)
            yield index

    def hashes(self, rounds: int) -> Iterator[U32]:
        """Yield the hash of each key for every round, modulo bits its bit; the next round overwrites the array."""
        value = np.zeros(self.size, np.uint32)
        scratch, rest = np.empty_like(value), np.empty_like(value)
        for _ in range(rounds):
            self._hash(value, scratch)
            # Java's abs of the signed value. For the minimum integer it overflows to itself, which is correct unsigned.
            np.abs(value.view(np.int32), out=rest.view(np.int32))
            yield rest

    def take(self, rows: I64) -> KeyBlock:
        """Return the block of the keys at `rows` (ascending, in this block's own order)."""
        words = [of_word[rows[: np.searchsorted(rows, len(of_word))]] for of_word in self._words]
        order = rows if self.order is None else self.order[rows]
        return KeyBlock(
            words, _at(self._lengths, rows), _at(self._tail, rows), _at(self._factor, rows), len(rows), order
        )

    def _hash(self, value: U32, scratch: U32) -> None:
        """Replace each seed in `value` by the hash of its key."""
        np.bitwise_xor(value, self._lengths, out=value)
        for words in self._words:
            prefix = value[: len(words)]
            np.multiply(prefix, _M, out=prefix)
            np.bitwise_xor(prefix, words, out=prefix)
        if self._tail is not None:
            np.bitwise_xor(value, self._tail, out=value)
            np.multiply(value, self._factor, out=value)
        np.right_shift(value, 13, out=scratch)
        np.bitwise_xor(value, scratch, out=value)
        np.multiply(value, _M, out=value)
        np.right_shift(value, 15, out=scratch)
        np.bitwise_xor(value, scratch, out=value)


def key_blocks(keys: pa.Array | pa.ChunkedArray) -> Iterator[KeyBlock]:
    """Yield the keys (strings without nulls) in blocks, in order. Raises CorruptTableError for a null key."""
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        if chunk.null_count:
            raise CorruptTableError(f"{chunk.null_count} record keys are null; record keys are never null")
        if len(chunk):
            yield from _blocks_of_chunk(chunk)


def _blocks_of_chunk(chunk: pa.Array) -> Iterator[KeyBlock]:
    if not (pat.is_string(chunk.type) or pat.is_large_string(chunk.type)):
        chunk = chunk.cast(pa.string())
    _, offset_buffer, data_buffer = chunk.buffers()
    width = np.int64 if pat.is_large_string(chunk.type) else np.int32
    offsets = np.frombuffer(offset_buffer, width)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer if data_buffer is not None else b"", np.uint8)
    # A view of all unaligned groups with four bytes: word j of a key is the element at its start + 4j.
    sliding: U32 = np.ndarray((max(len(data) - 3, 0),), "<u4", buffer=data, strides=(1,))
    mean = max(1, int(offsets[-1] - offsets[0]) // len(chunk))
    step = min(_BLOCK_KEYS, max(1024, _BLOCK_BYTES // mean))
    for first in range(0, len(chunk), step):
        bounds = offsets[first : first + step + 1]
        lengths = np.diff(bounds)
        if lengths.min() == lengths.max():
            yield _equal_block(data, sliding, int(bounds[0]), int(lengths[0]), len(lengths))
        else:
            yield _mixed_block(data, sliding, bounds[:-1], lengths)


def _equal_block(data: NDArray[np.uint8], sliding: U32, start: int, length: int, size: int) -> KeyBlock:
    """Prepare keys of equal length: each column of bytes is a strided slice, without a gather."""
    if not length:
        return KeyBlock([], np.uint32(0), None, None, size, None)

    def column(of: NDArray[Any], at: int) -> NDArray[Any]:
        return of[start + at : start + at + (size - 1) * length + 1 : length]

    words = [_mixed(column(sliding, at).astype(np.uint32)) for at in range(0, length - 3, 4)]
    tail = None
    if length % 4:
        signed = data.view(np.int8)
        tail = np.zeros(size, np.int32)
        for back in range(1, length % 4 + 1):
            tail ^= column(signed, length - back).astype(np.int32) << (8 * (back - 1))
    return KeyBlock(words, np.uint32(length), None if tail is None else tail.view(np.uint32), _M, size, None)


def _mixed_block(data: NDArray[np.uint8], sliding: U32, starts: I64, lengths: I64) -> KeyBlock:
    counts = lengths >> 2
    order = np.argsort(-counts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    # active[j]: number of keys with a word j; these keys precede the others.
    active = len(lengths) - np.cumsum(np.bincount(counts))[:-1]
    words = [_mixed(sliding[starts[:count] + 4 * j]) for j, count in enumerate(active)]
    left, signed = lengths & 3, data.view(np.int8)
    tail = np.zeros(len(lengths), np.int32)
    for back in range(1, 4):
        (rows,) = np.nonzero(left >= back)
        tail[rows] ^= signed[starts[rows] + lengths[rows] - back].astype(np.int32) << (8 * (back - 1))
    factor = np.where(left > 0, _M, np.uint32(1))
    return KeyBlock(words, lengths.astype(np.uint32), tail.view(np.uint32), factor, len(lengths), order)


def _mixed(words: U32) -> U32:
    """Return the mixed words, which do not depend on the seed; overwrites `words`."""
    np.multiply(words, _M, out=words)
    np.bitwise_xor(words, words >> np.uint32(24), out=words)
    np.multiply(words, _M, out=words)
    return words


def _at(values: Any, rows: I64) -> Any:
    """Return the rows of a column; a scalar or None is returned unchanged."""
    return values[rows] if isinstance(values, np.ndarray) else values
