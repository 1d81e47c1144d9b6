"""Bounds of the rows in a log file that any program wrote, from its data blocks (MDT-14)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.files.base.column_bounds import merged_bounds, row_group_bounds, table_bounds
from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.storage.protocol import InputFile, Storage
from lakehouse.model.commit import ColumnBounds


def log_bounds(
    storage: Storage, path: str, kinds: Mapping[str, pa.DataType]
) -> tuple[dict[str, ColumnBounds] | None, bool]:
    """Return the bounds of a log file's rows, and whether rows lack columns, as after partial updates.

    `kinds` are the columns, by dotted path, with their types in the table. Blocks may have other types.
    A file with deletes only has null bounds. The bounds are None for a file with blocks that cannot be examined.
    """
    parts: list[dict[str, ColumnBounds]] = []
    is_partial = False
    with storage.open_input(path) as source:
        for block in scan_blocks(source):
            if block.kind is BlockType.PARQUET_DATA:
                with pq.ParquetFile(io.BytesIO(_content(source, block))) as file:
                    stored = row_group_bounds(file, kinds)
                    parts.append(_with_absent(stored, kinds, 0 if block.is_partial else file.metadata.num_rows))
            elif block.kind is BlockType.AVRO_DATA and block.schema is not None:
                rows = decode_avro_rows(_content(source, block), block.schema)
                whole = 0 if block.is_partial else rows.num_rows
                parts.append(_with_absent(table_bounds(rows, kinds), kinds, whole))
            elif block.kind not in (BlockType.COMMAND, BlockType.DELETE):
                return None, False
            is_partial = is_partial or block.is_partial
    if not parts:
        return deletes_only(kinds), False
    merged = merged_bounds(parts)
    return {name: bounds._replace(size_bytes=0, raw_bytes=0) for name, bounds in merged.items()}, is_partial


def _with_absent(bounds: dict[str, ColumnBounds], columns: Iterable[str], rows: int) -> dict[str, ColumnBounds]:
    """Add null bounds for the columns that are missing in complete rows of the file."""
    absent = ColumnBounds(low=None, high=None, nulls=rows, values=rows)
    return {**(dict.fromkeys(columns, absent) if rows else {}), **bounds}


def deletes_only(columns: Iterable[str]) -> dict[str, ColumnBounds]:
    """Return the bounds for a log file that contains only deletes: no predicate can select a row in it, as in Hudi."""
    return {name: ColumnBounds(low=None, high=None, nulls=0, values=0) for name in columns}


def _content(source: InputFile, block: LogBlock) -> bytes:
    source.seek(block.offset)
    return source.read(block.length)
