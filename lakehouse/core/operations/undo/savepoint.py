"""Create and delete savepoints; cleans and rollbacks keep the commit of a savepoint (TL-4.8, TL-7.5).

T.savepoint.inflight   T_C.savepoint      T is the requested time of the commit; deleted in the opposite order
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from lakehouse.core.format.timeline.restore import encode_savepoint
from lakehouse.core.operations.commit.archive_actions import archive_savepointed_commit
from lakehouse.core.operations.commit.completion import Completion, complete_action
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.load.unnamed_files import has_old_log_names, unnamed_instants
from lakehouse.core.operations.undo.undo_checks import completed_write, remaining_commits, require_files
from lakehouse.core.planning.restore import instants_to_roll_back, slice_paths, slices_after, without
from lakehouse.core.state.file_system_view import DataFile, first_write
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.restore import Savepoint, SavepointMetadata
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)


# parameters: the arguments of the public verb
def create_savepoint(
    table: LoadedTable,
    policy: TransactionPolicy,
    requested: str | None = None,
    *,
    user: str = "",
    comment: str = "",
    dry_run: bool = False,
) -> Savepoint | NothingToDo:
    """Create a savepoint of a completed write.

    Args:
        table: The loaded table.
        policy: The options of the table lock.
        requested: The requested time of the write; None for the newest one.
        user: The user that the savepoint records.
        comment: A comment that the savepoint records.
        dry_run: Return the savepoint, and write nothing.

    Raises:
        UserError: There is no such write, or a clean removed some of its files.
        RetryableError: A clean is pending.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    target = completed_write(table, requested)
    if target.requested in table.timeline.savepoints():
        return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=f"a savepoint keeps {target.requested} already")
    files = _kept_files(table, target)
    metadata = SavepointMetadata(user=user, comment=comment, at_ms=table.env.clock.now_ms(), files=files)
    instant = Instant(requested=target.requested, action=Action.SAVEPOINT, state=State.INFLIGHT)
    if dry_run:
        return Savepoint(instant=instant, metadata=metadata)
    with table_lock(table.env, policy) as lock:
        now = table.reload()
        now.store.refuse_during_restore(now.timeline)
        if now.timeline.current(target) != target or instant.requested in now.timeline.savepoints():
            raise _overtaken(table, target)
        _refuse_during_clean(now)
        if now.timeline.where(action=Action.CLEAN) != table.timeline.where(action=Action.CLEAN):
            metadata = replace(metadata, files=_kept_files(now, target))
        lock.check()
        started = now.store.start(instant, b"")
        timeline = now.store.load()
        if timeline.current(target) != target:
            # Another process took the lock over and archived or undid the write before the pending savepoint existed.
            now.store.remove_pending(started)
            raise _overtaken(table, target)
        completed = complete_action(
            now, Completion(instant=started, timeline=timeline, data=encode_savepoint(metadata)), lock
        )
    count = sum(map(len, metadata.files.values()))
    logger.info("%s: savepoint of %s, %d files", table.env.storage.root, target.requested, count)
    return Savepoint(instant=completed, metadata=metadata)


def _overtaken(table: LoadedTable, target: Instant) -> RetryableError:
    return RetryableError(
        f"{table.env.storage.root}: {target.requested} was undone, archived or kept by another process meanwhile; "
        "check the timeline, then run again",
        instant=target.requested,
    )


def delete_savepoint(
    table: LoadedTable, policy: TransactionPolicy, requested: str, *, dry_run: bool = False
) -> Instant:
    """Delete the pending or completed savepoint of a commit. Cleans then treat its files like all others.

    Raises UserError if there is no such savepoint; the message lists the existing ones.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    with table_lock(table.env, policy) as lock:
        now = table.reload()
        now.store.refuse_during_restore(now.timeline)
        for instant in now.timeline.where(action=Action.SAVEPOINT):
            if instant.requested == requested:
                break
        else:
            names = ", ".join(sorted(now.timeline.savepoints())) or "none"
            raise UserError(f"{table.env.storage.root}: no savepoint keeps {requested}; savepoints: {names}")
        if not dry_run:
            archive_savepointed_commit(now, requested, lock)
            lock.check()
            now.store.remove(instant)
    if not dry_run:
        logger.info("%s: deleted the savepoint of %s", table.env.storage.root, requested)
    return instant


def _kept_files(table: LoadedTable, target: Instant) -> dict[str, tuple[str, ...]]:
    """Return, by partition, the file names of the newest slices, which a restore to `target` keeps."""
    undone = instants_to_roll_back(table.timeline, target, merge_on_read=table.config.is_merge_on_read)
    present = require_files(table, undone, f"a savepoint of {target.requested}")
    _require_no_leftovers(table, target, present)
    timeline = without(table.timeline, undone)
    remaining = remaining_commits(table, timeline, present)
    partitions: dict[str, list[str]] = {}
    for file_slice in slices_after(timeline, remaining, present, layout=table.config.layout):
        names = [path.rpartition("/")[2] for path in slice_paths(file_slice)]
        partitions.setdefault(file_slice.partition, []).extend(names)
    return {partition: tuple(names) for partition, names in sorted(partitions.items())}


def _require_no_leftovers(table: LoadedTable, target: Instant, listing: Iterable[DataFile]) -> None:
    """Raise UserError if the savepoint would make leftover files of failed writes visible.

    Readers show all files that are older than the first commit without savepoint. A savepoint of that commit moves the
    boundary to the next one.
    """
    savepoint = replace(target, action=Action.SAVEPOINT)
    before, after = (first_write(timeline) for timeline in (table.timeline, Timeline((*table.timeline, savepoint))))
    between = [file for file in listing if before < file.instant < after]
    hidden = unnamed_instants(table, {file.instant for file in between}).hidden
    # A log file of version 6 is named after the base instant of its slice, which may be on no timeline.
    only_bases = bool(hidden) and has_old_log_names(table)
    files = {f.instant: f.path for f in between if f.instant in hidden and (isinstance(f, BaseFile) or not only_bases)}
    leftovers = sorted(files)
    if leftovers:
        root = table.env.storage.root
        raise UserError(
            f"{root}: no write {leftovers[0]} exists, and readers would show the rows of its leftover file "
            f"{files[leftovers[0]]} if a savepoint kept {target.requested}, the oldest commit; delete the file first, "
            f"once it is old enough, with `lakehouse clean orphans --table {root} --delete`, or keep a later commit",
            instant=leftovers[0],
            path=files[leftovers[0]],
        )


def _refuse_during_clean(table: LoadedTable) -> None:
    cleans = table.timeline.where(action=Action.CLEAN, pending=True)
    for clean in cleans:
        raise RetryableError(
            f"{table.env.storage.root}: the clean {clean.requested} is pending and may remove files that the savepoint "
            "has to keep; try again when it is done",
            instant=clean.requested,
        )
