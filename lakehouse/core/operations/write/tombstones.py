"""Apply tombstones in a write: drop late rows, and record the deletes of the batch (`planning.tombstones`).

stage     stage the batch
filter    drop and count rows that are older than a tombstone with their key; reads nothing if there is no tombstone
write     write the other rows
remember  write the deletes of the batch to a tombstone file; merge small files if there are many
commit    list the valid tombstone files. A write that committed meanwhile may have added deletes that make rows of this
          write late. They are compared before the lock is taken; if there are late rows, the write is a conflict and
          is retried.
clean     delete the files whose tombstones have all expired
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.keys.tombstones import (
    KeptRun,
    KnownDeletes,
    count_late,
    drop_late,
    found_versions,
    may_be_late,
    merge_tombstones,
    write_tombstones,
)
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.log.delete_values import written_as
from lakehouse.core.index.write_tasks import StagedRun, TagTask
from lakehouse.core.operations.commit.complete import CommitCheck, Others
from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import PreparedWrite
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.planning.tombstones import (
    LATE_ROWS_KEY,
    LATEST_MS,
    TOMBSTONES_KEY,
    TombstoneFile,
    Tombstones,
    added_files,
    decode_tombstones,
    encode_tombstones,
    files_to_merge,
    known_tombstones,
    overwritten_partitions,
)
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.instant import Action, Instant, State, Timeline

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ARCHIVED_AT_ONCE = 64
_REMEMBERING = (Operation.UPSERT, Operation.DELETE)
_FILTERED = (Operation.UPSERT, Operation.INSERT)


def orders_deletes(table: LoadedTable, schema: pa.Schema) -> bool:
    """Return whether deletes can store ordering values of the types in `schema`.

    Delete blocks support only some types.
    """
    try:
        for name in table.config.merge_rule.compared if table.config.is_merge_on_read else ():
            written_as(schema.field(name).type)
    except UnsupportedError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedDeletes:
    """The staged runs after the filter.

    Attributes:
        runs: The staged runs without late rows.
        late: The number of late rows.
        files: The tombstone files of the deletes in the runs.
        are_ordered: Whether deletes have ordering values, from the batch or from the stored records of their keys.
    """

    runs: Sequence[StagedRun] = ()
    late: int = 0
    files: tuple[TombstoneFile, ...] = ()
    are_ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedDeletes:
    """The tombstones that one write attempt uses. `known` contains the tombstones of the loaded table."""

    table: LoadedTable
    engine: Engine
    context: WriteContext
    operation: Operation
    known: Tombstones
    now_ms: int
    retention_ms: int
    orders_deletes: bool

    def applied(self, runs: Sequence[StagedRun]) -> AppliedDeletes:
        """Drop late rows from the staged runs, and write the tombstones of their deletes."""
        if self.operation is Operation.DELETE and not self.context.incoming.ordered_deletes and self.orders_deletes:
            ordering = replace(self, context=self.context.with_incoming(ordered_deletes=True))
            stored = self._found(runs)
            return AppliedDeletes(runs=stored, late=0, files=ordering.remember(stored), are_ordered=True)
        in_time, late = self.in_order(runs)
        return AppliedDeletes(
            runs=in_time, late=late, files=self.remember(in_time), are_ordered=self.context.incoming.ordered_deletes
        )

    def _found(self, runs: Sequence[StagedRun]) -> tuple[StagedRun, ...]:
        """Return the stored records with the keys to delete, as runs."""
        context, entries = self.context, [entry for run in runs for entry in run.entries]
        slices = load_slices(self.table, context.layout.searched(e.partition for e in entries))
        read = slice_context(self.table, context.schema, budget=context.policy.memory_budget_bytes)
        tasks = []
        for file_slice in slices:
            matching = context.layout.entries_for_group(entries, file_slice.partition, file_slice.file_id)
            if matching:
                tasks.append(TagTask(bases=(), entries=matching, slices=(file_slice,)))
        versions = self.engine.run(partial(found_versions, context, read), tasks, light=True)
        return tuple(run for run in versions if run is not None)

    def in_order(self, runs: Sequence[StagedRun]) -> tuple[list[StagedRun], int]:
        """Return the runs without rows that are older than a tombstone, and the number of these rows."""
        if self.operation not in _FILTERED or not self.known.files:
            return list(runs), 0
        deletes = KnownDeletes(known=self.known, now_ms=self.now_ms)
        suspects: list[StagedRun] = []
        others: list[StagedRun] = []
        for run in runs:
            (suspects if may_be_late(self.context, deletes, run) else others).append(run)
        filtered: list[KeptRun] = (
            self.engine.run(partial(drop_late, self.context, deletes), suspects, light=True) if suspects else []
        )
        late = sum(result.late for result in filtered)
        if late:
            logger.warning(
                "%s: dropped %d rows that are older than a delete of their key", self.table.env.storage.root, late
            )
        return [*(result.run for result in filtered), *others], late

    def remember(self, runs: Sequence[StagedRun]) -> tuple[TombstoneFile, ...]:
        """Write the tombstones of the runs' deletes; returns no files if no delete has an ordering value."""
        if self.operation not in _REMEMBERING or (
            self.context.incoming.deletes_only and not self.context.incoming.ordered_deletes
        ):
            return ()
        until_ms = min(self.now_ms + self.retention_ms, LATEST_MS)
        deletes = KnownDeletes(known=self.known, now_ms=self.now_ms, until_ms=until_ms)
        deleting = [
            run for run in runs if self.context.incoming.deletes_only or any(entry.deletes for entry in run.entries)
        ]
        return _written(self.engine.run(partial(write_tombstones, self.context, deletes), deleting, light=True))

    def extra(self, applied: AppliedDeletes, metadata: CommitMetadata) -> dict[str, str]:
        """Return the extra metadata of the commit: the valid tombstone files, and the number of late rows."""
        instant = Instant(requested=self.context.instant, action=_action(self.operation), state=State.INFLIGHT)
        overwritten = overwritten_partitions(instant, metadata)
        at = {partition: instant.requested for partition in overwritten or ()}
        valid = replace(
            self.known,
            overwritten={**self.known.overwritten, **at},
            overwritten_all=instant.requested if overwritten is None else self.known.overwritten_all,
        ).counting(self.now_ms)
        newest = max((write.completion for write in self.table.timeline.writes()), default="")
        valid = replace(valid, up_to=newest, files=(*self._merged(valid), *applied.files))
        extra = {TOMBSTONES_KEY: encode_tombstones(valid)}
        return extra | ({LATE_ROWS_KEY: str(applied.late)} if applied.late else {})

    def conflicts(self, runs: Sequence[StagedRun]) -> tuple[CommitCheck, ...]:
        """Return the check that no other commit deleted a key of `runs` with a later ordering value."""
        return (LateRowsCheck(deletes=self, runs=runs),) if self.operation in _FILTERED else ()

    def late_by(self, runs: Sequence[StagedRun], winner: Instant, metadata: CommitMetadata) -> bool:
        """Return whether the deletes of a commit that completed since the load make rows of `runs` late."""
        theirs = decode_tombstones(winner, metadata)
        added = () if theirs is None else added_files(theirs, winner)
        if theirs is None or not added:
            return False
        deletes = KnownDeletes(known=replace(theirs, files=added), now_ms=self.now_ms)
        suspects = [run for run in runs if may_be_late(self.context, deletes, run)]
        return bool(suspects) and any(self.engine.run(partial(count_late, self.context, deletes), suspects, light=True))

    def _merged(self, valid: Tombstones) -> tuple[TombstoneFile, ...]:
        """Return the tombstone files, after merging small ones if there are many."""
        groups = files_to_merge(valid.files)
        if not groups:
            return valid.files
        deletes = KnownDeletes(known=valid, now_ms=self.now_ms)
        merged = _written(self.engine.run(partial(merge_tombstones, self.context, deletes), groups))
        inputs = {file.name for group in groups for file in group}
        return (*(file for file in valid.files if file.name not in inputs), *merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRowsCheck:
    """Checks that no commit that completed since the load deleted a key of the batch with a later ordering value."""

    deletes: RememberedDeletes
    runs: Sequence[StagedRun]

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return no conflict, because only `compare` reads the tombstone files."""
        return None

    def suspects(self, others: Others) -> Others:
        """Return the commits with tombstones."""
        return [pair for pair in others if TOMBSTONES_KEY in pair[1].extra]

    def compare(self, suspects: Others) -> Conflict | None:
        """Compare the rows with the tombstones of these commits."""
        for winner, other in suspects:
            if self.deletes.late_by(self.runs, winner, other):
                return Conflict(
                    winner=winner, reason=f"{winner.requested} deleted keys of this batch with a later ordering value"
                )
        return None


def _written(files: Sequence[TombstoneFile | None]) -> tuple[TombstoneFile, ...]:
    return tuple(file for file in files if file is not None)


def _action(operation: Operation) -> Action:
    replaces = (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)
    return Action.REPLACECOMMIT if operation in replaces else Action.COMMIT


def remembered_deletes(write: PreparedWrite) -> RememberedDeletes:
    """Return the tombstones for a write to a table that keeps tombstones."""
    table, retention_ms = write.table, write.policies.deletes.retention_ms
    now_ms = table.env.clock.now_ms()
    return RememberedDeletes(
        table=table,
        engine=write.engine,
        context=write.context,
        operation=write.request.operation,
        known=load_tombstones(table, now_ms, retention_ms),
        now_ms=now_ms,
        retention_ms=retention_ms,
        orders_deletes=orders_deletes(table, write.context.schema),
    )


def load_tombstones(table: LoadedTable, now_ms: int, retention_ms: int) -> Tombstones:
    """Return the tombstone files that are valid now; usually the newest commit lists all of them.

    Commits older than the retention are ignored. Archived commits are read only if no active commit lists the files.
    """
    since = table.store.time_text(max(now_ms - retention_ms, 0))
    newest_first = tuple(reversed(table.timeline.writes().by_completion()))
    recent = [instant for instant in newest_first if instant.completion >= since]
    tombstones = known_tombstones(((i, table.store.commit(i)) for i in recent), Tombstones())
    if not tombstones.is_complete and len(recent) == len(newest_first):
        older = tuple(reversed(archived_writes(table, completed_after=since).by_completion()))
        for start in range(0, len(older), _ARCHIVED_AT_ONCE):
            if not tombstones.is_complete or older[start].completion > tombstones.up_to:
                commits = table.store.archived_commits(older[start : start + _ARCHIVED_AT_ONCE], "")
                tombstones = known_tombstones(commits, tombstones)
    # An older replacement of a partition only affects tombstones that have already expired.
    overwritten = {partition: at for partition, at in tombstones.overwritten.items() if at >= since}
    return replace(tombstones, overwritten=overwritten).counting(now_ms)
