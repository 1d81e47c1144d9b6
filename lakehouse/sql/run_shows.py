"""Executes SHOW and DESCRIBE; the columns of the results have Spark's names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError, nearest
from lakehouse.model.partition_kind import PartitionKind, partition_kind
from lakehouse.sql.engine import Parameters
from lakehouse.sql.run_writes import matching_partitions
from lakehouse.sql.session_tables import SessionTables
from lakehouse.sql.statements import Describe, ShowIndexes, ShowTable, ShowTables
from lakehouse.sql.types import column_text, type_text

#: Indexes that CREATE INDEX declares before they are built.
_DECLARED_KINDS = (PartitionKind.SECONDARY_INDEX, PartitionKind.EXPRESSION_INDEX)


def table_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows of strings and numbers as a table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return pa.table({name: _array(values) for name, values in zip(names, columns, strict=True)})


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern of SHOW: `*` and `%` are any characters, `|` separates patterns."""
    if not pattern:
        return True
    parts = [re.escape(part.strip()).replace(r"\*", ".*").replace("%", ".*") for part in pattern.split("|")]
    return any(re.fullmatch(part, name, re.IGNORECASE) for part in parts)


def show_tables(session: SessionTables, statement: ShowTables, _: Parameters) -> pa.Table | None:
    """Return the tables in a namespace."""
    space = session.names.namespace(statement.namespace or (session.names.current,))
    if space is None:
        if session.engine.session is not None:
            return None
        if statement.namespace:
            spaces = session.catalog.list_namespaces()
            raise UserError(
                f"there is no namespace {statement.namespace[-1]!r}.{nearest(statement.namespace[-1], spaces)}"
            )
        return table_of(("namespace", "tableName", "isTemporary"), [])
    stored = {entry.name for entry in session.catalog.list_tables(space)} | {*session.engine.tables(space)}
    names = sorted(name for name in stored if matches(name, statement.pattern))
    rows: list[tuple[str, str, bool]] = [(space, name, False) for name in names]
    rows += [("", name, True) for name in sorted(session.views) if matches(name, statement.pattern)]
    return pa.table(
        {
            "namespace": pa.array([row[0] for row in rows], pa.string()),
            "tableName": pa.array([row[1] for row in rows], pa.string()),
            "isTemporary": pa.array([row[2] for row in rows], pa.bool_()),
        }
    )


def show_table(session: SessionTables, statement: ShowTable, _: Parameters) -> pa.Table | None:
    """Return partitions, columns, properties or the CREATE TABLE statement of a table."""
    if not session.belongs(statement.name):
        return None
    table = session.names.open(statement.name)
    match statement.what:
        case "partitions":
            if not table.config.keys.partition_fields:
                raise UserError(f"{table.name} has no partitions")
            paths = matching_partitions(table, statement.partition) if statement.partition else table.partitions()
            return pa.table({"partition": pa.array(paths, pa.string())})
        case "columns":
            return pa.table({"col_name": pa.array(table.schema.names, pa.string())})
        case "tblproperties":
            properties = _properties(table)
            if statement.key:
                value = properties.get(statement.key)
                if value is None:
                    raise UserError(f"the table has no property {statement.key!r}.{nearest(statement.key, properties)}")
                properties = {statement.key: value}
            return table_of(("key", "value"), sorted(properties.items()))
    return pa.table(
        {
            "createtab_stmt": pa.array(
                [create_statement(table, ".".join(column_text(part) for part in statement.name))], pa.string()
            )
        }
    )


def show_indexes(session: SessionTables, statement: ShowIndexes, _: Parameters) -> pa.Table | None:
    """Return the partitions of the metadata table that are built or being built, and indexes that are only declared."""
    if not session.belongs(statement.name):
        return None
    table = session.names.open(statement.name)
    raw = table.config.raw
    built = [name for name in raw.get("hoodie.table.metadata.partitions", "").split(",") if name]
    building = [name for name in raw.get("hoodie.table.metadata.partitions.inflight", "").split(",") if name]
    rows = [(name, "built") for name in built] + [(name, "building") for name in building if name not in built]
    declared = [name for name in read_definitions(table.loaded.env.storage) if partition_kind(name) in _DECLARED_KINDS]
    rows += [(name, "declared") for name in declared if name not in (*built, *building)]
    return table_of(("index_name", "state"), rows)


def describe(session: SessionTables, statement: Describe, _: Parameters) -> pa.Table | None:
    """Return the columns of a table; EXTENDED adds its configuration."""
    if not session.belongs(statement.name):
        return None
    table = session.names.open(statement.name)
    schema = table.schema
    if statement.column:
        root = next((name for name in schema.names if name.lower() == statement.column.lower()), None)
        if root is None:
            raise UserError(f"there is no column {statement.column!r}.{nearest(statement.column, schema.names)}")
        schema = pa.schema([schema.field(root)])
    rows = [_column_row(field) for field in schema]
    partitions = table.config.keys.partition_fields
    if partitions and not statement.column:
        rows += [("# Partition Information", "", ""), ("# col_name", "data_type", "comment")]
        rows += [_column_row(schema.field(name)) for name in partitions if name in schema.names]
    if statement.is_extended and not statement.column:
        rows += [("", "", ""), ("# Detailed Table Information", "", "")]
        rows += [(name, value, "") for name, value in _details(table, ".".join(statement.name)).items()]
    return table_of(("col_name", "data_type", "comment"), rows)


def create_statement(table: Table, name: str) -> str:
    """Return the CREATE TABLE statement of a table."""
    columns = ",\n".join(f"  {_column_line(field)}" for field in table.schema)
    config = table.config
    lines = [f"CREATE TABLE {name} (\n{columns})", "USING lakehouse"]
    if config.keys.partition_fields:
        fields = ", ".join(column_text(field) for field in config.keys.partition_fields)
        lines.append(f"PARTITIONED BY ({fields})")
    lines.append(f"LOCATION {_string(table.location)}")
    properties = _short_properties(table)
    pairs = ",\n".join(f"  {_string(key)} = {_string(value)}" for key, value in sorted(properties.items()))
    lines.append(f"TBLPROPERTIES (\n{pairs})")
    return "\n".join(lines)


def _short_properties(table: Table) -> dict[str, str]:
    config = table.config
    keys = config.keys.record_key_fields
    properties = {
        **({"primaryKey": ",".join(keys)} if keys else {}),
        "type": "mor" if config.raw.get("hoodie.table.type") == "MERGE_ON_READ" else "cow",
    }
    ordering = config.raw.get("hoodie.table.ordering.fields") or config.raw.get("hoodie.table.precombine.field")
    if ordering:
        properties["orderingFields"] = ordering
    return properties


def _properties(table: Table) -> dict[str, str]:
    return {**table.config.raw, **_short_properties(table)}


def _details(table: Table, name: str) -> dict[str, str]:
    summary = table.describe()
    return {
        "Name": name,
        "Type": summary.type,
        "Provider": "lakehouse",
        "Location": table.location,
        "Record key": ", ".join(summary.record_key) or "generated",
        "Partition columns": ", ".join(summary.partitioned_by),
        "Ordering": ", ".join(summary.ordering),
        "Partitions": str(len(summary.partitions)),
        "Newest commit": summary.commits[-1].instant if summary.commits else "",
    }


def _column_row(field: pa.Field) -> tuple[str, str, str]:
    return field.name, type_text(field.type).lower(), comment_of(field)


def comment_of(field: pa.Field) -> str:
    """Return the comment of a column."""
    metadata = field.metadata or {}
    return (metadata.get(b"comment") or metadata.get(b"doc") or b"").decode()


def _column_line(field: pa.Field) -> str:
    comment = comment_of(field)
    required = "" if field.nullable else " NOT NULL"
    return f"{column_text(field.name)} {type_text(field.type)}{required}" + (
        f" COMMENT {_string(comment)}" if comment else ""
    )


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _array(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.string()) if not values or isinstance(values[0], str) else pa.array(values)
