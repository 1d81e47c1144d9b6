"""Archive: due, plan, run (TL-5.2, TL-5.3).

under the lock    <first>_<last>_0.parquet   manifest_<n+1>   _version_    then their files leave the timeline
                  levels of the archive merged, what no reader needs of it removed

A crash leaves actions in both places, never in none: readers take them from the timeline, and the next archive does not
write them again. Files of archived commits count by their age alone, so before commits leave, those of failed writes
among them are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from lakehouse.core.format.file_names import LAYOUT_V6, parse_instant
from lakehouse.core.format.timeline.clean import decode_clean_plan
from lakehouse.core.format.timeline.restore import decode_restore_plan
from lakehouse.core.operations.commit.cleanup import delete_files, stored_plan, sweep
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.archive import (
    ArchiveDue,
    Bound,
    bound_of_clean,
    bound_of_compaction,
    plan_archive,
    too_few,
)
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.archived_timeline import History
from lakehouse.core.timeline.heartbeat import living_writes
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import RetryableError, UnsupportedError, UserError
from lakehouse.model.archive import ArchivedAction, ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

_READERS = 8
#: Actions that one hold of the lock archives: writers wait meanwhile.
_BATCH = 500
_PLANNED = frozenset({Action.CLEAN, Action.COMPACTION, Action.LOGCOMPACTION})
_REPLACING = frozenset({Action.REPLACECOMMIT, Action.CLUSTERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The actions that left the timeline; `kept` says why no more of them did."""

    instants: tuple[Instant, ...]
    kept: str


@dataclass(frozen=True, slots=True)
class _Gone:
    """What was listed and found gone, and stays so: listing takes long, and writers wait for who holds the lock.

    `replaced` are writes of whose replaced groups no file is left, `undone` undone ones that left none.
    """

    replaced: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)


def due(table: LoadedTable, policies: Policies) -> ArchiveDue:
    """Return whether an archive is due now, and why; up to `hoodie.keep.max.commits` from the timeline alone."""
    _require_archive(table)
    found = propose(table, policies)
    commits, archivable = len(table.timeline.writes()), len(found.instants)
    reason = f"{archivable} actions up to {found.newest} may leave the timeline" if archivable else found.kept
    return ArchiveDue(due=archivable > 0, reason=reason, commits=commits, actions=archivable)


def propose(table: LoadedTable, policies: Policies, *, force: bool = False, gone: _Gone | None = None) -> ArchivePlan:
    """Return what would be archived now; writes nothing."""
    _require_archive(table)
    reason = too_few(table.timeline, policies.archive, policies.clean, force=force)
    if reason is not None:
        return ArchivePlan(instants=(), kept=reason)
    bounds = _bounds(table, policies)
    found = plan_archive(table.timeline, policies.archive, policies.clean, bounds, force=force)
    kept = _bound_of_replaced(table, found.instants, gone or _Gone())
    if kept is None:
        return found
    return plan_archive(table.timeline, policies.archive, policies.clean, [*bounds, kept], force=force)


def run(table: LoadedTable, policies: Policies, *, force: bool = False) -> Archived | NothingToDo:
    """Archive what is due (with `force`, all but `hoodie.keep.min.commits`).

    Raises RetryableError if a restore is not finished or another archiver is at work, UnsupportedError for version 6.
    """
    _require_archive(table)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    reason = too_few(table.timeline, policies.archive, policies.clean, force=force)
    if reason is not None:
        return NothingToDo(reason=reason)
    # What writers that died left beside commits: once these are archived nobody can tell whose files are not named.
    sweep(table, policies.transaction)
    gone, taken = _Gone(), list[Instant]()
    found = propose(table, policies, force=force, gone=gone)
    if found.instants:
        _delete_failed(table, found.newest, gone)
    while True:
        with table_lock(table.env, policies.transaction) as lock:
            table = table.reload()
            table.store.refuse_during_restore(table.timeline)
            found = propose(table, policies, force=force or bool(taken), gone=gone)
            if found.instants:
                batch = found.instants[:_BATCH]
                lock.check()
                _delete_failed(table, batch[-1].requested, gone)
                _archive(table, policies, batch, lock)
                taken += batch
        if len(found.instants) <= _BATCH:
            break
    if not taken:
        return NothingToDo(reason=found.kept)
    logger.info("%s: archived %d actions up to %s", table.env.storage.root, len(taken), taken[-1].requested)
    return Archived(instants=tuple(taken), kept=found.kept)


def archive_kept(table: LoadedTable, requested: str, lock: TableLock) -> None:
    """Archive a commit that its savepoint alone kept on the timeline, before that is deleted; call under the lock.

    Without its savepoint the timeline would begin with it, and all that was archived after it would not count any more.
    Raises UserError if it replaced file groups of which files are still there.
    """
    kept = table.timeline.find(requested)
    if kept is None or not archived_writes(table, requested_from=requested):
        return
    bound = _bound_of_replaced(table, [kept], _Gone())
    if bound is not None:
        raise UserError(f"{table.env.storage.root}: commits after {requested} are archived, and {bound.reason}")
    _move(table, [kept], lock)


def _archive(table: LoadedTable, policies: Policies, instants: tuple[Instant, ...], lock: TableLock) -> None:
    history = _move(table, instants, lock)
    merges = history.merge(policies.archive.merge_batch, lock.check)
    lock.check()
    history.clean(merges)


def _move(table: LoadedTable, instants: Sequence[Instant], lock: TableLock) -> History:
    history = table.store.history
    assert history is not None, "layout 1 is refused before"
    history.settle(lock.check)
    known = {(i.key, i.completed) for i in history.instants(requested_from=instants[0].requested)}
    fresh = [instant for instant in instants if (instant.key, instant.completed) not in known]
    if fresh:
        history.append(_actions(table, fresh), fresh[0].requested, fresh[-1].requested, lock.check)
    table.store.remove_archived(instants, lock.check)
    return history


def _actions(table: LoadedTable, instants: Iterable[Instant]) -> Iterator[ArchivedAction]:
    """Yield actions with what their files hold; a few are read ahead."""
    with ThreadPoolExecutor(_READERS) as pool:
        wanted = list(instants)
        for start in range(0, len(wanted), _READERS):
            yield from pool.map(partial(_action, table), wanted[start : start + _READERS])


def _action(table: LoadedTable, instant: Instant) -> ArchivedAction:
    store = table.store
    pending = store.pending_files(instant)
    plan = None
    # As Hudi has it: the plan, or of a replacecommit what its inflight file says, if that says anything.
    for state in pending:
        if state.action in _REPLACING or (state.action in _PLANNED and state is pending[0]):
            plan = store.read(state, state.state) or plan
    metadata = store.read(instant, State.COMPLETED)
    if metadata is None:
        raise RetryableError(
            f"{table.env.storage.root}: {instant.requested} was archived by somebody else meanwhile; run again",
            instant=instant.requested,
        )
    return ArchivedAction(instant=instant, metadata=metadata, plan=plan)


def _bounds(table: LoadedTable, policies: Policies) -> list[Bound]:
    """Return the bounds that take more to know than the timeline says."""
    timeline = table.timeline
    found = [bound_of_clean(timeline, _last_clean(table)), _bound_of_metadata_table(table)]
    if table.config.is_merge_on_read:
        found.append(bound_of_compaction(timeline, policies.compaction))
    # One that was rolled back while its writer was alive may yet write files, of a time before all that stays; and one
    # that is about to tidy up after its commit finds that on the timeline.
    living = sorted(living_writes(table.env, policies.transaction))
    if living:
        found.append(Bound(requested=living[0], reason=f"the writer of {living[0]} is alive"))
    return [bound for bound in found if bound is not None]


def _last_clean(table: LoadedTable) -> tuple[Instant, CleanPlan] | None:
    for instant in reversed(table.timeline.where(action=Action.CLEAN, state=State.COMPLETED).instants):
        data = table.store.read(instant, State.REQUESTED)
        if data:
            return instant, decode_clean_plan(data, base_path=table.env.storage.root)
    return None


def _bound_of_metadata_table(table: LoadedTable) -> Bound | None:
    """Return the bound of a table with a metadata table: what that one has not compacted yet stays, as Hudi has it."""
    if not table.config.metadata_partitions:
        return None
    files, _ = table.env.storage.list_dir(".hoodie/metadata/.hoodie/timeline")
    instants = [instant for file in files if (instant := parse_instant(file.name)) is not None]
    compacted = [i.requested for i in instants if i.action is Action.COMMIT and i.is_completed]
    commits = table.timeline.writes()
    if not compacted:
        first = next(iter(commits), None)
        return (
            None
            if first is None
            else Bound(requested=first.requested, reason="the metadata table was not compacted yet")
        )
    last = max(compacted)
    later = [commit for commit in commits if commit.completion > last]
    return Bound(requested=later[0].requested, reason=f"the metadata table was compacted at {last}") if later else None


def _bound_of_replaced(table: LoadedTable, instants: Iterable[Instant], gone: _Gone) -> Bound | None:
    """Return the first of some commits that replaced groups of which files are there; they would come back without it.

    A clean may have failed to delete them, or spared them for a savepoint that is gone.
    """
    replacing = [i for i in instants if i.action is Action.REPLACECOMMIT and i.requested not in gone.replaced]
    commits = table.store.commits(replacing)
    partitions = sorted({partition for _, metadata in commits for partition in metadata.replaced})
    if not partitions:
        return None
    groups = {(file.partition, file.file_id) for file in list_data_files(table, partitions)}
    for instant, metadata in commits:
        for partition, file_ids in metadata.replaced.items():
            if any((partition, file_id) in groups for file_id in file_ids):
                reason = (
                    f"files that {instant.requested} replaced in {partition!r} are still there; a clean removes them"
                )
                return Bound(requested=instant.requested, reason=reason)
        gone.replaced.add(instant.requested)
    return None


def _delete_failed(table: LoadedTable, newest: str, gone: _Gone) -> None:
    """Delete what writes undone up to the time `newest` left: it would count once the timeline begins later."""
    there = {instant.requested for instant in table.timeline}
    undone = {requested for requested in _undone(table) if requested <= newest} - there - gone.undone
    if undone:
        # A plan that was rolled back may have been carried out after all, and be archived by now.
        undone -= {i.requested for i in archived_writes(table, requested_from=min(undone), requested_up_to=max(undone))}
    if not undone:
        return
    left: dict[str, list[str]] = {}
    for file in list_data_files(table, change_logs=True):
        if file.instant in undone:
            left.setdefault(file.instant, []).append(file.path)
    for requested, paths in sorted(left.items()):
        delete_files(table, requested, paths)
        logger.warning("%s: deleted %d files that %s had left", table.env.storage.root, len(paths), requested)
    gone.undone.update(undone)


def _undone(table: LoadedTable) -> set[str]:
    """Return the instants that the rollbacks and restores on the timeline undid."""
    undone = set()
    for instant in table.timeline.where(action=Action.ROLLBACK):
        plan = stored_plan(table, instant)
        if plan is not None:
            undone.add(plan.target)
    for instant in table.timeline.where(action=Action.RESTORE):
        data = table.store.read(replace(instant, state=State.REQUESTED), State.REQUESTED)
        undone |= {requested for requested, _ in decode_restore_plan(data).instants} if data else set()
    return undone


def _require_archive(table: LoadedTable) -> None:
    root = table.env.storage.root
    if table.config.layout == LAYOUT_V6:
        raise UnsupportedError(
            f"{root}: timelines of version {table.config.version} are archived by Hudi alone; upgrade the table with "
            "Hudi, or archive it there"
        )
    require_writable(table.config, root)
