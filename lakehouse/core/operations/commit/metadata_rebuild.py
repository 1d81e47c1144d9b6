"""Drop the metadata table for an action that it cannot record, and build it again afterwards (MDT-9).

    drop      properties: no index partition, but the names to build again     files of the metadata table
    rebuild   under the lock: listing of storage   each partition   properties: the partitions, no names to build

In between readers list storage. After a crash the next write or undo operation of the table builds it.
"""

from __future__ import annotations

import logging

from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.partitions.registry import partition_named
from lakehouse.core.metadata.place import INFLIGHT_KEY, PARTITIONS_KEY, listed_partitions
from lakehouse.core.metadata.write.drop import drop_metadata
from lakehouse.core.metadata.write.initialise import build_partitions
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.table_files import table_files
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.core.timeline.table_properties import read_properties, update_properties
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: Property of the data table: index partitions that are built again after an undo.
REBUILD_KEY = "lakehouse.metadata.rebuild"


def drop_for_rebuild(table: LoadedTable, lock: TableLock) -> None:
    """Drop the metadata table and note its partitions; call under the table lock."""
    usable, building = listed_partitions(read_properties(table.env.storage) or {})
    names = sorted({*usable, *building})
    if not names:
        return
    lock.check()
    update_properties(table.env, {PARTITIONS_KEY: None, INFLIGHT_KEY: None, REBUILD_KEY: ",".join(names)})
    drop_metadata(table.env)
    table.metadata.forget()


def needs_rebuild(table: LoadedTable) -> bool:
    """Return whether the properties, as loaded, name partitions to build again."""
    return REBUILD_KEY in table.config.raw


def rebuild_dropped(table: LoadedTable, policy: TransactionPolicy) -> None:
    """Build the partitions that were noted; does nothing without any. The lock is held meanwhile."""
    if REBUILD_KEY not in (read_properties(table.env.storage) or {}):
        return
    with table_lock(table.env, policy) as lock:
        now = table.refresh()
        noted = now.config.raw.get(REBUILD_KEY, "")
        if not noted:
            return
        usable, building = listed_partitions(now.config.raw)
        definitions = read_definitions(now.env.storage)
        names = [
            name
            for name in noted.split(",")
            if (kind := partition_named(name)) is not None
            and kind.refusal(name, now.config, definitions.get(name)) is None
            and name not in usable
        ]
        lock.check()
        if not usable and not building:
            # A crash may have left files of an earlier build.
            drop_metadata(now.env)
        if names:
            files = table_files(now, Policies(transaction=policy))
            build_partitions(now.metadata, names, files, now.timeline, lock)
        update_properties(now.env, {REBUILD_KEY: None})
    logger.info("%s: built the metadata table again with %s", table.env.storage.root, ", ".join(names))
