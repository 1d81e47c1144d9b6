"""Complete a write: check for conflicts, then create the completed instant (TL-7.1, TL-8.2).

under the lock   check commits that completed since the load; return a Conflict if one overlaps
                 if one may have inserted the same keys: release the lock, compare keys, start again
                 create <t>_<c>.<action>
Comparing keys reads data files and takes long, so it is never done under the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.format.avro.schema import arrow_to_avro, avro_to_arrow
from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.index.hash.resizes import PendingResize
from lakehouse.core.metadata.change import change_of_commit
from lakehouse.core.metadata.staged import StagedRecordsError, StagedUpdate
from lakehouse.core.operations.commit.bucket_counts import changed_bucket_rules
from lakehouse.core.operations.commit.cleanup import find_rollback
from lakehouse.core.operations.commit.clustering_conflicts import groups_closed_by_clustering
from lakehouse.core.operations.commit.completion import Completion, complete_action
from lakehouse.core.operations.commit.index_staging import IndexStaging
from lakehouse.core.operations.commit.precondition import Precondition, precondition_conflict
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.load.commits import writes_since
from lakehouse.core.operations.load.schema import data_columns
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.conflict import Strategy, WriteSummary, find_conflict, may_share_keys, write_summary
from lakehouse.core.planning.schema import united
from lakehouse.core.planning.tombstones import TOMBSTONES_KEY
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.commit import REWRITES, CommitMetadata, WriteStat
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: How often the records of indexes are prepared while indexes are created or dropped.
_STAGINGS = 3

Others = list[tuple[Instant, CommitMetadata]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCommit:
    """A write whose files are written, with the input of the conflict check.

    Attributes:
        table: The table as it was loaded for the write.
        instant: The inflight instant.
        metadata: The metadata of the commit.
        touched: The stored file groups (partition, file id) that the write read or extended.
        strategy: The conflict resolution strategy.
        shared_columns: Columns that every row provides: keys, partition, ordering.
        global_keys: Record keys are unique in the table, not only in a partition.
        finds_keys: Returns one of the given base files that has a key of this write; None if keys may repeat.
        deleted_in: Partitions in which keys are deleted; keys that were not found may have been inserted since.
        precondition: What must still hold.
        updates: The option for writes of file groups that a pending clustering holds: reject or give_way.
        makes_late: Returns whether tombstones of another commit make rows of this write late; None without tombstones.
        resizes: The resizes that were pending and for which rows were copied. They are no conflicts, whether they are
            completed meanwhile or not.
        begun: Returns a bucket (partition, name) without file group in which this write deletes keys, and which the
            files of another commit began; None if there is none. Only with buckets and tombstones.
        staging: Prepares the records of indexes that grow with the rows of the commit.
    """

    table: LoadedTable
    instant: Instant
    metadata: CommitMetadata
    touched: frozenset[tuple[str, str]]
    strategy: Strategy
    shared_columns: frozenset[str]
    global_keys: bool = False
    finds_keys: Callable[[Sequence[BaseFile]], BaseFile | None] | None = None
    deleted_in: frozenset[str] = frozenset()
    precondition: Precondition | None = None
    updates: str = "give_way"
    makes_late: Callable[[Instant, CommitMetadata], bool] | None = None
    resizes: tuple[PendingResize, ...] = ()
    begun: Callable[[Sequence[WriteStat]], tuple[str, str] | None] | None = None
    staging: IndexStaging | None = None


def complete_commit(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
    """Commit, or return the conflict with the commit that won.

    Raises RetryableError if another process considered the write expired and rolled it back.
    """
    if candidate.precondition is not None and candidate.precondition.confirm is not None:
        # The check may take long, so it runs before the lock is taken.
        candidate.precondition.confirm()
    compared: frozenset[str] = frozenset()
    ours = write_summary(candidate.metadata, touched=candidate.touched, shared_columns=candidate.shared_columns)
    staged = {} if candidate.staging is None else candidate.staging.stage(candidate.metadata)
    tries = 0
    while True:
        with table_lock(candidate.table.env, policy) as lock:
            timeline = candidate.table.store.load()
            others = candidate.table.store.commits(writes_since(candidate.table, candidate.table.timeline, timeline))
            conflict = _conflict(candidate, ours, others, timeline)
            if conflict is not None:
                return conflict
            rivals = [pair for pair in others if pair[0].requested not in compared]
            inserting = [pair for pair in rivals if _may_share_keys(candidate, ours, pair[1])]
            deleting = [pair for pair in rivals if candidate.makes_late is not None and TOMBSTONES_KEY in pair[1].extra]
            if not inserting and not deleting:
                metadata = _with_schema(candidate, others)
                if isinstance(metadata, Conflict):
                    return metadata
                _refuse_if_rolled_back(candidate, timeline)
                tries += 1
                try:
                    committed = _commit(candidate, metadata, timeline, lock, staged)
                except StagedRecordsError:
                    if candidate.staging is None or tries == _STAGINGS:
                        raise
                else:
                    break
        if not inserting and not deleting:
            # An index was created or dropped after its records were prepared.
            assert candidate.staging is not None
            candidate.staging.clean_up(staged)
            staged = candidate.staging.stage(candidate.metadata, again=True)
            continue
        for winner, other in inserting:
            conflict = _same_keys(candidate, ours, winner, other)
            if conflict is not None:
                return conflict
        for winner, other in deleting:
            assert candidate.makes_late is not None
            if candidate.makes_late(winner, other):
                return Conflict(
                    winner=winner, reason=f"{winner.requested} deleted keys of this batch with a later ordering value"
                )
        compared |= {instant.requested for instant, _ in rivals}
    if candidate.staging is not None:
        candidate.staging.clean_up(staged)
    return committed


def _conflict(candidate: PreparedCommit, ours: WriteSummary, others: Others, timeline: Timeline) -> Conflict | None:
    if candidate.precondition is not None:
        conflict = precondition_conflict(candidate.precondition, candidate.table, timeline)
        if conflict is not None:
            return conflict
    clean = _clean_since_load(candidate, others, timeline)
    if clean is not None:
        reason = f"{clean.requested} may have removed files that this write would have read"
        return Conflict(winner=clean, reason=reason)
    for resize in candidate.resizes:
        conflict = _resize_conflict(candidate, resize, timeline)
        if conflict is not None:
            return conflict
    copied = {resize.instant: resize.partitions for resize in candidate.resizes}
    others = [pair for pair in others if pair[0].requested not in copied]
    changes = [(instant, write_summary(other, shared_columns=candidate.shared_columns)) for instant, other in others]
    overlap = find_conflict(changes, ours, candidate.strategy)
    if overlap is not None:
        return Conflict(winner=overlap.winner, reason=overlap.reason)
    for instant, other in others:
        begun = None if candidate.begun is None else candidate.begun([s for s in other.stats if s.num_inserts])
        if begun is not None:
            partition, bucket = begun
            reason = f"{instant.requested} created bucket {bucket} of {partition!r}, in which this write deletes"
            return Conflict(winner=instant, reason=reason)
    rescaled = next((i for i, _ in others if changed_bucket_rules(candidate.table.env.storage, i)), None)
    if rescaled is not None:
        return Conflict(winner=rescaled, reason=f"{rescaled.requested} changed the buckets of partitions")
    held = groups_closed_by_clustering(candidate.table, timeline, updates=candidate.updates)
    for group in sorted(ours.groups & frozenset(held)):
        if group[0] in copied.get(held[group], ()):
            continue
        planned = timeline.find(held[group])
        assert planned is not None
        return Conflict(
            winner=planned, reason=f"{planned.requested} is about to cluster file group {group[1]} of {group[0]!r}"
        )
    return None


def _resize_conflict(candidate: PreparedCommit, resize: PendingResize, timeline: Timeline) -> Conflict | None:
    """Return the conflict with a resize for which rows were copied: it was undone, or missed a group of this write."""
    found = timeline.find(resize.instant)
    if found is None:
        undone = Instant(requested=resize.instant, action=Action.CLUSTERING, state=State.REQUESTED)
        return Conflict(winner=undone, reason=f"the resize {resize.instant}, for which rows were copied, was undone")
    if not found.is_completed or not resize.whole_partitions:
        return None
    replaced = candidate.table.store.summary(found).replaced
    for stat in candidate.metadata.stats:
        is_copy = f"_{resize.instant}.log." in stat.path
        is_hidden = is_copy or stat.file_id in replaced.get(stat.partition, ())
        if stat.partition in resize.whole_partitions and not is_hidden:
            reason = f"{resize.instant} changed the number of buckets of {stat.partition!r}"
            return Conflict(winner=found, reason=reason)
    return None


def _clean_since_load(candidate: PreparedCommit, others: Others, timeline: Timeline) -> Instant | None:
    """Return a clean that may have removed slices between the load and their listing, None if there is none.

    Such a file group would look empty. Cleans keep the slices that a pending write may read as of its instant. So this
    can only happen if another write completed between the load and our instant.
    """
    if not any(instant.completion < candidate.instant.requested for instant, _ in others):
        return None
    known = {clean.requested for clean in candidate.table.timeline.where(action=Action.CLEAN)}
    return next((c for c in timeline.where(action=Action.CLEAN) if c.requested not in known), None)


def _may_share_keys(candidate: PreparedCommit, ours: WriteSummary, other: CommitMetadata) -> bool:
    if candidate.finds_keys is None:
        return False
    return may_share_keys(_looked_for(candidate, ours), write_summary(other), global_keys=candidate.global_keys)


def _looked_for(candidate: PreparedCommit, ours: WriteSummary) -> WriteSummary:
    """Return the summary of this write with all partitions in which it inserts or deletes keys."""
    return replace(ours, inserted=ours.inserted | candidate.deleted_in)


def _same_keys(
    candidate: PreparedCommit, ours: WriteSummary, winner: Instant, other: CommitMetadata
) -> Conflict | None:
    assert candidate.finds_keys is not None
    partitions = _looked_for(candidate, ours).inserted
    inserted = [s for s in other.stats if s.num_inserts and (candidate.global_keys or s.partition in partitions)]
    files = [parse_base_file(s.path.rpartition("/")[2], s.partition, s.size_bytes) for s in inserted]
    found = candidate.finds_keys([file for file in files if file is not None])
    if found is None:
        return None
    where = f"file group {found.file_id} of {found.partition!r}"
    return Conflict(winner=winner, reason=f"{winner.requested} inserted keys of this batch into {where}")


def _with_schema(candidate: PreparedCommit, others: Others) -> CommitMetadata | Conflict:
    """Return the metadata, with the union of both schemas if another writer changed the schema since the load.

    Table services are ignored, because they repeat the schema that they found.
    """
    writes = [(i, other) for i, other in others if other.operation not in REWRITES and other.extra.get("schema")]
    if not writes:
        return candidate.metadata
    winner, newest = max(writes, key=lambda pair: pair[0].completed or "")
    theirs, ours = newest.extra["schema"], candidate.metadata.extra["schema"]
    if theirs == ours:
        return candidate.metadata
    try:
        both = united(data_columns(avro_to_arrow(theirs)), data_columns(avro_to_arrow(ours)))
    except UserError as error:
        return Conflict(winner=winner, reason=f"{winner.requested} changed the schema: {error}")
    schema = arrow_to_avro(both, table=candidate.table.config.name)
    return replace(candidate.metadata, extra={**candidate.metadata.extra, "schema": schema})


def _refuse_if_rolled_back(candidate: PreparedCommit, timeline: Timeline) -> None:
    requested, root = candidate.instant.requested, candidate.table.env.storage.root
    rollback = find_rollback(candidate.table, timeline, requested)
    if rollback is not None:
        raise RetryableError(
            f"{root}: {requested} expired and was rolled back by {rollback.requested}; run the operation again",
            instant=rollback.requested,
        )


def _commit(
    candidate: PreparedCommit,
    metadata: CommitMetadata,
    timeline: Timeline,
    lock: TableLock,
    staged: Mapping[str, StagedUpdate],
) -> Committed:
    table, instant = candidate.table, candidate.instant
    replaces = instant.action is Action.REPLACECOMMIT
    data = table.config.layout.encode_commit(metadata, replace=replaces)
    started = Instant(requested=instant.requested, action=instant.action, state=State.INFLIGHT)
    change = change_of_commit(metadata, staged)
    completed = complete_action(table, Completion(instant=started, timeline=timeline, data=data, change=change), lock)
    table.store.remember(completed, data)
    logger.info("%s: committed %s, %d files", table.env.storage.root, completed.requested, len(metadata.stats))
    return Committed(instant=completed, metadata=metadata)
