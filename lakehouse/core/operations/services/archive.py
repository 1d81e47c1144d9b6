"""Archive: the oldest completed actions move from the active timeline to the archived timeline (TL-5.2, TL-5.3).

under the lock    <first>_<last>_0.parquet   manifest_<n+1>   _version_    then the files of the actions are deleted
                  files of the archived timeline are merged, and obsolete ones deleted
version 6         .commits_.archive.<n+1>_1-0-1    then the files of the actions are deleted

A crash can leave actions in both timelines, but never loses them. Readers then use the active timeline, and the next
run does not archive these actions twice.

Readers treat every file that is older than the active timeline as committed. Therefore a run that would archive actions
lists the table once. Leftover files of writes that a rollback or restore undid are deleted. Other files of instants
that are on no timeline are unexplained, so the archive stops before them.

An archive stores no plan on the timeline: `run` plans and executes in one step, and `schedule` returns NothingToDo.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.timeline.clean import decode_clean_plan
from lakehouse.core.operations.commit.archive_actions import DeletedFiles, bound_of_replaced
from lakehouse.core.operations.commit.cleanup import clean_up_ended_writes, delete_files
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.listing import list_columns
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.load.unnamed_files import has_old_log_names, undone, unnamed_instants
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.planning.archive import (
    ArchiveDue,
    Bound,
    bound_of_clean,
    bound_of_compaction,
    bound_of_leftovers,
    first_pending,
    plan_archive,
    too_few,
)
from lakehouse.core.planning.compaction import last_compaction
from lakehouse.core.state.data_files import data_files, file_paths, members
from lakehouse.core.state.file_system_view import first_write
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.archived_actions import move_to_archive
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import UnsupportedError
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

#: Undone actions whose log files, which have their instant in the name, contain no rows of other writes.
_NAMING_LOGS = (Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.LOGCOMPACTION)
#: Maximum number of actions that are archived while the lock is held once, because writers wait for it.
_BATCH = 500
#: Maximum number of timeline files per action: requested, inflight and completed.
_FILES_PER_ACTION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived(Readable):
    """The archived actions, oldest first; `kept` is the reason why the next action stays on the timeline."""

    instants: tuple[Instant, ...]
    kept: str

    @property
    def instant(self) -> Instant:
        """The newest archived instant."""
        return self.instants[-1]

    @property
    def totals(self) -> Totals:
        """The totals of the run. Archived actions are counted as files."""
        return Totals(files=len(self.instants))

    def _shown(self) -> Shown:
        span = f", {self.instants[0].requested} to {self.instants[-1].requested}" if self.instants else ""
        return Shown(f"archived: {count_text(len(self.instants), 'action')}{span}", {"kept": self.kept})


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> ArchiveDue:
    """Return whether an archive is due, and why; reads only the timeline up to `hoodie.keep.max.commits` commits."""
    del request
    planned = _plan(table, policies)
    commits, actions = len(table.timeline.writes()), len(planned.instants)
    reason = f"{actions} actions up to {planned.newest} can be archived" if actions else planned.kept
    return ArchiveDue(due=actions > 0, reason=reason, commits=commits, actions=actions)


def plan(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> ArchivePlan | NothingToDo:
    """Return the actions that would be archived now; writes nothing.

    `request.force` keeps `hoodie.keep.min.commits` only, even if no archive is due. Lists the table if actions would be
    archived.
    """
    planned = _plan(table, policies, force=request.force)
    if planned.instants:
        leftovers = _find_leftovers(table)
        planned = _plan(leftovers.table, policies, force=request.force, leftovers=leftovers.unexplained)
    if planned.instants:
        return planned
    few = too_few(table.timeline, policies.archive, policies.clean)
    code = NothingToDoReason.NO_CANDIDATES if request.force or few is None else NothingToDoReason.NOT_DUE
    return NothingToDo(code=code, reason=planned.kept)


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Return NothingToDo: an archive has no plan on the timeline."""
    del policies, request
    require_archive(table)
    return NothingToDo(
        code=NothingToDoReason.SINGLE_STEP,
        reason="archive stores no plan on the timeline; `run` plans and executes in one step",
    )


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return the cost of an archive for the table as loaded; the benefit is the number of deleted timeline files."""
    files = _FILES_PER_ACTION * len(_plan(table, policies, force=True).instants)
    return ServiceCost(files=files, benefit=files)


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Archived | NothingToDo:
    """Archive the oldest actions if due; `request.force` keeps `hoodie.keep.min.commits` only.

    Raises RetryableError if a restore is not finished or another process archives, and UnsupportedError for a version
    that is not archived.
    """
    del engine  # a few small files: this process reads them
    force = request.force
    require_archive(table)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    reason = too_few(table.timeline, policies.archive, policies.clean, force=force)
    if reason is not None:
        code = NothingToDoReason.NO_CANDIDATES if force else NothingToDoReason.NOT_DUE
        return NothingToDo(code=code, reason=reason)
    # Delete leftover files of failed writes first: readers cannot recognise them once the commits are archived.
    clean_up_ended_writes(table, policies.transaction)
    deleted, archived = DeletedFiles(), list[Instant]()
    planned = _plan(table, policies, force=force, deleted=deleted)
    leftovers = dict[str, str]()
    if planned.instants:
        # The listing takes long, so it is made without the lock. It is made again if a write was undone since.
        leftovers = _delete_failed(table, deleted)
    while True:
        with table_lock(table.env, policies.transaction) as lock:
            table = table.reload()
            table.store.refuse_during_restore(table.timeline)
            forced = force or bool(archived)
            planned = _plan(table, policies, force=forced, deleted=deleted, leftovers=leftovers)
            if planned.instants and _undone(table) - deleted.undone:
                leftovers |= _delete_failed(table, deleted)
                planned = _plan(table, policies, force=forced, deleted=deleted, leftovers=leftovers)
            if planned.instants:
                batch = planned.instants[:_BATCH]
                lock.check()
                _archive(table, policies, batch, lock)
                archived += batch
        if len(planned.instants) <= _BATCH:
            break
    stop = bound_of_leftovers(table.timeline, leftovers)
    if stop is not None and planned.kept == stop.reason:
        logger.warning("%s: the archive stopped: %s", table.env.storage.root, stop.reason)
    if not archived:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=planned.kept)
    logger.info("%s: archived %d actions up to %s", table.env.storage.root, len(archived), archived[-1].requested)
    return Archived(instants=tuple(archived), kept=planned.kept)


def _plan(
    table: LoadedTable,
    policies: Policies,
    *,
    force: bool = False,
    deleted: DeletedFiles | None = None,
    leftovers: Mapping[str, str] | None = None,
) -> ArchivePlan:
    """Return the actions to archive; `leftovers` are instants of unexplained files, each with one of its files."""
    require_archive(table)
    reason = too_few(table.timeline, policies.archive, policies.clean, force=force)
    if reason is not None:
        return ArchivePlan(instants=(), kept=reason)
    stop = bound_of_leftovers(table.timeline, leftovers or {})
    bounds = [*_bounds(table, policies), *([] if stop is None else [stop])]
    planned = plan_archive(table.timeline, policies.archive, policies.clean, bounds, force=force)
    bound = bound_of_replaced(table, planned.instants, deleted or DeletedFiles())
    if bound is None:
        return planned
    return plan_archive(table.timeline, policies.archive, policies.clean, [*bounds, bound], force=force)


def _archive(table: LoadedTable, policies: Policies, instants: tuple[Instant, ...], lock: TableLock) -> None:
    root, batch = table.env.storage.root, policies.archive.merge_batch
    move_to_archive(table.store, instants, root, lock.check, merge_batch=batch)


def _bounds(table: LoadedTable, policies: Policies) -> list[Bound]:
    """Return the bounds that depend on state outside of the active timeline."""
    timeline = table.timeline
    bounds = [bound_of_clean(timeline, _last_clean(table)), _bound_of_metadata_table(table), _bound_of_changes(table)]
    if table.config.is_merge_on_read:
        bounds.append(bound_of_compaction(timeline, policies.compaction))
    # A writer whose write was rolled back may still be active and create files. An active writer that has committed
    # looks for its commit on the active timeline before its cleanup.
    active = sorted(active_writes(table.env, policies.transaction))
    if active:
        bounds.append(Bound(requested=active[0], reason=f"the writer of {active[0]} is active"))
    return [bound for bound in bounds if bound is not None]


def _bound_of_changes(table: LoadedTable) -> Bound | None:
    """Return the first commit that completed after a pending write was requested, for a table without completion times.

    A writer of Hudi that has to find conflicts with the commit reads the active timeline only. The time of the last
    change of its file is the completion time of a commit in such tables (V6-2.4).
    """
    pending = None if table.config.layout.has_completion_times else first_pending(table.timeline)
    if pending is None:
        return None
    changed = table.store.modification_times()
    paths = [table.store.path_of(state) for state in table.store.pending_files(pending)]
    since = min((changed[path] for path in paths if path in changed), default=0)
    for commit in table.timeline.writes():
        if changed.get(table.store.path_of(commit), since) >= since:
            reason = f"{commit.requested} completed after the pending instant {pending.requested} was requested"
            return Bound(requested=commit.requested, reason=reason)
    return None


def _last_clean(table: LoadedTable) -> tuple[Instant, CleanPlan] | None:
    for instant in reversed(table.timeline.where(action=Action.CLEAN, state=State.COMPLETED).instants):
        data = table.store.read(instant, State.REQUESTED)
        if data:
            return instant, decode_clean_plan(data, base_path=table.env.storage.root)
    return None


def _bound_of_metadata_table(table: LoadedTable) -> Bound | None:
    """Return the first commit that the metadata table has not compacted yet. It must stay on the timeline (MDT-10.5).

    A log block of the metadata table is valid only while its commit is on one of the two timelines.
    """
    if not table.config.metadata_partitions:
        return None
    compaction = last_compaction(table.metadata.timeline_store.load())
    commits = table.timeline.writes()
    if compaction is None:
        first = next(iter(commits), None)
        reason = "the metadata table was not compacted yet"
        return None if first is None else Bound(requested=first.requested, reason=reason)
    last = compaction.requested
    later = [commit for commit in commits if commit.completion > last]
    return Bound(requested=later[0].requested, reason=f"the metadata table was compacted at {last}") if later else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leftovers:
    """Files of instants that are not on a timeline: requested time -> paths.

    Attributes:
        undone: Files of writes that a rollback or restore undid.
        unexplained: One file of each other instant that no reader shows yet.
        table: The table with a timeline that was loaded after the listing.
    """

    undone: Mapping[str, list[str]]
    unexplained: dict[str, str]
    table: LoadedTable


def _delete_failed(table: LoadedTable, deleted: DeletedFiles) -> dict[str, str]:
    """Delete leftover files of undone writes. Return one file per remaining instant that is on no timeline."""
    leftovers = _find_leftovers(table)
    for requested, paths in sorted(leftovers.undone.items()):
        delete_files(leftovers.table, requested, paths)
        logger.warning("%s: deleted %d leftover files of %s", table.env.storage.root, len(paths), requested)
    deleted.undone.update(_undone(leftovers.table))
    return leftovers.unexplained


def _find_leftovers(table: LoadedTable) -> _Leftovers:
    """List the table and return its leftover files, without files that readers show and that no rollback explains.

    The archive changes nothing for the latter; `lakehouse table validate` reports them.
    """
    files = data_files(list_columns(table))
    now = table.reload()
    boundary, actions = first_write(now.timeline), dict(undone(now))
    gone = actions.keys()
    # Older files are skipped without reading the archive, unless a rollback explains them.
    times = [time for time in pc.unique(files.column("instant")).to_pylist() if time >= boundary or time in gone]
    unnamed = unnamed_instants(now, times)
    if not unnamed.hidden and not unnamed.shown:
        return _Leftovers(undone={}, unexplained={}, table=now)
    files = files.filter(members(files.column("instant"), sorted(unnamed.hidden | unnamed.shown)))
    if has_old_log_names(now):
        # A log file may be named after the instant of its slice: a compaction, or an instant on no timeline.
        named = sorted(time for time, action in actions.items() if action in _NAMING_LOGS)
        is_own = members(files.column("instant"), pa.array(named, pa.string()))
        files = files.filter(pc.or_(is_own, pc.invert(files.column("is_log"))))
    paths: dict[str, list[str]] = {}
    for requested, path in zip(files.column("instant").to_pylist(), file_paths(files).to_pylist(), strict=True):
        paths.setdefault(requested, []).append(path)
    return _Leftovers(
        undone={requested: of_instant for requested, of_instant in paths.items() if requested in gone},
        unexplained={requested: of_instant[0] for requested, of_instant in paths.items() if requested not in gone},
        table=now,
    )


def _undone(table: LoadedTable) -> set[str]:
    """Return the instants that the rollbacks and restores on the timeline undid."""
    return {requested for requested, _ in undone(table)}


def require_archive(table: LoadedTable) -> None:
    """Raise UnsupportedError for a table whose timeline this package does not archive."""
    root = table.env.storage.root
    if not table.config.layout.archives:
        raise UnsupportedError(
            f"{root}: only Hudi can archive a timeline of table version {table.config.version}; upgrade the table with "
            "Hudi, or archive it there"
        )
    require_writable(table.config, root)
