"""Values of the write plan: staged rows, look-up tasks with their results, and tasks that write file groups.

An `Index` turns staged entries into `TagTask`s, and their results into `GroupTask`s (`core.index.protocol`). The code
that executes the tasks is in `core.files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.spec.bucket_rules import BucketRules


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEntry:
    """Rows [offset, offset + rows) of a run belong to this partition (and bucket; -1 without); deletes come last."""

    run: str
    partition: str
    bucket: int
    offset: int
    rows: int
    deletes: int

    @property
    def upserts(self) -> int:
        """Rows that are not deletes; they stand first."""
        return self.rows - self.deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRun:
    """One staged file: its entries, by the `buckets` of that time, and its rows and bytes in memory."""

    path: str
    entries: tuple[StagedEntry, ...]
    rows: int
    size_bytes: int
    buckets: BucketRules | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTask:
    """Look for the keys of these entries in these base files, and in these slices as their logs left them."""

    bases: tuple[BaseFile, ...]
    entries: tuple[StagedEntry, ...]
    slices: tuple[FileSlice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TagResult:
    """What a base file, or a slice of base and logs, holds of the batch.

    `hit_rows` are stored rows hit, `consumed` the upserts used up per partition of the batch. `deleted_rows` of the
    hits are no stored rows but keys that a log deletes.
    """

    base: BaseFile | FileSlice
    hits: str | None = None
    hit_rows: int = 0
    consumed: Mapping[str, int] | None = None
    deleted_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """Write the next base file of one file group, or append a log file to it (`appends`).

    `hits` names the matches with `base`; `finds_matches` says that the task looks for them itself (bucket index).
    `insert_range` counts over the partition's upserts that no file holds; an open end takes all that remain.
    `consumed_by` are the hits files that tell which those are. A log takes the rows of `hits`, or all of `entries`;
    `file_slice` is what it is appended to. `all_stored`: every key of `hits` is that of a stored row; else `other_hits`
    are the hits files that may have a stored row for it, and whether each goes before this one.
    """

    partition: str
    file_id: str
    base: BaseFile | None = None
    hits: str | None = None
    finds_matches: bool = False
    entries: tuple[StagedEntry, ...] = ()
    insert_range: tuple[int, int | None] | None = None
    consumed_by: tuple[str, ...] = ()
    appends: bool = False
    is_new: bool = False
    file_slice: FileSlice | None = None
    all_stored: bool = True
    other_hits: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """File sizes as row counts: what fills a file, and the bytes below which a file is small."""

    rows_per_file: int
    bytes_per_row: float
    max_file_bytes: int
    small_file_bytes: int

    def room(self, base: BaseFile) -> int:
        """Rows that still fit into a small file; 0 if it is not small."""
        if base.size_bytes >= self.small_file_bytes:
            return 0
        return max(int((self.max_file_bytes - base.size_bytes) / self.bytes_per_row), 0)
