"""Rewrite a base file row group by row group: encode the column chunks that change, copy the bytes of the others.

    no match in a row group       all chunks are copied, except the file name, which is one value
    matches replace stored rows   new rows take the places of old ones; a chunk with equal values is copied
    matches remove stored rows    the rows that are left are encoded as a new row group, followed by the new rows

An upsert usually changes a few columns of rows in many row groups. Decoding is needed to compare values, but encoding
takes longer. A row group is read by one request. Each thread processes one column at a time, so the decoded row group
is never in memory as a whole.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import REPEATING, BaseFileReader, readable
from lakehouse.core.files.base.base_writer import (
    COMMIT_SEQNO,
    COMMIT_TIME,
    FILE_NAME,
    PARTITION_PATH,
    RECORD_KEY,
    BaseFileWriter,
    kept_schema,
    stored_schema,
)
from lakehouse.core.files.base.column_bounds import LONG_BYTES
from lakehouse.core.files.base.column_file import Chunk, chunk_range, read_footer_bytes
from lakehouse.core.files.base.row_group_copy import (
    MIN_GROUP_BYTES,
    StoredGroup,
    has_columns_of,
    key_bounds,
    named_chunk,
    read_footer,
)
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.parquet.thrift_compact import Struct, encode_struct
from lakehouse.core.storage.protocol import InputFile
from lakehouse.core.system.threads import parallel_map
from lakehouse.errors import CorruptTableError
from lakehouse.model.files import BaseFile

# Ids of the fields in the Parquet footer.
_GROUPS, _VALUES = 4, 5
_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK, _PATH, _CODEC, _DICTIONARY, _STATISTICS, _MAX, _MIN = 3, 3, 4, 11, 12, 5, 6
_CODECS = {"none": 0, "snappy": 1, "gzip": 2, "zstd": 6, "lz4": 7}
#: Bytes between chunks of a row group, such as page indexes, that are read with it.
_MOST_GAPS = 1 << 20

#: Takes stored rows, positions, kinds and incoming rows of matches; returns masks of the matches that replace and that
#: remove their row, and the replacing rows.
Merge = Callable[[pa.Table, np.ndarray, np.ndarray, pa.Table], tuple[np.ndarray, np.ndarray, pa.Table]]
#: Yields positions, kinds and incoming rows of the matches before a row that were not yielded yet.
Upto = Callable[[int], Iterator[tuple[np.ndarray, np.ndarray, pa.Table]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A base file whose row groups can be copied: its footer and its bytes."""

    context: WriteContext
    file: BaseFile
    metadata: pq.FileMetaData
    footer: Struct
    source: InputFile
    size: int

    @property
    def dictionary(self) -> list[str]:
        """The columns that the file encodes by a dictionary."""
        (first, *_) = self.footer.structs(_GROUPS)
        metas = [chunk.get(_CHUNK) for chunk in first.structs(_COLUMNS)]
        return [".".join(map(bytes.decode, meta.get(_PATH)[1])) for meta in metas if meta.get(_DICTIONARY)]


def has_large_groups(context: WriteContext, reader: BaseFileReader) -> bool:
    """Return whether a file has the columns of this write, and row groups that are worth copying."""
    if context.cdc is not None or context.rule.mixes or not has_columns_of(context, reader):
        return False
    metadata = reader.statistics
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    return bool(sizes and MIN_GROUP_BYTES * len(sizes) <= sum(sizes) and max(sizes) <= context.budget.encode_bytes)


def copyable(context: WriteContext, file: BaseFile, source: InputFile) -> StoredFile | None:
    """Return the file for a rewrite by row groups; None if its rows have to be encoded again.

    Its chunks have the codec of this write, and lie side by side.
    """
    footer = read_footer(source, file)
    groups = footer.structs(_GROUPS)
    codec, size = _CODECS.get(context.policy.compression), 0
    for group in groups:
        chunks = group.structs(_COLUMNS)
        start, stop = _span(group)
        compressed = sum(chunk_range(chunk)[1] for chunk in chunks)
        is_same = all(chunk.get(_CHUNK).get(_CODEC) == codec or _column(chunk) == FILE_NAME for chunk in chunks)
        if not is_same or stop - start > compressed + _MOST_GAPS or not group.get(_GROUP_ROWS):
            return None
        size += compressed
    if size < len(groups) * MIN_GROUP_BYTES:
        return None
    return StoredFile(
        context=context, file=file, metadata=_light(footer), footer=footer, source=source, size=source.size()
    )


def _light(footer: Struct) -> pq.FileMetaData:
    """Return a footer without its key-value metadata, of which Arrow makes several copies when it opens a file."""
    light = footer.copy()
    light.drop(_VALUES)
    return read_footer_bytes(encode_struct(light))


def rewrite_groups(writer: BaseFileWriter, stored: StoredFile, merge: Merge, upto: Upto) -> tuple[int, int]:
    """Write the next version of the file's row groups; return the numbers of (updates, deletes)."""
    updates = deletes = start = 0
    writer.open_copy(frozenset(stored.dictionary))
    for number, group in enumerate(stored.footer.structs(_GROUPS)):
        opened = _OpenGroup(stored, number, group)
        parts = [_Part(position - start, kind, incoming) for position, kind, incoming in upto(start + opened.rows)]
        start += opened.rows
        for part in parts:
            writer.events.add(part.incoming)
        replaced, removed = _write_group(writer, opened, merge, parts)
        updates, deletes = updates + replaced, deletes + removed
    return updates, deletes


@dataclass(frozen=True, slots=True)
class _Part:
    """Matches with rows of a group: positions in the group, kinds, and the incoming rows."""

    position: np.ndarray
    kind: np.ndarray
    incoming: pa.Table


class _OpenGroup:
    """One row group of the stored file."""

    def __init__(self, stored: StoredFile, number: int, group: Struct) -> None:
        self.stored, self.group = stored, group
        self.entry = StoredGroup(stored.file, number, group)
        self.rows = self.entry.rows
        start, stop = _span(group)
        stored.source.seek(start)
        self._data = _read_exactly(stored, stop - start)
        self._start = start

    def read(self, names: Sequence[str], *, encoded: Sequence[str] = ()) -> pa.Table:
        """Decode some columns; columns of `encoded` are dictionary-encoded in the result."""
        stored = self.stored
        with readable(stored.context.storage.root, stored.file.path):
            source = pa.PythonFile(_Window(self._data, self._start, stored.size), mode="r")
            file = pq.ParquetFile(source, metadata=stored.metadata, read_dictionary=[*REPEATING, *encoded])
            rows = file.read_row_group(self.entry.number, columns=list(names), use_threads=False)
        return rows.select(names).replace_schema_metadata(None)

    def chunks(self, without: set[str]) -> list[Chunk]:
        """Return the stored chunks of all columns except some."""
        view = memoryview(self._data)
        copied = []
        for entry in self.group.structs(_COLUMNS):
            if _column(entry) not in without:
                start, size = chunk_range(entry)
                copied.append(Chunk(entry, (view[start - self._start : start - self._start + size],)))
        return copied

    def lacks_bounds(self, name: str) -> bool:
        """Return whether a chunk of the column has no minimum or maximum."""
        for entry in self.group.structs(_COLUMNS):
            if _column(entry) == name:
                statistics = entry.get(_CHUNK).get(_STATISTICS) or Struct()
                if statistics.get(_MIN) is None or statistics.get(_MAX) is None:
                    return True
        return False


class _Window(io.RawIOBase):
    """A file of which only the bytes of one row group are read."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        self._data, self._start, self._size, self._at = memoryview(data), start, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, position: int, whence: int = 0, /) -> int:
        """Change the position."""
        self._at = position + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return bytes of the row group."""
        first = self._at - self._start
        assert 0 <= first <= len(self._data), "Arrow reads column chunks of the row group only"
        piece = bytes(self._data[first:] if size < 0 else self._data[first : first + size])
        self._at += len(piece)
        return piece


def _write_group(writer: BaseFileWriter, opened: _OpenGroup, merge: Merge, parts: Sequence[_Part]) -> tuple[int, int]:
    """Write the next version of a row group; return the numbers of (updates, deletes)."""
    if not parts:
        _copy(writer, opened, {})
        return 0, 0
    context = opened.stored.context
    names = list(context.rule.compared)
    if context.incoming.keeps:
        names = [name for name in kept_schema(context.schema).names if name not in (COMMIT_SEQNO, PARTITION_PATH)]
    compared = opened.read(names) if names else pa.table({})
    merged = [merge(compared, part.position, part.kind, part.incoming) for part in parts]
    replaced = np.concatenate([part.position[mask] for part, (mask, _, _) in zip(parts, merged, strict=True)])
    removed = np.concatenate([part.position[mask] for part, (_, mask, _) in zip(parts, merged, strict=True)])
    fresh = [rows for _, _, rows in merged]
    if len(removed) or len(np.unique(replaced)) < len(replaced):
        _encode_rows(writer, opened, np.concatenate([replaced, removed]), fresh)
    elif len(replaced):
        order = np.argsort(replaced, kind="stable")
        rows = pa.concat_tables(fresh)
        in_order = bool((order[1:] > order[:-1]).all())
        _replace(writer, opened, replaced[order], rows if in_order else rows.take(pa.array(order)))
    else:
        _copy(writer, opened, {})
    return len(replaced), len(removed)


def _encode_rows(writer: BaseFileWriter, opened: _OpenGroup, gone: np.ndarray, fresh: Sequence[pa.Table]) -> None:
    """Write the rows of a group without those at the positions `gone`, then the new rows, as a row group."""
    stored = opened.read(kept_schema(opened.stored.context.schema).names)
    mask = np.ones(opened.rows, bool)
    mask[gone] = False
    writer.write_kept(stored.filter(pa.array(mask)))
    for rows in fresh:
        writer.write_new(rows, rows.column(RECORD_KEY), is_stored=True)
    writer.flush()


def _replace(writer: BaseFileWriter, opened: _OpenGroup, positions: np.ndarray, fresh: pa.Table) -> None:
    """Write a group in which new rows take the places of stored rows; both have the same keys."""
    meta = writer.meta_columns(len(positions))
    columns = {name: meta[name] for name in (COMMIT_TIME, COMMIT_SEQNO)}
    columns |= {name: fresh.column(name) for name in opened.stored.context.schema.names}
    rewrite = partial(_changed_chunks, writer, opened, positions)
    changed = parallel_map(writer.threads, rewrite, list(columns.items()))
    _copy(writer, opened, {name: chunks for name, chunks in zip(columns, changed, strict=True) if chunks is not None})


def _changed_chunks(
    writer: BaseFileWriter, opened: _OpenGroup, positions: np.ndarray, column: tuple[str, pa.ChunkedArray]
) -> list[Chunk] | None:
    """Return the encoded column with new values at some positions; None if they are equal to the stored ones."""
    name, fresh = column
    field = stored_schema(opened.stored.context.schema).field(name)
    # Texts that are stored by a dictionary are compared without a copy of each.
    is_encoded = pa.types.is_string(field.type) and name in writer.dictionary and not opened.lacks_bounds(name)
    stored = opened.read([name], encoded=[name] if is_encoded else []).column(0)
    fresh = fresh.cast(field.type) if fresh.type != field.type else fresh
    if _are_equal(stored.take(pa.array(positions)), fresh):
        if not is_encoded:
            writer.examined.add(pa.Table.from_arrays([stored], schema=pa.schema([field])))
        return None
    if is_encoded:
        values = _compact(_with_values(stored, positions, fresh.dictionary_encode()))
        if (pc.max(pc.binary_length(values.dictionary)).as_py() or 0) <= LONG_BYTES:
            return writer.encode(pa.table({name: values}))
        stored = stored.cast(field.type)
    rows = pa.Table.from_arrays([_with_values(stored, positions, fresh)], schema=pa.schema([field]))
    chunks = writer.encode(rows)
    writer.examined.add(rows)
    return chunks


def _are_equal(stored: pa.ChunkedArray, fresh: pa.ChunkedArray | pa.Array) -> bool:
    """Return whether all values are equal in every bit; False if it cannot be decided."""
    kind = stored.type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        # Zeros with different signs are equal numbers, and NaN is not equal to itself.
        return False
    one = fresh if isinstance(fresh, pa.ChunkedArray) else pa.chunked_array([fresh])
    if pa.types.is_dictionary(kind):
        return bool(stored.cast(kind.value_type).equals(one.cast(kind.value_type)))
    return bool(stored.equals(one))


def _with_values(
    stored: pa.ChunkedArray, positions: np.ndarray, fresh: pa.ChunkedArray | pa.Array
) -> pa.Array | pa.ChunkedArray:
    """Return the column with other values at some positions."""
    kind, rows = stored.type, len(stored)
    values = fresh.combine_chunks() if isinstance(fresh, pa.ChunkedArray) else fresh
    if not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind)):
        mask = np.zeros(rows, bool)
        mask[positions] = True
        return pc.replace_with_mask(stored.combine_chunks(), pa.array(mask), values)
    index = np.arange(rows)
    index[positions] = np.arange(rows, rows + len(positions))
    joined = pa.chunked_array([*stored.chunks, values], kind)
    return joined.unify_dictionaries().combine_chunks().take(pa.array(index))


def _compact(values: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the values without the entries of their dictionary that no row has."""
    used = values.indices.dictionary_encode()
    return pa.DictionaryArray.from_arrays(used.indices, values.dictionary.take(used.dictionary))


def _copy(writer: BaseFileWriter, opened: _OpenGroup, changed: dict[str, list[Chunk]]) -> None:
    """Write a group with some new columns; the others are copied, and examined as far as the footer omits facts."""
    name_chunk = Chunk(*_split(named_chunk(writer.file.name, opened.rows)))
    chunks = opened.chunks({FILE_NAME, *changed})
    if writer.bloom.hashes_stored:
        writer.bloom.add(opened.read([RECORD_KEY]).column(0), is_stored=True)
    bounds = key_bounds([opened.entry])
    if bounds is None:
        writer.track_keys(opened.read([RECORD_KEY]).column(0))
    else:
        writer.widen_keys(*(bound.decode() for bound in bounds))
    unsure = [name for name in writer.examined.roots(opened.lacks_bounds) if name not in changed and name != FILE_NAME]
    if unsure:
        writer.examined.add(opened.read(unsure))
    of_changed = [chunk for columns in changed.values() for chunk in columns]
    writer.write_group(opened.group, [*chunks, *of_changed, name_chunk])


def _split(named: tuple[Struct, bytes]) -> tuple[Struct, tuple[bytes]]:
    return named[0], (named[1],)


def _column(entry: Struct) -> str:
    """Return the top-level column of a chunk by its entry in the footer."""
    name: bytes = entry.get(_CHUNK).get(_PATH)[1][0]
    return name.decode()


def _span(group: Struct) -> tuple[int, int]:
    """Return the first byte of a row group and the end of its last chunk."""
    ranges = [chunk_range(entry) for entry in group.structs(_COLUMNS)]
    return min(start for start, _ in ranges), max(start + size for start, size in ranges)


def _read_exactly(stored: StoredFile, size: int) -> bytes:
    pieces = []
    while size:
        piece = stored.source.read(size)
        if not piece:
            raise CorruptTableError(f"{stored.file.path} ends in the middle of a row group", path=stored.file.path)
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
