"""An event of the log that cannot be applied stops one table, and the remedy that its message names works."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import OpenTransactionsError, UserError
from lakehouse.platform.sources.mysql import server
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from tests.support.mysql import DatabaseServer
from tests.support.mysql_ingest import Shop
from tests.support.postgres import PgServer, PgShop

pytestmark = pytest.mark.spark

#: Statements whose changes the log does not have as whole rows, by the table that they change.
BAD_EVENTS = {
    "partial": ("set binlog_row_image = MINIMAL", "update partial set n = n + 1 where id = 1"),
    "statement": ("set binlog_format = STATEMENT", "update statement set n = n + 1 where id = 1"),
    "prepared": (
        "xa start 'x'",
        "update prepared set n = n + 1 where id = 1",
        "xa end 'x'",
        "xa prepare 'x'",
        "xa commit 'x'",
    ),
}


@pytest.fixture
def shop(spark: SparkSession, database_server: DatabaseServer, tmp_path: Path) -> Shop:
    return Shop(spark, database_server, tmp_path)


@pytest.fixture
def maria(spark: SparkSession, mariadb: DatabaseServer, tmp_path: Path) -> Shop:
    return Shop(spark, mariadb, tmp_path)


def failures(report: IngestReport) -> dict[str, str]:
    """Return the messages of the tables that failed."""
    return {part.table: part.error.message for part in report.parts if part.error is not None}


def change(shop: Shop, names: tuple[str, ...]) -> None:
    """Make bad events, and good changes in all tables."""
    for statements in BAD_EVENTS.values():
        shop.sql(*statements)
    for name in names:
        shop.sql(f"replace into {name} (id, n) values (3, 3)", f"delete from {name} where id = 2")


def test_bad_events_stop_their_tables_alone_until_these_are_read_again(shop: Shop) -> None:
    """apache/flink-cdc#732, Altinity/clickhouse-sink-connector#254, zendesk/maxwell#175, block/spirit#1079."""
    names = (*BAD_EVENTS, "good")
    for name in names:
        shop.sql(f"create table {name} (id int primary key, n int, m int default 0)")
        shop.sql(f"insert into {name} (id, n) values (1, 1), (2, 1)")
    shop.settings, shop.table_settings = {"tables": [f"{shop.database}.*"], "into": "{table}"}, {}
    assert shop.run().status is JobStatus.COMMITTED
    change(shop, names)
    failed = failures(shop.run())
    assert failed.keys() == BAD_EVENTS.keys()
    assert all(f"--resnapshot {shop.database}.{name}" in text for name, text in failed.items())
    assert shop.stored("id, n", "good") == [(1, 1), (3, 3)]
    assert shop.stored("id, n", "partial") == [(1, 1), (2, 1)]
    # The log is read for the good table from a place before further bad events, and in several windows.
    shop.sql("insert into good (id, n) values (2, 4)")
    change(shop, names)
    shop.sql("flush binary logs", "insert into good (id, n) values (5, 5)")
    shop.settings["max_log_bytes"] = "1"
    remedy = tuple(f"{shop.database}.{name}" for name in BAD_EVENTS)
    assert shop.run(resnapshot=remedy, run_id="again").status is JobStatus.COMMITTED
    for name in names:
        assert shop.stored("id, n", name) == shop.source("id, n", name), name


def test_rows_with_an_empty_key_are_dead_letters_or_get_a_key(maria: Shop) -> None:
    """apache/hudi#6404: the row is in the snapshot and in the log, so a new snapshot does not help."""
    maria.sql("create table t (id varchar(9) primary key, n int)", "insert into t values ('', 1), ('a', 1)")
    with pytest.raises(UserError, match=r"1 bad record.*max_bad_records.*or give them a key in the source"):
        maria.run()
    maria.settings["max_bad_records"] = 1
    report = maria.run()
    assert (report.status, report.bad_records) == (JobStatus.COMMITTED, 1)
    assert maria.stored("id, n") == [("a", 1)]
    (letter,) = (maria.root / "lake_dead_letters").rglob("*.json")
    assert '\\"n\\":1' in letter.read_text() and f"{maria.database}.t" in letter.read_text()
    maria.sql("update t set n = 2")
    assert maria.run().bad_records == 1
    # The other remedy of the message. The delete of the old key concerns no stored row.
    maria.settings["max_bad_records"] = 0
    maria.sql("update t set id = 'b' where id = ''")
    report = maria.run()
    assert (report.status, report.bad_records) == (JobStatus.COMMITTED, 0)
    assert maria.stored("id, n") == [("a", 2), ("b", 2)]


def test_snapshot_waits_for_prepared_transactions_whose_rows_the_log_has_already(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """block/spirit#1079, percona/percona-xtrabackup#689."""
    monkeypatch.setattr(server, "_WAIT_S", 0.0)
    shop.sql("grant xa_recover_admin on *.* to reader" if shop.server.kind == "mysql" else "select 1")
    shop.sql("create table t (id int primary key)", "insert into t values (1)")
    shop.sql("xa start 'open'", "insert into t values (2)", "xa end 'open'", "xa prepare 'open'")
    try:
        with pytest.raises(OpenTransactionsError, match="XA COMMIT or XA ROLLBACK"):
            shop.run()
    finally:
        shop.sql("xa commit 'open'")
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("id") == [(1,), (2,)]


def test_changes_without_the_key_in_postgres_stop_their_table_until_it_is_read_again(
    spark: SparkSession, postgres: PgServer, tmp_path: Path
) -> None:
    """apache/flink-cdc#732: the replica identity was too small for a while."""
    shop = PgShop(spark, postgres.database(), tmp_path)
    for name in ("narrow", "good"):
        shop.sql(f"create table {name} (id int primary key, code int not null unique)")
        shop.sql(f"insert into {name} values (1, 1), (2, 2)")
    shop.settings |= {"tables": ["public.*"], "into": "{table}"}
    shop.table_settings = {}
    shop.run()
    shop.sql("alter table narrow replica identity using index narrow_code_key")
    shop.sql(
        "update narrow set code = 5 where id = 1", "delete from narrow where id = 2", "delete from good where id = 2"
    )
    shop.sql("alter table narrow replica identity default")
    failed = failures(shop.run())
    assert "--resnapshot public.narrow" in failed["narrow"]
    assert shop.stored("id, code", "good") == [(1, 1)]
    assert shop.run(resnapshot=("public.narrow",), run_id="again").status is JobStatus.COMMITTED
    shop.sql("insert into narrow values (3, 3)")
    shop.run()
    assert shop.stored("id, code", "narrow") == shop.source("id, code", "narrow")


def test_change_of_an_append_only_table_is_passed_by_a_new_start(maria: Shop) -> None:
    """Altinity/clickhouse-sink-connector#254: `snapshot: never` has no rows to read again."""
    maria.sql("create table t (n int)", "insert into t values (0)")
    maria.table_settings = {"record_key": ["_source_position"]}
    maria.settings |= {"without_key": "append", "snapshot": "never", "metadata": ["position"]}
    maria.run()
    maria.sql("insert into t values (1)", "update t set n = 2 where n = 1")
    with pytest.raises(UserError, match=r"has an update.*--resnapshot"):
        maria.run()
    maria.run(resnapshot=(f"{maria.database}.t",), run_id="again")
    maria.sql("insert into t values (3)")
    maria.run()
    assert maria.stored("n") == [(3,)]
