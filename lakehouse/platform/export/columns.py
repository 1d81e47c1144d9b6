"""The columns of a view: the columns of the table with the types that views have, and the partition columns.

A view contains the meta columns, as Apache XTable's do: they are in the files, and incremental readers use them. All
columns are nullable, because a file may lack a column that was added later.

A view is partitioned by the identity of columns only. Other tables get a view without partitions, whose readers skip
files by the column bounds: tables with a timestamp key generator, with nested or fractional partition columns, and with
a global index, under which a row may stay in its partition after its partition column changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.rows.stored_names import evolved_columns, stored_name
from lakehouse.core.state.table_config import TableConfig
from lakehouse.errors import UnsupportedError, UserError

_PARTITIONABLE: tuple[Callable[[pa.DataType], bool], ...] = (
    pat.is_string,
    pat.is_int32,
    pat.is_int64,
    pat.is_date32,
    pat.is_boolean,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewColumns:
    """The columns of a view.

    Attributes:
        schema: The columns in order, with meta columns.
        partition_by: The names of the partition columns.
        table: The columns of the table, with the names that files of earlier schema versions have for them (see
            `rows.stored_names`); None for the columns of a view that was loaded.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    table: pa.Schema | None = field(default=None, compare=False)

    @property
    def is_evolved(self) -> bool:
        """Whether some files may have other names for a column."""
        return self.table is not None and bool(evolved_columns(self.table))

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return self.schema.field(name).type


def view_columns(table: LoadedTable, *, partitioned: bool = True) -> ViewColumns:
    """Return the columns of a view of the loaded table.

    Raises UserError for a table without schema, UnsupportedError for a column type that no view can have.
    """
    schema = table_schema(table)
    root = table.env.storage.root
    if schema is None or not schema.names:
        raise UserError(f"{root} has no columns yet; write to it first", location=root)
    full = with_meta_fields(schema) if table.config.populate_meta_fields else schema
    fields = [pa.field(column.name, view_type(column.type, column.name, root)) for column in full]
    by = _partition_columns(table.config, pa.schema(fields)) if partitioned else ()
    return ViewColumns(schema=pa.schema(fields), partition_by=by, table=full)


def view_type(kind: pa.DataType, column: str, root: str) -> pa.DataType:
    """Return the type of a column in views: times in microseconds, everything nullable.

    Raises UnsupportedError, with the column, for timestamps in nanoseconds.
    """
    if pat.is_timestamp(kind):
        if kind.unit == "ns":
            raise UnsupportedError(
                f"{root}: column {column!r} has type {kind}, which Iceberg (format version 2) and Delta cannot "
                "represent. Store it in microseconds: add a column of type timestamp[us] and drop this one",
                column=column,
                type=str(kind),
            )
        return pa.timestamp("us", kind.tz)
    if pat.is_time(kind):
        return pa.time64("us")
    if pat.is_dictionary(kind):
        return view_type(kind.value_type, column, root)
    if pat.is_struct(kind):
        return pa.struct([pa.field(f.name, view_type(f.type, f"{column}.{f.name}", root)) for f in kind])
    if pat.is_list(kind) or pat.is_large_list(kind):
        return pa.list_(pa.field("element", view_type(kind.value_type, f"{column}.element", root)))
    if pat.is_map(kind):
        return pa.map_(
            view_type(kind.key_type, f"{column}.key", root), view_type(kind.item_type, f"{column}.value", root)
        )
    if pat.is_large_string(kind) or pat.is_string_view(kind):
        return pa.string()
    if pat.is_large_binary(kind) or pat.is_binary_view(kind):
        return pa.binary()
    if pat.is_int8(kind) or pat.is_int16(kind):
        return pa.int32()
    return kind


def promotes(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether readers of both formats read values of the type `stored` as `kind`.

    Other changes, such as numbers that became strings, are conversions that only readers of Hudi make.
    """
    if stored == kind:
        return True
    if pat.is_dictionary(stored):
        return promotes(stored.value_type, kind)
    return any(matches(stored) and matches(kind) and rule(stored, kind) for matches, rule in _PROMOTIONS)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind))


def _is_narrower(stored: pa.DataType, kind: pa.DataType) -> bool:
    return bool(stored.bit_width <= kind.bit_width)


def _has_same_scale(stored: pa.DataType, kind: pa.DataType) -> bool:
    return bool(stored.scale == kind.scale and stored.precision <= kind.precision)


def _has_fields(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether the fields with the same name fit; fields that only one type has are null or ignored."""
    names = {field.name: field.type for field in kind}
    return all(field.name not in names or promotes(field.type, names[field.name]) for field in stored)


#: Families of types, and the rule for a promotion within each.
_PROMOTIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]], ...] = (
    (_is_text, lambda stored, kind: True),
    (_is_bytes, lambda stored, kind: pat.is_binary(kind)),
    (pat.is_signed_integer, _is_narrower),
    (pat.is_floating, _is_narrower),
    (pat.is_decimal, _has_same_scale),
    (pat.is_timestamp, lambda stored, kind: stored.unit != "ns" and (stored.tz is None) == (kind.tz is None)),
    (pat.is_time, lambda stored, kind: stored.unit != "ns"),
    (pat.is_struct, _has_fields),
    (_is_list, lambda stored, kind: promotes(stored.value_type, kind.value_type)),
    (
        pat.is_map,
        lambda stored, kind: promotes(stored.key_type, kind.key_type) and promotes(stored.item_type, kind.item_type),
    ),
)


def has_present_names(column: pa.Field, stored: pa.Field | None, instant: str) -> bool:
    """Return whether readers that find a column by its present name get its values from the files of an instant.

    `stored` is the column of the file with this name. It has other values if the column was renamed, or if another
    column with this name was dropped.
    """
    name = stored_name(column, instant)
    if stored is None:
        return name is None or name == column.name
    if name != column.name:
        return False
    kind, other = column.type, stored.type
    if pat.is_struct(kind) and pat.is_struct(other):
        below = {other.field(number).name: other.field(number) for number in range(other.num_fields)}
        return all(has_present_names(child, below.get(child.name), instant) for child in kind)
    if pat.is_nested(kind) and not pat.is_struct(kind) and kind.num_fields == other.num_fields:
        # Elements, keys and values have no names that change; fields inside of them have.
        pairs = [(kind.field(number), other.field(number)) for number in range(kind.num_fields)]
        return all(has_present_names(mine, theirs.with_name(mine.name), instant) for mine, theirs in pairs)
    return True


def _partition_columns(config: TableConfig, schema: pa.Schema) -> tuple[str, ...]:
    keys = config.path_keys
    if any(kind != "SIMPLE" for kind in keys.partition_types):
        return ()
    fields = keys.partition_fields
    if any(name not in schema.names or name in META_COLUMNS for name in fields):
        return ()
    kinds = [schema.field(name).type for name in fields]
    return fields if all(any(matches(kind) for matches in _PARTITIONABLE) for kind in kinds) else ()
