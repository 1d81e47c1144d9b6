"""Build and split the keys of metadata records (MDT-3).

All functions take and return whole Arrow arrays. Hashes are computed once for each distinct string.

    column_stats      hash64(column) hash64(partition) hash128(file name)      12 + 12 + 24 characters
    partition_stats   hash64(column) hash64(partition)
    bloom_filters     hash64(partition) hash128(file name)
    secondary index   escaped value $ escaped record key
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.xxhash import xxh64
from lakehouse.errors import CorruptTableError

#: The key of the record in `files` that lists all partitions.
ALL_PARTITIONS = "__all_partitions__"
#: Represents the partition path of an unpartitioned table.
NON_PARTITIONED = "."
#: The marker inside the keys of an expression index's partition rows.
PARTITION_STAT = "__partition_stat__"
#: Characters of hash64 and hash128.
HASH64_CHARS, HASH128_CHARS = 12, 24

_SEED = 0xFFFF_FFFF_DABA_DABA
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_SHIFTS = np.array([18, 12, 6, 0], np.uint32)
_ESCAPED = r"([\\$\x00])"
_UNESCAPED = r"(?s)\\(.)"
_SECONDARY = r"(?s)^(?P<value>(?:[^\\$]|\\.)*)\$(?P<record_key>.*)$"
_NULL_VALUE = "\0"

#: A `pa.Array` or `pa.ChunkedArray` of strings.
Texts: TypeAlias = Any


def hash64(texts: Texts) -> pa.Array:
    """Return the 64-bit hash of each string, in 12 characters of base64."""
    return _of_distinct(texts, lambda distinct: _base64(xxh64(distinct, _SEED).astype(">u8").view(np.uint8), 8))


def hash128(texts: Texts) -> pa.Array:
    """Return the 128-bit hash (MD5) of each string, in 24 characters of base64."""

    def hashed(distinct: pa.Array) -> pa.Array:
        # Neither Arrow nor NumPy has MD5. The loop covers distinct names only and takes about 0.5 us per name.
        digests = [hashlib.md5(text, usedforsecurity=False).digest() for text in distinct.cast(pa.binary()).to_pylist()]
        return _base64(np.frombuffer(b"".join(digests), np.uint8), 16)

    return _of_distinct(texts, hashed)


def identifiers(partitions: Texts) -> pa.Array:
    """Return partition names as they occur in keys: the path, or `.` for a table without partitions."""
    array = _one(partitions)
    return pc.if_else(pc.equal(array, ""), NON_PARTITIONED, array)


def paths(names: Texts) -> pa.Array:
    """Return the partition paths of names in keys, the inverse of `identifiers`."""
    array = _one(names)
    is_root = pc.equal(array, NON_PARTITIONED)
    # If no such name occurs, nothing is copied.
    return pc.if_else(is_root, "", array) if pc.any(is_root, min_count=0).as_py() else array


def column_stats_keys(columns: Texts, partitions: Texts, file_names: Texts) -> pa.Array:
    """Return the keys in `column_stats`. `columns` are dotted paths; log files have their leading dot."""
    return _joined(hash64(columns), hash64(identifiers(partitions)), hash128(file_names))


def partition_stats_keys(columns: Texts, partitions: Texts, *, expression: bool = False) -> pa.Array:
    """Return the keys in `partition_stats`, or the keys of an expression index's partition rows."""
    hashed = hash64(columns)
    if expression:
        hashed = _joined(hashed, pa.repeat(hash64(pa.array([PARTITION_STAT]))[0], len(hashed)))
    return _joined(hashed, hash64(identifiers(partitions)))


def bloom_keys(partitions: Texts, file_names: Texts) -> pa.Array:
    """Return the keys in `bloom_filters`."""
    return _joined(hash64(identifiers(partitions)), hash128(file_names))


def secondary_prefixes(values: Texts) -> pa.Array:
    """Return the key prefixes of values in a secondary index: the escaped value and `$`.

    A null is a value of its own. It differs from an empty string.
    """
    escaped = pc.replace_substring_regex(_one(values), _ESCAPED, r"\\\1")
    return _joined(pc.fill_null(escaped, _NULL_VALUE), pa.repeat(pa.scalar("$"), len(escaped)))


def secondary_keys(values: Texts, record_keys: Texts) -> pa.Array:
    """Return the keys in a secondary index."""
    return _joined(secondary_prefixes(values), pc.replace_substring_regex(_one(record_keys), _ESCAPED, r"\\\1"))


def split_secondary_keys(keys: Texts) -> pa.Table:
    """Return the columns `prefix` (as in `secondary_prefixes`), `value` and `record_key` of secondary keys.

    Raises CorruptTableError for a key without separator.
    """
    texts = as_text(keys)
    parts = pc.extract_regex(texts, _SECONDARY)
    if parts.null_count:
        wrong = texts.filter(parts.is_null())[0].as_py()
        raise CorruptTableError(f"key {wrong!r} of a secondary index has no separator $", key=wrong)
    escaped = parts.field("value")
    value = pc.replace_substring_regex(escaped, _UNESCAPED, r"\1")
    return pa.table(
        {
            "prefix": _joined(escaped, pa.repeat(pa.scalar("$"), len(escaped))),
            "value": pc.if_else(pc.equal(escaped, _NULL_VALUE), pa.scalar(None, pa.string()), value),
            "record_key": pc.replace_substring_regex(parts.field("record_key"), _UNESCAPED, r"\1"),
        }
    )


def as_text(keys: Texts) -> pa.Array:
    """Return keys as strings. Raises CorruptTableError if one is not UTF-8."""
    try:
        return _one(keys).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptTableError(f"a key of the metadata table is not UTF-8: {error}") from error


def _of_distinct(texts: Texts, compute: Any) -> pa.Array:
    """Return the result of a function for each string; it is called once with the distinct strings."""
    encoded = _one(texts).dictionary_encode()
    return compute(encoded.dictionary).take(encoded.indices)


def _base64(data: NDArray[np.uint8], width: int) -> pa.Array:
    """Return values of `width` bytes (8 or 16) in base64."""
    count = len(data) // width
    padded = -(-width // 3) * 3
    values = np.zeros((count, padded), np.uint8)
    values[:, :width] = data.reshape(count, width)
    triples = values.reshape(count, padded // 3, 3).astype(np.uint32)
    words = triples[:, :, 0] << 16 | triples[:, :, 1] << 8 | triples[:, :, 2]
    text = _ALPHABET[(words[:, :, None] >> _SHIFTS) & 63].reshape(count, padded // 3 * 4)
    text[:, text.shape[1] - (padded - width) :] = ord("=")
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(text.shape[1]))
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(np.ascontiguousarray(text))])


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _one(texts: Texts) -> pa.Array:
    """Return one array of plain strings or binaries."""
    array = texts
    if isinstance(texts, pa.ChunkedArray):
        array = texts.chunk(0) if texts.num_chunks == 1 else texts.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.string()) if pa.types.is_large_string(array.type) or pa.types.is_null(array.type) else array
