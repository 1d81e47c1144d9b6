"""Find and delete orphan files: data files that no instant on the timeline lists, found by listing the whole table.

Files are listed before the timeline is loaded, and a write is on the timeline before it creates files. Therefore a
listed file whose write is not on the loaded timeline belongs to a write that was undone.

Other programs may write files by unknown rules. If they write the table, orphans are only reported, unless an option
demands their deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.format.file_names import parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.operations.load.listing import own_files
from lakehouse.core.operations.load.other_programs import other_program
from lakehouse.core.operations.load.pending import planned_groups
from lakehouse.core.operations.load.savepoints import savepointed_paths
from lakehouse.core.operations.load.slices import groups_of, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.orphans import Found, Needs, Orphan, committed_paths, needed_paths, plan_orphans
from lakehouse.core.planning.restore import SERVICE_ACTIONS
from lakehouse.core.state.data_files import file_paths, files_table
from lakehouse.core.state.file_system_view import Group, visible_timeline
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.storage.nested_tables import HOODIE
from lakehouse.core.storage.protocol import FileInfo, is_temporary
from lakehouse.core.timeline.file_deletions import delete_data_files, foreign_directories
from lakehouse.errors import UserError
from lakehouse.model.display import count_text, size_text
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action
from lakehouse.spec.options.clean import ORPHANS_SHARED, CleanPolicy

logger = logging.getLogger(__name__)
_LISTERS = 8
_HOUR_MS = 3_600_000


def find_orphans(table: LoadedTable, policy: CleanPolicy) -> tuple[Orphan, ...]:
    """Return the orphan files that are older than the policy's grace time and that no retained instant needs.

    Files of tables inside the table's folder are ignored. So are files behind symbolic links, if the storage follows
    links; they are logged. Raises RetryableError during a restore.
    """
    require_writable(table.config, table.env.storage.root)
    files = _reachable(table, list(files_of_hudi(list_files(table))))
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    return orphans_among(table, files, older_than_ms=table.env.clock.now_ms() - policy.orphan_hours * _HOUR_MS)


def orphans_among(table: LoadedTable, listing: Sequence[Found], *, older_than_ms: int) -> tuple[Orphan, ...]:
    """Return the orphans among the listed files of the table that were modified before `older_than_ms` (UTC).

    The timeline of `table` must be newer than the listing.
    """
    candidates = plan_orphans(
        listing,
        table.timeline,
        table.store.commit,
        archived_before=visible_timeline(table.timeline, ()).archived_before,
        protected=savepointed_paths(table),
        older_than_ms=older_than_ms,
    )
    suspected = {candidate.path for candidate in candidates}
    suspects = [file.data for file in listing if file.path in suspected and file.data is not None]
    if not suspects:
        return candidates
    needed = needed_paths(suspects, _needs(table, listing, {(file.partition, file.file_id) for file in suspects}))
    return tuple(candidate for candidate in candidates if candidate.path not in needed)


def remove_orphans(table: LoadedTable, policy: CleanPolicy) -> tuple[Orphan, ...]:
    """Delete the orphan files that are older than the policy's grace time, and return them.

    Raises UserError, and deletes nothing, if other programs write the table and the policy does not allow it.
    """
    orphans = find_orphans(table, policy)
    refusal = refusal_to_remove(table, orphans, policy)
    if refusal is not None:
        raise UserError(refusal, location=table.env.storage.root, paths=[orphan.path for orphan in orphans])
    delete_orphans(table, orphans)
    return orphans


def delete_orphans(table: LoadedTable, orphans: Sequence[Orphan]) -> None:
    """Delete orphan files that `find_orphans` returned."""
    delete_data_files(table.env.storage, [o.path for o in orphans], "the listing of orphans", unfinished=True)
    logger.info("%s: removed %d orphans", table.env.storage.root, len(orphans))


def refusal_to_remove(table: LoadedTable, orphans: Sequence[Orphan], policy: CleanPolicy) -> str | None:
    """Return the reason why orphans of a table are reported and not deleted; None if they may be deleted."""
    writer = None if policy.orphan_shared or not orphans else other_program(table.reload())
    if writer is None:
        return None
    size = size_text(sum(orphan.size_bytes for orphan in orphans))
    return (
        f"{table.env.storage.root}: {count_text(len(orphans), 'orphan file')} ({size}, such as {orphans[0].path}) "
        f"are not deleted: {writer}, and its files may follow other rules. List them with `lakehouse clean orphans`; "
        f"if no reader needs them, delete them with the option {ORPHANS_SHARED}=true"
    )


def _needs(table: LoadedTable, listing: Iterable[Found], groups: Collection[Group]) -> Needs:
    files = [file.data for file in listing if file.data is not None]
    of_groups = [file for file in files if (file.partition, file.file_id) in groups]
    slices = groups_of(table, files_table(of_groups), load_visible(table)).slices
    commits = table.store.commits(table.timeline.writes())
    # Every commit of a merge-on-read table is a compaction; other tables have no log files.
    services = {*SERVICE_ACTIONS, Action.COMMIT, Action.REPLACECOMMIT}
    return Needs(
        sliced=frozenset(file_paths(slices.files).to_pylist()),
        committed=frozenset[str]().union(*(committed_paths(metadata) for _, metadata in commits)),
        planned=planned_groups(table),
        bases=frozenset((f.partition, f.file_id, f.instant) for f in of_groups if isinstance(f, BaseFile)),
        services=frozenset(instant.requested for instant in table.timeline.where(action=services)),
    )


def _reachable(table: LoadedTable, files: list[Found]) -> list[Found]:
    """Return the files that are not behind a symbolic link; only these may be deleted."""
    storage = table.env.storage
    foreign = foreign_directories(storage, {file.path.rpartition("/")[0] for file in files})
    own = [file for file in files if file.path.rpartition("/")[0] not in foreign]
    if foreign:
        folder, reason = next(iter(sorted(foreign.items())))
        logger.warning("%s: %d files are ignored: in %s, %s", storage.root, len(files) - len(own), folder, reason)
    return own


def list_files(table: LoadedTable) -> list[FileInfo]:
    """Return all files of the table, without files below `.hoodie` and files of tables inside its folder."""
    storage = table.env.storage
    files, directories = storage.list_dir("")
    with ThreadPoolExecutor(_LISTERS) as pool:
        below = pool.map(storage.list, [name for name in directories if name != HOODIE])
        return own_files(storage, files + [file for listing in below for file in listing])


def files_of_hudi(files: Iterable[FileInfo]) -> Iterator[Found]:
    """Yield the data files of a listing, unfinished ones included."""
    for file in files:
        partition, _, name = file.path.rpartition("/")
        data = (
            parse_base_file(name, partition, file.size_bytes)
            or parse_log_file(name, partition, file.size_bytes)
            or parse_cdc_file(name, partition, file.size_bytes)
        )
        # Other files may belong to other programs.
        if data is not None or is_temporary(name):
            yield Found(path=file.path, size_bytes=file.size_bytes, modified_ms=file.modified_ms, data=data)
