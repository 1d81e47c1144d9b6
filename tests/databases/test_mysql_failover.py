"""Ingestion goes on from another server of a group after a failover, by the GTIDs in the checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.contracts.job import JobStatus
from tests.support.mysql import ADMIN, ADMIN_PASSWORD, DatabaseServer, mysql_server
from tests.support.mysql_ingest import Shop
from tests.support.postgresql import HOST
from tests.support.waiting import until

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def group() -> Iterator[tuple[DatabaseServer, DatabaseServer]]:
    """A MySQL server and its replica."""
    with ExitStack() as stack:
        first = stack.enter_context(mysql_server())
        second = stack.enter_context(mysql_server(server_id="2"))
        second.run(
            f"change master to master_host='{HOST}', master_port={first.port}, master_user='{ADMIN}', "
            f"master_password='{ADMIN_PASSWORD}', master_auto_position=1, get_master_public_key=1",
            "start slave",
        )
        yield first, second


def test_run_continues_on_the_replica_after_a_failover(
    spark: SparkSession, group: tuple[DatabaseServer, DatabaseServer], mariadb: DatabaseServer, tmp_path: Path
) -> None:
    first, second = group
    shop = Shop(spark, first, tmp_path)
    shop.sql(
        "create table t (id int primary key, n int)",
        f"insert into t values {', '.join(f'({number}, 0)' for number in range(200))}",
    )
    # The log of the first server is in a later file than that of its replica, so places in files do not compare.
    shop.sql("flush binary logs", "flush binary logs", "flush binary logs")
    shop.run()
    shop.sql("update t set n = 1 where id = 1")
    assert until(lambda: second.query(f"select n from {shop.database}.t where id = 1") == [(1,)])
    second.run("stop slave sql_thread")
    shop.sql("update t set n = 2 where id = 2", "delete from t where id = 3")
    shop.run()
    # The replica lacks transactions of the table.
    shop.server = second
    with pytest.raises(RetryableError, match=r"does not have the transactions [0-9a-f-]+:\d+.* yet"):
        shop.run()
    second.run("start slave sql_thread")
    first.run(f"update {shop.database}.t set n = 4 where id = 4")
    assert until(lambda: second.query(f"select n from {shop.database}.t where id = 4") == [(4,)])
    first.stop(signal.SIGKILL)
    second.run("stop slave", "reset slave all")
    shop.sql(
        "update t set n = 5 where id in (4, 5)", "insert into t values (3, 33)", "update t set id = 999 where id = 6"
    )
    report = shop.run()
    assert report.status is JobStatus.COMMITTED
    # Only changes after the position were read: the update of both servers, an insert, and a row under two keys.
    assert (report.updates, report.inserts, report.deletes) == (2, 2, 1)
    assert shop.stored("id, n") == shop.source("id, n")
    assert shop.run().status is JobStatus.NOTHING_TO_DO
    # Numbers of MariaDB do not say which server made a transaction.
    shop.server = mariadb
    mariadb.run(f"create database {shop.database}", f"create table {shop.database}.t (id int primary key, n int)")
    with pytest.raises(UserError, match="whose log has other places"):
        shop.run()
    first.start()
