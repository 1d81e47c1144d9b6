"""Record an action of the data table in the metadata table, under the table lock (MDT-7, MDT-8).

    read the property again     guard: each listed partition can be maintained     records of each partition
    <t>.deltacommit.requested   .inflight and one log file per touched file group  <t>_<c>.deltacommit

The data instant completes afterwards. Until then readers ignore the delta commit. A rollback of the action removes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.core.format.hfile.entries import Entries, entry_count
from lakehouse.core.format.metadata.groups import shard_of
from lakehouse.core.format.metadata.schema import CURRENT, schema_of_form
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.metadata.definitions import read_definitions, write_definitions
from lakehouse.core.metadata.partitions.protocol import KEYS, Definition, IndexPartition, MetadataCommit, Update
from lakehouse.core.metadata.partitions.record_index import is_partitioned_by
from lakehouse.core.metadata.partitions.registry import partition_named, partition_refusal
from lakehouse.core.metadata.place import METADATA, listed_partitions
from lakehouse.core.metadata.read.known_definitions import stored_columns
from lakehouse.core.metadata.read.table import COLUMN_STATS, FILES, MetadataTable
from lakehouse.core.metadata.read.unusable import MetadataUnusableError
from lakehouse.core.metadata.read.validity import missing_instants, stale_instants, validity
from lakehouse.core.metadata.record_kinds import in_schema, record_kind, written_schema
from lakehouse.core.metadata.services.run import run_services
from lakehouse.core.metadata.small.update import small_update
from lakehouse.core.metadata.staged import StagedLog
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.metadata.write.drop import drop_partitions
from lakehouse.core.metadata.write.files import (
    INIT_TOKEN,
    ascending,
    init_log_bytes,
    log_bytes,
    log_headers,
    log_name,
    new_token,
)
from lakehouse.core.metadata.write.live_files import live_files
from lakehouse.core.metadata.write.log_places import LogPlaces, log_places
from lakehouse.core.metadata.write.rollback import remove_instant
from lakehouse.core.state.file_system_view import Replaced
from lakehouse.core.storage.concurrent_requests import send_all, send_both
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import (
    CommitStateUnknownError,
    CorruptTableError,
    LakehouseError,
    RetryableError,
    UnsupportedError,
)
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COPY_BYTES = 1 << 20
_OPERATION = "UPSERT_PREPPED"
_POLICIES = Policies()
_NO_KEYS = pa.array([], KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The stored state of the metadata table, read under the lock.

    Attributes:
        names: The listed index partitions, including `building`; () if there is no metadata table.
        building: The index partitions that are being built.
        timeline: The timeline of the metadata table.
        definitions: The index definitions.
        groups: The file ids of each partition.
    """

    names: tuple[str, ...] = ()
    building: tuple[str, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)
    definitions: dict[str, Definition] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)


class MetadataBehindError(CorruptTableError):
    """The metadata table lacks a completed action, so its listing hides files of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A completed delta commit, and the paths of its log files relative to the metadata table."""

    instant: Instant
    paths: tuple[str, ...]


def open_metadata(store: MetadataStore, data: Timeline) -> Opened:
    """Read the listed partitions, the timeline, the definitions, the file groups and the record schema.

    Call under the table lock.
    """
    storage, timeline = store.env.storage, None
    if store.config.metadata_partitions:
        properties, timeline = send_both(storage, lambda: read_properties(storage), store.timeline_store.load)
    else:
        properties = read_properties(storage)
    usable, building = listed_partitions(properties or {})
    names = tuple(dict.fromkeys((*usable, *building)))
    if not names:
        return Opened()
    if timeline is None:
        timeline = store.timeline_store.load()
    if not store.has_definitions(names, timeline, data):
        store.definitions = _read_definitions(store, names, timeline, data)
    groups = store.groups(names, timeline, data)
    use_stored_schema(store, names, timeline, data)
    return Opened(
        names=names, building=tuple(building), timeline=timeline, definitions=store.definitions, groups=groups
    )


def _read_definitions(
    store: MetadataStore, names: Sequence[str], timeline: Timeline, data: Timeline
) -> dict[str, Definition]:
    """Return the stored definitions; in version 6 with all columns that have records in `column_stats`.

    Hudi 0.15 stores no definitions, and treats a column as null in a file that has records of other columns only.
    """
    definitions = read_definitions(store.env.storage)
    if store.config.layout.stores_definitions or COLUMN_STATS not in names or FILES not in names:
        return definitions
    try:
        return {**definitions, **stored_columns(MetadataTable(store, names, validity(timeline, data)), definitions)}
    except MetadataUnusableError:
        # Ignored here: the action that needs the files reports the damage.
        return definitions


def use_stored_schema(store: MetadataStore, names: Sequence[str], timeline: Timeline, data: Timeline) -> None:
    """Give new files the record schema of the stored files.

    New metadata tables have the schema of the first Hudi release with the table version. A table of version 8 may have
    been written by Hudi 1.0 or by a newer release. So the schema is read from the newest base file of `files`, which
    readers cache. Logs do not decide: a compaction of Hudi 1.0 labels its records with the schema of the newest commit,
    so a newer schema would damage the table of its writer. Tables of version 9 have one schema.

    Args:
        store: The metadata table; this function sets its attribute `records`.
        names: The index partitions that the properties list; without `files` there is no metadata table.
        timeline: The timeline of the metadata table.
        data: The timeline of the data table.
    """
    store.records = store.config.layout.metadata_schema
    if store.records is CURRENT or FILES not in names:
        return
    table = MetadataTable(store, names, validity(timeline, data))
    try:
        layers = [layer for slice_ in table.slices(FILES) for layer in table.layers(FILES, slice_.file_id)]
    except MetadataUnusableError:
        # Ignored here: the action that needs the files reports the damage.
        return
    schemas = [layer.file_schema for layer in layers if layer.file_schema]
    store.records = next((form for form in map(schema_of_form, schemas) if form is not None), store.records)


# parameters: the action with its change, and the state of both tables
def commit_metadata(
    store: MetadataStore,
    action: Instant,
    change: MetadataChange,
    data: Timeline,
    lock: TableLock,
    *,
    previous_schema: Callable[[], pa.Schema | None] = lambda: None,
    replaced: Callable[[], Iterable[Replaced]] = lambda: (),
) -> Recorded | None:
    """Write the delta commit of an action, with the action's requested time. Return None if there is no metadata table.

    `previous_schema` returns the data columns before the action, `replaced` the file groups that completed
    replacecommits replaced.

    Raises:
        UnsupportedError: A listed index partition cannot be maintained and the options do not allow to drop it.
        MetadataBehindError: The metadata table lacks the record of an earlier action.
    """
    with store.one_listing() if store.config.metadata_partitions else nullcontext():
        return _commit(store, action, change, data, lock, previous_schema=previous_schema, replaced=replaced)


# parameters: as of `commit_metadata`
def _commit(
    store: MetadataStore,
    action: Instant,
    change: MetadataChange,
    data: Timeline,
    lock: TableLock,
    *,
    previous_schema: Callable[[], pa.Schema | None],
    replaced: Callable[[], Iterable[Replaced]],
) -> Recorded | None:
    opened = _guarded(store, open_metadata(store, data), data, lock)
    if not opened.names:
        return None
    store.remove_abandoned(lock.policy.lock.lease_ms)
    missing = missing_instants(opened.timeline, data)
    if missing:
        raise MetadataBehindError(
            f"{store.inner.storage.root} has no delta commit for the {missing[0].action} {missing[0].requested}",
            instant=missing[0].requested,
        )
    for stale in stale_instants(opened.timeline, data):
        remove_instant(store, stale, opened.names)
        opened = replace(opened, timeline=store.timeline_store.load())
    postpones = change.operation == Operation.ALTER_SCHEMA
    timeline = run_services(store, opened.definitions, opened.timeline, data, lock, postpones=postpones)
    opened = replace(opened, timeline=timeline)
    reader = cache(partial(MetadataTable, store, opened.names, validity(timeline, data)))
    commit = MetadataCommit(
        env=store.env,
        config=store.config,
        instant=action.requested,
        change=change,
        definitions=opened.definitions,
        groups=opened.groups,
        policies=replace(_POLICIES, transaction=lock.policy),
        schema=avro_to_arrow(change.schema) if change.schema else None,
        previous_schema=previous_schema,
        is_last=not any(
            instant.requested < action.requested and instant.action in WRITE_ACTIONS and not instant.is_completed
            for instant in data
        ),
        live_files=partial(_live_files, store, reader, data, action, change, replaced),
        stored_ranges=partial(_stored_ranges, reader),
        reader=reader,
    )
    of_build = replace(commit, is_building=True, is_last=False)
    updates = {name: _update(name, of_build if name in opened.building else commit) for name in opened.names}
    changed = {name: update.definition for name, update in updates.items() if update.definition is not None}
    if any(opened.definitions.get(name) != definition for name, definition in changed.items()):
        # Stored files have no row for a new column, so readers correctly treat it as all null.
        lock.check()
        store.definitions = {**opened.definitions, **changed}
        write_definitions(store.env.storage, store.definitions, store.config.layout)
    if any(instant.requested == action.requested for instant in opened.timeline):
        # An earlier try of this action completed its delta commit and crashed before the action completed. If this
        # executor has lost the lock, it removes the record of another executor; the next write then detects that the
        # record is missing.
        lock.check()
        remove_instant(store, action.requested, opened.names)
        opened = replace(opened, timeline=store.timeline_store.load())
    recorded = _write(store, opened, action.requested, updates, lock)
    store.keep_definitions(opened.names, opened.timeline, recorded.instant, data)
    return recorded


def withdraw(store: MetadataStore, recorded: Recorded) -> None:
    """Remove a delta commit of this process; call under the table lock."""
    timelines = store.timeline_store
    is_own = store.config.layout.has_completion_times
    if not is_own:
        # Another executor gives its delta commit the same name, but other log files.
        data = timelines.read(recorded.instant, State.COMPLETED)
        is_own = data is not None and {stat.path for stat in decode_commit(data).stats} <= set(recorded.paths)
    if is_own:
        timelines.withdraw(recorded.instant)
    store.remove_files(recorded.paths)


def _guarded(store: MetadataStore, opened: Opened, data: Timeline, lock: TableLock) -> Opened:
    """Drop the partitions that cannot be maintained, or raise an error if the options do not allow it.

    Return the remaining metadata table.
    """
    lost = [
        name
        for name in opened.names
        # A record index with one index for each partition has no file groups before the first write.
        if not opened.groups[name] and not is_partitioned_by(opened.definitions.get(name))
    ]
    refused: dict[str, str] = {}
    for name in opened.names:
        why = partition_refusal(name, store.config, opened.definitions.get(name))
        refused |= {} if why is None else {name: why}
    if refused and not lock.policy.metadata.auto_delete:
        name, why = next(iter(refused.items()))
        raise UnsupportedError(
            f"{store.env.storage.root}: the index partition {name!r} of the metadata table cannot be maintained: "
            f"{why}. A commit without it would give wrong rows to other engines. Drop the partition with "
            "`lakehouse index drop`, or set hoodie.metadata.auto.delete.partitions=true so that writes drop it",
            partition=name,
        )
    gone = sorted({*lost, *refused})
    if not gone:
        return opened
    if lost:
        logger.warning(
            "%s: the metadata table lists %s, which has no files; it is taken out of the table's properties",
            store.env.storage.root,
            ", ".join(lost),
        )
    lock.check()
    drop_partitions(store, gone)
    return open_metadata(store, data)


# parameters: both tables, and the action with its change
def _live_files(
    store: MetadataStore,
    reader: Callable[[], MetadataTable],
    data: Timeline,
    action: Instant,
    change: MetadataChange,
    replaced: Callable[[], Iterable[Replaced]],
    partitions: Sequence[str],
) -> pa.Table | None:
    try:
        return live_files(reader(), data, action, change, replaced, partitions, layout=store.config.layout)
    except MetadataUnusableError as error:
        logger.warning("The statistics of partitions are widened, not computed: %s", error.message)
        return None


def _stored_ranges(reader: Callable[[], MetadataTable], columns: Sequence[str], files: pa.Table) -> pa.Table | None:
    try:
        return reader().ranges(columns, files)
    except MetadataUnusableError as error:
        logger.warning("The statistics of partitions are widened, not computed: %s", error.message)
        return None


def _update(name: str, commit: MetadataCommit) -> Update:
    update = small_update(name, commit)
    return _kind(name).update(name, commit) if update is None else update


def _kind(name: str) -> IndexPartition:
    kind = partition_named(name)
    assert kind is not None, "the guard refused unknown partitions"
    return kind


# parameters: the table, the records and the lock
def _write(
    store: MetadataStore, opened: Opened, requested: str, updates: dict[str, Update], lock: TableLock
) -> Recorded:
    """Create the instant with its log files, and complete it."""
    timelines = store.timeline_store
    places = log_places(store, opened.names, opened.timeline, requested, new_token(store.env))
    created_ms = store.env.clock.now_ms()
    tasks = [
        task
        for name, update in updates.items()
        for task in _group_tasks(name, update, opened.groups[name], opened.definitions.get(name))
    ]
    staged = [(name, log) for name, update in updates.items() for log in update.staged]
    counts = [((task.partition, task.file_id), (entry_count(task.entries), len(task.deletes))) for task in tasks]
    counts += [((name, log.file_id), (log.records, log.deletes)) for name, log in staged]
    paths = tuple(places.path(place) for place, _ in counts)
    writes: list[Callable[[], WriteStat]] = [partial(_write_group, store, places, created_ms, task) for task in tasks]
    writes += [partial(_copy_staged, store, places, *log) for log in staged]
    profile = places.profile(_OPERATION, counts)
    try:
        instant, stats = _start(store, requested, updates, writes, profile)
        metadata = CommitMetadata(operation=_OPERATION, stats=stats, extra={"schema": store.records.commits})
        data = store.config.layout.encode_commit(metadata)
        lock.check_lease()
        timeline = Timeline((*opened.timeline.instants, instant))
        done = timelines.complete(instant, timeline, data, lock.below(METADATA))
    except LakehouseError as error:
        # The action is still pending. Its log files must not remain next to the files of another attempt.
        with suppress(LakehouseError):
            store.remove_files(paths)
        if not isinstance(error, CommitStateUnknownError):
            raise
        raise RetryableError(
            f"{store.env.storage.root}: nothing was committed, because it is not known whether the metadata table "
            f"recorded {requested}: {error}",
            instant=requested,
        ) from error
    # The statistics do not name the first log files of new file groups, so these folders are listed again.
    listed = [name for name in opened.names if not updates[name].new_groups]
    store.keep_files(listed, opened.timeline, done, metadata.stats)
    sizes = {(stat.partition, stat.file_id): stat for stat in metadata.stats}
    for task in tasks:
        store.keep_log(done, sizes[task.partition, task.file_id], task.entries, task.deletes, task.rows)
    return Recorded(instant=done, paths=paths)


# parameters: the instant with its records, the functions that write them, and the profile in version 6
def _start(
    store: MetadataStore,
    requested: str,
    updates: Mapping[str, Update],
    writes: Sequence[Callable[[], WriteStat]],
    profile: CommitMetadata | None,
) -> tuple[Instant, tuple[WriteStat, ...]]:
    """Create the inflight instant and its log files; return it with their statistics, sorted by path.

    A profile is stored before the files, because a rollback by Hudi finds them through it.
    """
    timelines = store.timeline_store
    requested_instant = timelines.begin(requested, Action.DELTACOMMIT)
    created = [(name, file_id) for name, update in updates.items() for file_id in update.new_groups]
    send_all(store.env.storage, lambda group: _init_group(store, *group, requested), created)
    stats: Sequence[WriteStat | Instant]
    if profile is None:
        requests: list[Callable[[], WriteStat | Instant]] = [lambda: timelines.start(requested_instant, b""), *writes]
        started, *stats = send_all(store.env.storage, _call, requests)
    else:
        started = timelines.start(requested_instant, store.config.layout.encode_inflight(profile))
        stats = send_all(store.env.storage, _call, writes)
    assert isinstance(started, Instant)
    for name, update in updates.items():
        if update.new_groups:
            store.add_groups(name, update.new_groups)
    of_files = (stat for stat in stats if isinstance(stat, WriteStat))
    return started, tuple(sorted(of_files, key=lambda stat: stat.path))


def _call(request: Callable[[], T]) -> T:
    return request()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """The records of one file group, ascending by key, with decoded rows if available, and its deletes."""

    partition: str
    file_id: str
    entries: Entries
    deletes: pa.Array
    rows: pa.Table | None = None


def _tasks_of_mapping(name: str, update: Update, groups: Sequence[str]) -> list[GroupTask] | None:
    """Return the file groups that the entries of a mapping touch, or None if a kernel must hash the keys."""
    if not isinstance(update.entries, Mapping) or update.new_groups:
        return None
    deletes = update.deletes.to_pylist() if len(update.deletes) else []
    if len(groups) > 1 and not all(map(bytes.isascii, (*update.entries, *deletes))):
        return None
    of_group: dict[int, tuple[dict[bytes, bytes], list[bytes]]] = {}
    for key in sorted(update.entries):
        of_group.setdefault(shard_of(key, len(groups)), ({}, []))[0][key] = update.entries[key]
    for key in deletes:
        of_group.setdefault(shard_of(key, len(groups)), ({}, []))[1].append(key)
    return [
        GroupTask(
            partition=name, file_id=groups[number], entries=entries, deletes=pa.array(gone, KEYS) if gone else _NO_KEYS
        )
        for number, (entries, gone) in sorted(of_group.items())
    ]


def _group_tasks(
    name: str, update: Update, groups: Sequence[str], definition: Definition | None
) -> Iterable[GroupTask]:
    """Yield the file groups that an update touches."""
    if not entry_count(update.entries) and not len(update.deletes):
        return
    tasks = _tasks_of_mapping(name, update, groups)
    if tasks is not None:
        yield from tasks
        return
    groups = tuple(sorted({*groups, *update.new_groups}))
    kind = _kind(name)
    entries = ascending(update.entries).combine_chunks()
    if len(groups) == 1:
        yield GroupTask(partition=name, file_id=groups[0], entries=entries, deletes=update.deletes, rows=update.rows)
        return
    of_entries = np.asarray(kind.shards(name, entries.column("key").combine_chunks(), groups, definition))
    of_deletes = np.asarray(kind.shards(name, update.deletes, groups, definition))
    for shard in np.union1d(of_entries, of_deletes):
        is_here = pa.array(of_entries == shard)
        yield GroupTask(
            partition=name,
            file_id=groups[int(shard)],
            entries=entries.filter(is_here),
            rows=None if update.rows is None else update.rows.filter(is_here),
            deletes=update.deletes.filter(pa.array(of_deletes == shard)),
        )


def _write_group(store: MetadataStore, places: LogPlaces, created_ms: int, task: GroupTask) -> WriteStat:
    place = (task.partition, task.file_id)
    schema = written_schema(task.partition, store.definitions, store.records)
    kind = record_kind(task.partition, store.definitions.get(task.partition))
    entries = in_schema(task.entries, kind, schema)
    data = log_bytes(task.partition, log_headers(places.requested, schema), entries, task.deletes, created_ms)
    counts = (entry_count(task.entries), len(task.deletes))
    store.inner.storage.put(places.path(place), data)
    return places.stat(place, size_bytes=len(data), counts=counts)


def _copy_staged(store: MetadataStore, places: LogPlaces, partition: str, log: StagedLog) -> WriteStat:
    """Copy a log file that tasks prepared to its place, in pieces."""
    place = (partition, log.file_id)
    target = store.inner.storage.open_output(places.path(place))
    with store.env.storage.open_input(log.path) as source, target as sink:
        while piece := source.read(_COPY_BYTES):
            sink.write(piece)
    return places.stat(place, size_bytes=log.size_bytes, counts=(log.records, log.deletes))


def _init_group(store: MetadataStore, partition: str, file_id: str, requested: str) -> None:
    path = f"{partition}/{log_name(file_id, requested, INIT_TOKEN)}"
    store.inner.storage.put(path, init_log_bytes(requested))
