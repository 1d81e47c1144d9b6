"""Exclude keys that a base file does not contain by its key range and its bloom filter (MDT-13).

A file without range or filter, or with a filter that cannot be used, may contain every key.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base_reader import BaseFileReader
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.format.parquet.murmur_hash import KeyBlock, key_blocks
from lakehouse.errors import CorruptTableError, UnsupportedError

logger = logging.getLogger(__name__)

_MIN_KEY, _MAX_KEY = "hoodie_min_record_key", "hoodie_max_record_key"
# Hudi orders keys by UTF-16 units. That order equals the order of code points for keys below this character.
_FIRST_SURROGATE = "\ud800"


def key_range(reader: BaseFileReader) -> tuple[str, str] | None:
    """Return the least and the greatest key of a base file by its footer; None if they are unknown.

    Bounds with characters that UTF-16 and UTF-8 order differently are unknown too, because writers differ.
    """
    low, high = reader.footer(_MIN_KEY), reader.footer(_MAX_KEY)
    if low is None or high is None or max(low + high, default="") >= _FIRST_SURROGATE:
        return None
    return low, high


def may_hold(reader: BaseFileReader, bounds: pa.StructScalar) -> bool:
    """Return whether the key range of a file overlaps the range `bounds` (min, max) of a batch."""
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is None:
        return False
    found = key_range(reader)
    return found is None or (first <= found[1] and last >= found[0])


class CandidateKeys:
    """The keys of a batch, prepared once so that the filters of many files can be asked for them."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys = keys
        self._blocks: list[KeyBlock] | None = None

    def of_file(self, reader: BaseFileReader) -> np.ndarray:
        """Return the positions of the keys that the file may contain, ascending."""
        mask = np.ones(len(self._keys), np.bool_)
        found = key_range(reader)
        if found is not None:
            low, high = (pa.scalar(bound, pa.string()) for bound in found)
            inside = pc.and_(pc.greater_equal(self._keys, low), pc.less_equal(self._keys, high))
            mask = np.asarray(inside, np.bool_)
        positions = np.flatnonzero(mask)
        if not len(positions):
            return positions
        bloom = _usable_filter(reader)
        if bloom is None:
            return positions
        candidates: np.ndarray = positions[self._may_contain(bloom, positions)]
        return candidates

    def _may_contain(self, bloom: BloomFilter, positions: np.ndarray) -> np.ndarray:
        """Return for each of the keys at `positions` whether the filter may contain it."""
        if len(positions) * 2 < len(self._keys):
            return bloom.might_contain(self._keys.take(pa.array(positions)))
        if self._blocks is None:
            self._blocks = list(key_blocks(self._keys))
        all_keys = bloom.might_contain_blocks(self._blocks)
        return np.take(all_keys, positions)


def _usable_filter(reader: BaseFileReader) -> BloomFilter | None:
    """Return the filter of a file; None, with a warning if there is one that cannot be used."""
    try:
        bloom = reader.bloom_filter()
    except (CorruptTableError, UnsupportedError) as error:
        logger.warning("%s: all keys are looked up, because its bloom filter cannot be used: %s", reader.path, error)
        return None
    if bloom is not None and not bloom.hashes_murmur:
        logger.warning("%s: all keys are looked up, because its bloom filter has another hash than murmur", reader.path)
        return None
    return bloom
