"""Exclude keys that a base file does not contain by its key range and its bloom filter (MDT-13).

A file without range or filter, or with a filter that cannot be used, may contain every key.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BLOOM_FOOTER, BaseFileReader
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.format.parquet.bloom_probe import BloomProbe
from lakehouse.core.format.parquet.murmur_hash import key_blocks
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
        self._probe: BloomProbe | None = None

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
        if len(positions) * 2 < len(self._keys):
            candidates: np.ndarray = positions[_of_few(reader, self._keys.take(pa.array(positions)))]
            return candidates
        may_contain = self.of_filter(reader.path, *_stored_filter(reader))
        return positions if may_contain is None else positions[may_contain[positions]]

    def of_filter(self, path: str, text: bytes | None, type_code: str | None) -> np.ndarray | None:
        """Return for each key whether a file may contain it by the text of its filter; None if all keys are possible.

        A filter that cannot be used is logged as a warning.
        """
        if not text:
            return None
        if self._probe is None:
            self._probe = BloomProbe(key_blocks(self._keys))
        try:
            found = self._probe.candidates(text, type_code)
            if found is not None:
                return found
            bloom = BloomFilter.from_text(text.decode(), type_code)
        except (CorruptTableError, UnsupportedError, UnicodeDecodeError) as error:
            _warn(path, error)
            return None
        return _murmur(path, bloom, self._keys)


def _stored_filter(reader: BaseFileReader) -> tuple[bytes | None, str | None]:
    """Return the text of the filter in a footer and its type; no text, with a warning, if the footer is not text."""
    try:
        text, type_code = (reader.footer(key) for key in BLOOM_FOOTER)
    except CorruptTableError as error:
        _warn(reader.path, error)
        return None, None
    return None if text is None else text.encode(), type_code


def _of_few(reader: BaseFileReader, keys: pa.ChunkedArray) -> np.ndarray:
    """Return for each of some keys whether the file may contain it."""
    try:
        bloom = reader.bloom_filter()
    except (CorruptTableError, UnsupportedError) as error:
        _warn(reader.path, error)
        bloom = None
    found = None if bloom is None else _murmur(reader.path, bloom, keys)
    return np.ones(len(keys), np.bool_) if found is None else found


def _murmur(path: str, bloom: BloomFilter, keys: pa.ChunkedArray) -> np.ndarray | None:
    if not bloom.hashes_murmur:
        logger.warning("%s: all keys are looked up, because its bloom filter has another hash than murmur", path)
        return None
    return bloom.might_contain(keys)


def _warn(path: str, error: Exception) -> None:
    logger.warning("%s: all keys are looked up, because its bloom filter cannot be used: %s", path, error)
