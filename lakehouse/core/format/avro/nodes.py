"""The schema of Avro data as a tree that a column codec can follow: one node for each place where a value stands.

`avro_to_arrow` says which Arrow type a value has; a node adds how the value lies in the bytes. Named types are
resolved, so that a node needs nothing around it (DATA-4.4; types as in 3.2).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.document import parse_json

#: The longest record: Java's arrays hold no more, and with a margin around it all positions in it fit 32 bits.
MAX_RECORD_BYTES = 2**31 - 64
_MAX_DECIMAL_BYTES = 16
_SIZES = {"boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroNode:
    """One place for a value: `kind` is Avro's name of its type, without the union around it.

    A union of one type and null has `value_branch` and `null_branch`, one of one type only the first, and a value
    outside unions neither. `children` are the fields of a record, the item of an array, or key and value of a map.
    `size` is the bytes of every value outside its union, 0 if they differ.
    """

    path: str
    kind: str
    arrow: pa.DataType
    children: tuple[AvroNode, ...] = ()
    value_branch: int | None = None
    null_branch: int | None = None
    size: int = 0
    symbols: tuple[str, ...] = field(default=(), repr=False)

    @property
    def width(self) -> int | None:
        """The bytes of every value with the union around it, None if they differ."""
        if self.value_branch is not None:
            return None
        if self.kind == "record":
            widths = [child.width for child in self.children]
            return None if None in widths else sum(width or 0 for width in widths)
        return self.size or None

    @property
    def least_width(self) -> int:
        """The bytes of the shortest value with the union around it, at least 1."""
        if self.null_branch is not None:
            return 1
        value = sum(child.least_width for child in self.children) if self.kind == "record" else self.size or 1
        return value if self.value_branch is None else value + 1


@lru_cache(maxsize=64)
def avro_nodes(schema: str) -> AvroNode:
    """Return the node of the record that the Avro JSON `schema` declares; its children are the columns.

    Raises UnsupportedError naming the column for unions of several types, values without bytes and decimals of more
    than 16 bytes, CorruptTableError for an enum without symbols and the like; otherwise as `avro_to_arrow`.
    """
    try:
        declared = parse_json(schema)
    except ValueError:
        declared = None  # avro_to_arrow says what is wrong
    with suppress(RecursionError):  # avro_to_arrow refuses it, too
        _refuse_unions(declared, "")
    arrow = avro_to_arrow(schema)
    try:
        return _Compiler().node(declared, pa.struct(list(arrow)), "", "")
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise CorruptTableError(f"the Avro schema is malformed: {type(error).__name__}: {error}") from error


def _refuse_unions(declared: Any, path: str) -> None:
    """Raise UnsupportedError for the first union of several types in the schema, which may be malformed."""
    if isinstance(declared, list):
        kinds = [kind for kind in declared if kind != "null"]
        if len(kinds) > 1:
            raise UnsupportedError(
                f"column {path!r} is a union of several types, {json.dumps(declared)[:200]}; read are unions of one"
                " type and null",
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
    """Walks a schema that `avro_to_arrow` has accepted, beside its Arrow type; remembers named types."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[dict[str, Any], str]] = {}

    def node(self, declared: Any, arrow: pa.DataType, namespace: str, path: str) -> AvroNode:
        if isinstance(declared, list):
            branch = next(index for index, kind in enumerate(declared) if kind != "null")
            null = declared.index("null") if "null" in declared else None
            if len(declared) > 2:
                raise UnsupportedError(f"column {path!r} is a union that names null twice", column=path)
            return replace(self.node(declared[branch], arrow, namespace, path), value_branch=branch, null_branch=null)
        if isinstance(declared, str):
            known = self._named.get(_join(namespace, declared) if "." not in declared else declared)
            known = known or self._named.get(declared)
            return self.node(known[0], arrow, known[1], path) if known else _leaf(declared, arrow, path)
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
            raise UnsupportedError(f"column {path!r} is a record without fields, which holds no value", column=path)
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
        raise UnsupportedError(f"column {path!r} is a fixed of {size} bytes, which holds no value", column=path)
    if pa.types.is_decimal(arrow) and size > _MAX_DECIMAL_BYTES:
        raise UnsupportedError(
            f"column {path!r} is a decimal in {size} bytes; at most {_MAX_DECIMAL_BYTES} are read", column=path
        )
    return AvroNode(path=path, kind="fixed", arrow=arrow, size=size)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
