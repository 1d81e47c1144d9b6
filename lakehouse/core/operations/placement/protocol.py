"""The `Placement` protocol: how one kind of index assigns the rows of a write to file groups.

    check      refuse options that contradict the table
    layout     how rows are staged, and the pending resizes of buckets that a write has to observe
    search     the index, the file slices that it searches, and the logs that it has to read
    tasks      one task per file group that changes
    conflicts  checks for changes of the same keys by other commits
    renew      new hashing metadata for partitions whose file groups were replaced

`registry` maps each index type to its placement: `by_files` reads files to find a key, `by_location` reads stored
locations, `by_hash` computes the file group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.stage.near_files import NearFiles
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.hash.resizes import PendingResize
from lakehouse.core.index.protocol import Groups, Index, IndexSetup
from lakehouse.core.index.write_tasks import GroupTask, Sizing, StagedRun, StagingLayout, TagResult
from lakehouse.core.operations.commit.complete import CommitCheck
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.load.commits import KeyScope
from lakehouse.core.operations.load.slices import Listing, load_listing
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.clustering import Unsorted
from lakehouse.core.planning.conflict import Strategy
from lakehouse.core.planning.schema_history import SchemaHistory
from lakehouse.core.planning.spread_history import SpreadHistory
from lakehouse.core.rows.cut_times import CutTimes
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.commit import Operation, WriteStat
from lakehouse.model.drift import BatchColumns, ColumnDrift
from lakehouse.model.files import FileSlice
from lakehouse.spec.options.policies import Policies

#: Maximum number of keys that this process compares itself: it caches metadata table files, and Spark tasks take about
#: 0.1 s to start.
ROWS_HERE = 500_000
THREADS = 4
_REPLACING = {Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The request of a caller to write rows or to delete partitions.

    Attributes:
        operation: The kind of write.
        frame: Rows, in a type that the engine accepts; None for DELETE_PARTITION.
        partitions: The partitions to delete, for DELETE_PARTITION.
        extra: Extra metadata of the commit.
        allow_empty: Commit even if no row changes.
        precondition: The state that must still hold at the commit; otherwise the write ends with a Conflict.
        columns: The columns that the source provided, if this differs between rows.
        deletes_yield: Whether deletes are dropped if the batch contains other rows with the same key, regardless of
            their order.
        cut_times: Counter of rows whose times lose digits when the frame is read.
        incoming: The number of rows before those with one key were combined, as the only value of a list; it is counted
            when they are staged. A small frame of another engine is counted afterwards, unless its duplicates count.
        sets_columns: Whether the rows set columns of stored rows, as UPDATE and MERGE do: the other columns keep their
            values whatever the options say, and are no drift.
        near: The storage with small files of the write in memory, if all its tasks run in this process.
    """

    operation: Operation
    frame: Any = None
    partitions: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False
    precondition: Precondition | None = None
    columns: BatchColumns | None = None
    deletes_yield: bool = False
    sets_columns: bool = False
    cut_times: CutTimes = field(default_factory=CutTimes)
    incoming: list[int] = field(default_factory=lambda: [0])
    near: NearFiles | None = None

    @property
    def replaces(self) -> bool:
        """Whether the commit replaces file groups (a replacecommit)."""
        return self.operation in _REPLACING

    @property
    def looks_up_keys(self) -> bool:
        """Whether the write looks up stored records with the keys of its rows."""
        return self.operation in (Operation.UPSERT, Operation.DELETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A checked write.

    Attributes:
        request: The request of the caller.
        engine: Runs the tasks.
        policies: The options of the table and the call.
        table: The table that the write was checked against.
        context: The settings of the tasks. They contain no instant until it is created.
        placement: Assigns the rows to file groups.
        strategy: The conflict resolution strategy.
        shard_by: Columns that distribute the rows for staging; rows with equal keys have equal values in them.
        resizes: The pending bucket resizes for which the staging layout was chosen.
        drift: The column differences between batch and table, without row counts.
        spread: The history of the spread column in earlier commits; None if the table has no spread column.
        history: The schema versions of the table before the write; None if it has no column ids.
    """

    request: WriteRequest
    engine: Engine
    policies: Policies
    table: LoadedTable
    context: WriteContext
    placement: Placement
    strategy: Strategy
    shard_by: tuple[str, ...] = ()
    resizes: tuple[PendingResize, ...] = ()
    drift: tuple[ColumnDrift, ...] = ()
    spread: SpreadHistory | None = None
    history: SchemaHistory | None = None

    @property
    def non_blocking(self) -> bool:
        """Whether the write uses non-blocking concurrency control."""
        return self.policies.transaction.non_blocking

    @property
    def detects_early(self) -> bool:
        """Whether this write checks for conflicts before it writes data, see `write.early_conflict`."""
        policy = self.policies.transaction
        optimistic = policy.many_writers and not policy.non_blocking
        return policy.early_detection and optimistic and not self.context.incoming.keeps

    @property
    def key_scope(self) -> KeyScope:
        """Where look-ups of this write keep keys unique; empty for writes that other writers do not wait for."""
        if self.non_blocking:
            return KeyScope.NONE
        is_global = self.context.layout.global_keys or not self.table.config.is_partitioned
        return KeyScope.TABLE if is_global else KeyScope.PARTITION

    @property
    def is_local(self) -> bool:
        """Whether the table is on a local disk."""
        return self.table.env.storage.root.startswith("/")

    @property
    def setup(self) -> IndexSetup:
        """The facts about the table and the operation that every index needs."""
        context, spread = self.context, self.policies.spread
        return IndexSetup(
            sizing=Sizing(
                rows_per_file=context.rows_per_file,
                bytes_per_row=context.bytes_per_row,
                max_file_bytes=context.policy.max_file_bytes,
                small_file_bytes=context.policy.small_file_bytes,
                tasks=self.engine.parallelism if spread.min_bytes else 1,
                least_rows=max(int(spread.min_bytes / context.bytes_per_row), 1),
            ),
            looks_up=self.request.looks_up_keys,
            appends=self.table.config.is_merge_on_read and not self.request.replaces,
            owners={} if self.spread is None else self.spread.groups,
        )

    def at(self, instant: str) -> PreparedWrite:
        """Return the write with the requested time of its instant."""
        return replace(self, context=replace(self.context, instant=instant))

    def listing(self, partitions: Sequence[str] | None) -> Listing:
        """List partitions (None means all).

        If damaged files must be skipped, storage is listed, because only that detects them.
        """
        # The metadata table also lists lost files, whose rows must be skipped.
        return load_listing(self.table, partitions, on_storage=self.policies.write.skips_damage)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """How the rows of a write are placed.

    Attributes:
        staging: The layout of staged rows.
        resizes: The pending bucket resizes for which the layout was chosen.
        moves: Whether a row whose partition changed moves to the new partition. Otherwise it is updated in its old
            partition.
    """

    staging: StagingLayout
    resizes: tuple[PendingResize, ...] = ()
    moves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """How the keys of a batch are looked up.

    Attributes:
        index: The index of the write.
        runs: The staged rows in the form that the index needs.
        listing: The listed slices; None for an overwrite, which reads no stored row.
        read_logs_of: File groups whose logs must also be read.
        resizes: The pending bucket resizes for which the index copies rows.
    """

    index: Index
    runs: Sequence[StagedRun]
    listing: Listing | None = None
    read_logs_of: Groups = frozenset()
    resizes: Sequence[PendingResize] = ()

    @property
    def slices(self) -> Sequence[FileSlice]:
        """The slices that the index searches, and to which inserts may be added."""
        return () if self.listing is None else self.listing.slices

    def groups(self, write: PreparedWrite, tags: Sequence[TagResult], in_clustering: Groups) -> tuple[GroupTask, ...]:
        """Return the write tasks, computed by the index from the look-up results."""
        entries = [entry for run in self.runs for entry in run.entries]
        new_uuid = write.table.env.ids.uuid
        tasks = self.index.groups(entries, self.slices, tags, in_clustering=in_clustering, new_uuid=new_uuid)
        return self._with_slices(tasks) if in_clustering else tasks

    def _with_slices(self, tasks: Sequence[GroupTask]) -> tuple[GroupTask, ...]:
        """Return the tasks, with the slices of groups to which the index adds no new rows, but log files."""
        lacking = [task.group for task in tasks if task.appends and task.file_slice is None]
        slice_of = {(s.partition, s.file_id): s for s in FileSlices.of(self.slices).in_groups(lacking)}
        return tuple(replace(t, file_slice=slice_of[t.group]) if t.group in slice_of else t for t in tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTasks:
    """The tasks of a write, and the pending resizes of buckets for which they copy rows."""

    tasks: tuple[GroupTask, ...]
    resizes: tuple[PendingResize, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """The rows that a write has written to files, before its commit.

    Attributes:
        stats: The statistics of the written files.
        touched: The stored file groups that the write read or extended.
        resizes: The pending bucket resizes for which rows were copied.
        owners: For each file group that only received rows with one large value of the spread column, that value, by
            file id.
        runs: The staged rows that were written.
        compared: The staged rows whose keys no other write may have inserted.
        records_deletes: Whether deletes are recorded as tombstones.
    """

    stats: Sequence[WriteStat] = ()
    touched: frozenset[Group] = frozenset()
    resizes: tuple[PendingResize, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    runs: Sequence[StagedRun] = ()
    compared: Sequence[StagedRun] = ()
    records_deletes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSelection:
    """The buckets that a clustering plans.

    Attributes:
        selected: Partition paths to which the plan is limited; empty for all.
        hour: The current hour, for the partition mode DAY_ROLLING.
        is_unsorted: Returns whether the rows of a slice have to be sorted.
    """

    selected: Sequence[str]
    hour: int
    is_unsorted: Unsorted


#: Function that plans a clustering in which rows stay together with their bucket. It returns None if there is nothing
#: to do.
BucketPlanner = Callable[[LoadedTable, Policies, BucketSelection], ClusteringPlan | None]


class Placement(Protocol):
    """Assigns written rows to file groups by one kind of index. Implementations have no state."""

    @property
    def strategy(self) -> Strategy:
        """The default conflict resolution strategy."""
        ...

    @property
    def fixes_groups(self) -> bool:
        """Whether the key of a row determines its file group, so that no service may move it to another one."""
        ...

    @property
    def bucket_planner(self) -> BucketPlanner | None:
        """The planner of clusterings for tables whose keys determine the file group; None if rows may move."""
        ...

    @property
    def appends_together(self) -> bool:
        """Whether writers may append to one file group at the same time, without conflict."""
        ...

    @property
    def by_key_alone(self) -> Placement:
        """Return the placement for deletes without partition columns: it searches their keys in all partitions."""
        ...

    def index(self, setup: IndexSetup) -> Index:
        """Return the index for one write."""
        ...

    def check(self, table: LoadedTable, policies: Policies) -> None:
        """Raise UserError for options that contradict the table."""
        ...

    def layout(self, table: LoadedTable, policies: Policies, *, replaces: bool) -> PlannedLayout:
        """Return how the rows of a write are staged. Raises the errors of `check`.

        `replaces` is whether the write replaces file groups. Then no rows are copied for pending resizes.
        """
        ...

    def search(self, write: PreparedWrite, runs: Sequence[StagedRun]) -> KeySearch:
        """Return how the keys of the staged rows are looked up."""
        ...

    def tasks(
        self, write: PreparedWrite, search: KeySearch, tags: Sequence[TagResult], in_clustering: Groups
    ) -> PlacedTasks:
        """Return the tasks that write the rows to their file groups.

        A pending clustering holds the groups `in_clustering`.
        """
        ...

    def conflicts(self, write: PreparedWrite, written: WrittenRows) -> tuple[CommitCheck, ...]:
        """Return the checks against commits that completed since the load; see `CommitCheck`."""
        ...

    def renew(self, write: PreparedWrite, partitions: Collection[str]) -> None:
        """Prepare new file groups for partitions whose present file groups are replaced by this write."""
        ...
