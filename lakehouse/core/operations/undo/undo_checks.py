"""What may be undone: the checks and the lists of files that rollback, savepoint and restore share."""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.core.operations.commit.pins import require_unpublished
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions, pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.restore import instants_to_roll_back, missing_files, without
from lakehouse.core.state.file_system_view import DataFile
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.commit import Operation, RollbackPlan, RollbackRequest
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.transaction import TransactionPolicy

_PENDING_NAMES = {
    Operation.COMPACT: Action.COMPACTION,
    Operation.LOG_COMPACT: Action.LOGCOMPACTION,
    Operation.CLUSTER: Action.CLUSTERING,
}
_SHOWN = 5


def plan_of_files(requested: str, action: Action, files: Iterable[str]) -> RollbackPlan:
    """Return the plan that deletes these files of an instant."""
    partitions: dict[str, set[str]] = {}
    for path in files:
        partitions.setdefault(path.rpartition("/")[0], set()).add(path)
    requests = tuple(
        RollbackRequest(partition=p, files=tuple(sorted(names))) for p, names in sorted(partitions.items())
    )
    return RollbackPlan(target=requested, action=str(action), requests=requests)


def written_by(requested: str, table: LoadedTable, partitions: Iterable[str] | None = None) -> list[str]:
    """Return the paths of all data files, change logs too, that bear this instant (of some partitions, or of all)."""
    return [f.path for f in list_data_files(table, partitions, change_logs=True) if f.instant == requested]


def pending_action(table: LoadedTable, instant: Instant) -> Action:
    """Return what a completed write was called while it was pending."""
    operation = table.store.commit(instant).operation
    return next((action for known, action in _PENDING_NAMES.items() if operation == known), instant.action)


def completed_write(table: LoadedTable, requested: str | None) -> Instant:
    """Return the completed write of this time, the newest if None; raise UserError naming what there is."""
    writes = table.timeline.writes()
    newest = writes.by_completion()
    found = newest[-1] if requested is None and newest else writes.find(requested or "")
    if found is None:
        known = ", ".join(instant.requested for instant in newest[-_SHOWN:]) or "none"
        if requested and archived_writes(table, requested_from=requested, requested_up_to=requested):
            raise UserError(
                f"{table.env.storage.root}: {requested} is archived, and only writes on the timeline can be gone back "
                f"to or kept; the newest are {known}",
                requested=requested,
            )
        raise UserError(
            f"{table.env.storage.root}: there is no completed write {requested}; the newest are {known}",
            requested=requested,
        )
    return found


def require_files(table: LoadedTable, undone: Iterable[Instant], what: str) -> list[DataFile]:
    """Return all data files; raise UserError naming one that readers need when `undone` are gone, and that is gone."""
    gone = [instant for instant in undone if instant.is_completed]
    timeline = without(table.timeline, gone)
    kept, away = table.store.commits(timeline.writes()), table.store.commits(gone)
    found = list_data_files(table)
    missing = missing_files(timeline, kept, away, found, layout=table.config.layout)
    if not missing:
        return found
    cleans = [i.requested for i in table.timeline.where(action=Action.CLEAN, state=State.COMPLETED)]
    blame = f"the clean {cleans[-1]} or one before it" if cleans else "a clean"
    raise UserError(
        f"{table.env.storage.root}: {what} needs {len(missing)} files that {blame} removed, such as {missing[0]}; go "
        "back to a later instant, or to a savepoint, whose files are kept",
        missing=missing,
    )


def require_no_savepoint(table: LoadedTable, undone: Iterable[Instant]) -> None:
    """Raise UserError naming the savepoint, if one keeps any of the instants that are to be undone."""
    gone = {instant.key: instant for instant in undone if instant.is_completed}
    for savepoint in sorted(table.timeline.savepoints()):
        target = table.timeline.writes().find(savepoint)
        if target is None:
            continue
        # That of a compaction that was requested early and stays keeps what completed before it did.
        later = instants_to_roll_back(table.timeline, target, merge_on_read=table.config.is_merge_on_read)
        kept = sorted(instant.requested for key, instant in gone.items() if key not in {i.key for i in later})
        if kept:
            root = table.env.storage.root
            named = savepoint if savepoint in kept else kept[0]
            raise UserError(
                f"{root}: a savepoint{'' if named == savepoint else f' of {savepoint}'} keeps {named}, so it cannot be "
                f"undone; restore to it, or delete it first with `lakehouse savepoint delete --table {root} --instant "
                f"{savepoint}`",
                instant=named,
            )


def require_can_roll_back(table: LoadedTable, policy: TransactionPolicy, instant: Instant, *, force: bool) -> None:
    """Raise if this write cannot be rolled back now: RetryableError for a living writer, UserError for the rest.

    In the way of a completed one are a savepoint, what completed after it, what builds on it, and files that are gone.
    """
    root, requested = table.env.storage.root, instant.requested
    if not instant.is_completed:
        if not force and requested in active_writes(table.env, policy):
            raise RetryableError(
                f"{root}: the writer of {requested} is alive; wait for it, or roll it back nevertheless with --force",
                instant=requested,
            )
        return
    require_no_savepoint(table, [instant])
    require_unpublished(table, [instant])
    newest = table.timeline.writes().by_completion()[-1]
    if newest.requested != requested:
        raise UserError(
            f"{root}: {newest.requested} completed after {requested}; the newest completed write alone can be rolled "
            f"back, so roll back what came after it first, or restore to the instant before it",
            newest=newest.requested,
        )
    _require_no_later_write(table, instant)
    require_files(table, [instant], f"the rollback of {requested}")


def _require_no_later_write(table: LoadedTable, instant: Instant) -> None:
    """Refuse to undo a completed write that a pending one may have read, or a plan may hold files of."""
    groups = {(stat.partition, stat.file_id) for stat in table.store.commit(instant).stats}
    held = {**pending_compactions(table), **pending_clustering(table)}
    plans = {held[group] for group in groups & held.keys() if held[group] > instant.completion}
    rivals = sorted({*plans, *(pending.requested for pending in pending_writes(table))})
    cleans = table.timeline.where(action=Action.CLEAN, pending=True)
    rivals += [clean.requested for clean in cleans if clean.requested > instant.requested]
    if rivals:
        root = table.env.storage.root
        raise UserError(
            f"{root}: {rivals[0]} is pending and builds on {instant.requested}; finish it or roll it back first (dead "
            f"writes with `lakehouse rollback failed --table {root}`), or restore to the instant before",
            pending=rivals,
        )
