"""Find partitions and directories that can contain rows that meet a condition, by their paths (DATA-2.3).

A condition is evaluated on all paths by one kernel call. The path of a partition contains one value per
partition field. A directory above it contains the values of the first fields only. A string without URL encoding may
contain `/`: then the directory `a` represents the value `a` and all values that begin with `a/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.literals import literal, typed_comparison, typed_list
from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.planning.predicate import check_columns
from lakehouse.core.planning.ranges import ColumnRanges, Flags, may_match
from lakehouse.core.rows.partition_path import DEFAULT_PARTITION, parse_partition_path, segment, unescape
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig
from lakehouse.model.predicate import And, Comparison, In, Predicate, columns_of

#: Maximum number of directories that are listed by computed names. Above it, the parent directory is listed instead.
_MAX_DIRECTORIES = 64
# Types whose string form in partition paths depends on the writer.
_WITHOUT_TEXT = (pa.types.is_timestamp, pa.types.is_time, pa.types.is_floating, pa.types.is_boolean)
# The character after `/`: all strings that begin with `a/` are between `a` and `a0`.
_AFTER_SLASH = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFilter:
    """A condition on the values of partition fields; `where` was checked against `schema`."""

    where: Predicate
    schema: pa.Schema
    keys: KeyConfig

    def __call__(self, path: str) -> bool:
        """Return whether a directory may be, or may contain, a partition with matching rows."""
        return bool(self.directories([path])[0])

    def covers(self, path: str) -> bool:
        """Return whether a partition may have matching rows."""
        return bool(self.select(pa.array([path], pa.string()))[0])

    def select(self, paths: pa.Array) -> Flags:
        """Return for each partition path whether the partition may have matching rows."""
        ranges = partition_ranges(paths, self.schema, self.keys, tuple(columns_of(self.where)))
        flags = may_match(self.where, ranges, self.schema, len(paths))
        directories = self.computed()
        if directories is None:
            return flags
        below = np.zeros(len(paths), bool)
        for directory in directories:
            inside = pc.or_(pc.equal(paths, directory), pc.starts_with(paths, f"{directory}/"))
            below |= inside.to_numpy(zero_copy_only=False).astype(bool)
        return flags & below

    def directories(self, paths: Iterable[str]) -> Flags:
        """Return for each directory of one level whether it may be, or contain, a partition with matching rows."""
        path = pa.array(paths, pa.string())
        if not len(path):
            return np.zeros(0, bool)
        levels = pc.split_pattern(path, "/")
        depth = int(pc.min(pc.list_value_length(levels)).as_py())
        ranges: dict[str, ColumnRanges] = {}
        for number, field in enumerate(self.keys.partition_fields[:depth]):
            if not _is_simple(self.keys, number) or field not in self.schema.names:
                break
            kind = self.schema.field(field).type
            text = _without_name(pc.list_element(levels, number), field, self.keys)
            if self.keys.url_encode or _has_one_level(kind):
                ranges[field] = ColumnRanges.of_values(_typed_values(text, kind, self.keys))
                continue
            if not pa.types.is_string(kind):
                break
            values = values_of(self.where, field, kind)
            if values is not None and not any("/" in value.as_py() for value in values):
                ranges[field] = ColumnRanges.of_values(_typed_values(text, kind, self.keys))
                continue
            text = _without_default(text)
            longest = pc.binary_join_element_wise(text, _AFTER_SLASH, "")
            ranges[field] = ColumnRanges(
                low=text, high=longest, nulls=_zeros(text), values=pa.nulls(len(text), pa.int64())
            )
            break
        return may_match(self.where, ranges, self.schema, len(path))

    def computed(self) -> tuple[str, ...] | None:
        """Return the only matching directories if conditions determine the values of the first fields, otherwise None.

        If all fields have such conditions, a directory is a partition. Otherwise it contains partitions.
        """
        paths: list[str] | None = None
        for number, field in enumerate(self.keys.partition_fields):
            values = self._values_of(number, field)
            if values is None:
                break
            segments = [text for value in values if (text := segment(value, field, self.keys)) is not None]
            paths = segments if paths is None else [f"{above}/{text}" for above, text in product(paths, segments)]
            if len(paths) > _MAX_DIRECTORIES:
                return None
        return None if paths is None else tuple(sorted(set(paths)))

    def _values_of(self, number: int, field: str) -> list[str] | None:
        """Return the only values of a field that can match, as strings in paths; None if any value can."""
        if not _is_simple(self.keys, number) or field not in self.schema.names:
            return None
        kind = self.schema.field(field).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            return None
        allowed = values_of(self.where, field, kind)
        return None if allowed is None else [str(value.as_py()) for value in allowed]


def partition_filter(where: Predicate | None, table: pa.Schema, keys: KeyConfig) -> PartitionFilter | None:
    """Return the filter of a condition for a table with these data columns; None if it cannot exclude a partition.

    Raises UserError for a column that does not exist.
    """
    if where is None or not keys.partition_fields:
        return None
    full = with_meta_fields(table)
    check_columns(where, full)
    return PartitionFilter(where=where, schema=full, keys=keys)


def partition_ranges(
    paths: pa.Array, schema: pa.Schema, keys: KeyConfig, columns: Collection[str]
) -> dict[str, ColumnRanges]:
    """Return the ranges of partition columns that follow from partition paths.

    There are none for the null partition, TIMESTAMP fields, and types with several string forms of a value.
    """
    if frozenset(columns).isdisjoint((META_COLUMNS[3], *keys.partition_fields)):
        return {}
    encoded = paths.dictionary_encode()
    distinct = encoded.dictionary.cast(pa.string())
    ranges = {META_COLUMNS[3]: ColumnRanges.of_values(distinct)}
    texts = _field_texts(distinct, keys)
    for number, field in enumerate(keys.partition_fields):
        if not _is_simple(keys, number) or field not in schema.names:
            continue
        ranges[field] = ColumnRanges.of_values(_typed_values(texts[number], schema.field(field).type, keys))
    return {name: values.take(encoded.indices) for name, values in ranges.items()}


def _field_texts(paths: pa.Array, keys: KeyConfig) -> list[pa.Array]:
    """Return the string of each field in each path; null where the path does not contain it."""
    fields = keys.partition_fields
    if len(fields) == 1:
        return [_without_name(paths, fields[0], keys)]
    levels = pc.split_pattern(paths, "/")
    regular = pc.equal(pc.list_value_length(levels), len(fields))
    if all(_is_simple(keys, number) for number in range(len(fields))) and pc.all(regular).as_py():
        return [_without_name(pc.list_element(levels, n), field, keys) for n, field in enumerate(fields)]
    # Values may contain `/`, and dates may span several levels, so each path is split individually.
    parsed = [_parsed(path, keys) for path in paths.to_pylist()]
    return [pa.array([values[number] for values in parsed], pa.string()) for number in range(len(fields))]


def _parsed(path: str, keys: KeyConfig) -> tuple[str | None, ...]:
    try:
        parts = parse_partition_path(path, keys)
    except UserError:
        return (None,) * len(keys.partition_fields)
    leads = tuple(f"{field}=" for field in keys.partition_fields)
    if keys.hive_style and sum(level.startswith(leads) for level in path.split("/")) > len(leads):
        # If a value contains `/` and the name of a field, the ends of the values are unknown.
        return (None,) * len(leads)
    # `_typed_values` decodes the strings.
    return tuple(text.replace("%", "%25") if text and keys.url_encode else text for text in parts)


def _typed_values(text: pa.Array, kind: pa.DataType, keys: KeyConfig) -> pa.Array:
    """Return strings from paths as column values; null for the null partition and for an invalid value."""
    if any(has_no_text(kind) for has_no_text in _WITHOUT_TEXT):
        return pa.nulls(len(text), kind)
    encoded = _without_default(text).dictionary_encode()
    values = encoded.dictionary
    if keys.url_encode and pc.any(pc.match_substring(values, "%")).as_py():
        values = pa.array([unescape(value) for value in values.to_pylist()], pa.string())
    if not pa.types.is_string(kind):
        values = pa.array([_literal(value, kind) for value in values.to_pylist()], kind)
    return values.take(encoded.indices)


def _literal(text: str, kind: pa.DataType) -> Any:
    try:
        return literal(text, kind)
    except UserError:
        return None


def _without_name(text: pa.Array, field: str, keys: KeyConfig) -> pa.Array:
    """Remove the prefix `field=` from one level of paths; the result is null if the prefix is missing."""
    if not keys.hive_style:
        return text
    lead = f"{field}="
    named = pc.starts_with(text, lead)
    return pc.if_else(named, pc.utf8_slice_codeunits(text, len(lead)), pa.scalar(None, pa.string()))


def _without_default(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(text, DEFAULT_PARTITION), pa.scalar(None, pa.string()), text)


def _zeros(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(values), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))


def _is_simple(keys: KeyConfig, number: int) -> bool:
    # A TIMESTAMP directory is a formatted value that cannot be compared with the column.
    return number < len(keys.partition_types) and keys.partition_types[number] == "SIMPLE"


def _has_one_level(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_boolean(kind))


def values_of(where: Predicate | None, column: str, kind: pa.DataType) -> Sequence[pa.Scalar] | None:
    """Return the only column values for which the condition can hold, or None if these are not a list.

    A literal that no value of the type equals is left out. Floats have several representations of zero and NaN, so
    the result is None for them.
    """
    if isinstance(where, And):
        named = [values for part in where.parts if (values := values_of(part, column, kind)) is not None]
        return min(named, key=len) if named else None
    if pa.types.is_floating(kind):
        return None
    if isinstance(where, Comparison) and where.column == column and where.operator == "=":
        compared = typed_comparison(where, kind)
        return [compared.value] if isinstance(compared, Comparison) else []
    if isinstance(where, In) and where.column == column:
        return typed_list(where, kind).values
    return None
