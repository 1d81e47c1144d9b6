"""Join base files without decoding them: copy row groups byte by byte and rewrite their offsets.

    file 1   |a|b|name|a|b|name| footer        the bytes of column chunks are copied to other offsets;
    file 2   |a|b|name| footer                 the file name, one value in all rows, is a new chunk;
    joined   |a|b|name'|a|b|name'|a|b|name'| footer of all row groups, with a new key filter and key range

Page indexes and column filters are dropped. They are optional for readers.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import BLOOM_FOOTER, BaseFileReader, readable
from lakehouse.core.files.base.base_writer import FILE_NAME, RECORD_KEY, column_ranges, ensure_partition, stored_schema
from lakehouse.core.files.base.column_bounds import file_bounds, leaf_types
from lakehouse.core.files.base.file_bloom_filter import FileBloom
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.parquet.bloom_filter import BloomFilter, joined
from lakehouse.core.format.parquet.thrift_compact import BINARY, I64, LIST, STRUCT, Struct, decode_struct, encode_struct
from lakehouse.core.rows.stored_names import is_renamed_in
from lakehouse.core.storage.protocol import InputFile
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import WriteStat
from lakehouse.model.files import BaseFile

_TAIL = struct.Struct("<I4s")
_MAGIC = b"PAR1"
_PIECE = 8 << 20
#: Average row group size below which row groups are rewritten as larger ones, which are faster to read.
MIN_GROUP_BYTES = 1 << 20
#: Maximum number of rows of a joined bloom filter, because the time of a look-up is proportional to it.
_FILTER_ROWS = 16
# Ids of the fields in the Parquet footer.
_SCHEMA, _ROWS, _GROUPS, _VALUES, _CREATED_BY, _ORDERS = 2, 3, 4, 5, 6, 7
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_OFFSET, _GROUP_COMPRESSED, _ORDINAL = 1, 2, 3, 5, 6, 7
_CHUNK_OFFSET, _CHUNK, _PAGE_INDEXES = 2, 3, (4, 5, 6, 7)
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA, _INDEX, _DICTIONARY, _STATISTICS, _FILTERS = 3, 6, 7, 9, 10, 11, 12, (14, 15)
_MAX, _MIN, _MAX_EXACT, _MIN_EXACT = 5, 6, 7, 8


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """One row group of a stored file: its number and its entry in the footer."""

    file: BaseFile
    number: int
    group: Struct

    @property
    def rows(self) -> int:
        """The number of its rows."""
        rows: int = self.group.get(_GROUP_ROWS)
        return rows


@dataclass(frozen=True, slots=True)
class Joinable:
    """Files whose row groups can be in one file: the `footer` of the first one, and the `groups` of all."""

    footer: Struct
    groups: tuple[StoredGroup, ...]


def has_columns_of(context: WriteContext, reader: BaseFileReader) -> bool:
    """Return whether a file has exactly the columns of a write: equal names and types, and by id the same columns."""
    is_equal = reader.schema.equals(stored_schema(context.schema))
    return is_equal and not is_renamed_in(context.schema, reader.instant)


def joinable(context: WriteContext, files: Sequence[BaseFile]) -> Joinable | None:
    """Return the row groups of files, or None if they must be rewritten: columns differ, or groups are too small."""
    first: Struct | None = None
    groups: list[StoredGroup] = []
    for file in files:
        reader = BaseFileReader(context.storage, file.path)
        try:
            agrees = has_columns_of(context, reader)
        finally:
            reader.close()
        if not agrees:
            return None
        with context.storage.open_input(file.path) as source:
            footer = read_footer(source, file)
        first = first or footer
        if footer.get(_SCHEMA) != first.get(_SCHEMA) or footer.get(_ORDERS) != first.get(_ORDERS):
            return None
        groups += [StoredGroup(file, number, group) for number, group in enumerate(footer.structs(_GROUPS))]
    held = [group for group in groups if group.rows]
    size = sum(_chunk_range(chunk)[1] for stored in held for chunk in stored.group.structs(_COLUMNS))
    if first is None or not held or size < len(held) * MIN_GROUP_BYTES:
        return None
    return Joinable(first, tuple(held))


def split(groups: Sequence[StoredGroup], share: int) -> Iterator[tuple[StoredGroup, ...]]:
    """Yield the row groups of one file after the other: those that begin within the same `share` of rows."""
    taken: list[StoredGroup] = []
    begun = before = 0
    for group in groups:
        if taken and before // share > begun:
            yield tuple(taken)
            taken = []
        if not taken:
            begun = before // share
        taken.append(group)
        before += group.rows
    if taken:
        yield tuple(taken)


def join_groups(context: WriteContext, target: BaseFile, origin: Joinable, groups: Sequence[StoredGroup]) -> WriteStat:
    """Write row groups to a new base file, whose marker already exists, and return its write statistics."""
    started = context.clock.monotonic_s()
    ensure_partition(context, target.partition)
    with ExitStack() as stack:
        sources: dict[str, InputFile] = {}
        output = stack.enter_context(context.storage.open_output(target.path))
        output.write(_MAGIC)
        written = []
        for number, stored in enumerate(groups):
            source = sources.get(stored.file.path)
            if source is None:
                source = stack.enter_context(context.storage.open_input(stored.file.path))
                sources[stored.file.path] = source
            written.append(_copy(source, output, stored, target.name, number))
        footer = origin.footer.copy()
        footer.set(_ROWS, sum(group.rows for group in groups), I64)
        footer.set(_GROUPS, (STRUCT, written), LIST)
        footer.set(_VALUES, (STRUCT, list(_values(context, groups))), LIST)
        data = encode_struct(footer)
        output.write(data)
        output.write(_TAIL.pack(len(data), _MAGIC))
        size = output.tell()
    footer_metadata = pq.read_metadata(pa.BufferReader(_MAGIC + data + _TAIL.pack(len(data), _MAGIC)))
    return WriteStat(
        partition=target.partition,
        file_id=target.file_id,
        path=target.path,
        num_writes=footer_metadata.num_rows,
        num_inserts=footer_metadata.num_rows,
        size_bytes=size,
        ranges=column_ranges(footer_metadata) if context.indexed is None else {},
        bounds=None if context.indexed is None else file_bounds(context.storage, target.path, _kinds(context)),
        seconds=context.clock.monotonic_s() - started,
    )


def _kinds(context: WriteContext) -> dict[str, pa.DataType]:
    """Return the types of the columns whose bounds are reported."""
    kinds = leaf_types(stored_schema(context.schema))
    return {name: kinds[name] for name in context.indexed or () if name in kinds}


def read_footer(source: InputFile, file: BaseFile) -> Struct:
    """Return the footer of an open base file; raise CorruptTableError if it has none."""
    size = source.size()
    source.seek(max(size - _TAIL.size, 0))
    tail = source.read(_TAIL.size)
    length, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, b"")
    if magic != _MAGIC or length + _TAIL.size > size:
        raise CorruptTableError(f"{file.path} is not a readable Parquet file: it has no footer", path=file.path)
    source.seek(size - _TAIL.size - length)
    try:
        return decode_struct(source.read(length))
    except CorruptTableError as error:
        raise CorruptTableError(
            f"{file.path} is not a readable Parquet file: {error.message}", path=file.path
        ) from error


def _chunk_range(chunk: Struct) -> tuple[int, int]:
    """Return the offset and the size of a column chunk."""
    meta = chunk.get(_CHUNK)
    starts = [meta.get(number) for number in (_DICTIONARY, _INDEX, _DATA)]
    return min(start for start in starts if start), meta.get(_COMPRESSED)


def _copy(source: InputFile, output: object, stored: StoredGroup, name: str, number: int) -> Struct:
    """Copy a row group except for its file names; return its entry for the new footer."""
    assert hasattr(output, "tell") and hasattr(output, "write")
    group = stored.group.copy()
    began, chunks = output.tell(), []
    for column in group.structs(_COLUMNS):
        chunk = column.copy()
        chunk.set(_CHUNK, column.get(_CHUNK).copy(), STRUCT)
        if chunk.get(_CHUNK).get(_PATH)[1] == [FILE_NAME.encode()]:
            chunk, data = named_chunk(name, stored.rows)
            at = output.tell()
            _move(chunk, at - _chunk_range(chunk)[0])
            output.write(data)
        else:
            start, size = _chunk_range(chunk)
            _move(chunk, output.tell() - start)
            source.seek(start)
            for piece in _pieces(source, size, stored.file):
                output.write(piece)
        chunk.drop(*_PAGE_INDEXES)
        chunk.get(_CHUNK).drop(*_FILTERS)
        chunks.append(chunk)
    group.set(_COLUMNS, (STRUCT, chunks), LIST)
    group.set(_GROUP_BYTES, sum(chunk.get(_CHUNK).get(_UNCOMPRESSED) for chunk in chunks), I64)
    if _GROUP_OFFSET in group.fields:
        group.set(_GROUP_OFFSET, began, I64)
    if _GROUP_COMPRESSED in group.fields:
        group.set(_GROUP_COMPRESSED, sum(chunk.get(_CHUNK).get(_COMPRESSED) for chunk in chunks), I64)
    if _ORDINAL in group.fields:
        group.fields[_ORDINAL] = (group.fields[_ORDINAL][0], number)
    return group


def _move(chunk: Struct, by: int) -> None:
    meta = chunk.get(_CHUNK)
    for number in (_DATA, _INDEX, _DICTIONARY):
        if meta.get(number):
            meta.set(number, meta.get(number) + by, I64)
    if chunk.get(_CHUNK_OFFSET):
        # A deprecated field; writers usually set it to 0.
        chunk.set(_CHUNK_OFFSET, chunk.get(_CHUNK_OFFSET) + by, I64)


def _pieces(source: InputFile, size: int, file: BaseFile) -> Iterator[bytes]:
    while size:
        piece = source.read(min(size, _PIECE))
        if not piece:
            raise CorruptTableError(f"{file.path} ends in the middle of a column", path=file.path)
        size -= len(piece)
        yield piece


def named_chunk(name: str, rows: int) -> tuple[Struct, bytes]:
    """Return the column chunk of one file name in `rows` rows: its entry for the footer, and its bytes."""
    indices = pa.array(np.zeros(rows, np.int32))
    column = pa.DictionaryArray.from_arrays(indices, pa.array([name], pa.string()))
    sink = io.BytesIO()
    table = pa.table({FILE_NAME: column})
    with pq.ParquetWriter(sink, table.schema, use_dictionary=True, compression="NONE", store_schema=False) as writer:
        writer.write_table(table, row_group_size=max(rows, 1))
    data = sink.getvalue()
    (length, _) = _TAIL.unpack_from(data, len(data) - _TAIL.size)
    footer = decode_struct(data[len(data) - _TAIL.size - length :])
    (chunk,) = footer.structs(_GROUPS)[0].structs(_COLUMNS)
    start, size = _chunk_range(chunk)
    return chunk, data[start : start + size]


def _values(context: WriteContext, groups: Sequence[StoredGroup]) -> Iterable[Struct]:
    """Yield the key-value metadata of the new file: its schema, and the filter and the range of its keys."""
    made, bounds = _stored_filter(context, groups), key_bounds(groups)
    if bounds is None or (made is None and context.policy.bloom_enabled):
        made, bounds = _of_keys(context, groups)
    values: dict[str, bytes] = {"parquet.avro.schema": context.avro_schema.encode()}
    if made is not None:
        values[BLOOM_FOOTER[0]] = b"".join(made.text_pieces())
        if made.type_code:
            values[BLOOM_FOOTER[1]] = made.type_code.encode()
    if bounds is not None:
        values["hoodie_min_record_key"], values["hoodie_max_record_key"] = bounds
    for key, value in values.items():
        yield Struct({1: (BINARY, key.encode()), 2: (BINARY, value)})


def _stored_filter(context: WriteContext, groups: Sequence[StoredGroup]) -> BloomFilter | None:
    """Return the filter for the keys of all files; None if there is none or it has to be built from the keys.

    It also contains keys of row groups in another output file, which only causes false positives.
    """
    if not context.policy.bloom_enabled:
        return None
    filters = []
    for file in {stored.file.path: stored.file for stored in groups}.values():
        reader = BaseFileReader(context.storage, file.path)
        try:
            bloom = reader.bloom_filter()
        finally:
            reader.close()
        if bloom is None:
            return None
        filters.append(bloom)
    return joined(filters, _FILTER_ROWS)


def key_bounds(groups: Sequence[StoredGroup]) -> tuple[bytes, bytes] | None:
    """Return the minimum and the maximum key by the statistics of row groups; None if these are not exact."""
    bounds: list[bytes | None] = []
    for stored in groups:
        for chunk in stored.group.structs(_COLUMNS):
            meta = chunk.get(_CHUNK)
            if meta.get(_PATH)[1] == [RECORD_KEY.encode()]:
                statistics = meta.get(_STATISTICS) or Struct()
                exact = statistics.get(_MIN_EXACT, True) and statistics.get(_MAX_EXACT, True)
                bounds += [statistics.get(_MIN), statistics.get(_MAX)] if exact else [None]
    valid = [bound for bound in bounds if bound is not None]
    return (min(valid), max(valid)) if valid and len(valid) == len(bounds) else None


def _of_keys(
    context: WriteContext, groups: Sequence[StoredGroup]
) -> tuple[BloomFilter | None, tuple[bytes, bytes] | None]:
    """Return the filter and the bounds of the keys by reading them."""
    bloom = FileBloom(context.policy.bloom_fpp, context.budget.hash_bytes, enabled=context.policy.bloom_enabled)
    bounds: list[str] = []
    for keys in _keys(context, groups):
        extremes = pc.min_max(keys)
        candidates = [*bounds, extremes["min"].as_py(), extremes["max"].as_py()]
        valid = [key for key in candidates if key is not None]
        bounds = [min(valid), max(valid)] if valid else []
        bloom.add(keys, is_stored=False)
    return bloom.finish(), (bounds[0].encode(), bounds[1].encode()) if bounds else None


def _keys(context: WriteContext, groups: Sequence[StoredGroup]) -> Iterator[pa.ChunkedArray]:
    """Yield the record keys, row group by row group."""
    path, stack = "", ExitStack()
    with stack:
        for stored in groups:
            if stored.file.path != path:
                stack.close()
                source, path = stack.enter_context(context.storage.open_input(stored.file.path)), stored.file.path
                with readable(context.storage.root, path):
                    file = pq.ParquetFile(source, pre_buffer=False)
            with readable(context.storage.root, path):
                keys = file.read_row_group(stored.number, columns=[RECORD_KEY], use_threads=False).column(0)
            yield keys
