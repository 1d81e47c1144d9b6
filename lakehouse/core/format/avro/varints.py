"""Decode and encode Avro's integers, zigzag varints, for many positions or values together.

    value   zigzag   bytes
        0        0   00
       -1        1   01
        1        2   02
      150      300   ac 02      seven bits a byte, low bits first; all bytes but the last have the high bit set

A `Window` is content that can be read at any offset. It has zero bytes before and after the content, so eight bytes can
be loaded at every position. One load contains almost every varint completely, so there is no loop over bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]
U64: TypeAlias = NDArray[np.uint64]

#: Zero bytes before and after the content of a window, so that a load of 16 bytes may start or end at any position.
MARGIN = 16
MAX_BYTES = 10

_HIGH_BITS = np.uint64(0x8080808080808080)
_LOWEST_BITS = np.uint64(0x0101010101010101)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
#: Steps that join groups of seven bits: pairs, then fours, then eights: (bits that stay, bits that move, shift).
_SQUEEZE = tuple(
    (np.uint64(stay), np.uint64(move), np.uint64(by))
    for stay, move, by in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_ONE = np.uint64(1)


class Window:
    """Content that is read at many positions together. Its first byte is at position MARGIN."""

    def __init__(self, content: U8) -> None:
        self.data: U8 = np.zeros(len(content) + 2 * MARGIN, np.uint8)
        self.data[MARGIN : MARGIN + len(content)] = content

    def bytes_at(self, positions: I64) -> U8:
        """Return the byte at each position."""
        return self.data[positions]

    def at(self, positions: I64, dtype: str) -> NDArray[Any]:
        """Return the value of a NumPy dtype at each position; positions need no alignment.

        A value of up to MARGIN bytes may extend past the content; a wider value must be inside it.
        """
        kind = np.dtype(dtype)
        if len(positions) == 0:
            return np.empty(0, kind)
        # NumPy gathers void items of the same width without regard to their alignment.
        count = len(self.data) - kind.itemsize + 1
        items: NDArray[Any] = np.ndarray((count,), f"V{kind.itemsize}", buffer=self.data, strides=(1,))
        return items[positions].view(kind)

    def varints_at(self, positions: I64) -> tuple[I64, I64]:
        """Return the zigzag varint at each position, and its size in bytes, which is 0 if it has more than 64 bits."""
        raw, sizes = self.raw_varints_at(positions)
        return unzigzag(raw), sizes

    def raw_varints_at(self, positions: I64) -> tuple[U64, I64]:
        """Return the bits of the varint at each position, and its size in bytes, or 0 if it has more than 64 bits."""
        first = self.bytes_at(positions)
        if first.max(initial=0) < 0x80:
            return first.astype(np.uint64), np.ones(len(first), np.int64)
        words = self.at(positions, "<u8").astype(np.uint64, copy=False)
        stops = ~words & _HIGH_BITS
        through = stops ^ (
            stops - _ONE
        )  # all bits up to the high bit of the last byte; all 64 bits if there is no last byte
        # The product adds the lowest bits of the eight bytes: the number of bytes that `through` covers.
        sizes = (((through & _LOWEST_BITS) * _LOWEST_BITS) >> np.uint64(56)).view(np.int64)
        raw = words & through & _LOW_BITS
        for stay, move, by in _SQUEEZE:
            raw = (raw & stay) | ((raw & move) >> by)
        endless = np.flatnonzero(stops == 0)
        if len(endless):
            raw[endless], sizes[endless] = self._long_varints(raw[endless], positions[endless])
        return raw, sizes

    def _long_varints(self, raw: U64, positions: I64) -> tuple[U64, I64]:
        """Return varints of nine or ten bytes and their sizes; `raw` has the bits of their first eight bytes."""
        ninth = self.bytes_at(positions + 8).astype(np.uint64)
        tenth = self.bytes_at(positions + 9).astype(np.uint64)
        has_nine = ninth < 0x80
        raw = raw | (ninth & np.uint64(0x7F)) << np.uint64(56)
        raw = np.where(has_nine, raw, raw | (tenth & _ONE) << np.uint64(63))
        return raw, np.where(has_nine, 9, np.where(tenth <= 1, 10, 0)).astype(np.int64)


def encode_varints(values: I64) -> tuple[U8, I64]:
    """Return the varints of all values, concatenated, and the size of each in bytes."""
    raw = (values.view(np.uint64) << _ONE) ^ (values >> 63).view(np.uint64)
    widest = max(1, -(-int(raw.max(initial=0)).bit_length() // 7))
    if widest == 1:
        return raw.astype(np.uint8), np.ones(len(raw), np.int64)
    shifts = np.arange(widest, dtype=np.uint64) * np.uint64(7)
    groups = raw[:, None] >> shifts
    is_used = groups != 0
    is_used[:, 0] = True
    encoded = (groups & np.uint64(0x7F)).astype(np.uint8)
    encoded[:, :-1] |= is_used[:, 1:].astype(np.uint8) << np.uint8(7)
    return encoded[is_used], is_used.sum(axis=1, dtype=np.int64)


def unzigzag(raw: U64) -> I64:
    """Return the signed numbers of zigzag bits."""
    return (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)
