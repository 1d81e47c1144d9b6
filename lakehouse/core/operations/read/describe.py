"""Summarize a table: configuration, schema, partitions, plans, savepoints, latest commits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions
from lakehouse.core.operations.load.savepoints import savepoints
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import REWRITES
from lakehouse.model.instant import Action
from lakehouse.model.ttl import PartitionExpiry
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
#: Maximum number of commits to search for the newest write of each partition.
_NEWEST_WRITES = 200


def describe(table: LoadedTable, expiry: Mapping[str, PartitionExpiry], *, small_bytes: int) -> TableSummary:
    """Return a summary of the table; the table is listed once.

    Args:
        table: The loaded table.
        expiry: When and why partitions expire, by partition.
        small_bytes: The size below which a base file is small.
    """
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
        partitions=_partitions(table, expiry, small_bytes),
        pending_plans=_plans(table),
        pending_restore=None if restore is None else restore.requested,
        savepoints=_savepoints(table),
        commits=_commits(table),
    )


def _partitions(
    table: LoadedTable, expiry: Mapping[str, PartitionExpiry], small_bytes: int
) -> tuple[PartitionInfo, ...]:
    never, written = PartitionExpiry(), _newest_writes(table)
    held = {**pending_clustering(table), **pending_compactions(table)}
    slices = load_slices(table)
    columns = pa.table(
        {
            "partition": slices.partitions,
            "base_bytes": slices.base_sizes,
            "bytes": slices.sizes,
            "log_files": slices.log_counts,
            "planned_groups": slices.is_in_groups(held).astype(np.int64),
            "base_files": slices.has_base.astype(np.int64),
            "small_files": (slices.has_base & (slices.base_sizes < small_bytes)).astype(np.int64),
        }
    )
    begun = pa.table({"partition": slices.partitions, "instant": slices.base_instants})
    newest = begun.group_by("partition").aggregate([("instant", "max")]).to_pylist()
    based = {row["partition"]: row["instant_max"] for row in newest if row["instant_max"]}
    sums = [("partition", "count"), *((name, "sum") for name in columns.column_names[1:])]
    rows = columns.group_by("partition").aggregate(sums).sort_by("partition").to_pylist()
    return tuple(
        PartitionInfo(
            partition=row["partition"] or "(root)",
            file_groups=row["partition_count"],
            base_bytes=(base := row["base_bytes_sum"]),
            log_bytes=(logs := row["bytes_sum"] - base),
            log_files=row["log_files_sum"],
            planned_groups=row["planned_groups_sum"],
            log_ratio=round(logs / base, 3) if base else None,
            expires_ms=(expires := expiry.get(row["partition"], never)).at_ms,
            expired=expires.reason,
            base_files=row["base_files_sum"],
            small_files=row["small_files_sum"],
            written_ms=_time(table, written.get(row["partition"]) or based.get(row["partition"])),
        )
        for row in rows
    )


def _newest_writes(table: LoadedTable) -> dict[str, str]:
    """Return the requested time of each partition's newest write.

    Only the newest commits are searched; rewrites do not count.
    """
    writes = table.timeline.writes().by_completion()[-_NEWEST_WRITES:]
    changing = [write for write, metadata in table.store.summaries(writes) if metadata.operation not in REWRITES]
    written = table.store.files(changing).group_by("partition").aggregate([("instant", "max")])
    return {row["partition"]: row["instant_max"] for row in written.to_pylist()}


def _time(table: LoadedTable, requested: str | None) -> int | None:
    if requested is None:
        return None
    try:
        return instant_ms(requested, table.config.timezone)
    except CorruptTableError:
        # The first base files of a migrated table have other names.
        return None


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
