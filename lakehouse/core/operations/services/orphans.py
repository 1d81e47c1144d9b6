"""Find and delete orphan files: data files that no instant of the timeline names, found by listing the whole table.

Files are listed before the timeline is loaded, and a write is on the timeline before it creates files. Therefore a
listed file whose write is not on the loaded timeline belongs to a write that was undone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.format.file_names import parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.operations.load.listing import own_files
from lakehouse.core.operations.load.savepoints import savepointed_paths
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.orphans import Found, Orphan, plan_orphans
from lakehouse.core.state.file_system_view import visible_timeline
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.storage.nested_tables import HOODIE
from lakehouse.core.storage.protocol import FileInfo, is_temporary
from lakehouse.core.timeline.file_deletions import delete_data_files, foreign_directories
from lakehouse.spec.options.clean import CleanPolicy

logger = logging.getLogger(__name__)
_LISTERS = 8
_HOUR_MS = 3_600_000


def find_orphans(table: LoadedTable, policy: CleanPolicy) -> tuple[Orphan, ...]:
    """Return the orphan files that are older than the policy's grace time.

    Files of tables inside the table's folder are ignored. So are files behind symbolic links, if the storage follows
    links; the log names them. Raises RetryableError during a restore.
    """
    require_writable(table.config, table.env.storage.root)
    found = _reachable(table, list(files_of_hudi(list_files(table))))
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    return plan_orphans(
        found,
        table.timeline,
        table.store.commit,
        archived_before=visible_timeline(table.timeline, ()).archived_before,
        kept=savepointed_paths(table),
        older_than_ms=table.env.clock.now_ms() - policy.orphan_hours * _HOUR_MS,
    )


def remove_orphans(table: LoadedTable, policy: CleanPolicy) -> tuple[Orphan, ...]:
    """Delete the orphan files that are older than the policy's grace time, and return them."""
    orphans = find_orphans(table, policy)
    delete_data_files(table.env.storage, [o.path for o in orphans], "the listing of orphans", unfinished=True)
    logger.info("%s: removed %d orphans", table.env.storage.root, len(orphans))
    return orphans


def _reachable(table: LoadedTable, found: list[Found]) -> list[Found]:
    """Return the files that are not behind a symbolic link; only these may be deleted."""
    storage = table.env.storage
    foreign = foreign_directories(storage, {file.path.rpartition("/")[0] for file in found})
    own = [file for file in found if file.path.rpartition("/")[0] not in foreign]
    if foreign:
        folder, reason = next(iter(sorted(foreign.items())))
        logger.warning("%s: %d files are ignored: in %s, %s", storage.root, len(found) - len(own), folder, reason)
    return own


def list_files(table: LoadedTable) -> list[FileInfo]:
    """Return all files of the table, without those below `.hoodie` and those of tables inside its folder."""
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
