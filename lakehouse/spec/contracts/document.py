"""Encode frozen dataclasses as versioned JSON documents and decode them with checks.

    {"version": 1, "status": "committed", "table": "sales.orders", "rows": 12, ...}

The keys are the names of the fields, in snake_case. Enums are encoded by their values, tuples as lists.

Compatibility of versions:

- An unknown field is ignored. A field with a default can therefore be added without a new version.
- A missing field takes its default. A missing field without default is an error.
- A new required field, a new meaning of a field, or a new enum value needs a new `VERSION`.
- A document with a newer version is refused, because its meaning is unknown here.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from lakehouse.errors import UserError
from lakehouse.model.display import Readable
from lakehouse.model.document import parse_json

_VERSION = "version"
_SHOWN = 200
KindT = TypeVar("KindT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(Readable):
    """A value that one process writes as JSON and another process reads.

    A subclass is a frozen dataclass. Its fields are JSON scalars, enums, frozen dataclasses, tuples and mappings of
    these. `VERSION` increases when an older reader would misunderstand a document. `CONSTANTS` are additional entries
    with a fixed value in each document of the class.
    """

    VERSION: ClassVar[int] = 1
    CONSTANTS: ClassVar[Mapping[str, Any]] = {}

    def to_mapping(self) -> dict[str, Any]:
        """Return the document as a mapping of JSON values."""
        return {_VERSION: self.VERSION, **encode(self)}

    def to_json(self) -> str:
        """Return the document as one line of JSON."""
        return json.dumps(self.to_mapping(), ensure_ascii=False)

    @classmethod
    def from_mapping(cls, mapping: object) -> Self:
        """Decode the result of `to_mapping`.

        Raises UserError if the mapping is a different kind of document, or if a newer version of lakehouse wrote it.
        """
        title = _title(cls)
        if not isinstance(mapping, Mapping):
            raise UserError(f"not {title} document: expected an object with {_names(cls)}, not {_excerpt(mapping)}")
        version = mapping.get(_VERSION)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise UserError(
                f"not {title} document: its version is {version!r}, not a positive number: {_excerpt(mapping)}"
            )
        if version > cls.VERSION:
            raise UserError(
                f"{title} document of version {version} was written by a newer lakehouse; this one reads versions up "
                f"to {cls.VERSION}. Install the same version of lakehouse in both environments",
                version=version,
            )
        try:
            decoded: Self = _decode_dataclass(cls, mapping)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"not {title} document: {error}; expected {_names(cls)}: {_excerpt(mapping)}") from error
        return decoded

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Decode the result of `to_json`; see `from_mapping` for errors."""
        try:
            mapping = parse_json(text)
        except ValueError as error:
            raise UserError(
                f"not {_title(cls)} document: {error}; expected JSON with {_names(cls)}: {text[:200]!r}"
            ) from error
        return cls.from_mapping(mapping)


def encode(value: object) -> Any:
    """Convert a contract value to JSON values; values of other types become strings."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str | int | float | None):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        constants = value.CONSTANTS if isinstance(value, Document) else {}
        return {**encode(constants), **{field.name: encode(getattr(value, field.name)) for field in fields(value)}}
    if isinstance(value, Mapping):
        return {str(key): encode(part) for key, part in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [encode(part) for part in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return str(value)


def mirror(kind: type[KindT], source: object, **others: Any) -> KindT:
    """Create a contract dataclass from the equally named attributes of `source`.

    Args:
        kind: A dataclass.
        source: A value with an attribute for each field of `kind` that is not in `others`.
        others: Values of the fields that `source` lacks or stores in a different form.

    Raises:
        AttributeError: `source` lacks a field, so the contract and its source have diverged.
    """
    same = {field.name: getattr(source, field.name) for field in fields(kind) if field.name not in others}  # type: ignore[arg-type]
    return kind(**same, **others)


def decode(kind: type[KindT], mapping: object) -> KindT:
    """Decode the result of `encode` to a dataclass; raise UserError for any other mapping."""
    try:
        decoded: KindT = _decode(kind, mapping, _title(kind))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"not {_title(kind)}: {error}; expected {_names(kind)}: {_excerpt(mapping)}") from error
    return decoded


def _decode(kind: Any, value: object, name: str) -> Any:
    """Convert a JSON value to the type `kind`; raise ValueError with the name of the field."""
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = [part for part in get_args(kind) if part is not type(None)]
        return _decode(kind, value, name)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {_excerpt(value)}, not a list")
        return tuple(_decode(get_args(kind)[0], part, name) for part in value)
    if origin is not None:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {_excerpt(value)}, not an object")
        return {str(key): _decode(get_args(kind)[1], part, name) for key, part in value.items()}
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {_excerpt(value)}, not an object")
        return _decode_dataclass(kind, value)
    if issubclass(kind, Enum):
        return kind(value)
    if kind is float and _is_integer(value):
        return float(value)  # type: ignore[arg-type]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} is {_excerpt(value)}, not of type {kind.__name__}")
    return value


def _decode_dataclass(kind: Any, mapping: Mapping[str, Any]) -> Any:
    hints, values = _hints(kind), {}
    for field in fields(kind):
        if field.name in mapping:
            values[field.name] = _decode(hints[field.name], mapping[field.name], field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{field.name} is missing")
    return kind(**values)


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _title(kind: type) -> str:
    """Return the words of a class name, with an article: `a job error`."""
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
    return f"{'an' if title[0] in 'aeiou' else 'a'} {title}"


def _names(kind: Any) -> str:
    return ", ".join((_VERSION, *(field.name for field in fields(kind))))


def _excerpt(value: object) -> str:
    return repr(value)[:_SHOWN]
