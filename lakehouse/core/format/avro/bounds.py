"""Check the schema inside a timeline file before a general Avro reader uses it.

The number of steps of such a reader depends on the schema and on counts, even if the file is short. Three shapes are
dangerous: 2^60 items of `array<null>` and deeply nested empty records occupy no bytes, and a recursive record overflows
the stack. Hudi writes no such schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAX_DEPTH, MAX_FIELDS = 64, 100_000
_NAMED = ("record", "error", "enum", "fixed")
_RECORDS = ("record", "error")


def check_schema(schema: Any) -> None:
    """Raise ValueError for a schema that is recursive, too deep or too large, or has array items of zero bytes."""
    _Checker().visit(schema, "", 0)


class _Checker:
    """Walks a schema and stores, for each named type, the minimum size of a value and the number of fields."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[int, int] | None] = {}
        self._fields = 0

    def visit(self, schema: Any, namespace: str, depth: int) -> int:
        """Return the minimum size of a value in bytes."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema has more than {MAX_DEPTH} levels")
        self._count(1)
        if isinstance(schema, list):
            for kind in schema:
                self.visit(kind, namespace, depth + 1)
            return 1
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.visit(kind, namespace, depth + 1)
        if kind in _NAMED:
            return self._declared(schema, kind, namespace, depth)
        if kind in ("array", "map"):
            width = self.visit(schema["items" if kind == "array" else "values"], namespace, depth + 1)
            if kind == "array" and width == 0:
                raise ValueError("the schema has an array of items of zero bytes")
            return 1
        return self._by_name(kind, namespace)

    def _declared(self, schema: Any, kind: str, namespace: str, depth: int) -> int:
        before = self._fields
        space = schema.get("namespace", namespace)
        names = list(_names(str(schema["name"]), str(space)))
        for name in names:
            self._named[name] = None
        if kind in _RECORDS:
            inner = names[0].rpartition(".")[0]
            width = sum(self.visit(field["type"], inner, depth + 1) for field in schema["fields"])
        else:
            width = int(schema["size"]) if kind == "fixed" else 1
        if width < 0:
            raise ValueError(f"the schema has a fixed type of {width} bytes")
        for name in names:
            self._named[name] = (width, self._fields - before)
        return width

    def _by_name(self, name: str, namespace: str) -> int:
        for full in _names(name, namespace):
            if full in self._named:
                size = self._named[full]
                if size is None:
                    raise ValueError(f"the schema has the recursive record {full!r}")
                width, fields = size
                self._count(fields)
                return width
        return 0 if name == "null" else 1

    def _count(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise ValueError(f"the schema has more than {MAX_FIELDS} fields")


def _names(name: str, namespace: str) -> Iterator[str]:
    if "." not in name and namespace:
        yield f"{namespace}.{name}"
    yield name
