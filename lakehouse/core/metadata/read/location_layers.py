"""Look record keys up in the layers of a record index (MDT-4, MDT-5.3).

A log file of the record index is compressed, and the keys of a batch are in all of its blocks. A process that looks
keys up again and again, such as a stream, therefore keeps the locations of a log file decoded. A process that looks
keys up once decodes only the entries that it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.metadata.locations import LOCATION_ROWS, decode_locations
from lakehouse.core.format.metadata.merge import Layer
from lakehouse.core.metadata.read.cache import MetadataCache
from lakehouse.core.metadata.read.layers import FileLayer, Select
from lakehouse.errors import CorruptTableError

#: Files with more entries are searched in their blocks each time.
_MOST_ROWS = 100_000
_SMALL = pa.dictionary(pa.int32(), pa.string())
#: Few distinct partitions and file ids occur in one file.
_KEPT = pa.schema([("key", pa.binary()), ("partition", _SMALL), ("file_id", _SMALL), ("instant_ms", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The entries of a layer that a look-up found, or their rows if the layer is kept decoded."""

    file: FileLayer
    entries: pa.Table | None = None
    rows: pa.Table | None = None


def located(file: FileLayer, select: Select, cache: MetadataCache) -> Located:
    """Return what a layer has for the keys of `select`, which are sorted binary values.

    A layer is decoded as a whole when it is searched for the second time.
    """
    if file.hfile is None:
        # The entries of a small block that this process wrote are in memory.
        text = file.schema
        return Located(file=file, rows=None if text is None else select.rows(file, decode_locations, text))
    if file.hfile.count > _MOST_ROWS or not file.hfile.count or file.hfile.schema is None:
        return Located(file=file, entries=select.entries(file.hfile))
    key = ("locations", id(file))
    held = cache.peek(key)
    # The kept value has the file, so that no other one gets its identity.
    if held is None or held[0] is not file:
        cache.put(key, (file, None), 0)
        return Located(file=file, entries=select.entries(file.hfile))
    kept: pa.Table | None = held[1]
    if kept is None:
        kept = _kept(decode_locations(file.hfile.entries(), file.hfile.schema))
        cache.put(key, (file, kept), kept.nbytes)
    assert select.keys is not None, "a look-up of locations has keys"
    return Located(file=file, rows=_searched(kept, select.keys))


def decoded_together(found: Sequence[Located]) -> list[Layer]:
    """Return the layers of a look-up. Files of one schema are decoded by one call.

    The decoder takes several milliseconds for any number of entries.

    Raises:
        CorruptTableError: An entry is malformed, or a file with entries has no schema.
    """
    of_schema: dict[str, list[pa.Table]] = {}
    for one in found:
        if one.entries is not None and one.entries.num_rows:
            of_schema.setdefault(_schema(one.file), []).append(one.entries)
    rows = {text: decode_locations(pa.concat_tables(of), text) for text, of in of_schema.items()}
    taken = dict.fromkeys(of_schema, 0)
    layers = []
    for one in found:
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


def _kept(rows: pa.Table) -> pa.Table:
    """Return rows as they are kept, ascending by the bytes of their keys."""
    columns = [
        rows.column("key").cast(pa.binary()),
        rows.column("partition").dictionary_encode(),
        rows.column("file_id").dictionary_encode(),
        rows.column("instant_ms"),
    ]
    return pa.table(columns, schema=_KEPT).combine_chunks()


def _searched(kept: pa.Table, keys: pa.Array) -> pa.Table:
    """Return the rows of the keys; rows and keys ascend by bytes."""
    stored = kept.column("key").combine_chunks()
    stored = stored.chunk(0) if isinstance(stored, pa.ChunkedArray) else stored
    place = np.asarray(pc.search_sorted(stored, keys)).astype(np.int64)
    inside = np.flatnonzero(place < len(stored))
    same = np.asarray(pc.equal(stored.take(pa.array(place[inside])), keys.take(pa.array(inside))))
    return kept.take(pa.array(place[inside[same]])).cast(LOCATION_ROWS)
