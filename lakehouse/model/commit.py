"""What a commit says of itself (TL-4.1, TL-4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Operation(StrEnum):
    """Operation types as commit metadata spells them."""

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
    UNKNOWN = "UNKNOWN"


COMPACTIONS = (Operation.COMPACT, Operation.LOG_COMPACT)
#: What rewrites rows as they are, under the table's schema as it is.
REWRITES = (*COMPACTIONS, Operation.CLUSTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStat:
    """One data file a commit wrote. `prev_commit` is None for a new file group; sizes in bytes, counts in rows.

    `ranges` holds (min, max, nulls) of columns, min and max as JSON values; Hudi's write stat has no place for them.

    Of a compaction: `log_files_compacted` files of `log_bytes_compacted` bytes held `log_records` rows and deletes in
    `log_blocks` blocks, `corrupt_blocks` more could not be read; `updated_compacted` rows of the base met one of them.
    Of a log file: `log_version`, `base_file` and `log_files` (bare names of the slice's base file and of its logs) are
    set where they say what `path` does not, as those of version 6 do.
    `cdc_files` maps the paths of the change logs beside the file to their sizes, `event_time` is the least and the
    greatest event time of the rows in milliseconds. `nulled` counts the new rows that lack a column; only the sums are
    in the commit.
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
    nulled: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """The content of a completed commit: its files, what it replaced, and what the writer added.

    `operation` keeps unknown spellings of other writers as text. `replaced` maps a partition to the file ids that
    this commit hides. `extra` always holds `schema` (Avro JSON of the data columns) in commits of this package.
    """

    operation: str
    stats: tuple[WriteStat, ...] = ()
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """Files of one partition that a rollback deletes; paths relative to the table's base."""

    partition: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """What undoing the instant `target` (its requested time) of `action` takes."""

    target: str
    action: str
    requests: tuple[RollbackRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackMetadata:
    """What a rollback did: per partition the files that are gone, and those that could not be deleted."""

    start_time: str
    seconds: float
    target: str
    action: str
    deleted: Mapping[str, tuple[str, ...]]
    failed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
