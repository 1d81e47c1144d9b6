"""Schemas with column ids, which Hudi's schema on read stores as JSON (DATA-11).

A column keeps its id when it is renamed, moved or retyped, and a column that is added gets a new one. The commit of a
change stores its schema as `latest_schema`, and `.hoodie/.schema/<instant>.schemacommit` stores all schemas so far.
Each schema has the instant that made it as its version; the first one has version 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.document import parse_json

#: The key of the extra metadata of a commit with the schema of the table.
LATEST_SCHEMA = "latest_schema"
#: The metadata of an Arrow field that contains the comment on its column.
COMMENT = b"comment"

_TEXTS: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time32("ms"): "time_millis",
    pa.time64("us"): "time",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("ms", "UTC"): "timestamp_millis",
    pa.timestamp("us"): "local_timestamp_micros",
    pa.timestamp("ms"): "local_timestamp_millis",
    pa.string(): "string",
    pa.binary(): "binary",
}
# Hudi 1.2 writes these names with hyphens, but reads them only with underscores.
_TYPES: dict[str, pa.DataType] = {text: kind for kind, text in _TEXTS.items()} | {"uuid": pa.string()}
_FIXED = re.compile(r"fixed\[(\d+)\]")
_DECIMAL = re.compile(r"decimal(?:_bytes|_fixed)?\((\d+),\s*(\d+)\)(?:\[\d+\])?")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A type without columns: its text in JSON, and its Arrow type."""

    text: str
    arrow: pa.DataType

    @classmethod
    def of(cls, kind: pa.DataType) -> Leaf:
        """Return the type of an Arrow column; raise UnsupportedError if Hudi's schemas with ids have none for it."""
        if pat.is_decimal(kind):
            return cls(f"decimal({kind.precision}, {kind.scale})", kind)
        if pat.is_fixed_size_binary(kind):
            return cls(f"fixed[{kind.byte_width}]", kind)
        if kind not in _TEXTS:
            raise UnsupportedError(f"columns of the type {kind} cannot be in a schema with column ids; cast them first")
        return cls(_TEXTS[kind], kind)


@dataclass(frozen=True, slots=True)
class Struct:
    """The type of a struct."""

    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """The type of a list; the element is a column, too, with an id."""

    element: Column


@dataclass(frozen=True, slots=True)
class MapOf:
    """The type of a map; key and value are columns, too."""

    key: Column
    value: Column


Kind: TypeAlias = Leaf | Struct | ListOf | MapOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column or nested field. `doc` is its comment; Hudi stores an empty comment for meta columns."""

    id: int
    name: str
    kind: Kind
    optional: bool = True
    doc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalSchema:
    """The columns of one table version, meta columns first.

    Attributes:
        version: The instant that made the schema, as a number; 0 for the first schema.
        max_id: The greatest id that any version has used so far.
        columns: The top-level columns.
    """

    version: int
    max_id: int
    columns: tuple[Column, ...]

    @property
    def data(self) -> tuple[Column, ...]:
        """The columns without meta columns."""
        return tuple(column for column in self.columns if column.name not in META_COLUMNS)


def decode_schema(text: str) -> InternalSchema:
    """Return the schema of `latest_schema`; raise CorruptTableError for invalid JSON."""
    with _Readable():
        return _schema(parse_json(text))


def encode_schema(schema: InternalSchema) -> str:
    """Return the JSON of a schema, as Hudi writes it."""
    return json.dumps(_schema_record(schema), separators=(",", ":"))


def decode_history(data: bytes) -> tuple[InternalSchema, ...]:
    """Return the schemas of a history file, in ascending order of versions."""
    with _Readable():
        schemas = [_schema(entry) for entry in parse_json(data)["schemas"]]
    return tuple(sorted(schemas, key=lambda schema: schema.version))


def encode_history(schemas: Sequence[InternalSchema]) -> bytes:
    """Return the content of a history file: the newest schema first, as in Hudi."""
    newest_first = sorted(schemas, key=lambda schema: -schema.version)
    records = [_schema_record(schema) for schema in newest_first]
    return json.dumps({"schemas": records}, separators=(",", ":")).encode()


def first_schema_with_ids(data: pa.Schema) -> InternalSchema:
    """Return the schema with version 0 for a table without ids: meta columns, then the data columns `data`.

    The ids are those that Hudi assigns: the columns of a struct are numbered before the columns inside of them.
    """
    meta = [pa.field(name, pa.string()) for name in META_COLUMNS]
    numbers = Ids(-1)
    columns = numbers.columns([*meta, *data])
    columns = tuple(replace(column, doc="") if column.name in META_COLUMNS else column for column in columns)
    return InternalSchema(version=0, max_id=numbers.last, columns=columns)


class Ids:
    """Numbers new columns, beginning after `last`."""

    def __init__(self, last: int) -> None:
        self.last = last

    def column(self, field: pa.Field) -> Column:
        """Return a column with new ids for an Arrow field."""
        return self.columns([field])[0]

    def columns(self, fields: Sequence[pa.Field]) -> tuple[Column, ...]:
        """Return columns with new ids; the columns of one struct are numbered first, as in Hudi."""
        first = self.last + 1
        self.last += len(fields)
        return tuple(
            Column(
                id=first + number,
                name=field.name,
                kind=self.kind(field.type),
                optional=field.nullable,
                doc=comment_of(field),
            )
            for number, field in enumerate(fields)
        )

    def kind(self, kind: pa.DataType) -> Kind:
        """Return an Arrow type with new ids for its columns."""
        if pat.is_struct(kind):
            return Struct(self.columns(list(kind)))
        if pat.is_list(kind) or pat.is_large_list(kind):
            self.last += 1
            number, field = self.last, kind.value_field
            return ListOf(Column(id=number, name="element", kind=self.kind(field.type), optional=field.nullable))
        if pat.is_map(kind):
            number = self.last + 1
            self.last += 2
            key = Column(id=number, name="key", kind=Leaf.of(kind.key_type), optional=False)
            value = self.kind(kind.item_type)
            return MapOf(key, Column(id=number + 1, name="value", kind=value, optional=kind.item_field.nullable))
        return Leaf.of(kind)


def comment_of(field: pa.Field) -> str | None:
    """Return the comment on an Arrow field, or None."""
    text = (field.metadata or {}).get(COMMENT)
    return None if text is None else text.decode()


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type of a type with ids."""
    if isinstance(kind, Struct):
        return pa.struct([arrow_field(column) for column in kind.columns])
    if isinstance(kind, ListOf):
        return pa.list_(arrow_field(kind.element))
    if isinstance(kind, MapOf):
        return pa.map_(arrow_type(kind.key.kind), arrow_field(kind.value))
    return kind.arrow


def arrow_field(column: Column) -> pa.Field:
    """Return the Arrow field of a column, with its comment."""
    metadata = {COMMENT: column.doc.encode()} if column.doc else None
    return pa.field(column.name, arrow_type(column.kind), nullable=column.optional, metadata=metadata)


def children(kind: Kind) -> tuple[Column, ...]:
    """Return the columns directly inside of a type."""
    if isinstance(kind, Struct):
        return kind.columns
    if isinstance(kind, ListOf):
        return (kind.element,)
    return (kind.key, kind.value) if isinstance(kind, MapOf) else ()


def with_children(kind: Kind, columns: Sequence[Column]) -> Kind:
    """Return the type with other columns directly inside of it."""
    if isinstance(kind, Struct):
        return Struct(tuple(columns))
    if isinstance(kind, ListOf):
        return ListOf(columns[0])
    return MapOf(columns[0], columns[1]) if isinstance(kind, MapOf) else kind


def all_columns(columns: Sequence[Column], parent: int = -1) -> Iterator[tuple[int, Column]]:
    """Yield each column, at any depth, with the id of the column that contains it; -1 at the top."""
    for column in columns:
        yield parent, column
        yield from all_columns(children(column.kind), column.id)


class _Readable:
    """Raises CorruptTableError for a document that is not a schema with ids."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError | RecursionError | OverflowError):
            raise CorruptTableError(
                f"a schema with column ids is malformed: {type(error).__name__}: {error}"
            ) from error


def _schema(record: Mapping[str, Any]) -> InternalSchema:
    columns = _columns(record["fields"])
    used = [column.id for _, column in all_columns(columns)]
    if len(set(used)) < len(used):
        raise ValueError("two columns have the same id")
    stated = int(record["max_column_id"]) if "max_column_id" in record else 0
    return InternalSchema(version=int(record.get("version_id", 0)), max_id=max([stated, *used]), columns=columns)


def _columns(records: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    return tuple(
        Column(
            id=int(record["id"]),
            name=str(record["name"]),
            kind=_kind(record["type"]),
            optional=bool(record["optional"]),
            doc=record.get("doc"),
        )
        for record in records
    )


def _kind(record: Any) -> Kind:
    if isinstance(record, str):
        return Leaf(record, _type_of_text(record.lower().replace("-", "_")))
    kind = record["type"]
    if kind == "record":
        return Struct(_columns(record["fields"]))
    if kind == "array":
        element = _kind(record["element"])
        optional = bool(record["element_optional"])
        return ListOf(Column(id=int(record["element_id"]), name="element", kind=element, optional=optional))
    if kind == "map":
        key = Column(id=int(record["key_id"]), name="key", kind=_kind(record["key"]), optional=False)
        value, optional = _kind(record["value"]), bool(record["value_optional"])
        return MapOf(key, Column(id=int(record["value_id"]), name="value", kind=value, optional=optional))
    raise ValueError(f"{kind!r} is not a type")


def _type_of_text(text: str) -> pa.DataType:
    if text in _TYPES:
        return _TYPES[text]
    fixed, decimal = _FIXED.fullmatch(text), _DECIMAL.fullmatch(text)
    if fixed is not None:
        return pa.binary(int(fixed[1]))
    if decimal is not None:
        try:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error
    raise ValueError(f"{text!r} is not a type")


def _schema_record(schema: InternalSchema) -> dict[str, Any]:
    head = {"max_column_id": schema.max_id, "version_id": schema.version, "type": "record"}
    return head | {"fields": _records(schema.columns)}


def _records(columns: Sequence[Column]) -> list[dict[str, Any]]:
    return [
        {"id": column.id, "name": column.name, "optional": column.optional, "type": _record(column.kind)}
        | ({} if column.doc is None else {"doc": column.doc})
        for column in columns
    ]


def _record(kind: Kind) -> Any:
    if isinstance(kind, Leaf):
        return kind.text
    if isinstance(kind, Struct):
        return {"type": "record", "fields": _records(kind.columns)}
    if isinstance(kind, ListOf):
        element = kind.element
        return {
            "type": "array",
            "element_id": element.id,
            "element": _record(element.kind),
            "element_optional": element.optional,
        }
    return {
        "type": "map",
        "key_id": kind.key.id,
        "key": _record(kind.key.kind),
        "value_id": kind.value.id,
        "value": _record(kind.value.kind),
        "value_optional": kind.value.optional,
    }
