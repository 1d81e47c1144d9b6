"""The bloom filter of a base file that is being written (DATA-3.3).

A filter must know its size before its first key. So keys are held, as compact copies, until the file is complete; a
file with more keys than may be held gets a filter of several rows, each hashed as soon as it is full.
"""

from __future__ import annotations

import math

import pyarrow as pa

from lakehouse.core.format.parquet.bloom_filter import BloomBuilder, BloomFilter

_MIN_ENTRIES = 1_000
# A complete file gets room for a quarter more: the next inserts into it need not hash all its keys again.
_ROOM = 1.25
_ANY_NUMBER = 2**31 - 1


class FileBloom:
    """Collects the record keys of one file; `held_bytes` of them wait to be hashed.

    `hash_bytes` bounds those keys together with what the filter takes while they are hashed: a byte for each bit.
    Unless `enabled`, keys are let go and there is no filter.
    """

    def __init__(self, fpp: float, hash_bytes: int, *, enabled: bool = True) -> None:
        self._fpp, self._hash_bytes, self.enabled = fpp, hash_bytes, enabled
        self._bits_per_key = -math.log(fpp) / math.log(2) ** 2 * _ROOM
        self._held_keys = 0
        self._inherited: BloomFilter | None = None
        self._builder: BloomBuilder | None = None
        self._held: list[pa.Array] = []
        self.held_bytes = 0

    def inherit(self, stored: BloomFilter | None, new_keys: int) -> None:
        """Start from the filter of the previous version if `new_keys` more fit: its keys need no second hashing.

        Keys of rows deleted since stay in it, which costs a false positive and nothing else.
        """
        if stored is not None:
            self._inherited = stored if stored.remaining >= new_keys else None

    def add(self, keys: pa.ChunkedArray, *, known: bool) -> None:
        """Add the keys of rows; `known` says that the previous version of the file held them."""
        if not self.enabled or (known and self._inherited is not None):
            return
        # Copied, because a key column may be a view that keeps a whole batch in memory.
        copy = pa.concat_arrays([*keys.chunks, pa.array([], pa.string())])
        self._held.append(copy)
        self.held_bytes += copy.nbytes
        self._held_keys += len(copy)
        if self.held_bytes + self._held_keys * self._bits_per_key >= self._hash_bytes:
            self.hash_held()

    def hash_held(self) -> None:
        """Hash the keys that wait, to free their memory: the more there are, the fewer rows the filter gets."""
        if self._held:
            self._hash(complete=False)

    @property
    def filter_bytes(self) -> int:
        """What the filter takes so far, keys that wait left out."""
        if self._builder is not None:
            return self._builder.size_bytes
        return 0 if self._inherited is None else sum(row.nbytes for row in self._inherited.rows)

    def finish(self) -> BloomFilter | None:
        """Return the filter of the keys added, None if there shall be none; call once, at the end."""
        if not self.enabled:
            return None
        self._hash(complete=True)
        bloom, self._inherited = self._inherited, None
        if bloom is None:
            assert self._builder is not None
            bloom, self._builder = self._builder.finish(), None
        return bloom

    def _hash(self, *, complete: bool) -> None:
        keys = pa.chunked_array(self._held, pa.string())
        self._held, self.held_bytes, self._held_keys = [], 0, 0
        if self._inherited is not None:
            self._inherited = self._inherited.add(keys)
            return
        if self._builder is None:
            entries = max(int(len(keys) * _ROOM) if complete else len(keys), _MIN_ENTRIES)
            self._builder = BloomBuilder(entries, self._fpp, _ANY_NUMBER)
        self._builder.add(keys)
