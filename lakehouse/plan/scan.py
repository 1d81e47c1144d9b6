"""Which files a query reads, and what is left to filter: partitions and column ranges are settled here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.errors import UserError
from lakehouse.format.avro_schema import META_COLUMNS, with_meta_fields
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.keys import KeyConfig
from lakehouse.model.predicate import And, In, Predicate
from lakehouse.plan.predicate import Range, check_columns, literal, may_match
from lakehouse.rows.partition_path import parse_partition_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """What to read: files, the columns to return (`schema`), and the condition on rows that files do not settle."""

    files: tuple[BaseFile, ...]
    schema: pa.Schema
    residual: Predicate | None = None
    skipped: int = 0


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
    """Return the files that may hold matching rows; `commit_times` keeps rows of these instants only (incremental).

    Raises UserError for a column the table does not have.
    """
    full = with_meta_fields(table)
    if where is not None:
        check_columns(where, full)
    chosen = _choose(full, columns)
    files = [file_slice.base for file_slice in slices if file_slice.base is not None]
    kept = tuple(f for f in files if where is None or may_match(where, _ranges(f, full, keys, ranges), full))
    residual = where
    if commit_times is not None:
        only = In(META_COLUMNS[0], tuple(sorted(commit_times)))
        residual = only if where is None else And((only, where))
    return ScanPlan(files=kept, schema=chosen, residual=residual, skipped=len(files) - len(kept))


def _choose(full: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return full
    if not columns:
        raise UserError("a read of no columns has no rows: name at least one column")
    for name in columns:
        if name not in full.names:
            raise UserError(f"column {name!r} is not in the table; columns: {', '.join(full.names)}", column=name)
    return pa.schema([full.field(name) for name in columns])


def _ranges(
    file: BaseFile, schema: pa.Schema, keys: KeyConfig, ranges: Mapping[str, Mapping[str, Range]]
) -> Mapping[str, Range]:
    """Return what is known of a file's columns: recorded ranges, else the one value a partition column has.

    A recorded range comes first: a global index may update a row where it is although its partition column changed.
    """
    known = dict(ranges.get(file.path, {}))
    known[META_COLUMNS[3]] = (file.partition, file.partition, 0)
    if not keys.partition_fields:
        return known
    try:
        values = parse_partition_path(file.partition, keys)
    except UserError:
        # Values with `/` in them made more levels than there are fields; nothing is known of each then.
        return known
    for name, kind, value in zip(keys.partition_fields, keys.partition_types, values, strict=True):
        # A TIMESTAMP directory is a formatted value; the column holds another, so the two are not compared.
        if kind != "SIMPLE" or name in known or name not in schema.names or value is None:
            continue
        column = schema.field(name).type
        if pa.types.is_timestamp(column) or pa.types.is_floating(column) or pa.types.is_boolean(column):
            continue
        try:
            typed = literal(value, column)
        except UserError:
            continue
        known[name] = (typed, typed, 0)
    return known
