"""Placement by hash: the hash of a key determines its file group (BUCKET, with both engines).

    numbered   a number of buckets per partition; the bucket is the hash modulo this number (DATA-7.3, MDT-12.6)
    ring       ranges of hash values, which split and merge; the hashing metadata stores the ranges (MDT-12.3)

A bucket resize is a clustering. While it is pending, writes copy rows to the file groups that will replace the present
ones (MDT-12.5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.files.stage.staging import KEY, StagedReader
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.hash.bucket import bucket_of
from lakehouse.core.index.hash.bucket_index import BucketIndex, copied_deletes
from lakehouse.core.index.hash.consistent_hashing import Ring, key_hashes
from lakehouse.core.index.hash.consistent_index import ConsistentBucketIndex
from lakehouse.core.index.hash.places import entries_by_range
from lakehouse.core.index.hash.resizes import PendingResize, RingResize
from lakehouse.core.index.protocol import Groups, Index, IndexSetup
from lakehouse.core.index.write_tasks import StagedRun, StagingLayout, TagResult
from lakehouse.core.operations.commit.complete import CommitCheck, Others, TimelineCheck
from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.slices import load_slices, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.bucket_resize import plan_numbers, plan_rings
from lakehouse.core.operations.placement.bucket_rules import bucket_rules, changed_bucket_rules, check_ring
from lakehouse.core.operations.placement.by_files import EVERYWHERE, KeyCheck
from lakehouse.core.operations.placement.protocol import (
    BucketPlanner,
    KeySearch,
    PlacedTasks,
    Placement,
    PlannedLayout,
    PreparedWrite,
    WrittenRows,
)
from lakehouse.core.operations.placement.resizes import numbered_resizes, ring_resizes, staged_rules
from lakehouse.core.operations.placement.rings import load_rings, require_rings, store_rings
from lakehouse.core.planning.conflict import Strategy, buckets, file_groups
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.policies import Policies


@dataclass(frozen=True, slots=True)
class ByBucket:
    """Places rows into a fixed number of buckets per partition (simple bucket index)."""

    @property
    def strategy(self) -> Strategy:
        """Return the strategy in which two new file groups of the same bucket conflict."""
        return buckets

    @property
    def fixes_groups(self) -> bool:
        """True: the key determines the bucket."""
        return True

    @property
    def bucket_planner(self) -> BucketPlanner:
        """Plans changes of bucket counts, and sorted buckets."""
        return plan_numbers

    @property
    def appends_together(self) -> bool:
        """True: writers append to the logs of a bucket without conflict."""
        return True

    @property
    def by_key_alone(self) -> Placement:
        """Return the placement that searches keys in all partitions, and copies deletes for pending resizes."""
        return SearchedDeletes(self)

    def index(self, setup: IndexSetup) -> Index:
        """Return the simple bucket index."""
        return BucketIndex(setup)

    def check(self, table: LoadedTable, policies: Policies) -> None:
        """Raise UserError for options that contradict the bucket counts."""
        bucket_rules(table, policies.index)

    def layout(self, table: LoadedTable, policies: Policies, *, replaces: bool) -> PlannedLayout:
        """Return a layout by bucket.

        While resizes are pending, rows are staged by a common multiple of both bucket numbers.
        """
        rules, resizes = bucket_rules(table, policies.index), tuple[PendingResize, ...]()
        if table.config.is_merge_on_read and not replaces:
            rules, resizes = staged_rules(rules, table), numbered_resizes(table)
        layout = StagingLayout(buckets=rules, hash_fields=policies.index.hashed_fields)
        return PlannedLayout(staging=layout, resizes=resizes)

    def search(self, write: PreparedWrite, runs: Sequence[StagedRun]) -> KeySearch:
        """Return the search in the file groups of the buckets. The write tasks look up the keys themselves."""
        # Rows in a file group with the id of an overwritten group would not be visible.
        hidden = frozenset(load_visible(write.table).replaced) if write.non_blocking else frozenset()
        setup = replace(_setup(write), buckets=write.context.layout.buckets, resizes=write.resizes, replaced=hidden)
        return _search(self, write, setup, runs)

    def tasks(
        self, write: PreparedWrite, search: KeySearch, tags: Sequence[TagResult], in_clustering: Groups
    ) -> PlacedTasks:
        """Return one task per bucket, and tasks that copy rows for pending resizes."""
        return PlacedTasks(tasks=search.groups(write, tags, in_clustering), resizes=tuple(search.resizes))

    def resizes(self, write: PreparedWrite, _partitions: Collection[str]) -> tuple[PendingResize, ...]:
        """Return the pending resizes of the table, as they were when the write was prepared."""
        return write.resizes

    def conflicts(self, write: PreparedWrite, written: WrittenRows) -> tuple[CommitCheck, ...]:
        """Return the checks for resizes, and for buckets that other commits created in partitions with deletes."""
        begun = (TimelineCheck(partial(new_bucket_conflict, written)),) if written.records_deletes else ()
        return (*_resize_checks(write, written), *begun)

    def renew(self, write: PreparedWrite, partitions: Collection[str]) -> None:
        """Do nothing, because new file groups of a bucket get new ids."""


@dataclass(frozen=True, slots=True)
class ByRing:
    """Places rows into ranges of hash values (consistent hashing)."""

    @property
    def strategy(self) -> Strategy:
        """Return the default strategy: the ring determines the ids of new groups, so a range never gets two groups."""
        return file_groups

    @property
    def fixes_groups(self) -> bool:
        """True: the key determines the range."""
        return True

    @property
    def bucket_planner(self) -> BucketPlanner:
        """Plans splits and merges of ranges, and sorted ranges."""
        return plan_rings

    @property
    def appends_together(self) -> bool:
        """True: writers append to the logs of a range without conflict."""
        return True

    @property
    def by_key_alone(self) -> Placement:
        """Return the placement that searches keys in all partitions, and copies deletes for pending resizes."""
        return SearchedDeletes(self)

    def index(self, setup: IndexSetup) -> Index:
        """Return the index of consistent hashing."""
        return ConsistentBucketIndex(setup)

    def check(self, table: LoadedTable, policies: Policies) -> None:
        """Raise UserError for a table or options that consistent hashing does not allow."""
        check_ring(table, policies.index)

    def layout(self, table: LoadedTable, policies: Policies, *, replaces: bool) -> PlannedLayout:
        """Return a layout in hash order. Rows are split into ranges later, when the rings are known."""
        self.check(table, policies)
        return PlannedLayout(staging=StagingLayout(hash_order=True, hash_fields=policies.index.hashed_fields))

    def search(self, write: PreparedWrite, runs: Sequence[StagedRun]) -> KeySearch:
        """Return the search in the file groups of the ranges. Creates the rings of new partitions."""
        partitions = {entry.partition for run in runs for entry in run.entries}
        rings = require_rings(write.table, partitions, write.policies.index.buckets)
        resizes: tuple[RingResize, ...] = ()
        if write.request.replaces:
            rings = {partition: ring.renewed(write.context.instant) for partition, ring in rings.items()}
        else:
            resizes = ring_resizes(write.table, rings)
        cuts = _cuts([rings, *(resize.rings for resize in resizes)])
        runs = write.engine.run(partial(divide_run, write.context, cuts), runs, light=True)
        return _search(self, write, replace(_setup(write), rings=rings, resizes=resizes), runs)

    def tasks(
        self, write: PreparedWrite, search: KeySearch, tags: Sequence[TagResult], in_clustering: Groups
    ) -> PlacedTasks:
        """Return one task per range, and tasks that copy rows for pending resizes."""
        return PlacedTasks(tasks=search.groups(write, tags, in_clustering), resizes=tuple(search.resizes))

    def resizes(self, write: PreparedWrite, partitions: Collection[str]) -> tuple[PendingResize, ...]:
        """Return the pending resizes of partitions."""
        return ring_resizes(write.table, load_rings(write.table, partitions))

    def conflicts(self, write: PreparedWrite, written: WrittenRows) -> tuple[CommitCheck, ...]:
        """Return the checks for resizes, and for ranges that other commits created in partitions with deletes."""
        begun = (TimelineCheck(partial(new_range_conflict, write.table, written)),) if written.records_deletes else ()
        return (*_resize_checks(write, written), *begun)

    def renew(self, write: PreparedWrite, partitions: Collection[str]) -> None:
        """Write rings with new file group ids, because replaced file groups keep their ids."""
        rings = load_rings(write.table, partitions)
        store_rings(write.table, [ring.renewed(write.context.instant) for ring in rings.values()])


@dataclass(frozen=True, slots=True)
class SearchedDeletes:
    """Places deletes whose partitions are unknown: their keys are searched in the files of all partitions.

    `of_table` is the placement of the table. Deletes in groups of a pending resize are copied to all groups that will
    replace them.
    """

    of_table: ByBucket | ByRing

    @property
    def strategy(self) -> Strategy:
        """Return the strategy of the table's placement."""
        return self.of_table.strategy

    @property
    def fixes_groups(self) -> bool:
        """False: a delete goes to the file group that contains its key."""
        return False

    @property
    def bucket_planner(self) -> None:
        """None: this placement only handles deletes."""
        return None

    @property
    def appends_together(self) -> bool:
        """True: writers append deletes without conflict."""
        return self.of_table.appends_together

    @property
    def by_key_alone(self) -> Placement:
        """Return this placement."""
        return self

    def index(self, setup: IndexSetup) -> Index:
        """Return the index that searches all partitions."""
        return EVERYWHERE.index(setup)

    def check(self, table: LoadedTable, policies: Policies) -> None:
        """Check the options with the placement of the table."""
        self.of_table.check(table, policies)

    def layout(self, table: LoadedTable, policies: Policies, *, replaces: bool) -> PlannedLayout:
        """Return a layout by key, with the pending resizes of the table."""
        planned = self.of_table.layout(table, policies, replaces=replaces)
        return replace(planned, staging=StagingLayout(global_keys=True))

    def search(self, write: PreparedWrite, runs: Sequence[StagedRun]) -> KeySearch:
        """Return the search in all files."""
        return EVERYWHERE.search(write, runs)

    def tasks(
        self, write: PreparedWrite, search: KeySearch, tags: Sequence[TagResult], in_clustering: Groups
    ) -> PlacedTasks:
        """Return the tasks that delete the keys, and copies for the groups of pending resizes."""
        tasks = search.groups(write, tags, in_clustering)
        if not in_clustering:
            return PlacedTasks(tasks=tasks)
        resizes = self.of_table.resizes(write, {task.partition for task in tasks})
        copies = [copy for task in tasks if task.appends for copy in copied_deletes(resizes, task)]
        return PlacedTasks(tasks=(*tasks, *copies), resizes=resizes)

    def conflicts(self, write: PreparedWrite, written: WrittenRows) -> tuple[CommitCheck, ...]:
        """Return the checks of resizes, and that no other commit inserted one of the keys."""
        return (*_resize_checks(write, written), KeyCheck.of(write, written))

    def renew(self, write: PreparedWrite, partitions: Collection[str]) -> None:
        """Do nothing, because deletes replace no file groups."""


def _setup(write: PreparedWrite) -> IndexSetup:
    """Return the setup of both hash indexes: rows of a new bucket may go to a log, and its file id may be fixed."""
    log_first = write.non_blocking or write.policies.log.bucket_inserts == "log"
    new_in_logs = write.table.config.is_merge_on_read and log_first
    return replace(write.setup, new_in_logs=new_in_logs, fixed_ids=write.non_blocking)


def _search(
    placement: ByBucket | ByRing, write: PreparedWrite, setup: IndexSetup, runs: Sequence[StagedRun]
) -> KeySearch:
    index = placement.index(setup)
    if write.request.replaces:
        return KeySearch(index=index, runs=runs)
    listing = write.listing(sorted({entry.partition for run in runs for entry in run.entries}))
    return KeySearch(index=index, runs=runs, listing=listing, resizes=setup.resizes)


def _cuts(states: Iterable[Mapping[str, Ring]]) -> dict[str, tuple[int, ...]]:
    """Return the hash values at which the rows of each partition are split, for all rings of the partition."""
    cuts: dict[str, tuple[int, ...]] = {}
    for rings in states:
        for partition, ring in rings.items():
            cuts[partition] = (*cuts.get(partition, ()), *(node.value for node in ring.metadata.nodes))
    return cuts


def divide_run(
    context: WriteContext, cuts: Mapping[str, tuple[int, ...]], _attempt: Attempt, run: StagedRun
) -> StagedRun:
    """Return the run with one entry per range of hash values; `bucket` of an entry is the last value of its range.

    Rows are staged before their partitions are known, and a retried attempt may load other ranges. So runs are only
    sorted by hash, and each attempt splits them into ranges without rewriting them.

    Args:
        context: The settings of the write.
        cuts: The last hash value of each range, by partition.
        run: A run whose entries are ordered by hash, and have either only upserts or only deletes.
    """
    entries = []
    with StagedReader(context, run.path) as reader:
        for entry in run.entries:
            hashes = key_hashes(
                reader.slice(entry.offset, entry.rows, [KEY]).column(KEY),
                key_fields=context.keys.record_key_fields,
                hash_fields=context.layout.hash_fields,
            )
            entries += entries_by_range(entry, hashes, cuts[entry.partition])
    return replace(run, entries=tuple(entries))


def _resize_checks(write: PreparedWrite, written: WrittenRows) -> tuple[CommitCheck, ...]:
    checks = [TimelineCheck(partial(_resize_conflict, write, written, resize)) for resize in written.resizes]
    return (*checks, TimelineCheck(partial(_changed_rules_conflict, write.table, written)))


# parameters: the write, and the two arguments of every check
def _resize_conflict(
    write: PreparedWrite, written: WrittenRows, resize: PendingResize, _others: Others, timeline: Timeline
) -> Conflict | None:
    """Return the conflict with a resize for which rows were copied, if it was undone or lacks a group of this write."""
    current = timeline.find(resize.instant)
    if current is None:
        undone = Instant(requested=resize.instant, action=Action.CLUSTERING, state=State.REQUESTED)
        return Conflict(winner=undone, reason=f"the resize {resize.instant}, for which rows were copied, was undone")
    if not current.is_completed or not resize.whole_partitions:
        return None
    replaced = write.table.store.summary(current).replaced
    for stat in written.stats:
        is_copy = f"_{resize.instant}.log." in stat.path
        is_hidden = is_copy or stat.file_id in replaced.get(stat.partition, ())
        if stat.partition in resize.whole_partitions and not is_hidden:
            reason = f"{resize.instant} changed the number of buckets of {stat.partition!r}"
            return Conflict(winner=current, reason=reason)
    return None


def _changed_rules_conflict(
    table: LoadedTable, written: WrittenRows, others: Others, _timeline: Timeline
) -> Conflict | None:
    """Return the conflict with a commit that changed the bucket counts by which the rows were staged."""
    copied = {resize.instant for resize in written.resizes}
    for instant, _ in others:
        if instant.requested not in copied and changed_bucket_rules(table.env.storage, instant):
            return Conflict(winner=instant, reason=f"{instant.requested} changed the buckets of partitions")
    return None


def new_bucket_conflict(written: WrittenRows, others: Others, _timeline: Timeline) -> Conflict | None:
    """Return the conflict with a commit that created a bucket in which this write deletes keys."""
    deleted = {(e.partition, e.bucket) for run in written.runs for e in run.entries if e.deletes}
    unmet = deleted - {(partition, bucket_of(file_id)) for partition, file_id in written.touched}
    for instant, other in _not_copied(written, others) if unmet else ():
        created = {(s.partition, bucket_of(s.file_id)) for s in _inserts(other)} & unmet
        if created:
            return _created(instant, *min(created))
    return None


def new_range_conflict(
    table: LoadedTable, written: WrittenRows, others: Others, _timeline: Timeline
) -> Conflict | None:
    """Return the conflict with a commit that created a file group in a partition in which this write deletes keys.

    With consistent hashing a file group is created once for its range of hash values, so few commits create one.
    """
    deleted = {e.partition for run in written.runs for e in run.entries if e.deletes}
    for instant, other in _not_copied(written, others):
        created = {(s.partition, s.file_id) for s in _inserts(other) if s.partition in deleted} - written.touched
        if created:
            slices = load_slices(table, sorted({partition for partition, _ in created}))
            created -= {(piece.partition, piece.file_id) for piece in slices}
        if created:
            return _created(instant, *min(created))
    return None


def _not_copied(written: WrittenRows, others: Others) -> Others:
    copied = {resize.instant for resize in written.resizes}
    return [pair for pair in others if pair[0].requested not in copied]


def _inserts(metadata: CommitMetadata) -> list[WriteStat]:
    return [stat for stat in metadata.stats if stat.num_inserts]


def _created(instant: Instant, partition: str, bucket: int | str) -> Conflict:
    reason = f"{instant.requested} created bucket {bucket} of {partition!r}, in which this write deletes"
    return Conflict(winner=instant, reason=reason)
