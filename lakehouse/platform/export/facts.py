"""Facts about a base file for the metadata of views: rows, column bounds and partition values, from its footer.

Bounds are in physical form (see `lakehouse.model.commit.ColumnBounds`). Floating-point columns get no bounds: NaN is
not part of bounds in a footer, and engines do not agree on its place in the order. A partition value is the only value
of the column in the file, never the name of a directory, because names do not distinguish null from an empty string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.column_bounds import array_bounds, converted_bounds, footer_bounds
from lakehouse.core.rows.stored_names import path_instant
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import LakehouseError, UnsupportedError
from lakehouse.model.commit import ColumnBounds
from lakehouse.platform.export.columns import ViewColumns, has_present_names, promotes

#: Number of columns with bounds in a view; the meta columns count.
MOST_COLUMNS = 64


class MixedPartitionError(LakehouseError):
    """A file has several values of a partition column, or one that the view cannot represent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A base file in a view.

    Attributes:
        path, size_bytes, rows: The file.
        partition: Physical values by partition column.
        bounds: Bounds by column.
        stored: The columns of the file, if it has columns or fields that the view lacks; otherwise None.
    """

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, ColumnBounds] = field(default_factory=dict)
    stored: pa.Schema | None = None


def read_facts(
    storage: Storage, paths: Sequence[str], sizes: Sequence[int], columns: ViewColumns
) -> tuple[FileFacts, ...]:
    """Read the footers of base files, several at a time.

    Raises:
        MissingFileError: A file does not exist.
        MixedPartitionError: A file has several values of a partition column.
        UnsupportedError: A file stores a column in a type that readers of the view cannot convert.
    """
    read = partial(_facts_of, storage=storage, columns=columns)
    return tuple(send_all(storage, read, list(zip(paths, sizes, strict=True))))


def bounded_columns(columns: ViewColumns) -> tuple[str, ...]:
    """Return the columns that have bounds in a view."""
    names = [field.name for field in columns.schema if has_bounds(field.type)]
    return tuple(dict.fromkeys((*columns.partition_by, *names[:MOST_COLUMNS])))


def has_bounds(kind: pa.DataType) -> bool:
    """Return whether columns of this type have bounds in a view."""
    return bool(
        pat.is_string(kind)
        or pat.is_signed_integer(kind)
        or pat.is_date32(kind)
        or pat.is_timestamp(kind)
        or pat.is_time64(kind)
        or pat.is_decimal(kind)
        or pat.is_boolean(kind)
    )


def _facts_of(file: tuple[str, int], *, storage: Storage, columns: ViewColumns) -> FileFacts:
    path, size = file
    reader = BaseFileReader(storage, path)
    try:
        if reader.is_skeleton:
            raise UnsupportedError(
                f"{storage.root}/{path} is a skeleton file of a bootstrap: its data columns are in a source file, and "
                "readers of Iceberg and Delta would not find them. Rewrite it first, by `lakehouse clustering run "
                "--force`, or export a copy by `lakehouse export parquet`",
                path=path,
            )
        _check_types(reader, columns, storage.root)
        bounds = _bounds(reader, columns)
        partition = {name: _only_value(reader, name, columns.kind(name), bounds) for name in columns.partition_by}
        stored = reader.schema if _has_more(pa.struct(list(reader.schema)), pa.struct(list(columns.schema))) else None
        return FileFacts(
            path=path, size_bytes=size, rows=reader.rows, partition=partition, bounds=bounds, stored=stored
        )
    finally:
        reader.close()


def _has_more(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a stored type has fields that the type of the view lacks, at any depth."""
    if pat.is_struct(stored) and pat.is_struct(kind):
        names = {child.name: child.type for child in kind}
        return any(child.name not in names or _has_more(child.type, names[child.name]) for child in stored)
    if not pat.is_nested(stored) or stored.num_fields != kind.num_fields:
        return False
    return any(_has_more(stored.field(n).type, kind.field(n).type) for n in range(stored.num_fields))


def _check_types(reader: BaseFileReader, columns: ViewColumns, root: str) -> None:
    names = set(columns.schema.names)
    _check_names(reader, columns, root)
    for stored in reader.schema:
        if stored.name not in names or promotes(stored.type, columns.kind(stored.name)):
            continue
        raise UnsupportedError(
            f"{root}/{reader.path}: column {stored.name!r} is stored as {stored.type}, and the table declares "
            f"{columns.kind(stored.name)}. Readers of Iceberg and Delta do not convert it. Rewrite the older files by "
            "a clustering with other hoodie.clustering.plan.strategy.sort.columns and force, and export again",
            column=stored.name,
            path=reader.path,
        )


def _check_names(reader: BaseFileReader, columns: ViewColumns, root: str) -> None:
    if columns.table is None or not columns.is_evolved:
        return
    stored, instant = {column.name: column for column in reader.schema}, path_instant(reader.path)
    for column in columns.table:
        if not has_present_names(column, stored.get(column.name), instant):
            raise UnsupportedError(
                f"{root}/{reader.path} was written before column {column.name!r} was renamed or added again. Readers "
                "of Iceberg and Delta find columns by their present names. Rewrite the older files by a "
                "clustering with other hoodie.clustering.plan.strategy.sort.columns and force, and export again",
                column=column.name,
                path=reader.path,
            )


def _bounds(reader: BaseFileReader, columns: ViewColumns) -> dict[str, ColumnBounds]:
    stored = {field.name: field.type for field in reader.schema}
    measured = footer_bounds([reader.statistics], bounded_columns(columns))
    bounds = {}
    for name, column in measured.items():
        converted = converted_bounds(column, _plain(stored.get(name)), columns.kind(name))
        if converted is not None and converted.known:
            bounds[name] = converted
    return bounds


def _plain(kind: pa.DataType | None) -> pa.DataType | None:
    return kind.value_type if kind is not None and pat.is_dictionary(kind) else kind


def _only_value(reader: BaseFileReader, name: str, kind: pa.DataType, bounds: Mapping[str, ColumnBounds]) -> Any:
    """Return the only value of a partition column in physical form."""
    if name not in reader.schema.names:
        return None
    stated = bounds.get(name)
    if stated is None or (stated.nulls and stated.nulls != stated.values):
        values = pc.unique(reader.column(name))
        if len(values) > 1:
            raise _mixed(reader, name)
        stated = array_bounds(pa.chunked_array([values]).cast(kind))
    if stated.low != stated.high:
        raise _mixed(reader, name)
    return stated.low


def _mixed(reader: BaseFileReader, name: str) -> MixedPartitionError:
    return MixedPartitionError(f"{reader.path} has several values of the partition column {name!r}", path=reader.path)
