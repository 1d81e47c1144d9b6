"""Checks and file lists that rollback, savepoint and restore share."""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.core.format.file_names import instant_of
from lakehouse.core.operations.commit.pins import require_unpublished
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.named_logs import keeps_logs
from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions, pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.undo.slice_logs import Slices
from lakehouse.core.planning.restore import instants_to_roll_back, missing_files, without
from lakehouse.core.planning.undone_copies import without_undone_copies
from lakehouse.core.state.file_system_view import DataFile, first_write
from lakehouse.core.timeline.file_deletions import LOG_INFIX
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import RetryableError, UnsupportedError, UserError
from lakehouse.model.commit import CommitMetadata, Operation, RollbackPlan, RollbackRequest
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy

_PENDING_NAMES = {
    Operation.COMPACT: Action.COMPACTION,
    Operation.LOG_COMPACT: Action.LOGCOMPACTION,
    Operation.CLUSTER: Action.CLUSTERING,
}
_COMPACTIONS = (Action.COMPACTION, Action.COMMIT)
_SHOWN = 5


# parameters: the instant, its files, and the slices of its log files
def plan_of_files(requested: str, action: Action, files: Iterable[str], slices: Slices | None = None) -> RollbackPlan:
    """Build the rollback plan that deletes these files of an instant, and appends command blocks to `slices`."""
    partitions: dict[str, set[str]] = {}
    for path in files:
        partitions.setdefault(path.rpartition("/")[0], set()).add(path)
    requests = tuple(
        RollbackRequest(partition=p, files=tuple(sorted(names))) for p, names in sorted(partitions.items())
    )
    appended = tuple(
        RollbackRequest(partition=partition, file_id=file_id, base_instant=base_instant, logs=logs)
        for (partition, file_id, base_instant), logs in sorted((slices or {}).items())
    )
    return RollbackPlan(target=requested, action=str(action), requests=(*requests, *appended))


# parameters: the instant, the location of its files, and the kind of files to return
def written_by(
    requested: str,
    table: LoadedTable,
    action: Action,
    partitions: Iterable[str] | None = None,
    *,
    copies: bool = False,
) -> list[str]:
    """List the partitions (None means all), and return the paths of all data files and change logs of an instant.

    Args:
        requested: The requested time of the instant, which the names of its files contain.
        table: The loaded table.
        action: The action of the instant while it is pending. Logs that are named after a compaction or a clustering
            contain rows of other writes, so only the base files belong to such an instant.
        partitions: The partitions to list.
        copies: Include the logs to which writes copied rows for a bucket resize; they are named after it.
    """
    files = [file for file in list_data_files(table, partitions, change_logs=True) if file.instant == requested]
    if action is Action.COMPACTION or (action is Action.CLUSTERING and not copies):
        files = [file for file in files if isinstance(file, BaseFile)]
    return [file.path for file in files]


def require_own_logs(table: LoadedTable, undone: Iterable[Instant], *, dropped: Iterable[Instant] = ()) -> None:
    """Raise UnsupportedError if undoing these instants requires changes to log files with version 6 names.

    Such a log file may contain rows of several writes, so it cannot be deleted with one of them. `dropped` are instants
    whose plans are deleted: without a compaction readers do not find the log files that are named after it.
    """
    if not table.config.is_merge_on_read or not (table.config.is_upgraded or keeps_logs(table)):
        return
    gone, plans = {i.requested for i in undone}, {i.requested for i in dropped if i.action in _COMPACTIONS}
    if keeps_logs(table):
        _require_no_named_logs(table, plans)
        return
    for write, metadata in reversed(table.store.commits(table.timeline.writes().by_completion())):
        for path in (stat.path for stat in metadata.stats if LOG_INFIX in stat.path):
            named = instant_of(path.rpartition("/")[2]) or ""
            if named == write.requested or _is_resize(table, named):
                continue
            if write.requested in gone:
                raise UnsupportedError(
                    f"{table.env.storage.root}: the {write.action} {write.requested} cannot be undone: {path} has a "
                    "name of table version 6 and may have rows of other writes, so it cannot be deleted. Undo only "
                    "later writes, or restore the table with Apache Hudi",
                    instant=write.requested,
                    path=path,
                )
            if named in plans:
                raise UnsupportedError(
                    f"{table.env.storage.root}: the compaction {named} cannot be dropped: {path} is named after it, as "
                    f"in table version 6, and readers would lose the rows of {write.requested} in it. Run the "
                    "compaction first",
                    instant=named,
                    path=path,
                )


def _require_no_named_logs(table: LoadedTable, plans: Iterable[str]) -> None:
    """Raise UnsupportedError if a log file is named after a compaction whose plan is dropped.

    Command blocks roll back the log files of writes. But without the plan, these log files would be a slice without
    base file, even if all their rows are rolled back.
    """
    for plan in sorted(plans):
        named = [path for path in written_by(plan, table, Action.COMMIT) if LOG_INFIX in path]
        if named:
            raise UnsupportedError(
                f"{table.env.storage.root}: the compaction {plan} cannot be dropped: {named[0]} is named after it, and "
                "readers would lose its rows. Run the compaction first",
                instant=plan,
                path=named[0],
            )


def _is_resize(table: LoadedTable, requested: str) -> bool:
    """Return whether log files with this time in their names contain rows that writes copied for a bucket resize."""
    named = table.timeline.find(requested)
    if named is None:
        return requested >= first_write(table.timeline)
    return named.action in (Action.CLUSTERING, Action.REPLACECOMMIT)


def pending_action(table: LoadedTable, instant: Instant) -> Action:
    """Return the action that a completed write had while it was pending."""
    operation = table.store.summary(instant).operation
    return next((action for completed, action in _PENDING_NAMES.items() if operation == completed), instant.action)


def completed_write(table: LoadedTable, requested: str | None) -> Instant:
    """Return the completed write `requested`, the newest one for None; raise UserError if it is missing."""
    writes = table.timeline.writes()
    newest = writes.by_completion()
    write = newest[-1] if requested is None and newest else writes.find(requested or "")
    if write is None:
        shown = ", ".join(instant.requested for instant in newest[-_SHOWN:]) or "none"
        if requested and archived_writes(table, requested_from=requested, requested_up_to=requested):
            raise UserError(
                f"{table.env.storage.root}: {requested} is archived; only writes on the active timeline can be "
                f"restored or kept; the newest are {shown}",
                requested=requested,
            )
        raise UserError(
            f"{table.env.storage.root}: there is no completed write {requested}; the newest are {shown}",
            requested=requested,
        )
    return write


def require_files(table: LoadedTable, undone: Iterable[Instant], what: str) -> list[DataFile]:
    """Return all data files; raise UserError if a file that readers need without the `undone` writes is missing."""
    gone = [instant for instant in undone if instant.is_completed]
    timeline = without(table.timeline, gone)
    files = list_data_files(table)
    remaining, away = remaining_commits(table, timeline, files), table.store.commits(gone)
    missing = missing_files(timeline, remaining, away, files, layout=table.config.layout)
    if not missing:
        return files
    cleans = [i.requested for i in table.timeline.where(action=Action.CLEAN, state=State.COMPLETED)]
    blame = f"the clean {cleans[-1]} or one before it" if cleans else "a clean"
    raise UserError(
        f"{table.env.storage.root}: {what} needs {len(missing)} files that {blame} removed, such as {missing[0]}; go "
        "back to a later instant, or to a savepoint, whose files are kept",
        missing=missing,
    )


def remaining_commits(
    table: LoadedTable, timeline: Timeline, listing: Iterable[DataFile]
) -> list[tuple[Instant, CommitMetadata]]:
    """Return the completed writes of a timeline, with the files that they list and that readers may need."""
    commits = table.store.commits(timeline.writes())
    # A log file of version 6 is named after the base instant of its slice, which may be on no timeline.
    is_named = table.config.is_upgraded or keeps_logs(table)
    return list(commits) if is_named else without_undone_copies(commits, timeline, listing)


def require_no_savepoint(table: LoadedTable, undone: Iterable[Instant]) -> None:
    """Raise UserError if a savepoint keeps one of the instants in `undone`; the message names it."""
    gone = {instant.key: instant for instant in undone if instant.is_completed}
    for savepoint in sorted(table.timeline.savepoints()):
        target = table.timeline.writes().find(savepoint)
        if target is None:
            continue
        # The savepoint of a compaction keeps all writes that completed before the compaction completed.
        later = instants_to_roll_back(table.timeline, target, merge_on_read=table.config.is_merge_on_read)
        savepoints = sorted(instant.requested for key, instant in gone.items() if key not in {i.key for i in later})
        if savepoints:
            root = table.env.storage.root
            named = savepoint if savepoint in savepoints else savepoints[0]
            raise UserError(
                f"{root}: a savepoint{'' if named == savepoint else f' of {savepoint}'} keeps {named}, so it cannot be "
                f"undone; restore to it, or delete it first with `lakehouse savepoint delete --table {root} --instant "
                f"{savepoint}`",
                instant=named,
            )


def require_can_roll_back(table: LoadedTable, policy: TransactionPolicy, instant: Instant, *, force: bool) -> None:
    """Raise an error if this write cannot be rolled back now.

    Raises:
        RetryableError: The write is pending, and its writer is active (unless `force`).
        UserError: The write is completed, and a savepoint or publication keeps it, another write completed after it, a
            pending instant depends on it, or files that the table needs without it are missing.
    """
    root, requested = table.env.storage.root, instant.requested
    if not instant.is_completed:
        if not force and requested in active_writes(table.env, policy):
            raise RetryableError(
                f"{root}: the write {requested} is active; wait for it, or roll it back with --force",
                instant=requested,
            )
        return
    require_no_savepoint(table, [instant])
    require_unpublished(table, [instant])
    newest = table.timeline.writes().by_completion()[-1]
    if newest.requested != requested:
        raise UserError(
            f"{root}: {newest.requested} completed after {requested}; only the newest completed write can be rolled "
            f"back, so roll back the later writes first, or restore to the instant before it",
            newest=newest.requested,
        )
    _require_no_later_write(table, instant)
    require_files(table, [instant], f"the rollback of {requested}")


def _require_no_later_write(table: LoadedTable, instant: Instant) -> None:
    """Raise UserError if a pending write may have read the completed write, or a plan may contain its files."""
    groups = {(stat.partition, stat.file_id) for stat in table.store.commit(instant).stats}
    held = {**pending_compactions(table), **pending_clustering(table)}
    plans = {held[group] for group in groups & held.keys() if held[group] > instant.completion}
    rivals = sorted({*plans, *(pending.requested for pending in pending_writes(table))})
    cleans = table.timeline.where(action=Action.CLEAN, pending=True)
    rivals += [clean.requested for clean in cleans if clean.requested > instant.requested]
    if rivals:
        root = table.env.storage.root
        raise UserError(
            f"{root}: {rivals[0]} is pending and depends on {instant.requested}; finish it or roll it back first "
            f"(failed writes with `lakehouse rollback failed --table {root}`), or restore to the instant before",
            pending=rivals,
        )
