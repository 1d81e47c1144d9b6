"""Read the files of a metadata slice as layers: the entries of the base file and of each log block (MDT-5.3).

A layer reads entries only when they are asked for. A look-up of a few keys reads the blocks of the base file that can
contain them; log files are small and are kept in memory.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.reader import HFile, read_hfile
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.delete_block import decode_deletes
from lakehouse.core.format.log.scan import lost_blocks, settle_blocks
from lakehouse.core.metadata.hfiles import open_hfile
from lakehouse.core.metadata.read.cache import MetadataCache
from lakehouse.core.metadata.read.slices import MetadataSlice
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError
from lakehouse.model.files import BaseFile, LogFile

_READERS = 8
_VERSION_6 = 6
#: Files up to this size are read by one request and kept in memory.
SMALL_BYTES = 4 << 20

Select = Callable[[HFile], pa.Table]


@dataclass(frozen=True, slots=True)
class FileLayer:
    """A base file or a block of a log file: entries, or deleted keys.

    Attributes:
        path: The file, relative to the metadata table.
        hfile: The entries; None for a delete block.
        deletes: The deleted keys as text; None for entries.
    """

    path: str
    hfile: HFile | None = None
    deletes: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class _Log:
    """The blocks of one log file, each with its layer; blocks without records have none."""

    blocks: tuple[tuple[LogBlock, FileLayer | None], ...]


class LayerReader:
    """Opens the files of metadata slices; opened files stay in the cache."""

    def __init__(self, storage: Storage, cache: MetadataCache, completions: Mapping[str, str], *, version: int) -> None:
        self._storage, self._cache, self._version = storage, cache, version
        self._completions = completions

    def identity(self, file: BaseFile | LogFile) -> tuple[str, int, str]:
        """Return what identifies the content of a file. A metadata table that is built again has the same names."""
        return file.path, file.size_bytes, self._completions.get(file.instant, "")

    def layers(self, slice_: MetadataSlice, is_valid: Callable[[str], bool]) -> list[FileLayer]:
        """Return the layers that a reader merges, oldest first.

        Raises:
            CorruptTableError: A file is damaged, or a block of a valid instant is.
            NotFoundError: A file is missing.
        """
        missing = [log for log in slice_.logs if self._cache.peek(self.identity(log)) is None]
        if len(missing) > 1:
            with ThreadPoolExecutor(_READERS) as pool:
                list(pool.map(self._log, missing))
        logs = [self._log(log) for log in slice_.logs]
        placed = [(number, block) for number, log in enumerate(logs) for block, _ in log.blocks]
        if self._version > _VERSION_6:
            self._check_instants(slice_, placed)
        for number, block in lost_blocks(placed, is_valid, appended=self._version == _VERSION_6):
            raise CorruptTableError(
                f"{self._storage.root}/{slice_.logs[number].path} has a damaged block at byte {block.offset}",
                path=slice_.logs[number].path,
            )
        found = {id(block): layer for log in logs for block, layer in log.blocks}
        above = [found[id(block)] for _, block in settle_blocks(placed, is_valid)]
        base = [] if slice_.base is None else [self._base(slice_.base)]
        return base + [layer for layer in above if layer is not None]

    def _check_instants(self, slice_: MetadataSlice, placed: list[tuple[int, LogBlock]]) -> None:
        """Raise CorruptTableError for a block whose instant is not the one in the name of its file."""
        for number, block in placed:
            log = slice_.logs[number]
            if block.instant != log.instant and block.kind is not BlockType.CORRUPT:
                raise CorruptTableError(
                    f"{self._name(log.path)} has a block of {block.instant}; its name says {log.instant}", path=log.path
                )

    def _base(self, base: BaseFile) -> FileLayer:
        def opened() -> tuple[FileLayer, int]:
            if base.size_bytes > SMALL_BYTES:
                # The index has the first key of each block of at least 64 KB.
                return FileLayer(base.path, open_hfile(self._storage, base.path)), base.size_bytes >> 8
            data = self._storage.get(base.path)
            return FileLayer(base.path, read_hfile(data, name=self._name(base.path))), len(data)

        return self._cache.get(self.identity(base), opened)

    def _log(self, log: LogFile) -> _Log:
        def opened() -> tuple[_Log, int]:
            if log.size_bytes > SMALL_BYTES:
                with self._storage.open_input(log.path) as file:
                    blocks = scan_blocks(file)
                layers = [self._layer(log.path, block, None) for block in blocks]
            else:
                data = self._storage.get(log.path)
                blocks = scan_blocks(io.BytesIO(data))
                layers = [self._layer(log.path, block, memoryview(data)) for block in blocks]
            return _Log(tuple(zip(blocks, layers, strict=True))), min(log.size_bytes, SMALL_BYTES)

        try:
            return self._cache.get(self.identity(log), opened)
        except CorruptTableError as error:
            raise CorruptTableError(f"{self._name(log.path)}: {error.message}", **error.facts) from error

    def _layer(self, path: str, block: LogBlock, data: memoryview | None) -> FileLayer | None:
        if block.kind is BlockType.HFILE_DATA:
            if data is not None:
                content = data[block.offset : block.offset + block.length]
                return FileLayer(path, read_hfile(content, name=self._name(path)))

            def read(offset: int, length: int) -> bytes:
                wanted = min(length, block.length - offset)
                return self._storage.get_range(path, block.offset + offset, wanted) if wanted > 0 else b""

            return FileLayer(path, HFile(read, block.length, name=self._name(path)))
        if block.kind is BlockType.DELETE:
            stored = (
                data[block.offset : block.offset + block.length]
                if data is not None
                else self._storage.get_range(path, block.offset, block.length)
            )
            deleted = decode_deletes(bytes(stored), [pa.int32()])
            partition = path.partition("/")[0]
            if not pc.all(pc.equal(deleted.partitions, partition), min_count=0).as_py():
                raise CorruptTableError(f"a delete block has keys of another partition than {partition}")
            return FileLayer(path, deletes=deleted.keys)
        if block.kind in (BlockType.COMMAND, BlockType.CORRUPT):
            return None
        raise CorruptTableError(f"{self._name(path)} has a {block.kind.name} block, which a metadata table never has")

    def _name(self, path: str) -> str:
        return f"{self._storage.root}/{path}"


def all_entries(file: HFile) -> pa.Table:
    """Return all entries of a file."""
    return file.entries()


def entries_of(keys: pa.Array) -> Select:
    """Return a function that finds the entries of keys, which are sorted binary values."""
    return lambda file: file.find(keys)


def entries_with(prefixes: pa.Array) -> Select:
    """Return a function that finds the entries whose keys begin with one of the prefixes, sorted binary values."""
    return lambda file: file.find_prefixes(prefixes)


def sorted_keys(keys: Sequence[str] | pa.Array) -> pa.Array:
    """Return distinct keys as sorted binary values."""
    array: Any = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys, pa.string())
    distinct = pc.unique(array.cast(pa.binary()))
    return distinct.take(pc.sort_indices(distinct))
