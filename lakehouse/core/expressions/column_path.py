"""Columns by path: `a.b` names the field `b` of the struct column `a`, unless the schema has a column of that name."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UserError, nearest


def path_of(name: str, schema: pa.Schema) -> tuple[str, ...]:
    """Split the path of a column into field names; raise UserError if the schema has no such column."""
    if name in schema.names:
        return (name,)
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        root = ".".join(parts[:depth])
        if root not in schema.names:
            continue
        inner = _inside(schema.field(root).type, parts[depth:])
        if inner is not None:
            return (root, *inner)
    raise UserError(f"column {name!r} is not in the table.{nearest(name, schema.names)}", column=name)


def spelled(name: str, schema: pa.Schema) -> str:
    """Return the path of a column as the schema spells it, because Spark ignores case.

    A path that the schema contains is not changed, and neither is one that no column, or several columns fit.
    """
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        root = ".".join(parts[:depth])
        if root in schema.names:
            return name
        fitting = [column for column in schema.names if column.lower() == root.lower()]
        if len(fitting) == 1:
            return ".".join((fitting[0], *parts[depth:]))
    return name


def type_of(name: str, schema: pa.Schema) -> pa.DataType:
    """Return the type of the column at a path."""
    root, *inner = path_of(name, schema)
    kind = schema.field(root).type
    for part in inner:
        kind = kind.field(part).type
    return kind


def root_of(name: str, schema: pa.Schema) -> str:
    """Return the top-level column that contains the column at a path."""
    return path_of(name, schema)[0]


def expression_of(name: str, schema: pa.Schema) -> pc.Expression:
    """Return the column at a path as an Arrow expression for tables of the schema."""
    return pc.field(*path_of(name, schema))


def _inside(kind: pa.DataType, parts: list[str]) -> tuple[str, ...] | None:
    if not parts:
        return ()
    if not pa.types.is_struct(kind):
        return None
    for depth in range(len(parts), 0, -1):
        name = ".".join(parts[:depth])
        position = kind.get_field_index(name)
        if position >= 0:
            inner = _inside(kind.field(position).type, parts[depth:])
            if inner is not None:
                return (name, *inner)
    return None
