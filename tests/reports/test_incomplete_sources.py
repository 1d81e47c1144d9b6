"""A server gives only a part of the changes or rows: row level security, publications, filters of the binlog."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.sources.databases.checkpoint import DatabaseCheckpoint
from lakehouse.platform.sources.databases.plan import is_replaced
from lakehouse.platform.sources.databases.server import SourceTable
from lakehouse.platform.sources.postgres.server import PostgresServer
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import IngestCommand
from tests.support.mariadb import mariadb_server
from tests.support.mysql_ingest import Shop
from tests.support.postgres import READER, PgServer, PgShop

pytestmark = pytest.mark.spark
CHECK = IngestCommand(table="x")


@pytest.fixture
def shop(spark: SparkSession, postgres: PgServer, tmp_path: Path) -> PgShop:
    made = PgShop(spark, postgres.database(), tmp_path)
    made.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    return made


def test_row_level_security_is_refused_until_the_account_bypasses_it(shop: PgShop) -> None:
    """MaterializeInc/materialize#22249, PostgREST/postgrest-docs#749: policies hide rows without an error."""
    shop.sql(
        "create policy half on t using (n = 1)",
        "alter table t enable row level security",
        "alter table t force row level security",
        "create table u (id int primary key)",
        "insert into u values (5)",
    )
    with pytest.raises(UserError, match=r"row level security of public\.t may hide rows.* BYPASSRLS"):
        shop.run()
    with pytest.raises(UserError, match="row level security"):
        check_ingest(shop.spec, CHECK, environ=shop.server.connection, storage_options={})
    # A refused table keeps no other one back.
    shop.table_settings, single = {}, shop.table_settings
    shop.settings |= {"tables": ["public.*"], "into": "s_{table}"}
    report = shop.run()
    assert {part.table: part.status for part in report.parts} == {
        "s_t": JobStatus.FAILED,
        "s_u": JobStatus.COMMITTED,
    }
    shop.settings |= {"exclude": ["public.t"]}
    assert shop.run().status is JobStatus.NOTHING_TO_DO
    del shop.settings["into"], shop.settings["exclude"]
    shop.table_settings, shop.root = single, shop.root / "single"
    shop.settings |= {"tables": "public.t", "row_security": "apply"}
    shop.run()
    assert shop.stored("id, n") == [(1, 1)]
    del shop.settings["row_security"]
    shop.server.run(f"alter role {READER} bypassrls")
    try:
        shop.run(resnapshot=("public.t",), run_id="again")
    finally:
        shop.server.run(f"alter role {READER} nobypassrls")
    assert shop.stored("id, n") == shop.source("id, n") == [(1, 1), (2, 2)]


def test_row_level_security_that_begins_during_a_run_makes_reads_fail(shop: PgShop) -> None:
    """PostgREST/postgrest-docs#749: with `row_security=off` the server refuses a read whose rows it would filter."""
    statements = ("alter table t enable row level security", "alter table t force row level security")
    columns = PostgresServer.describe

    def describe(server: PostgresServer, names: Sequence[str]) -> Mapping[str, SourceTable]:
        found = columns(server, names)
        shop.sql(*statements)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresServer, "describe", describe)
        with pytest.raises(UserError, match=r"row[- ]level security"):
            shop.run()


@pytest.mark.parametrize(("kinds", "is_repaired"), [("insert", True), ("insert, update, truncate", False)])
def test_changes_that_the_publication_left_out_are_read_again(shop: PgShop, kinds: str, is_repaired: bool) -> None:
    """risingwavelabs/risingwave#10737, airbytehq/airbyte#15241: a publication without updates or deletes loses them."""
    shop.run()
    name = f'"{shop.server.name}"'
    shop.sql(f"alter publication {name} set (publish = '{kinds}')", "delete from t where id = 1")
    shop.sql("update t set n = 20 where id = 2")
    if is_repaired:
        shop.sql(f"alter publication {name} set (publish = 'insert, update, delete, truncate')")
    shop.run()
    assert shop.stored("id, n") == shop.source("id, n") == [(2, 20)]
    commits = len(shop.table().commits())
    assert shop.run().status is JobStatus.NOTHING_TO_DO
    assert len(shop.table().commits()) == commits


def test_new_tables_of_a_publication_do_not_read_others_again(shop: PgShop) -> None:
    """risingwavelabs/risingwave#10804: a run adds tables to its publication, which is no change of its settings."""
    shop.table_settings = {}
    shop.settings |= {"tables": ["public.*"], "into": "s_{table}"}
    shop.run()
    before = shop.checkpoint("s_t")["incarnation"]
    shop.sql("create table u (id int primary key)", "insert into u values (5)")
    shop.run()
    assert shop.stored("id", "s_u") == [(5,)]
    assert before.count(":") == 2
    assert shop.checkpoint("s_t")["incarnation"] == before
    # A commit of an earlier release does not have the settings of the publication.
    state = DatabaseCheckpoint.from_json(json.dumps(shop.checkpoint("s_t")))
    source = SourceTable(name="public.t", columns=(), key=("id",), incarnation=before)
    for text in (before.rpartition(":")[0], before.partition(":")[0]):
        assert not is_replaced(replace(state, incarnation=text), source)


def test_binlog_that_leaves_out_the_database_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """airbytehq/airbyte#15241: filters of the binlog, and a replica that writes no binlog of its own, lose changes."""
    with mariadb_server(binlog_ignore_db="audit,shop_x") as server:
        shop = Shop(spark, server, tmp_path)
        shop.sql("create table t (id int primary key)")
        environ = server.connection
        check_ingest(shop.spec, CHECK, environ=environ, storage_options={})
        server.run("create database shop_x", "create table shop_x.t (id int primary key)")
        shop.settings["tables"] = "shop_x.t"
        with pytest.raises(UserError, match=r"binlog-ignore-db.* leaves out the database shop_x"):
            check_ingest(shop.spec, CHECK, environ=environ, storage_options={})
        shop.settings["tables"] = f"{shop.database}.t"
        server.run("set global gtid_slave_pos = '7-9-1'")
        with pytest.raises(UserError, match="log_slave_updates is OFF, and the server is a replica"):
            check_ingest(shop.spec, CHECK, environ=environ, storage_options={})
