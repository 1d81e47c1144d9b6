"""Manifests and manifest lists of an Iceberg view, as Avro files (Iceberg spec: manifests, manifest lists).

An entry is a dictionary with the fields of the specification. Entries of added files inherit the sequence number of
their snapshot; when a manifest is written again, the entries that stay get explicit numbers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import fastavro
import pyarrow as pa

from lakehouse.errors import CorruptTableError
from lakehouse.platform.export.columns import ViewColumns
from lakehouse.platform.export.facts import FileFacts
from lakehouse.platform.export.iceberg.types import (
    avro_type,
    column_ids,
    encode_bounds,
    encode_value,
    partition_value,
)

EXISTING, ADDED, DELETED = 0, 1, 2
_EPOCH = date(1970, 1, 1)
_CODEC = "deflate"
Entry = dict[str, Any]


def new_entry(facts: FileFacts, location: str, snapshot: int, columns: ViewColumns, schema: Mapping[str, Any]) -> Entry:
    """Return the entry of an added file."""
    ids = column_ids(schema)
    lower, upper, values, nulls = [], [], [], []
    for name, bounds in facts.bounds.items():
        number, kind = ids[name], columns.kind(name)
        values.append({"key": number, "value": bounds.values})
        nulls.append({"key": number, "value": bounds.nulls})
        if bounds.low is None:
            continue
        low, high = encode_bounds(bounds.low, bounds.high, kind)
        if low is not None:
            lower.append({"key": number, "value": low})
        if high is not None:
            upper.append({"key": number, "value": high})
    partition = {
        name: None if facts.partition[name] is None else partition_value(facts.partition[name], columns.kind(name))
        for name in columns.partition_by
    }
    return {
        "status": ADDED,
        "snapshot_id": snapshot,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": {
            "content": 0,
            "file_path": f"{location}/{facts.path}",
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": facts.rows,
            "file_size_in_bytes": facts.size_bytes,
            "value_counts": values,
            "null_value_counts": nulls,
            "lower_bounds": lower,
            "upper_bounds": upper,
        },
    }


def kept_entry(entry: Entry, manifest: Mapping[str, Any]) -> Entry:
    """Return an entry of an older manifest as existing, with explicit sequence numbers."""
    return {**_explicit(entry, manifest), "status": EXISTING}


def deleted_entry(entry: Entry, manifest: Mapping[str, Any], snapshot: int) -> Entry:
    """Return an entry of an older manifest as deleted by a snapshot."""
    return {**_explicit(entry, manifest), "status": DELETED, "snapshot_id": snapshot}


def encode_manifest(
    entries: Sequence[Entry], columns: ViewColumns, schema: Mapping[str, Any], spec: Mapping[str, Any]
) -> bytes:
    """Return the bytes of a manifest."""
    metadata = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": json.dumps(spec["fields"]),
        "partition-spec-id": str(spec["spec-id"]),
        "format-version": "2",
        "content": "data",
    }
    sink = io.BytesIO()
    fastavro.writer(sink, _manifest_schema(columns, spec), entries, codec=_CODEC, metadata=metadata)
    return sink.getvalue()


# parameters: the independent fields of a record
def manifest_record(
    entries: Sequence[Entry], *, path: str, size: int, snapshot: int, sequence: int, spec: int, columns: ViewColumns
) -> dict[str, Any]:
    """Return the record of a new manifest for the manifest list."""
    counts = {status: [e for e in entries if e["status"] == status] for status in (EXISTING, ADDED, DELETED)}
    numbers = [e["sequence_number"] for e in entries if e["status"] != DELETED and e["sequence_number"] is not None]
    least = min([*numbers, *([sequence] if counts[ADDED] else [])], default=sequence)
    names = {ADDED: "added", EXISTING: "existing", DELETED: "deleted"}
    record: dict[str, Any] = {
        "manifest_path": path,
        "manifest_length": size,
        "partition_spec_id": spec,
        "content": 0,
        "sequence_number": sequence,
        "min_sequence_number": least,
        "added_snapshot_id": snapshot,
        "partitions": [_summary(entries, name, columns.kind(name)) for name in columns.partition_by],
    }
    for status, name in names.items():
        record[f"{name}_files_count"] = len(counts[status])
        record[f"{name}_rows_count"] = sum(e["data_file"]["record_count"] for e in counts[status])
    return record


def encode_manifest_list(records: Iterable[Mapping[str, Any]], snapshot: Mapping[str, Any]) -> bytes:
    """Return the bytes of the manifest list of a snapshot."""
    metadata = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": "2",
    }
    sink = io.BytesIO()
    fastavro.writer(sink, _LIST, list(records), codec=_CODEC, metadata=metadata)
    return sink.getvalue()


def decode_manifest_list(data: bytes, path: str) -> list[dict[str, Any]]:
    """Return the records of a manifest list; raise CorruptTableError for other bytes."""
    return _read(data, path)


def decode_manifest(data: bytes, path: str) -> list[Entry]:
    """Return the entries of a manifest that name files of its snapshot; raise CorruptTableError for other bytes."""
    entries = [entry for entry in _read(data, path) if entry["status"] != DELETED]
    for entry in entries:
        partition = entry["data_file"]["partition"]
        for name, value in partition.items():
            if isinstance(value, date):
                # The Avro library converts logical types.
                partition[name] = (value - _EPOCH).days
    return entries


def _read(data: bytes, path: str) -> list[Any]:
    try:
        return list(fastavro.reader(io.BytesIO(data)))
    except (ValueError, EOFError, KeyError, TypeError, IndexError, OSError) as error:
        raise CorruptTableError(f"{path} is not an Avro file of an Iceberg view: {error}", path=path) from error


def _explicit(entry: Entry, manifest: Mapping[str, Any]) -> Entry:
    inherited = manifest["sequence_number"]
    numbers = {
        name: inherited if entry.get(name) is None else entry[name]
        for name in ("sequence_number", "file_sequence_number")
    }
    snapshot = manifest["added_snapshot_id"] if entry.get("snapshot_id") is None else entry["snapshot_id"]
    return {**entry, **numbers, "snapshot_id": snapshot}


def _summary(entries: Sequence[Entry], name: str, kind: pa.DataType) -> dict[str, Any]:
    values = [entry["data_file"]["partition"][name] for entry in entries]
    present = [value for value in values if value is not None]
    # Strings are ordered by their code points, as their bytes in UTF-8 are.
    low, high = (min(present), max(present)) if present else (None, None)
    return {
        "contains_null": len(present) < len(values),
        "contains_nan": False,
        "lower_bound": None if low is None else encode_value(low, kind),
        "upper_bound": None if high is None else encode_value(high, kind),
    }


def _field(number: int, name: str, kind: Any, *, optional: bool = False) -> dict[str, Any]:
    field = {"name": name, "type": ["null", kind] if optional else kind, "field-id": number}
    return {**field, "default": None} if optional else field


def _map(key: int, value: int, kind: str) -> dict[str, Any]:
    """Return the Avro type of a map with integer keys: a list of pairs."""
    return {
        "type": "array",
        "items": {
            "type": "record",
            "name": f"k{key}_v{value}",
            "fields": [_field(key, "key", "int"), _field(value, "value", kind)],
        },
        "logicalType": "map",
    }


def _manifest_schema(columns: ViewColumns, spec: Mapping[str, Any]) -> dict[str, Any]:
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [
            _field(field["field-id"], field["name"], avro_type(columns.kind(field["name"])), optional=True)
            for field in spec["fields"]
        ],
    }
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _field(134, "content", "int"),
            _field(100, "file_path", "string"),
            _field(101, "file_format", "string"),
            _field(102, "partition", partition),
            _field(103, "record_count", "long"),
            _field(104, "file_size_in_bytes", "long"),
            _field(109, "value_counts", _map(119, 120, "long"), optional=True),
            _field(110, "null_value_counts", _map(121, 122, "long"), optional=True),
            _field(125, "lower_bounds", _map(126, 127, "bytes"), optional=True),
            _field(128, "upper_bounds", _map(129, 130, "bytes"), optional=True),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int"),
            _field(1, "snapshot_id", "long", optional=True),
            _field(3, "sequence_number", "long", optional=True),
            _field(4, "file_sequence_number", "long", optional=True),
            _field(2, "data_file", data_file),
        ],
    }


_PARTITION_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field(509, "contains_null", "boolean"),
        _field(518, "contains_nan", "boolean", optional=True),
        _field(510, "lower_bound", "bytes", optional=True),
        _field(511, "upper_bound", "bytes", optional=True),
    ],
}
_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
        _field(507, "partitions", {"type": "array", "items": _PARTITION_SUMMARY, "element-id": 508}, optional=True),
    ],
}
