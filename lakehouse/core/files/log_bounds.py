"""Bounds of the rows in a log file that any program wrote, from its data blocks (MDT-14)."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow.parquet as pq

from lakehouse.core.files.column_bounds import merged_bounds, row_group_bounds, table_bounds
from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.delete_block import decode_deletes
from lakehouse.core.storage.protocol import InputFile, Storage
from lakehouse.model.commit import ColumnBounds


def log_bounds(storage: Storage, path: str, columns: Sequence[str]) -> dict[str, ColumnBounds] | None:
    """Return the bounds of the rows of a log file; a column that a block lacks is left out.

    A file with deletes only has null bounds. Returns None for a file with blocks that cannot be examined.
    """
    parts: list[dict[str, ColumnBounds]] = []
    deleted = 0
    with storage.open_input(path) as source:
        for block in scan_blocks(source):
            if block.kind is BlockType.DELETE:
                deleted += len(decode_deletes(_content(source, block), []).keys) if block.length else 0
            elif block.kind is BlockType.PARQUET_DATA:
                with pq.ParquetFile(io.BytesIO(_content(source, block))) as file:
                    parts.append(row_group_bounds(file, columns))
            elif block.kind is BlockType.AVRO_DATA and block.schema is not None:
                parts.append(table_bounds(decode_avro_rows(_content(source, block), block.schema), columns))
            elif block.kind is not BlockType.COMMAND:
                return None
    if not parts:
        return deletes_only(columns, deleted)
    found = merged_bounds(parts)
    return {name: bounds._replace(size_bytes=0, raw_bytes=0) for name, bounds in found.items()}


def deletes_only(columns: Sequence[str], deleted: int) -> dict[str, ColumnBounds]:
    """Return the bounds of a log file that has only deletes: no value, so nothing that a predicate can select."""
    return {name: ColumnBounds(low=None, high=None, nulls=deleted, values=deleted) for name in columns}


def _content(source: InputFile, block: LogBlock) -> bytes:
    source.seek(block.offset)
    return source.read(block.length)
