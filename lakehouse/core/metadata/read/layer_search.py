"""Look keys up in the layers of a file group, from the newest layer to the oldest one (MDT-4, MDT-5).

Only found entries are decoded. Large log files of this release are not compressed, so a look-up reads the blocks that
can contain its keys. Log files of Apache Hudi are compressed, and the keys of a batch are in all of their blocks; a
process keeps their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.reader import OpenedEntries
from lakehouse.core.format.metadata.locations import LOCATION_ROWS, decode_locations
from lakehouse.core.format.metadata.merge import Layer
from lakehouse.core.format.metadata.statistics import STAT_ROWS
from lakehouse.core.metadata.read.layers import FileLayer, MetadataCache, Select
from lakehouse.core.state.data_files import one_array
from lakehouse.errors import CorruptTableError

#: Maximum number of entries to cache per file; larger files are searched block by block each time.
_MOST_ROWS = 100_000
#: Share of a file's entries above which a look-up reads nearly all compressed blocks of the file.
_SHARE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The entries of a layer that a look-up found, or their rows if the layer is in memory as rows."""

    file: FileLayer
    entries: pa.Table | None = None
    rows: pa.Table | None = None

    @property
    def keys(self) -> Any:
        """The found keys as binary values."""
        entries = self.rows if self.rows is not None else self.entries
        if entries is None:
            return pa.array([], pa.binary())
        return entries.column("key").cast(pa.binary())


def located_in_layers(files: Sequence[FileLayer], keys: Any, cache: MetadataCache) -> list[Located]:
    """Return the entries with some keys (sorted binary values) in the layers of a file group.

    The newest record of a key is its location. So layers are searched from the newest one to the oldest one, each for
    the keys that no newer layer contains or deletes. Each key is in at most one result.
    """
    located = []
    for file in reversed(files):
        if not len(keys):
            break
        one = _located(file, keys, cache)
        decided = one.keys if file.has_entries else file.deletes
        if decided is not None and len(decided):
            keys = keys.filter(pc.invert(pc.is_in(keys, value_set=_one(decided.cast(pa.binary())))))
        located.append(one)
    return located


def _located(file: FileLayer, keys: Any, cache: MetadataCache) -> Located:
    """Return the entries of keys (sorted binary values) in one layer.

    The entries of a compressed log file are cached when a look-up reads a large share of its blocks, or when the file
    is searched for the second time. Uncompressed blocks are searched in place.
    """
    select = Select(keys=keys)
    if file.hfile is None:
        # The entries of a small block that this process wrote are in memory.
        text = file.schema
        return Located(file=file, rows=None if text is None else select.rows(file, decode_locations, text))
    is_dense = len(keys) * _SHARE >= file.hfile.count
    if not 0 < file.hfile.count <= _MOST_ROWS or not (is_dense or file.hfile.is_compressed):
        return Located(file=file, entries=select.entries(file.hfile))
    key = ("locations", id(file))
    held = cache.peek(key)
    # The cached value refers to the file object, so that no other object gets the same id.
    is_known = held is not None and held[0] is file
    if not is_known and not is_dense:
        cache.put(key, (file, None), 0)
        return Located(file=file, entries=select.entries(file.hfile))
    opened: OpenedEntries | None = held[1] if is_known else None
    if opened is None:
        opened = file.hfile.opened()
        # The bytes of an uncompressed file are already counted.
        shared = 0 if file.hfile.is_compressed else int(opened.cells.data.nbytes)
        cache.put(key, (file, opened), opened.nbytes - shared)
    return Located(file=file, entries=opened.find(keys))


def decoded_together(located: Sequence[Located]) -> list[Layer]:
    """Return the layers of a look-up. Files of one schema are decoded by one call.

    The decoder takes several milliseconds for any number of entries.

    Raises:
        CorruptTableError: An entry is malformed, or a file with entries has no schema.
    """
    of_schema: dict[str, list[pa.Table]] = {}
    for one in located:
        if one.entries is not None and one.entries.num_rows:
            of_schema.setdefault(_schema(one.file), []).append(one.entries)
    rows = {text: decode_locations(pa.concat_tables(of), text) for text, of in of_schema.items()}
    taken = dict.fromkeys(of_schema, 0)
    layers = []
    for one in located:
        if one.rows is not None:
            layers.append(Layer(one.rows))
        elif one.entries is None or not one.entries.num_rows:
            layers.append(Layer(LOCATION_ROWS.empty_table(), one.file.deletes))
        else:
            text, count = _schema(one.file), one.entries.num_rows
            layers.append(Layer(rows[text].slice(taken[text], count)))
            taken[text] += count
    return layers


def _schema(file: FileLayer) -> str:
    text = None if file.hfile is None else file.hfile.schema
    if text is None:
        raise CorruptTableError(f"{file.path} has no schema in its file info", path=file.path)
    return text


def _one(column: Any) -> Any:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array


def newest_statistics(
    tasks: Iterable[tuple[Sequence[FileLayer], pa.Array | None]], decoded: Callable[[FileLayer, pa.Array], Layer]
) -> pa.Table | None:
    """Return the records for keys as `STAT_ROWS`, or None if records have to be merged with older ones.

    A commit repeats the rows of its partitions with tight bounds, which replace older rows. So keys are usually in the
    newest layers, and older layers are neither searched nor decoded.

    Args:
        tasks: The layers of file slices, oldest first, each with sorted binary keys.
        decoded: Returns the rows in a layer for some keys, or its deleted keys.
    """
    tables = [STAT_ROWS.empty_table()]
    for layers, wanted in tasks:
        rest: Any = wanted
        for file in reversed(layers):
            if not len(rest):
                break
            layer = decoded(file, rest)
            rows = layer.rows
            is_final = pc.and_(rows.column("tight"), pc.invert(rows.column("deleted")))
            if not pc.all(is_final, min_count=0).as_py():
                return None
            tables.append(rows)
            for keys in (rows.column("key"), layer.deletes):
                if keys is not None and len(keys):
                    rest = rest.filter(pc.invert(pc.is_in(rest, value_set=one_array(keys.cast(pa.binary())))))
    return pa.concat_tables(tables)
