"""The servers of database sources, by source kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from lakehouse.errors import UserError
from lakehouse.platform.sources.databases.server import DatabaseServer
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spec.sources.mysql_connection import mysql_access
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec
from lakehouse.spec.sources.postgres_connection import postgres_access
from lakehouse.spec.sources.postgres_source import APPLY, PostgresSourceSpec
from lakehouse.spec.table.table_spec import TableSpec


def open_server(spec: TableSpec, environ: Mapping[str, str]) -> DatabaseServer:
    """Connect to the server in a spec.

    Raises:
        UserError: The connection is incomplete, its account may not sign in, or a package is missing.
        RetryableError: The server does not answer.
    """
    source = ingest_of(spec).source
    return _OPEN[source.KIND](source, spec.table, environ)


def _mysql(source: MysqlSourceSpec, table: str, environ: Mapping[str, str]) -> DatabaseServer:
    access = mysql_access(source.connection, environ)
    server: DatabaseServer = _module("lakehouse.platform.sources.mysql.server", "mysql").MysqlServer(access, source)
    return server


def _postgres(source: PostgresSourceSpec, table: str, environ: Mapping[str, str]) -> DatabaseServer:
    access = replace(postgres_access(source.connection, environ), applies_policies=source.row_security == APPLY)
    server: DatabaseServer = _module("lakehouse.platform.sources.postgres.server", "postgres").PostgresServer(
        access, source, table
    )
    return server


_OPEN: dict[str, Callable[[Any, str, Mapping[str, str]], DatabaseServer]] = {
    MysqlSourceSpec.KIND: _mysql,
    PostgresSourceSpec.KIND: _postgres,
}


def _module(name: str, extra: str) -> Any:
    """Import a module that needs an extra's packages."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lakehouse"):
            raise
        raise UserError(
            f"the source {extra} needs the package {error.name}: install lakehouse-tables[{extra}] in Spark's "
            "environment"
        ) from error
