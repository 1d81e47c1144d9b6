"""Apply the changes of `Table.alter()` to a schema with column ids: a pure function, which checks each change.

A path names a column: `a`, the field `a.b` of a struct, `a.element` of a list, `a.value` of a map, or `a.element.b`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.core.format.avro.schema import META_COLUMNS, illegal_name, is_legal_name
from lakehouse.core.format.internal_schema import (
    Column,
    Ids,
    InternalSchema,
    Kind,
    Leaf,
    ListOf,
    Struct,
    children,
    with_children,
)
from lakehouse.core.planning.schema import ROUNDING, normalise
from lakehouse.errors import UserError, nearest
from lakehouse.spec.options.schema import TYPE_CHANGE

_DIGITS = {pa.int32(): 10, pa.int64(): 19}
_NUMBERS = (pa.int32(), pa.int64(), pa.float32(), pa.float64())


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a column: first, after another one, or at the end if neither is given."""

    first: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column, which is null in all stored rows."""

    path: str
    type: pa.DataType
    comment: str = ""
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Rename a column."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drop a column."""

    path: str


@dataclass(frozen=True, slots=True)
class ChangeType:
    """Change the type of a column to a type that can represent all its values."""

    path: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class SetComment:
    """Set the comment on a column; an empty text removes it."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Move a column within its struct or its table."""

    path: str
    place: Place


SchemaChange: TypeAlias = AddColumn | RenameColumn | DropColumn | ChangeType | SetComment | MoveColumn
_Columns: TypeAlias = tuple[Column, ...]
#: Changes the columns of one struct; the argument is the name of a column in it.
_Edit: TypeAlias = Callable[[_Columns, str], _Columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules:
    """What changes may affect.

    Attributes:
        uses: The use of columns by path, such as "a record key column", and the way out. Such a column, and a struct
            that contains it, cannot be renamed, dropped or retyped.
        rounds: Whether numbers may lose digits in their new type.
    """

    uses: Mapping[str, str] = field(default_factory=dict)
    rounds: bool = False


def apply_changes(
    schema: InternalSchema, changes: Sequence[SchemaChange], rules: ChangeRules, version: int
) -> InternalSchema:
    """Return the schema after the changes, with `version`; the same schema if they change nothing.

    Args:
        schema: The newest schema of the table.
        changes: The changes, applied one after the other.
        rules: What they may affect.
        version: The instant of the change, as a number.

    Raises:
        UserError: A change is not possible; the message names the column and the way out.
    """
    ids = Ids(schema.max_id)
    meta = schema.columns[: len(schema.columns) - len(schema.data)]
    data: _Columns = schema.data
    for change in changes:
        if isinstance(change, RenameColumn | DropColumn | ChangeType):
            _refuse_used(change, rules.uses)
        data = _edited(data, change.path.split("."), change, _edit(change, ids, rules))
    if not data:
        raise UserError("all columns would be dropped; a table needs at least one")
    columns = (*meta, *data)
    if columns == schema.columns:
        return schema
    return InternalSchema(version=version, max_id=ids.last, columns=columns)


def _refuse_used(change: RenameColumn | DropColumn | ChangeType, uses: Mapping[str, str]) -> None:
    verb = {RenameColumn: "renamed", DropColumn: "dropped", ChangeType: "retyped"}[type(change)]
    for path, use in uses.items():
        if path == change.path or path.startswith(f"{change.path}."):
            raise UserError(f"column {change.path!r} cannot be {verb}: {path!r} is {use}", column=change.path)


def _edit(change: SchemaChange, ids: Ids, rules: ChangeRules) -> _Edit:
    """Return the function that makes a change in the struct that contains its column."""
    if isinstance(change, AddColumn):
        return lambda columns, name: _added(columns, name, change, ids)
    if isinstance(change, RenameColumn):
        return lambda columns, name: _renamed(columns, name, change)
    if isinstance(change, DropColumn):
        return lambda columns, name: _dropped(columns, name, change.path)
    if isinstance(change, MoveColumn):
        return lambda columns, name: _moved(columns, name, change)
    if isinstance(change, SetComment):
        doc = change.text or None
        return lambda columns, name: _replaced(columns, name, change.path, lambda column: replace(column, doc=doc))
    return lambda columns, name: _replaced(columns, name, change.path, lambda column: _retyped(column, change, rules))


def _edited(columns: _Columns, path: Sequence[str], change: SchemaChange, edit: _Edit) -> _Columns:
    """Return the columns after an edit in the struct that contains the last part of the path."""
    if len(path) == 1:
        return edit(columns, path[0])
    whole = change.path
    position = _position(columns, path[0], whole)
    column = columns[position]
    if not children(column.kind):
        raise UserError(f"column {whole!r}: {path[0]!r} is {_text(column.kind)}, which has no fields", column=whole)
    if len(path) == 2 and not isinstance(column.kind, Struct) and not isinstance(change, ChangeType):
        raise UserError(
            f"column {whole!r}: the element of a list, and the key and value of a map, can only be retyped; other "
            "changes are for columns and fields of a struct",
            column=whole,
        )
    inner = _edited(children(column.kind), path[1:], change, edit)
    return (*columns[:position], replace(column, kind=with_children(column.kind, inner)), *columns[position + 1 :])


def _position(columns: _Columns, name: str, whole: str) -> int:
    for number, column in enumerate(columns):
        if column.name == name:
            return number
    names = [column.name for column in columns]
    if whole in META_COLUMNS:
        raise UserError(f"column {whole!r} is a meta column, which Hudi maintains; it cannot be changed", column=whole)
    raise UserError(
        f"column {whole!r} is not in the table.{nearest(name, names)} Columns: {', '.join(names)}", column=whole
    )


def _check_name(columns: _Columns, name: str, whole: str) -> None:
    """Raise UserError for a name that a column cannot have, or that another column of the struct has."""
    if not is_legal_name(name):
        raise illegal_name(name, whole)
    if name.lower() in META_COLUMNS:
        raise UserError(f"column {whole!r}: {name!r} is the name of a meta column; choose another one", column=whole)
    for column in columns:
        if column.name.lower() == name.lower():
            raise UserError(
                f"column {whole!r}: there is a column {column.name!r} already, and names must differ not only in case",
                column=whole,
            )


def _added(columns: _Columns, name: str, change: AddColumn, ids: Ids) -> _Columns:
    _check_name(columns, name, change.path)
    stored = normalise(pa.schema([pa.field(name, change.type)])).field(0)
    column = replace(ids.column(stored), doc=change.comment or None)
    return _placed((*columns, column), name, change.place, change.path)


def _renamed(columns: _Columns, name: str, change: RenameColumn) -> _Columns:
    position = _position(columns, name, change.path)
    parent, dot, new = change.name.rpartition(".")
    if dot and parent != change.path.rpartition(".")[0]:
        raise UserError(
            f"column {change.path!r} cannot be renamed to {change.name!r}: a column does not move to another struct. "
            "Give the new name alone",
            column=change.path,
        )
    others = columns[:position] + columns[position + 1 :]
    _check_name(others, new, change.path)
    return (*columns[:position], replace(columns[position], name=new), *columns[position + 1 :])


def _dropped(columns: _Columns, name: str, whole: str) -> _Columns:
    position = _position(columns, name, whole)
    if len(columns) == 1:
        what = f"the only field of {whole.rpartition('.')[0]!r}" if "." in whole else "the only column of the table"
        raise UserError(f"column {whole!r} is {what}; drop that, or add another one first", column=whole)
    return columns[:position] + columns[position + 1 :]


def _moved(columns: _Columns, name: str, change: MoveColumn) -> _Columns:
    _position(columns, name, change.path)
    return _placed(columns, name, change.place, change.path)


def _placed(columns: _Columns, name: str, place: Place, whole: str) -> _Columns:
    """Return the columns with one of them at a place."""
    column = columns[_position(columns, name, whole)]
    rest = tuple(other for other in columns if other is not column)
    if place.first:
        return (column, *rest)
    if not place.after:
        return (*rest, column)
    after = place.after.rpartition(".")[2]
    number = _position(rest, after, place.after) + 1
    return (*rest[:number], column, *rest[number:])


def _replaced(columns: _Columns, name: str, whole: str, change: Callable[[Column], Column]) -> _Columns:
    position = _position(columns, name, whole)
    return (*columns[:position], change(columns[position]), *columns[position + 1 :])


def _retyped(column: Column, change: ChangeType, rules: ChangeRules) -> Column:
    if not isinstance(column.kind, Leaf) or pat.is_nested(change.type):
        raise UserError(
            f"column {change.path!r} is {_text(column.kind)}, which cannot become {change.type}; change the types of "
            "its fields, or add a column of the other type",
            column=change.path,
        )
    before, after = column.kind.arrow, change.type
    if before == after:
        return column
    reason = type_change_refusal(before, after)
    if reason:
        raise UserError(
            f"column {change.path!r} is {before} and cannot become {after}: {reason}. Add a column of the type, write "
            "the converted values to it, then drop this one",
            column=change.path,
        )
    if (before, after) in ROUNDING and not rules.rounds:
        raise UserError(
            f"column {change.path!r} is {before}, and large numbers would lose digits in {after}. Set "
            f"{TYPE_CHANGE}=lossy to allow it, or use a decimal",
            column=change.path,
        )
    return replace(column, kind=Leaf.of(after))


def type_change_refusal(before: pa.DataType, after: pa.DataType) -> str:
    """Return why a column cannot get another type by metadata alone; an empty text if it can.

    The allowed changes are those of Hudi that keep every value: readers convert the values of old files.
    """
    if before in _NUMBERS and after in _NUMBERS:
        return "" if _NUMBERS.index(before) < _NUMBERS.index(after) else "its values may not fit"
    if pat.is_string(after):
        is_text = before in _NUMBERS or pat.is_decimal(before) or pat.is_date32(before)
        return "" if is_text else "Hudi has no such change"
    if pat.is_decimal(after):
        return _decimal_refusal(before, after)
    return "Hudi has no such change"


def _decimal_refusal(before: pa.DataType, after: pa.DataType) -> str:
    digits = after.precision - after.scale
    if before in _DIGITS:
        return "" if digits >= _DIGITS[before] else f"its values have up to {_DIGITS[before]} digits before the point"
    if pat.is_decimal(before):
        is_wider = digits >= before.precision - before.scale and after.scale >= before.scale
        return "" if is_wider else "its values may have more digits"
    if pat.is_floating(before):
        return "its values would be rounded"
    return "its values may not be numbers" if pat.is_string(before) else "Hudi has no such change"


def _text(kind: Kind) -> str:
    if isinstance(kind, Leaf):
        return str(kind.arrow)
    return "a struct" if isinstance(kind, Struct) else "a list" if isinstance(kind, ListOf) else "a map"
