"""Types of JSON values, inferred as in ingestions: numbers, nested objects and arrays; conflicts are strings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_MOST_DIGITS = 38
_DOUBLE_DIGITS = 15


class NotJsonError(ValueError):
    """A string is not JSON, or an object in it contains a key twice."""


@dataclass(slots=True)
class JsonType:
    """The common type of the added values.

    Attributes:
        kinds: The value kinds: boolean, integer, fraction, string, object, array.
        fields: The field types of objects.
        elements: The element type of arrays.
        digits: The maximum number of digits in integers that exceed bigint; 0 for none.
        inexact: Whether an integer would be rounded as a double.
    """

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, JsonType] = field(default_factory=dict)
    elements: JsonType | None = None
    digits: int = 0
    inexact: bool = False

    def add(self, value: Any) -> None:
        """Add one value; None belongs to every type."""
        if value is None:
            return
        if isinstance(value, bool):
            self.kinds.add("boolean")
        elif isinstance(value, int):
            self.kinds.add("integer")
            if not -(1 << 63) <= value < 1 << 63:
                self.digits = max(self.digits, len(str(abs(value))))
            self.inexact |= len(str(value)) > _DOUBLE_DIGITS and not _is_exact(value)
        elif isinstance(value, float):
            self.kinds.add("fraction")
        elif isinstance(value, str):
            self.kinds.add("string")
        elif isinstance(value, Mapping):
            self.kinds.add("object")
            for name, inner in value.items():
                self.fields.setdefault(name, JsonType()).add(inner)
        else:
            self.kinds.add("array")
            self.elements = self.elements or JsonType()
            for inner in value:
                self.elements.add(inner)

    @property
    def sql(self) -> str:
        """The Spark SQL type."""
        if self.kinds == {"object"} and self._has_usable_fields():
            inner = ",".join(f"{quoted(name)}:{self.fields[name].sql}" for name in sorted(self.fields))
            return f"struct<{inner}>"
        if self.kinds == {"array"}:
            return f"array<{(self.elements or JsonType()).sql}>"
        if self.kinds == {"boolean"}:
            return "boolean"
        if self.kinds == {"integer"} and self.digits <= _MOST_DIGITS:
            return f"decimal({self.digits},0)" if self.digits else "bigint"
        if "fraction" in self.kinds and self.kinds <= {"integer", "fraction"} and not self.inexact:
            return "double"
        return "string"

    @property
    def reason(self) -> str:
        """The reason why objects are stored as strings."""
        if not self.fields:
            return "objects without fields, as text"
        names: dict[str, str] = {}
        for name in self.fields:
            other = names.setdefault(name.lower(), name)
            if other != name:
                return f"objects as text, because their keys {other!r} and {name!r} differ in upper and lower case only"
        return "objects as text"

    def _has_usable_fields(self) -> bool:
        # A table cannot contain two fields whose names differ only in case, or a struct without fields.
        return bool(self.fields) and len({name.lower() for name in self.fields}) == len(self.fields)


def quoted(name: str) -> str:
    """Return a name for DDL, quoted if necessary."""
    return name if _SIMPLE_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def json_records(text: str) -> list[dict[str, Any]]:
    """Parse concatenated objects or an array of objects; raise NotJsonError for any other string."""
    return list(_objects(text, is_cut=False))


def first_records(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a string that may be truncated."""
    yield from _objects(text, is_cut=True)


def _objects(text: str, *, is_cut: bool) -> Iterator[dict[str, Any]]:
    place, is_array = _space(text, 0), False
    if text.startswith("[", place):
        place, is_array = _space(text, place + 1), True
    while place < len(text):
        if is_array and text.startswith("]", place):
            place, is_array = _space(text, place + 1), False
            continue
        try:
            value, place = _DECODER.raw_decode(text, place)
        except ValueError as error:
            if is_cut:
                return
            raise NotJsonError(str(error)) from error
        if not isinstance(value, dict):
            raise NotJsonError(f"{str(value)[:40]!r} is not an object")
        yield value
        match = (_COMMA if is_array else _SPACE).match(text, place)
        place = match.end() if match else place
    if is_array and not is_cut:
        raise NotJsonError("the array does not end")


def _space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    entries = list(pairs)
    values = dict(entries)
    if len(values) < len(entries):
        raise NotJsonError("a key is repeated")
    return values


def _fraction(text: str) -> float | str:
    """Return a number; a number that a double cannot represent makes its column a string."""
    value = float(text)
    lost = abs(value) == float("inf") or (value == 0 and re.match(r"[^eE]*[1-9]", text) is not None)
    return text if lost else value


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_fraction)
