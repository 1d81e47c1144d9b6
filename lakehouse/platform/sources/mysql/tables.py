"""Columns and keys of source tables, from the server's catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import UnsupportedError
from lakehouse.platform.sources.binlog.charsets import require_known
from lakehouse.platform.sources.binlog.columns import SourceColumn as ServerColumn
from lakehouse.platform.sources.binlog.columns import arrow_type, catalog_column
from lakehouse.platform.sources.databases.server import SourceColumn, SourceTable
from lakehouse.platform.sources.mysql.connection import Questions

_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_COLUMNS = (
    "column_name, data_type, column_type, numeric_precision, numeric_scale, datetime_precision, character_set_name, "
    "character_maximum_length, is_nullable, column_default, extra"
)
_PRIMARY = "PRIMARY"
_INDEXES = (
    "select index_name, column_name, nullable from information_schema.statistics where table_schema = %s and "
    "table_name = %s and non_unique = 0 order by index_name, seq_in_index"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTable:
    """A source table, and its columns as the server describes them."""

    table: SourceTable
    columns: tuple[ServerColumn, ...]


def table_names(server: Questions) -> tuple[str, ...]:
    """Return all base tables that are visible to the account, as `database.table`."""
    places = ", ".join(["%s"] * len(_SYSTEM))
    rows = server.rows(
        "select table_schema as d, table_name as t from information_schema.tables where table_type = 'BASE TABLE' "
        f"and table_schema not in ({places}) order by table_schema, table_name",
        _SYSTEM,
    )
    return tuple(f"{row['d']}.{row['t']}" for row in rows)


def described(server: Questions, names: Sequence[str]) -> dict[str, ServerTable]:
    """Return tables by their names, without those that do not exist."""
    tables: dict[str, ServerTable] = {}
    for name in names:
        database, _, table = name.partition(".")
        rows = server.rows(
            f"select {_COLUMNS} from information_schema.columns where table_schema = %s and table_name = %s "
            "order by ordinal_position",
            (database, table),
        )
        if not rows:
            continue
        keys = _unique(server.rows(_INDEXES, (database, table)))
        columns = tuple(catalog_column(row) for row in rows)
        refusal = _refusal(name, columns)
        pairs = zip(rows, columns, strict=True)
        stored = () if refusal else tuple(_column(row, column) for row, column in pairs)
        source = SourceTable(
            name=name,
            columns=stored,
            key=keys.get(_PRIMARY, ()),
            unique=tuple(dict.fromkeys(keys.values())),
            refusal=refusal,
        )
        tables[name] = ServerTable(table=source, columns=columns)
    return tables


def _unique(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the columns of unique indexes by index name, without indexes with expressions or nullable columns."""
    keys: dict[str, tuple[str, ...]] = {}
    partial = set()
    for row in rows:
        name = str(row["index_name"])
        keys[name] = (*keys.get(name, ()), str(row["column_name"]))
        if row["column_name"] is None or str(row["nullable"]).upper() == "YES":
            partial.add(name)
    return {name: columns for name, columns in keys.items() if name not in partial}


def _refusal(name: str, columns: Sequence[ServerColumn]) -> str:
    """Return why a table's log cannot be decoded, with the remedy; empty if it can."""
    for column in columns:
        try:
            arrow_type(column)
            require_known(column.charset)
        except UnsupportedError as error:
            return (
                f"column {column.name!r} ({column.type}): {error.message}; or leave the table out by ingest.exclude"
                if column.charset
                else f"{error.message}. Run ALTER TABLE {name} to change or drop the column, or leave the table out by "
                "ingest.exclude"
            )
    return ""


def _column(row: Mapping[str, Any], column: ServerColumn) -> SourceColumn:
    is_generated = "generated" in str(row["extra"]).lower()
    # MariaDB prints the default null as a string.
    has_default = row["column_default"] is not None and str(row["column_default"]).upper() != "NULL"
    return SourceColumn(
        name=column.name,
        kind=kind_of(column, row["character_maximum_length"]) + (":generated" if is_generated else ""),
        type=arrow_type(column),
        fills_null=str(row["is_nullable"]).upper() == "YES" and not has_default and not is_generated,
    )


def kind_of(column: ServerColumn, length: int | None) -> str:
    """Return the kind that determines a column's values: a name, and sizes that may grow without changing values."""
    if column.type in _BITS:
        return f"{'unsigned' if column.unsigned else 'signed'}:{_BITS[column.type]}"
    if column.type == "decimal":
        return f"decimal{'_unsigned' if column.unsigned else ''}:{column.precision - column.scale}:{column.scale}"
    if column.type in _TEXTS:
        return f"text:{length or 0}"
    if column.type in _BYTES:
        return f"bytes:{length or 0}"
    if column.type in ("datetime", "timestamp", "time"):
        return f"{column.type}:{column.scale}"
    if column.type == "binary":
        return f"binary_{column.length}"
    return f"bit_{column.precision}" if column.type == "bit" else column.type
