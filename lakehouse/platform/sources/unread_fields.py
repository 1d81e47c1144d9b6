"""Record fields without a column in the table: their names, the number of records, an example and a type.

A task collects its fields in `UnreadFields`, and the driver merges the fields from all tasks. A nested field has a
dotted name; `element` stands for list elements. A field that is always null has no value that could be lost, so it is
not collected.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.model.document import parse_json

#: Maximum number of names per task. Records whose keys are data, such as prices by product, have any number of names.
MOST_NAMES = 300
#: The name under which records of all further names are counted.
OTHERS = ("(further fields)",)
#: A path from a record to a field.
_Path = tuple[str, ...]
_ELEMENT = "element"
_EXAMPLE = 100
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadField:
    """A field that was not read.

    Attributes:
        path: The names of the enclosing columns and fields, and the field's name; `element` for list elements.
        records: The number of records with a value in it.
        example: The start of one value, as JSON.
        type: A type for all its values; null if it is unknown.
    """

    path: tuple[str, ...]
    records: int
    example: str
    type: pa.DataType

    @property
    def name(self) -> str:
        """The dotted name of the field."""
        return ".".join(self.path)


class UnreadFields:
    """The fields in a task's records that `target` lacks.

    `infers` is true if array types were inferred from strings; otherwise they are the source's types.
    """

    def __init__(self, target: pa.StructType | None, *, infers: bool = True) -> None:
        self._target, self._infers = target, infers
        self.found: dict[_Path, UnreadField] = {}

    def add_array(self, records: pa.StructArray) -> None:
        """Count the fields of records whose type Arrow inferred."""
        if self._target is not None:
            self._compare(records, self._target, (), None)

    def add_rows(self, records: pa.StructArray, paths: tuple[str, ...]) -> None:
        """Count the fields of records or, for change events, of their rows: the first field in `paths` with a value."""
        if not paths:
            self.add_array(records)
            return
        is_left = records.is_valid()
        for name in paths:
            if records.type.get_field_index(name) >= 0:
                rows = pc.struct_field(records, [name])
                own = pc.and_(is_left, rows.is_valid())
                self.add_array(rows.filter(own))
                is_left = pc.and_not(is_left, own)

    def add_values(self, records: Iterable[Any]) -> None:
        """Count the fields of records as Python values, one by one."""
        for record in records:
            if isinstance(record, dict) and self._target is not None:
                for path, value in dict(_unread_values(record, self._target, ())).items():
                    self.add(UnreadField(path=path, records=1, example=_example(value), type=type_of_value(value)))

    def add(self, field: UnreadField) -> None:
        """Count a field."""
        if field.path not in self.found and len(self.found) >= MOST_NAMES:
            field = replace(field, path=OTHERS, type=pa.null())
        earlier = self.found.get(field.path)
        if earlier is not None:
            field = replace(
                earlier, records=earlier.records + field.records, type=common_type(earlier.type, field.type)
            )
        self.found[field.path] = field

    def to_json(self) -> str | None:
        """Return the fields as JSON for the driver; None if there are none."""
        if not self.found:
            return None
        return json.dumps(
            [
                {"path": one.path, "records": one.records, "example": one.example, "type": _encoded(one.type)}
                for one in self.found.values()
            ]
        )

    def _compare(self, array: pa.Array, target: pa.DataType, path: _Path, parents: pa.Array | None) -> None:
        """Count the struct fields in `array` that `target` lacks; `parents` contains the record of each value."""
        if pa.types.is_struct(array.type) and pa.types.is_struct(target):
            types = {field.name: field.type for field in target}
            for field in array.type:
                child, inner = pc.struct_field(array, [field.name]), (*path, field.name)
                if field.name in types:
                    self._compare(child, types[field.name], inner, parents)
                else:
                    self._count(child, inner, parents)
        elif _is_list(array.type) and _is_list(target):
            owners = pc.list_parent_indices(array)
            owners = owners if parents is None else parents.take(owners)
            self._compare(pc.list_flatten(array), target.value_type, (*path, _ELEMENT), owners)

    def _count(self, values: pa.Array, path: _Path, parents: pa.Array | None) -> None:
        kind = inferred_type(values.type) if self._infers else values.type
        is_valid = values.is_valid()
        records = pc.sum(is_valid).as_py() if parents is None else len(parents.filter(is_valid).unique())
        if records and not pa.types.is_null(kind):
            example = _example(values[pc.index(is_valid, True).as_py()].as_py())
            self.add(UnreadField(path=path, records=records, example=example, type=kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFieldCollector:
    """Collects the fields of records that `target` lacks, or of their rows (see `add_rows`). It is sent to workers."""

    target: pa.StructType
    paths: tuple[str, ...] = ()

    def is_needed(self, kind: pa.StructType) -> bool:
        """Return whether records of a type have fields that `target` lacks."""
        kinds = [kind.field(name).type for name in self.paths if kind.get_field_index(name) >= 0]
        return any(_has_more(one, self.target) for one in (kinds if self.paths else [kind]))

    def __call__(self, records: Iterable[pa.StructArray]) -> str | None:
        """Return the fields of all records as JSON for the driver; None if there are none."""
        fields = UnreadFields(self.target, infers=False)
        for one in records:
            fields.add_rows(one, self.paths)
        return fields.to_json()


def merged(texts: Iterable[str | None]) -> tuple[UnreadField, ...]:
    """Merge the fields that tasks returned as JSON, by name."""
    fields = UnreadFields(None)
    for text in texts:
        for one in parse_json(text) if text else ():
            fields.add(UnreadField(**{**one, "path": tuple(one["path"]), "type": _decoded(one["type"])}))
    return tuple(fields.found[path] for path in sorted(fields.found))


def with_fields(target: pa.StructType, fields: Iterable[UnreadField]) -> pa.StructType:
    """Return a type that also contains these fields, nested in their columns."""
    inside: dict[str, list[UnreadField]] = {}
    new = []
    for one in fields:
        if len(one.path) > 1:
            inside.setdefault(one.path[0], []).append(replace(one, path=one.path[1:]))
        elif one.path != OTHERS:
            new.append(pa.field(one.path[0], one.type))
    columns = [
        field.with_type(_extended(field.type, inside[field.name])) if field.name in inside else field
        for field in target
    ]
    return pa.struct([*columns, *new])


def inferred_type(kind: pa.DataType) -> pa.DataType:
    """Return the column type for values whose type Arrow inferred from JSON: times stay strings, as in JSON files."""
    if pa.types.is_struct(kind):
        fields = [(field.name, inferred_type(field.type)) for field in kind]
        valued = [(name, one) for name, one in fields if not pa.types.is_null(one)]
        return pa.struct(valued) if valued else pa.null()
    if _is_list(kind):
        element = inferred_type(kind.value_type)
        return pa.list_(pa.string() if pa.types.is_null(element) else element)
    return pa.string() if pa.types.is_temporal(kind) else kind


def type_of_value(value: Any) -> pa.DataType:
    """Return the column type for a JSON value."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _INT64 else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, dict):
        fields = [(name, type_of_value(one)) for name, one in value.items()]
        return inferred_type(pa.struct(fields))
    if isinstance(value, list):
        element = pa.null()
        for one in value:
            element = common_type(element, type_of_value(one))
        return inferred_type(pa.list_(element))
    return pa.string()


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for the values of both: the wider numeric type, else string."""
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if _is_number(one) and _is_number(other):
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        right = {field.name: field.type for field in other}
        left = {field.name: common_type(field.type, right.get(field.name, pa.null())) for field in one}
        return pa.struct([*left.items(), *((name, kind) for name, kind in right.items() if name not in left)])
    if _is_list(one) and _is_list(other):
        return pa.list_(common_type(one.value_type, other.value_type))
    return pa.string()


def _extended(kind: pa.DataType, fields: list[UnreadField]) -> pa.DataType:
    if _is_list(kind):
        return pa.list_(_extended(kind.value_type, [replace(one, path=one.path[1:]) for one in fields]))
    return with_fields(kind, fields) if pa.types.is_struct(kind) else kind


def _unread_values(value: Any, target: pa.DataType, path: _Path) -> Iterator[tuple[_Path, Any]]:
    if isinstance(value, dict) and pa.types.is_struct(target):
        types = {field.name: field.type for field in target}
        for key, one in value.items():
            if key in types:
                yield from _unread_values(one, types[key], (*path, key))
            elif not pa.types.is_null(type_of_value(one)):
                yield (*path, key), one
    elif isinstance(value, list) and _is_list(target):
        for one in value:
            yield from _unread_values(one, target.value_type, (*path, _ELEMENT))


def _has_more(kind: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and pa.types.is_struct(target):
        types = {field.name: field.type for field in target}
        return any(field.name not in types or _has_more(field.type, types[field.name]) for field in kind)
    return _is_list(kind) and _is_list(target) and _has_more(kind.value_type, target.value_type)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _example(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, default=str)[:_EXAMPLE]


def _plain(value: Any) -> Any:
    """Return a value without null fields: Arrow adds the fields of other records."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _encoded(kind: pa.DataType) -> str:
    return base64.b64encode(pa.schema([pa.field("x", kind)]).serialize().to_pybytes()).decode("ascii")


def _decoded(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text))).field(0).type
