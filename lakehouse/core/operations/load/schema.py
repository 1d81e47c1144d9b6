"""Determine the schema of a table's data columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow
from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.format.internal_schema import LATEST_SCHEMA, decode_schema
from lakehouse.core.operations.load.commits import archived_commits
from lakehouse.core.operations.load.schema_history import HISTORY_KEY, ids_extra, read_history
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.schema import normalise
from lakehouse.core.planning.schema_history import SchemaHistory
from lakehouse.core.state.table_config import TableConfig
from lakehouse.model.commit import REWRITES

#: The requested time of a write, and its extra metadata.
_Declaration: TypeAlias = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class DeclaredSchema:
    """The data columns of a table without meta columns, and its schema history if the table has column ids."""

    schema: pa.Schema
    history: SchemaHistory | None = None

    @property
    def ids(self) -> dict[str, str]:
        """The extra metadata of a commit whose files have this schema; empty if the table has no column ids."""
        return {} if self.history is None else ids_extra(self.history)


def table_schema(table: LoadedTable, up_to: str | None = None) -> pa.Schema | None:
    """Return the schema of the data columns, without meta columns, or None if no source contains a schema.

    Sources, in this order: the newest commit with a schema, the schema in the table's properties, a base file. Commits
    requested after `up_to` are ignored. The fields of a table with column ids contain the names that files have for
    them (see `rows.stored_names`).

    Raises:
        CorruptTableError: The table has column ids, but their history is lost.
    """
    declared = declared_schema(table, up_to)
    return None if declared is None else declared.schema


def declared_schema(table: LoadedTable, up_to: str | None = None) -> DeclaredSchema | None:
    """Return the schema of a table with its history; see `table_schema`."""
    newest = _newest_declaration(table, up_to)
    if newest is not None:
        requested, extra = newest
        schema = _with_created_types(table.config, data_columns(avro_to_arrow(extra["schema"])))
        ids, history = extra.get(LATEST_SCHEMA) or None, None
        if ids is not None or HISTORY_KEY in table.config.raw:
            history = read_history(table, requested, ids)
        if history is None:
            return DeclaredSchema(schema)
        history = history.typed(schema)
        return DeclaredSchema(history.named(schema), history)
    if table.config.create_schema:
        return DeclaredSchema(data_columns(avro_to_arrow(table.config.create_schema)))
    for instant in reversed(table.timeline.writes().where(requested_up_to=up_to).by_completion()):
        for stat in table.store.commit(instant).stats:
            if parse_base_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes) is not None:
                reader = BaseFileReader(table.env.storage, stat.path)
                return DeclaredSchema(data_columns(normalise(reader.schema)))
    return None


def declared_at(table: LoadedTable, instant: str) -> DeclaredSchema | None:
    """Return the schema with which a table service writes files at an instant that was planned earlier.

    Readers expect the columns of that time in its files if the table has column ids.
    """
    declared = declared_schema(table)
    if declared is None or declared.history is None or declared.history.latest.version <= int(instant):
        return declared
    return declared_schema(table, instant)


def _newest_declaration(table: LoadedTable, up_to: str | None) -> _Declaration | None:
    """Return the newest write that declares the schema, with its extra metadata, or None.

    A table service that began before a change of the columns may complete after it, with the earlier columns. So in
    a table with column ids, the newest version of the schema counts.
    """
    newest: _Declaration | None = None
    for instant in reversed(table.timeline.writes().where(requested_up_to=up_to).by_completion()):
        summary = table.store.summary(instant)
        if not summary.extra.get("schema"):
            continue
        declaration = (instant.requested, summary.extra)
        newest = declaration if newest is None else _newer(newest, declaration)
        has_ids = newest[1].get(LATEST_SCHEMA) or HISTORY_KEY in table.config.raw
        if summary.operation not in REWRITES or not has_ids:
            return newest
    if newest is not None:
        return newest
    for instant, metadata in archived_commits(table, requested_up_to=up_to, containing="schema"):
        if metadata.extra.get("schema"):
            return instant.requested, metadata.extra
    return None


def _newer(declaration: _Declaration, other: _Declaration) -> _Declaration:
    """Return the write with the newer version of the schema."""
    first, second = declaration[1].get(LATEST_SCHEMA), other[1].get(LATEST_SCHEMA)
    is_newer = second and (not first or decode_schema(second).version > decode_schema(first).version)
    return other if is_newer else declaration


def known_schema(table: LoadedTable) -> pa.Schema | None:
    """Return the schema of the data columns if it is already loaded; sends no request.

    Returns None if the metadata of the newest write was not read yet, or if no source contains a schema.
    """
    writes = table.timeline.writes().by_completion()
    if not writes:
        return data_columns(avro_to_arrow(table.config.create_schema)) if table.config.create_schema else None
    for instant in reversed(writes):
        extra = table.store.known_extra(instant)
        if extra is None:
            return None
        if extra.get("schema"):
            return _with_created_types(table.config, data_columns(avro_to_arrow(extra["schema"])))
    return None


def _with_created_types(config: TableConfig, schema: pa.Schema) -> pa.Schema:
    """Return `schema` with the types of the create schema for source columns of TIMESTAMP partition fields.

    UPDATE and DELETE of Hudi's SQL write such a column as a string of digits and declare it as a string afterwards.
    Hudi's own key generator could not read that. The values are unchanged.
    """
    timestamps = [
        f
        for f, kind in zip(config.keys.partition_fields, config.keys.partition_types, strict=False)
        if kind == "TIMESTAMP" and f in schema.names
    ]
    if not timestamps or not config.create_schema:
        return schema
    created = avro_to_arrow(config.create_schema)
    for name in timestamps:
        position = schema.get_field_index(name)
        if name in created.names and pa.types.is_string(schema.field(position).type):
            schema = schema.set(position, schema.field(position).with_type(created.field(name).type))
    return schema


def data_columns(schema: pa.Schema) -> pa.Schema:
    """Return the schema without meta columns."""
    return pa.schema([field for field in schema if field.name not in META_COLUMNS])
