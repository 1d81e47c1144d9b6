"""Complete ingest runs from MySQL and MariaDB through Spark: the table is as the source is at the end of the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.platform.ingest import databases
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.sources.databases.source import EVENTS, LAG
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import IngestCommand
from tests.support.mysql import DatabaseServer
from tests.support.mysql_ingest import Shop, append_beside_inserts, read_beside_writers

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(spark: SparkSession, database_server: DatabaseServer, tmp_path: Path) -> Shop:
    return Shop(spark, database_server, tmp_path)


@pytest.fixture
def maria(spark: SparkSession, mariadb: DatabaseServer, tmp_path: Path) -> Shop:
    return Shop(spark, mariadb, tmp_path)


def test_snapshot_and_log_in_parallel_equal_the_source_at_the_end(shop: Shop) -> None:
    read_beside_writers(shop)
    assert json.loads(shop.table().commits()[-1][1].extra[LAG]) == {"bytes": 0, "seconds": 0}


def test_many_tables_have_one_log_and_a_refused_one_keeps_no_other_back(shop: Shop) -> None:
    shop.sql(
        "create table orders (id bigint unsigned primary key, total decimal(38, 10))",
        "create table items (code binary(4) primary key, note text)",
        "create table log_old (id int primary key)",
        "create table events (day date, number int)",
        "insert into orders values (18446744073709551615, 0.1234567891)",
        "insert into items values (x'00ff', 'a')",
    )
    shop.table_settings = {}
    shop.settings = {"tables": [f"{shop.database}.*"], "exclude": [f"{shop.database}.*_old"], "into": "s_{table}"}
    report = shop.run()
    parts = {part.table: part for part in report.parts}
    assert report.status is JobStatus.FAILED
    assert parts.keys() == {"s_orders", "s_items", "s_events"}
    failure = parts["s_events"].error
    assert failure is not None and "has no primary key" in failure.message
    assert shop.stored("id, total", "s_orders") == shop.source("id, total", "orders")
    assert shop.stored("code, note", "s_items") == [("00FF0000", "a")]
    shop.settings["keys"] = {f"{shop.database}.events": "day, number"}
    shop.sql("insert into events values ('2026-01-31', 7)", "update items set note = 'b'", "delete from orders")
    second = shop.run(run_id="second")
    assert second.status is JobStatus.COMMITTED
    retried = shop.run(run_id="second")
    assert retried.status is JobStatus.NOTHING_TO_DO
    assert [part.instant for part in retried.parts] == [part.instant for part in second.parts] != [None] * 3
    assert shop.stored("note", "s_items") == [("b",)]
    assert shop.stored("id", "s_orders") == []
    assert shop.stored("day, number", "s_events") == shop.source("day, number", "events")


def test_columns_of_the_source_are_followed_and_new_values_are_read_again(shop: Shop) -> None:
    shop.sql("create table t (id int primary key, a int, gone int)", "insert into t values (1, 1, 1), (2, 2, 2)")
    shop.run()
    shop.sql(
        "alter table t add column b varchar(10)",
        "insert into t values (3, 3, 3, 'b')",
        "alter table t modify a bigint, drop column gone",
        "insert into t values (4, 5000000000, 'c')",
        "alter table t add column c int not null default 7",
        "update t set b = 'd' where id = 1",
    )
    report = shop.run()
    assert report.status is JobStatus.COMMITTED
    assert shop.stored("id, a, b, c") == shop.source("id, a, b, c")
    assert shop.stored("c") == [(7,)] * 4


def test_truncated_and_replaced_tables_lose_their_old_rows(maria: Shop) -> None:
    maria.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    maria.run()
    maria.sql("insert into t values (3, 3)", "truncate table t", "insert into t values (4, 4)")
    maria.run()
    assert maria.stored("id, n") == [(4, 4)]
    assert "truncate" in maria.table().commits()[-1][1].extra[EVENTS]
    maria.sql(
        "create table t_new (id int primary key, n int)",
        "insert into t_new values (4, 5), (6, 6)",
        "rename table t to t_old, t_new to t",
        "insert into t values (7, 7)",
    )
    maria.run()
    assert maria.stored("id, n") == [(4, 5), (6, 6), (7, 7)]
    maria.sql("drop table t")
    maria.run()
    assert len(maria.stored("id, n")) == 3
    maria.settings["drop"] = "delete"
    maria.sql("create table t (id int primary key, n int)", "insert into t values (8, 8)", "drop table t")
    maria.run()
    assert maria.stored("id, n") == []


def test_truncate_fails_the_run_if_the_spec_says_so(maria: Shop) -> None:
    maria.sql("create table t (id int primary key)", "insert into t values (1)")
    maria.settings["truncate"] = "fail"
    maria.run()
    maria.sql("truncate table t")
    with pytest.raises(UserError, match=r"TRUNCATE TABLE of .* is in the log"):
        maria.run()
    assert maria.stored("id") == [(1,)]


def test_resnapshot_repairs_values_and_deletes_that_the_log_lacks(maria: Shop) -> None:
    maria.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2), (3, 3)")
    maria.settings |= {"chunk_rows": 1, "max_chunks": 2}
    maria.run()
    maria.sql(
        "set sql_log_bin = 0",
        "delete from t where id = 2",
        "update t set n = 9 where id = 3",
        "insert into t values (4, 4)",
    )
    maria.run()
    assert maria.stored("id, n") == [(1, 1), (2, 2), (3, 3)]
    report = maria.run(resnapshot=(f"{maria.database}.t",), run_id="again")
    assert report.status is JobStatus.COMMITTED
    assert maria.stored("id, n") == [(1, 1), (3, 9), (4, 4)]
    assert maria.checkpoint()["complete"] and "purges" not in maria.checkpoint()
    # A retry of the run does not read the table once more.
    assert maria.run(resnapshot=(f"{maria.database}.t",), run_id="again").status is JobStatus.NOTHING_TO_DO


def test_rows_of_a_table_without_key_are_appended_once(maria: Shop) -> None:
    maria.sql("create table t (n int)", "insert into t values (0)")
    maria.table_settings = {"record_key": ["_source_position"]}
    maria.settings |= {"without_key": "append", "snapshot": "never", "metadata": ["position"]}
    maria.run()
    maria.sql("insert into t values (1), (1)")
    maria.run()
    maria.sql("insert into t values (2)")
    maria.run()
    assert maria.stored("n") == [(1,), (1,), (2,)]
    maria.sql("update t set n = 3 where n = 2")
    with pytest.raises(UserError, match="has no key, and its log has an update"):
        maria.run()


def crash(*_: object) -> None:
    raise RuntimeError("crash")


def test_snapshot_of_a_table_without_key_has_each_row_once_while_rows_are_added(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_beside_inserts(shop)
    # A killed run leaves no rows, and a new snapshot replaces the rows.
    shop.sql("update t set n = -1 where n = 5")
    with pytest.raises(UserError, match=r"its log has an update .* --resnapshot"):
        shop.run()
    with monkeypatch.context() as patch:
        patch.setattr(databases, "_committed", crash)
        with pytest.raises(RuntimeError, match="crash"):
            shop.run(resnapshot=(f"{shop.database}.t",), run_id="again")
    shop.sql("insert into t values (-2)")
    shop.run(resnapshot=(f"{shop.database}.t",), run_id="again")
    assert shop.stored("n") == shop.source("n")
    shop.sql("insert into t values (-3)", "truncate t", "insert into t values (-4)")
    shop.run()
    assert shop.stored("n") == [(-4,)]


def test_snapshot_of_a_table_without_key_and_transactions_is_refused(maria: Shop) -> None:
    maria.sql("create table t (n int) engine = Aria transactional = 0")
    maria.table_settings = {"record_key": ["_source_position"]}
    maria.settings |= {"without_key": "append", "metadata": ["position"]}
    with pytest.raises(UserError, match=r"t has no key, and its engine Aria has no transactions"):
        maria.run()


def test_check_names_every_setting_and_right_that_is_missing(maria: Shop) -> None:
    maria.sql("create table t (id int primary key)")
    command = IngestCommand(table="x")
    (note,) = check_ingest(maria.spec, command, environ=maria.server.connection, storage_options={})
    assert note.endswith("the run creates it")
    maria.sql(
        "create user if not exists 'plain'@'%' identified by 'plain-password'", "grant select on *.* to 'plain'@'%'"
    )
    maria.sql("set global binlog_row_image = MINIMAL", "set global binlog_row_metadata = MINIMAL")
    value = {
        **json.loads(maria.server.connection["AIRFLOW_CONN_MYSQL_DEFAULT"]),
        "login": "plain",
        "password": "plain-password",
    }
    try:
        with pytest.raises(UserError) as raised:
            check_ingest(
                maria.spec, command, environ={"AIRFLOW_CONN_MYSQL_DEFAULT": json.dumps(value)}, storage_options={}
            )
    finally:
        maria.sql("set global binlog_row_image = FULL", "set global binlog_row_metadata = FULL")
    for text in (
        "SET GLOBAL binlog_row_image = FULL",
        "SET GLOBAL binlog_row_metadata = FULL",
        "GRANT REPLICATION SLAVE",
        "GRANT REPLICATION CLIENT",
    ):
        assert text in raised.value.message
    maria.settings["tables"] = f"{maria.database}.missing"
    with pytest.raises(UserError, match="no table of the source matches"):
        check_ingest(maria.spec, command, environ=maria.server.connection, storage_options={})
