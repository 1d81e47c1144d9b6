"""Find the cells of data blocks: each cell starts where the one before it ends (MDT-1.2).

    cell    i32 key length | i32 value length | key | value | 00
    key     i16 n | n bytes of content | suffix of 10 bytes

If keys have few different lengths, their suffixes mark the cells (see `cell_marks`). Otherwise blocks are
walked. Many blocks are walked in lock-step: one step finds the next cell of every block with a few NumPy operations.
Few blocks are walked one by one, because a NumPy operation on few positions costs more than a step in Python.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lakehouse.core.format.hfile.cell_marks import cells_by_suffix
from lakehouse.core.format.hfile.layout import KEY_SUFFIX, corrupt
from lakehouse.core.format.unaligned import load

I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]

#: Number of blocks from which one lock-step is cheaper than a separate step in each block.
LOCK_STEP_BLOCKS = 32
#: Number of bytes from which cells are located by the suffixes of their keys if possible.
MARKED_BYTES = 1 << 16
#: Lengths of key and value.
_LENGTHS = struct.Struct(">ii")
#: A cell contains at least its two lengths, the length of the content and the closing zero.
_LEAST_BYTES = _LENGTHS.size + 3
_HEAD = int.from_bytes(KEY_SUFFIX[:8], "little")
_TAIL = int.from_bytes(KEY_SUFFIX[8:], "little")


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """Raw payloads of data blocks: ranges of a buffer, and the offset of each block in the file for messages."""

    data: U8
    starts: I64
    ends: I64
    offsets: I64


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Positions of keys and values in a buffer, in the order of the file."""

    data: U8
    keys: I64
    key_ends: I64
    values: I64
    value_ends: I64

    def __len__(self) -> int:
        return len(self.keys)


def decode_cells(payloads: Payloads, name: str) -> Cells:
    """Return all cells of the blocks.

    Raises:
        CorruptTableError: A cell exceeds its block or is not a cell of Hudi.
    """
    is_filled = payloads.starts < payloads.ends
    positions = None
    if is_filled.any() and int((payloads.ends - payloads.starts).sum()) >= MARKED_BYTES:
        positions = cells_by_suffix(payloads.data, payloads.starts[is_filled], payloads.ends[is_filled])
    if positions is None:
        is_many = len(payloads.starts) >= LOCK_STEP_BLOCKS
        positions = (_walk_in_lock_step if is_many else _walk_one_by_one)(payloads, name)
    return _cells_at(payloads.data, positions, name)


def _walk_one_by_one(payloads: Payloads, name: str) -> I64:
    parts = []
    view = payloads.data.data
    for start, end, offset in zip(
        payloads.starts.tolist(), payloads.ends.tolist(), payloads.offsets.tolist(), strict=True
    ):
        equal = _equal_cells(payloads.data[start:end])
        parts.append(_chain(view, start, end, offset, name) if equal is None else start + equal)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _equal_cells(block: U8) -> I64 | None:
    """Return the positions of cells that all have the lengths of the first one, or None.

    The lengths of a cell give the position of the next one. So if the lengths are equal at all multiples of the first
    cell's size, these positions are the cells.
    """
    if len(block) < _LEAST_BYTES:
        return None
    key, value = _LENGTHS.unpack_from(block.data)
    size = key + value + _LENGTHS.size + 1
    if key < 2 or value < 0 or len(block) % size:
        return None
    lengths = block.reshape(-1, size)[:, : _LENGTHS.size]
    if (lengths != lengths[0]).any():
        return None
    return np.arange(0, len(block), size, dtype=np.int64)


def _chain(view: memoryview, at: int, end: int, offset: int, name: str) -> I64:  # parameters: one block of a file
    positions = []
    start, last, unpack = at, end - _LEAST_BYTES, _LENGTHS.unpack_from
    while at < end:
        key, value = unpack(view, at) if at <= last else (-1, -1)
        size = key + value + _LENGTHS.size + 1
        if key < 2 or value < 0 or size > end - at:
            raise _misfit(offset, at - start, key, value, name)
        positions.append(at)
        at += size
    return np.array(positions, np.int64)


def _misfit(offset: int, at: int, key: int, value: int, name: str) -> Exception:
    return corrupt(
        name,
        f"in the block at byte {offset}, the cell at byte {at} exceeds the block "
        f"(key of {key} bytes, value of {value} bytes)",
    )


def _walk_in_lock_step(payloads: Payloads, name: str) -> I64:
    is_filled = payloads.starts < payloads.ends
    at, starts = payloads.starts[is_filled], payloads.starts[is_filled]
    ends, offsets = payloads.ends[is_filled], payloads.offsets[is_filled]
    parts = []
    while len(at):
        _check(at <= ends - _LEAST_BYTES, (offsets, at - starts, at * 0 - 1, at * 0 - 1), name)
        key, value = _lengths_at(payloads.data, at)
        after = at + key + value + (_LENGTHS.size + 1)
        _check((key >= 2) & (value >= 0) & (after <= ends), (offsets, at - starts, key, value), name)
        parts.append(at)
        more = after < ends
        if more.all():
            at = after
        else:
            at, starts, ends, offsets = after[more], starts[more], ends[more], offsets[more]
    positions = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    positions.sort()  # blocks do not overlap and ascend, so this is the order of the file
    return positions


def _check(is_valid: NDArray[np.bool_], facts: tuple[I64, I64, I64, I64], name: str) -> None:
    if not is_valid.all():
        bad = int(np.argmin(is_valid))
        offset, at, key, value = (int(column[bad]) for column in facts)
        raise _misfit(offset, at, key, value, name)


def _lengths_at(data: U8, positions: I64) -> tuple[I64, I64]:
    pairs = load(data, positions, "V8").view(">i4").astype(np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _cells_at(data: U8, positions: I64, name: str) -> Cells:
    key_size, value_size = _lengths_at(data, positions)
    keys = positions + (_LENGTHS.size + 2)
    content = load(data, positions + _LENGTHS.size, ">i2").astype(np.int64)
    values = positions + key_size + _LENGTHS.size
    key_ends = keys + content
    is_bare = content == key_size - 2
    if (content < 0).any() or not (is_bare | (content == key_size - 2 - len(KEY_SUFFIX))).all():
        raise corrupt(name, "the key of a cell has a wrong length")
    suffixes = key_ends[~is_bare] if is_bare.any() else key_ends
    if (load(data, suffixes, "<u8") != _HEAD).any() or (load(data, suffixes + 8, "<u2") != _TAIL).any():
        raise corrupt(name, "a key does not end with the suffix that Hudi writes")
    value_ends = values + value_size
    if data[value_ends].any():
        raise corrupt(name, "a cell does not end with a zero byte")
    return Cells(data, keys, key_ends, values, value_ends)
