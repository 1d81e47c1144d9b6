"""Specs that are suggested from tables of a server: they pass the check and ingest the tables, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.suggest.databases import sample_database
from lakehouse.platform.suggest.document import several_tables_spec, suggested_spec
from lakehouse.platform.suggest.sample import Limits, TableSet
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.mysql import READER_PASSWORD, DatabaseServer
from tests.support.postgres import READER_PASSWORD as PG_PASSWORD
from tests.support.postgres import PgServer

pytestmark = pytest.mark.spark
TABLES = (
    "create table orders (id int primary key, total decimal(12,2), ordered_at timestamp not null, note text)",
    "create table items (order_id int, line int, qty int, primary key (order_id, line))",
    "create table log (line int, message varchar(50))",
)
ROWS = (
    "insert into orders values (1, 10.5, '2026-01-31 10:00:00', 'a'), (2, 0.01, '2026-02-01 10:00:00', null)",
    "insert into items values (1, 1, 5), (1, 2, 6)",
    "insert into log values (1, 'x')",
)


def suggested(environ: dict[str, str], connection: str, *tables: str) -> str:
    """Return the text of the spec that is suggested for tables."""
    sample = sample_database(connection, tables, Limits(), environ)
    return several_tables_spec(sample) if isinstance(sample, TableSet) else suggested_spec(sample)


def command(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, home: Path, *words: str) -> int:
    """Run a command with a connection and a home."""
    monkeypatch.chdir(home)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return main(list(words))


def test_suggestion_of_a_postgres_table_ingests_it_and_has_no_secret(
    spark: Any, postgres: PgServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.database()
    database.sql(*TABLES, *ROWS)
    run = ("--tables", "public.orders", "--to", "orders.yaml")
    assert command(database.connection, monkeypatch, tmp_path, "spec", "suggest", "postgres_default", *run) == 0
    text = (tmp_path / "orders.yaml").read_text()
    assert PG_PASSWORD not in text
    assert "Suggested from 2 rows of public.orders" in text
    assert "total: decimal(12,2)" in text
    assert "# partition_by: {ordered_at: {type: TIMESTAMP, output_format: yyyy-MM-dd}}" in text
    spec = parse_spec(text, source="orders.yaml")
    assert (spec.type, spec.record_key) == ("MERGE_ON_READ", ("id",))
    assert main(["spec", "check", "orders.yaml"]) == 0
    assert main(["ingest", "run", "--table", "orders.yaml"]) == 0
    assert Table.open(tmp_path / "lake" / "orders").scan().to_arrow().num_rows == 2


def test_suggestion_of_a_postgres_schema_excludes_tables_without_a_key(postgres: PgServer) -> None:
    database = postgres.database()
    database.sql(*TABLES, *ROWS, "create table codes (code text not null unique)")
    spec = parse_spec(suggested(database.connection, "postgres_default", "public.*"), source="x.yaml")
    assert spec.ingest is not None
    settings = spec.ingest.database
    assert settings is not None
    assert (settings.tables, settings.exclude, settings.into) == (("public.*",), ("public.log",), "{table}")
    assert settings.keys == {"public.codes": ("code",)}


def test_suggestion_of_a_table_without_a_key_appends_its_rows(postgres: PgServer) -> None:
    database = postgres.database()
    database.sql(*TABLES)
    spec = parse_spec(suggested(database.connection, "postgres_default", "public.log"), source="x.yaml")
    assert spec.record_key == ("_source_position",)
    assert spec.ingest is not None
    assert spec.ingest.database is not None
    assert spec.ingest.database.without_key == "append"


def test_suggestion_of_a_mysql_table_ingests_it_and_has_no_secret(
    spark: Any, mariadb: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = mariadb.database()
    mariadb.run(*TABLES, *ROWS, database=database)
    environ = {name: value.replace("{", '{"conn_type": "mysql", ', 1) for name, value in mariadb.connection.items()}
    run = ("--tables", f"{database}.orders", "--to", "orders.yaml")
    assert command(environ, monkeypatch, tmp_path, "spec", "suggest", "mysql_default", *run) == 0
    assert READER_PASSWORD not in (tmp_path / "orders.yaml").read_text()
    assert main(["spec", "check", "orders.yaml"]) == 0
    assert main(["ingest", "run", "--table", "orders.yaml"]) == 0
    assert Table.open(tmp_path / "lake" / "orders").scan().to_arrow().num_rows == 2


def test_suggestion_refuses_a_table_that_does_not_exist_and_names_others(postgres: PgServer) -> None:
    database = postgres.database()
    database.sql(*TABLES)
    with pytest.raises(UserError, match=r"no table .* matches public\.order, .*Known: public\.items"):
        suggested(database.connection, "postgres_default", "public.order")


def test_suggestion_refuses_a_connection_of_another_type() -> None:
    with pytest.raises(UserError, match="tables need the type mysql or postgres"):
        suggested({"AIRFLOW_CONN_X": '{"conn_type": "http", "host": "h"}'}, "x", "a.b")
