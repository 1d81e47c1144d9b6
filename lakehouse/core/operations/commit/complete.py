"""Complete a write: check for conflicts, then create the completed instant (TL-7.1, TL-8.2).

under the lock   run the checks on the commits that completed since the load; return the first Conflict
                 if a check has to read data files: release the lock, compare, start again
                 create <t>_<c>.<action>
Comparing keys reads data files and takes long, so it is never done under the lock.

Checks that only compare timelines and statistics run under the lock. A check that must read data files first returns
the relevant commits. The files are then read without the lock, and all checks start again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lakehouse.core.format.avro.schema import arrow_to_avro, avro_to_arrow
from lakehouse.core.format.internal_schema import LATEST_SCHEMA, decode_schema
from lakehouse.core.metadata.change import change_of_commit
from lakehouse.core.metadata.partitions.record_index import RECORD_INDEX
from lakehouse.core.metadata.staged import StagedRecordsError, StagedUpdate
from lakehouse.core.operations.commit.cleanup import find_rollback
from lakehouse.core.operations.commit.clustering_conflicts import groups_closed_by_clustering
from lakehouse.core.operations.commit.completion import Completion, complete_action
from lakehouse.core.operations.commit.index_staging import IndexStaging
from lakehouse.core.operations.commit.precondition import Precondition, precondition_conflict
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.load.commits import KeyScope, adds_keys, key_scope, mark_of, writes_since
from lakehouse.core.operations.load.schema import data_columns, declared_schema
from lakehouse.core.operations.load.schema_history import save_history
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.conflict import Strategy, WriteSummary, find_conflict, write_summary
from lakehouse.core.planning.schema import united
from lakehouse.core.planning.schema_history import SchemaHistory
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.commit import REWRITES, CommitMetadata
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy

#: Commits that completed since the load, with their metadata.
Others = Sequence[tuple[Instant, CommitMetadata]]


class CommitCheck(Protocol):
    """Checks whether a write may commit after other commits."""

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the conflict with one of `others`, or with a plan on `timeline`; runs under the lock."""
        ...

    def suspects(self, others: Others) -> Others:
        """Return the commits for which `compare` has to read data files; runs under the lock."""
        ...

    def compare(self, suspects: Others) -> Conflict | None:
        """Read data files and return the conflict with one of these commits; runs without the lock."""
        ...


@dataclass(frozen=True, slots=True)
class TimelineCheck:
    """A check that reads no data files; the function `find` returns its conflict."""

    find: Callable[[Others, Timeline], Conflict | None]

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the conflict that `find` returns."""
        return self.find(others, timeline)

    def suspects(self, others: Others) -> Others:
        """Return no commits."""
        return ()

    def compare(self, suspects: Others) -> Conflict | None:
        """Return no conflict."""
        return None


def precondition_check(table: LoadedTable, precondition: Precondition) -> TimelineCheck:
    """Return a check that the state on which the caller based the write is still valid."""
    return TimelineCheck(lambda _others, timeline: precondition_conflict(precondition, table, timeline))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupCheck:
    """Checks that no other commit, clean or clustering changed the file groups of this write.

    Attributes:
        table: The table as it was loaded for the write.
        instant: The requested time of the write.
        ours: The summary of the write.
        strategy: The conflict resolution strategy.
        shared_columns: Columns that every row provides: keys, partition, ordering.
        updates: The option for writes of file groups that a pending clustering holds: reject or give_way.
        copied: The bucket resizes for which rows were copied, with their partitions; they are no conflicts.
    """

    table: LoadedTable
    instant: str
    ours: WriteSummary
    strategy: Strategy
    shared_columns: frozenset[str] = frozenset()
    updates: str = "give_way"
    copied: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the first conflict: with a clean, with a commit, with a pending clustering."""
        return self._with_clean(others, timeline) or self._with_commit(others) or self._with_clustering(timeline)

    def suspects(self, others: Others) -> Others:
        """Return no commits."""
        return ()

    def compare(self, suspects: Others) -> Conflict | None:
        """Return no conflict."""
        return None

    def _with_clean(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the conflict with a clean that may have removed slices between the load and their listing.

        Such a file group would look empty. Cleans keep the slices that a pending write may read as of its instant, so
        this can only happen if another write completed between the load and the creation of our instant.
        """
        if not any(instant.completion < self.instant for instant, _ in others):
            return None
        seen = {clean.requested for clean in self.table.timeline.where(action=Action.CLEAN)}
        clean = next((c for c in timeline.where(action=Action.CLEAN) if c.requested not in seen), None)
        if clean is None:
            return None
        return Conflict(
            winner=clean, reason=f"{clean.requested} may have removed files that this write would have read"
        )

    def _with_commit(self, others: Others) -> Conflict | None:
        changes = [
            (instant, write_summary(other, shared_columns=self.shared_columns))
            for instant, other in others
            if instant.requested not in self.copied
        ]
        overlap = find_conflict(changes, self.ours, self.strategy)
        return None if overlap is None else Conflict(winner=overlap.winner, reason=overlap.reason)

    def _with_clustering(self, timeline: Timeline) -> Conflict | None:
        held = groups_closed_by_clustering(self.table, timeline, updates=self.updates)
        for group in sorted(self.ours.groups & frozenset(held)):
            if group[0] in self.copied.get(held[group], ()):
                continue
            planned = timeline.find(held[group])
            assert planned is not None
            return Conflict(
                winner=planned, reason=f"{planned.requested} is about to cluster file group {group[1]} of {group[0]!r}"
            )
        return None


logger = logging.getLogger(__name__)

#: Maximum number of attempts to prepare index records while indexes are created or dropped.
_STAGINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCommit:
    """A write whose files are written, with the checks before its commit.

    Attributes:
        table: The table as it was loaded for the write.
        instant: The inflight instant.
        metadata: The metadata of the commit.
        checks: The checks whether the write may commit after other writes.
        confirm: Function that is called before the lock is taken. An error in it ends the write.
        staging: Prepares the records of indexes whose size grows with the rows of the commit.
        key_scope: The scope in which the write keeps unique keys unique; empty if its staging compares them.
        history: The schema versions after the write; None if the table has no column ids.
    """

    table: LoadedTable
    instant: Instant
    metadata: CommitMetadata
    checks: tuple[CommitCheck, ...] = ()
    confirm: Callable[[], None] | None = None
    staging: IndexStaging | None = None
    key_scope: KeyScope = KeyScope.NONE
    history: SchemaHistory | None = None


def complete_commit(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
    """Commit, or return the conflict with an earlier commit.

    Raises RetryableError if another process considered the write expired and rolled it back.
    """
    if candidate.confirm is not None:
        # The check may take long, so it runs before the lock is taken.
        candidate.confirm()
    compared: frozenset[str] = frozenset()
    records = {} if candidate.staging is None else candidate.staging.stage(candidate.metadata)
    staged, stagings = _Staged(records, candidate.table.timeline), 1
    while True:
        try:
            outcome = _commit_or_suspect(candidate, policy, compared, staged)
        except StagedRecordsError:
            # An index was created or dropped, or keys were inserted, after its records were prepared.
            if candidate.staging is None or stagings == _STAGINGS:
                raise
            candidate.staging.clean_up(staged.records)
            now = candidate.table.store.load()
            staged = _Staged(candidate.staging.stage(candidate.metadata, now), now)
            stagings += 1
            continue
        if isinstance(outcome, Committed):
            if candidate.staging is not None:
                candidate.staging.clean_up(staged.records)
            return outcome
        if isinstance(outcome, Conflict):
            return outcome
        conflict = outcome.conflict()
        if conflict is not None:
            return conflict
        compared |= outcome.seen


@dataclass(frozen=True, slots=True)
class _Staged:
    """The staged records of indexes, and the timeline for which they were staged."""

    records: Mapping[str, StagedUpdate]
    timeline: Timeline

    def require_current(self, table: LoadedTable, others: Others) -> None:
        """Raise StagedRecordsError if new keys were compared with a record index to which others added keys."""
        if not any(update.has_new_keys for update in self.records.values()):
            return
        seen = {instant.requested for instant in self.timeline.writes()}
        for instant, other in others:
            if instant.requested not in seen and adds_keys(other.operation):
                raise StagedRecordsError(
                    f"{table.env.storage.root}: {instant.requested} added rows while this write compared its keys with "
                    "the record index; run the operation again",
                    instant=instant.requested,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspects:
    """The commits for which checks have to read data files; `seen` are all commits that completed since the load."""

    of_checks: Sequence[tuple[CommitCheck, Others]]
    seen: frozenset[str]

    def conflict(self) -> Conflict | None:
        """Read data files and return the first conflict."""
        return next((conflict for check, others in self.of_checks if (conflict := check.compare(others))), None)


def _commit_or_suspect(
    candidate: PreparedCommit, policy: TransactionPolicy, compared: frozenset[str], staged: _Staged
) -> Committed | Conflict | _Suspects:
    """Commit under the lock unless a check forbids it, or has to read data files for commits that are not `compared`.

    Raises StagedRecordsError if the staged records of indexes do not fit the table.
    """
    table = candidate.table
    with table_lock(table.env, policy) as lock:
        timeline = table.store.load()
        others = table.store.commits(writes_since(table, table.timeline, timeline))
        for check in candidate.checks:
            conflict = check.conflict(others, timeline)
            if conflict is not None:
                return conflict
        rivals = [pair for pair in others if pair[0].requested not in compared]
        suspects = [(check, suspected) for check in candidate.checks if (suspected := check.suspects(rivals))]
        if suspects:
            return _Suspects(of_checks=suspects, seen=frozenset(instant.requested for instant, _ in rivals))
        hidden = _with_newer_schema(candidate, timeline)
        if hidden is not None:
            return hidden
        metadata = _with_schema(candidate, others)
        if isinstance(metadata, Conflict):
            return metadata
        _refuse_if_rolled_back(candidate, timeline)
        staged.require_current(table, others)
        metadata = _with_key_scope(candidate, metadata, timeline, staged.records)
        return _commit(candidate, metadata, timeline, lock, staged.records)


def _with_key_scope(
    candidate: PreparedCommit, metadata: CommitMetadata, timeline: Timeline, staged: Mapping[str, StagedUpdate]
) -> CommitMetadata:
    """Return the metadata with the proof that keys are unique, if the table has a record index."""
    table, scope = candidate.table, candidate.key_scope
    if RECORD_INDEX not in table.config.metadata_partitions:
        return metadata
    if not adds_keys(metadata.operation):
        scope = KeyScope.TABLE
    elif candidate.staging is not None and RECORD_INDEX in staged and staged[RECORD_INDEX].has_new_keys:
        scope = candidate.staging.scope
    if not scope:
        return metadata
    scope = scope.within(key_scope(table, timeline))
    mark = mark_of(table, candidate.instant, timeline, scope)
    return replace(metadata, extra={**metadata.extra, **mark})


def _with_schema(candidate: PreparedCommit, others: Others) -> CommitMetadata | Conflict:
    """Return the metadata, with the union of both schemas if another writer changed the schema since the load.

    Table services are ignored, because they copy the schema of the table.
    """
    writes = [(i, other) for i, other in others if other.operation not in REWRITES and other.extra.get("schema")]
    if not writes:
        return candidate.metadata
    if candidate.history is not None or any(LATEST_SCHEMA in other.extra for _, other in writes):
        return _with_ids(candidate, writes)
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


def _with_newer_schema(candidate: PreparedCommit, timeline: Timeline) -> Conflict | None:
    """Return the conflict with a completed write whose schema would hide columns of this one.

    Without completion times, readers use the schema of the write that was requested last, not completed last.
    """
    ours = candidate.metadata.extra.get("schema")
    if candidate.table.config.layout.has_completion_times or not ours:
        return None
    newer = [write for write in timeline.writes() if write.requested > candidate.instant.requested]
    for instant in newer:
        theirs = candidate.table.store.summary(instant).extra.get("schema")
        if theirs and theirs != ours:
            columns = {field.name: field.type for field in data_columns(avro_to_arrow(theirs))}
            for field in data_columns(avro_to_arrow(ours)):
                if columns.get(field.name) != field.type:
                    reason = f"{instant.requested} is newer and does not have this column: {field.name} {field.type}"
                    return Conflict(winner=instant, reason=reason)
    return None


def _with_ids(candidate: PreparedCommit, writes: Others) -> CommitMetadata | Conflict:
    """Return the metadata, or the conflict with a write that changed the columns of a table with column ids.

    The files of this write have the columns of the schema that it was planned with.
    """
    before = declared_schema(candidate.table)
    history = None if before is None else before.history
    for instant, other in writes:
        stored = other.extra.get(LATEST_SCHEMA)
        if history is None or not stored or decode_schema(stored).version > history.latest.version:
            return Conflict(winner=instant, reason=f"{instant.requested} changed the columns of the table")
    return candidate.metadata


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
    if candidate.history is not None:
        change = replace(change, evolved=candidate.history.evolved)
        save_history(table, started, timeline, candidate.history)
    completion = Completion(instant=started, timeline=timeline, data=data, change=change, is_last=True)
    completed = complete_action(table, completion, lock)
    table.store.remember(completed, data)
    logger.info("%s: committed %s, %d files", table.env.storage.root, completed.requested, len(metadata.stats))
    return Committed(instant=completed, metadata=metadata)
