"""Placement for indexes that search data files for a key: SIMPLE, BLOOM and their global variants.

A bloom index excludes base files by key ranges and filters in the metadata table (MDT-13):

    ranges     of the record key, from `column_stats`: a file without a staged key in its range is not opened
    filters    from `bloom_filters`, of the other files: a file whose filter contains no staged key is not opened

For files without a range or filter in the metadata table, the footers are used. On a local disk only the filters in the
footers are read, because a request costs less there than decompressing a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import TaskFunction
from lakehouse.core.files.base.filtered_files import FilteredFiles, filter_files, plan_filters, united
from lakehouse.core.files.base.ranged_files import RANGES, files_without_keys, plan_range_tasks
from lakehouse.core.files.keys.key_lookup import KEY, tag_files
from lakehouse.core.files.log.log_reader import OPERATION
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.index.file_index import FileIndex
from lakehouse.core.index.protocol import Groups, Index, IndexSetup
from lakehouse.core.index.write_tasks import StagedEntry, StagedRun, StagingLayout, TagResult, TagTask
from lakehouse.core.metadata.read.table import BLOOM_FILTERS, MetadataTable
from lakehouse.core.operations.commit.complete import CommitCheck, Others
from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.commits import recent_files
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.named_logs import is_own_log, keeps_logs
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import (
    ROWS_HERE,
    THREADS,
    KeySearch,
    PlacedTasks,
    Placement,
    PlannedLayout,
    PreparedWrite,
    WrittenRows,
)
from lakehouse.core.operations.placement.rings import uses_ring
from lakehouse.core.operations.read.metadata_ranges import ranges_of_columns
from lakehouse.core.planning.conflict import Strategy, WriteSummary, file_groups, may_share_keys, write_summary
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.state.data_files import one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.model.instant import Instant, Timeline
from lakehouse.spec.options.policies import Policies

#: Maximum number of bloom filters that this process reads itself.
_FILTERS_HERE = 1_000
#: With fewer files, reading the footers costs no more requests than reading the ranges.
_LEAST_FILES = 3
# A bucket id begins with its number in eight digits. About one random uuid in 400,000 matches by chance.
_BUCKET_ID = r"^0000\d{4}-"
# The initial groups of consistent hashing have name-based uuids. Other groups have random ones.
_RING_ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-3[0-9a-f]{3}-"
_NO_IDS = pa.chunked_array([], pa.string())

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ByFiles:
    """Searches the keys of a batch in the files of its partitions, or of all partitions.

    Attributes:
        index: Returns the index for the setup of a write.
        global_keys: Whether a key is unique in the whole table, so that it is searched in all partitions. filters:
            Whether key ranges and bloom filters in the metadata table exclude files.
    """

    index: Callable[[IndexSetup], Index]
    global_keys: bool = False
    filters: bool = False

    @property
    def strategy(self) -> Strategy:
        """Return the strategy in which two writes to the same file group conflict."""
        return file_groups

    @property
    def fixes_groups(self) -> bool:
        """False: rows may be in any file group."""
        return False

    @property
    def bucket_planner(self) -> None:
        """None: rows may move to other file groups, so no planner is needed."""
        return None

    @property
    def appends_together(self) -> bool:
        """False: two writers that insert the same key must conflict."""
        return False

    @property
    def by_key_alone(self) -> Placement:
        """Return this placement if it searches all partitions, otherwise the simple index over all partitions."""
        return self if self.global_keys else EVERYWHERE

    def check(self, table: LoadedTable, policies: Policies) -> None:
        """Raise UserError if the newest file groups are buckets: Hudi does not store the index type in the table."""
        ids = pa.concat_tables(recent_files(table)).column("file_id") if table.timeline.writes() else _NO_IDS
        if pc.any(pc.match_substring_regex(ids, _RING_ID)).as_py() and uses_ring(table):
            raise UserError(
                f"{table.env.storage.root}: its file groups are ranges of hash values, but hoodie.index.type is "
                f"{policies.index.type} and {BUCKET_ENGINE} is {policies.index.engine}. Open the table with "
                f"hoodie.index.type=BUCKET and {BUCKET_ENGINE}={CONSISTENT_HASHING}."
            )
        if pc.all(pc.match_substring_regex(ids, _BUCKET_ID), min_count=1).as_py():
            raise UserError(
                f"{table.env.storage.root}: its file groups are buckets ({ids[0]}), but hoodie.index.type is "
                f"{policies.index.type}. Open the table with hoodie.index.type=BUCKET and the "
                "hoodie.bucket.index.num.buckets of its other writers."
            )

    def layout(self, table: LoadedTable, policies: Policies, *, replaces: bool) -> PlannedLayout:
        """Return a layout that stages rows by partition only."""
        self.check(table, policies)
        return PlannedLayout(staging=StagingLayout(global_keys=self.global_keys), moves=policies.index.moves_rows)

    def search(self, write: PreparedWrite, runs: Sequence[StagedRun]) -> KeySearch:
        """Return the search in the newest slices; an overwrite reads none."""
        setup, looks_up = write.setup, write.request.looks_up_keys
        if write.request.replaces:
            return KeySearch(index=self.index(setup), runs=runs)
        batch = {entry.partition for run in runs for entry in run.entries}
        listing = write.listing(write.context.layout.searched(batch) if looks_up else sorted(batch))
        changed = groups_with_changed_keys(write.table, write.context, listing.slices)
        if looks_up and self.filters:
            setup = with_excluded_files(write, setup, [e for run in runs for e in run.entries], listing.slices)
        return KeySearch(index=self.index(setup), runs=runs, listing=listing, read_logs_of=changed)

    def tasks(
        self, write: PreparedWrite, search: KeySearch, tags: Sequence[TagResult], in_clustering: Groups
    ) -> PlacedTasks:
        """Return the tasks of the index."""
        return PlacedTasks(tasks=search.groups(write, tags, in_clustering))

    def conflicts(self, write: PreparedWrite, written: WrittenRows) -> tuple[CommitCheck, ...]:
        """Return the check that no other commit inserted a key of this write.

        Plain inserts have no check, because they may repeat keys.
        """
        return (KeyCheck.of(write, written),) if write.request.looks_up_keys else ()

    def renew(self, write: PreparedWrite, partitions: Collection[str]) -> None:
        """Do nothing, because new file groups get new ids."""


#: Searches keys whose partition is unknown.
EVERYWHERE = ByFiles(partial(FileIndex, global_keys=True), global_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCheck:
    """Checks that no commit that completed since the load inserted a key of this write.

    Attributes:
        write: The write.
        runs: The staged rows whose keys are compared.
        ours: The summary of the write. Partitions in which keys are deleted count as partitions with new keys, because
            another commit may have inserted these keys in between.
    """

    write: PreparedWrite
    runs: Sequence[StagedRun]
    ours: WriteSummary

    @classmethod
    def of(cls, write: PreparedWrite, written: WrittenRows) -> KeyCheck:
        """Return the check for the rows of a write."""
        metadata = CommitMetadata(operation=write.request.operation, stats=tuple(written.stats))
        ours, deletes_only = write_summary(metadata), write.context.incoming.deletes_only
        deleted = {e.partition for run in written.compared for e in run.entries if e.deletes or deletes_only}
        return cls(write=write, runs=written.compared, ours=replace(ours, inserted=ours.inserted | deleted))

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return no conflict, because only `compare` reads the keys in data files."""
        return None

    def suspects(self, others: Others) -> Others:
        """Return the commits that inserted rows into the same partitions as this write."""
        return [pair for pair in others if self._may_share_keys(pair[1])]

    def compare(self, suspects: Others) -> Conflict | None:
        """Search the keys in the files into which these commits inserted rows."""
        return next((conflict for winner, other in suspects if (conflict := self._same_keys(winner, other))), None)

    def _may_share_keys(self, other: CommitMetadata) -> bool:
        return may_share_keys(self.ours, write_summary(other), global_keys=self.write.context.layout.global_keys)

    def _same_keys(self, winner: Instant, other: CommitMetadata) -> Conflict | None:
        searched = self.write.context.layout.searched(self.ours.inserted)
        inserted = [s for s in other.stats if s.num_inserts and (searched is None or s.partition in searched)]
        files = [parse_base_file(s.path.rpartition("/")[2], s.partition, s.size_bytes) for s in inserted]
        match = self._find([file for file in files if file is not None])
        if match is None:
            return None
        where = f"file group {match.file_id} of {match.partition!r}"
        return Conflict(winner=winner, reason=f"{winner.requested} inserted keys of this batch into {where}")

    def _find(self, files: Sequence[BaseFile]) -> BaseFile | None:
        """Return a file of `files` that contains a key of the staged rows, or None."""
        # A stored row with a staged key is a conflict in any partition, even if it is newer.
        context = replace(self.write.context, move_partitions=False)
        staged = [entry for run in self.runs for entry in run.entries]
        tasks = []
        for file in files:
            entries = context.layout.entries_for(staged, file.partition)
            if entries:
                tasks.append(TagTask(bases=(file,), entries=entries))
        tagged = self.write.engine.run(partial(tag_files, context), tasks, light=True)
        matches = (tag.base for tags in tagged for tag in tags if tag.matched_rows)
        return next((base for base in matches if isinstance(base, BaseFile)), None)


def groups_with_changed_keys(table: LoadedTable, context: WriteContext, slices: FileSlices) -> frozenset[Group]:
    """Return the groups whose logs may add or remove keys, or change the values that decide between partitions."""
    logged = list(slices.filter(slices.log_counts > 0))
    if not logged:
        return frozenset()
    require_mergeable(table.config)
    marks = {DELETED_COLUMN, OPERATION, table.config.merge_rule.delete_field}
    if context.layout.global_keys or marks & set(context.schema.names):
        return frozenset((s.partition, s.file_id) for s in logged)
    # A log that only updates records does not change the set of keys in its base file.
    updates_only = _updates_only(table, [log for s in logged for log in s.logs])
    return frozenset((s.partition, s.file_id) for s in logged if any(log.path not in updates_only for log in s.logs))


def _updates_only(table: LoadedTable, logs: Sequence[LogFile]) -> frozenset[str]:
    """Return the paths of log files that a commit lists with updates only.

    The name of a log file may contain the instant of its slice. Then the commit is a later one, and other writers may
    have appended blocks, so the token and the size must be the ones that the commit of this package wrote.
    """
    instants, by_slice = {log.instant for log in logs}, keeps_logs(table)
    oldest = min(instants)
    written = table.store.files(
        i for i in table.timeline.writes() if i.requested in instants or (by_slice and i.requested > oldest)
    )
    same_keys = pc.and_(pc.equal(written["num_deletes"], 0), pc.equal(written["num_inserts"], 0))
    if not by_slice:
        return frozenset(written["path"].filter(same_keys).to_pylist())
    sizes = {log.path: log.size_bytes for log in logs}
    listed = written.filter(pc.and_(same_keys, pc.is_in(written["path"], pa.array(sizes))))
    rows = zip(*(listed[name].to_pylist() for name in ("path", "size_bytes", "instant")), strict=True)
    return frozenset(path for path, size, instant in rows if size == sizes[path] and is_own_log(path, instant))


def with_excluded_files(
    write: PreparedWrite, setup: IndexSetup, entries: Sequence[StagedEntry], slices: FileSlices
) -> IndexSetup:
    """Add to the setup the files that the metadata table excludes for the batch, if the options allow that."""
    policy = write.policies.index
    if not policy.bloom_metadata:
        return setup
    bases = slices.base_only()
    outside = _outside_of_ranges(write, entries, bases) if policy.bloom_ranges else np.zeros(len(bases), np.bool_)
    setup = replace(setup, without_keys=frozenset(_groups(bases.filter(outside)).values()))
    return setup if write.is_local else _with_filters(write, setup, entries, bases.filter(~outside))


def _outside_of_ranges(write: PreparedWrite, entries: Sequence[StagedEntry], bases: FileSlices) -> np.ndarray:
    """Return the mask of base files whose key range contains no staged key."""
    outside = np.zeros(len(bases), np.bool_)
    if len(bases) < _LEAST_FILES:
        return outside
    ranges = ranges_of_columns(write.table, bases, [KEY], pa.schema([(KEY, pa.string())]))
    if ranges is None:
        return outside
    bounds, numbers = ranges[KEY], pa.array(np.arange(len(bases)))
    columns = [numbers, one_array(bases.files.column("partition")), bounds.low, bounds.high]
    tasks = plan_range_tasks(entries, pa.table(columns, schema=RANGES), is_global=write.context.layout.global_keys)
    is_small = sum(entry.rows for entry in entries) <= ROWS_HERE
    for excluded in _run(write, partial(files_without_keys, write.context), tasks, here=is_small):
        outside[excluded] = True
    return outside


def _with_filters(
    write: PreparedWrite, setup: IndexSetup, entries: Sequence[StagedEntry], bases: FileSlices
) -> IndexSetup:
    """Add to the setup the base files that the stored bloom filters exclude."""
    group_of = _groups(bases)
    context = write.context
    tasks = plan_filters(entries, list(group_of), parallelism=write.engine.parallelism)
    is_small = sum(entry.rows for entry in entries) <= ROWS_HERE and len(group_of) <= _FILTERS_HERE

    def ask(metadata: MetadataTable) -> list[FilteredFiles]:
        filters = metadata if is_small else metadata.task_filters()
        return _run(write, partial(filter_files, context, filters), tasks, here=is_small)

    answers = from_metadata(write.table, BLOOM_FILTERS, ask)
    if answers is None:
        return setup
    files = united(answers)
    return replace(
        setup,
        without_keys=setup.without_keys | {group_of[file] for file in files.excluded},
        asked=frozenset(group_of[file] for file in files.asked),
    )


def _run(write: PreparedWrite, function: TaskFunction[T, R], tasks: Sequence[T], *, here: bool) -> list[R]:
    """Run tasks in this process or on the engine of the write."""
    return LocalEngine(THREADS).run(function, tasks) if here else write.engine.run(function, tasks, light=True)


def _groups(bases: FileSlices) -> dict[tuple[str, str], Group]:
    """Return the file group of each base file, by partition and name."""
    columns = (bases.files.column(name).to_pylist() for name in ("partition", "name", "file_id"))
    return {(path, name): (path, file_id) for path, name, file_id in zip(*columns, strict=True)}
