"""Exact bounds of a file's columns, for the column statistics in the metadata table (MDT-14).

Bounds come from the footer of the Parquet data where these are exact. Footers omit long strings and ignore NaN, so
writers look at the rows for these two. Bounds are in physical form, which represents every value: dates and times as
integers, decimals as unscaled integers, strings as bytes.

Bounds of two types are never merged, because the same physical value is a different number in another type. A file may
have been written before the type of a column changed. So bounds that are read from files are converted to the type that
the caller passes, like values in a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import convert, open_columns
from lakehouse.core.format.arrow_versions import cached_by_columns
from lakehouse.core.format.metadata.bounds import has_statistics
from lakehouse.core.storage.protocol import Storage
from lakehouse.model.commit import ColumnBounds

if TYPE_CHECKING:
    from lakehouse.core.files.base.skeleton_file import JoinedFile

#: Parquet writers omit bounds of strings that are longer than a few thousand bytes.
LONG_BYTES = 512
#: Row groups with more rows are larger than that; their bytes are not counted.
_FEW_ROWS = 64
_NAN = float("nan")
_BATCH_ROWS = 131_072
_VERSION = "V2"


@cached_by_columns(maxsize=32)
def leaf_types(schema: pa.Schema) -> Mapping[str, pa.DataType]:
    """Return the types of the columns and nested fields that can have statistics, by dotted path, in order."""
    types: dict[str, pa.DataType] = {}
    for field in schema:
        _add_leaves(types, field.name, field.type)
    return MappingProxyType(types)


def _add_leaves(types: dict[str, pa.DataType], path: str, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind):
        for child in kind:
            _add_leaves(types, f"{path}.{child.name}", child.type)
    else:
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if has_statistics(plain, _VERSION):
            types[path] = plain


class RowBounds:
    """Facts about a file's rows that footers omit: columns with NaN, and bounds of long strings."""

    def __init__(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        kinds = leaf_types(schema)
        self._schema = schema
        self.columns = tuple(name for name in columns if name in kinds)
        self._kinds = kinds
        # Includes columns without statistics, because the footer omits the bounds of all columns with NaN.
        self._reals = [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
        self._texts = [name for name in self.columns if _is_text(kinds[name])]
        self._nan: set[str] = set()
        self._long: dict[str, tuple[bytes, bytes]] = {}

    @property
    def nan_columns(self) -> frozenset[str]:
        """The columns and nested fields, by dotted path, that have NaN so far."""
        return frozenset(self._nan)

    def roots(self, lacks_bounds: Callable[[str], bool]) -> list[str]:
        """Return the columns of a stored row group that have to be added, because its footer omits such facts.

        `lacks_bounds` returns whether the footer has no bounds of a column.
        """
        reals = {_root(self._schema, name) for name in self._reals}
        texts = {_root(self._schema, name) for name in self._texts}
        return sorted(reals | {name for name in texts if lacks_bounds(name)})

    def add(self, rows: pa.Table) -> None:
        """Add the rows of one row group, or some of its columns."""
        names = set(rows.column_names)
        for name in self._reals:
            if (
                _root(self._schema, name) in names
                and name not in self._nan
                and pc.any(pc.is_nan(_leaf(rows, name))).as_py()
            ):
                self._nan.add(name)
        if rows.num_rows <= _FEW_ROWS and rows.nbytes <= LONG_BYTES:
            return
        for name in self._texts:
            if _root(self._schema, name) not in names:
                continue
            texts = _leaf(rows, name)
            if texts.nbytes <= LONG_BYTES or pa.types.is_dictionary(texts.type):
                continue  # Dictionaries are the meta columns with one value.
            longest = pc.max(pc.binary_length(texts)).as_py()
            if longest is not None and longest > LONG_BYTES:
                extremes = pc.min_max(texts.cast(pa.large_binary()))
                self._widen(name, extremes["min"].as_py(), extremes["max"].as_py())

    def _widen(self, name: str, low: bytes, high: bytes) -> None:
        bounds = self._long.get(name)
        self._long[name] = (low, high) if bounds is None else (min(low, bounds[0]), max(high, bounds[1]))

    def finish(self, footers: Iterable[pq.FileMetaData], *, sizes: bool = True) -> dict[str, ColumnBounds]:
        """Return the bounds of a file's columns with their types; `sizes` tells whether sizes are reported."""
        bounds_by_column = footer_bounds(footers, self.columns)
        for name, (low, high) in self._long.items():
            if name in bounds_by_column:
                bounds = bounds_by_column[name]
                low = low if bounds.low is None else min(low, bounds.low)
                high = high if bounds.high is None else max(high, bounds.high)
                bounds_by_column[name] = bounds._replace(low=low, high=high, known=True)
        for name in self._nan & bounds_by_column.keys():
            bounds = bounds_by_column[name]
            bounds_by_column[name] = bounds._replace(
                low=_NAN if bounds.low is None else bounds.low, high=_NAN, known=True
            )
        typed = {name: bounds._replace(kind=self._kinds[name]) for name, bounds in bounds_by_column.items()}
        if not sizes:
            return {name: bounds._replace(size_bytes=0, raw_bytes=0) for name, bounds in typed.items()}
        return typed


def footer_bounds(footers: Iterable[pq.FileMetaData], columns: Sequence[str]) -> dict[str, ColumnBounds]:
    """Return the bounds in footers. `known` is False where a footer omits the bounds of existing values."""
    wanted, bounds = set(columns), dict[str, ColumnBounds]()
    for footer in footers:
        leaves = _kept_leaves(footer, wanted)
        for index in range(footer.num_row_groups):
            group = footer.row_group(index)
            for number, path, is_decimal in leaves:
                added = _chunk_bounds(group.column(number), is_decimal=is_decimal)
                bounds[path] = united(bounds[path], added) if path in bounds else added
    return bounds


def _kept_leaves(footer: pq.FileMetaData, wanted: Collection[str]) -> list[tuple[int, str, bool]]:
    """Return number, dotted path and whether it is a decimal for each wanted column that is not in a list or map."""
    leaves, schema = [], footer.schema
    for number in range(footer.num_columns):
        leaf = schema.column(number)
        path = leaf.path
        if path in wanted and leaf.max_repetition_level == 0:
            leaves.append((number, path, leaf.logical_type.type == "DECIMAL"))
    return leaves


def _chunk_bounds(chunk: Any, *, is_decimal: bool) -> ColumnBounds:
    stats, values = chunk.statistics, chunk.num_values
    nulls = None if stats is None or not stats.has_null_count else stats.null_count
    has_bounds = stats is not None and stats.has_min_max
    low, high = (stats.min_raw, stats.max_raw) if has_bounds else (None, None)
    if is_decimal:
        low, high = _unscaled_number(low), _unscaled_number(high)
    return ColumnBounds(
        low=low,
        high=high,
        nulls=0 if nulls is None else nulls,
        values=values,
        size_bytes=chunk.total_compressed_size,
        raw_bytes=chunk.total_uncompressed_size,
        known=nulls is not None and (low is not None or nulls == values),
    )


def united(first: ColumnBounds, second: ColumnBounds) -> ColumnBounds:
    """Return the bounds of the rows in both; NaN is greater than all numbers."""
    return ColumnBounds(
        low=_least(first.low, second.low),
        high=_greatest(first.high, second.high),
        nulls=first.nulls + second.nulls,
        values=first.values + second.values,
        size_bytes=first.size_bytes + second.size_bytes,
        raw_bytes=first.raw_bytes + second.raw_bytes,
        known=first.known and second.known,
        kind=second.kind if first.kind is None else first.kind,
    )


def file_bounds(storage: Storage, path: str, kinds: Mapping[str, pa.DataType]) -> dict[str, ColumnBounds]:
    """Return the bounds of a base file that any program wrote: from its footer, and from its rows where needed.

    Foreign footers ignore NaN and omit long strings, so columns of these types are read. `kinds` are the columns, by
    dotted path, with their types in the table.
    """
    with open_columns(storage, path) as file:
        return row_group_bounds(file, kinds)


def stored_bounds(file: pq.ParquetFile | JoinedFile, columns: Sequence[str]) -> dict[str, ColumnBounds]:
    """Return the bounds in the footer of an open file. A constant column has bounds that are not known."""
    if isinstance(file, pq.ParquetFile):
        return footer_bounds([file.metadata], columns)
    constants = [name for name in columns if name in file.constants]
    nothing = ColumnBounds(low=None, high=None, nulls=0, values=0, known=False)
    return footer_bounds(file.footers, columns) | dict.fromkeys(constants, nothing)


def row_group_bounds(file: pq.ParquetFile | JoinedFile, kinds: Mapping[str, pa.DataType]) -> dict[str, ColumnBounds]:
    """Return the bounds of an open Parquet file; columns that it does not have are left out."""
    bounds_by_column = stored_bounds(file, [*kinds])
    stored = leaf_types(file.schema_arrow)
    unsure = []
    for name, bounds in bounds_by_column.items():
        converted = converted_bounds(bounds, stored.get(name), kinds[name])
        if converted is None or not bounds.known or isinstance(bounds.low, float):
            unsure.append(name)
        else:
            bounds_by_column[name] = converted
    return bounds_by_column | measured_bounds(file, {name: kinds[name] for name in unsure}, bounds_by_column)


def measured_bounds(
    file: pq.ParquetFile | JoinedFile, kinds: Mapping[str, pa.DataType], sizes: Mapping[str, ColumnBounds]
) -> dict[str, ColumnBounds]:
    """Return the bounds of the columns that an open Parquet file has; `sizes` has the sizes of its columns."""
    exact = dict[str, ColumnBounds]()
    for batch in file.iter_batches(_BATCH_ROWS, columns=_columns(file, kinds), use_threads=False) if kinds else ():
        rows = pa.Table.from_batches([batch])
        for name, kind in kinds.items():
            measured = values_bounds(_leaf(rows, name), kind)
            exact[name] = united(exact[name], measured) if name in exact else measured
    return {
        name: bounds._replace(size_bytes=sizes[name].size_bytes, raw_bytes=sizes[name].raw_bytes)
        for name, bounds in exact.items()
    }


def _columns(file: pq.ParquetFile | JoinedFile, names: Iterable[str]) -> list[str]:
    """Return the names to read; a joined file is read by whole columns, not by nested fields."""
    if isinstance(file, pq.ParquetFile):
        return [*names]
    return list(dict.fromkeys(_root(file.schema_arrow, name) for name in names))


def table_bounds(rows: pa.Table, kinds: Mapping[str, pa.DataType]) -> dict[str, ColumnBounds]:
    """Return the bounds of rows in memory."""
    stored = leaf_types(rows.schema)
    return {name: values_bounds(_leaf(rows, name), kind) for name, kind in kinds.items() if name in stored}


def values_bounds(values: pa.ChunkedArray, kind: pa.DataType) -> ColumnBounds:
    """Return the bounds of stored values in a column that has the type `kind` in the table.

    They are unknown if a value does not have this type; a read reports that.
    """
    try:
        return array_bounds(convert(values, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return ColumnBounds(low=None, high=None, nulls=values.null_count, values=len(values), known=False)


def converted_bounds(bounds: ColumnBounds, stored: pa.DataType | None, kind: pa.DataType) -> ColumnBounds | None:
    """Return bounds for values of the type `stored` after their conversion to the type `kind`.

    Returns None if the bounds do not determine this, for example if numbers become strings.
    """
    if stored is None:
        return None
    if _has_same_form(stored, kind) or bounds.low is None:
        return bounds
    if _is_text(kind):
        # Numbers and their strings have different orders.
        return None
    try:
        pair = convert(pa.chunked_array([bounds_array([bounds.low, bounds.high], stored)]), kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    converted = array_bounds(pair)
    return bounds._replace(low=converted.low, high=converted.high)


def _has_same_form(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether values of both types have the same physical form."""
    if stored == kind or (_is_text(stored) and _is_text(kind)):
        return True
    if pa.types.is_decimal(stored) and pa.types.is_decimal(kind):
        return bool(stored.scale == kind.scale)
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(kind):
        return bool(stored.unit == kind.unit)
    if pa.types.is_signed_integer(stored) and pa.types.is_signed_integer(kind):
        return bool(stored.bit_width <= kind.bit_width)
    return False


def array_bounds(values: Any) -> ColumnBounds:
    """Return the bounds of a column."""
    kind, nulls, count = values.type, values.null_count, len(values)
    if pa.types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if nulls == count:
        return ColumnBounds(low=None, high=None, nulls=nulls, values=count)
    if pa.types.is_floating(kind):
        values = values.cast(pa.float64())
        is_nan = pc.is_nan(values)
        numbers = pc.min_max(values.filter(pc.invert(is_nan)))
        low, high = numbers["min"].as_py(), numbers["max"].as_py()
        # As in footers, so that engines that order -0.0 before 0.0 match both zeros.
        low, high = -0.0 if low == 0.0 else low, 0.0 if high == 0.0 else high
        if pc.any(is_nan).as_py():
            low, high = _NAN if low is None else low, _NAN
        return ColumnBounds(low=low, high=high, nulls=nulls, values=count)
    extremes = pc.min_max(_comparable(values, kind))
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if pa.types.is_decimal(kind):
        low, high = _unscaled(low, kind), _unscaled(high, kind)
    return ColumnBounds(low=low, high=high, nulls=nulls, values=count)


def bounds_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return bounds in physical form as an array with the type of their column."""
    if pa.types.is_decimal(kind):
        return _decimals(values, kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array(values, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()).cast(kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(values, kind)


def _decimals(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return decimals with these unscaled values: 16 bytes each, little-endian."""
    data = b"".join((0 if value is None else value).to_bytes(16, "little", signed=True) for value in values)
    valid = pa.array([value is not None for value in values], pa.bool_())
    whole = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(values), [None, pa.py_buffer(data)])
    return pc.if_else(valid, whole, None).cast(kind)


def _root(schema: pa.Schema, path: str) -> str:
    """Return the column of a dotted path."""
    return path if path in schema.names else path.split(".", maxsplit=1)[0]


def _leaf(rows: pa.Table, path: str) -> Any:
    if path in rows.column_names:
        return rows.column(path)
    name, *below = path.split(".")
    return pc.struct_field(rows.column(name), below)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _unscaled_number(value: bytes | int | None) -> int | None:
    """Return the raw bound of a decimal in a footer as an unscaled integer."""
    return int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value


def _comparable(values: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_temporal(kind):
        plain = pa.int32() if kind.bit_width == 32 else pa.int64()
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array([chunk.view(plain) for chunk in values.chunks], plain)
        return values.view(plain)
    return values


def _unscaled(value: Decimal, kind: pa.DataType) -> int:
    """Return the unscaled integer of a decimal; arithmetic of `decimal` would round it to 28 digits."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "Arrow has no infinite decimals"
    number: int = int("".join(map(str, digits))) * 10 ** (exponent + kind.scale)
    return -number if sign else number


def _least(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return second if first != first or second < first else first


def _greatest(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return first if first != first or not (second != second or second > first) else second


def merged_bounds(parts: Iterable[Mapping[str, ColumnBounds]]) -> dict[str, ColumnBounds]:
    """Return the bounds of the rows in several parts of a file; a part may lack columns."""
    merged: dict[str, ColumnBounds] = {}
    for part in parts:
        for name, bounds in part.items():
            merged[name] = united(merged[name], bounds) if name in merged else bounds
    return merged
