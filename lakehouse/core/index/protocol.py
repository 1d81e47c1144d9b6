"""The `Index` protocol: how a write finds the file group of each record.

    staged entries --> lookups()  --> look-up tasks, run in parallel --> tag results
                       groups()   --> one task per file group that changes

Implementations are pure: the same batch and the same table give the same tasks. The suite in
tests/contract/test_index.py runs on every registered index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.index.hash.resizes import PendingResize
from lakehouse.core.index.write_tasks import GroupTask, LocatedRows, Sizing, StagedEntry, TagResult, TagTask
from lakehouse.model.files import FileSlice
from lakehouse.spec.table.bucket_rules import BucketRules

#: File groups as pairs (partition path, file id).
Groups = frozenset[tuple[str, str]]
NewUuid = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSetup:
    """The facts about a table and an operation that an index needs.

    Attributes:
        sizing: File sizes that decide how inserts are distributed over file groups.
        looks_up: Whether the operation updates or deletes stored rows (upsert, delete). Otherwise rows are only added.
            appends: Whether changes are appended to logs (merge on read). Otherwise base files are rewritten.
        buckets: The bucket counts per partition; None for an index that hashes no keys.
        new_in_logs: Whether a new bucket begins with a log file instead of a base file.
        fixed_ids: Whether only the bucket determines the id of a new file group, so that concurrent writers choose the
            same id.
        rings: The rings of the batch's partitions; only for consistent hashing.
        resizes: The pending resizes of the batch's partitions.
        replaced: File groups that an overwrite replaced. Rows written to their ids would not be visible.
        located: The staged rows whose keys have a stored location, by file group; empty for other indexes.
        trusts_locations: Whether rows are appended to the file groups of their locations without reading these groups.
        without_keys: File groups whose base file contains no key of the batch, according to stored bloom filters.
        asked: File groups whose bloom filter was already read from the metadata table, so that the file's filter is not
            read.
        owners: By file id, the large value of the spread column, for file groups that contain only rows with this
            value.
    """

    sizing: Sizing
    looks_up: bool
    appends: bool = False
    buckets: BucketRules | None = None
    new_in_logs: bool = False
    fixed_ids: bool = False
    rings: Mapping[str, Ring] = field(default_factory=dict)
    resizes: tuple[PendingResize, ...] = ()
    replaced: Groups = frozenset()
    located: Mapping[tuple[str, str], tuple[LocatedRows, ...]] = field(default_factory=dict)
    trusts_locations: bool = False
    without_keys: Groups = frozenset()
    asked: Groups = frozenset()
    owners: Mapping[str, str] = field(default_factory=dict)


class Index(Protocol):
    """Assigns the rows of a staged batch to file groups.

    An implementation locates the file group of a key in one of three ways:

    - It reads files. `lookups` returns a task for each file that may hold keys of the batch (simple, bloom).
    - It computes the group. `lookups` returns nothing, and `groups` sets `finds_matches`, so that the task of a group
      matches the keys itself (bucket).
    - Locations are stored (record-level index). The locations of the batch's keys are read before the index is
      created and are a field of its setup. `lookups` then returns tasks for the file groups of these locations only.

    In all three cases `groups` gets the tag results of the `lookups` tasks, in any order.
    """

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return the look-up tasks whose results `groups` needs.

        Args:
            entries: The staged entries of the batch.
            slices: The newest file slices: of the batch's partitions, or of all partitions for a global index.
            parallelism: The number of tasks that run at the same time.
            read_logs_of: File groups whose logs may have added or deleted keys; their logs have to be read too.
        """
        ...

    def groups(
        self,
        entries: Sequence[StagedEntry],
        slices: Sequence[FileSlice],
        tags: Sequence[TagResult],
        *,
        in_clustering: Groups,
        new_uuid: NewUuid,
    ) -> tuple[GroupTask, ...]:
        """Return one task per file group that changes.

        Args:
            entries: The staged entries of the batch.
            slices: The slices that were passed to `lookups`.
            tags: The results of all `lookups` tasks.
            in_clustering: File groups of pending clustering plans. The index assigns no inserts to them if it can
                choose others.
            new_uuid: Returns the uuid of a new file group.
        """
        ...
