"""The schema versions of a table with column ids, and the schema after a write (DATA-11).

A file has the newest version that is not newer than its instant. The fields of the table's schema get the names that
their columns have in the files of each version (see `rows.stored_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.core.format.internal_schema import (
    COMMENT,
    Column,
    Ids,
    InternalSchema,
    Kind,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    all_columns,
    arrow_field,
    children,
    comment_of,
)
from lakehouse.core.rows.stored_names import Names, with_names, with_retyped

#: Whether readers convert values from the first type to the second one.
Converts = Callable[[pa.DataType, pa.DataType], bool]
#: The names of a column in files, by version, or None if it has the same name in all files.
_NamesOf = Callable[[Column], Names | None]


@dataclass(frozen=True)
class SchemaHistory:
    """The schema versions of a table, in ascending order; at least one."""

    versions: tuple[InternalSchema, ...]

    @property
    def latest(self) -> InternalSchema:
        """The newest version."""
        return self.versions[-1]

    def at(self, version: int) -> SchemaHistory:
        """Return the history up to a version: what a file with an instant of this number was written with."""
        earlier = tuple(schema for schema in self.versions if schema.version <= version)
        return SchemaHistory(earlier or self.versions[:1])

    def with_version(self, schema: InternalSchema) -> SchemaHistory:
        """Return the history with a newer version, unless the version is its newest one already."""
        if schema.version <= self.latest.version:
            return self
        return SchemaHistory((*self.versions, schema))

    def typed(self, data: pa.Schema) -> SchemaHistory:
        """Return the history with the newest version in the types of `data`, the columns of the table.

        They are more exact than those of the JSON, which may have one name for several types.
        """
        return SchemaHistory((*self.versions[:-1], _with_types(self.latest, data)))

    def named(self, data: pa.Schema) -> pa.Schema:
        """Return the data columns of the table with comments and with the names that files have for them.

        A column that the newest version lacks was added by a writer that does not store ids, after that version. Only
        newer files have it.
        """
        return pa.schema(_Namer(self._names, self._retyped, self.latest.version).fields(data, self.latest.columns))

    def schema(self) -> pa.Schema:
        """Return the data columns of the newest version, in the types that its JSON states."""
        return self.named(pa.schema([arrow_field(column) for column in self.latest.data]))

    def _names(self, column: Column) -> Names | None:
        parent = self._parents[column.id]
        names: list[tuple[int, str | None]] = []
        is_clear = True
        for number, schema in enumerate(self.versions):
            name = self._by_id[number].get(column.id)
            if not names or names[-1][1] != name:
                names.append((schema.version, name))
            # A file without the column needs no mapping, unless another column has its name there.
            taken = name is None and (parent, column.name) in self._by_name[number]
            is_clear = is_clear and not taken and name in (None, column.name)
        return None if is_clear else names

    def _retyped(self, column: Column) -> int | None:
        """Return the version that gave a column its type, if values of the earlier type have another order or form."""
        version = None
        kinds = [types.get(column.id) for types in self._types]
        for schema, before, after in zip(self.versions[1:], kinds, kinds[1:], strict=False):
            if before is not None and after is not None and before != after and not keeps_statistics(before, after):
                version = schema.version
        return version

    def retyped(self, converts: Converts) -> int:
        """Return the newest version that gave a present column a type to which readers do not convert; 0 if none did.

        `converts` is whether the readers convert values from the stored type to the new one.
        """
        present = {column.id for _, column in all_columns(self.latest.columns)}
        leaves = [
            {column.id: column.kind for _, column in all_columns(schema.columns) if isinstance(column.kind, Leaf)}
            for schema in self.versions
        ]
        newest = 0
        for schema, before, after in zip(self.versions[1:], leaves, leaves[1:], strict=False):
            changed = [id for id in present & before.keys() & after.keys() if before[id].text != after[id].text]
            if not all(converts(before[id].arrow, after[id].arrow) for id in changed):
                newest = schema.version
        return newest

    @cached_property
    def _types(self) -> Sequence[Mapping[int, pa.DataType]]:
        return [
            {column.id: column.kind.arrow for _, column in all_columns(schema.columns) if isinstance(column.kind, Leaf)}
            for schema in self.versions
        ]

    @cached_property
    def _by_id(self) -> Sequence[Mapping[int, str]]:
        return [{column.id: column.name for _, column in all_columns(schema.columns)} for schema in self.versions]

    @cached_property
    def _by_name(self) -> Sequence[frozenset[tuple[int, str]]]:
        return [
            frozenset((parent, column.name) for parent, column in all_columns(schema.columns))
            for schema in self.versions
        ]

    @cached_property
    def _parents(self) -> Mapping[int, int]:
        return {column.id: parent for parent, column in all_columns(self.latest.columns)}

    @property
    def evolved(self) -> frozenset[str]:
        """The top-level names that mean different columns, or other columns inside of them, in different versions."""
        names = {column.name for schema in self.versions for column in schema.columns}
        newest = {column.name: column for column in self.latest.columns}
        clear = {name for name, column in newest.items() if not self._differs(column)}
        return frozenset(names - clear)

    def _differs(self, column: Column) -> bool:
        is_other = self._names(column) is not None or self._retyped(column) is not None
        return is_other or any(self._differs(part) for part in children(column.kind))

    def after(self, data: pa.Schema, version: int) -> InternalSchema:
        """Return the schema after a write at `version` whose data columns are `data`.

        Columns that the newest version lacks get new ids. If nothing changes, the newest version is returned.
        """
        ids = Ids(self.latest.max_id)
        meta = self.latest.columns[: len(self.latest.columns) - len(self.latest.data)]
        columns = (*meta, *(_merged(self.latest.data, field, ids) for field in data))
        if columns == self.latest.columns:
            return self.latest
        return InternalSchema(version=version, max_id=ids.last, columns=columns)


def reads_without_conversion(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Spark 3.5 reads values of one type in Parquet files as the other type.

    It reads decimals of a lower precision, but no integers as longer integers, and no floats as doubles.
    """
    is_decimal = pat.is_decimal(stored) and pat.is_decimal(wanted)
    return is_decimal and bool(stored.scale == wanted.scale and stored.precision <= wanted.precision)


def keeps_statistics(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether bounds of values with the type `before` are bounds of the same values with the type `after`."""
    if pat.is_decimal(before) and pat.is_decimal(after):
        return True
    wider = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
    return bool(wider.get(before) == after)


def unnamed_so_far(data: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Return the data columns after a write to a table with ids: files lack each new column, at any depth.

    `stored` are the columns before the write.
    """
    return pa.schema([_unnamed(field, _field(stored, field.name)) for field in data])


def _field(columns: pa.Schema | pa.StructType, name: str) -> pa.Field | None:
    position = columns.get_field_index(name)
    return None if position < 0 else columns.field(position)


def _unnamed(field: pa.Field, stored: pa.Field | None) -> pa.Field:
    if stored is None:
        return with_names(field, [(0, None)])
    kind, before = field.type, stored.type
    if pat.is_struct(kind) and pat.is_struct(before):
        parts = [_unnamed(part, _field(before, part.name)) for part in kind]
        return field.with_type(pa.struct(parts))
    if pat.is_list(kind) and pat.is_list(before):
        return field.with_type(pa.list_(_unnamed(kind.value_field, before.value_field)))
    if pat.is_map(kind) and pat.is_map(before):
        return field.with_type(pa.map_(kind.key_field, _unnamed(kind.item_field, before.item_field)))
    return field


def _with_types(schema: InternalSchema, data: pa.Schema) -> InternalSchema:
    columns = tuple(_typed(column, _field(data, column.name)) for column in schema.columns)
    return replace(schema, columns=columns)


def _typed(column: Column, field: pa.Field | None) -> Column:
    return column if field is None else replace(column, kind=_typed_kind(column.kind, field.type))


def _typed_kind(kind: Kind, arrow: pa.DataType) -> Kind:
    if isinstance(kind, Struct) and pat.is_struct(arrow):
        return Struct(tuple(_typed(column, _field(arrow, column.name)) for column in kind.columns))
    if isinstance(kind, ListOf) and pat.is_list(arrow):
        return ListOf(_typed(kind.element, arrow.value_field))
    if isinstance(kind, MapOf) and pat.is_map(arrow):
        return MapOf(kind.key, _typed(kind.value, arrow.item_field))
    return Leaf(kind.text, arrow) if isinstance(kind, Leaf) and not pat.is_nested(arrow) else kind


def _merged(columns: Sequence[Column], field: pa.Field, ids: Ids) -> Column:
    """Return the column of a field: the one with its name and its types, or a new one."""
    for column in columns:
        if column.name == field.name:
            # A writer may make a column optional, never required.
            optional = column.optional or field.nullable
            return replace(column, kind=_merged_kind(column.kind, field.type, ids), optional=optional)
    return ids.column(field)


def _merged_kind(kind: Kind, arrow: pa.DataType, ids: Ids) -> Kind:
    if isinstance(kind, Struct) and pat.is_struct(arrow):
        return Struct(tuple(_merged(kind.columns, part, ids) for part in arrow))
    if isinstance(kind, ListOf) and pat.is_list(arrow):
        return ListOf(_merged((kind.element,), arrow.value_field.with_name("element"), ids))
    if isinstance(kind, MapOf) and pat.is_map(arrow):
        return MapOf(kind.key, _merged((kind.value,), arrow.item_field.with_name("value"), ids))
    if isinstance(kind, Leaf) and not pat.is_nested(arrow):
        return kind if kind.arrow == arrow else Leaf.of(arrow)
    return ids.kind(arrow)


@dataclass(frozen=True, slots=True)
class _Namer:
    """Adds the names in files to fields; `version` is the newest version of the history."""

    names_of: _NamesOf
    retyped_at: Callable[[Column], int | None]
    version: int

    def fields(self, fields: Iterable[pa.Field], columns: Sequence[Column]) -> list[pa.Field]:
        """Return fields with the names of the columns that have their names."""
        by_name = {column.name: column for column in columns}
        return [self._field(field, by_name.get(field.name)) for field in fields]

    def _field(self, field: pa.Field, column: Column | None) -> pa.Field:
        if column is None:
            return with_names(field, [(0, None), (self.version + 1, field.name)])
        field = field.with_type(self._type(field.type, column.kind))
        if column.doc and comment_of(field) is None:
            field = field.with_metadata({**(field.metadata or {}), COMMENT: column.doc.encode()})
        retyped = self.retyped_at(column)
        field = field if retyped is None else with_retyped(field, retyped)
        names = self.names_of(column)
        return field if names is None else with_names(field, names)

    def _type(self, kind: pa.DataType, stored: Kind) -> pa.DataType:
        if isinstance(stored, Struct) and pat.is_struct(kind):
            return pa.struct(self.fields(kind, stored.columns))
        if isinstance(stored, ListOf) and pat.is_list(kind):
            element = kind.value_field
            return pa.list_(element.with_type(self._type(element.type, stored.element.kind)))
        if isinstance(stored, MapOf) and pat.is_map(kind):
            value = kind.item_field
            return pa.map_(kind.key_field, value.with_type(self._type(value.type, stored.value.kind)))
        return kind
