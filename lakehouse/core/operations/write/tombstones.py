"""Remembered deletes in a write: which rows come too late, and what the next writes must know (see plan.tombstones).

stage     the batch is staged as ever
filter    rows older than a remembered delete are left out, and counted     nothing is read where there is none
write     the rest goes its way
remember  the deletes of the batch become a file; many small files become one
commit    names the files that count now; a write that committed meanwhile may have brought deletes that make rows of
          ours late: they are compared before the lock, and if there are any we lost, and try again
clean     files whose deletes are all forgotten are removed
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.tombstones import (
    KeptRun,
    KnownDeletes,
    count_late,
    drop_late,
    found_versions,
    may_be_late,
    merge_tombstones,
    write_tombstones,
)
from lakehouse.core.files.write_context import WriteContext
from lakehouse.core.format.log.delete_values import written_as
from lakehouse.core.index.bucket import bucket_of
from lakehouse.core.index.write_tasks import StagedRun, TagTask
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.planning.tombstones import (
    LATE_ROWS_KEY,
    LATEST_MS,
    TOMBSTONES,
    TOMBSTONES_KEY,
    TombstoneFile,
    Tombstones,
    added_files,
    decode_tombstones,
    encode_tombstones,
    files_to_merge,
    forgotten_at,
    known_tombstones,
    overwritten_partitions,
)
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.deletes import DeletePolicy

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ARCHIVED_AT_ONCE = 64
#: What a writer that looked just before a file was forgotten may need to read it.
_GRACE_MS = 3_600_000
_REMEMBERING = (Operation.UPSERT, Operation.DELETE)
_FILTERED = (Operation.UPSERT, Operation.INSERT)


def orders_deletes(table: LoadedTable, schema: pa.Schema) -> bool:
    """Return whether deletes can say an ordering value of the types in `schema`: delete blocks of logs hold not all."""
    try:
        for name in table.config.merge_rule.compared if table.config.is_merge_on_read else ():
            written_as(schema.field(name).type)
    except UnsupportedError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedDeletes:
    """What is left to write: runs without late rows, how many those were, the files of what the runs delete.

    `are_ordered`: keys to delete come with ordering values, their own or those of the versions that they found.
    """

    runs: Sequence[StagedRun] = ()
    late: int = 0
    files: tuple[TombstoneFile, ...] = ()
    are_ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedDeletes:
    """What one try of a write does about deletes; `known` is what commits told when its table was loaded."""

    table: LoadedTable
    engine: Engine
    context: WriteContext
    operation: Operation
    known: Tombstones
    now_ms: int
    retention_ms: int
    orders_deletes: bool

    def applied(self, runs: Sequence[StagedRun]) -> AppliedDeletes:
        """Return what is to be written of the staged runs, and the files of what they delete."""
        if self.operation is Operation.DELETE and not self.context.ordered_deletes and self.orders_deletes:
            ordering = replace(self, context=replace(self.context, ordered_deletes=True))
            found = self._found(runs)
            return AppliedDeletes(runs=found, late=0, files=ordering.remember(found), are_ordered=True)
        kept, late = self.in_order(runs)
        return AppliedDeletes(runs=kept, late=late, files=self.remember(kept), are_ordered=self.context.ordered_deletes)

    def _found(self, runs: Sequence[StagedRun]) -> tuple[StagedRun, ...]:
        """Return the versions that the keys to delete have in the table, as runs."""
        context, entries = self.context, [entry for run in runs for entry in run.entries]
        slices = load_slices(self.table, None if context.global_keys else sorted({e.partition for e in entries}))
        read = slice_context(self.table, context.schema, budget=context.policy.memory_budget_bytes)
        tasks = []
        for piece in slices:
            bucket = -1 if context.buckets is None else bucket_of(piece.file_id)
            mine = [e for e in entries if context.global_keys or (e.partition, e.bucket) == (piece.partition, bucket)]
            if mine:
                tasks.append(TagTask(bases=(), entries=tuple(mine), slices=(piece,)))
        found = self.engine.run(partial(found_versions, context, read), tasks, light=True)
        return tuple(run for run in found if run is not None)

    def in_order(self, runs: Sequence[StagedRun]) -> tuple[list[StagedRun], int]:
        """Return the runs without rows that are older than a remembered delete, and how many those were."""
        if self.operation not in _FILTERED or not self.known.files:
            return list(runs), 0
        told = KnownDeletes(known=self.known, now_ms=self.now_ms)
        asked: list[StagedRun] = []
        others: list[StagedRun] = []
        for run in runs:
            (asked if may_be_late(self.context, told, run) else others).append(run)
        kept: list[KeptRun] = (
            self.engine.run(partial(drop_late, self.context, told), asked, light=True) if asked else []
        )
        late = sum(found.late for found in kept)
        if late:
            logger.warning(
                "%s: %d rows are older than a delete of their key, and are left out", self.table.env.storage.root, late
            )
        return [*(found.run for found in kept), *others], late

    def remember(self, runs: Sequence[StagedRun]) -> tuple[TombstoneFile, ...]:
        """Write what the runs delete, and return the files; empty if they delete nothing with an ordering value."""
        if self.operation not in _REMEMBERING or (self.context.deletes_only and not self.context.ordered_deletes):
            return ()
        told = KnownDeletes(
            known=self.known, now_ms=self.now_ms, until_ms=min(self.now_ms + self.retention_ms, LATEST_MS)
        )
        deleting = [run for run in runs if self.context.deletes_only or any(entry.deletes for entry in run.entries)]
        return _made(self.engine.run(partial(write_tombstones, self.context, told), deleting, light=True))

    def extra(self, applied: AppliedDeletes, metadata: CommitMetadata) -> dict[str, str]:
        """Return what the commit says: the files that count after it, and how many rows came too late."""
        instant = Instant(requested=self.context.instant, action=_action(self.operation), state=State.INFLIGHT)
        overwritten = overwritten_partitions(instant, metadata)
        at = {partition: instant.requested for partition in overwritten or ()}
        known = replace(
            self.known,
            overwritten={**self.known.overwritten, **at},
            overwritten_all=instant.requested if overwritten is None else self.known.overwritten_all,
        ).counting(self.now_ms)
        newest = max((write.completion for write in self.table.timeline.writes()), default="")
        known = replace(known, up_to=newest, files=(*self._merged(known), *applied.files))
        told = {TOMBSTONES_KEY: encode_tombstones(known)}
        return told | ({LATE_ROWS_KEY: str(applied.late)} if applied.late else {})

    def makes_late(self, runs: Sequence[StagedRun], winner: Instant, metadata: CommitMetadata) -> bool:
        """Return whether deletes that another write committed since we looked make rows of ours late."""
        told = decode_tombstones(winner, metadata) if self.operation in _FILTERED else None
        added = () if told is None else added_files(told, winner)
        if told is None or not added:
            return False
        deletes = KnownDeletes(known=replace(told, files=added), now_ms=self.now_ms)
        asked = [run for run in runs if may_be_late(self.context, deletes, run)]
        return bool(asked) and any(self.engine.run(partial(count_late, self.context, deletes), asked, light=True))

    def _merged(self, known: Tombstones) -> tuple[TombstoneFile, ...]:
        """Return the files, small ones of which there are many merged into one."""
        groups = files_to_merge(known.files)
        if not groups:
            return known.files
        told = KnownDeletes(known=known, now_ms=self.now_ms)
        made = _made(self.engine.run(partial(merge_tombstones, self.context, told), groups))
        gone = {file.name for group in groups for file in group}
        return (*(file for file in known.files if file.name not in gone), *made)


def _made(files: Sequence[TombstoneFile | None]) -> tuple[TombstoneFile, ...]:
    return tuple(file for file in files if file is not None)


def _action(operation: Operation) -> Action:
    replaces = (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)
    return Action.REPLACECOMMIT if operation in replaces else Action.COMMIT


def remembered_deletes(
    table: LoadedTable, engine: Engine, policy: DeletePolicy, context: WriteContext, operation: Operation
) -> RememberedDeletes | None:
    """Return what a write does about deletes, None where they are not remembered."""
    if not policy.retention_ms:
        return None
    now_ms = table.env.clock.now_ms()
    return RememberedDeletes(
        table=table,
        engine=engine,
        context=context,
        operation=operation,
        known=load_tombstones(table, now_ms, policy.retention_ms),
        now_ms=now_ms,
        retention_ms=policy.retention_ms,
        orders_deletes=orders_deletes(table, context.schema),
    )


def load_tombstones(table: LoadedTable, now_ms: int, retention_ms: int) -> Tombstones:
    """Return the files of deletes that count now; as a rule the newest commit tells all of them.

    Commits older than the retention are not asked, and archived ones only where none on the timeline tells.
    """
    since = table.store.time_text(max(now_ms - retention_ms, 0))
    newest_first = tuple(reversed(table.timeline.writes().by_completion()))
    recent = [instant for instant in newest_first if instant.completion >= since]
    known = known_tombstones(((i, table.store.commit(i)) for i in recent), Tombstones())
    if not known.is_complete and len(recent) == len(newest_first):
        older = tuple(reversed(archived_writes(table, completed_after=since).by_completion()))
        for start in range(0, len(older), _ARCHIVED_AT_ONCE):
            if not known.is_complete or older[start].completion > known.up_to:
                found = table.store.archived_commits(older[start : start + _ARCHIVED_AT_ONCE], "")
                known = known_tombstones(found, known)
    # What was deleted before an older wipe is forgotten by now.
    overwritten = {partition: at for partition, at in known.overwritten.items() if at >= since}
    return replace(known, overwritten=overwritten).counting(now_ms)


def delete_expired_tombstones(table: LoadedTable) -> int:
    """Delete the files whose deletes are all forgotten, those that no commit names included; return how many."""
    storage, now_ms = table.env.storage, table.env.clock.now_ms()
    until = {name: forgotten_at(name) for name in storage.list_names(TOMBSTONES)}
    gone = [f"{TOMBSTONES}/{name}" for name, at in until.items() if at is not None and at + _GRACE_MS < now_ms]
    delete_leftovers(storage, gone)
    return len(gone)
