"""Initialise the metadata table, or single index partitions, from the committed files of a table (MDT-2, MDT-11).

A partition gets partition metadata and, for each file group, an empty log file and a base file if there are records.
Its delta commit has a unique time. Afterwards the partition is listed in the properties.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME, render_partition_metadata
from lakehouse.core.format.properties import render_properties
from lakehouse.core.metadata.definitions import read_definitions, write_definitions
from lakehouse.core.metadata.partitions.protocol import Definition, GroupedBuild, IndexPartition, TableFiles
from lakehouse.core.metadata.partitions.record_index import is_partitioned_by
from lakehouse.core.metadata.partitions.registry import INDEX_PARTITIONS
from lakehouse.core.metadata.place import (
    BY_REQUEST,
    DEFINITIONS_KEY,
    DEFINITIONS_PATH,
    FIRST_BUILD,
    INIT_PREFIX,
    METADATA,
    PARTITIONS_KEY,
    UNIQUE_KEYS,
    listed_partitions,
    metadata_properties,
)
from lakehouse.core.metadata.record_kinds import in_schema, record_kind, written_schema
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.metadata.write.commit import use_stored_schema
from lakehouse.core.metadata.write.files import (
    INIT_TOKEN,
    base_bytes,
    base_name,
    base_stat,
    init_log_bytes,
    log_name,
    new_token,
)
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.table_properties import read_properties, update_properties
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.partition_kind import PartitionKind, partition_kind

logger = logging.getLogger(__name__)

_WRITERS = 8
_OPERATION = "BULK_INSERT_PREPPED"
_PROPERTIES = ".hoodie/hoodie.properties"
#: All processes that create the same new table must use the same write token.
_NEW_TOKEN = "0-0-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The partitions that were built, and the resulting properties of the data table."""

    names: tuple[str, ...]
    stores_definitions: bool

    def properties(self, usable: Iterable[str] = ()) -> dict[str, str]:
        """Return the new properties of the data table. `usable` are its current index partitions."""
        properties = {PARTITIONS_KEY: ",".join(sorted({*usable, *self.names}))}
        return {**properties, DEFINITIONS_KEY: DEFINITIONS_PATH} if self.stores_definitions else properties


def create_metadata(store: MetadataStore, names: Sequence[str], table: TableFiles) -> Built:
    """Create the metadata table of a new table without files, before the table has properties.

    Processes that create the same table write the same names and equal contents, so files that exist stay.
    """
    definitions = index_definitions(names, table, {})
    stores = bool(definitions) and write_definitions(store.env.storage, definitions, store.config.layout)
    storage, timelines = store.inner.storage, store.timeline_store
    done = {instant.requested for instant in timelines.load() if instant.is_completed}
    has_times = store.config.layout.has_completion_times
    completed = timelines.time_text(store.env.clock.now_ms()) if has_times else None
    data = render_properties(metadata_properties(store.config), comments=("Properties of a metadata table",))
    content, commits = {_PROPERTIES: data}, dict[str, bytes]()
    for number, (name, kind) in enumerate(ordered_kinds(names)):
        first = 0 if has_times else FIRST_BUILD
        build = replace(table, instant=f"{INIT_PREFIX}{first + number:03d}", definitions=definitions)
        if build.instant in done:
            continue
        files, stats = _partition_files(store, name, kind, build, _NEW_TOKEN)
        states = [replace(_requested(build.instant), state=state) for state in (State.REQUESTED, State.INFLIGHT)]
        content |= {**files, **{timelines.path_of(state): b"" for state in states}}
        end = replace(states[1], state=State.COMPLETED, completed=completed)
        commits[timelines.path_of(end)] = commit_data(store, stats)
    send_all(storage, lambda file: storage.create(*file), content.items())
    send_all(storage, lambda file: storage.create(*file), commits.items())
    return Built(names=tuple(names), stores_definitions=stores)


def build_partitions(
    store: MetadataStore, names: Sequence[str], table: TableFiles, data: Timeline, lock: TableLock
) -> Built:
    """Build index partitions from the committed files, and list them in the properties; call under the table lock.

    Raises UserError for a partition that the properties already list; drop it first.
    """
    storage = store.env.storage
    usable, building = listed_partitions(read_properties(storage) or {})
    listed = sorted({*usable, *building} & set(names))
    if listed:
        raise UserError(f"{storage.root}: the metadata table has {', '.join(listed)} already; drop it first")
    stored = read_definitions(storage)
    definitions = index_definitions(names, table, stored)
    stores = bool(definitions)
    if definitions != stored:
        stores = write_definitions(storage, definitions, store.config.layout)
    if not usable and not building:
        content = render_properties(metadata_properties(store.config), comments=("Properties of a metadata table",))
        store.inner.storage.put(_PROPERTIES, content)
    timeline = store.timeline_store.load()
    use_stored_schema(store, [*usable, *building], timeline, data)
    token, used = new_token(store.env), {instant.requested for instant in timeline}
    for name, kind in ordered_kinds(names):
        instant = free_instant(store, used, data)
        used.add(instant)
        build = replace(table, instant=instant, definitions=definitions)
        lock.check()
        groups = list(kind.group_ids(name, build))
        store.timeline_store.begin(instant, Action.DELTACOMMIT)
        try:
            stats = write_base_files(store, base_files(store, name, kind, groups, build, token))
        except LakehouseError:
            # Base files of a pending instant have no effect. The next build may have the same time.
            left = [path for path in store.inner.storage.list_names(name) if f"_{instant}." in path]
            store.remove_files(f"{name}/{path}" for path in left)
            store.timeline_store.remove_pending(replace(_requested(instant), state=State.INFLIGHT))
            raise
        made = (group_files(name, groups, instant), stats)
        timeline = record_build(store, instant, made, timeline, lock)
        logger.info("%s: built the index partition %s, %d base files", storage.root, name, len(stats))
    lock.check()
    built = Built(names=tuple(names), stores_definitions=stores)
    proof = unique_keys(store, definitions, data) if PartitionKind.RECORD_INDEX in names else {}
    update_properties(store.env, {**built.properties(usable), **proof})
    store.forget()
    return built


def unique_keys(store: MetadataStore, definitions: Mapping[str, Definition], data: Timeline) -> dict[str, str | None]:
    """Return the property which states that the keys are unique, because a record index was built from all rows.

    `data` contains the writes that the build has read. Without completion times, no write may complete before the
    newest one afterwards.
    """
    writes, pending, has_times = data.writes().by_completion(), False, store.config.layout.has_completion_times
    if writes and not has_times:
        pending = any(instant.requested < writes[-1].requested for instant in data.where(pending=True))
    is_partitioned = is_partitioned_by(definitions.get(PartitionKind.RECORD_INDEX))
    scope = ("partition" if is_partitioned else "table") + ("" if has_times else BY_REQUEST)
    return {UNIQUE_KEYS: None if pending or not writes else f"{writes[-1].requested} {scope}"}


def record_build(
    store: MetadataStore,
    instant: str,
    made: tuple[Mapping[str, bytes], Sequence[WriteStat]],
    timeline: Timeline,
    lock: TableLock,
) -> Timeline:
    """Write the files of a build as a delta commit with the time `instant`, and return the timeline with it.

    `made` contains the files that are not written yet, and the statistics of all base files. Call under the table lock.
    """
    files, stats = made
    store.timeline_store.begin(instant, Action.DELTACOMMIT)
    send_all(store.inner.storage, lambda file: store.inner.storage.put(*file), files.items())
    started = store.timeline_store.start(_requested(instant), b"")
    timeline = Timeline((*(other for other in timeline if other.key != started.key), started))
    done = store.timeline_store.complete(started, timeline, commit_data(store, stats), lock.below(METADATA))
    return Timeline((*(other for other in timeline if other.key != done.key), done))


def ordered_kinds(names: Iterable[str]) -> list[tuple[str, IndexPartition]]:
    """Return the partitions in the order in which Hudi initialises them."""
    wanted = sorted(names)
    kinds = [(name, kind) for kind in INDEX_PARTITIONS for name in wanted if partition_kind(name) is kind.kind]
    unknown = sorted(set(wanted) - {name for name, _ in kinds})
    if unknown:
        raise UserError(f"there is no index partition {', '.join(unknown)}")
    return kinds


def index_definitions(
    names: Iterable[str], table: TableFiles, stored: Mapping[str, Definition]
) -> dict[str, Definition]:
    """Return the stored definitions, and the definitions of the new partitions."""
    definitions = dict(stored)
    for name, kind in ordered_kinds(names):
        definition = kind.definition(name, replace(table, definitions=definitions))
        if definition is not None:
            definitions[name] = definition
    return definitions


def group_files(name: str, groups: Sequence[str], instant: str) -> dict[str, bytes]:
    """Return the contents of the partition metadata and of the initial empty log files, by path."""
    depth = name.count("/") + 1
    files = {f"{name}/{PARTITION_METADATA_NAME}": render_partition_metadata(instant, depth)}
    return files | {f"{name}/{log_name(file_id, instant, INIT_TOKEN)}": init_log_bytes(instant) for file_id in groups}


def _partition_files(
    store: MetadataStore, name: str, kind: IndexPartition, build: TableFiles, token: str
) -> tuple[dict[str, bytes], list[WriteStat]]:
    """Return the contents of a new partition's files by path, and the statistics of its base files."""
    groups = list(kind.group_ids(name, build))
    files = group_files(name, groups, build.instant)
    bases = list(base_files(store, name, kind, groups, build, token))
    return {**files, **{path: data for path, data, _ in bases}}, [stat for _, _, stat in bases]


# parameters: the partition, its kind and groups, and the snapshot from which it is built
def base_files(
    store: MetadataStore, name: str, kind: IndexPartition, groups: Sequence[str], build: TableFiles, token: str
) -> Iterator[tuple[str, bytes, WriteStat]]:
    """Yield path, content and statistics of a partition's base files, for groups with records."""
    created_ms = store.env.clock.now_ms()
    record = record_kind(name, build.definitions.get(name))
    schema = written_schema(name, build.definitions, store.records)
    for file_id, of_group in _records_of_groups(name, kind, build, groups):
        path = f"{name}/{base_name(file_id, build.instant, token)}"
        data = base_bytes(in_schema(of_group, record, schema), schema, created_ms, record.layout)
        yield path, data, base_stat(name, file_id, path.rpartition("/")[2], len(data), of_group.num_rows)


def write_base_files(store: MetadataStore, files: Iterable[tuple[str, bytes, WriteStat]]) -> list[WriteStat]:
    """Write base files while the next ones are computed, and return their statistics.

    Only a few files are in memory at a time.
    """
    stats, running = list[WriteStat](), deque[Future[None]]()
    with ThreadPoolExecutor(_WRITERS) as pool:
        for path, data, stat in files:
            if len(running) == _WRITERS:
                running.popleft().result()
            running.append(pool.submit(store.inner.storage.put, path, data))
            stats.append(stat)
        for one in running:
            one.result()
    return stats


def _records_of_groups(
    name: str, kind: IndexPartition, build: TableFiles, groups: Sequence[str]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the ids of file groups with their records."""
    if isinstance(kind, GroupedBuild):
        yield from kind.build_groups(name, build, groups)
        return
    entries = kind.build(name, build).combine_chunks()
    keys = entries.column("key").combine_chunks()
    shards = np.asarray(kind.shards(name, keys, groups, build.definitions.get(name)))
    for shard in np.unique(shards):
        yield groups[int(shard)], entries.filter(pa.array(shards == shard))


def commit_data(store: MetadataStore, stats: Sequence[WriteStat]) -> bytes:
    """Return the content of a build's completed delta commit."""
    metadata = CommitMetadata(operation=_OPERATION, stats=tuple(stats), extra={"schema": store.records.commits})
    return store.config.layout.encode_commit(metadata)


def _requested(instant: str) -> Instant:
    return Instant(requested=instant, action=Action.DELTACOMMIT, state=State.REQUESTED)


def free_instant(store: MetadataStore, used: set[str], data: Timeline) -> str:
    """Return the first unused time of initialisation.

    In version 6 it begins with the newest completed instant of the data table, which the build contains.
    """
    prefix, number = INIT_PREFIX, 0
    if not store.config.layout.has_completion_times:
        prefix = max((instant.requested for instant in data if instant.is_completed), default=INIT_PREFIX)
        number = FIRST_BUILD
    while f"{prefix}{number:03d}" in used:
        number += 1
    return f"{prefix}{number:03d}"
