"""Values of the write plan: staged rows, look-up tasks with their results, and tasks that write file groups.

An `Index` converts staged entries to `TagTask`s, and their results to `GroupTask`s (`core.index.protocol`). The code
that executes the tasks is in `core.files`.

Fingerprints show whether look-ups found a match for each upsert of a partition. Each look-up counts the upserts that
have a stored row. A key that several files store is counted several times, so equal counts do not prove that each
upsert has a match. Equal fingerprints do: a fingerprint sums a 64-bit hash per row, so it changes if a row is counted
twice and another one not at all.

A `StagingLayout` describes the layout of rows that an index needs: by partition and key, by bucket, ordered by key
hash, or with large values apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import NDArray

from lakehouse.core.index.hash.bucket import bucket_of
from lakehouse.core.index.hash.consistent_hashing import key_hashes
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.spec.table.bucket_rules import BucketRules


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEntry:
    """Rows [offset, offset + rows) of a staged run that belong to one partition, and to one bucket if keys are hashed.

    Upserts come first, then `deletes` rows that are deletes. `bucket` is -1 without the bucket index; with consistent
    hashing it is the last hash value of a range, or -1 until the run is divided into ranges. `value` is the large value
    of the spread column that all these rows share; None for rows with other values.
    """

    run: str
    partition: str
    bucket: int
    offset: int
    rows: int
    deletes: int
    value: str | None = None

    @property
    def upserts(self) -> int:
        """The number of rows that are not deletes."""
        return self.rows - self.deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRun:
    """One staged file: its entries, its number of rows and its size in memory.

    `buckets` are the bucket counts with which rows were assigned to entries. `values` contains the row counts of the
    most frequent values in the spread column.
    """

    path: str
    entries: tuple[StagedEntry, ...]
    rows: int
    size_bytes: int
    buckets: BucketRules | None = None
    values: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedRows:
    """Staged rows whose keys the record index locates in one file group: batches of a file in the staging folder."""

    path: str
    batches: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTask:
    """A look-up task: search the keys of `entries` in base files, or in slices whose logs are merged first.

    With `asks_filters` the bloom filters of `bases` exclude keys before the keys of a file are read. If the
    locations of keys are stored, `located` contains the rows to search in each base file or slice; other rows have no
    match there. With `trusts_locations` the located rows are the matches, and the file is not read.
    """

    bases: tuple[BaseFile, ...]
    entries: tuple[StagedEntry, ...]
    slices: tuple[FileSlice, ...] = ()
    asks_filters: bool = False
    located: tuple[tuple[LocatedRows, ...], ...] = ()
    trusts_locations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TagResult:
    """The result of a look-up in one base file, or in one slice of a base file and logs.

    Attributes:
        base: The base file or slice that was searched.
        matches_file: The file with the matches in the staging folder; None if there are none.
        matched_rows: The number of stored rows with a key of the batch.
        consumed: The number of upserts with a match, per partition of the batch.
        fingerprints: The fingerprint of these upserts, per partition (see `fingerprint_of`); None if it is unknown.
        deleted_rows: Number of matches that are not stored rows, but keys that a log deletes.
        repeated_key: A key of the batch that several stored rows have; None if there is no such key.
    """

    base: BaseFile | FileSlice
    matches_file: str | None = None
    matched_rows: int = 0
    consumed: Mapping[str, int] | None = None
    fingerprints: Mapping[str, int] | None = None
    deleted_rows: int = 0
    repeated_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """Write the next base file of one file group, or append a log file to it (`appends`).

    Attributes:
        partition: The partition path of the group.
        file_id: The id of the group.
        base: The newest base file of the group; None if it has none.
        matches_file: The file with the matches between staged and stored rows; None if no look-up found any.
        finds_matches: Whether the task itself looks up the keys of `entries` in `base` (bucket index).
        entries: The staged entries of the group's rows.
        insert_range: The inserts that the task writes, as a range of the partition's numbered inserts. Inserts are
            the upserts without a match. An open end takes all inserts that remain.
        consumed_by: The matches files that list the upserts with a match in the partition.
        appends: Whether a log file is appended, with the rows of `matches_file`, or with all of `entries` if there is
            none.
        is_new: Whether the task creates the file group.
        file_slice: The slice to which the log file is appended.
        all_stored: Whether each match is a stored row; False if some matches are keys that a log deletes.
        resize: The requested time of a pending resize that will create the group. Its rows are copied from a present
            group, to a log that is named after the resize; `file_slice` is the slice of the present group.
        value: The large value of the spread column if the task inserts only rows with this value; otherwise None.
        other_matches: Matches files that may contain a stored row for a key that a log deletes. The flag is True for a
            file that precedes `matches_file`.
        log_slice: The instant in the name of the log file, if it is not the instant of the write (version 6).
        log_version: The first free version of the log files with this instant.
    """

    partition: str
    file_id: str
    base: BaseFile | None = None
    matches_file: str | None = None
    finds_matches: bool = False
    entries: tuple[StagedEntry, ...] = ()
    insert_range: tuple[int, int | None] | None = None
    consumed_by: tuple[str, ...] = ()
    appends: bool = False
    is_new: bool = False
    file_slice: FileSlice | None = None
    all_stored: bool = True
    resize: str | None = None
    value: str | None = None
    other_matches: tuple[tuple[str, bool], ...] = ()
    log_slice: str | None = None
    log_version: int = 1

    @property
    def group(self) -> tuple[str, str]:
        """The partition path and the id of the file group."""
        return self.partition, self.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Sizes of base files: the rows of a full file, and the size below which a file takes inserts.

    Inserts are distributed over `tasks` concurrent tasks, as long as each has at least `least_rows` rows.
    `rows_per_task` is the result for the inserts of one partition; None for no limit.
    """

    rows_per_file: int
    bytes_per_row: float
    max_file_bytes: int
    small_file_bytes: int
    tasks: int = 1
    least_rows: int = 1
    rows_per_task: int | None = None

    def free_rows(self, base: BaseFile) -> int:
        """Return the number of rows that can be added to a small file; 0 for a file that is not small."""
        if base.size_bytes >= self.small_file_bytes:
            return 0
        return max(int((self.max_file_bytes - base.size_bytes) / self.bytes_per_row), 0)


U64 = NDArray[np.uint64]
_BITS = 64
_GAMMA, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
#: Number of rows that are hashed in one step.
_PIECE = 1 << 20


def run_seed(run: str) -> int:
    """Return the seed for the row hashes of a staged run."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "little")


def row_hashes(seeds: U64 | np.uint64, rows: NDArray[np.int64]) -> U64:
    """Return a 64-bit hash of each row, computed from the seed of its run and its position in the run (splitmix64)."""
    mixed = seeds + rows.astype(np.uint64) * _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def fingerprint_of(entries: Iterable[StagedEntry]) -> int:
    """Return the fingerprint of all upserts in some entries."""
    total = 0
    for entry in entries:
        seed = np.uint64(run_seed(entry.run))
        for start in range(entry.offset, entry.offset + entry.upserts, _PIECE):
            rows = np.arange(start, min(start + _PIECE, entry.offset + entry.upserts))
            total += int(row_hashes(seed, rows).sum(dtype=np.uint64))
    return total % (1 << _BITS)


def united(fingerprints: Iterable[int]) -> int:
    """Return the fingerprint of the union of several sets."""
    return sum(fingerprints) % (1 << _BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLayout:
    """The layout of staged rows. By default rows are only grouped by partition.

    Attributes:
        global_keys: Whether a key is unique in the table, so that it is looked up in all partitions.
        buckets: The bucket counts per partition, if rows are grouped by bucket (bucket index).
        hash_order: Whether rows are sorted by the hash of their keys (consistent hashing).
        hash_fields: The key fields that are hashed; all if empty.
        spread_column: The column whose values are counted, and whose large values are staged separately; may be empty.
        spread_large: The large values of that column.
    """

    global_keys: bool = False
    buckets: BucketRules | None = None
    hash_order: bool = False
    hash_fields: tuple[str, ...] = ()
    spread_column: str = ""
    spread_large: tuple[str, ...] = ()

    @property
    def hashes_keys(self) -> bool:
        """Whether the hash of a key determines its file group."""
        return self.buckets is not None or self.hash_order

    def searched(self, partitions: Iterable[str]) -> list[str] | None:
        """Return the sorted partitions that may contain the keys of rows in `partitions`; None means all partitions."""
        return None if self.global_keys else sorted(set(partitions))

    def scope(self, partition: str) -> str:
        """Return a name that is equal for partitions in which the same keys may be stored."""
        return "" if self.global_keys else partition

    def entries_for(self, entries: Iterable[StagedEntry], partition: str) -> tuple[StagedEntry, ...]:
        """Return the entries whose keys may be stored in the partition."""
        return tuple(entry for entry in entries if self.global_keys or entry.partition == partition)

    def entries_for_group(
        self, entries: Iterable[StagedEntry], partition: str, file_id: str
    ) -> tuple[StagedEntry, ...]:
        """Return the entries whose keys may be stored in the file group."""
        bucket = self.bucket_of_group(file_id)
        return tuple(e for e in entries if self.global_keys or (e.partition, e.bucket) == (partition, bucket))

    def bucket_of_group(self, file_id: str) -> int:
        """Return the bucket of staged entries for the rows of a file group; -1 if rows are not staged by bucket."""
        return -1 if self.buckets is None else bucket_of(file_id)

    def identity(self, key: str, path: str) -> tuple[str, ...]:
        """Return the columns that identify a record: the key column, and the path column unless keys are global."""
        return (key,) if self.global_keys else (key, path)

    @property
    def finds_deleted_keys(self) -> bool:
        """Whether a key that a log deletes determines the file group of a new row with this key."""
        return not self.global_keys

    def parts(self, pieces: Sequence[int]) -> Sequence[int]:
        """Return the row count per entry of a run that was written in pieces; with `hash_order` a piece is an entry."""
        return pieces if self.hash_order else (sum(pieces),)

    def hash_positions(
        self, keys: pa.Array | pa.ChunkedArray, key_fields: tuple[str, ...]
    ) -> npt.NDArray[np.int64] | None:
        """Return the positions of keys sorted by hash, or None if rows are not staged in this order."""
        if not self.hash_order:
            return None
        return np.argsort(key_hashes(keys, key_fields=key_fields, hash_fields=self.hash_fields), kind="stable")

    def run(self, path: str, entries: tuple[StagedEntry, ...], rows: int, size_bytes: int) -> StagedRun:
        """Return a staged run in this layout; see `StagedRun` for the arguments."""
        return StagedRun(path=path, entries=entries, rows=rows, size_bytes=size_bytes, buckets=self.buckets)

    def fits(self, run: StagedRun) -> bool:
        """Return whether the rows of a run were staged by the buckets of this layout."""
        return run.buckets == self.buckets
