"""The bloom filter of a base file that is being written (format: data.md 3.3).

A filter must know its size before its first key. So keys are held, as compact copies, until the file is complete; a
file with more keys than may be held gets a filter of several rows, each hashed as soon as it is full.
"""

from __future__ import annotations

import pyarrow as pa

from lakehouse.format.bloom import BloomBuilder, BloomFilter

_MIN_ENTRIES = 1_000
_ANY_NUMBER = 2**31 - 1


class FileBloom:
    """Collects the record keys of one file; `hold_bytes` bounds the keys that wait to be hashed, `held_bytes` are."""

    def __init__(self, fpp: float, hold_bytes: int) -> None:
        self._fpp, self._hold_bytes = fpp, hold_bytes
        self._inherited: BloomFilter | None = None
        self._builder: BloomBuilder | None = None
        self._held: list[pa.Array] = []
        self.held_bytes = 0

    def inherit(self, text: str | None, type_code: str | None, new_keys: int) -> None:
        """Start from the filter of the previous version if `new_keys` more fit: its keys need no second hashing.

        Keys of rows deleted since stay in it, which costs a false positive and nothing else.
        """
        if text:
            inherited = BloomFilter.from_text(text, type_code)
            self._inherited = inherited if inherited.remaining >= new_keys else None

    def add(self, keys: pa.ChunkedArray, *, known: bool) -> None:
        """Add the keys of rows; `known` says that the previous version of the file held them."""
        if known and self._inherited is not None:
            return
        # Copied, because a key column may be a view that keeps a whole batch in memory.
        copy = pa.concat_arrays([*keys.chunks, pa.array([], pa.string())])
        self._held.append(copy)
        self.held_bytes += copy.nbytes
        if self.held_bytes >= self._hold_bytes:
            self.hash_held()

    def hash_held(self) -> None:
        """Hash the keys that wait, to free their memory: the more there are, the fewer rows the filter gets."""
        if self._held:
            self._hash(complete=False)

    def footer(self) -> dict[str, str]:
        """Return what the footer says of the keys added; call once, at the end."""
        self._hash(complete=True)
        bloom = self._inherited
        if bloom is None:
            assert self._builder is not None
            bloom, self._builder = self._builder.finish(), None
        self._inherited = None
        type_code = {"hoodie_bloom_filter_type_code": bloom.type_code} if bloom.type_code else {}
        return {"org.apache.hudi.bloomfilter": bloom.to_text(), **type_code}

    def _hash(self, *, complete: bool) -> None:
        keys = pa.chunked_array(self._held, pa.string())
        self._held, self.held_bytes = [], 0
        if self._inherited is not None:
            self._inherited = self._inherited.add(keys)
            return
        if self._builder is None:
            # A complete file gets room for a quarter more: the next inserts into it need not hash all its keys again.
            entries = max(len(keys) * 5 // 4 if complete else len(keys), _MIN_ENTRIES)
            self._builder = BloomBuilder(entries, self._fpp, _ANY_NUMBER)
        self._builder.add(keys)
