"""The record key of a table is narrower than the key of its source, or targets of source tables are not distinct."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.sources.mysql.server import MysqlServer
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand
from tests.support.mysql import DatabaseServer
from tests.support.mysql_ingest import Shop
from tests.support.postgres import PgServer, PgShop

pytestmark = pytest.mark.spark
CHECK = IngestCommand(table="x")


@pytest.fixture
def shop(spark: SparkSession, mysql: DatabaseServer, tmp_path: Path) -> Shop:
    return Shop(spark, mysql, tmp_path)


@pytest.fixture
def pg_shop(spark: SparkSession, postgres: PgServer, tmp_path: Path) -> PgShop:
    return PgShop(spark, postgres.database(), tmp_path)


def message_of(report: IngestReport, table: str) -> str:
    """Return the error of a table of a report."""
    (part,) = [one for one in report.parts if one.table == table]
    assert part.error is not None
    return part.error.message


def test_record_key_that_is_narrower_than_the_primary_key_is_refused(shop: Shop) -> None:
    """embulk/embulk-output-jdbc#149, etlbox/etlbox#42: rows with one part of a composite key are not one row."""
    shop.sql("create table t (id int, k int, n int, primary key (id, k))", "insert into t values (1, 1, 0), (1, 2, 0)")
    refused = rf"record key \(id\) is narrower than the unique keys of {shop.database}\.t, which are \(id, k\)"
    with pytest.raises(UserError, match=refused):
        check_ingest(shop.spec, CHECK, environ=shop.server.connection, storage_options={})
    with pytest.raises(UserError, match=refused):
        shop.run()
    shop.table_settings = {"record_key": ["id", "k"]}
    shop.run()
    assert shop.stored("id, k, n") == shop.source("id, k, n") == [(1, 1, 0), (1, 2, 0)]


@pytest.mark.parametrize("remedy", ["keys", "unique index"])
def test_unique_columns_of_a_wider_primary_key_are_a_record_key(shop: Shop, remedy: str) -> None:
    """etlbox/etlbox#42: the primary key of a partitioned MySQL table has a column that its rows do not need."""
    shop.sql("create table t (id int not null, k int, n int, primary key (id, k))", "insert into t values (1, 1, 0)")
    if remedy == "keys":
        shop.settings["keys"] = {f"{shop.database}.t": "id"}
    else:
        shop.sql("create unique index one on t (id)")
    shop.run()
    shop.sql("update t set k = 5 where id = 1", "insert into t values (2, 1, 0)")
    shop.run()
    assert shop.stored("id, k") == shop.source("id, k") == [(1, 5), (2, 1)]


def test_key_that_is_widened_in_the_source_is_refused_with_working_remedies(shop: Shop) -> None:
    """PostHog/posthog#86510: a key that the source has now must not be used with the rows of the key before."""
    shop.table_settings = {}
    shop.settings |= {"tables": f"{shop.database}.*", "into": "s_{table}"}
    for name in ("t", "u"):
        shop.sql(f"create table {name} (id int primary key, k int not null)", f"insert into {name} values (1, 1)")
    shop.run()
    widened = "alter table {} drop primary key, add primary key (id, k)"
    shop.sql(widened.format("t"), "insert into t values (1, 2)", widened.format("u"), "insert into u values (2, 2)")
    report = shop.run()
    for name in ("s_t", "s_u"):
        assert "is (id, k) now" in message_of(report, name)
    # The columns of the stored key are unique in one table; the other one is copied into a new table.
    shop.settings["keys"] = {f"{shop.database}.u": "id"}
    shop.settings["exclude"] = [f"{shop.database}.t"]
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("id, k", "s_u") == shop.source("id, k", "u") == [(1, 1), (2, 2)]
    shop.settings |= {"exclude": [f"{shop.database}.u"], "into": "new_{table}"}
    shop.run()
    assert shop.stored("id, k", "new_t") == shop.source("id, k") == [(1, 1), (1, 2)]


def test_key_that_is_widened_during_a_read_is_not_committed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostHog/posthog#86510: the key is compared again before the commit."""
    shop.sql("create table t (id int primary key, k int not null)", "insert into t values (1, 1)")
    log_end = MysqlServer.log_end
    statements = ["alter table t drop primary key, add primary key (id, k)", "insert into t values (1, 2)"]

    def widened(server: MysqlServer) -> object:
        if shop.is_planned and statements:
            shop.sql(statements.pop(0), statements.pop(0))
        return log_end(server)

    plan = MysqlServer.chunks

    def chunks(server: MysqlServer, *given: object, **more: object) -> object:
        shop.is_planned = True
        return plan(server, *given, **more)

    shop.is_planned = False
    monkeypatch.setattr(MysqlServer, "log_end", widened)
    monkeypatch.setattr(MysqlServer, "chunks", chunks)
    with pytest.raises(UserError, match="narrower than the unique keys"):
        shop.run()
    assert not statements
    assert not (shop.root / "lake" / ".hoodie").exists() or shop.stored("id") == []


def test_generated_column_in_a_postgres_key_is_refused_or_replaced(pg_shop: PgShop) -> None:
    """supabase/etl#77, spiceai/spiceai#11255: the log lacks generated columns, and keys without them are not unique."""
    statements = (
        "create table t (id int, n int, g int generated always as (n / 10) stored, primary key (id, g))",
        "insert into t values (1, 10), (1, 20)",
    )
    pg_shop.sql(*statements)
    pg_shop.table_settings = {}
    pg_shop.settings |= {"tables": ["public.*"], "into": "s_{table}"}
    assert "does not have all columns of its key (id, g)" in message_of(pg_shop.run(), "s_t")
    pg_shop.table_settings, pg_shop.settings["tables"] = {"record_key": ["id"]}, "public.t"
    del pg_shop.settings["into"]
    with pytest.raises(UserError, match=r"narrower than the unique keys of public\.t, which are \(id, g\)"):
        pg_shop.run()
    pg_shop.settings["keys"] = {"public.t": "id, n"}
    pg_shop.table_settings = {"record_key": ["id", "n"]}
    pg_shop.sql("alter table t replica identity full")
    pg_shop.run()
    pg_shop.sql("update t set n = 30 where n = 20", "delete from t where n = 10")
    pg_shop.run()
    assert pg_shop.stored("id, n") == pg_shop.source("id, n") == [(1, 30)]


def test_included_columns_of_a_postgres_key_are_not_part_of_it(pg_shop: PgShop) -> None:
    """drasi-project/drasi-core#659: the log has no old value of an included column, so an update leaves the old row."""
    pg_shop.sql("create table t (id int, n int, primary key (id) include (n))", "insert into t values (1, 1), (2, 2)")
    pg_shop.table_settings = {}
    pg_shop.settings |= {"tables": ["public.*"], "into": "s_{table}"}
    pg_shop.run()
    pg_shop.sql("update t set n = 5 where id = 1", "delete from t where id = 2")
    pg_shop.run()
    assert pg_shop.stored("id, n", "s_t") == pg_shop.source("id, n") == [(1, 5)]


def test_names_of_source_tables_do_not_leave_the_location(shop: Shop) -> None:
    """keboola/cli#412: the name of a source table is data; as a path it could lead anywhere."""
    names = ("../up", "..", "a/b", "a\\b", ".hoodie")
    for name in names:
        shop.sql(f"create table `{name}` (id int primary key)", f"insert into `{name}` values (1)")
    shop.sql("create table `größe 1.a` (id int primary key)", "insert into `größe 1.a` values (7)")
    shop.table_settings = {}
    shop.settings |= {"tables": f"{shop.database}.*", "into": "{table}"}
    report = shop.run()
    for name in names:
        assert "would be written to" in message_of(report, name)
    assert shop.stored("id", "größe 1.a") == [(7,)]
    assert sorted(one.name for one in shop.root.iterdir()) == ["lake", "lake_staging"]
    assert [one.name for one in (shop.root / "lake").iterdir()] == ["größe 1.a"]
    with pytest.raises(UserError, match="no name of a folder"):
        check_ingest(shop.spec, CHECK, environ=shop.server.connection, storage_options={})
    shop.settings["exclude"] = [f"{shop.database}.*{end}" for end in ("/*", "\\*", "hoodie")]
    shop.sql("rename table `..` to fine")
    assert sorted(part.table for part in shop.run().parts) == ["fine", "größe 1.a"]
    assert shop.stored("id", "fine") == [(1,)]


def test_source_tables_with_one_target_are_refused(shop: Shop) -> None:
    """airbytehq/airbyte#35764, nao1215/sqly#286: the rows of two tables with one target would be mixed."""
    other = shop.server.database()
    shop.sql("create table t (id int primary key)", "insert into t values (1)")
    shop.server.run("create table t (id int primary key)", "insert into t values (2)", database=other)
    shop.table_settings = {}
    shop.settings |= {"tables": [f"{shop.database}.t", f"{other}.t"], "into": "{table}"}
    report = shop.run()
    assert [part.status for part in report.parts] == [JobStatus.FAILED] or len(report.parts) == 2
    assert "would be written to the same table 't'" in message_of(report, "t")
    shop.settings["into"] = "{database}_{table}"
    shop.run()
    assert shop.stored("id", f"{shop.database}_t") == [(1,)]
    assert shop.stored("id", f"{other}_t") == [(2,)]
