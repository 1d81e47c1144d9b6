"""Look up a few records of the metadata table one by one (MDT-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from lakehouse.core.format.metadata.keys import NON_PARTITIONED
from lakehouse.core.format.metadata.schema import is_current, lacks_value_types
from lakehouse.core.format.metadata.statistics import with_value_type
from lakehouse.core.metadata.read.layers import FileLayer
from lakehouse.core.metadata.small.records import (
    FEW_BYTES,
    Statistic,
    add_files,
    decode_file_map,
    decode_statistic,
    door,
    refuse,
)

#: Maximum number of partitions whose files are looked up one by one.
_FEW_KEYS = 16


@door
def small_statistics(layers: Sequence[FileLayer], keys: Sequence[bytes]) -> dict[bytes, Statistic]:
    """Return the merged statistics of keys, from the layers of a file group; keys without record are left out.

    It is None if records must be merged, or were written by a different release.
    """
    rows: dict[bytes, Statistic] = {}
    rest, loose = list(keys), set[bytes]()
    for layer in reversed(layers):
        if not rest:
            break
        if not layer.has_entries:
            gone = layer.deleted()
            rest = [key for key in rest if key not in gone]
            continue
        for key, value in _stored(layer, rest, statistics=True).items():
            row = decode_statistic(value)
            if row.deleted or key in loose:
                refuse()
            rows[key] = row
            if not row.tight:
                loose.add(key)
        rest = [key for key in rest if key not in rows or key in loose]
    return rows


@door
def small_listing(layers: Callable[[], Sequence[FileLayer]], partitions: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return the files of partitions as a table with partition, name and size.

    It is None for many partitions or files, and if the records were written by a different release.
    """
    if len(partitions) > _FEW_KEYS:
        refuse()
    keys = {(path or NON_PARTITIONED).encode(): path for path in partitions}
    files: dict[bytes, dict[str, tuple[int, bool]]] = {key: {} for key in keys}
    size = 0
    for layer in layers():
        if not layer.has_entries:
            for key in layer.deleted() & files.keys():
                files[key] = {}
            continue
        for key, value in _stored(layer, list(keys), statistics=False).items():
            size += len(value)
            if size > FEW_BYTES:
                refuse()
            add_files(files[key], decode_file_map(value))
    rows = [
        (keys[key], name, size_bytes)
        for key, held in files.items()
        for name, (size_bytes, deleted) in held.items()
        if not deleted
    ]
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def _stored(layer: FileLayer, keys: Sequence[bytes], *, statistics: bool) -> Mapping[bytes, bytes]:
    return in_memory(layer, layer.stored(keys), statistics=statistics) if layer.count else {}


def in_memory(layer: FileLayer, values: Mapping[bytes, bytes], *, statistics: bool) -> Mapping[bytes, bytes]:
    """Return records of a layer in the form of `SCHEMA`; refuse other schemas than the ones this package writes.

    Without value types, only the records of statistics have other bytes.
    """
    schema = layer.schema
    if schema is None or not (is_current(schema) or lacks_value_types(schema)):
        refuse()
    if not statistics or is_current(schema):
        return values
    return {key: with_value_type(value) for key, value in values.items()}
