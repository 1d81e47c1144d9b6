"""Test the same keys against many stored bloom filters, without decoding the filters (DATA-3.4).

The hashes of a key do not depend on the filter, so the first ones are computed once for all filters. Each filter then
costs one division and one character access per key and round. Rounds continue only for keys that are not excluded yet.

    hash modulo bits --> bit of the stored bytes --> Base64 character (6 bits each), and the bit in it
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lakehouse.core.format.parquet.bloom_filter import DYNAMIC, SIMPLE, FilterLayout, read_layout
from lakehouse.core.format.parquet.murmur_hash import KeyBlock
from lakehouse.errors import CorruptTableError

U32 = NDArray[np.uint32]
Bits = NDArray[np.uint8]
#: Number of rounds that are computed. A filter with the intended fill then passes 1 of 65,536 absent keys.
ROUNDS = 16
#: Number of rounds after which excluded keys are dropped.
_STEP = 4
#: Number of keys that are tested together per filter; each key needs 200 bytes.
_AT_ONCE = 4_096
_BITS_PER_CHARACTER = 6
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_INVALID = 0xFF
_VALUES = np.full(256, _INVALID, np.uint8)
_VALUES[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(len(_ALPHABET))
#: Number of characters that contain both headers of a filter.
_HEADER_CHARACTERS = 64


class BloomProbe:
    """Keys that are tested against many filters."""

    def __init__(self, blocks: Iterable[KeyBlock]) -> None:
        """Hash the keys of the blocks; one block at a time is in memory if they are generated."""
        self._blocks = [(block.order, [value.copy() for value in block.hashes(ROUNDS)]) for block in blocks]
        self._size = sum(len(hashes[0]) for _, hashes in self._blocks)

    def candidates(self, text: bytes, type_code: str | None) -> NDArray[np.bool_] | None:
        """Return for each key whether a filter may contain it. Some keys that the full test would exclude also pass.

        Returns None for a filter that must be decoded, because it has several rows or a different hash function.

        Raises:
            CorruptTableError: The bytes are not a filter.
        """
        if type_code not in (None, SIMPLE, DYNAMIC):
            return None
        try:
            head = base64.b64decode(text[:_HEADER_CHARACTERS], validate=True)
        except binascii.Error as error:
            raise CorruptTableError(f"bloom filter is not Base64: {error}") from error
        layout = read_layout(head, type_code)
        if layout is None:
            return None
        stored = np.frombuffer(text, np.uint8)
        expected = -(-layout.size // 3) * 4
        if len(stored) < expected or (type_code == DYNAMIC and len(stored) > expected):
            raise CorruptTableError(
                f"bloom filter has {len(stored)} characters; its {layout.num_bits} bits need {expected}"
            )
        results = np.zeros(self._size, np.bool_)
        first = 0
        for order, hashes in self._blocks:
            size = len(hashes[0])
            of_block = results[first : first + size]
            for start in range(0, size, _AT_ONCE):
                some = [of_round[start : start + _AT_ONCE] for of_round in hashes[: layout.num_hashes]]
                hits = _passing(stored, layout, some) + start
                of_block[hits if order is None else order[hits]] = True
            first += size
        return results


def _passing(stored: Bits, layout: FilterLayout, hashes: Sequence[U32]) -> NDArray[np.int64]:
    """Return the keys whose bits are set in all rounds, ascending."""
    left: Any = None
    modulus = np.uint32(layout.num_bits)
    for first in range(0, len(hashes), _STEP):
        rounds = np.stack([of_round if left is None else of_round[left] for of_round in hashes[first : first + _STEP]])
        index = (rounds % modulus).astype(np.int64)
        # Bits in a byte are numbered from its low bit, bits in a character from its high bit.
        bit = (index | 7) - (index & 7) + 8 * layout.start
        character = bit // _BITS_PER_CHARACTER
        values = _VALUES.take(stored.take(character))
        if values.size and values.max() == _INVALID:
            raise CorruptTableError("bloom filter is not Base64")
        shift = (_BITS_PER_CHARACTER - 1 - (bit - character * _BITS_PER_CHARACTER)).astype(np.uint8)
        passing = np.flatnonzero(np.bitwise_and.reduce((values >> shift) & np.uint8(1), axis=0))
        left = passing if left is None else left[passing]
        if not len(left):
            break
    assert left is not None, "a filter has at least one hash"
    return np.asarray(left, np.int64)
