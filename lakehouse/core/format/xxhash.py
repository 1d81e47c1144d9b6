"""Compute XXH64 and XXH32 for whole columns of strings or bytes (MDT-3, MDT-12).

The algorithms follow the public xxHash specification. All values of a block advance together: step `i` of the algorithm
is one numpy operation over every value that has such a step. The work is therefore proportional to the bytes, with a
number of numpy calls that depends only on the maximum length. Words at any byte offset are read through an overlapping
view of the buffer, without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values: TypeAlias = pa.Array | pa.ChunkedArray
Positions: TypeAlias = npt.NDArray[np.int64]
Words32: TypeAlias = npt.NDArray[np.uint32]
Words64: TypeAlias = npt.NDArray[np.uint64]

_MASK32, _MASK64 = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_A1, _A2, _A3, _A4, _A5 = (np.uint32(prime) for prime in _P32)
_B1, _B2, _B3, _B4, _B5 = (np.uint64(prime) for prime in _P64)
# Number of values that are hashed together, so that their accumulators stay in the processor's cache.
_BLOCK = 16_384


def xxh64(values: Values, seed: int = 0) -> Words64:
    """Return the XXH64 hash for the bytes of each value.

    Args:
        values: Strings (their UTF-8 bytes) or binary values, with offsets of any width. Nulls are refused.
        seed: The seed; its low 64 bits are used.

    Raises:
        ValueError: A value is null, or the type is neither string nor binary.
    """
    parts = [_xxh64_block(data, starts, lengths, seed & _MASK64) for data, starts, lengths in _blocks(values)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def xxh32(values: Values, seed: int = 0) -> Words32:
    """Return the XXH32 hash for the bytes of each value.

    Args:
        values: Strings (their UTF-8 bytes) or binary values, with offsets of any width. Nulls are refused.
        seed: The seed; its low 32 bits are used.

    Raises:
        ValueError: A value is null, or the type is neither string nor binary.
    """
    parts = [_xxh32_block(data, starts, lengths, seed & _MASK32) for data, starts, lengths in _blocks(values)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def _blocks(values: Values) -> Iterator[tuple[npt.NDArray[np.uint8], Positions, Positions]]:
    """Yield blocks of values as (buffer, start of each value, length of each value)."""
    if values.null_count:
        raise ValueError(
            f"Cannot hash {values.null_count} null values: a null has no bytes. Remove or replace nulls first."
        )
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        if len(chunk) == 0:
            continue
        ends, data = _offsets_and_bytes(chunk)
        for begin in range(0, len(chunk), _BLOCK):
            block = ends[begin : begin + _BLOCK + 1].astype(np.int64)
            yield data, block[:-1], np.diff(block)


def _offsets_and_bytes(chunk: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    if pa.types.is_string(chunk.type) or pa.types.is_binary(chunk.type):
        width: type[np.signedinteger[Any]] = np.int32
    elif pa.types.is_large_string(chunk.type) or pa.types.is_large_binary(chunk.type):
        width = np.int64
    else:
        raise ValueError(f"Cannot hash values of type {chunk.type}. Cast them to string or binary first.")
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, width)[chunk.offset : chunk.offset + len(chunk) + 1]
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _view(data: npt.NDArray[np.uint8], width: int) -> npt.NDArray[Any]:
    """Return the little-endian words that start at every byte of `data`."""
    count = max(data.size - width + 1, 0)
    return np.ndarray((count,), f"<u{width}", data, strides=(1,)) if count else np.empty(0, f"<u{width}")


def _rotate32(words: Words32, bits: int) -> Words32:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _rotate64(words: Words64, bits: int) -> Words64:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _by_stripes(stripes: Positions) -> tuple[Positions, list[int]]:
    """Return the values with stripes, by descending number of stripes, and the number of values per stripe."""
    rows = np.flatnonzero(stripes)
    if not len(rows):
        return rows, []
    counts = stripes[rows]
    if counts.min() != counts.max():
        rows = rows[np.argsort(-counts, kind="stable")]
    # Entry s of the reversed running sum counts the values with more than s stripes.
    return rows, np.cumsum(np.bincount(counts)[::-1])[::-1][1:].tolist()


def _xxh64_block(data: npt.NDArray[np.uint8], starts: Positions, lengths: Positions, seed: int) -> Words64:
    longs: Words64 = _view(data, 8)
    ints: Words32 = _view(data, 4)
    hashes = np.full(len(starts), (seed + _P64[4]) & _MASK64, np.uint64)
    stripes = lengths >> 5
    rows, active = _by_stripes(stripes)
    if active:
        hashes[rows] = _xxh64_stripes(longs, starts[rows], active, seed)
    hashes += lengths.astype(np.uint64)

    position, rest = starts + (stripes << 5), lengths & 31
    for word in range(3):
        some = np.flatnonzero(rest >= 8 * (word + 1))
        if not len(some):
            break
        lane = _rotate64(longs[position[some] + 8 * word] * _B2, 31) * _B1
        hashes[some] = _rotate64(hashes[some] ^ lane, 27) * _B1 + _B4
    position += rest & ~7
    some = np.flatnonzero(rest & 4)
    if len(some):
        lane = ints[position[some]].astype(np.uint64) * _B1
        hashes[some] = _rotate64(hashes[some] ^ lane, 23) * _B2 + _B3
        position[some] += 4
    for byte in range(3):
        some = np.flatnonzero((rest & 3) > byte)
        if not len(some):
            break
        lane = data[position[some] + byte].astype(np.uint64) * _B5
        hashes[some] = _rotate64(hashes[some] ^ lane, 11) * _B1

    hashes ^= hashes >> np.uint64(33)
    hashes *= _B2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _B3
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _xxh64_stripes(longs: Words64, starts: Positions, active: list[int], seed: int) -> Words64:
    """Return the merged accumulators for values with at least 32 bytes. `active[s]` values have a stripe `s`."""
    initial = (seed + _P64[0] + _P64[1], seed + _P64[1], seed, seed - _P64[0])
    lanes: list[Words64] = [np.full(len(starts), start & _MASK64, np.uint64) for start in initial]
    for stripe, count in enumerate(active):
        position = starts[:count] + 32 * stripe
        for index, lane in enumerate(lanes):
            lane[:count] = _rotate64(lane[:count] + longs[position + 8 * index] * _B2, 31) * _B1
    merged = _rotate64(lanes[0], 1) + _rotate64(lanes[1], 7) + _rotate64(lanes[2], 12) + _rotate64(lanes[3], 18)
    for lane in lanes:
        merged = (merged ^ (_rotate64(lane * _B2, 31) * _B1)) * _B1 + _B4
    return merged


def _xxh32_block(data: npt.NDArray[np.uint8], starts: Positions, lengths: Positions, seed: int) -> Words32:
    ints: Words32 = _view(data, 4)
    hashes = np.full(len(starts), (seed + _P32[4]) & _MASK32, np.uint32)
    stripes = lengths >> 4
    rows, active = _by_stripes(stripes)
    if active:
        hashes[rows] = _xxh32_stripes(ints, starts[rows], active, seed)
    hashes += lengths.astype(np.uint32)

    position, rest = starts + (stripes << 4), lengths & 15
    for word in range(3):
        some = np.flatnonzero(rest >= 4 * (word + 1))
        if not len(some):
            break
        hashes[some] = _rotate32(hashes[some] + ints[position[some] + 4 * word] * _A3, 17) * _A4
    position += rest & ~3
    for byte in range(3):
        some = np.flatnonzero((rest & 3) > byte)
        if not len(some):
            break
        lane = data[position[some] + byte].astype(np.uint32) * _A5
        hashes[some] = _rotate32(hashes[some] + lane, 11) * _A1

    hashes ^= hashes >> np.uint32(15)
    hashes *= _A2
    hashes ^= hashes >> np.uint32(13)
    hashes *= _A3
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _xxh32_stripes(ints: Words32, starts: Positions, active: list[int], seed: int) -> Words32:
    """Return the merged accumulators for values with at least 16 bytes. `active[s]` values have a stripe `s`."""
    initial = (seed + _P32[0] + _P32[1], seed + _P32[1], seed, seed - _P32[0])
    lanes: list[Words32] = [np.full(len(starts), start & _MASK32, np.uint32) for start in initial]
    for stripe, count in enumerate(active):
        position = starts[:count] + 16 * stripe
        for index, lane in enumerate(lanes):
            lane[:count] = _rotate32(lane[:count] + ints[position + 4 * index] * _A2, 13) * _A1
    return _rotate32(lanes[0], 1) + _rotate32(lanes[1], 7) + _rotate32(lanes[2], 12) + _rotate32(lanes[3], 18)
