"""Search keys in the cells of data blocks, without decoding the cells that follow the key (MDT-1.3).

Each key is searched in one block, from its first cell to the cell with the key or with a greater one. One step compares
the current cell of many keys with a few NumPy operations. The caller has verified the contents of the blocks by a
checksum, because the cells after a matching key are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lakehouse.core.format.hfile.layout import CELL_BYTES, KEY_SUFFIX, corrupt
from lakehouse.core.format.unaligned import load

I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]

#: Maximum key length of this search, because all keys are padded to the same length.
MAX_KEY_BYTES = 256
#: Number of keys that are searched together, so that their blocks fit into the processor's caches.
_LANES = 4096
_WORD = 8
_CONTENT_AT = 10
_CELL_HEAD = np.dtype([("key", ">u4"), ("value", ">u4"), ("content", ">u2"), ("word", ">u8")])
#: Finished keys are removed when more than one in this number of lanes is finished.
_KEPT_DONE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The numbers of the wanted keys that exist, and the ranges of their values in the buffer."""

    rows: I64
    values: I64
    value_ends: I64


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Keys of at most MAX_KEY_BYTES as big-endian words of eight bytes, padded with zeros, and their lengths."""

    words: NDArray[np.uint64]
    lengths: I64
    #: The bits of the first word that belong to the key.
    masks: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.lengths)

    def slice(self, begin: int, end: int) -> Wanted:
        """Return the keys from number `begin` to before number `end`."""
        return Wanted(self.words[begin:end], self.lengths[begin:end], self.masks[begin:end])


def wanted_keys(keys: Any) -> Wanted | None:
    """Return the keys of a binary array, or None if a key is too long."""
    offsets, content = keys.buffers()[1:]
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    lengths = np.diff(bounds)
    longest = int(lengths.max(initial=0))
    if longest > MAX_KEY_BYTES:
        return None
    width = max(_WORD, -(-longest // _WORD) * _WORD)
    bytes_of = np.zeros((len(keys), width), np.uint8)
    if longest:
        data = np.frombuffer(content, np.uint8)
        if int(lengths.min()) == longest:
            bytes_of[:, :longest] = data[bounds[0] : bounds[-1]].reshape(-1, longest)
        else:
            bytes_of[np.arange(width) < lengths[:, None]] = data[bounds[0] : bounds[-1]]
    words = bytes_of.view(">u8").astype(np.uint64)
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    short = np.maximum(_WORD - lengths, 0).astype(np.uint64) * np.uint64(8)
    masks = np.where(short < 64, full << np.minimum(short, 63), 0).astype(np.uint64)
    return Wanted(words, lengths, masks)


class BareKeysError(Exception):
    """A key has no suffix; only `decode_cells` can read such keys."""


def search(data: U8, starts: I64, ends: I64, wanted: Wanted, name: str) -> Found:
    """Return the wanted keys that their blocks contain; key number i is searched in the payload starts[i] to ends[i].

    Raises:
        CorruptTableError: A cell exceeds its block.
        BareKeysError: A key has no suffix.
    """
    rows, values, value_ends = [], [], []
    for first in range(0, len(wanted), _LANES):
        lanes = np.arange(first, min(first + _LANES, len(wanted)))
        for step in _steps(data, starts, ends, wanted, lanes, name):
            rows.append(step.rows)
            values.append(step.values)
            value_ends.append(step.value_ends)
    if not rows:
        none = np.zeros(0, np.int64)
        return Found(none, none, none)
    order = np.argsort(np.concatenate(rows))
    return Found(*(np.concatenate(parts)[order] for parts in (rows, values, value_ends)))


def _steps(  # parameters: the parameters of `search`, and the numbers of some keys
    data: U8, starts: I64, ends: I64, wanted: Wanted, lanes: I64, name: str
) -> list[Found]:
    matches: list[Found] = []
    at, end = starts[lanes], ends[lanes]
    word: Any = wanted.words[lanes, 0]
    length, mask = wanted.lengths[lanes], wanted.masks[lanes]
    # A cell with at least this many bytes of content has only content below the mask.
    compared = np.minimum(length, _WORD)
    is_done = at >= end
    while True:
        open_lanes = len(at) - np.count_nonzero(is_done)
        if open_lanes * _KEPT_DONE <= len(at) * (_KEPT_DONE - 1):
            if open_lanes == 0:
                return matches
            going = ~is_done
            at, end, lanes = at[going], end[going], lanes[going]
            word, length, mask, compared = word[going], length[going], mask[going], compared[going]
            is_done = is_done[going]
        if (end - at < CELL_BYTES).any():
            raise corrupt(name, "a cell exceeds its block")
        head = load(data, at, "V18").view(_CELL_HEAD)
        # Negative lengths become large ones, which exceed the block.
        key, value = head["key"].astype(np.int64), head["value"].astype(np.int64)
        content, first = head["content"].astype(np.int64), head["word"].astype(np.uint64) & mask
        after = at + key + value + 9
        if (after > end).any():
            raise corrupt(name, "a cell exceeds its block")
        if (content != key - 2 - len(KEY_SUFFIX)).any():
            raise BareKeysError
        hits = np.flatnonzero((first == word) & (content == length) & ~is_done)
        # Keys ascend, so the wanted key does not follow a greater one.
        is_done |= (first > word) & (content >= compared)
        if len(hits):
            hits = hits[_same_rest(data, at[hits], wanted, lanes[hits])]
        if len(hits):
            begins = at[hits] + 8 + key[hits]
            matches.append(Found(lanes[hits], begins, begins + value[hits]))
            is_done[hits] = True
        is_done |= after == end
        at = np.where(is_done, at, after)


def _same_rest(data: U8, at: I64, wanted: Wanted, lanes: I64) -> NDArray[np.bool_]:
    """Return whether the words after the first one are equal; the lengths are equal already."""
    same = np.ones(len(at), np.bool_)
    for number in range(1, wanted.words.shape[1]):
        more = wanted.lengths[lanes] > number * _WORD
        if not more.any():
            break
        stored = load(data, at[more] + (_CONTENT_AT + number * _WORD), ">u8").astype(np.uint64)
        missing = np.maximum((number + 1) * _WORD - wanted.lengths[lanes[more]], 0).astype(np.uint64) * np.uint64(8)
        stored = (stored >> missing) << missing
        same[more] &= stored == wanted.words[lanes[more], number]
    return same
