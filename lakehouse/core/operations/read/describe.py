"""Summarize a table: configuration, schema, partitions, plans, savepoints, latest commits."""

from __future__ import annotations

from dataclasses import replace

from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions
from lakehouse.core.operations.load.savepoints import savepoints
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.model.instant import Action
from lakehouse.spec.contracts.tables import (
    ColumnInfo,
    CommitInfo,
    KeptCommit,
    PartitionInfo,
    PendingPlan,
    TableSummary,
)

_PLANNED = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING)
_LAST_COMMITS = 10


def describe(table: LoadedTable) -> TableSummary:
    """Return a summary of the table; the table is listed once."""
    config, schema = table.config, table_schema(table)
    restore = table.timeline.pending_restore()
    return TableSummary(
        table=config.name,
        location=table.env.storage.root,
        type=f"{config.table_type}, version {config.version}, {config.merge_mode}",
        record_key=tuple(config.keys.record_key_fields),
        partitioned_by=tuple(config.keys.partition_fields),
        ordering=tuple(config.ordering_fields),
        schema=tuple(ColumnInfo(column=field.name, type=str(field.type)) for field in schema or ()),
        partitions=_partitions(table),
        pending_plans=_plans(table),
        pending_restore=None if restore is None else restore.requested,
        savepoints=_savepoints(table),
        commits=_commits(table),
    )


def _partitions(table: LoadedTable) -> tuple[PartitionInfo, ...]:
    held = {**pending_clustering(table), **pending_compactions(table)}
    found: dict[str, PartitionInfo] = {}
    for file_slice in load_slices(table):
        name = file_slice.partition
        before = found.get(name, PartitionInfo(partition=name or "(root)"))
        found[name] = replace(
            before,
            file_groups=before.file_groups + 1,
            base_bytes=before.base_bytes + (file_slice.base.size_bytes if file_slice.base else 0),
            log_bytes=before.log_bytes + file_slice.total_log_bytes,
            log_files=before.log_files + len(file_slice.logs),
            planned_groups=before.planned_groups + ((name, file_slice.file_id) in held),
        )
    return tuple(
        replace(info, log_ratio=round(info.log_bytes / info.base_bytes, 3)) if info.base_bytes else info
        for _, info in sorted(found.items())
    )


def _plans(table: LoadedTable) -> tuple[PendingPlan, ...]:
    """Return the pending plans; a pending replacecommit without file groups is an ordinary write, not a plan."""
    groups: dict[str, int] = {}
    for instant in (*pending_compactions(table).values(), *pending_clustering(table).values()):
        groups[instant] = groups.get(instant, 0) + 1
    pending = table.timeline.where(action={*_PLANNED, Action.REPLACECOMMIT}, pending=True)
    return tuple(
        PendingPlan(
            instant=instant.requested,
            action=str(instant.action),
            state=instant.state.name.lower(),
            file_groups=groups.get(instant.requested, 0),
        )
        for instant in pending
        if instant.action in _PLANNED or instant.requested in groups
    )


def _savepoints(table: LoadedTable) -> tuple[KeptCommit, ...]:
    return tuple(
        KeptCommit(
            instant=savepoint.requested,
            files=sum(map(len, savepoint.metadata.files.values())),
            by=savepoint.metadata.user,
            comment=savepoint.metadata.comment,
        )
        for savepoint in savepoints(table)
    )


def _commits(table: LoadedTable) -> tuple[CommitInfo, ...]:
    last = table.timeline.writes().by_completion()[-_LAST_COMMITS:]
    return tuple(
        CommitInfo(
            instant=instant.requested,
            completed=instant.completed,
            operation=metadata.operation,
            files=len(metadata.stats),
            inserts=sum(s.num_inserts for s in metadata.stats),
            updates=sum(s.num_updates for s in metadata.stats),
            deletes=sum(s.num_deletes for s in metadata.stats),
            bytes=sum(s.size_bytes for s in metadata.stats),
        )
        for instant, metadata in table.store.commits(last)
    )
