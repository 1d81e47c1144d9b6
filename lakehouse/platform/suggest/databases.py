"""Sample PostgreSQL, MySQL and MariaDB tables: columns and keys as the server declares them, and some rows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import yaml

from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.sources.databases.server import DatabaseServer, SourceTable
from lakehouse.platform.sources.databases.servers import open_server
from lakehouse.platform.sources.databases.types import stored_type
from lakehouse.platform.suggest.arrow_types import sql_type
from lakehouse.platform.suggest.files import table_name
from lakehouse.platform.suggest.sample import Limits, Sample, SampledColumn, TableSet
from lakehouse.spec.secrets import connection_fields
from lakehouse.spec.sources.database_source import matches
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec
from lakehouse.spec.table.table_spec import parse_spec

#: The source kind by Airflow connection type.
KINDS: Mapping[str, str] = {
    "mysql": MysqlSourceSpec.KIND,
    "mariadb": MysqlSourceSpec.KIND,
    "postgres": PostgresSourceSpec.KIND,
    "postgresql": PostgresSourceSpec.KIND,
}
_POSITION = "_source_position"
_MOST_NAMED = 20


def sample_database(
    connection: str, tables: Sequence[str], limits: Limits, environ: Mapping[str, str]
) -> Sample | TableSet:
    """Return a sample of one table, or the tables for a spec with several.

    Args:
        connection: The id of an Airflow connection, type `mysql` or `postgres`.
        tables: Names and patterns as `database.table`, for PostgreSQL `schema.table`.
        limits: The sample limits per table.
        environ: Environment variables, which define the connection.

    Raises:
        UserError: The connection has another type or may not sign in, or no table has such a name.
        RetryableError: The server does not answer.
    """
    kind = database_kind(connection, environ)
    with closing(_server(connection, kind, environ)) as server:
        names = sorted(name for name in server.tables() if matches(name, tables))
        if not names:
            raise UserError(
                f"no table of the connection {connection!r} matches {', '.join(tables)}, or its user may not read any. "
                f"Known: {_listed(sorted(server.tables())) or 'none'}",
                connection=connection,
            )
        described = server.describe(names)
        section = {"source": kind, "connection": connection}
        if len(names) > 1 or any("*" in name for name in tables):
            return _several(section, tables, described, server)
        return _single(section, described[names[0]], server, limits)


def database_kind(connection: str, environ: Mapping[str, str]) -> str:
    """Return the source kind for a connection; raise UserError if its type is not a database."""
    given = connection_fields(connection, environ, name="SOURCE").kind
    if given not in KINDS:
        raise UserError(
            f"the connection {connection!r} has the type {given or 'none'!r}: tables need the type mysql or postgres. "
            "Set conn_type of the connection",
            connection=connection,
        )
    return KINDS[given]


def _server(connection: str, kind: str, environ: Mapping[str, str]) -> DatabaseServer:
    document = {
        "table": "suggestion",
        "location": "none",
        "record_key": ["none"],
        "ingest": {"source": kind, "connection": connection, "tables": ["none.none"]},
    }
    return open_server(parse_spec(yaml.safe_dump(document), source="a suggestion"), environ)


def _single(section: Mapping[str, object], table: SourceTable, server: DatabaseServer, limits: Limits) -> Sample:
    notes = [*_refusals(server, (table,))]
    ingest: dict[str, object] = {**section, "tables": [table.name]}
    key = table.key or next(iter(table.unique), ())
    if not key:
        notes.append(
            "the table has no key: its inserts are appended, and an update or delete fails a run. If columns are "
            "unique and never null, declare them as record_key instead of the next two settings"
        )
        ingest |= {"without_key": "append", "metadata": ["position"]}
        key = (_POSITION,)
    rows = _rows(table, key, server, limits) if key != (_POSITION,) else None
    count = 0 if rows is None else rows.num_rows
    text = f"Suggested from {count:,} rows of {table.name}, the first ones by its key, and its declared columns."
    return Sample(
        name=table_name(table.name.rpartition(".")[2]),
        columns=tuple(_column(column.name, column.type, rows) for column in table.columns),
        rows=count,
        ingest=ingest,
        scope=(text if count else f"Suggested from the declared columns of {table.name}; no row was read.",),
        notes=tuple(notes),
        is_database=True,
        key=key,
        changes_rows=True,
    )


def _rows(table: SourceTable, key: Sequence[str], server: DatabaseServer, limits: Limits) -> pa.Table:
    chunks = server.chunks(table, key, None, rows=limits.rows, most=1)
    batches: list[pa.RecordBatch] = []
    size = 0
    with server.reads.connected() as reads:
        for batch in reads.chunk(table, key, chunks[0]):
            batches.append(batch.slice(0, limits.rows - sum(one.num_rows for one in batches)))
            size += batch.nbytes
            if sum(one.num_rows for one in batches) >= limits.rows or size >= limits.bytes:
                break
    return pa.Table.from_batches(batches, table.schema if not batches else None)


def _column(name: str, kind: pa.DataType, rows: pa.Table | None) -> SampledColumn:
    stored = stored_type(kind)
    text = sql_type(stored, has_local_times=True) or str(stored)
    values: list[Hashable] = []
    if rows is not None:
        values = [value if isinstance(value, Hashable) else str(value) for value in rows.column(name).to_pylist()]
    return SampledColumn(name=name, type=text, values=values, key_type=text)


def _several(
    section: Mapping[str, object], patterns: Sequence[str], tables: Mapping[str, SourceTable], server: DatabaseServer
) -> TableSet:
    keyless = [table for table in tables.values() if not table.key and not table.unique]
    unique = {name: table.unique[0] for name, table in tables.items() if not table.key and table.unique}
    used = [table for table in tables.values() if table not in keyless]
    if not used:
        raise UserError(
            f"none of the tables has a key: {_listed([table.name for table in keyless])}. Suggest a spec for each one"
        )
    ingest: dict[str, object] = {**section, "tables": list(patterns)}
    if keyless:
        ingest["exclude"] = [table.name for table in keyless]
    schemas = {name.rpartition(".")[0] for name in tables}
    place = "schema" if section["source"] == PostgresSourceSpec.KIND else "database"
    ingest["into"] = "{table}" if len(schemas) == 1 else f"{{{place}}}_{{table}}"
    if unique:
        ingest["keys"] = {name: ", ".join(columns) for name, columns in unique.items()}
    notes = [_described(table) for table in tables.values()][:_MOST_NAMED]
    if len(tables) > _MOST_NAMED:
        notes.append(f"... and {len(tables) - _MOST_NAMED} more tables")
    return TableSet(
        name=table_name(sorted(schemas)[0]) if len(schemas) == 1 else table_name(str(section["connection"])),
        ingest=ingest,
        scope=(
            f"Suggested from the declared columns and keys of {len(tables):,} tables; no row was read.",
            *_refusals(server, used),
        ),
        notes=("tables:", *notes),
    )


def _described(table: SourceTable) -> str:
    columns = f"{len(table.columns)} columns"
    if table.key:
        return f"{table.name}: primary key ({', '.join(table.key)}), {columns}"
    if table.unique:
        return f"{table.name}: no primary key, so the unique index ({', '.join(table.unique[0])}) is its key, {columns}"
    return f"{table.name}: excluded, because it has no key; it needs a spec of its own with without_key: append"


def _refusals(server: DatabaseServer, tables: Sequence[SourceTable]) -> tuple[str, ...]:
    """Return a sentence about the problems that prevent an ingestion of the tables."""
    try:
        server.check(tuple(replace(table, key=table.key or next(iter(table.unique), ())) for table in tables))
    except LakehouseError as error:
        return (f"an ingestion cannot run yet: {error.message}",)
    return tuple(f"{table.name} cannot be ingested: {table.refusal}" for table in tables if table.refusal)


def _listed(names: Sequence[str], most: int = 10) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"
