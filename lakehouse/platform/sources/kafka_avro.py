"""Decode Avro messages with the schemas of a schema registry, in Spark tasks.

    byte 0 | schema id, 4 bytes, most significant first | the record

The values of a batch are decoded by schema id, all at once. If that fails, the batch is halved until the bad messages
are found. Columns are taken by name: those that the writer's schema lacks are null, and those that only the writer's
schema has are collected. Debezium's types, which the schema states as `connect.name`, become dates and times.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.avro.decode import decode_avro_values
from lakehouse.core.format.avro.nodes import AvroNode, avro_nodes
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.unread_fields import UnreadFields
from lakehouse.spark.messages import DECODED, MESSAGES

_MAGIC, _HEADER = 0, 5
_TIMEOUT_S = 30.0
_NOT_FOUND, _DENIED = 404, (401, 403)
#: Types of Kafka Connect whose values are numbers, with the Arrow type of the number's meaning.
_CONNECT_TYPES = {
    "io.debezium.time.Date": pa.date32(),
    "io.debezium.time.Timestamp": pa.timestamp("ms"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
    "io.debezium.time.NanoTimestamp": pa.timestamp("ns"),
}


class BadMessageError(Exception):
    """A message that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class _Schema:
    """A schema of the registry, as JSON and as the node by which records are decoded."""

    declared: Any
    node: AvroNode
    named: Mapping[str, Any]


#: Schemas by registry and id. An id always means the same schema.
_schemas: dict[tuple[str, int], _Schema] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroDecoder:
    """Decodes the values of messages. It is sent to the workers.

    Attributes:
        messages: Yields batches of `MESSAGES`.
        registry: The settings of the schema registry, `url` and optionally `basic.auth.user.info`.
        target: The type of a record.
        rows: The fields of a record, the first of which with a value has the columns of the row; empty for the record.
    """

    messages: Any
    registry: Mapping[str, str] = field(repr=False)
    target: pa.StructType
    rows: tuple[str, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages with `record`, the `problem` of those that cannot be decoded, and the `unread` fields."""
        schema = pa.schema([*MESSAGES, pa.field("record", self.target), *DECODED])
        unread = self._no_fields()
        for batch in self.messages(batches):
            records, problems = self._decoded(batch.column("value"), unread)
            text = None
            if len(batch) == 1 and batch.column("is_end")[0].as_py():
                text, unread = unread.to_json(), self._no_fields()
            texts = pa.repeat(pa.scalar(text, pa.string()), len(batch))
            yield pa.RecordBatch.from_arrays([*batch.columns, records, problems, texts], schema=schema)
        text = unread.to_json()
        if text is not None:
            yield pa.RecordBatch.from_pylist([{"is_end": True, "unread": text}], schema=schema)

    def _no_fields(self) -> UnreadFields:
        return UnreadFields(self.target.field(self.rows[0]).type if self.rows else self.target, infers=False)

    def _decoded(self, values: pa.Array, unread: UnreadFields) -> tuple[pa.Array, pa.Array]:
        """Return the records and the problems of values; both are null for a value that is null."""
        present = np.flatnonzero(np.asarray(values.is_valid()))
        given = values.take(pa.array(present))
        ids = np.asarray(_schema_ids(given))
        positions, pieces = [], []
        problems = np.full(len(values), None, object)
        for schema_id in np.unique(ids).tolist():
            group = np.flatnonzero(ids == schema_id)
            for part, records, problem in self._decoded_group(given, group, schema_id, unread):
                if records is None:
                    problems[present[part]] = problem
                else:
                    positions.append(present[part])
                    pieces.append(records)
        order = np.full(len(values), -1, np.int64)
        if positions:
            order[np.concatenate(positions)] = np.arange(sum(map(len, positions)))
        stored = pa.concat_arrays(pieces) if pieces else pa.nulls(0, self.target)
        return stored.take(pa.array(order, mask=order < 0)), pa.array(problems, pa.string())

    def _decoded_group(
        self, values: pa.Array, group: np.ndarray[Any, Any], schema_id: int, unread: UnreadFields
    ) -> Iterator[tuple[Any, pa.Array | None, str]]:
        """Yield parts of a group with their records, or with the problem of a single message."""
        try:
            schema = self._schema(schema_id)
        except BadMessageError as error:
            yield group, None, str(error)
            return
        waiting = [group]
        while waiting:
            part = waiting.pop()
            try:
                yield part, self._records(values.take(pa.array(part)), schema, unread), ""
            except (LakehouseError, BadMessageError, pa.ArrowException, ValueError, IndexError, OverflowError) as error:
                if len(part) == 1:
                    yield part, None, f"does not decode: {error}"[:300]
                else:
                    middle = len(part) // 2
                    waiting += [part[middle:], part[:middle]]

    def _records(self, values: pa.Array, schema: _Schema, unread: UnreadFields) -> pa.Array:
        bodies = pc.binary_slice(values, _HEADER)
        wanted = {one.name for one in self.target}
        names = [column.name for column in schema.node.arrow if column.name in wanted]
        if not names:
            raise BadMessageError("has none of the declared columns")
        if not self.rows:
            # Columns that the table lacks are decoded too, for their examples and the number of their values.
            names = [column.name for column in schema.node.arrow]
        table = decode_avro_values(bodies, schema.node, names)
        columns = [column.combine_chunks() for column in table.columns]
        struct = pa.StructArray.from_arrays(columns, fields=list(table.schema))
        conformed = _conformed(struct, self.target, schema.declared, schema.named)
        self._collect(struct, unread)
        return conformed

    def _collect(self, records: pa.StructArray, unread: UnreadFields) -> None:
        """Collect the fields of records or, of events, of their rows."""
        if not self.rows:
            unread.add_array(records)
            return
        is_left = records.is_valid()
        for name in self.rows:
            if records.type.get_field_index(name) >= 0:
                rows = _child(records, name)
                own = pc.and_(is_left, rows.is_valid())
                unread.add_array(rows.filter(own))
                is_left = pc.and_not(is_left, own)

    def _schema(self, schema_id: int) -> _Schema:
        if schema_id < 0:
            raise BadMessageError("does not begin with the byte 0 and a schema id")
        key = (self.registry["url"], schema_id)
        if key not in _schemas:
            text = _fetched(self.registry, schema_id)
            try:
                _schemas[key] = _parsed(text)
            except LakehouseError as error:
                raise UserError(f"schema {schema_id} of the registry cannot be read: {error}") from error
        return _schemas[key]


def _parsed(text: str) -> _Schema:
    declared = parse_json(text)
    return _Schema(declared, avro_nodes(text), dict(_named(declared)))


def _named(declared: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named types in a type, by their names with and without namespace."""
    if isinstance(declared, list):
        for one in declared:
            yield from _named(one)
    elif isinstance(declared, dict):
        if "name" in declared and declared.get("type") in ("record", "enum", "fixed"):
            yield declared["name"].rpartition(".")[2], declared
            yield f"{declared.get('namespace', '')}.{declared['name']}".lstrip("."), declared
        for one in declared.get("fields", ()):
            yield from _named(one["type"])
        for part in ("items", "values"):
            yield from _named(declared.get(part))
        if isinstance(declared.get("type"), list | dict):
            yield from _named(declared["type"])


def _schema_ids(values: pa.Array) -> Any:
    """Return the schema id of each value, -1 for a value without one."""
    lengths = np.asarray(pc.binary_length(values))
    has_id = lengths > _HEADER - 1
    heads = pc.binary_slice(values.filter(pa.array(has_id)), 0, _HEADER)
    data = np.frombuffer(b"".join(heads.to_pylist()), np.uint8).reshape(-1, _HEADER)
    numbers = data[:, 1:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    found = np.full(len(values), -1, np.int64)
    found[has_id] = np.where(data[:, 0] == _MAGIC, numbers, -1)
    return found


def _fetched(registry: Mapping[str, str], schema_id: int) -> str:
    """Return the JSON of a schema; raise BadMessageError for an id that the registry does not have."""
    url = f"{registry['url'].rstrip('/')}/schemas/ids/{schema_id}"
    request = Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
    if registry.get("basic.auth.user.info"):
        login = base64.b64encode(registry["basic.auth.user.info"].encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as reply:
            answer = json.loads(reply.read())
    except HTTPError as error:
        if error.code == _NOT_FOUND:
            raise BadMessageError(f"its schema id {schema_id} is not in the registry") from error
        if error.code in _DENIED:
            raise UserError(f"the schema registry refuses the access to {url}: {error.code}") from error
        raise RetryableError(f"the schema registry answers {error.code} to {url}") from error
    except (URLError, OSError, ValueError) as error:
        raise RetryableError(f"the schema registry does not answer to {url}: {error}") from error
    kind = answer.get("schemaType", "AVRO")
    if kind != "AVRO":
        raise UserError(f"schema {schema_id} of the registry is {kind}, and the spec says Avro")
    if answer.get("references"):
        raise UserError(f"schema {schema_id} of the registry refers to other schemas, which is not supported")
    return str(answer["schema"])


def _conformed(array: pa.Array, target: pa.DataType, declared: Any, named: Mapping[str, Any]) -> pa.Array:
    """Return an array in the type `target`: fields of structs by name, missing ones null.

    `declared` is the Avro type of the array, which states types of Kafka Connect; `named` has the named types.
    """
    declared = _without_null(declared)
    if isinstance(declared, str) and (declared in named or declared.rpartition(".")[2] in named):
        declared = named.get(declared) or named[declared.rpartition(".")[2]]
    if pa.types.is_struct(target) and pa.types.is_struct(array.type):
        types = {one["name"]: one["type"] for one in declared["fields"]}
        children = [
            _conformed(_child(array, column.name), column.type, types[column.name], named)
            if array.type.get_field_index(column.name) >= 0
            else pa.nulls(len(array), column.type)
            for column in target
        ]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    name = declared.get("connect.name") if isinstance(declared, dict) else None
    meaning = _CONNECT_TYPES.get(str(name))
    if meaning is not None and pa.types.is_integer(array.type) and pa.types.is_temporal(target):
        width = pa.int32() if meaning == pa.date32() else pa.int64()
        array = array.cast(width).cast(meaning)
        if meaning == pa.timestamp("ns"):
            return array.cast(target, safe=False)
    return array if array.type == target else array.cast(target)


def _child(array: pa.StructArray, name: str) -> pa.Array:
    """Return the field of a struct, null where the struct is null."""
    return pc.struct_field(array, [name])


def _without_null(declared: Any) -> Any:
    """Return the type of a union with null, else the type itself."""
    if isinstance(declared, list):
        return next((one for one in declared if one != "null"), "null")
    return declared
