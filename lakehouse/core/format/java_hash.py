"""Compute Java's `String.hashCode` and `List<String>.hashCode` over whole columns (DATA-7.3).

The hash of a string is a polynomial over its UTF-16 units, in 32-bit arithmetic with overflow:

    h(u0 .. un-1) = u0 * 31^(n-1) + ... + un-1 * 31^0

Strings of equal length form a matrix of units, which is evaluated column by column. The work is therefore a few numpy
passes per distinct length. A string that is not ASCII is converted to UTF-16 first.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes: TypeAlias = npt.NDArray[np.int32]
Units: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
Positions: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_BASE = np.uint32(31)
# Number of rows that are hashed together, so that their units and hashes stay in the processor's cache.
_BLOCK = 16_384
# Number of rows that are converted to UTF-16 together, because the conversion needs about ten bytes of memory per byte.
_UTF16_ROWS = 131_072


def string_hashes(strings: pa.Array | pa.ChunkedArray) -> Hashes:
    """Return `String.hashCode` of each string as int32. A null has the hash 0, as in `Objects.hashCode`."""
    chunks = strings.chunks if isinstance(strings, pa.ChunkedArray) else [strings]
    parts = [_hash_chunk(chunk.cast(pa.string())) for chunk in chunks]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def list_hashes(columns: list[Hashes], rows: int) -> Hashes:
    """Return `List.hashCode` of each row. `columns` are the hashes of the list's elements, in order."""
    total = np.ones(rows, np.uint32)
    for hashes in columns:
        total *= _BASE
        total += hashes.view(np.uint32)
    return total.view(np.int32)


def _hash_chunk(strings: pa.Array) -> Hashes:
    if len(strings) == 0:
        return np.empty(0, np.int32)
    offsets, data = _offsets_and_bytes(strings)
    used = data[offsets[0] : offsets[-1]]
    if used.size and used.max() >= 0x80:
        slices = range(0, len(strings), _UTF16_ROWS)
        result = np.concatenate([_hash_mixed(strings.slice(begin, _UTF16_ROWS)) for begin in slices])
    else:
        result = _fold(data, offsets[:-1], np.diff(offsets))
    if strings.null_count:
        # The bytes behind a null entry are undefined.
        result[np.asarray(strings.is_null())] = 0
    return result.view(np.int32)


def _hash_mixed(strings: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the hashes of strings, some of which are not ASCII."""
    result = np.zeros(len(strings), np.uint32)
    is_ascii = pc.fill_null(pc.string_is_ascii(strings), True).to_numpy(zero_copy_only=False)
    plain, other = np.flatnonzero(is_ascii), np.flatnonzero(~is_ascii)
    offsets, data = _offsets_and_bytes(strings)
    result[plain] = _fold(data, offsets[:-1][plain], np.diff(offsets)[plain])
    result[other] = _fold(*_utf16(strings.take(pa.array(other))))
    return result


def _offsets_and_bytes(strings: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _utf16(strings: pa.Array) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the UTF-16 units of all strings, concatenated, and the start and length of each string in them."""
    offsets, data = _offsets_and_bytes(strings)
    used = data[offsets[0] : offsets[-1]]
    units = np.frombuffer(used.tobytes().decode("utf-8").encode("utf-16-le"), np.uint16)
    # A character is one unit; one of four UTF-8 bytes is two units. Continuation bytes do not begin a unit.
    units_of_byte = ((used & 0xC0) != 0x80).astype(np.int64) + (used >= 0xF0)
    ends = np.concatenate(([0], np.cumsum(units_of_byte)))[offsets - offsets[0]]
    return units, ends[:-1], np.diff(ends)


def _fold(units: Units, starts: Positions, lengths: Positions) -> npt.NDArray[np.uint32]:
    """Return the hash of each string, given by its start and length in `units`."""
    result = np.zeros(len(starts), np.uint32)
    if not len(starts):
        return result
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest:
        return _fold_equal(units, starts, longest)
    # Strings of equal length become neighbours. A stable sort keeps their bytes in reading order.
    order = np.argsort(lengths, kind="stable")
    counts = np.bincount(lengths)
    ends = np.cumsum(counts)
    for length in np.flatnonzero(counts).tolist():
        rows = order[ends[length] - counts[length] : ends[length]]
        result[rows] = _fold_equal(units, starts[rows], length)
    return result


def _fold_equal(units: Units, starts: Positions, length: int) -> npt.NDArray[np.uint32]:
    """Return the hash of strings that all have `length` units."""
    result = np.zeros(len(starts), np.uint32)
    for begin in range(0, len(starts) if length else 0, _BLOCK):
        block = starts[begin : begin + _BLOCK].astype(np.int64)
        hashes = result[begin : begin + _BLOCK]
        for index in range(length):
            hashes *= _BASE
            hashes += units[block + index]
    return result
