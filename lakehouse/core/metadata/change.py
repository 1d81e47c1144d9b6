"""The changes of a completed action on the data table, in the form that the metadata table records (MDT-4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lakehouse.core.metadata.staged import StagedUpdate
from lakehouse.model.commit import REWRITES, CommitMetadata, Operation, WriteStat

#: The files that an action wrote, including change logs.
WRITTEN = pa.schema([("partition", pa.string()), ("name", pa.string()), ("size_bytes", pa.int64())])
#: Files that an action removed from storage.
REMOVED = pa.schema([("partition", pa.string()), ("name", pa.string())])
#: File groups that an action replaced.
GROUPS = pa.schema([("partition", pa.string()), ("file_id", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChange:
    """The changes of one action, in the form from which each index partition derives its records.

    Attributes:
        operation: The operation of the commit metadata, such as UPSERT; the action for a clean.
        written: The new files: partition, name, size_bytes.
        stats: The write statistics of the new files, from which column bounds and index records are derived.
        removed: The files that were deleted from storage: partition, name.
        removed_partitions: Partitions that were deleted from storage with all their files.
        touched_partitions: Partitions in the action's metadata to which it wrote no file, such as a deleted partition.
        replaced: The file groups that the action replaced: partition, file_id.
        schema: The Avro schema of the data columns as JSON; "" if the action contains none.
        evolved: Columns that have another name in some files, or none. No statistics by name can describe them.
        staged: The records that tasks prepared for an index partition, by its name.
    """

    operation: str
    written: pa.Table = field(default_factory=WRITTEN.empty_table)
    stats: tuple[WriteStat, ...] = ()
    removed: pa.Table = field(default_factory=REMOVED.empty_table)
    removed_partitions: tuple[str, ...] = ()
    touched_partitions: tuple[str, ...] = ()
    replaced: pa.Table = field(default_factory=GROUPS.empty_table)
    schema: str = ""
    evolved: frozenset[str] = frozenset()
    staged: Mapping[str, StagedUpdate] = field(default_factory=dict)

    def superseded_partitions(self) -> list[str]:
        """Return the partitions in which the action supersedes or replaces files.

        A log compaction changes no values, so it has none.
        """
        if self.operation == Operation.LOG_COMPACT:
            return []
        partitions = set(self.replaced.column("partition").to_pylist())
        rewrites = self.operation in REWRITES
        for stat in self.stats:
            is_base = bool(stat.path) and not stat.path.rpartition("/")[2].startswith(".")
            if is_base and (rewrites or stat.prev_commit is not None):
                partitions.add(stat.partition)
        return sorted(partitions)


def change_of_commit(metadata: CommitMetadata, staged: Mapping[str, StagedUpdate] | None = None) -> MetadataChange:
    """Return the change of a commit, deltacommit or replacecommit."""
    groups = [(partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids]
    return MetadataChange(
        operation=metadata.operation,
        written=_written(metadata.stats),
        stats=metadata.stats,
        touched_partitions=tuple(sorted(metadata.replaced)),
        replaced=_pairs(groups, GROUPS),
        schema=metadata.extra.get("schema", ""),
        staged=staged or {},
    )


def change_of_clean(
    deleted: Mapping[str, Iterable[str]], removed_partitions: Iterable[str], operation: str = "clean"
) -> MetadataChange:
    """Return the change of a clean that deleted these file names by partition, and whole partitions."""
    files = [(partition, name) for partition, names in deleted.items() for name in names]
    return MetadataChange(
        operation=operation, removed=_pairs(files, REMOVED), removed_partitions=tuple(sorted(removed_partitions))
    )


def change_of_rollback(logs: Mapping[str, Mapping[str, int]]) -> MetadataChange:
    """Return the change of a rollback after which these log files exist: sizes by path, by partition (version 6)."""
    files = [(partition, path.rpartition("/")[2], size) for partition, of in logs.items() for path, size in of.items()]
    partitions, names, sizes = zip(*files, strict=True) if files else ((), (), ())
    columns = [pa.array(partitions, pa.string()), pa.array(names, pa.string()), pa.array(sizes, pa.int64())]
    return MetadataChange(operation="rollback", written=pa.table(columns, WRITTEN))


def _written(stats: Iterable[WriteStat]) -> pa.Table:
    # One entry per file of the commit, as in the commit metadata.
    files = [(s.partition, s.path, s.size_bytes) for s in stats if s.path]
    files += [(s.partition, path, size) for s in stats for path, size in s.cdc_files.items()]
    partitions, paths, sizes = zip(*files, strict=True) if files else ((), (), ())
    names = [path.rpartition("/")[2] for path in paths]
    return pa.table(
        [pa.array(partitions, pa.string()), pa.array(names, pa.string()), pa.array(sizes, pa.int64())], WRITTEN
    )


def _pairs(pairs: list[tuple[str, str]], schema: pa.Schema) -> pa.Table:
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.table([pa.array(first, pa.string()), pa.array(second, pa.string())], schema)
