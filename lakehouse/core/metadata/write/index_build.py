"""Build index partitions concurrently with writers: the steps on the metadata table (MDT-11).

    open       folder, empty file groups, definition; the properties list the partition as being built
               from here on each commit records its changes in the partition, in log files above the base files
    build      base files with the time of the indexing action, without the lock; in version 6 with the time of `open`
    complete   the delta commit of the indexing action, under the lock

A base file contains the state of a snapshot that was taken after `open`. Log files of commits between `open` and the
snapshot repeat changes that the base file contains already, and end in the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.metadata.definitions import read_definitions, write_definitions
from lakehouse.core.metadata.partitions.protocol import Definition, TableFiles
from lakehouse.core.metadata.place import (
    DEFINITIONS_KEY,
    DEFINITIONS_PATH,
    INFLIGHT_KEY,
    METADATA,
    PARTITIONS_KEY,
    listed_partitions,
)
from lakehouse.core.metadata.read.slices import metadata_file
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.metadata.write.commit import use_stored_schema
from lakehouse.core.metadata.write.files import new_token
from lakehouse.core.metadata.write.initialise import (
    base_files,
    free_instant,
    group_files,
    index_definitions,
    ordered_kinds,
    record_build,
    write_base_files,
)
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.table_properties import read_properties, update_properties
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.partition_kind import PartitionKind, partition_kind

logger = logging.getLogger(__name__)

_WRITERS = 8
_NO_PROOF: Mapping[str, str | None] = {}


# parameters: the partitions with their definitions, and the state of both tables
def open_partitions(
    store: MetadataStore,
    names: Collection[str],
    table: TableFiles,
    declared: Mapping[str, Definition],
    data: Timeline,
    lock: TableLock,
) -> tuple[str, ...]:
    """Create partitions without records and list them as being built; return the newly listed partitions.

    Call under the table lock. Each step can be repeated after a crash. In version 6 the base files of the build will
    have the time of this step, because log files are named after it from now on.
    """
    storage = store.env.storage
    usable, building = listed_partitions(read_properties(storage) or {})
    new = [name for name in names if name not in usable and name not in building]
    if not new:
        return ()
    stored = read_definitions(storage)
    definitions = index_definitions(new, table, {**stored, **{n: d for n, d in declared.items() if n in new}})
    lock.check()
    stores = bool(definitions)
    if definitions != stored:
        stores = write_definitions(storage, definitions, store.config.layout)
    for name in new:
        # Delete files that remain from a drop that crashed after it changed the properties.
        delete_leftovers(storage, [file.path for file in storage.list(f"{METADATA}/{name}")])
    timeline = store.timeline_store.load()
    used = {instant.requested for instant in timeline}
    for name, kind in ordered_kinds(new):
        instant = free_instant(store, used, data)
        used.add(instant)
        groups = kind.group_ids(name, replace(table, instant=instant, definitions=definitions))
        lock.check()
        timeline = record_build(store, instant, (group_files(name, groups, instant), ()), timeline, lock)
    lock.check()
    listed = {INFLIGHT_KEY: ",".join(sorted({*building, *new}))}
    update_properties(store.env, {**listed, DEFINITIONS_KEY: DEFINITIONS_PATH} if stores else listed)
    store.forget()
    return tuple(new)


def build_base_files(store: MetadataStore, name: str, build: TableFiles, data: Timeline) -> list[WriteStat]:
    """Write the base files of a partition with the time `build.instant`; return their statistics.

    Readers ignore the files until `complete_build`. A stale executor may write such files with a different token. Its
    snapshot was also taken after the partition was listed, so its files are correct as well.
    """
    ((_, kind),) = ordered_kinds([name])
    timeline = store.timeline_store.load()
    groups = store.groups([name], timeline, data)[name]
    if not groups:
        # The partition was dropped in between, so the plan cannot be completed.
        return []
    use_stored_schema(store, build.config.metadata_partitions, timeline, data)
    if store.config.layout.names_logs_by_slice:
        opened = opening_of(store, name)
        if opened is None:
            return []
        build = replace(build, instant=opened)
    left = [path for path in store.inner.storage.list_names(name) if path.endswith(f"_{build.instant}.hfile")]
    store.remove_unfinished([name], build.instant)
    stats = write_base_files(store, base_files(store, name, kind, groups, build, new_token(store.env)))
    delete_leftovers(store.env.storage, [f"{METADATA}/{name}/{path}" for path in left])
    return stats


def opening_of(store: MetadataStore, name: str) -> str | None:
    """Return the time at which a partition was created, in version 6: all its files are named after it.

    None means that there are later slices, because another writer compacted the partition while it was built.
    """
    (files,) = store.folders([name], frozenset())
    parsed = (metadata_file(info.name, name, info.size_bytes) for info in files)
    instants = {file.instant for file in parsed if file is not None}
    return instants.pop() if len(instants) == 1 else None


def unrecorded_change(store: MetadataStore, name: str, writes: Sequence[tuple[Instant, CommitMetadata]]) -> str | None:
    """Return the time of a write that should have changed an index partition, but left no records in it.

    Writers of Hudi 0.x ignore a partition that is being built, unless their options enable the index.

    Args:
        store: The metadata table.
        name: The index partition.
        writes: The completed writes since the snapshot of the build, with their metadata.
    """
    for write, metadata in writes:
        delta = replace(write, action=Action.DELTACOMMIT)
        data = store.timeline_store.read(delta, State.COMPLETED)
        recorded = {stat.partition for stat in decode_commit(data).stats} if data else set()
        if name not in recorded and _is_recorded_in(name, metadata):
            return write.requested
    return None


def _is_recorded_in(name: str, metadata: CommitMetadata) -> bool:
    """Return whether a write has records in an index partition: of base files, or of keys that it adds or removes."""
    if partition_kind(name) is PartitionKind.RECORD_INDEX:
        changes = any(stat.num_inserts or stat.num_deletes for stat in metadata.stats)
        return metadata.operation is not Operation.COMPACT and (changes or bool(metadata.replaced))
    return any(parse_base_file(stat.path.rpartition("/")[2], stat.partition, 0) for stat in metadata.stats)


def is_recorded(store: MetadataStore, requested: str) -> bool:
    """Return whether the delta commit of an indexing action is already completed, after a crash of an executor."""
    delta = store.timeline_store.load().find(requested)
    return delta is not None and delta.is_completed


def compaction_since(store: MetadataStore, requested: str) -> str | None:
    """Return the requested time of a metadata table compaction newer than `requested`, or None.

    Compactions by this package wait until index builds finish. A compaction by another engine may have written newer
    base files, which readers use instead of the build's base files although they contain none of its records.
    """
    compactions = store.timeline_store.load().where(action=(Action.COMMIT, Action.COMPACTION))
    return next((instant.requested for instant in compactions if instant.requested > requested), None)


def complete_build(store: MetadataStore, requested: str, stats: Sequence[WriteStat], lock: TableLock) -> Instant:
    """Complete the delta commit of an indexing action; call under the table lock, before the action is completed.

    A delta commit that an earlier executor completed is kept, with its base files.
    """
    timeline = store.timeline_store.load()
    delta = timeline.find(requested)
    if delta is None or not delta.is_completed:
        lock.check()
        delta = record_build(store, requested, ({}, stats), timeline, lock).find(requested)
    assert delta is not None, "the build was recorded"
    return delta


def list_as_usable(
    store: MetadataStore, names: Collection[str], lock: TableLock, proof: Mapping[str, str | None] = _NO_PROOF
) -> None:
    """Move partitions in the properties from the list of builds to the usable ones; call under the lock.

    `proof` are further properties, if the build proves that keys are unique.
    """
    usable, building = listed_partitions(read_properties(store.env.storage) or {})
    built = set(names) & set(building)
    if built:
        lock.check()
        update_properties(
            store.env,
            {
                PARTITIONS_KEY: ",".join(sorted({*usable, *built})),
                INFLIGHT_KEY: ",".join(sorted(set(building) - built)) or None,
                **proof,
            },
        )
        store.forget()
