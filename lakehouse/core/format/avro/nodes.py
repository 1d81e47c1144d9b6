"""Compile an Avro schema into a tree of nodes for the column codecs (DATA-4.4, types as in DATA-3.2).

There is one node for each value in a record. `avro_to_arrow` returns the Arrow type of a value; a node adds the layout
of its bytes. Named types are resolved, so a node is complete without its parents.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.document import parse_json

#: The maximum record size in bytes. Java's arrays cannot be larger, and all positions plus a margin fit into 32 bits.
MAX_RECORD_BYTES = 2**31 - 64
_MAX_DECIMAL_BYTES = 16
_SIZES = {"boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroNode:
    """A value of a schema and the layout of its bytes.

    `path` is the dotted name of the column or nested field, `kind` Avro's name of its type without the union around it.
    A union of one type and null has `value_branch` and `null_branch`. A union of one type has only `value_branch`. A
    value without a union has neither. `children` are the fields of a record, the item of an array, or key and value of
    a map. `size` is the number of bytes per value without its union, 0 if it varies. A union of several types has the
    kind "union": `children` are its types, `branches` their branches, and `arrow` is a struct with one nullable field
    for each of them. `avro_nodes` does not return such nodes; the schema of metadata records has them. A field of a
    record that `is_skipped` is parsed but not built (see `with_fields`).
    """

    path: str
    kind: str
    arrow: pa.DataType
    children: tuple[AvroNode, ...] = ()
    value_branch: int | None = None
    null_branch: int | None = None
    size: int = 0
    symbols: tuple[str, ...] = field(default=(), repr=False)
    branches: tuple[int, ...] = ()
    is_skipped: bool = False

    @property
    def width(self) -> int | None:
        """The number of bytes per value with its union, None if it varies."""
        if self.value_branch is not None:
            return None
        if self.kind == "record":
            widths = [child.width for child in self.children]
            return None if None in widths else sum(width or 0 for width in widths)
        return self.size or None

    @property
    def least_width(self) -> int:
        """The minimum number of bytes per value with its union, at least 1."""
        if self.null_branch is not None:
            return 1
        value = sum(child.least_width for child in self.children) if self.kind == "record" else self.size or 1
        return value if self.value_branch is None else value + 1


@lru_cache(maxsize=64)
def avro_nodes(schema: str) -> AvroNode:
    """Return the node of the record that the Avro JSON `schema` declares; its children are the columns.

    Raises:
        UnsupportedError: A column is a union of several types, has values of zero bytes, or is a decimal of more than
            16 bytes.
        CorruptTableError: The schema is malformed, for example an enum without symbols.
        UserError: As for `avro_to_arrow`.
    """
    try:
        declared = parse_json(schema)
    except ValueError:
        declared = None  # avro_to_arrow raises the error
    with suppress(RecursionError):  # avro_to_arrow raises an error for it
        _refuse_unions(declared, "")
    arrow = avro_to_arrow(schema)
    try:
        return _Compiler().node(declared, pa.struct(list(arrow)), "", "")
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise CorruptTableError(f"the Avro schema is malformed: {type(error).__name__}: {error}") from error


def with_fields(root: AvroNode, names: Collection[str]) -> AvroNode:
    """Return the node with columns that are records reduced to some of their fields, at least one each.

    The other fields are skipped. Columns that are no records are not changed.
    """
    return _with_children(root, [_reduced(column, names) for column in root.children])


def _reduced(column: AvroNode, names: Collection[str]) -> AvroNode:
    if column.kind != "record":
        return column
    numbers = {number for number, field in enumerate(column.arrow) if field.name in names} or {0}
    children = [replace(child, is_skipped=number not in numbers) for number, child in enumerate(column.children)]
    fields = [field for number, field in enumerate(column.arrow) if number in numbers]
    return replace(column, children=tuple(children), arrow=pa.struct(fields))


def _with_children(root: AvroNode, children: Sequence[AvroNode]) -> AvroNode:
    pairs = zip(root.arrow, children, strict=True)
    return replace(
        root, children=tuple(children), arrow=pa.struct([field.with_type(one.arrow) for field, one in pairs])
    )


def _refuse_unions(declared: Any, path: str) -> None:
    """Raise UnsupportedError for the first union of several types; malformed parts of the schema are ignored."""
    if isinstance(declared, list):
        kinds = [kind for kind in declared if kind != "null"]
        if len(kinds) > 1:
            raise UnsupportedError(
                f"column {path!r} is a union of several types, {json.dumps(declared)[:200]}; only unions of one type"
                " and null are supported",
                column=path,
            )
        for kind in kinds:
            _refuse_unions(kind, path)
    if isinstance(declared, dict):
        for part in ("type", "items", "values"):
            _refuse_unions(declared.get(part), path)
        fields = declared.get("fields")
        for entry in fields if isinstance(fields, list) else ():
            if isinstance(entry, dict):
                _refuse_unions(entry.get("type"), _join(path, str(entry.get("name"))))


class _Compiler:
    """Walks a schema that `avro_to_arrow` accepted together with its Arrow type, and stores the named types."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[dict[str, Any], str]] = {}

    def node(self, declared: Any, arrow: pa.DataType, namespace: str, path: str) -> AvroNode:
        if isinstance(declared, list):
            branch = next(index for index, kind in enumerate(declared) if kind != "null")
            null = declared.index("null") if "null" in declared else None
            if len(declared) > 2:
                raise UnsupportedError(f"column {path!r} is a union that contains null twice", column=path)
            return replace(self.node(declared[branch], arrow, namespace, path), value_branch=branch, null_branch=null)
        if isinstance(declared, str):
            named = self._named.get(_join(namespace, declared) if "." not in declared else declared)
            named = named or self._named.get(declared)
            return self.node(named[0], arrow, named[1], path) if named else _leaf(declared, arrow, path)
        kind = declared["type"]
        if not isinstance(kind, str):
            return self.node(kind, arrow, namespace, path)
        if kind == "array":
            item = self.node(declared["items"], arrow.value_type, namespace, _join(path, "element"))
            return AvroNode(path=path, kind=kind, arrow=arrow, children=(item,))
        if kind == "map":
            key = _leaf("string", arrow.key_type, _join(path, "key"))
            value = self.node(declared["values"], arrow.item_type, namespace, _join(path, "value"))
            return AvroNode(path=path, kind=kind, arrow=arrow, children=(key, value))
        if kind in ("record", "error", "enum", "fixed"):
            return self._declared(declared, arrow, namespace, path)
        return self.node(kind, arrow, namespace, path)

    def _declared(self, declared: dict[str, Any], arrow: pa.DataType, namespace: str, path: str) -> AvroNode:
        outer = declared.get("namespace", namespace)
        full_name = declared["name"] if "." in declared["name"] else _join(outer, declared["name"])
        self._named[full_name] = (declared, outer)
        if declared["type"] == "enum":
            return AvroNode(path=path, kind="enum", arrow=arrow, symbols=tuple(declared["symbols"]))
        if declared["type"] == "fixed":
            return _fixed(declared["size"], arrow, path)
        if not declared["fields"]:
            raise UnsupportedError(f"column {path!r} is a record without fields, so it has no values", column=path)
        inner = full_name.rpartition(".")[0]
        fields = tuple(
            self.node(entry["type"], arrow.field(index).type, inner, _join(path, entry["name"]))
            for index, entry in enumerate(declared["fields"])
        )
        return AvroNode(path=path, kind="record", arrow=arrow, children=fields)


def _leaf(kind: str, arrow: pa.DataType, path: str) -> AvroNode:
    return AvroNode(path=path, kind=kind, arrow=arrow, size=_SIZES.get(kind, 0))


def _fixed(size: int, arrow: pa.DataType, path: str) -> AvroNode:
    if size < 1:
        raise UnsupportedError(f"column {path!r} is a fixed type of {size} bytes, so it has no values", column=path)
    if pa.types.is_decimal(arrow) and size > _MAX_DECIMAL_BYTES:
        raise UnsupportedError(
            f"column {path!r} is a decimal of {size} bytes; at most {_MAX_DECIMAL_BYTES} are supported", column=path
        )
    return AvroNode(path=path, kind="fixed", arrow=arrow, size=size)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
