"""The log of a source starts again behind the checkpoint: after RESET MASTER, or on a server restored from a backup."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import SnapshotNeededError, UserError
from lakehouse.platform.ingest.run import CHECKPOINT
from lakehouse.platform.sources.binlog.dump import LogRead, read_changes
from lakehouse.platform.sources.binlog.positions import BinlogPosition
from lakehouse.platform.sources.mysql import history as history_module
from lakehouse.platform.sources.mysql.connection import Questions, connect
from lakehouse.platform.sources.mysql.history import LogHistory
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.sources.mysql_connection import mysql_access
from tests.kafka.test_kafka_runs import Topic
from tests.support.kafka import Broker
from tests.support.mysql import DatabaseServer, mysql_server
from tests.support.mysql_ingest import Shop
from tests.support.postgres import PgShop, postgres_server

pytestmark = pytest.mark.spark
RESTARTED = r"[Tt]he last commit has the position .*, and the log ends at .*--full-refresh"


@pytest.fixture
def shop(spark: SparkSession, database_server: DatabaseServer, tmp_path: Path) -> Shop:
    return Shop(spark, database_server, tmp_path)


def filled(shop: Shop) -> Shop:
    """Ingest a table of three rows, each in a transaction of its own."""
    shop.sql("create table t (id int primary key, n int)", *(f"insert into t values ({n}, 0)" for n in range(3)))
    assert shop.run().status is JobStatus.COMMITTED
    return shop


def assert_refused_until_refreshed(shop: Shop) -> None:
    """Assert that a run fails, and that a full refresh reads all rows."""
    with pytest.raises(SnapshotNeededError, match=RESTARTED):
        shop.run()
    assert shop.run(full_refresh=True, run_id="again").status is JobStatus.COMMITTED
    assert shop.stored("id, n") == shop.source("id, n")


def test_binlog_with_fewer_transactions_after_reset_is_refused(shop: Shop) -> None:
    """airbytehq/airbyte#85783: RESET MASTER makes a run report success without rows."""
    filled(shop)
    shop.server.run("reset master")
    shop.sql("insert into t values (4, 0)")
    assert_refused_until_refreshed(shop)


def test_binlog_that_has_passed_the_position_after_reset_is_refused(shop: Shop) -> None:
    """airbytehq/airbyte#85783: the GTIDs up to the position belong to other transactions after RESET MASTER."""
    filled(shop)
    shop.server.run("flush binary logs", "reset master")
    shop.sql(*(f"insert into t values ({n}, 0)" for n in range(4, 60)), "delete from t where id = 1")
    assert_refused_until_refreshed(shop)
    shop.sql("update t set n = n + 1")
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("id, n") == shop.source("id, n")


def test_purged_files_do_not_refuse_the_position(shop: Shop) -> None:
    """airbytehq/airbyte#6425: a file that was deleted by its age holds nothing that the table lacks."""
    filled(shop)
    shop.server.run("flush binary logs")
    ((newest, *_),) = shop.server.query("show binary logs")[-1:]
    shop.server.run(f"purge binary logs to '{newest}'")
    shop.sql("update t set n = 1 where id = 2")
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("id, n") == shop.source("id, n")


def test_checkpoint_of_an_earlier_release_continues_and_sees_a_shorter_log(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """airbytehq/airbyte#85783: positions without the time of their file are compared by GTIDs and files."""
    monkeypatch.setattr(history_module, "_COMMITTED_S", 0.0)
    filled(shop)
    value = json.loads(shop.checkpoint()["position"]["text"])
    assert value.pop("created_s") > 0
    earlier = BinlogPosition.from_json(json.dumps(value))
    access = mysql_access("mysql_default", shop.server.connection)
    server = Questions(access)
    with closing(server):
        history = LogHistory(server, value["flavor"], (54_000, 54_999))
        history.require(earlier)
        shop.server.run("reset master")
        with pytest.raises(SnapshotNeededError, match=r"binlog\.000001 ends at|its newest file is binlog\.000001"):
            history.require(earlier)
        with pytest.raises(SnapshotNeededError, match="it does not have the transactions"):
            history.require(replace(earlier, file="", offset=0))


def test_file_that_is_replaced_during_a_run_ends_the_read(shop: Shop) -> None:
    """airbytehq/airbyte#85783: RESET MASTER between the check of the position and the read of the log."""
    filled(shop)
    position = BinlogPosition.from_json(shop.checkpoint()["position"]["text"])
    access = mysql_access("mysql_default", shop.server.connection)
    for created_s, is_refused in ((position.created_s, False), (position.created_s + 1, True)):
        read = LogRead(start=replace(position, created_s=created_s), server_id=54_001, wants=lambda _: True)
        with pytest.raises(SnapshotNeededError, match="has replaced") if is_refused else nullcontext():
            assert list(read_changes(partial(connect, access), read))[-1].position.created_s == created_s


def test_server_restored_from_an_older_copy_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """airbytehq/airbyte#85783: a copy of the data directory brings back the server's UUID and an older log."""
    with mysql_server() as server:
        shop = Shop(spark, server, tmp_path)
        shop.sql("create table t (id int primary key, n int)", "insert into t values (0, 0)")
        server.stop()
        subprocess.run(["cp", "-a", server.place / "data", server.place / "copy"], check=True)
        server.start()
        shop.sql("insert into t values (1, 0), (2, 0)")
        shop.run()
        server.stop()
        shutil.rmtree(server.place / "data")
        (server.place / "copy").rename(server.place / "data")
        server.start()
        # As many transactions as were lost.
        shop.sql("insert into t values (7, 0)", "insert into t values (8, 0)")
        assert_refused_until_refreshed(shop)


def test_postgres_restored_from_an_older_copy_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """airbytehq/airbyte#85783: the slot of the copy exists, and its log ends before the position of the table."""
    with postgres_server() as server:
        shop = PgShop(spark, server.database(), tmp_path)
        shop.sql("create table t (id int primary key, n int)", "insert into t values (0, 0)")
        shop.run()
        running = server.running
        running.stop(signal.SIGINT)
        subprocess.run(["cp", "-a", running.place / "data", running.place / "copy"], check=True)
        running.start()
        shop.sql("insert into t select n, 0 from generate_series(1, 5000) n")
        shop.run()
        running.stop(signal.SIGINT)
        shutil.rmtree(running.place / "data")
        (running.place / "copy").rename(running.place / "data")
        running.start()
        shop.sql("insert into t values (7, 7)")
        assert_refused_until_refreshed(shop)


def test_topic_created_again_is_refused_with_both_positions(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """apache/hudi#5400: offsets that belong to other messages must fail the run; the spec decides what follows."""
    topic = Topic(spark, kafka, tmp_path, partitions=1)
    topic.rows_of(0, 4)
    topic.run()
    before = json.loads(topic.extra()[CHECKPOINT])["topic_id"]
    kafka.delete_topic(topic.name)
    kafka.topic(1, topic.name)
    # More messages than before, so the offsets of the checkpoint exist.
    topic.rows_of(10, 16)
    places = rf"The last commit has the topic id {before} and the next offsets {{0: 4}}, .* the offsets {{0: 0-6}}"
    with pytest.raises(UserError, match=places):
        topic.run()
    assert topic.run(full_refresh=True).rows == 6
    assert topic.keys() == [*range(4), *range(10, 16)]
    assert topic.run().status is JobStatus.NOTHING_TO_DO


def test_table_ordered_by_offset_refuses_a_topic_created_again(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    """apache/hudi#1653: with `reset: earliest`, stored rows with larger offsets would win over new messages."""
    topic = Topic(spark, kafka, tmp_path, partitions=1)
    topic.spec = replace(
        topic.spec, ordering=("_kafka_offset",), schema={**topic.spec.schema, "_kafka_offset": "bigint"}
    )
    topic.change(metadata=("offset",))
    topic.rows_of(0, 4)
    topic.run()
    kafka.delete_topic(topic.name)
    kafka.topic(1, topic.name)
    topic.send({"id": 3, "name": "new"})
    topic.change(reset="earliest")
    for full_refresh in (False, True):
        with pytest.raises(UserError, match=r"ordered by _kafka_offset.* another location"):
            topic.run(full_refresh=full_refresh)
    topic.spec = replace(topic.spec, location=str(tmp_path / "again"))
    assert topic.run().rows == 1
    assert topic.table.scan(columns=["name"]).to_arrow().to_pylist() == [{"name": "new"}]
