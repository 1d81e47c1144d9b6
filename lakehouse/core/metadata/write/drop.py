"""Drop the metadata table or single index partitions: first the properties, then the files (MDT-7)."""

from __future__ import annotations

import logging
from collections.abc import Collection

from lakehouse.core.env import Env
from lakehouse.core.metadata.place import INFLIGHT_KEY, METADATA, PARTITIONS_KEY, listed_partitions
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.table_properties import read_properties, update_properties
from lakehouse.model.partition_kind import PartitionKind, partition_kind

logger = logging.getLogger(__name__)


def drop_metadata(env: Env) -> None:
    """Drop the whole metadata table; call under the table lock.

    A reader that loaded the properties earlier finds no folder, and lists storage.
    """
    properties = read_properties(env.storage) or {}
    if any(listed_partitions(properties)):
        update_properties(env, {PARTITIONS_KEY: None, INFLIGHT_KEY: None})
    delete_leftovers(env.storage, [file.path for file in env.storage.list(METADATA)])
    _delete_empty_folders(env.storage, METADATA)


def _delete_empty_folders(storage: Storage, folder: str) -> None:
    """Delete the empty folders of Hudi below a folder, such as `.temp`.

    Hudi takes a table whose folder exists for a metadata table, and its next upgrade would fail.
    """
    files, names = storage.list_dir(folder)
    for name in names:
        _delete_empty_folders(storage, f"{folder}/{name}")
    if not files and not names:
        # The deletion of a file also deletes the folders that are empty then.
        storage.delete_many([f"{folder}/empty"])


def drop_partitions(store: MetadataStore, names: Collection[str]) -> tuple[str, ...]:
    """Drop index partitions, and partitions that depend on them; call under the table lock.

    Returns the dropped partitions. Dropping `files` drops the metadata table.
    """
    env = store.env
    usable, building = listed_partitions(read_properties(env.storage) or {})
    dropped = _with_dependents(names, (*usable, *building))
    store.forget()
    # Without the listing no other index partition may be used.
    if PartitionKind.FILES in dropped:
        drop_metadata(env)
        return tuple(dict.fromkeys((*usable, *building)))
    changes = {
        PARTITIONS_KEY: ",".join(sorted(set(usable) - dropped)) or None,
        INFLIGHT_KEY: ",".join(sorted(set(building) - dropped)) or None,
    }
    update_properties(env, changes)
    for name in sorted(dropped):
        delete_leftovers(env.storage, [file.path for file in env.storage.list(f"{METADATA}/{name}")])
        logger.info("%s: dropped the index partition %s", env.storage.root, name)
    return tuple(sorted(dropped))


def _with_dependents(names: Collection[str], listed: Collection[str]) -> set[str]:
    dropped = set(names)
    needed_by = {
        PartitionKind.COLUMN_STATS: PartitionKind.PARTITION_STATS,
        PartitionKind.RECORD_INDEX: PartitionKind.SECONDARY_INDEX,
    }
    for needed, kind in needed_by.items():
        if needed in dropped:
            dropped |= {name for name in listed if partition_kind(name) is kind}
    return dropped
