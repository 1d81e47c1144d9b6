"""Tasks of expression indexes: results of `function(column)` for the rows of a file (MDT-4.8).

A task reads one column from base files and from the data blocks in log files. Statistics of a file are one row; bloom
filters are larger, so tasks encode them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import BaseFileReader, align
from lakehouse.core.files.base.column_bounds import array_bounds, united
from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.rows.index_functions import IndexFunction
from lakehouse.core.rows.result_values import NoValuesError
from lakehouse.core.rows.stored_names import by_current_names, stored_name
from lakehouse.core.storage.protocol import InputFile, Storage
from lakehouse.errors import UnsupportedError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import ColumnBounds

_BATCH_ROWS = 131_072
_DATA = (BlockType.PARQUET_DATA, BlockType.AVRO_DATA, BlockType.HFILE_DATA)
#: Bounds that contain all strings.
_LEAST_TEXT, _GREATEST_TEXT = b"", 4 * chr(0x10FFFF).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """A base file or log file of a table."""

    partition: str
    name: str
    size_bytes: int

    @property
    def path(self) -> str:
        """The path relative to the table."""
        return f"{self.partition}/{self.name}" if self.partition else self.name

    @property
    def is_log(self) -> bool:
        """Whether this is a log file."""
        return self.name.startswith(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A function of one column, with the type that the column has in the table."""

    storage: Storage
    function: IndexFunction
    field: pa.Field


def statistics_of_files(
    expression: Expression, _attempt: Attempt, files: Sequence[IndexedFile]
) -> list[ColumnBounds | None]:
    """Task: return the bounds of the results in each file, or None for a file without rows, such as deletes only.

    `size_bytes` is the size of the file. `raw_bytes` is twice as much, as Hudi estimates it, or the same if the
    function depends on the time zone: readers then know that the zone is UTC.
    """
    return [_statistics(expression, file) for file in files]


def _statistics(expression: Expression, file: IndexedFile) -> ColumnBounds | None:
    bounds: ColumnBounds | None = None
    for values in stored_values(expression, file):
        if not len(values):
            continue
        try:
            added = array_bounds(expression.function.evaluate(values))
        except NoValuesError:
            added = _all_values(expression, values)
        bounds = added if bounds is None else united(bounds, added)
    if bounds is None:
        return None
    factor = 1 if expression.function.depends_on_zone(expression.field.type) else 2
    return bounds._replace(size_bytes=file.size_bytes, raw_bytes=factor * file.size_bytes)


def _all_values(expression: Expression, values: pa.ChunkedArray) -> ColumnBounds:
    """Return bounds that contain all results, for values whose result depends on the engine; one may be null."""
    kind = expression.function.result_type(expression.field.type)
    bounds: tuple[Any, Any] = (_LEAST_TEXT, _GREATEST_TEXT)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        bounds = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    # The counts mean that there may be a null, and a value that is not null.
    nulls = min(len(values), max(1, values.null_count))
    return ColumnBounds(low=bounds[0], high=bounds[1], nulls=nulls, values=len(values) + 1, known=True)


def distinct_results(expression: Expression, file: IndexedFile) -> pa.Array | None:
    """Return the distinct results in a file, without null, or None if the result of a value depends on the engine."""
    kind = expression.function.result_type(expression.field.type)
    pieces = [pa.array([], kind)]
    try:
        for values in stored_values(expression, file):
            results = pc.unique(expression.function.evaluate(values))
            pieces.append(results.combine_chunks() if isinstance(results, pa.ChunkedArray) else results)
    except NoValuesError:
        return None
    return pc.unique(pa.chunked_array(pieces)).drop_null()


def stored_values(expression: Expression, file: IndexedFile) -> Iterator[pa.ChunkedArray]:
    """Yield the values of the column in a file, in pieces; null in rows that lack the column."""
    columns = pa.schema([expression.field])
    if file.is_log:
        with expression.storage.open_input(file.path) as source:
            for block in scan_blocks(source):
                yield from _of_block(source, block, columns)
        return
    reader = BaseFileReader(expression.storage, file.path)
    try:
        for rows in reader.batches(columns, _BATCH_ROWS):
            yield rows.column(0)
    finally:
        reader.close()


def _of_block(source: InputFile, block: LogBlock, columns: pa.Schema) -> Iterator[pa.ChunkedArray]:
    if block.kind is BlockType.PARQUET_DATA:
        with pq.ParquetFile(io.BytesIO(_content(source, block))) as file:
            name = stored_name(columns.field(0), block.instant)
            if name not in file.schema_arrow.names:
                yield pa.chunked_array([pa.nulls(file.metadata.num_rows, columns.types[0])])
                return
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[name], use_threads=False):
                rows = by_current_names(pa.Table.from_batches([batch]), columns, block.instant)
                yield align(rows, columns).column(0)
    elif block.kind is BlockType.AVRO_DATA and block.schema is not None:
        rows = decode_avro_rows(_content(source, block), block.schema)
        yield align(by_current_names(rows, columns, block.instant), columns, rows.num_rows).column(0)
    elif block.kind is BlockType.HFILE_DATA:
        raise UnsupportedError("log blocks of kind HFILE_DATA are not supported in a data table")


def has_rows(storage: Storage, file: IndexedFile) -> bool:
    """Return whether a file has rows. A log file with deletes only and an empty base file have none."""
    with storage.open_input(file.path) as source:
        if file.is_log:
            return any(block.kind in _DATA for block in scan_blocks(source))
        return bool(pq.read_metadata(source).num_rows)


def _content(source: InputFile, block: LogBlock) -> bytes:
    source.seek(block.offset)
    return source.read(block.length)
