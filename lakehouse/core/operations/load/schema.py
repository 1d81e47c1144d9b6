"""Determine the schema of a table's data columns."""

from __future__ import annotations

import pyarrow as pa

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow
from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.operations.load.commits import archived_commits
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.schema import normalise
from lakehouse.core.state.table_config import TableConfig
from lakehouse.errors import UnsupportedError


def table_schema(table: LoadedTable, up_to: str | None = None) -> pa.Schema | None:
    """Return the schema of the data columns, without meta columns, or None if no source contains a schema.

    Sources, in this order: the newest commit with a schema, the schema in the table's properties, a base file. Commits
    requested after `up_to` are ignored.

    Raises:
        UnsupportedError: A commit renamed or reordered columns by id (schema on read).
    """
    writes = table.timeline.writes().where(requested_up_to=up_to).by_completion()
    for instant in reversed(writes):
        extra = table.store.extra(instant)
        if extra.get("latest_schema"):
            raise UnsupportedError(
                f"{table.env.storage.root}: {instant.requested} evolved the schema by column ids "
                "(hoodie.schema.on.read.enable), which is not supported: renamed columns would be read as new ones",
                instant=instant.requested,
            )
        if extra.get("schema"):
            return _with_created_types(table.config, data_columns(avro_to_arrow(extra["schema"])))
    for _, metadata in archived_commits(table, requested_up_to=up_to, containing="schema"):
        if metadata.extra.get("schema"):
            return _with_created_types(table.config, data_columns(avro_to_arrow(metadata.extra["schema"])))
    if table.config.create_schema:
        return data_columns(avro_to_arrow(table.config.create_schema))
    for instant in reversed(writes):
        for stat in table.store.commit(instant).stats:
            if parse_base_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes) is not None:
                reader = BaseFileReader(table.env.storage, stat.path)
                return data_columns(normalise(reader.schema))
    return None


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
