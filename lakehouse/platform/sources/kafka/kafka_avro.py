"""Decode Avro messages with the schemas of a schema registry, in Spark tasks.

Debezium's types, given in the schema as `connect.name`, become dates and times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakehouse.core.format.avro.conform import conformed, named_types
from lakehouse.core.format.avro.decode import decode_avro_values
from lakehouse.core.format.avro.nodes import AvroNode, avro_nodes
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.kafka.message_decoder import MessageDecoder
from lakehouse.platform.sources.kafka.schema_registry import (
    HEADER,
    BadMessageError,
    fetched_schema,
    schema_ids,
    without_start,
)
from lakehouse.platform.sources.unread_fields import UnreadFields


@dataclass(frozen=True, slots=True)
class _Schema:
    """A registry schema, as JSON and as the node for decoding records."""

    declared: Any
    node: AvroNode
    named: Mapping[str, Any]


#: Schemas by registry and id. An id always means the same schema.
_schemas: dict[tuple[str, int], _Schema] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroDecoder(MessageDecoder):
    """Decodes Avro messages.

    Attributes:
        registry: The settings of the schema registry, `url` and optionally `basic.auth.user.info`.
    """

    registry: Mapping[str, str] = field(repr=False)

    def _schema_ids(self, values: pa.Array) -> Any:
        return schema_ids(values)

    def _records(self, values: pa.Array, schema: _Schema, unread: UnreadFields) -> pa.Array:
        bodies = without_start(values, HEADER)
        wanted = {one.name for one in self.target}
        names = [column.name for column in schema.node.arrow if column.name in wanted]
        if not names:
            raise BadMessageError("has none of the declared columns")
        if not self.rows:
            # Columns that the table lacks are decoded too, to report examples and counts.
            names = [column.name for column in schema.node.arrow]
        table = decode_avro_values(bodies, schema.node, names)
        columns = [column.combine_chunks() for column in table.columns]
        struct = pa.StructArray.from_arrays(columns, fields=list(table.schema))
        records = conformed(struct, self.target, schema.declared, schema.named)
        unread.add_rows(struct, self.rows)
        return records

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
    return _Schema(declared, avro_nodes(text), dict(named_types(declared)))


def _fetched(registry: Mapping[str, str], schema_id: int) -> str:
    """Return a schema as JSON; raise BadMessageError for an id that the registry does not have."""
    answer = fetched_schema(registry, schema_id, kind="AVRO")
    if answer.get("references"):
        raise UserError(f"schema {schema_id} of the registry refers to other schemas, which is not supported")
    return str(answer["schema"])
