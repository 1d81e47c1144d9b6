"""Read the files of a metadata slice as layers: the entries of the base file and the log blocks (MDT-5.3).

A layer reads entries only when they are needed. A look-up of a few keys reads the blocks of the base file that can
contain them; log files are small and are kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.entries import Entries, entry_bytes, entry_count, entry_mapping, entry_table
from lakehouse.core.format.hfile.reader import KEPT_SHIFT, HFile, read_hfile
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.scan import lost_blocks, settle_blocks
from lakehouse.core.format.memory import release_unused
from lakehouse.core.format.metadata.merge import Layer
from lakehouse.core.format.metadata.records import decode_blooms
from lakehouse.core.format.metadata.schema import SCHEMA
from lakehouse.core.metadata.hfiles import mapped_file, open_hfile
from lakehouse.core.metadata.read.slices import MetadataSlice
from lakehouse.core.metadata.read.unusable import MetadataUnusableError
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError
from lakehouse.model.files import BaseFile, LogFile

T = TypeVar("T")

#: The maximum number of cached bytes, as estimated by the callers.
CACHE_BYTES = 192 << 20
#: The maximum number of cached bytes of bloom filters. The limit is separate, because filters would displace all other
#: entries.
FILTER_BYTES = 64 << 20
#: Files up to this size are read by one request and kept in memory.
SMALL_BYTES = 4 << 20
#: The same for local storage. Larger local files are memory-mapped, because a look-up needs only some of their pages.
MAPPED_BYTES = 256 << 10

#: Maximum number of entries of files that are decoded once, as a whole.
DECODED_ROWS = 2000
#: Estimated maximum size of a decoded row in bytes.
_ROW_BYTES = 400
#: Number of bytes that are decoded at a time.
_DECODED_AT_ONCE = 1 << 20
#: Number of prefixes above which the file's index finds entries faster than a comparison of all rows.
_FEW_PREFIXES = 8

Decode = Callable[[pa.Table, str], pa.Table]


@dataclass(frozen=True, slots=True)
class Select:
    """The entries of a file to read: entries of keys, entries whose keys begin with a prefix, or all.

    Keys and prefixes are sorted binary values; None for both means all entries.
    """

    keys: pa.Array | None = None
    prefixes: pa.Array | None = None

    def entries(self, file: HFile) -> pa.Table:
        """Return the entries of a file."""
        if self.keys is not None:
            return file.find(self.keys)
        return file.entries() if self.prefixes is None else file.find_prefixes(self.prefixes)

    def rows(self, file: FileLayer, decode: Decode, schema: str) -> pa.Table:
        """Return the decoded entries of a layer with entries; a small layer is decoded once, unless it has filters."""
        has_many = self.prefixes is not None and len(self.prefixes) > _FEW_PREFIXES
        if file.hfile is not None and (file.count > DECODED_ROWS or has_many or decode is decode_blooms):
            return _decoded_in_parts(decode, self.entries(file.hfile), schema)
        if not file.decoded:
            file.decoded.append(decode(file.entries(), schema))
        rows = file.decoded[0]
        if self.keys is None and self.prefixes is None:
            return rows
        stored = rows.column("key").cast(pa.binary())
        if self.keys is not None:
            return rows.filter(pc.is_in(stored, value_set=self.keys))
        is_found: Any = np.zeros(rows.num_rows, np.bool_)
        for prefix in (self.prefixes or pa.array([], pa.binary())).to_pylist():
            is_found |= np.asarray(pc.starts_with(stored, prefix))
        return rows.filter(pa.array(is_found))


@dataclass(frozen=True, slots=True)
class FileLayer:
    """A base file or a block of a log file: entries, or deleted keys.

    Attributes:
        path: The file, relative to the metadata table.
        place: The size of the file, and the offset of the block in a log file. A block that this process wrote has a
            small number instead of an offset.
        hfile: The entries; None for a delete block, and for a block that this process wrote.
        deletes: The deleted keys as strings; None for entries.
        written: The entries of a small block that this process wrote, ascending by key, with the schema `SCHEMA`.
        decoded: All entries as rows, if they were decoded; the kind of a record depends on the file only.
        stored_schema: The Avro schema that the file of `written` contains.
        values: All entries by key, if they were looked up one by one.
    """

    path: str
    place: tuple[int, int]
    hfile: HFile | None = None
    deletes: pa.Array | None = None
    written: Entries | None = None
    decoded: list[pa.Table] = field(default_factory=list, compare=False)
    stored_schema: str | None = None
    values: list[Mapping[bytes, bytes]] = field(default_factory=list, compare=False)

    @property
    def has_entries(self) -> bool:
        """Whether this is not a delete block."""
        return self.hfile is not None or self.written is not None

    @property
    def count(self) -> int:
        """The number of entries; 0 for a delete block."""
        if self.written is not None:
            return entry_count(self.written)
        return 0 if self.hfile is None else self.hfile.count

    @property
    def schema(self) -> str | None:
        """The Avro schema of the values as JSON; None if the file does not contain it."""
        if self.written is not None:
            return SCHEMA
        return None if self.hfile is None else self.hfile.schema

    @property
    def file_schema(self) -> str | None:
        """The Avro schema that the file contains; None for a delete block, or if the file does not contain it."""
        return self.stored_schema if self.hfile is None else self.hfile.schema

    def entries(self) -> pa.Table:
        """Return all entries."""
        if self.written is not None:
            return entry_table(self.written)
        assert self.hfile is not None, "delete blocks have no entries"
        return self.hfile.entries()

    def stored(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of a few keys; keys without entry are left out."""
        if self.hfile is not None and self.count > DECODED_ROWS:
            return {**entry_mapping(self.hfile.find(pa.array(sorted(keys), pa.binary())))}
        held = self.all_stored()
        return {key: held[key] for key in keys if key in held}

    def all_stored(self) -> Mapping[bytes, bytes]:
        """Return and cache the values of all keys in a small layer."""
        if not self.values:
            self.values.append(entry_mapping(self.entries() if self.written is None else self.written))
        return self.values[0]

    def deleted(self) -> frozenset[bytes]:
        """Return the deleted keys."""
        texts = [] if self.deletes is None else self.deletes.to_pylist()
        return frozenset(text.encode() for text in texts)


@dataclass(frozen=True, slots=True)
class _Log:
    """The blocks of one log file, each with its layer, or None if the block contains no records."""

    blocks: tuple[tuple[LogBlock, FileLayer | None], ...]
    #: The layers, or None unless all blocks have the instant of the file and contain records or deletes.
    own_layers: tuple[FileLayer, ...] | None


def _log_of(log: LogFile, blocks: Sequence[LogBlock], layers: Sequence[FileLayer | None]) -> _Log:
    own = tuple(layer for layer in layers if layer is not None)
    is_own = all(block.instant == log.instant and not block.compacted for block in blocks)
    return _Log(tuple(zip(blocks, layers, strict=True)), own if is_own and len(own) == len(blocks) else None)


def _written(log: LogFile, instant: str, layers: Sequence[FileLayer]) -> _Log:
    """Return a log file that this process wrote for a delta commit, with one layer for each block."""
    headers = {BlockHeader.INSTANT_TIME: instant}
    kinds = [BlockType.HFILE_DATA if layer.has_entries else BlockType.DELETE for layer in layers]
    blocks = [LogBlock(kind=kind, headers=headers, offset=0, length=0) for kind in kinds]
    return _log_of(log, blocks, layers)


class LayerReader:
    """Opens the files of metadata slices; opened files stay in the cache."""

    def __init__(
        self, storage: Storage, cache: MetadataCache, completions: Mapping[str, str], config: TableConfig
    ) -> None:
        self._storage, self._cache, self._appended = storage, cache, config.layout.appends_to_logs
        self._decode_deletes = config.decode_deletes
        self._completions = completions
        self._small = SMALL_BYTES if "://" in storage.root else MAPPED_BYTES

    def identity(self, file: BaseFile | LogFile) -> tuple[str, int, str]:
        """Return the identity of a file's content.

        File names alone are not sufficient, because a metadata table that is built again has the same names.
        """
        # Files of version 6 are named after their slice, and there are no completion times.
        completion = "" if self._appended else self._completions.get(file.instant, "")
        return file.path, file.size_bytes, completion

    def keep_base(self, base: BaseFile, entries: Entries, schema: str) -> None:
        """Keep a small base file that this process wrote and completed with a schema, so that it is not read."""
        size = entry_bytes(entries) + _ROW_BYTES * entry_count(entries)
        layer = FileLayer(base.path, (base.size_bytes, 0), written=entries, stored_schema=schema)
        self._cache.put(self.identity(base), layer, size)

    def keep_log(
        self, log: LogFile, instant: str, content: tuple[Entries, pa.Array], rows: pa.Table | None = None
    ) -> tuple[str, int, str]:
        """Keep a log file that this process wrote for a completed delta commit, so that it is not read.

        `content` are its entries and its deleted keys. Returns its identity.
        """
        entries, deletes = content
        decoded = [] if rows is None else [rows]
        count = entry_count(entries)
        layers = [FileLayer(log.path, (log.size_bytes, 0), written=entries, decoded=decoded)] if count else []
        if len(deletes):
            layers.append(FileLayer(log.path, (log.size_bytes, 1), deletes=deletes.cast(pa.string())))
        size = entry_bytes(entries) + deletes.nbytes + _ROW_BYTES * count
        self._cache.put(self.identity(log), _written(log, instant, layers), size)
        return self.identity(log)

    def layers(self, slice_: MetadataSlice, is_valid: Callable[[str], bool]) -> list[FileLayer]:
        """Return the layers that a reader merges, oldest first.

        Raises:
            CorruptTableError: A file is damaged, or a block of a valid instant is.
            NotFoundError: A file is missing.
        """
        missing = [log for log in slice_.logs if self._cache.peek(self.identity(log)) is None]
        if len(missing) > 1:
            send_all(self._storage, self._log, missing)
        logs = [self._log(log) for log in slice_.logs]
        if not self._appended and not all(log.blocks for log in logs):
            self._check_empty(slice_, logs, is_valid)
        base = [] if slice_.base is None else [self._base(slice_.base)]
        return [*base, *self._layers_of_logs(slice_, logs, is_valid)]

    def _layers_of_logs(
        self, slice_: MetadataSlice, logs: Sequence[_Log], is_valid: Callable[[str], bool]
    ) -> Iterable[FileLayer]:
        """Return the layers for the valid blocks of logs, oldest first."""
        if not self._appended and all(log.own_layers is not None for log in logs):
            visible = (log for file, log in zip(slice_.logs, logs, strict=True) if is_valid(file.instant))
            return [layer for log in visible for layer in log.own_layers or ()]
        placed = [(number, block) for number, log in enumerate(logs) for block, _ in log.blocks]
        if not self._appended:
            self._check_instants(slice_, placed)
        for number, block in lost_blocks(placed, is_valid, appended=self._appended):
            raise CorruptTableError(
                f"{self._storage.root}/{slice_.logs[number].path} has a damaged block at byte {block.offset}",
                path=slice_.logs[number].path,
            )
        layers = {id(block): layer for log in logs for block, layer in log.blocks}
        settled = (layers[id(block)] for _, block in settle_blocks(placed, is_valid))
        return [layer for layer in settled if layer is not None]

    def _check_empty(self, slice_: MetadataSlice, logs: Sequence[_Log], is_valid: Callable[[str], bool]) -> None:
        """Raise CorruptTableError for a log file without blocks, unless a retried task wrote another one."""
        written = {file.instant for file, log in zip(slice_.logs, logs, strict=True) if log.blocks}
        for file, log in zip(slice_.logs, logs, strict=True):
            if not log.blocks and file.instant not in written and is_valid(file.instant):
                raise CorruptTableError(
                    f"{self._name(file.path)} has no blocks, but {file.instant} completed", path=file.path
                )

    def _check_instants(self, slice_: MetadataSlice, placed: list[tuple[int, LogBlock]]) -> None:
        """Raise CorruptTableError for a block whose instant is not the one in the name of its file."""
        for number, block in placed:
            log = slice_.logs[number]
            if block.instant != log.instant and block.kind is not BlockType.CORRUPT:
                raise CorruptTableError(
                    f"{self._name(log.path)} has a block of {block.instant}; its name says {log.instant}", path=log.path
                )

    def _base(self, base: BaseFile) -> FileLayer:
        place = (base.size_bytes, 0)

        def opened() -> tuple[FileLayer, int]:
            if base.size_bytes > self._small:
                # The index contains the first key of each block with at least 64 KB; a share of the blocks is cached.
                size = (base.size_bytes >> 8) + (base.size_bytes >> KEPT_SHIFT)
                return FileLayer(base.path, place, open_hfile(self._storage, base.path)), size
            data = self._storage.get(base.path)
            layer = FileLayer(base.path, place, read_hfile(data, name=self._name(base.path)))
            return layer, len(data) + _ROW_BYTES * _decoded_rows(layer)

        return self._cache.get(self.identity(base), opened)

    def _log(self, log: LogFile) -> _Log:
        def opened() -> tuple[_Log, int]:
            data = mapped_file(self._storage, log.path) if log.size_bytes > self._small else None
            is_mapped = data is not None
            if log.size_bytes <= self._small:
                data = memoryview(self._storage.get(log.path))
            if data is None:
                with self._storage.open_input(log.path) as file:
                    blocks = scan_blocks(file)
            else:
                blocks = scan_blocks(pa.BufferReader(pa.py_buffer(data)))
            layers = [self._layer(log, block, data) for block in blocks]
            rows = sum(_decoded_rows(layer) for layer in layers)
            size = log.size_bytes >> 8 if is_mapped else min(log.size_bytes, SMALL_BYTES)
            return _log_of(log, blocks, layers), size + _ROW_BYTES * rows

        try:
            return self._cache.get(self.identity(log), opened)
        except CorruptTableError as error:
            raise CorruptTableError(f"{self._name(log.path)}: {error.message}", **error.facts) from error

    def _layer(self, log: LogFile, block: LogBlock, data: memoryview | None) -> FileLayer | None:
        path, place = log.path, (log.size_bytes, block.offset)
        if block.kind is BlockType.HFILE_DATA:
            if data is not None:
                content = data[block.offset : block.offset + block.length]
                return FileLayer(path, place, read_hfile(content, name=self._name(path)))

            def read(offset: int, length: int) -> bytes:
                wanted = min(length, block.length - offset)
                return self._storage.get_range(path, block.offset + offset, wanted) if wanted > 0 else b""

            return FileLayer(path, place, HFile(read, block.length, name=self._name(path)))
        if block.kind is BlockType.DELETE:
            stored = (
                data[block.offset : block.offset + block.length]
                if data is not None
                else self._storage.get_range(path, block.offset, block.length)
            )
            deleted = self._decode_deletes(bytes(stored), [pa.int32()])
            partition = path.partition("/")[0]
            if not pc.all(pc.equal(deleted.partitions, partition), min_count=0).as_py():
                raise CorruptTableError(f"a delete block has keys of another partition than {partition}")
            return FileLayer(path, place, deletes=deleted.keys)
        if block.kind in (BlockType.COMMAND, BlockType.CORRUPT):
            return None
        raise CorruptTableError(f"{self._name(path)} has a {block.kind.name} block, which a metadata table never has")

    def _name(self, path: str) -> str:
        return f"{self._storage.root}/{path}"


class MetadataCache:
    """A thread-safe LRU cache, bounded by the sum of its values' sizes.

    Files of a metadata table never change, so a key that names a file stays valid.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit, self._used = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self._filters: MetadataCache | None = None
        #: The result of the last load: the loaded table, and its reader or the reason why there is no reader.
        self.opened: tuple[Any, Any] | None = None

    @property
    def filters(self) -> MetadataCache:
        """The bloom filters of base files, by partition and name of the file. The filter of a file never changes."""
        if self._filters is None:
            self._filters = MetadataCache(FILTER_BYTES)
        return self._filters

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """Return the value of a key; `make` returns it with its size if it is missing. Two threads may both make it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                value: T = self._values[key][0]
                return value
        value, size = make()
        self.put(key, value, size)
        return value

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value, unless it is larger than the bound."""
        if size > self._limit:
            return
        with self._lock:
            self._used += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = (value, size)
            while self._used > self._limit:
                self._used -= self._values.popitem(last=False)[1][1]

    def drop(self, key: Hashable) -> None:
        """Remove the value of a key, if there is one."""
        with self._lock:
            self._used -= self._values.pop(key, (None, 0))[1]

    def peek(self, key: Hashable) -> Any:
        """Return the value of a key, or None if it is missing."""
        with self._lock:
            return self._values[key][0] if key in self._values else None


def kept_filters(
    cache: MetadataCache, files: pa.Table, read: Callable[[pa.Table], pa.Table], schema: pa.Schema
) -> pa.Table:
    """Return the rows of the files that have a filter; `read` returns the rows of files whose filter is not kept.

    Args:
        cache: The kept filters, by partition and name of the file. The filter of a file never changes.
        files: The files, with the columns `partition` and `name`.
        read: Reads filters from the metadata table.
        schema: The columns of rows: partition, name, values, and last the serialized filter.
    """
    places = list(zip(*(files.column(name).to_pylist() for name in ("partition", "name")), strict=True))
    filters = {place: held for place in places if (held := cache.peek(place)) is not None}
    missing = files.filter(pa.array([place not in filters for place in places], pa.bool_()))
    if missing.num_rows:
        columns = (column.to_pylist() for column in read(missing).columns)
        for partition, name, *values in zip(*columns, strict=True):
            filters[partition, name] = values
    for place, held in filters.items():
        # Filters that were kept before become the newest ones.
        cache.put(place, held, len(held[-1] or b""))
    rows = [(*place, *filters[place]) for place in places if place in filters]
    return pa.table([pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)], schema)


def decoded_layer(file: FileLayer, decode: Decode, select: Select, schema: pa.Schema) -> Layer:
    """Decode the selected entries of a file; raise MetadataUnusableError, with the file name, if it is damaged."""
    if not file.has_entries:
        return Layer(schema.empty_table(), file.deletes)
    text = file.schema
    if text is None:
        if file.count == 0:
            return Layer(schema.empty_table())
        raise MetadataUnusableError(f"{file.path} has no schema in its file info", path=file.path)
    try:
        return Layer(select.rows(file, decode, text))
    except MetadataUnusableError:
        raise
    except Exception as error:
        if not hasattr(error, "message"):
            raise
        raise MetadataUnusableError(f"{file.path}: {error.message}", path=file.path) from error


def _decoded_in_parts(decode: Decode, entries: pa.Table, schema: str) -> pa.Table:
    """Return decoded entries. Decoding needs several times the memory of its input, so large inputs are divided."""
    rows = entries.num_rows
    at_once = max(rows * _DECODED_AT_ONCE // max(entries.nbytes, 1), 1)
    if at_once >= rows:
        return decode(entries, schema)
    parts = [decode(entries.slice(at, at_once), schema) for at in range(0, rows, at_once)]
    del entries
    decoded = pa.concat_tables(parts).combine_chunks()
    parts.clear()
    # Arrow's allocator still holds the memory that the parts needed.
    release_unused(after=decoded)
    return decoded


def _decoded_rows(layer: FileLayer | None) -> int:
    """Return the number of entries in a layer that are cached after decoding."""
    count = 0 if layer is None else layer.count
    return count if count <= DECODED_ROWS else 0


def sorted_keys(keys: Sequence[str] | pa.Array) -> pa.Array:
    """Return distinct keys as sorted binary values."""
    array: Any = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys, pa.string())
    distinct = pc.unique(array.cast(pa.binary()))
    return distinct.take(pc.sort_indices(distinct))
