"""Decode metadata records to Arrow tables and encode them, for one kind of record each (MDT-4).

*Entries* are the contents of an HFile: a table of `key` and `value`, both binary. The key of a record is the key of its
entry; the field `key` of a stored record is empty. A decoder needs the schema of the file that the entries come from.

A record has many null fields. An encoder therefore encodes only the field that its kind uses, and adds the bytes of
the null fields before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.avro.decode import decode_avro_values
from lakehouse.core.format.avro.encode import encode_avro_values
from lakehouse.core.format.avro.nodes import AvroNode
from lakehouse.core.format.avro.varints import encode_varints
from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.metadata.keys import ALL_PARTITIONS, as_text
from lakehouse.core.format.metadata.schema import (
    BLOOM_FILTER,
    FILES,
    SCHEMA,
    SECONDARY_INDEX,
    record_node,
)
from lakehouse.errors import CorruptTableError

#: Record types.
PARTITION_LIST, FILE_LIST, STATS, BLOOM, LOCATION, PARTITION_STATS, SECONDARY = range(1, 8)

#: One row per record key and file name. A record without files becomes one row with a null name.
FILE_ROWS = pa.schema(
    [("key", pa.string()), ("name", pa.string()), ("size_bytes", pa.int64()), ("deleted", pa.bool_())]
)
BLOOM_ROWS = pa.schema([("key", pa.string()), ("type", pa.string()), ("instant", pa.string()), ("filter", pa.binary())])
SECONDARY_ROWS = pa.schema([("key", pa.string())])

#: The null meta columns and the empty key.
_HEAD = bytes(6)
#: The payload fields of `SCHEMA` in order, each a union whose first branch is null.
_PAYLOADS = 5


def decode_files(entries: pa.Table, schema: str) -> pa.Table:
    """Return the records of `files` as `FILE_ROWS`, in the order of the entries.

    Raises CorruptTableError if a record is malformed or of another kind.
    """
    return _file_rows(*_payload(entries, schema, FILES, (PARTITION_LIST, FILE_LIST)))


def decode_file_parts(parts: Sequence[pa.Table], schema: str) -> list[pa.Table]:
    """Return the records of `files` from several entry tables, with one decoder call."""
    keys, maps = _payload(pa.concat_tables(parts), schema, FILES, (PARTITION_LIST, FILE_LIST))
    return [_file_rows(keys.slice(*place), maps.slice(*place)) for place in places_of(parts)]


def places_of(parts: Sequence[pa.Table]) -> list[tuple[int, int]]:
    """Return the first row and the row count of each table in the concatenation of all tables."""
    ends = np.cumsum([part.num_rows for part in parts]).tolist()
    return [(end - part.num_rows, part.num_rows) for part, end in zip(parts, ends, strict=True)]


def _file_rows(keys: pa.Array, maps: pa.Array) -> pa.Table:
    offsets = np.asarray(maps.offsets)
    counts = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    files = maps.items.slice(first, last - first)
    rows = pa.table(
        {
            "key": keys.take(pa.array(np.repeat(np.arange(len(counts)), counts))),
            "name": maps.keys.slice(first, last - first),
            "size_bytes": files.field("size"),
            "deleted": files.field("isDeleted"),
        },
        schema=FILE_ROWS,
    )
    if counts.all():
        return rows
    return pa.concat_tables([rows, _without_files(keys.take(pa.array(np.flatnonzero(counts == 0))))])


def encode_files(rows: pa.Table) -> pa.Table:
    """Return `FILE_ROWS` as entries, one per record key. Names of one key are distinct; the order does not matter."""
    rows = rows.take(pc.sort_indices(rows.column("key").cast(pa.binary())))
    keys = rows.column("key").combine_chunks()
    begins = _first_rows(keys)
    has_name = np.asarray(rows.column("name").is_valid())
    before = np.concatenate([[0], np.cumsum(has_name)])
    named = rows.filter(pa.array(has_name)).combine_chunks()
    node = _payload_node(FILES)
    file_type = node.arrow.item_type
    size, deleted = (_array(named.column(name)) for name in ("size_bytes", "deleted"))
    files = pa.StructArray.from_arrays([size, deleted], fields=list(file_type))
    offsets = pa.array(before[np.append(begins, len(keys))].astype(np.int32))
    maps = pa.MapArray.from_arrays(offsets, _array(named.column("name")), files, type=node.arrow)
    distinct = keys.take(pa.array(begins))
    types = np.where(np.asarray(pc.equal(distinct, ALL_PARTITIONS)), PARTITION_LIST, FILE_LIST)
    return _entries(distinct, types, FILES, maps)


def decode_blooms(entries: pa.Table, schema: str) -> pa.Table:
    """Return the live records of `bloom_filters` as `BLOOM_ROWS`. `filter` is the serialized filter."""
    keys, values = _payload(entries, schema, BLOOM_FILTER, (BLOOM,))
    rows = pa.table(
        {
            "key": keys,
            "type": values.field("type"),
            "instant": values.field("timestamp"),
            "filter": values.field("bloomFilter"),
        },
        schema=BLOOM_ROWS,
    )
    return rows.filter(pc.invert(values.field("isDeleted")))


def encode_blooms(rows: pa.Table) -> pa.Table:
    """Return `BLOOM_ROWS` as entries."""
    rows = sorted_by_key(rows)
    node = _payload_node(BLOOM_FILTER)
    names = ("type", "instant", "filter")
    live = pa.array(np.zeros(rows.num_rows, np.bool_))
    values = pa.StructArray.from_arrays([*(_array(rows.column(name)) for name in names), live], fields=list(node.arrow))
    return _entries(rows.column("key"), BLOOM, BLOOM_FILTER, values)


def decode_secondary(entries: pa.Table, schema: str) -> pa.Table:
    """Return the live records of a secondary index as `SECONDARY_ROWS`."""
    keys, values = _payload(entries, schema, SECONDARY_INDEX, (SECONDARY,))
    return pa.table({"key": keys}, schema=SECONDARY_ROWS).filter(pc.invert(values.field("isDeleted")))


def encode_secondary(rows: pa.Table) -> pa.Table:
    """Return `SECONDARY_ROWS` as entries."""
    rows = sorted_by_key(rows)
    node = _payload_node(SECONDARY_INDEX)
    live = pa.array(np.zeros(rows.num_rows, np.bool_))
    return _entries(
        rows.column("key"), SECONDARY, SECONDARY_INDEX, pa.StructArray.from_arrays([live], fields=list(node.arrow))
    )


def payload(entries: pa.Table, schema: str, name: str, types: tuple[int, ...]) -> tuple[pa.Array, Any, pa.Array]:
    """Return the keys of records as strings, their payload field `name` and their types.

    Raises CorruptTableError if a record is malformed, has a type that is not in `types`, or has a null payload.
    """
    node = record_node(schema)
    entries = entries.combine_chunks()
    if node.arrow.get_field_index(name) < 0:
        if entries.num_rows == 0:
            return pa.array([], pa.string()), pa.array([], _payload_node(name).arrow), pa.array([], pa.int32())
        raise CorruptTableError(f"the schema of the metadata records has no field {name}", column=name)
    keys = as_text(entries.column("key"))
    rows = decode_avro_values(_array(entries.column("value")), node, ("type", name)).combine_chunks()
    kinds, values = _array(rows.column("type")), _array(rows.column(name))
    is_right = pc.is_in(kinds, pa.array(types, pa.int32()))
    if not pc.all(is_right, min_count=0).as_py():
        at = int(np.flatnonzero(~np.asarray(is_right))[0])
        raise CorruptTableError(
            f"the metadata record of key {keys[at].as_py()!r} has type {kinds[at].as_py()}, expected"
            f" {' or '.join(map(str, types))}",
            key=keys[at].as_py(),
        )
    if values.null_count:
        at = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        raise CorruptTableError(f"the metadata record of key {keys[at].as_py()!r} has no {name}", key=keys[at].as_py())
    return keys, values, kinds


def encoded_entries(keys: Any, types: Any, name: str, values: pa.Array, schema: str = SCHEMA) -> pa.Table:
    """Return entries for records with one payload field.

    Args:
        keys: Record keys in ascending order of their bytes.
        types: The type of each record, or of all records.
        name: The payload field.
        values: The value of the payload field in each record.
        schema: The Avro schema of the records, with the payload fields of `SCHEMA`.
    """
    node = _payload_node(name, schema)
    place = [child.path for child in record_node(schema).children][-_PAYLOADS:].index(name)
    before, after = bytes(place) + b"\x02", bytes(_PAYLOADS - 1 - place)
    if isinstance(types, int):
        head: Any = pa.scalar(_HEAD + bytes([2 * types]) + before, pa.large_binary())
    else:
        data, sizes = encode_varints(np.asarray(types, np.int64))
        kinds = pa.Array.from_buffers(
            pa.large_binary(), len(sizes), [None, pa.py_buffer(np.append(0, np.cumsum(sizes))), pa.py_buffer(data)]
        )
        head = pc.binary_join_element_wise(_wide(_HEAD), kinds, _wide(before), _wide(b""))
    encoded = encode_avro_values(values, node)
    value = pc.binary_join_element_wise(head, encoded, _wide(after), _wide(b""))
    return pa.table({"key": _array(keys).cast(pa.binary()), "value": value.cast(pa.binary())}, schema=ENTRIES)


def _payload(entries: pa.Table, schema: str, name: str, types: tuple[int, ...]) -> tuple[pa.Array, Any]:
    keys, values, _ = payload(entries, schema, name, types)
    return keys, values


_entries = encoded_entries


def _payload_node(name: str, schema: str = SCHEMA) -> AvroNode:
    """Return the node of a payload field in a schema for writing, without the union with null."""
    (node,) = [child for child in record_node(schema).children if child.path == name]
    return AvroNode(path=node.path, kind=node.kind, arrow=node.arrow, children=node.children)


def _without_files(keys: pa.Array) -> pa.Table:
    count = len(keys)
    names, sizes = pa.nulls(count, pa.string()), pa.array(np.zeros(count, np.int64))
    return pa.table([keys, names, sizes, pa.array(np.ones(count, np.bool_))], schema=FILE_ROWS)


def _first_rows(keys: pa.Array) -> Any:
    """Return the first row in each run of equal keys."""
    if len(keys) == 0:
        return np.empty(0, np.int64)
    changes = np.asarray(pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)))
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def sorted_by_key(rows: pa.Table) -> pa.Table:
    """Return rows in ascending order of their key's bytes."""
    return rows.take(pc.sort_indices(rows.column("key").cast(pa.binary())))


def _array(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _wide(data: bytes) -> pa.Scalar:
    return pa.scalar(data, pa.large_binary())
