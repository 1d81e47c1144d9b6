"""The names that columns have in files of earlier schema versions (DATA-11).

The schema of a table with column ids has them in the metadata of its Arrow fields, at any depth. So every reader that
gets a field of the table also finds the column in old files, and a column that was dropped and added again is not
found there. Fields without this metadata have the same name in all files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from lakehouse.core.format.file_names import instant_of
from lakehouse.core.rows.casting import entries_of, rebased_offsets
from lakehouse.model.instant import METADATA_BOOTSTRAP

_NAMES = b"lakehouse.names"
#: The version since which files have the present type of a column, if older statistics cannot be compared with it.
_RETYPED = b"lakehouse.retyped"
#: The name of a column from a schema version on; None if files of that version lack it. Versions ascend.
Names = Sequence[tuple[int, str | None]]


def with_names(field: pa.Field, names: Names) -> pa.Field:
    """Return the field with the names of its column in files, by version."""
    return field.with_metadata({**(field.metadata or {}), _NAMES: json.dumps(list(names)).encode()})


def with_retyped(field: pa.Field, version: int) -> pa.Field:
    """Return the field of a column whose statistics in files before a version have another type."""
    return field.with_metadata({**(field.metadata or {}), _RETYPED: str(version).encode()})


def statistics_name(field: pa.Field, instant: str) -> str | None:
    """Return the name by which statistics of an instant's files describe a column, or None if none can be used."""
    retyped = (field.metadata or {}).get(_RETYPED)
    if (retyped is not None and int(instant or 0) < int(retyped)) or nested_evolved(field):
        return None
    return stored_name(field, instant)


def names_of(field: pa.Field) -> Names:
    """Return the names of a column in files, by version; empty if it has the same name in all files."""
    text = (field.metadata or {}).get(_NAMES)
    return () if text is None else _parsed(text)


@lru_cache(maxsize=1_024)
def _parsed(text: bytes) -> Names:
    return tuple((int(version), name) for version, name in json.loads(text))


def stored_name(field: pa.Field, instant: str) -> str | None:
    """Return the name of a column in the files of an instant, or None if they lack it.

    A file has the newest schema version that is not newer than its instant.
    """
    names = names_of(field)
    if not names and _NAMES not in (field.metadata or {}):
        return str(field.name)
    time, stored = int(instant or 0), None
    for version, name in names:
        if version > time:
            break
        stored = name
    return stored


def is_evolved(field: pa.Field) -> bool:
    """Return whether the column, or a column inside of it, differs in name between files, or was retyped."""
    if _NAMES in (field.metadata or {}) or _RETYPED in (field.metadata or {}):
        return True
    kind = field.type
    return pat.is_nested(kind) and any(is_evolved(kind.field(number)) for number in range(kind.num_fields))


def evolved_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the top-level columns that differ in name between files, also inside of them."""
    return frozenset(field.name for field in schema if is_evolved(field))


def nested_evolved(field: pa.Field) -> bool:
    """Return whether a column inside of the column differs in name between files."""
    return is_evolved(field.remove_metadata())


def is_renamed_in(schema: pa.Schema, instant: str) -> bool:
    """Return whether a column of the schema, at any depth, is missing or has another name in files of an instant."""
    return any(_is_renamed(field, instant) for field in schema)


def _is_renamed(field: pa.Field, instant: str) -> bool:
    if stored_name(field, instant) != field.name:
        return True
    kind = field.type
    return pat.is_nested(kind) and any(_is_renamed(kind.field(n), instant) for n in range(kind.num_fields))


def path_instant(path: str) -> str:
    """Return the instant in the name of a data file; empty for other files, which have no earlier schema."""
    return instant_of(path.rpartition("/")[2]) or ""


def is_skeleton(path: str) -> bool:
    """Return whether a base file is a skeleton file of a bootstrap, by its name: its data columns are elsewhere."""
    return path_instant(path) == METADATA_BOOTSTRAP


def stored_names(schema: pa.Schema, instant: str) -> dict[str, str]:
    """Return the name in the files of an instant for each column that they have."""
    named = ((field.name, stored_name(field, instant)) for field in schema)
    return {name: stored for name, stored in named if stored is not None}


def by_current_names(rows: pa.Table, schema: pa.Schema, instant: str) -> pa.Table:
    """Return the columns of stored rows that `schema` contains, under their names in it, at any depth.

    Types stay as stored. Columns that the files of the instant lack are left out.
    """
    if not is_renamed_in(schema, instant):
        return rows
    columns, names = [], []
    for field in schema:
        stored = stored_name(field, instant)
        position = -1 if stored is None else rows.schema.get_field_index(stored)
        if position < 0:
            continue
        column = rows.column(position)
        if _is_renamed(field.with_name(stored).remove_metadata(), instant):
            chunks = [_renamed(chunk, field.type, instant) for chunk in column.chunks]
            column = pa.chunked_array(chunks, None if chunks else field.type)
        columns.append(column)
        names.append(field.name)
    if not columns:
        return pa.table({"": pa.nulls(rows.num_rows)})
    return pa.table(columns, names=names)


def _renamed(array: pa.Array, kind: pa.DataType, instant: str) -> pa.Array:
    """Return nested values under the names of `kind`; missing fields are null."""
    if pat.is_struct(kind) and pat.is_struct(array.type):
        children, fields = [], []
        for field in kind:
            stored = stored_name(field, instant)
            position = -1 if stored is None else array.type.get_field_index(stored)
            child = pa.nulls(len(array), field.type)
            if position >= 0:
                child = _renamed(pc.struct_field(array, [position]), field.type, instant)
            children.append(child)
            fields.append(pa.field(field.name, child.type))
        return pa.StructArray.from_arrays(children, fields=fields, mask=pc.is_null(array))
    if pat.is_list(kind) and (pat.is_list(array.type) or pat.is_large_list(array.type)):
        values = _renamed(array.flatten(), kind.value_type, instant)
        offsets = rebased_offsets(array)
        return pa.ListArray.from_arrays(offsets, values, type=pa.list_(pa.field("element", values.type)))
    if pat.is_map(kind) and pat.is_map(array.type):
        items = _renamed(entries_of(array, array.items), kind.item_type, instant)
        keys = entries_of(array, array.keys)
        return pa.MapArray.from_arrays(rebased_offsets(array), keys, items, pa.map_(keys.type, items.type))
    return array


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema without metadata of fields, at any depth."""
    return pa.schema([plain_field(field) for field in schema])


def plain_field(field: pa.Field) -> pa.Field:
    """Return the field without metadata, at any depth."""
    return pa.field(field.name, _plain_type(field.type), nullable=field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pat.is_struct(kind):
        return pa.struct([plain_field(part) for part in kind])
    if pat.is_list(kind):
        return pa.list_(plain_field(kind.value_field))
    if pat.is_map(kind):
        return pa.map_(plain_field(kind.key_field), plain_field(kind.item_field))
    return kind


def without_stored_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema without the names of columns in files; comments stay. Returns `schema` if it has none."""
    if not any(is_evolved(field) for field in schema):
        return schema
    return pa.schema([without_names(field) for field in schema], metadata=schema.metadata)


def without_names(field: pa.Field) -> pa.Field:
    """Return the field without the names of its column in files; other metadata, such as a comment, stays."""
    others: Mapping[bytes, bytes] = {
        key: text for key, text in (field.metadata or {}).items() if key not in (_NAMES, _RETYPED)
    }
    kind = field.type
    if pat.is_struct(kind):
        kind = pa.struct([without_names(part) for part in kind])
    elif pat.is_list(kind):
        kind = pa.list_(without_names(kind.value_field))
    elif pat.is_map(kind):
        kind = pa.map_(kind.key_field, without_names(kind.item_field))
    return pa.field(field.name, kind, nullable=field.nullable, metadata=others or None)
