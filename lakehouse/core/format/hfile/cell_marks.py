"""Find the cells in blocks by the suffix of their keys, instead of walking from cell to cell (MDT-1.2).

Every key ends with the same ten bytes, and seven of these are 0xff. A scan finds them with one comparison per aligned
four-byte word. The lengths of a few cells at the start of each block give the distance from the start of a cell to
its suffix.

    cell    lengths | n | content | suffix | value | 00 | next cell
            ^------ 10 + n bytes --^

The result is used only if it is the chain of cells: each cell ends where the next one begins, from the start of each
block to its end. Otherwise, for example if keys have very different lengths, the caller walks from cell to cell.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lakehouse.core.format.hfile.layout import CELL_BYTES, KEY_SUFFIX

I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]

_HEAD = int.from_bytes(KEY_SUFFIX[:8], "little")
_ONES = np.uint32(0xFFFFFFFF)
_WORD = 4
#: The bytes 0xff of the suffix begin here.
_ONES_AT = 2
#: Both lengths and the length of the content, before the content.
_CONTENT_AT = 10
_FIRST_CELLS = 4
_MOST_LENGTHS = 8
_CELL_HEAD = np.dtype([("key", ">i4"), ("value", ">i4"), ("content", ">i2")])


def cells_by_suffix(data: U8, starts: I64, ends: I64) -> I64 | None:
    """Return the ascending positions of all cells in the blocks `starts` to `ends`, or None if they are not a chain.

    Blocks ascend and are not empty.
    """
    lengths = _content_lengths(data, starts, ends)
    if lengths is None:
        return None
    suffixes = _suffixes(data, int(starts[0]), int(ends[-1]))
    cells = np.full(len(suffixes), -1, np.int64)
    sizes = np.zeros(len(suffixes), np.int64)
    for length in lengths:
        open_ = np.flatnonzero(cells < 0)
        at = suffixes[open_] - (_CONTENT_AT + length)
        inside = at >= starts[0]
        open_, at = open_[inside], at[inside]
        heads = _heads(data, at)
        fits = (heads["content"] == length) & (heads["key"] == length + 2 + len(KEY_SUFFIX)) & (heads["value"] >= 0)
        cells[open_[fits]] = at[fits]
        sizes[open_[fits]] = heads["value"][fits].astype(np.int64) + (CELL_BYTES + length)
    if len(cells) == 0 or (cells < 0).any():
        return None
    after = cells + sizes
    begins = np.searchsorted(cells, starts)
    if begins[-1] >= len(cells) or (cells[begins] != starts).any() or (np.diff(begins) < 1).any():
        return None
    # The last cell of each block ends with the block; every other cell ends where its successor begins.
    expected = np.append(cells[1:], ends[-1])
    expected[begins[1:] - 1] = ends[:-1]
    return cells if (after == expected).all() else None


def _content_lengths(data: U8, starts: I64, ends: I64) -> list[int] | None:
    """Return the distinct lengths of the first keys in the blocks, or None if there are too many."""
    lengths: set[int] = set()
    at, end = starts, ends
    for _ in range(_FIRST_CELLS):
        fits = end - at >= CELL_BYTES
        if not fits.any():
            break
        at, end = at[fits], end[fits]
        heads = _heads(data, at)
        key, value = heads["key"].astype(np.int64), heads["value"].astype(np.int64)
        if (heads["content"] < 0).any() or (key < 0).any() or (value < 0).any():
            return None
        lengths.update(np.unique(heads["content"]).tolist())
        if len(lengths) > _MOST_LENGTHS:
            return None
        at = at + key + value + 9
    return sorted(lengths)


def _suffixes(data: U8, start: int, end: int) -> I64:
    """Return the positions of the suffix in a range of the buffer, ascending."""
    address = data.ctypes.data
    first = start + -(address + start) % _WORD
    words = data[first : first + (end - first) // _WORD * _WORD].view(np.uint32)
    ones = first + np.flatnonzero(words == _ONES) * _WORD
    parts = []
    # Seven bytes contain exactly one aligned word; it begins at one of the first four bytes.
    for shift in range(_WORD):
        at = ones - (_ONES_AT + shift)
        at = at[(at >= start) & (at + len(KEY_SUFFIX) <= end)]
        parts.append(at[(_items(data, at, 8).view("<u8") == _HEAD) & (data[at + 8] == 0xFF) & (data[at + 9] == 4)])
    positions = np.concatenate(parts)
    positions.sort()
    return positions


def _heads(data: U8, at: I64) -> Any:
    return _items(data, at, _CELL_HEAD.itemsize).view(_CELL_HEAD)


def _items(data: U8, at: I64, size: int) -> NDArray[Any]:
    """Return `size` bytes from each position, as void items."""
    items: NDArray[Any] = np.ndarray((len(data) - size + 1,), f"V{size}", buffer=data, strides=(1,))
    return items[at]
