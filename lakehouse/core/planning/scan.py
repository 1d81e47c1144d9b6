"""Plan a scan: the file slices that a query reads after pruning by partition and column range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.planning.predicate import Range, check_columns, literal, may_match
from lakehouse.core.rows.partition_path import parse_partition_path
from lakehouse.errors import UserError, nearest
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.keys import KeyConfig
from lakehouse.model.predicate import And, In, Predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """A scan: slices, the columns of the result (`schema`), and the condition to apply to rows."""

    slices: tuple[FileSlice, ...]
    schema: pa.Schema
    residual: Predicate | None = None
    skipped: int = 0

    @property
    def files(self) -> tuple[BaseFile, ...]:
        """Base files of the slices."""
        return tuple(file_slice.base for file_slice in self.slices if file_slice.base is not None)


# parameters: a planner takes each independent part of the table state
def plan_scan(
    slices: Sequence[FileSlice],
    table: pa.Schema,
    keys: KeyConfig,
    *,
    columns: Sequence[str] | None,
    where: Predicate | None,
    ranges: Mapping[str, Mapping[str, Range]],
    commit_times: frozenset[str] | None = None,
) -> ScanPlan:
    """Return the slices that may have matching rows.

    A slice is skipped only if neither its base file nor any of its log files can have a match.

    Args:
        slices: The slices of the query.
        table: The schema of the table.
        keys: Key configuration of the table.
        columns: Columns of the result; None for all.
        where: Condition on rows.
        ranges: Column ranges by path.
        commit_times: Requested times; only rows of these instants are returned (incremental query).

    Raises:
        UserError: The table does not have a column.
    """
    full = with_meta_fields(table)
    if where is not None:
        check_columns(where, full)
    chosen = _choose(full, columns)

    def may_hold(file_slice: FileSlice) -> bool:
        files = (*((file_slice.base,) if file_slice.base is not None else ()), *file_slice.logs)
        return where is None or any(may_match(where, _ranges(file, full, keys, ranges), full) for file in files)

    filled = [file_slice for file_slice in slices if file_slice.base is not None or file_slice.logs]
    matching = tuple(file_slice for file_slice in filled if may_hold(file_slice))
    residual = where
    if commit_times is not None:
        only = In(META_COLUMNS[0], tuple(sorted(commit_times)))
        residual = only if where is None else And((only, where))
    return ScanPlan(slices=matching, schema=chosen, residual=residual, skipped=len(filled) - len(matching))


def partition_filter(where: Predicate | None, table: pa.Schema, keys: KeyConfig) -> Callable[[str], bool] | None:
    """Return a filter of directories that may contain partitions with matching rows; None if all may.

    The filter uses the partition fields that a directory's path contains. Text values without URL encoding may contain
    `/`; then a directory is not a complete value and is never excluded.
    """
    if where is None or not keys.partition_fields:
        return None
    full = with_meta_fields(table)
    check_columns(where, full)

    def keep(path: str) -> bool:
        depth = path.count("/") + 1
        path_fields = keys.partition_fields[:depth]
        kinds = [full.field(name).type for name in path_fields if name in full.names]
        if len(kinds) < depth or not (keys.url_encode or all(_makes_one_level(kind) for kind in kinds)):
            return True
        so_far = replace(keys, partition_fields=path_fields, partition_types=keys.partition_types[:depth])
        return may_match(where, _partition_values(path, full, so_far), full)

    return keep


def _makes_one_level(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_boolean(kind))


def _choose(full: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return full
    if not columns:
        raise UserError("a read of no columns has no rows: name at least one column")
    for name in columns:
        if name not in full.names:
            raise UserError(
                f"column {name!r} is not in the table; columns: {', '.join(full.names)}.{nearest(name, full.names)}",
                column=name,
            )
    return pa.schema([full.field(name) for name in columns])


def _ranges(
    file: BaseFile | LogFile, schema: pa.Schema, keys: KeyConfig, ranges: Mapping[str, Mapping[str, Range]]
) -> Mapping[str, Range]:
    """Return the column ranges of a file: recorded ranges, else the values of the partition columns.

    A recorded range has priority: with a global index a row may stay in its partition if its partition column changes.
    """
    path_ranges = {META_COLUMNS[3]: (file.partition, file.partition, 0)}
    return _partition_values(file.partition, schema, keys) | path_ranges | dict(ranges.get(file.path, {}))


def _partition_values(path: str, schema: pa.Schema, keys: KeyConfig) -> dict[str, Range]:
    values_by_column: dict[str, Range] = {}
    if not keys.partition_fields:
        return values_by_column
    try:
        values = parse_partition_path(path, keys)
    except UserError:
        # Values with `/` made more levels than fields, so no single value is known.
        return values_by_column
    for name, kind, value in zip(keys.partition_fields, keys.partition_types, values, strict=True):
        # A TIMESTAMP directory is a formatted value that cannot be compared with the column.
        if kind != "SIMPLE" or name not in schema.names or value is None:
            continue
        column = schema.field(name).type
        if pa.types.is_timestamp(column) or pa.types.is_floating(column) or pa.types.is_boolean(column):
            continue
        try:
            typed = literal(value, column)
        except UserError:
            continue
        values_by_column[name] = (typed, typed, 0)
    return values_by_column
