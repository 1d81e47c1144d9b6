"""Summarizes a table for a person: configuration, schema, partitions, plans, savepoints, latest commits."""

from __future__ import annotations

from typing import Any

from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions
from lakehouse.core.operations.load.savepoints import savepoints
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.model.instant import Action

_PLANNED = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING)
_LAST_COMMITS = 10


def describe(table: LoadedTable) -> dict[str, Any]:
    """Return a summary of the table as plain values that JSON can store; the table is listed once.

    A partition has the numbers of its file groups and log files, the bytes of base files and of log files, their ratio
    (None without base files), and the number of file groups in pending plans.
    """
    config, schema = table.config, table_schema(table)
    return {
        "table": config.name,
        "location": table.env.storage.root,
        "type": f"{config.table_type}, version {config.version}, {config.merge_mode}",
        "record key": list(config.keys.record_key_fields),
        "partitioned by": list(config.keys.partition_fields),
        "ordering": list(config.ordering_fields),
        "schema": [{"column": field.name, "type": str(field.type)} for field in schema or ()],
        "partitions": _partitions(table),
        "pending plans": _plans(table),
        "pending restore": restore.requested if (restore := table.timeline.pending_restore()) else None,
        "savepoints": _savepoints(table),
        "commits": _commits(table),
    }


def _partitions(table: LoadedTable) -> list[dict[str, Any]]:
    held = {**pending_clustering(table), **pending_compactions(table)}
    found: dict[str, dict[str, Any]] = {}
    for file_slice in load_slices(table):
        empty = {"file groups": 0, "base bytes": 0, "log bytes": 0, "log files": 0, "planned groups": 0}
        entry = found.setdefault(file_slice.partition, {"partition": file_slice.partition or "(root)", **empty})
        entry["file groups"] += 1
        entry["base bytes"] += file_slice.base.size_bytes if file_slice.base else 0
        entry["log bytes"] += file_slice.total_log_bytes
        entry["log files"] += len(file_slice.logs)
        entry["planned groups"] += (file_slice.partition, file_slice.file_id) in held
    for entry in found.values():
        entry["log/base"] = round(entry["log bytes"] / entry["base bytes"], 3) if entry["base bytes"] else None
    return [entry for _, entry in sorted(found.items())]


def _plans(table: LoadedTable) -> list[dict[str, Any]]:
    """Return the pending plans; a pending replacecommit without file groups is an ordinary write, not a plan."""
    groups: dict[str, int] = {}
    for instant in (*pending_compactions(table).values(), *pending_clustering(table).values()):
        groups[instant] = groups.get(instant, 0) + 1
    pending = table.timeline.where(action={*_PLANNED, Action.REPLACECOMMIT}, pending=True)
    return [
        {
            "instant": instant.requested,
            "action": str(instant.action),
            "state": instant.state.name.lower(),
            "file groups": groups.get(instant.requested, 0),
        }
        for instant in pending
        if instant.action in _PLANNED or instant.requested in groups
    ]


def _savepoints(table: LoadedTable) -> list[dict[str, Any]]:
    return [
        {
            "instant": savepoint.requested,
            "files": sum(map(len, savepoint.metadata.files.values())),
            "by": savepoint.metadata.user,
            "comment": savepoint.metadata.comment,
        }
        for savepoint in savepoints(table)
    ]


def _commits(table: LoadedTable) -> list[dict[str, Any]]:
    last = table.timeline.writes().by_completion()[-_LAST_COMMITS:]
    return [
        {
            "instant": instant.requested,
            "completed": instant.completed,
            "operation": metadata.operation,
            "files": len(metadata.stats),
            "inserts": sum(s.num_inserts for s in metadata.stats),
            "updates": sum(s.num_updates for s in metadata.stats),
            "deletes": sum(s.num_deletes for s in metadata.stats),
            "bytes": sum(s.size_bytes for s in metadata.stats),
        }
        for instant, metadata in table.store.commits(last)
    ]
