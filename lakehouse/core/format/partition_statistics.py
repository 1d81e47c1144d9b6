"""Partition statistics as one Parquet file: one row per data file; common values are in the footer."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json
from lakehouse.model.statistics import Group, PartitionLife, TableStatistics, TrackedFile

_KEY = b"lakehouse.statistics"
_VERSION = 1
_SCHEMA = pa.schema(
    [
        ("partition", pa.dictionary(pa.int32(), pa.string())),
        ("file", pa.string()),
        ("size_bytes", pa.int64()),
        ("rows", pa.int64()),
        ("completed", pa.string()),
        ("created", pa.string()),
        ("modified", pa.string()),
    ]
)


def encode_statistics(statistics: TableStatistics, fresh_id: str) -> bytes:
    """Return the bytes of the file; `fresh_id` makes them different from those of any other writer."""
    # The rows are files of the table, some tens of thousands, not its records.
    tracked = [t for files in statistics.files.values() for t in files]
    lives = [statistics.lives[t.file.partition] for t in tracked]
    columns = {
        "partition": pa.array([t.file.partition for t in tracked], pa.string()).dictionary_encode(),
        "file": [t.file.name for t in tracked],
        "size_bytes": [t.file.size_bytes for t in tracked],
        "rows": [t.rows for t in tracked],
        "completed": [t.completed for t in tracked],
        "created": [life.created for life in lives],
        "modified": [life.modified for life in lives],
    }
    footer = {
        "version": _VERSION,
        "id": fresh_id,
        "instants": dict(statistics.instants),
        "folded_up_to": statistics.folded_up_to,
        "anchor": statistics.anchor,
        "latest": statistics.latest,
    }
    arrays = [pa.array(columns[f.name], f.type) if f.name != "partition" else columns["partition"] for f in _SCHEMA]
    table = pa.Table.from_arrays(arrays, schema=_SCHEMA.with_metadata({_KEY: json.dumps(footer).encode()}))
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def decode_statistics(data: bytes) -> TableStatistics:
    """Decode the bytes of `encode_statistics`; raise CorruptTableError for other bytes or another version."""
    try:
        table = pq.read_table(io.BytesIO(data))
        footer = parse_json((table.schema.metadata or {})[_KEY])
        if footer["version"] != _VERSION:
            raise ValueError(f"version {footer['version']}")
        columns = [table.column(name).to_pylist() for name in _SCHEMA.names]
        files: dict[Group, tuple[TrackedFile, ...]] = {}
        lives: dict[str, PartitionLife] = {}
        for partition, name, size, rows, completed, created, modified in zip(*columns, strict=True):
            file = parse_base_file(name, partition, size) or parse_log_file(name, partition, size)
            if file is None:
                raise ValueError(f"{name!r} is not a data file name")
            group = (partition, file.file_id)
            files[group] = (*files.get(group, ()), TrackedFile(file=file, completed=completed, rows=rows))
            lives[partition] = PartitionLife(created=created, modified=modified)
        return TableStatistics(
            files=files,
            lives=lives,
            instants=footer["instants"],
            folded_up_to=footer["folded_up_to"],
            anchor=footer["anchor"],
            latest=footer["latest"],
        )
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(f"the file of partition statistics is invalid: {error}") from error
