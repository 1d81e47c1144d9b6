"""The end of a write: what others committed meanwhile, then the commit itself (format: timeline.md 7.1, 8.2).

under the lock   what completed since our load?  in our way: Conflict
                 may it hold keys that we insert too?  let go of the lock, compare the keys near the files, once more
                 complete <t>_<c>.<action>
Reading data takes long and the lock is short, so keys are never compared under it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lakehouse.errors import RetryableError, UserError
from lakehouse.format.avro_schema import arrow_to_avro, avro_to_arrow
from lakehouse.format.metadata import encode_commit
from lakehouse.format.names import parse_base_file
from lakehouse.model.commit import COMPACTIONS, CommitMetadata
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.operations.load import LoadedTable, data_columns, pending_clustering
from lakehouse.operations.results import Committed, Conflict
from lakehouse.operations.tidy import rollback_of
from lakehouse.plan.conflict import Change, Strategy, change_of, find_conflict, may_share_keys
from lakehouse.plan.schema import united
from lakehouse.spec.options import TransactionPolicy
from lakehouse.txn.lock import table_lock

logger = logging.getLogger(__name__)

Others = list[tuple[Instant, CommitMetadata]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A write that wants to become true: its metadata, the groups it decided about, and how it stands to others.

    `finds_keys` tells which of base files of others hold a key that this write inserts; None if keys may repeat.
    `shared_columns` are brought by every row: keys, partition, ordering.
    """

    table: LoadedTable
    instant: Instant
    metadata: CommitMetadata
    touched: frozenset[tuple[str, str]]
    strategy: Strategy
    shared_columns: frozenset[str]
    global_keys: bool = False
    finds_keys: Callable[[Sequence[BaseFile]], BaseFile | None] | None = None


def complete(candidate: Candidate, policy: TransactionPolicy) -> Committed | Conflict:
    """Commit, or say who was first. Raises RetryableError if the write was taken for dead and rolled back."""
    compared: frozenset[str] = frozenset()
    ours = change_of(candidate.metadata, touched=candidate.touched, shared_columns=candidate.shared_columns)
    while True:
        with table_lock(candidate.table.env, policy) as lock:
            timeline = candidate.table.store.load()
            others = candidate.table.store.commits(completed_since(candidate.table.timeline, timeline))
            conflict = _conflict(candidate, ours, others, timeline)
            if conflict is not None:
                return conflict
            rivals = [pair for pair in others if pair[0].requested not in compared]
            inserting = [pair for pair in rivals if _may_share_keys(candidate, ours, pair[1])]
            if not inserting:
                metadata = _with_schema(candidate, others)
                if isinstance(metadata, Conflict):
                    return metadata
                _refuse_if_rolled_back(candidate, timeline)
                lock.check()
                return _commit(candidate, metadata, timeline)
        for winner, other in inserting:
            conflict = _same_keys(candidate, ours, winner, other)
            if conflict is not None:
                return conflict
        compared |= {instant.requested for instant, _ in rivals}


def completed_since(before: Timeline, now: Timeline) -> list[Instant]:
    """Return the writes completed `now` that were not completed `before`."""
    known = {instant.requested for instant in before.writes()}
    return [instant for instant in now.writes() if instant.requested not in known]


def _conflict(candidate: Candidate, ours: Change, others: Others, timeline: Timeline) -> Conflict | None:
    changes = [(instant, change_of(other, shared_columns=candidate.shared_columns)) for instant, other in others]
    overlap = find_conflict(changes, ours, candidate.strategy)
    if overlap is not None:
        return Conflict(winner=overlap.winner, reason=overlap.reason)
    held = pending_clustering(replace(candidate.table, timeline=timeline))
    for group in sorted(ours.groups & frozenset(held)):
        planned = timeline.find(held[group])
        assert planned is not None
        return Conflict(
            winner=planned, reason=f"{planned.requested} is about to cluster file group {group[1]} of {group[0]!r}"
        )
    return None


def _may_share_keys(candidate: Candidate, ours: Change, other: CommitMetadata) -> bool:
    if candidate.finds_keys is None:
        return False
    return may_share_keys(ours, change_of(other), global_keys=candidate.global_keys)


def _same_keys(candidate: Candidate, ours: Change, winner: Instant, other: CommitMetadata) -> Conflict | None:
    assert candidate.finds_keys is not None
    inserted = [s for s in other.stats if s.num_inserts and (candidate.global_keys or s.partition in ours.inserted)]
    files = [parse_base_file(s.path.rpartition("/")[2], s.partition, s.size_bytes) for s in inserted]
    found = candidate.finds_keys([file for file in files if file is not None])
    if found is None:
        return None
    where = f"file group {found.file_id} of {found.partition!r}"
    return Conflict(winner=winner, reason=f"{winner.requested} inserted keys of this batch into {where}")


def _with_schema(candidate: Candidate, others: Others) -> CommitMetadata | Conflict:
    """Return the metadata with the schema of both, where another writer changed the table's too.

    A compaction repeats the schema that it found; it does not decide on one.
    """
    deciding = [(i, other) for i, other in others if other.operation not in COMPACTIONS and other.extra.get("schema")]
    if not deciding:
        return candidate.metadata
    winner, newest = max(deciding, key=lambda pair: pair[0].completed or "")
    theirs, ours = newest.extra["schema"], candidate.metadata.extra["schema"]
    if theirs == ours:
        return candidate.metadata
    try:
        both = united(data_columns(avro_to_arrow(theirs)), data_columns(avro_to_arrow(ours)))
    except UserError as error:
        return Conflict(winner=winner, reason=f"{winner.requested} changed the schema: {error}")
    schema = arrow_to_avro(both, table=candidate.table.config.name)
    return replace(candidate.metadata, extra={**candidate.metadata.extra, "schema": schema})


def _refuse_if_rolled_back(candidate: Candidate, timeline: Timeline) -> None:
    requested, root = candidate.instant.requested, candidate.table.env.storage.root
    rollback = rollback_of(candidate.table, timeline, requested)
    if rollback is not None:
        raise RetryableError(
            f"{root}: {requested} was taken for dead and rolled back by {rollback.requested}; run the operation again",
            instant=rollback.requested,
        )


def _commit(candidate: Candidate, metadata: CommitMetadata, timeline: Timeline) -> Committed:
    table, instant = candidate.table, candidate.instant
    replaces = instant.action is Action.REPLACECOMMIT
    data = encode_commit(metadata, table_version=table.config.version, replace=replaces)
    started = Instant(requested=instant.requested, action=instant.action, state=State.INFLIGHT)
    completed = table.store.complete(started, timeline, data)
    logger.info("%s: committed %s, %d files", table.env.storage.root, completed.requested, len(metadata.stats))
    return Committed(instant=completed, metadata=metadata)
