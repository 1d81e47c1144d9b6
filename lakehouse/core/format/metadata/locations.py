"""Decode and encode record locations, the records of `record_index` (MDT-4).

A file id that consists of a UUID and a number is stored as two integers of 64 bits and the number. Any other file id is
stored as a string.

    e8f2 ... c1-0      encoding 0, high bits, low bits, file index 0
    e8f2 ... c1        encoding 0, high bits, low bits, file index -1
    bucket-17          encoding 1, string
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.metadata.records import LOCATION, encoded_entries, payload, sorted_by_key
from lakehouse.core.format.metadata.schema import RECORD_INDEX, SCHEMA, record_node
from lakehouse.errors import CorruptTableError

#: `instant_ms` is the epoch time of the instant in milliseconds.
LOCATION_ROWS = pa.schema(
    [("key", pa.string()), ("partition", pa.string()), ("file_id", pa.string()), ("instant_ms", pa.int64())]
)

_UUID_CHARS = 36
_HYPHENS = (8, 13, 18, 23)
_DIGITS_AT = np.array([at for at in range(_UUID_CHARS) if at not in _HYPHENS])
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_NOT_HEX = 255
_VALUE_OF = np.full(256, _NOT_HEX, np.uint8)
_VALUE_OF[_HEX] = np.arange(16)
#: A UUID in lower case and a number without leading zeros; other strings would not be restored exactly.
_UUID_ID = r"^(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:-(?P<index>0|[1-9][0-9]{0,8}))?$"
_AS_BITS, _AS_TEXT = 0, 1
_WITHOUT_INDEX = -1
_NO_UUID = "0" * _UUID_CHARS

Bytes = NDArray[np.uint8]


def decode_locations(entries: pa.Table, schema: str) -> pa.Table:
    """Return the records of `record_index` as `LOCATION_ROWS`, in the order of the entries.

    Raises CorruptTableError if a record is malformed, of another kind, or without partition, file id or instant.
    """
    keys, values, _ = payload(entries, schema, RECORD_INDEX, (LOCATION,))
    fields = {field.name: values.field(index) for index, field in enumerate(values.type)}
    encoding = fields.get("fileIdEncoding")
    encodings = np.zeros(len(keys), np.int32) if encoding is None else np.asarray(encoding)
    if not np.isin(encodings, (_AS_BITS, _AS_TEXT)).all():
        at = int(np.flatnonzero(~np.isin(encodings, (_AS_BITS, _AS_TEXT)))[0])
        raise CorruptTableError(f"the location of key {keys[at].as_py()!r} has the file id encoding {encodings[at]}")
    is_text = encodings == _AS_TEXT
    if not is_text.any():
        file_ids = _uuid_ids(fields)
    elif is_text.all():
        file_ids = fields["fileId"]
    else:
        file_ids = pc.if_else(pa.array(is_text), fields["fileId"], _uuid_ids(fields))
    rows = pa.table([keys, fields["partitionName"], file_ids, fields["instantTime"]], schema=LOCATION_ROWS)
    for name in rows.column_names:
        if rows.column(name).null_count:
            at = int(np.flatnonzero(np.asarray(rows.column(name).is_null()))[0])
            raise CorruptTableError(f"the location of key {keys[at].as_py()!r} has no {name}", key=keys[at].as_py())
    return rows


def encode_locations(rows: pa.Table) -> pa.Table:
    """Return `LOCATION_ROWS` as entries. Keys are distinct; the order of the rows does not matter."""
    rows = sorted_by_key(rows)
    count = rows.num_rows
    ids = rows.column("file_id").combine_chunks().dictionary_encode()
    parts = pc.extract_regex(ids.dictionary, _UUID_ID)
    is_bits = np.asarray(parts.is_valid())
    high, low = _bits(pc.if_else(pa.array(is_bits), parts.field("uuid"), _NO_UUID))
    has_index = pc.and_(pa.array(is_bits), pc.not_equal(parts.field("index"), ""))
    indexes = pc.if_else(has_index, parts.field("index"), str(_WITHOUT_INDEX)).cast(pa.int32())
    texts = pc.if_else(pa.array(is_bits), "", ids.dictionary)
    columns = {
        "partitionName": rows.column("partition").combine_chunks(),
        "fileIdHighBits": pa.array(high).take(ids.indices),
        "fileIdLowBits": pa.array(low).take(ids.indices),
        "fileIndex": indexes.take(ids.indices),
        "fileId": texts.take(ids.indices),
        "instantTime": rows.column("instant_ms").combine_chunks(),
        "fileIdEncoding": pa.array(np.where(is_bits, _AS_BITS, _AS_TEXT).astype(np.int32)).take(ids.indices),
        "position": pa.nulls(count, pa.int64()),
    }
    (node,) = [child for child in record_node(SCHEMA).children if child.path == RECORD_INDEX]
    values = pa.StructArray.from_arrays([columns[field.name] for field in node.arrow], fields=list(node.arrow))
    return encoded_entries(rows.column("key"), LOCATION, RECORD_INDEX, values)


def _uuid_ids(fields: dict[str, Any]) -> pa.Array:
    """Return file ids from their bits; null where a part is missing. Each distinct file id is built once."""
    parts = [fields[name] for name in ("fileIdHighBits", "fileIdLowBits", "fileIndex")]
    is_valid = np.logical_and.reduce([np.asarray(part.is_valid()) for part in parts])
    high, low, index = (np.asarray(part.fill_null(0)).astype(np.int64) for part in parts)
    triples = np.stack([high, low, index], axis=1)
    distinct, inverse = _distinct(triples)
    texts = _uuid_texts(distinct[:, 0], distinct[:, 1])
    numbers = pa.array(distinct[:, 2])
    suffix = pc.binary_join_element_wise("-", numbers.cast(pa.string()), "")
    suffix = pc.if_else(pc.equal(numbers, _WITHOUT_INDEX), "", suffix)
    ids = pc.binary_join_element_wise(texts, suffix, "").take(pa.array(inverse))
    return ids if is_valid.all() else pc.if_else(pa.array(is_valid), ids, None)


def _distinct(triples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows and the number of the distinct row that each row equals."""
    if len(triples) == 0:
        return triples, np.empty(0, np.int64)
    order = np.lexsort(triples.T)
    ordered = triples[order]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    inverse = np.empty(len(triples), np.int64)
    inverse[order] = np.cumsum(is_new) - 1
    return ordered[is_new], inverse


def _uuid_texts(high: NDArray[np.int64], low: NDArray[np.int64]) -> pa.Array:
    data = np.stack([high, low], axis=1).astype(">i8").view(np.uint8)
    text = np.full((len(high), _UUID_CHARS), ord("-"), np.uint8)
    text[:, _DIGITS_AT[0::2]] = _HEX[data >> 4]
    text[:, _DIGITS_AT[1::2]] = _HEX[data & 15]
    offsets = pa.py_buffer(np.arange(len(high) + 1, dtype=np.int32) * np.int32(_UUID_CHARS))
    return pa.Array.from_buffers(pa.string(), len(high), [None, offsets, pa.py_buffer(np.ascontiguousarray(text))])


def _bits(uuids: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the high and the low 64 bits of UUID strings."""
    text = np.frombuffer("".join(uuids.to_pylist()).encode(), np.uint8).reshape(len(uuids), _UUID_CHARS)
    digits = _VALUE_OF[text[:, _DIGITS_AT]]
    data = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    words = data.view(">i8").astype(np.int64)
    return words[:, 0], words[:, 1]
