"""Loading what an operation needs to know: config, timeline, schema, files. Each listing and read is counted dear."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa

from lakehouse.core.files.base_reader import BaseFileReader
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow
from lakehouse.core.format.file_names import parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.format.properties import parse_properties
from lakehouse.core.format.timeline.commit_metadata import decode_requested_replace
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.planning.schema import normalise
from lakehouse.core.state.file_system_view import (
    DataFile,
    Group,
    VisibleTimeline,
    all_slices,
    duplicates,
    first_write,
    latest_slices,
    replacements,
    unplaced,
    visible_timeline,
)
from lakehouse.core.state.table_config import TableConfig, parse_table_config
from lakehouse.core.storage.nested_tables import HOODIE, nested_tables, without
from lakehouse.core.storage.protocol import FileInfo, Level, NotFoundError, Storage
from lakehouse.core.timeline.env import Env
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.function import deployment_functions

logger = logging.getLogger(__name__)

PROPERTIES = ".hoodie/hoodie.properties"
_BACKUP = ".hoodie/hoodie.properties.backup"
_LISTERS = 8
_ARCHIVED_AT_ONCE = 64
_TABLE_TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """A table as it was at one load."""

    env: Env
    config: TableConfig
    store: TimelineStore
    timeline: Timeline

    def reload(self) -> LoadedTable:
        """Return the table as it is now; metadata of commits already read is kept."""
        return LoadedTable(env=self.env, config=self.config, store=self.store, timeline=self.store.load())

    def refresh(self) -> LoadedTable:
        """Return the table as it is now, its properties read again: another writer may have upgraded it."""
        config = _readable_config(self.env, self.config.allowed_functions)
        if config == self.config:
            return self.reload()
        store = TimelineStore(self.env, config)
        return LoadedTable(env=self.env, config=config, store=store, timeline=store.load())


def load_table(env: Env, *, allowed_functions: Iterable[str] = ()) -> LoadedTable:
    """Read config and timeline; raise UserError if there is no table, UnsupportedError for what cannot be read.

    `allowed_functions` are the functions that the table may name, beside those that the deployment allows.
    """
    config = _readable_config(env, tuple(allowed_functions))
    store = TimelineStore(env, config)
    return LoadedTable(env=env, config=config, store=store, timeline=store.load())


def _readable_config(env: Env, allowed_functions: tuple[str, ...]) -> TableConfig:
    config = load_config(env.storage, allowed_functions)
    if config.table_type not in _TABLE_TYPES:
        raise UnsupportedError(
            f"{env.storage.root}: table type {config.table_type} is not supported; {' and '.join(_TABLE_TYPES)} are"
        )
    if config.base_file_format != "PARQUET":
        raise UnsupportedError(
            f"{env.storage.root}: base file format {config.base_file_format} is not supported; PARQUET is"
        )
    return config


def load_config(storage: Storage, allowed_functions: tuple[str, ...] = ()) -> TableConfig:
    """Read hoodie.properties, or its backup if an update died half-way; see `load_table` for `allowed_functions`."""
    allowed = tuple(dict.fromkeys((*allowed_functions, *deployment_functions(os.environ))))
    for path in (PROPERTIES, _BACKUP):
        try:
            data = storage.get(path)
        except NotFoundError:
            continue
        return parse_table_config(parse_properties(data), storage.root, allowed_functions=allowed)
    raise UserError(
        f"{storage.root} is not a Hudi table: it has no {PROPERTIES}. Create it with `lakehouse table create` "
        "or Table.create(...)",
        location=storage.root,
    )


def latest_extra(table: LoadedTable, key: str) -> str | None:
    """Return the value of `key` in the extra metadata of the newest completed write that has it."""
    found = latest_commit(table, key)
    return None if found is None else found[1].extra[key]


def latest_commit(
    table: LoadedTable, key: str, value: str | None = None, *, archived: bool = True
) -> tuple[Instant, CommitMetadata] | None:
    """Return the newest completed write whose extra metadata has `key` (with this value, if one is given).

    If none on the timeline has it, the archived ones are searched, unless `archived` is False.
    """
    for instant in reversed(table.timeline.writes().by_completion()):
        metadata = table.store.commit(instant)
        carried = metadata.extra.get(key)
        if carried and value in (None, carried):
            return instant, metadata
    if not archived:
        return None
    # Commits brought over from version 6 are JSON, where some characters stand as others.
    is_plain = value is not None and value.isascii() and not set(value) & set('"\\')
    for instant, metadata in _archived_commits(table, containing=value if value and is_plain else key):
        carried = metadata.extra.get(key)
        if carried and value in (None, carried):
            return instant, metadata
    return None


def archived_writes(
    table: LoadedTable, *, requested_from: str = "", requested_up_to: str | None = None, completed_after: str = ""
) -> Timeline:
    """Return the archived writes within these bounds, the upper one inclusive.

    What is archived and not older than the timeline was undone after all; what is on it, too, is left out.
    """
    first = first_write(table.timeline)
    if not first:
        return Timeline()
    last = first if requested_up_to is None else min(first, requested_up_to)
    found = table.store.archived(requested_from=requested_from, requested_up_to=last, completed_after=completed_after)
    known = {instant.key for instant in table.timeline}
    return Timeline(tuple(i for i in found if i.requested < first and i.key not in known))


def with_archived(table: LoadedTable, completed_after: str) -> LoadedTable:
    """Return the table with the archived writes on its timeline, if one of them completed after this time."""
    if not archived_writes(table, completed_after=completed_after):
        return table
    return replace(table, timeline=Timeline((*archived_writes(table), *table.timeline)))


def writes_since(table: LoadedTable, before: Timeline, now: Timeline) -> list[Instant]:
    """Return the writes completed `now` that were not completed `before`, those archived since included."""
    known = {instant.requested for instant in before.writes()}
    current = now.writes()
    found = [instant for instant in current if instant.requested not in known]
    # Who archives takes commits that were there before, too, but for those that are younger than all of them.
    if known - {instant.requested for instant in current} or (found and not known):
        latest = max((instant.completion for instant in before.writes()), default="")
        archived = archived_writes(replace(table, timeline=now), completed_after=latest)
        found = [*(instant for instant in archived if instant.requested not in known), *found]
    return found


def _archived_commits(
    table: LoadedTable, *, requested_up_to: str | None = None, containing: str = ""
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Yield archived writes, that which completed last first, a few being read at a time.

    Those whose metadata does not hold the text `containing` are left out.
    """
    found = archived_writes(table, requested_up_to=requested_up_to).by_completion()
    newest_first = tuple(reversed(found))
    for start in range(0, len(newest_first), _ARCHIVED_AT_ONCE):
        yield from table.store.archived_commits(newest_first[start : start + _ARCHIVED_AT_ONCE], containing)


def table_schema(table: LoadedTable, up_to: str | None = None) -> pa.Schema | None:
    """Return the schema of the data columns: latest commit, else the one declared, else a data file; None if empty.

    Raises UnsupportedError for a table whose columns were renamed or reordered by id (schema on read).
    """
    writes = table.timeline.writes().where(requested_up_to=up_to).by_completion()
    for instant in reversed(writes):
        metadata = table.store.commit(instant)
        if metadata.extra.get("latest_schema"):
            raise UnsupportedError(
                f"{table.env.storage.root}: {instant.requested} evolved the schema by column ids "
                "(hoodie.schema.on.read.enable), which is not supported: renamed columns would be taken for new ones",
                instant=instant.requested,
            )
        if metadata.extra.get("schema"):
            return _as_created(table.config, data_columns(avro_to_arrow(metadata.extra["schema"])))
    for _, metadata in _archived_commits(table, requested_up_to=up_to, containing="schema"):
        if metadata.extra.get("schema"):
            return _as_created(table.config, data_columns(avro_to_arrow(metadata.extra["schema"])))
    if table.config.create_schema:
        return data_columns(avro_to_arrow(table.config.create_schema))
    for instant in reversed(writes):
        for stat in table.store.commit(instant).stats:
            if parse_base_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes) is not None:
                reader = BaseFileReader(table.env.storage, stat.path)
                return data_columns(normalise(reader.schema))
    return None


def _as_created(config: TableConfig, schema: pa.Schema) -> pa.Schema:
    """Return `schema` with the sources of TIMESTAMP partition fields in the type they were created with.

    UPDATE and DELETE of Hudi's SQL write such a column as text (its digits) and declare it so from then on, which its
    own key generator could not read back. The values are what they were.
    """
    timestamps = [
        f
        for f, kind in zip(config.keys.partition_fields, config.keys.partition_types, strict=False)
        if kind == "TIMESTAMP" and f in schema.names
    ]
    if not timestamps or not config.create_schema:
        return schema
    created = avro_to_arrow(config.create_schema)
    for name in timestamps:
        position = schema.get_field_index(name)
        if name in created.names and pa.types.is_string(schema.field(position).type):
            schema = schema.set(position, schema.field(position).with_type(created.field(name).type))
    return schema


def data_columns(schema: pa.Schema) -> pa.Schema:
    """Return the schema without meta columns."""
    return pa.schema([field for field in schema if field.name not in META_COLUMNS])


def recent_metadata(table: LoadedTable, count: int = 3) -> list[CommitMetadata]:
    """Return the metadata of the newest completed writes, newest first."""
    instants = table.timeline.writes().by_completion()[-count:]
    return [metadata for _, metadata in reversed(table.store.commits(instants))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Newest slices of some partitions, and the listing they were made of: sizes of all files by path.

    `partitions`, `keep`, `as_of` and `completed_up_to` are those the listing was asked for with.
    """

    slices: tuple[FileSlice, ...]
    sizes: Mapping[str, int]
    visible: VisibleTimeline
    partitions: tuple[str, ...] | None = None
    keep: Callable[[str], bool] | None = None
    as_of: str | None = None
    completed_up_to: str | None = None

    def covers(self) -> Callable[[str], bool]:
        """Return whether a partition was listed, as a function that asks once of each."""
        wanted = None if self.partitions is None else frozenset(self.partitions)

        @cache
        def covered(partition: str) -> bool:
            if wanted is not None and partition not in wanted:
                return False
            if self.keep is None:
                return True
            if wanted is not None or not partition:
                return not partition or self.keep(partition)
            levels = partition.split("/")
            return all(self.keep("/".join(levels[:depth])) for depth in range(1, len(levels) + 1))

        return covered


def load_listing(
    table: LoadedTable,
    partitions: Sequence[str] | None = None,
    *,
    as_of: str | None = None,
    completed_up_to: str | None = None,
    keep: Callable[[str], bool] | None = None,
) -> Listing:
    """List partitions (all when None, less those `keep` rules out) and return the newest visible slices in them.

    `keep` is asked of every directory on the way to the partitions, see `list_data_files`.
    """
    found = _list_files(table, partitions, keep)
    files = [data for file in found if (data := _data_file(table, file, change_logs=False)) is not None]
    visible = placed(table, files, load_visible(table, as_of=as_of, completed_up_to=completed_up_to))
    return Listing(
        slices=latest_slices(files, visible, layout=table.config.layout, named=_named(table, files, visible)),
        sizes={file.path: file.size_bytes for file in found},
        visible=visible,
        partitions=None if partitions is None else tuple(partitions),
        keep=keep,
        as_of=as_of,
        completed_up_to=completed_up_to,
    )


def load_slices(
    table: LoadedTable,
    partitions: Sequence[str] | None = None,
    *,
    as_of: str | None = None,
    completed_up_to: str | None = None,
    keep: Callable[[str], bool] | None = None,
) -> tuple[FileSlice, ...]:
    """Return the newest visible slices of partitions, see `load_listing`."""
    return load_listing(table, partitions, as_of=as_of, completed_up_to=completed_up_to, keep=keep).slices


def load_all_slices(
    table: LoadedTable, visible: VisibleTimeline, partitions: Sequence[str] | None = None
) -> dict[Group, tuple[FileSlice, ...]]:
    """List partitions (all when None) and return every slice of every group, newest first, replaced groups too."""
    return slices_of(table, list_data_files(table, partitions), visible)


def slices_of(
    table: LoadedTable, files: Sequence[DataFile], visible: VisibleTimeline
) -> dict[Group, tuple[FileSlice, ...]]:
    """Return every slice that some files make up, newest first, replaced groups too; change logs are in none."""
    files = [file for file in files if isinstance(file, BaseFile) or not file.suffix]
    visible = placed(table, files, visible)
    return all_slices(files, visible, layout=table.config.layout, named=_named(table, files, visible))


def load_visible(
    table: LoadedTable, *, as_of: str | None = None, completed_up_to: str | None = None, completions: bool = False
) -> VisibleTimeline:
    """Return what a query with these bounds sees of the timeline; reads the metadata of the replacecommits.

    With `completions` the archive is asked when its writes completed (see also `placed`).
    """
    replaced = replacements(table.store.commits(table.timeline.writes().where(action=Action.REPLACECOMMIT)))
    visible = visible_timeline(table.timeline, replaced, as_of=as_of, completed_up_to=completed_up_to)
    if not completions:
        return visible
    return replace(visible, archived={instant.requested: instant.completion for instant in archived_writes(table)})


def placed(table: LoadedTable, files: Iterable[DataFile], visible: VisibleTimeline) -> VisibleTimeline:
    """Return `visible` with the completion of archived instants where it decides which slice a log is in."""
    asked = unplaced(files, visible, layout=table.config.layout) - visible.archived.keys()
    if not asked:
        return visible
    found = archived_writes(table, requested_from=min(asked), requested_up_to=max(asked))
    return replace(visible, archived={instant.requested: instant.completion for instant in found})


def list_base_files(table: LoadedTable, partitions: Iterable[str] | None = None) -> list[BaseFile]:
    """Return all base files of some partitions, or of the whole table, committed or not."""
    return [file for file in list_data_files(table, partitions) if isinstance(file, BaseFile)]


def list_data_files(
    table: LoadedTable,
    partitions: Iterable[str] | None = None,
    *,
    keep: Callable[[str], bool] | None = None,
    change_logs: bool = False,
) -> list[DataFile]:
    """Return all base and log files of some partitions, or of the whole table, committed or not.

    With `keep` the table is listed level by level, and a directory it says False of is not entered: it gets paths
    relative to the table, such as "region=eu" and then "region=eu/day=2026-01-31". Partitions that are given are each
    listed if `keep` says True of them. With `change_logs` files of changes (`.cdc`), which are in no slice, count too.
    """
    found = _list_files(table, partitions, keep)
    return [data for file in found if (data := _data_file(table, file, change_logs)) is not None]


def _list_files(
    table: LoadedTable, partitions: Iterable[str] | None, keep: Callable[[str], bool] | None
) -> list[FileInfo]:
    storage = table.env.storage
    with ThreadPoolExecutor(_LISTERS) as pool:
        if partitions is not None:
            wanted = [partition for partition in partitions if keep is None or keep(partition)]
            listings = dict(zip(wanted, pool.map(storage.list_dir, wanted), strict=True))
            found = [file for files, _ in _own_levels(storage, listings).values() for file in files]
        elif keep is not None:
            found = _list_kept(storage, pool, keep)
        else:
            found, directories = storage.list_dir("")
            below = pool.map(storage.list, _partition_roots(directories))
            found = own_files(storage, found + [file for listing in below for file in listing])
    return found


def own_files(storage: Storage, files: list[FileInfo]) -> list[FileInfo]:
    """Return the files of a recursive listing that are not those of a table inside the table's folder."""
    nested = nested_tables(files)
    for directory in nested:
        _skipped(storage, directory)
    return without(files, nested) if nested else files


def _own_levels(storage: Storage, listings: Mapping[str, Level]) -> dict[str, Level]:
    """Return listings by directory, less those of directories that are tables of their own."""
    for directory, (_, names) in listings.items():
        if directory and HOODIE in names:
            _skipped(storage, directory)
    return {directory: level for directory, level in listings.items() if not directory or HOODIE not in level[1]}


def _skipped(storage: Storage, directory: str) -> None:
    logger.warning("%s: %s is a table of its own, and its files are not looked at", storage.root, directory)


def _list_kept(storage: Storage, pool: ThreadPoolExecutor, keep: Callable[[str], bool]) -> list[FileInfo]:
    files, directories = storage.list_dir("")
    level = [name for name in _partition_roots(directories) if keep(name)]
    while level:
        listings = _own_levels(storage, dict(zip(level, pool.map(storage.list_dir, level), strict=True)))
        files = files + [file for found, _ in listings.values() for file in found]
        below = [f"{parent}/{name}" for parent, (_, names) in listings.items() for name in names]
        level = [path for path in below if keep(path)]
    return files


def _partition_roots(directories: Iterable[str]) -> list[str]:
    # Any other name may be a partition's, that of null values begins with an underscore.
    return [name for name in directories if name != HOODIE]


def _named(
    table: LoadedTable, files: Sequence[DataFile], visible: VisibleTimeline
) -> dict[tuple[str, str, str], frozenset[str]]:
    """Return what commits name where tasks left files of several tries."""
    named: dict[tuple[str, str, str], set[str]] = {}
    several = sorted(duplicates(files, layout=table.config.layout))
    asked = [instant for requested in several if (instant := visible.instants.get(requested)) is not None]
    old = [requested for requested in several if requested not in visible.instants and visible.shows(requested)]
    if old:
        archived = archived_writes(table, requested_from=old[0], requested_up_to=old[-1])
        asked += [instant for instant in archived if instant.requested in old]
    for instant, metadata in table.store.commits(asked):
        for stat in metadata.stats:
            # Files that a task rolled over to have stats of their own.
            names = named.setdefault((stat.partition, stat.file_id, instant.requested), set())
            names.add(stat.path.rpartition("/")[2])
    return {key: frozenset(names) for key, names in named.items()}


def pending_clustering(table: LoadedTable) -> dict[tuple[str, str], str]:
    """Return the groups that a pending clustering plan holds: (partition, file id) -> instant."""
    held: dict[tuple[str, str], str] = {}
    for instant in table.timeline.where(action={Action.CLUSTERING, Action.REPLACECOMMIT}, pending=True):
        plan = table.store.read(instant, State.REQUESTED)
        for partition, file_ids in (decode_requested_replace(plan) if plan else {}).items():
            held.update({(partition, file_id): instant.requested for file_id in file_ids})
    return held


def pending_compactions(table: LoadedTable) -> dict[Group, str]:
    """Return the groups that pending compactions and log compactions hold: (partition, file id) -> instant.

    Raises CorruptTableError for a pending compaction without plan.
    """
    held: dict[Group, str] = {}
    for instant in table.timeline.where(action={Action.COMPACTION, Action.LOGCOMPACTION}, pending=True):
        data = table.store.read(instant, State.REQUESTED)
        if not data:
            raise CorruptTableError(
                f"{table.env.storage.root}: {instant.action} {instant.requested} is pending but has no plan; "
                "restore its .requested file, or roll the instant back with Hudi",
                instant=instant.requested,
            )
        for operation in decode_compaction_plan(data).operations:
            held[(operation.partition, operation.file_id)] = instant.requested
    return held


def log_compactions(table: LoadedTable) -> frozenset[str]:
    """Return the instants of completed log compactions, which stand on the timeline as delta commits.

    Reads the metadata of every delta commit, so only who plans a log compaction should ask.
    """
    deltas = table.timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    return frozenset(
        instant.requested
        for instant, metadata in table.store.commits(deltas)
        if metadata.operation == Operation.LOG_COMPACT
    )


def pending_writes(table: LoadedTable) -> tuple[Instant, ...]:
    """Return pending instants that a writer left, not those of table services (compactions have their own actions)."""
    held = set(pending_clustering(table).values())
    writes = table.timeline.where(action={Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT}, pending=True)
    return tuple(instant for instant in writes if instant.requested not in held)


def _data_file(table: LoadedTable, file: FileInfo, change_logs: bool) -> DataFile | None:
    partition, _, name = file.path.rpartition("/")
    base = parse_base_file(name, partition, file.size_bytes)
    if base is None:
        log = parse_log_file(name, partition, file.size_bytes)
        if log is not None and table.config.table_type == "COPY_ON_WRITE":
            raise CorruptTableError(f"{table.env.storage.root}: log file {file.path} in a copy-on-write table")
        return parse_cdc_file(name, partition, file.size_bytes) if log is None and change_logs else log
    if base.extension != "parquet":
        raise UnsupportedError(
            f"{table.env.storage.root}/{file.path}: base files of format {base.extension} are not supported"
        )
    return base
