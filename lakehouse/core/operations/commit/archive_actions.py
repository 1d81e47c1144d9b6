"""Checks before commits are archived, and the archive of a commit that stayed active for its savepoint (TL-5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.archive import Bound
from lakehouse.core.timeline.archived_actions import move_to_archive, read_archived_actions
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import UserError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.instant import Action, Instant


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """Writes whose files are known to be deleted; cached so that a repeated check does not list again.

    Attributes:
        replaced: Replacecommits whose replaced file groups have no files.
        undone: Undone writes whose files were searched.
    """

    replaced: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)


def archive_savepointed_commit(table: LoadedTable, requested: str, lock: TableLock) -> None:
    """Archive a commit that stayed on the active timeline only because of its savepoint; call under the lock.

    Call it before the savepoint is deleted. Otherwise the active timeline would begin with this commit, and readers
    would ignore the later commits, which are already archived.

    Raises:
        UserError: Files of file groups that the commit replaced still exist.
    """
    commit = table.timeline.find(requested)
    if commit is None or not archived_writes(table, requested_from=requested):
        return
    bound = bound_of_replaced(table, [commit], DeletedFiles())
    if bound is not None:
        raise UserError(f"{table.env.storage.root}: commits after {requested} are archived, and {bound.reason}")
    move_to_archive(table.store, [commit], table.env.storage.root, lock.check)


def read_actions(table: LoadedTable, instants: Iterable[Instant]) -> Iterator[ArchivedAction]:
    """Yield actions with the contents of their files; reads a few of them ahead."""
    return read_archived_actions(table.store, instants, table.env.storage.root)


def bound_of_replaced(table: LoadedTable, instants: Iterable[Instant], deleted: DeletedFiles) -> Bound | None:
    """Return the first commit with replaced file groups that still have files. The archive must stop before it.

    Once such a commit is archived, readers would see these files again. A clean may have failed to delete them, or
    kept them for a savepoint that was deleted since.
    """
    replacing = [i for i in instants if i.action is Action.REPLACECOMMIT and i.requested not in deleted.replaced]
    commits = table.store.summaries(replacing)
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
        deleted.replaced.add(instant.requested)
    return None
