"""The files of a snapshot that is exported, fixed at the start so that a continued export has the same rows.

A snapshot contains all writes that completed up to one time. Its manifest lists the files of its slices. A file that a
clean removed since then is an error, never a missing row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.queries import CompletedUpTo
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.files import BaseFile, FileSlice, LogFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot of a table: its version, and its slices by partition, in order.

    Attributes:
        table_id: The id of the table, or its location if it has none.
        completion: The completion time of the newest write that it contains.
        instant: The requested time of that write.
        partitions: The slices of each partition.
    """

    table_id: str
    completion: str
    instant: str
    partitions: dict[str, tuple[FileSlice, ...]]

    def to_json(self) -> bytes:
        """Return the manifest."""
        document = {
            "table_id": self.table_id,
            "completion": self.completion,
            "instant": self.instant,
            "partitions": {name: [_files(piece) for piece in slices] for name, slices in self.partitions.items()},
        }
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Snapshot:
        """Return the snapshot of a manifest. Raises CorruptTableError for a file that is no data file."""
        document: dict[str, Any] = json.loads(data)
        partitions = {
            name: tuple(_slice(name, files) for files in slices) for name, slices in document["partitions"].items()
        }
        return cls(**{**document, "partitions": partitions})


def take_snapshot(table: LoadedTable) -> Snapshot:
    """Return the newest snapshot. Raises UserError for a table without a completed write."""
    writes = table.timeline.writes().by_completion()
    if not writes:
        raise UserError(
            f"{table.env.storage.root} has no completed write on its timeline, so there is nothing to export"
        )
    newest = writes[-1]
    partitions: dict[str, list[FileSlice]] = {}
    for piece in load_slices(table, completed_up_to=newest.completion):
        partitions.setdefault(piece.partition, []).append(piece)
    return Snapshot(
        table_id=identity(table),
        completion=newest.completion,
        instant=newest.requested,
        partitions={name: tuple(partitions[name]) for name in sorted(partitions)},
    )


def identity(table: LoadedTable) -> str:
    """Return the id of a table, or its location if it has none."""
    return table.config.identity.id or table.env.storage.root


def kept_snapshot(table: LoadedTable, target: Storage, path: str) -> Snapshot:
    """Return the snapshot in the manifest at `path`, which is created if it is missing.

    Raises UserError if the manifest belongs to the export of another table.
    """
    try:
        data = target.get(path)
    except NotFoundError:
        target.create(path, take_snapshot(table).to_json())
        data = target.get(path)
    snapshot = Snapshot.from_json(data)
    if snapshot.table_id != identity(table):
        raise UserError(
            f"{target.root} has an export of another table, with the id {snapshot.table_id}; choose another location",
            location=target.root,
        )
    return snapshot


def snapshot_schema(table: LoadedTable, snapshot: Snapshot) -> pa.Schema:
    """Return the data columns of a snapshot."""
    schema = table_schema(table, up_to=snapshot.instant)
    if schema is None:
        raise UserError(f"{table.env.storage.root} has no columns yet, so there is nothing to export")
    return schema


def snapshot_reader(table: LoadedTable, snapshot: Snapshot, schema: pa.Schema, budget: int) -> SliceContext:
    """Return the settings for readers of the snapshot."""
    if any(piece.logs for slices in snapshot.partitions.values() for piece in slices):
        require_mergeable(table.config)
    return slice_context(table, schema, version=CompletedUpTo(snapshot.completion), budget=budget)


def _files(piece: FileSlice) -> dict[str, Any]:
    files: list[BaseFile | LogFile] = [*([] if piece.base is None else [piece.base]), *piece.logs]
    return {"instant": piece.base_instant, "file_id": piece.file_id, "files": [[f.name, f.size_bytes] for f in files]}


def _slice(partition: str, record: dict[str, Any]) -> FileSlice:
    base: BaseFile | None = None
    logs: list[LogFile] = []
    for name, size in record["files"]:
        log = parse_log_file(name, partition, size)
        if log is not None:
            logs.append(log)
            continue
        base = parse_base_file(name, partition, size)
        if base is None:
            raise CorruptTableError(f"{name!r} in the manifest of the export is no data file of a table", path=name)
    return FileSlice(
        partition=partition,
        file_id=record["file_id"],
        base_instant=record["instant"],
        base=base,
        logs=tuple(logs),
    )
