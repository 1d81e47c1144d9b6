"""Read a metadata table: listings, statistics, record locations, bloom filters, secondary indexes (MDT-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.env import Env
from lakehouse.core.format.memory import release_unused
from lakehouse.core.format.metadata import keys
from lakehouse.core.format.metadata.groups import partition_shards, shard_of
from lakehouse.core.format.metadata.locations import LOCATION_ROWS
from lakehouse.core.format.metadata.records import BLOOM_ROWS
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.partitions.record_index import is_partitioned_by
from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.metadata.read.layer_search import (
    Located,
    decoded_together,
    located_in_layers,
    newest_statistics,
)
from lakehouse.core.metadata.read.layers import (
    FileLayer,
    LayerReader,
    Select,
    decoded_layer,
    kept_filters,
    sorted_keys,
)
from lakehouse.core.metadata.read.slices import (
    MetadataSlice,
    metadata_slices,
    require_bases,
    require_logs,
    slices_by_partition,
)
from lakehouse.core.metadata.read.unusable import MetadataUnusableError, Unusable, reading
from lakehouse.core.metadata.read.validity import Validity, missing_instants, validity
from lakehouse.core.metadata.record_kinds import STATISTICS, RecordKind, record_kind
from lakehouse.core.metadata.small.look_up import small_listing, small_statistics
from lakehouse.core.metadata.small.records import Statistic
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.state.data_files import LISTING
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Timeline
from lakehouse.model.partition_kind import PartitionKind, partition_kind

FILES, COLUMN_STATS, PARTITION_STATS = "files", "column_stats", "partition_stats"
RECORD_INDEX, BLOOM_FILTERS = "record_index", "bloom_filters"

BLOOMS = pa.schema([("partition", pa.string()), ("name", pa.string()), *list(BLOOM_ROWS)[1:]])
MATCHES = pa.schema([("value", pa.string()), ("record_key", pa.string())])

_READERS = 8
#: Maximum number of partitions to look up; for more partitions all files are read and cached.
_FEW_PARTITIONS = 256

#: Converts the merged rows of one file group into another table.
Each = Callable[[pa.Table], pa.Table]


def open_for_reading(store: MetadataStore, data: Timeline) -> MetadataTable | Unusable:
    """Return the metadata table for readers of one data table version; lists the metadata timeline once.

    Args:
        store: The metadata table on storage, with the properties of the data table.
        data: The timeline of the data table. It must have been loaded before this call.
    """
    usable, building = listed_partitions(store.config.raw)
    root = store.inner.storage.root
    if FILES not in usable:
        if FILES in building:
            return Unusable(f"{root} is being built", is_fault=False)
        return Unusable(f"the properties of {store.env.storage.root} list no metadata table", is_fault=False)
    try:
        metadata = store.timeline_store.load()
    except CorruptTableError as error:
        return Unusable(f"{root}: {error.message}", is_fault=True)
    if not any(instant.is_completed for instant in metadata):
        reason = f"{root} does not exist, but the table's properties list it"
        return Unusable(reason, is_fault=True, is_absent=True)
    missing = missing_instants(metadata, data)
    if missing:
        return Unusable(
            f"{root} is behind: it has no delta commit for the {missing[0].action} {missing[0].requested}"
            f" ({len(missing)} in all). Run `lakehouse metadata rebuild`",
            is_fault=True,
        )
    return MetadataTable(store, usable, validity(metadata, data))


class MetadataTable:
    """The metadata table for a reader with a loaded version of the data timeline.

    Listings and file statistics are also valid for time travel. Statistics of partitions, record locations and
    secondary indexes describe the newest version of the data table only.

    All methods raise MetadataUnusableError if a file is damaged, or contradicts another one; the message names it.

    Attributes:
        usable: The index partitions that may be read.
    """

    def __init__(
        self,
        store: MetadataStore,
        usable: Sequence[str],
        validity: Validity,
        slices: Mapping[str, tuple[MetadataSlice, ...]] | None = None,
    ) -> None:
        """Create a reader of the usable index partitions; `slices` are the file slices by partition, if known."""
        self.usable = tuple(usable)
        self._store, self._validity = store, validity
        self._layers = LayerReader(store.inner.storage, store.cache, validity.completions, store.config)
        self._slices: dict[str, tuple[MetadataSlice, ...]] = dict(slices or {})

    @property
    def layout(self) -> TableLayout:
        """The layout of the table."""
        return self._store.config.layout

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """The index definitions by the name of their index partition. They are read when they are first needed."""
        with reading():
            return read_definitions(self._store.env.storage)

    def partition_paths(self) -> pa.Array:
        """Return the partition paths of the data table, sorted."""

        def read() -> tuple[pa.Array, int]:
            rows = self._find(FILES, sorted_keys([keys.ALL_PARTITIONS]))
            live = rows.filter(pc.invert(rows.column("deleted"))).column("name")
            paths = keys.paths(live.combine_chunks())
            paths = paths.take(pc.sort_indices(paths))
            return paths, paths.nbytes

        with reading():
            return self._store.cache.get(("paths", self.identity(FILES)), read)

    def listing(self, partitions: Iterable[str] | None = None) -> pa.Table:
        """Return the files of some partitions, or of all, as `LISTING`; change logs are included.

        A partition that has no record has no files. The files of pending actions are not listed.
        """
        with reading():
            wanted = None if partitions is None else list(dict.fromkeys(partitions))
            few = None if wanted is None else small_listing(self._layers_of_files, wanted, LISTING)
            return _listing_of_rows(self._files_of(wanted)) if few is None else few

    def ranges(self, columns: Sequence[str], files: pa.Table | None = None, *, each: Each | None = None) -> pa.Table:
        """Return column statistics per file as `STAT_ROWS`; `typed_statistics` converts the bounds of one column.

        Args:
            columns: Dotted paths of columns.
            files: The files, with the columns `partition` and `name`; None means all files of the table.
            each: Without `files`: reduces the statistics of each file group, so that only its result stays in memory.
        """
        with reading():
            if files is None:
                return self._statistics(COLUMN_STATS, keys.hash64(pa.array(columns, pa.string())), each)
            count = files.num_rows
            wanted = [
                keys.column_stats_keys(
                    pa.repeat(pa.scalar(name), count), files.column("partition"), files.column("name")
                )
                for name in columns
            ]
            return self._find(COLUMN_STATS, sorted_keys(pa.concat_arrays(wanted) if wanted else []))

    def ranges_in(self, columns: Sequence[str], partitions: Iterable[str]) -> pa.Table:
        """Return column statistics for each file in some partitions as `STAT_ROWS`."""
        with reading():
            paths = pa.array(list(partitions), pa.string())
            prefixes = [keys.partition_stats_keys(_repeated(name, len(paths)), paths) for name in columns]
            return self._statistics(COLUMN_STATS, pa.concat_arrays(prefixes) if prefixes else pa.array([], pa.string()))

    def partition_ranges(self, columns: Sequence[str], partitions: Iterable[str] | None = None) -> pa.Table:
        """Return column statistics per partition as `STAT_ROWS`; `name` is the partition path.

        `partitions` None means all partitions.
        """
        with reading():
            if partitions is None:
                return self._statistics(PARTITION_STATS, keys.hash64(pa.array(columns, pa.string())))
            paths = pa.array(list(partitions), pa.string())
            wanted = [keys.partition_stats_keys(_repeated(name, len(paths)), paths) for name in columns]
            return self._find(PARTITION_STATS, sorted_keys(pa.concat_arrays(wanted) if wanted else []))

    def locations(self, record_keys: Any, partitions: Iterable[str] | None = None) -> pa.Table:
        """Return where records are, as `LOCATION_ROWS`; keys without record have no row.

        Args:
            record_keys: Array of strings.
            partitions: The data partitions to search, for a partitioned record index; None means all of them. One key
                may have a row for each of them. A global record index ignores it.
        """
        with reading():
            wanted = sorted_keys(record_keys)
            groups = self.slices(RECORD_INDEX)
            by_partition = slices_by_partition(groups)
            if not groups:
                return LOCATION_ROWS.empty_table()
            if not by_partition:
                return self._find(RECORD_INDEX, wanted)
            searched = by_partition if partitions is None else [path for path in partitions if path in by_partition]
            tasks = [
                (slice_, part) for path in searched for slice_, part in self._shard(by_partition[path], wanted, "")
            ]
            return self._merged(RECORD_INDEX, tasks)

    @property
    def is_partitioned_record_index(self) -> bool:
        """Whether the record index has separate file groups for each data partition."""
        with reading():
            return is_partitioned_by(self.definitions.get(RECORD_INDEX))

    def task_locations(self) -> TaskLocations:
        """Return a picklable reader of the record index, for tasks."""
        slices = self.slices(RECORD_INDEX)
        return TaskLocations(self._store.env.storage, self._store.config, self._validity, slices)

    def task_filters(self) -> TaskFilters:
        """Return a picklable reader of the bloom filters, for tasks."""
        slices = self.slices(BLOOM_FILTERS)
        return TaskFilters(self._store.env.storage, self._store.config, self._validity, slices)

    def bloom_filters(self, files: pa.Table) -> pa.Table:
        """Return the bloom filters of base files as `BLOOMS`; files without filter have no row.

        `files` has the columns `partition` and `name`.
        """
        with reading():
            return kept_filters(self._store.cache.filters, files, self._stored_filters, BLOOMS)

    def _stored_filters(self, files: pa.Table) -> pa.Table:
        wanted = keys.bloom_keys(files.column("partition"), files.column("name"))
        rows = self._find(BLOOM_FILTERS, sorted_keys(wanted))
        place = pc.index_in(rows.column("key"), value_set=wanted).combine_chunks()
        columns = [_one(files.column(name)).take(place) for name in ("partition", "name")]
        return pa.table([*columns, *rows.columns[1:]], schema=BLOOMS)

    def secondary_matches(self, index: str, values: Any) -> pa.Table:
        """Return the record keys of secondary values as `MATCHES`.

        Args:
            index: The index partition, such as `secondary_index_city`.
            values: Array of the values as strings; null is a value.
        """
        with reading():
            prefixes = keys.secondary_prefixes(
                pc.unique(_one(pa.array(values) if isinstance(values, list) else values))
            )
            rows = self._with_prefix(index, sorted_keys(prefixes))
            split = keys.split_secondary_keys(rows.column("key"))
            return split.select(["value", "record_key"]).cast(MATCHES)

    def expression_ranges(self, index: str, column: str, *, partitions: bool = False) -> pa.Table:
        """Return the statistics in an expression index as `STAT_ROWS`, per file or per partition."""
        with reading():
            prefix = keys.hash64(pa.array([column]))
            if partitions:
                marker = keys.hash64(pa.array([keys.PARTITION_STAT]))
                prefix = pc.binary_join_element_wise(prefix, marker, "")
            rows = self._statistics(index, prefix)
            # File rows and partition rows have keys with different lengths below the same column.
            length = 3 * keys.HASH64_CHARS if partitions else 2 * keys.HASH64_CHARS + keys.HASH128_CHARS
            return rows.filter(pc.equal(pc.utf8_length(rows.column("key")), length))

    def records(self, partition: str, prefixes: pa.Array | None = None) -> pa.Table:
        """Return the merged and decoded records of an index partition: all, or records whose key begins with a prefix.

        For the partition `files` they include tombstones without a matching file. Each key is checked to be in the file
        group of its shard.
        """
        with reading():
            tasks = [(slice_, Select(prefixes=prefixes)) for slice_ in self.slices(partition)]
            return self._merged(partition, tasks, check=True)

    def records_of_groups(self, partition: str) -> Iterator[tuple[str, pa.Table]]:
        """Yield the id and the records (see `records`) of each file group; only one group is in memory at a time."""
        with reading():
            groups = self.slices(partition)
        for slice_ in groups:
            with reading():
                rows = self._merged(partition, [(slice_, Select())], check=True)
            yield slice_.file_id, rows

    def layers(self, partition: str, file_id: str) -> list[FileLayer]:
        """Return the layers of a file group, oldest first."""
        with reading():
            (group,) = [slice_ for slice_ in self.slices(partition) if slice_.file_id == file_id]
            return self._layers.layers(group, self._validity.is_valid)

    def slices(self, partition: str) -> tuple[MetadataSlice, ...]:
        """Return the file slices of an index partition, sorted by file id. Lists its folder again if it changed."""
        if partition not in self._slices:
            self._slices[partition] = self._listed(partition)
        return self._slices[partition]

    def identity(self, partition: str) -> tuple[Any, ...]:
        """Return a value that changes with the content of an index partition."""
        with reading():
            return (partition, *(self._content_key(slice_) for slice_ in self.slices(partition)))

    def _listed(self, partition: str) -> tuple[MetadataSlice, ...]:
        with reading():
            (files,) = self._store.folders([partition], frozenset(self._validity.completions.items()))
            slices = metadata_slices(
                files, partition, self._validity, layout=self._store.config.layout, archived=self._archived
            )
        definition = None if slices else self.definitions.get(partition)
        # A record index with one index for each data partition has no file groups before the first write.
        if not slices and not is_partitioned_by(definition):
            raise MetadataUnusableError(
                f"{self._store.inner.storage.root}/{partition} has no file groups, but the table's properties list it"
            )
        if self._store.config.layout.has_completion_times:
            with reading():
                place = f"{self._store.inner.storage.root}/{partition}"
                commit = self._store.timeline_store.commit
                require_bases(place, slices, self._validity, lambda instant: commit(instant).stats)
            if partition == FILES:
                require_logs(place, slices, self._validity)
        return slices

    def _archived(self, instants: list[str]) -> dict[str, str]:
        archive = self._store.timeline_store.archived_timeline
        held = archive.instants(requested_from=instants[0], requested_up_to=instants[-1])
        return {instant.requested: instant.completion for instant in held if instant.is_completed}

    def _files_of(self, partitions: list[str] | None) -> pa.Table:
        """Return merged rows of `files` for some partitions; all rows are cached once they were read."""
        (slice_,) = self._single(FILES)
        if partitions is None:
            return self._all_files(slice_)
        wanted = keys.identifiers(pa.array(partitions, pa.string()))
        if len(partitions) <= _FEW_PARTITIONS and self._store.cache.peek(self._content_key(slice_)) is None:
            return self._find(FILES, sorted_keys(wanted))
        rows = self._all_files(slice_)
        return rows.filter(pc.is_in(rows.column("key"), value_set=wanted))

    def _layers_of_files(self) -> list[FileLayer]:
        (slice_,) = self._single(FILES)
        return self._layers.layers(slice_, self._validity.is_valid)

    def _single(self, partition: str) -> tuple[MetadataSlice, ...]:
        slices = self.slices(partition)
        if len(slices) != 1:
            raise MetadataUnusableError(
                f"{self._store.inner.storage.root}/{partition} has {len(slices)} file groups; readers expect one"
            )
        return slices

    def _content_key(self, slice_: MetadataSlice) -> tuple[Any, ...]:
        """Return the identity of a slice's merged rows; the log files are opened if their names contain no instant."""
        if self._store.config.layout.appends_to_logs:
            layers = self._layers.layers(slice_, self._validity.is_valid)
            return ("merged", *((layer.path, *layer.place) for layer in layers))
        visible = [self._layers.identity(log) for log in slice_.logs if self._validity.is_valid(log.instant)]
        return ("merged", slice_.base and self._layers.identity(slice_.base), *visible)

    def _all_files(self, slice_: MetadataSlice) -> pa.Table:
        def made() -> tuple[pa.Table, int]:
            rows = _ordered_rows(self._merged(FILES, [(slice_, Select())]))
            release_unused(after=rows)
            return rows, rows.nbytes

        return self._store.cache.get(self._content_key(slice_), made)

    def found(self, partition: str, wanted: pa.Array) -> pa.Table:
        """Return the merged records of these keys, which are sorted binary values."""
        with reading():
            kind = self._kind(partition)
            if kind is STATISTICS:
                parts = self._shard(self.slices(partition), wanted, "")
                tasks = [(self._layers.layers(slice_, self._validity.is_valid), part.keys) for slice_, part in parts]
                rows = newest_statistics(
                    tasks, lambda file, held: decoded_layer(file, kind.decode, Select(keys=held), kind.rows)
                )
                if rows is not None:
                    return rows
            return self._find(partition, wanted)

    def small_statistics(self, partition: str, wanted: Sequence[bytes]) -> dict[bytes, Statistic] | None:
        """Return the merged statistics of a few keys; keys without record are left out.

        Returns None if `found` has to be used, because records have to be merged or were written by another release.
        """
        with reading():
            groups = self.slices(partition)
            of_group: dict[int, list[bytes]] = {}
            for key in wanted:
                of_group.setdefault(shard_of(key, len(groups)), []).append(key)
            rows: dict[bytes, Statistic] = {}
            for number, keys_of in of_group.items():
                layers = self._layers.layers(groups[number], self._validity.is_valid)
                part = small_statistics(layers, keys_of)
                if part is None:
                    return None
                rows |= part
            return rows

    def _find(self, partition: str, wanted: pa.Array) -> pa.Table:
        """Return the merged records of keys, which are sorted binary values."""
        groups = self.slices(partition)
        return self._merged(partition, self._shard(groups, wanted, self._version(partition), partition))

    def _statistics(self, partition: str, prefixes: pa.Array, each: Each | None = None) -> pa.Table:
        return self._with_prefix(partition, sorted_keys(prefixes), each)

    def _with_prefix(self, partition: str, prefixes: pa.Array, each: Each | None = None) -> pa.Table:
        """Return the merged records whose keys begin with one of the prefixes, which are sorted binary values."""
        groups, version = self.slices(partition), self._version(partition)
        if version == "V2":
            return self._merged(partition, self._shard(groups, prefixes, version, partition, prefixes=True))
        return self._merged(partition, [(slice_, Select(prefixes=prefixes)) for slice_ in groups], each=each)

    def _version(self, partition: str) -> str:
        """Return the version of an index definition, where it decides the shard of keys."""
        if partition_kind(partition) is not PartitionKind.SECONDARY_INDEX:
            return ""
        definition = self.definitions.get(partition)
        return "V1" if definition is None else definition.version

    # parameters: the keys, and the values that determine their file groups
    def _shard(
        self,
        groups: Sequence[MetadataSlice],
        wanted: pa.Array,
        version: str,
        partition: str = "",
        *,
        prefixes: bool = False,
    ) -> list[tuple[MetadataSlice, Select]]:
        """Return the file groups that may contain keys or prefixes, each with its keys or prefixes."""
        shard = partition_shards(partition, wanted, len(groups), version)
        numbers = np.unique(shard).tolist()
        parts = [wanted.filter(pa.array(shard == number)) for number in numbers]
        return [
            (groups[number], Select(prefixes=part) if prefixes else Select(keys=part))
            for number, part in zip(numbers, parts, strict=True)
        ]

    def _merged(
        self,
        partition: str,
        tasks: Sequence[tuple[MetadataSlice, Select]],
        *,
        check: bool = False,
        each: Each | None = None,
    ) -> pa.Table:
        """Return the merged records that each task selects, or the results of `each`."""
        kind = self._kind(partition)
        schema = kind.rows
        if partition == RECORD_INDEX and len(tasks) > 1 and all(select.keys is not None for _, select in tasks):
            locations = self._joint_locations(tasks)
            if locations is not None:
                return locations
        numbers = {slice_.file_id: number for number, slice_ in enumerate(self.slices(partition))} if check else {}

        def merged(task: tuple[MetadataSlice, Select]) -> pa.Table:
            slice_, select = task
            files = self._layers.layers(slice_, self._validity.is_valid)
            layers = [decoded_layer(file, kind.decode, select, schema) for file in files]
            rows = kind.merge(layers) if layers else schema.empty_table()
            del layers
            if check:
                self._check_shards(partition, slice_, rows, numbers[slice_.file_id], len(numbers))
            if each is not None:
                rows = each(rows)
            release_unused(after=rows)
            return rows

        if len(tasks) <= 1 or self._store.inner.storage.root.startswith("/"):
            # Threads would not help: local files are read without waiting, and the allocator would keep the memory of
            # each thread.
            if not tasks:
                return schema.empty_table() if each is None else each(schema.empty_table())
            return pa.concat_tables([merged(task) for task in tasks])
        with ThreadPoolExecutor(min(_READERS, len(tasks))) as pool:
            return pa.concat_tables(list(pool.map(merged, tasks)))

    def _joint_locations(self, tasks: Sequence[tuple[MetadataSlice, Select]]) -> pa.Table | None:
        """Return the newest locations of keys, decoded by one call for all files; None if a file is damaged.

        The decoder takes several milliseconds for any number of entries, and each file group has several layers.
        """

        def selected(task: tuple[MetadataSlice, Select]) -> list[Located]:
            slice_, select = task
            files = self._layers.layers(slice_, self._validity.is_valid)
            return located_in_layers(files, select.keys, self._store.cache)

        try:
            with ThreadPoolExecutor(min(_READERS, len(tasks))) as pool:
                located = list(pool.map(selected, tasks))
            layers = decoded_together([one for of_task in located for one in of_task])
        except CorruptTableError:
            return None
        return pa.concat_tables([LOCATION_ROWS.empty_table(), *(layer.rows for layer in layers)])

    def _check_shards(self, partition: str, slice_: MetadataSlice, rows: pa.Table, number: int, count: int) -> None:
        if slices_by_partition((slice_,)) and partition == RECORD_INDEX:
            return
        shards = partition_shards(partition, rows.column("key"), count, self._version(partition))
        if (shards != number).any():
            key = rows.column("key")[int(np.flatnonzero(shards != number)[0])].as_py()
            place = slice_.base.path if slice_.base else slice_.logs[0].path
            raise MetadataUnusableError(
                f"{self._store.inner.storage.root}/{place}: key {key!r} is in file group {number}, but its hash selects"
                f" {shards[shards != number][0]} of {count}"
            )

    def _kind(self, partition: str) -> RecordKind:
        is_defined = partition_kind(partition) is PartitionKind.EXPRESSION_INDEX
        return record_kind(partition, self.definitions.get(partition) if is_defined else None)


@dataclass(frozen=True, slots=True)
class TaskLocations:
    """The record index for one table version, as a value that is sent to tasks: it opens the files again."""

    storage: Storage
    config: TableConfig
    validity: Validity
    slices: tuple[MetadataSlice, ...]

    def locations(self, record_keys: Any, partitions: Iterable[str] | None = None) -> pa.Table:
        """Return where records are; see `MetadataTable.locations`."""
        store = MetadataStore(Env(storage=self.storage), self.config)
        table = MetadataTable(store, (RECORD_INDEX,), self.validity, {RECORD_INDEX: self.slices})
        return table.locations(record_keys, partitions)


@dataclass(frozen=True, slots=True)
class TaskFilters:
    """The bloom filters for one table version, as a value that is sent to tasks: it opens the files again."""

    storage: Storage
    config: TableConfig
    validity: Validity
    slices: tuple[MetadataSlice, ...]

    def bloom_filters(self, files: pa.Table) -> pa.Table:
        """Return the filters of base files; see `MetadataTable.bloom_filters`."""
        store = MetadataStore(Env(storage=self.storage), self.config)
        return MetadataTable(store, (BLOOM_FILTERS,), self.validity, {BLOOM_FILTERS: self.slices}).bloom_filters(files)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _ordered_rows(rows: pa.Table) -> pa.Table:
    """Return `FILE_ROWS` sorted by key and name, live files first: a listing is then a slice without a copy."""
    ranked = rows.select(["key", "name"]).append_column("dead", pa.array(~_live(rows)))
    order = np.asarray(pc.sort_indices(ranked, [(name, "ascending") for name in ("dead", "key", "name")]))
    return rows if np.array_equal(order, np.arange(len(order))) else rows.take(pa.array(order)).combine_chunks()


def _listing_of_rows(rows: pa.Table) -> pa.Table:
    """Return the files of the table among `FILE_ROWS` as `LISTING`; ordered rows are not copied."""
    is_live = _live(rows)
    count = int(np.count_nonzero(is_live))
    live = rows.slice(0, count) if is_live[:count].all() else rows.filter(pa.array(is_live))
    return pa.table([keys.paths(live.column("key")), live.column("name"), live.column("size_bytes")], schema=LISTING)


def _live(rows: pa.Table) -> NDArray[np.bool_]:
    """Return a mask of the rows that are files of the table, and neither tombstones nor partition names."""
    is_file = pc.not_equal(rows.column("key"), keys.ALL_PARTITIONS)
    return np.asarray(pc.and_(pc.invert(rows.column("deleted")), is_file)).astype(bool)
