"""Commit metadata, write statistics, and plans and results of rollbacks (TL-4.1, TL-4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from lakehouse.model.display import Readable, Shown, count_text, sentence, size_text


class Operation(StrEnum):
    """Operation types, as they are spelled in commit metadata."""

    INSERT = "INSERT"
    UPSERT = "UPSERT"
    BULK_INSERT = "BULK_INSERT"
    DELETE = "DELETE"
    INSERT_OVERWRITE = "INSERT_OVERWRITE"
    INSERT_OVERWRITE_TABLE = "INSERT_OVERWRITE_TABLE"
    DELETE_PARTITION = "DELETE_PARTITION"
    COMPACT = "COMPACT"
    LOG_COMPACT = "LOG_COMPACT"
    CLUSTER = "CLUSTER"
    ALTER_SCHEMA = "ALTER_SCHEMA"
    BOOTSTRAP = "BOOTSTRAP"
    UNKNOWN = "UNKNOWN"


COMPACTIONS = (Operation.COMPACT, Operation.LOG_COMPACT)
#: Operations that rewrite rows without changing them or the schema.
REWRITES = (*COMPACTIONS, Operation.CLUSTER)


class ColumnBounds(NamedTuple):
    """Bounds of one column in a file, as stored: dates and times as integers, strings as bytes.

    Decimals are unscaled integers. `known` is False if the file contains values whose bounds are unknown. Without
    values the bounds are None. `kind` is the Arrow type with which a writer measured the bounds, because another writer
    may change the column's type before the commit. None means the type at the commit.
    """

    low: Any
    high: Any
    nulls: int
    values: int
    size_bytes: int = 0
    raw_bytes: int = 0
    known: bool = True
    kind: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStat:
    """A data file that a commit wrote. Sizes are in bytes, counts in rows.

    Attributes:
        prev_commit: The commit of the previous file in the file group; None if the file group is new. ranges: (min,
            max, nulls) of columns, min and max as JSON values. Hudi's write statistics lack this field.
        bounds: Exact bounds of the columns that the metadata table indexes; None if they are not known. They are not
            part of the stored commit.
        is_partial: Rows of a log file lack columns, in which stored rows keep their values; `bounds` may lack them.
        log_records, log_blocks: Of a compaction, the number of rows and deletes in the merged logs, and of blocks.
        log_files_compacted, log_bytes_compacted: Of a compaction, the number and size of the merged log files.
        updated_compacted: For a compaction, the number of base file rows that a log record changed.
        corrupt_blocks: Of a compaction, the number of unreadable blocks, which are not in `log_blocks`.
        cdc_files: The sizes of the change logs next to the file, by path. log_version, base_file, log_files: For a log
        file, its version and the names of the other files in its slice. They are set only where `path` does not imply
        them, as in version 6.
        event_time: The minimum and the maximum event time of the rows in milliseconds.
        revived: The number of log rows whose keys an earlier log had deleted; it is not stored in the commit.
        nulled: The number of new rows that lack a column, by column; the commit contains only the sums of all files.
    """

    partition: str
    file_id: str
    path: str
    prev_commit: str | None = None
    prev_base_file: str | None = None
    num_writes: int = 0
    num_inserts: int = 0
    num_updates: int = 0
    num_deletes: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    ranges: Mapping[str, tuple[Any, Any, int]] = field(default_factory=dict)
    bounds: Mapping[str, ColumnBounds] | None = None
    is_partial: bool = False
    log_records: int = 0
    log_blocks: int = 0
    log_files_compacted: int = 0
    log_bytes_compacted: int = 0
    updated_compacted: int = 0
    corrupt_blocks: int = 0
    cdc_files: Mapping[str, int] = field(default_factory=dict)
    log_version: int = 0
    base_file: str = ""
    log_files: tuple[str, ...] = ()
    event_time: tuple[int, int] | None = None
    revived: int = 0
    nulled: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata(Readable):
    """The content of a completed commit: written files, replaced file groups and extra metadata.

    `operation` keeps unknown spellings of other writers as strings. `replaced` maps a partition to the file ids that
    this commit replaces. In commits of this package, `extra` always has `schema` (Avro JSON of the data columns).
    """

    operation: str
    stats: tuple[WriteStat, ...] = ()
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False

    @property
    def summary(self) -> str:
        """The changes as a string for people: `3 inserted, 1 updated, 2 files, 1.2 MB`."""
        stats = self.stats
        replaced = sum(map(len, self.replaced.values()))
        if self.operation in REWRITES:
            rows: tuple[str, ...] = (f"{count_text(sum(stat.num_writes for stat in stats), 'row')} rewritten",)
        else:
            sums = {
                "inserted": sum(stat.num_inserts for stat in stats),
                "updated": sum(stat.num_updates for stat in stats),
                "deleted": sum(stat.num_deletes for stat in stats),
            }
            rows = tuple(f"{count:,} {verb}" for verb, count in sums.items() if count)
        return sentence(
            *(rows or ("no row written",)),
            count_text(len(stats), "file") if stats else "",
            size_text(sum(stat.size_bytes for stat in stats)) if stats else "",
            f"{count_text(replaced, 'file group')} replaced" if replaced else "",
        )

    def _shown(self) -> Shown:
        name = self.operation.lower().replace("_", " ")
        return Shown(f"{name}: {self.summary}", {"operation": name, "changes": self.summary, **_metadata(self.extra)})


def _metadata(extra: Mapping[str, str]) -> dict[str, object]:
    """Return the extra metadata for people; a schema is too long for them."""
    return {name: value for name, value in extra.items() if name != "schema"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """Files of one partition that a rollback deletes, or the slice to which it appends a command block (version 6).

    Attributes:
        partition: The partition path.
        files: The paths of the files to delete, relative to the table.
        file_id: The file group of the slice; empty if files are deleted.
        base_instant: The base instant of the slice; empty if files are deleted.
        logs: The log files that the write appended to the slice, as sizes by name.
    """

    partition: str
    files: tuple[str, ...] = ()
    file_id: str = ""
    base_instant: str = ""
    logs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan(Readable):
    """The rollback plan for the instant with the requested time `target` and the action `action`."""

    target: str
    action: str
    requests: tuple[RollbackRequest, ...] = ()

    @property
    def files(self) -> int:
        """The number of files that the rollback deletes."""
        return sum(len(request.files) for request in self.requests)

    def _shown(self) -> Shown:
        line = f"rollback of {self.action} {self.target}: deletes {count_text(self.files, 'file')}"
        appended = sum(bool(request.base_instant) for request in self.requests)
        line += f", appends {count_text(appended, 'command block')}" if appended else ""
        rows = [{"partition": request.partition, "files": len(request.files)} for request in self.requests]
        return Shown(line, {"files": self.files}, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackMetadata:
    """The result of a rollback: by partition, the deleted files and the files that could not be deleted.

    In tables of version 6 also `command_logs`, the log files with a command block, and `failed_logs`, the log files of
    the target, as sizes by path.
    """

    start_time: str
    seconds: float
    target: str
    action: str
    deleted: Mapping[str, tuple[str, ...]]
    failed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    command_logs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failed_logs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
