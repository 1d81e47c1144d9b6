"""Check a database source before a Spark session starts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from lakehouse.errors import UserError
from lakehouse.platform.sources.databases.keys import target_problems
from lakehouse.platform.sources.databases.plan import key_of
from lakehouse.platform.sources.databases.servers import open_server
from lakehouse.platform.sources.source import Interval
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spec.table.table_spec import TableSpec


def check_database_source(
    spec: TableSpec, interval: Interval | None, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> None:
    """Check the connection, the server's settings and privileges, and the tables with their types and keys.

    Raises:
        UserError: A run cannot succeed; the message contains the value and the remedy.
        RetryableError: The server does not answer.
    """
    settings = ingest_of(spec).database
    assert settings is not None, "the registry selects the check by the type of the settings"
    with closing(open_server(spec, environ)) as server:
        names = [name for name in server.tables() if settings.selects(name)]
        tables = server.describe(names)
        server.check(tuple(tables.values()))
        if not tables:
            raise UserError(
                f"no table of the source matches {', '.join(settings.tables)}, or the user of the connection may not "
                "read any. Create the table, correct ingest.tables, or grant SELECT",
                table=spec.table,
            )
        problems = [*target_problems(settings, names).values()]
        if problems:
            raise problems[0]
        for table in tables.values():
            key_of(table, spec.record_key, settings)
