"""Build the bloom filter of a base file while it is written (DATA-3.3).

A filter must know its size before the first key is added. Keys are therefore kept as compact copies until the file is
complete. A file with more keys than fit into memory gets a filter of several rows; each row is filled before the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lakehouse.core.format.parquet.bloom_filter import BloomBuilder, BloomFilter, small_filters

_MIN_ENTRIES = 1_000
# The filter has capacity for a quarter more keys, so that later inserts into the file can extend it.
_CAPACITY_FACTOR = 1.25
_ANY_NUMBER = 2**31 - 1


class FileBloom:
    """Collects the record keys of one file and builds its bloom filter.

    `held_bytes` is the size of the keys that are not hashed yet. `hash_bytes` limits these keys together with the
    memory for hashing them, one byte per bit. If not `enabled`, keys are ignored and there is no filter.
    """

    def __init__(self, fpp: float, hash_bytes: int, *, enabled: bool = True) -> None:
        self._fpp, self._hash_bytes, self.enabled = fpp, hash_bytes, enabled
        self._bits_per_key = -math.log(fpp) / math.log(2) ** 2 * _CAPACITY_FACTOR
        self._held_keys = 0
        self._inherited: BloomFilter | None = None
        self._builder: BloomBuilder | None = None
        self._held: list[pa.Array] = []
        self.held_bytes = 0
        self._complete: BloomFilter | None = None

    def inherit(self, stored: BloomFilter | None, new_keys: int) -> None:
        """Extend the filter of the previous file version, without hashing its keys, if it has capacity for `new_keys`.

        Keys of rows that were deleted in the meantime stay in the filter. They only cause false positives.
        """
        if stored is not None:
            self._inherited = stored if stored.remaining >= new_keys else None

    def add(self, keys: pa.ChunkedArray, *, is_stored: bool) -> None:
        """Add the keys of rows. `is_stored` means that the previous version of the file contains them."""
        if not self.enabled or (is_stored and self._inherited is not None):
            return
        # Copy the keys, because a key column may be a view that keeps a whole batch in memory.
        copy = pa.concat_arrays([*keys.chunks, pa.array([], pa.string())])
        self._held.append(copy)
        self.held_bytes += copy.nbytes
        self._held_keys += len(copy)
        if self.held_bytes + self._held_keys * self._bits_per_key >= self._hash_bytes:
            self.hash_held()

    def hash_held(self) -> None:
        """Hash the waiting keys to free their memory. The filter gets fewer rows if more keys are hashed together."""
        if self._held:
            self._hash(complete=False)

    @property
    def filter_bytes(self) -> int:
        """The current size of the filter, without the keys that are not yet added to it."""
        if self._builder is not None:
            return self._builder.size_bytes
        return 0 if self._inherited is None else sum(row.nbytes for row in self._inherited.rows)

    def finish(self) -> BloomFilter | None:
        """Return the filter of all added keys; None if filters are disabled. Call it once, at the end."""
        if not self.enabled:
            return None
        if self._complete is not None:
            return self._complete
        self._hash(complete=True)
        bloom, self._inherited = self._inherited, None
        if bloom is None:
            assert self._builder is not None
            bloom, self._builder = self._builder.finish(), None
        return bloom

    @property
    def is_small(self) -> bool:
        """Whether `complete_small` can build the filter: no key is hashed yet, and one row can contain all keys."""
        is_new = self._inherited is None and self._builder is None and self._complete is None
        return self.enabled and is_new and self._held_keys * _CAPACITY_FACTOR <= _MIN_ENTRIES

    def _hash(self, *, complete: bool) -> None:
        keys = pa.chunked_array(self._held, pa.string())
        self._held, self.held_bytes, self._held_keys = [], 0, 0
        if self._inherited is not None:
            self._inherited = self._inherited.add(keys)
            return
        if self._builder is None:
            entries = max(int(len(keys) * _CAPACITY_FACTOR) if complete else len(keys), _MIN_ENTRIES)
            self._builder = BloomBuilder(entries, self._fpp, _ANY_NUMBER)
        self._builder.add(keys)


def complete_small(blooms: Sequence[FileBloom]) -> None:
    """Build the filters of files with few keys together; all have the same false-positive rate and get no more keys."""
    small = [bloom for bloom in blooms if bloom.is_small]
    if not small:
        return
    keys = pa.concat_arrays([part for bloom in small for part in bloom._held] or [pa.array([], pa.string())])
    bounds = np.cumsum([0, *(bloom._held_keys for bloom in small)]).tolist()
    empty = BloomBuilder(_MIN_ENTRIES, small[0]._fpp, _ANY_NUMBER)
    for bloom, built in zip(small, small_filters(keys, bounds, empty), strict=True):
        bloom._held, bloom.held_bytes, bloom._held_keys = [], 0, 0
        bloom._complete = built
