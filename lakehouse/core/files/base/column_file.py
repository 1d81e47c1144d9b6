"""Compose a Parquet file of column chunks that threads encode in memory, or that are copied from another file.

Arrow encodes the columns of a row group one after the other. A column chunk does not depend on its neighbours, so
threads encode some columns each, as small Parquet files in memory. Their bytes are moved to the file, and their entries
to its footer, with new offsets. The file has the same bytes as one that Arrow's writer wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.format.parquet.thrift_compact import BINARY, I64, LIST, STRUCT, Struct, decode_struct, encode_struct
from lakehouse.core.system.threads import parallel_map

MAGIC = b"PAR1"
_TAIL = struct.Struct("<I4s")
# Ids of the fields in the Parquet footer.
_ROWS, _GROUPS, _VALUES = 3, 4, 5
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_OFFSET, _GROUP_COMPRESSED, _ORDINAL = 1, 2, 3, 5, 6, 7
_CHUNK_OFFSET, _CHUNK, _PAGE_INDEXES, _FILTERS = 2, 3, (4, 5, 6, 7), (14, 15)
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA, _INDEX, _DICTIONARY = 3, 6, 7, 9, 10, 11
#: Parts of a row group for each thread: more of them balance the threads better, and each costs a writer.
_PARTS_PER_THREAD = 6

#: Opens Arrow's writer on an output.
NewWriter = Callable[..., pq.ParquetWriter]


class Sink(Protocol):
    """The output of a file."""

    def write(self, data: Any, /) -> object:
        """Write the bytes."""
        ...

    def tell(self) -> int:
        """Return the number of bytes written."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """An encoded column chunk: its entry for the footer, with the offset that it has in another file, and its bytes."""

    entry: Struct
    pieces: Iterable[Any]

    @property
    def column(self) -> str:
        """The top-level column to which it belongs."""
        name: bytes = self.entry.get(_CHUNK).get(_PATH)[1][0]
        return name.decode()


class ColumnFile:
    """A Parquet writer whose row groups are encoded by up to `threads` threads.

    `new_writer` opens Arrow's writer of some columns on an output, with the properties of the file.
    """

    def __init__(self, sink: Sink, schema: pa.Schema, new_writer: NewWriter, threads: int) -> None:
        self._sink, self._schema, self._new_writer, self._threads = sink, schema, new_writer, threads
        self._groups: list[Struct] = []
        self._rows = 0
        self._values: dict[str, str] = {}
        self.is_open = True
        self._sink.write(MAGIC)

    def write_table(self, rows: pa.Table, row_group_size: int) -> None:
        """Encode the rows as one row group, which `row_group_size` confirms."""
        assert row_group_size == rows.num_rows
        parts = _parts(rows, self._threads * _PARTS_PER_THREAD)
        encode = partial(encoded_chunks, self._new_writer)
        encoded = parallel_map(self._threads, encode, [rows.select(names) for names in parts])
        chunks = [chunk for _, of_part in encoded for chunk in of_part]
        self.write_group(encoded[0][0], chunks)

    def write_group(self, group: Struct, chunks: Sequence[Chunk]) -> int:
        """Append a row group that has these chunks in any order, and return its number of rows.

        `group` is the entry of one with as many rows.
        """
        group, began = group.copy(), self._sink.tell()
        place = {name: number for number, name in enumerate(self._schema.names)}
        ordered = sorted(chunks, key=lambda chunk: place[chunk.column])
        entries = [self._moved(chunk) for chunk in ordered]
        group.set(_COLUMNS, (STRUCT, entries), LIST)
        group.set(_GROUP_BYTES, sum(entry.get(_CHUNK).get(_UNCOMPRESSED) for entry in entries), I64)
        if _GROUP_OFFSET in group.fields:
            group.set(_GROUP_OFFSET, began, I64)
        if _GROUP_COMPRESSED in group.fields:
            group.set(_GROUP_COMPRESSED, sum(entry.get(_CHUNK).get(_COMPRESSED) for entry in entries), I64)
        if _ORDINAL in group.fields:
            group.fields[_ORDINAL] = (group.fields[_ORDINAL][0], len(self._groups))
        rows: int = group.get(_GROUP_ROWS)
        self._rows += rows
        self._groups.append(group)
        return rows

    def _moved(self, chunk: Chunk) -> Struct:
        """Write the bytes of a chunk; return its entry with the offsets in this file."""
        by = self._sink.tell() - chunk_range(chunk.entry)[0]
        for piece in chunk.pieces:
            self._sink.write(piece)
        return shifted(chunk.entry, by)

    def add_key_value_metadata(self, values: Mapping[str, str]) -> None:
        """Add key-value metadata to the footer."""
        self._values |= values

    def close(self) -> pq.FileMetaData:
        """Write the footer and return it."""
        self.is_open = False
        footer = empty_footer(self._new_writer, self._schema)
        footer.set(_ROWS, self._rows, I64)
        footer.set(_GROUPS, (STRUCT, self._groups), LIST)
        values = [Struct({1: (BINARY, k.encode()), 2: (BINARY, v.encode())}) for k, v in self._values.items()]
        if values:
            footer.set(_VALUES, (STRUCT, values), LIST)
        data = encode_struct(footer)
        self._sink.write(data)
        self._sink.write(_TAIL.pack(len(data), MAGIC))
        return read_footer_bytes(data)


def chunk_range(entry: Struct) -> tuple[int, int]:
    """Return the offset and the size of a column chunk by its entry in the footer."""
    meta = entry.get(_CHUNK)
    starts = [meta.get(number) for number in (_DICTIONARY, _INDEX, _DATA)]
    return min(start for start in starts if start), meta.get(_COMPRESSED)


def read_footer_bytes(data: bytes) -> pq.FileMetaData:
    """Return the footer that is encoded in the bytes."""
    return pq.read_metadata(pa.BufferReader(MAGIC + data + _TAIL.pack(len(data), MAGIC)))


def shifted(entry: Struct, by: int) -> Struct:
    """Return the entry of a column chunk in a footer with offsets that are larger by `by`, without indexes."""
    entry, meta = entry.copy(), entry.get(_CHUNK).copy()
    for number in (_DATA, _INDEX, _DICTIONARY):
        if meta.get(number):
            meta.set(number, meta.get(number) + by, I64)
    if entry.get(_CHUNK_OFFSET):
        # Deprecated; usually writers set it to 0.
        entry.set(_CHUNK_OFFSET, entry.get(_CHUNK_OFFSET) + by, I64)
    meta.drop(*_FILTERS)
    entry.drop(*_PAGE_INDEXES)
    entry.set(_CHUNK, meta, STRUCT)
    return entry


def empty_footer(new_writer: NewWriter, schema: pa.Schema) -> Struct:
    """Return the footer of a file without rows."""
    sink = pa.BufferOutputStream()
    new_writer(sink, schema).close()
    return decode_struct(_footer_bytes(sink.getvalue()))


def _parts(rows: pa.Table, count: int) -> list[list[str]]:
    """Divide the columns into parts of similar size, large ones first."""
    # Each column costs something for each row, however small its values are.
    sizes = {name: rows.column(name).nbytes + 4 * rows.num_rows for name in rows.column_names}
    parts: list[list[str]] = [[] for _ in range(min(count, len(sizes)))]
    filled = [0] * len(parts)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        number = filled.index(min(filled))
        parts[number].append(name)
        filled[number] += sizes[name]
    return parts


def encoded_chunks(new_writer: NewWriter, rows: pa.Table) -> tuple[Struct, list[Chunk]]:
    """Encode columns of a row group in memory; return its entry for the footer, and the chunks."""
    sink = pa.BufferOutputStream()
    writer = new_writer(sink, rows.schema)
    writer.write_table(rows, row_group_size=rows.num_rows)
    writer.close()
    data = sink.getvalue()
    (group,) = decode_struct(_footer_bytes(data)).structs(_GROUPS)
    view, chunks = memoryview(data).cast("B"), []
    for entry in group.structs(_COLUMNS):
        start, size = chunk_range(entry)
        chunks.append(Chunk(entry, (view[start : start + size],)))
    return group, chunks


def _footer_bytes(data: pa.Buffer) -> memoryview:
    view = memoryview(data).cast("B")
    (length, _) = _TAIL.unpack_from(view, len(view) - _TAIL.size)
    return view[len(view) - _TAIL.size - length : len(view) - _TAIL.size]
