"""Files that belong to nothing, found by listing the whole table, and taken away when they are old enough.

Files are listed before the timeline is read, and a write is on the timeline before its files are there: so a file whose
write is not there now belongs to one that is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.format.file_names import parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.operations.create.create import drop_metadata_table
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
    """Return the files that belong to nothing and are older than the policy's grace time; raise during a restore.

    Files of tables inside the table's folder are not looked at, nor are those behind symbolic links where the store
    follows links at all; the log names them.
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
    """Delete the files that belong to nothing and are older than the policy's grace time; return what they were."""
    orphans = find_orphans(table, policy)
    if orphans and table.config.metadata_partitions:
        # It was made of a listing, and may list them.
        drop_metadata_table(table.env)
    delete_data_files(table.env.storage, [o.path for o in orphans], "the listing of orphans", unfinished=True)
    logger.info("%s: removed %d orphans", table.env.storage.root, len(orphans))
    return orphans


def _reachable(table: LoadedTable, found: list[Found]) -> list[Found]:
    """Return the files that the table may delete: none behind a symbolic link."""
    storage = table.env.storage
    foreign = foreign_directories(storage, {file.path.rpartition("/")[0] for file in found})
    own = [file for file in found if file.path.rpartition("/")[0] not in foreign]
    if foreign:
        place, why = next(iter(sorted(foreign.items())))
        logger.warning("%s: %d files are not looked at: in %s, %s", storage.root, len(found) - len(own), place, why)
    return own


def list_files(table: LoadedTable) -> list[FileInfo]:
    """Return all files of the table but those below `.hoodie`, and those of tables inside its folder."""
    storage = table.env.storage
    files, directories = storage.list_dir("")
    with ThreadPoolExecutor(_LISTERS) as pool:
        below = pool.map(storage.list, [name for name in directories if name != HOODIE])
        return own_files(storage, files + [file for listing in below for file in listing])


def files_of_hudi(files: Iterable[FileInfo]) -> Iterator[Found]:
    """Yield the data files of a listing, and unfinished ones among them."""
    for file in files:
        partition, _, name = file.path.rpartition("/")
        data = (
            parse_base_file(name, partition, file.size_bytes)
            or parse_log_file(name, partition, file.size_bytes)
            or parse_cdc_file(name, partition, file.size_bytes)
        )
        # Anything else is not ours to judge.
        if data is not None or is_temporary(name):
            yield Found(path=file.path, size_bytes=file.size_bytes, modified_ms=file.modified_ms, data=data)
