"""Partition statistics as one Parquet file: one row per data file; common values are in the footer."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json
from lakehouse.model.statistics import PartitionLife

#: Columns of the files in current slices. `completed` is the completion time of a file's commit, `rows` the number of
#: rows that the file adds to its slice.
TRACKED_FILES = pa.schema(
    [
        ("partition", pa.string()),
        ("name", pa.string()),
        ("size_bytes", pa.int64()),
        ("completed", pa.string()),
        ("rows", pa.int64()),
    ]
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """The newest slices of all file groups and the times of their partitions, at one completion time.

    Attributes:
        files: The files in the current slice of each file group, as `TRACKED_FILES`.
        lives: The times of each partition that has files.
        instants: Completion times of the included writes on the active timeline, by requested time.
        folded_up_to: The completion time of the statistics.
        anchor: A requested time. While its instant is not archived, every archived instant before it is included.
        latest: The latest time on the timeline.
    """

    files: pa.Table = field(default_factory=TRACKED_FILES.empty_table)
    lives: Mapping[str, PartitionLife] = field(default_factory=dict)
    instants: Mapping[str, str] = field(default_factory=dict)
    folded_up_to: str = ""
    anchor: str = ""
    latest: str = ""


def encode_statistics(statistics: TableStatistics, fresh_id: str) -> bytes:
    """Return the bytes of the file; `fresh_id` makes them different from any other writer's bytes."""
    files = statistics.files.combine_chunks()
    partitions = files.column("partition").combine_chunks().dictionary_encode()
    lives = [statistics.lives[partition] for partition in partitions.dictionary.to_pylist()]
    times = [
        pa.array([getattr(life, name) for life in lives], pa.string()).take(partitions.indices)
        for name in ("created", "modified")
    ]
    footer = {
        "version": _VERSION,
        "id": fresh_id,
        "instants": dict(statistics.instants),
        "folded_up_to": statistics.folded_up_to,
        "anchor": statistics.anchor,
        "latest": statistics.latest,
    }
    columns = [partitions, *(files.column(name) for name in ("name", "size_bytes", "rows", "completed")), *times]
    table = pa.Table.from_arrays(columns, schema=_SCHEMA.with_metadata({_KEY: json.dumps(footer).encode()}))
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
        names = ["partition", "file", "size_bytes", "completed", "rows"]
        files = table.select(names).rename_columns(TRACKED_FILES.names).cast(TRACKED_FILES).combine_chunks()
        if any(column.null_count for column in files.columns):
            raise ValueError("a value is missing")
        return TableStatistics(
            files=files,
            lives=_lives(table),
            instants=footer["instants"],
            folded_up_to=footer["folded_up_to"],
            anchor=footer["anchor"],
            latest=footer["latest"],
        )
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(f"the file of partition statistics is invalid: {error}") from error


def _lives(table: pa.Table) -> dict[str, PartitionLife]:
    """Return the times of each partition; all its rows have the same."""
    names = ["partition", "created", "modified"]
    times = table.select(names).cast(pa.schema([(name, pa.string()) for name in names]))
    rows = times.group_by(names).aggregate([])
    if pc.any(pc.is_null(rows.column("created"))).as_py() or pc.any(pc.is_null(rows.column("modified"))).as_py():
        raise ValueError("a partition has no times")
    return {
        partition: PartitionLife(created=created, modified=modified)
        for partition, created, modified in zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    }
