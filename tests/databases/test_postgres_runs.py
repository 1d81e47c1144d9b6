"""Complete ingest runs from PostgreSQL through Spark: the table is as the source is at the end of the log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import RetryableError, SnapshotNeededError, UserError
from lakehouse.platform.sources.databases.source import EVENTS, StagedSource
from lakehouse.platform.sources.postgres.connection import Questions
from lakehouse.platform.sources.postgres.server import PostgresServer
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.contracts.lineage import LINEAGE
from lakehouse.spec.sources.postgres_connection import postgres_access
from tests.support.mysql_ingest import append_beside_inserts, read_beside_writers
from tests.support.postgres import PgServer, PgShop
from tests.support.waiting import until

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(spark: SparkSession, postgres: PgServer, tmp_path: Path) -> PgShop:
    return PgShop(spark, postgres.database(), tmp_path)


def test_snapshot_and_log_in_parallel_equal_the_source_at_the_end(shop: PgShop) -> None:
    shop.sql("create sequence moved start 1000000")
    read_beside_writers(shop)
    # The slot is where the newest commit is.
    assert shop.slot() == (shop.checkpoint()["position"]["order"], False)


def big(text: str) -> str:
    """Return an expression of a value that is stored out of line."""
    return f"repeat('{text}', 30000)"


def test_values_that_the_log_lacks_are_kept_or_read_again(shop: PgShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sql(
        "create table t (id int primary key, n int, x text, y bytea, z int[])",
        "alter table t alter x set storage external, alter y set storage external, alter z set storage external",
        f"insert into t select n, 0, {big('abc')} || n, decode({big('0f')}, 'hex'), array_fill(n, array[9000]) "
        "from generate_series(1, 9) n",
    )
    fetched: list[int] = []
    unknown = StagedSource.unknown_keys
    monkeypatch.setattr(
        StagedSource,
        "unknown_keys",
        lambda source, most: fetched.append(len(found := unknown(source, most))) or found,
    )
    shop.settings |= {"chunk_rows": 4, "max_chunks": 2}
    shop.table_settings = {"type": "MERGE_ON_READ", "record_key": ["id"]}
    with shop.connected() as first:
        # The log has no whole row of these changes, which are made when the first position is noted.
        inner = PostgresServer.low_watermark
        monkeypatch.setattr(
            PostgresServer,
            "low_watermark",
            lambda *given: (inner(*given), first("update t set n = 1 where id in (1, 9)"))[0],
        )
        shop.run()
    columns = "id, n, x, y, z"
    source = [(*row[:3], bytes(row[3]), text_of(row[4])) for row in shop.source(columns)]
    assert shop.stored(columns) == source
    assert shop.table().config.merge_rule.partial == "FILL_UNAVAILABLE"
    # The commit has placeholders: no row is read again.
    fetched.clear()
    shop.sql("update t set n = n + 5 where id < 4", "update t set n = 7 where id = 5")
    shop.run()
    assert fetched == [0]
    # Keys are changed, twice, and a new row takes the old key; a row has its value in the window only.
    shop.sql(
        "update t set id = 100 where id = 1",
        "update t set id = 101, n = 3 where id = 100",
        "insert into t values (1, 1, 'new', null, null)",
        "update t set id = 9 + 1 where id = 9",
        f"insert into t values (20, 1, {big('in')}, null, null)",
        "update t set n = 2 where id = 20",
        "delete from t where id = 3",
        "update t set id = 3 where id = 4",
    )
    shop.run()
    assert fetched[1:] == [3, 0]
    source = [(*row[:3], row[3] and bytes(row[3]), text_of(row[4])) for row in shop.source(columns)]
    assert shop.stored(columns) == source
    assert shop.run().status is JobStatus.NOTHING_TO_DO


def text_of(values: list[int] | None) -> str | None:
    """Return an array as the server prints it."""
    return None if values is None else "{" + ",".join(map(str, values)) + "}"


def test_expressions_of_a_spec_have_the_values_that_the_log_lacks(
    shop: PgShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINEAGE, "true")
    shop.sql(
        "create table t (id int primary key, n int, x text)",
        "alter table t alter x set storage external",
        f"insert into t values (1, 1, {big('abc')}), (2, 2, {big('de')})",
    )
    shop.run()
    shop.sql("update t set n = 3 where id = 1")
    # This table was made without placeholders in expressions.
    shop.root = shop.root / "selected"
    shop.settings |= {"slot": f"{shop.server.name}_selected"}
    shop.settings["select"] = ["*", "length(x) as size"]
    shop.run()
    shop.sql("update t set n = 4 where id = 1", "update t set n = 5 where id = 2")
    report = shop.run()
    assert report.lineage is not None and report.lineage.unknown_columns == 0
    columns = {one.name: [source.field for source in one.sources] for one in report.lineage.outputs[0].columns}
    assert (columns["n"], columns["size"]) == (["n"], ["x"])
    assert shop.stored("id, n, size") == [(1, 4, 90000), (2, 5, 60000)]


def test_columns_of_the_source_are_followed_and_new_values_are_read_again(shop: PgShop) -> None:
    shop.sql("create table t (id int primary key, a int, gone int)", "insert into t values (1, 1, 1), (2, 2, 2)")
    shop.run()
    shop.sql(
        "update t set a = 9 where id = 2",
        "alter table t add column b varchar(10)",
        "insert into t values (3, 3, 3, 'b')",
        "alter table t alter a type bigint, drop column gone",
        "insert into t values (4, 5000000000, 'c')",
        "update t set b = 'd' where id = 1",
        # No change follows this statement, so the log does not have it.
        "alter table t add column c int not null default 7",
    )
    report = shop.run()
    assert report.status is JobStatus.COMMITTED
    assert shop.stored("id, a, b, c") == shop.source("id, a, b, c")
    assert shop.stored("c") == [(7,)] * 4
    shop.sql("update t set b = 'x' where id = 1", "alter table t alter b type int using length(b)")
    shop.run()
    shop.sql("alter table t rename b to bb", "update t set bb = 5 where id = 2")
    shop.run()
    assert shop.stored("id, a, bb, c") == shop.source("id, a, bb, c")


def test_tables_that_are_emptied_replaced_or_dropped_lose_their_old_rows(shop: PgShop) -> None:
    shop.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    shop.run()
    shop.sql("insert into t values (3, 3)", "truncate t", "insert into t values (4, 4)")
    shop.run()
    assert shop.stored("id, n") == [(4, 4)]
    assert "truncate" in shop.table().commits()[-1][1].extra[EVENTS]
    shop.sql(
        "create table t_new (id int primary key, n int)",
        "insert into t_new values (4, 5), (6, 6)",
        "alter table t rename to t_old",
        "alter table t_new rename to t",
        "insert into t values (7, 7)",
    )
    shop.run()
    assert shop.stored("id, n") == [(4, 5), (6, 6), (7, 7)]
    shop.sql("drop table t")
    shop.run()
    assert "drop" in shop.table().commits()[-1][1].extra[EVENTS]
    assert shop.run().status is JobStatus.NOTHING_TO_DO
    assert len(shop.stored("id, n")) == 3
    shop.sql("create table t (id int primary key, n int)", "insert into t values (8, 8)")
    shop.run()
    assert shop.stored("id, n") == [(8, 8)]
    shop.settings["drop"] = "delete"
    shop.sql("drop table t")
    shop.run()
    assert shop.stored("id, n") == []
    shop.sql("create table t (id int primary key, n int)", "insert into t values (8, 8)")
    shop.run()
    shop.settings["truncate"] = "fail"
    shop.sql("truncate t")
    with pytest.raises(UserError, match=r"TRUNCATE TABLE of .* is in the log"):
        shop.run()
    assert shop.stored("id, n") == [(8, 8)]


def test_many_tables_have_one_slot_and_refused_ones_keep_no_other_back(shop: PgShop) -> None:
    shop.sql(
        "create table orders (id bigint primary key, total numeric(38, 10))",
        "create table items (code bytea primary key, note text)",
        "create table log_old (id int primary key)",
        "create table events (n int)",
        "create table silent (id int primary key)",
        "alter table silent replica identity nothing",
        "insert into orders values (1, 0.1234567891)",
        "insert into items values ('\\x00ff', 'a')",
    )
    shop.table_settings = {}
    shop.settings = {
        "tables": ["public.*"],
        "exclude": ["public.*_old"],
        "into": "s_{schema}_{table}",
        "slot": shop.server.name,
    }
    report = shop.run()
    parts = {part.table: part for part in report.parts}
    assert report.status is JobStatus.FAILED
    assert parts.keys() == {f"s_public_{name}" for name in ("orders", "items", "events", "silent")}
    messages = {name: part.error.message for name, part in parts.items() if part.error is not None}
    assert messages.keys() == {"s_public_events", "s_public_silent"}
    assert "has no primary key" in messages["s_public_events"]
    assert "ALTER TABLE public.silent REPLICA IDENTITY" in messages["s_public_silent"]
    # Refused tables are not published, so the application may change them.
    shop.sql("insert into events values (1)", "update events set n = 2", "insert into silent values (1)")
    shop.sql("delete from silent", "update items set note = 'b'", "delete from orders", "drop table silent")
    shop.settings |= {"exclude": ["public.*_old", "public.events"]}
    report = shop.run()
    assert report.status is JobStatus.COMMITTED
    assert shop.stored("code, note", "s_public_items") == [("00FF", "b")]
    assert shop.stored("id", "s_public_orders") == []
    assert shop.slot()[0] == shop.checkpoint("s_public_items")["position"]["order"]
    lags = {(lag.source, lag.unit, lag.is_kept) for part in report.parts for lag in part.lag}
    assert lags == {(f"postgres:slot {shop.server.name}", "bytes kept", True)}


def test_rows_of_a_table_without_key_are_appended_once(shop: PgShop) -> None:
    shop.sql("create table t (n int)", "insert into t values (0)")
    shop.table_settings = {"record_key": ["_source_position"]}
    shop.settings |= {"without_key": "append", "snapshot": "never", "metadata": ["position"]}
    shop.run()
    shop.sql("insert into t values (1), (1)")
    with shop.connected() as session:
        # This transaction begins before the end of a window, and commits after it.
        session("begin", "insert into t values (4)")
        shop.run()
        session("commit")
    shop.sql("insert into t values (2)")
    shop.run()
    assert shop.stored("n") == [(1,), (1,), (2,), (4,)]
    shop.sql("update t set n = 3 where n = 2", "delete from t")
    assert shop.run().status is JobStatus.NOTHING_TO_DO


def test_snapshot_of_a_table_without_key_has_each_row_once_while_rows_are_added(shop: PgShop) -> None:
    append_beside_inserts(shop)
    # A new snapshot replaces the rows; the log does not have updates of this table.
    shop.sql("update t set n = 100000 where n = 5", "insert into t values (-4)")
    shop.run()
    assert (100000,) not in shop.stored("n")
    shop.run(resnapshot=("public.t",), run_id="again")
    assert shop.stored("n") == shop.source("n")
    shop.sql("insert into t values (-5)", "truncate t", "insert into t values (-6)")
    shop.run()
    assert shop.stored("n") == [(-6,)]


def test_lost_slot_fails_the_run_until_all_tables_are_read_again(shop: PgShop) -> None:
    shop.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    shop.run()
    shop.server.run(f"select pg_drop_replication_slot('{shop.server.name}')")
    shop.sql("delete from t where id = 2", "insert into t values (3, 3)")
    with pytest.raises(SnapshotNeededError, match=r"does not exist any more.* --full-refresh"):
        shop.run()
    shop.run(full_refresh=True)
    assert shop.stored("id, n") == [(1, 1), (3, 3)]
    shop.sql("update t set n = 4 where id = 1")
    # Another reader moves the slot.
    shop.server.run(f"select pg_replication_slot_advance('{shop.server.name}', pg_current_wal_lsn())")
    with pytest.raises(SnapshotNeededError, match=r"has been moved .* --resnapshot"):
        shop.run()
    shop.run(resnapshot=("public.t",), run_id="again")
    assert shop.stored("id, n") == [(1, 4), (3, 3)]
    assert shop.run(resnapshot=("public.t",), run_id="again").status is JobStatus.NOTHING_TO_DO


def runs_at_once(shop: PgShop) -> tuple[list[IngestReport | RetryableError], list[threading.Thread]]:
    """Return threads that each run the ingestion, and the list of what they return or raise."""
    reports: list[IngestReport | RetryableError] = []

    def run() -> None:
        try:
            reports.append(shop.run())
        except RetryableError as error:
            reports.append(error)

    return reports, [threading.Thread(target=run) for _ in range(2)]


def test_two_runs_at_once_apply_each_change_once(shop: PgShop) -> None:
    shop.sql("create table t (id int primary key, n int)", "insert into t select n, 0 from generate_series(1, 50) n")
    shop.settings |= {"chunk_rows": 10, "max_chunks": 1}
    reports, threads = runs_at_once(shop)
    for thread in threads:
        thread.start()
    shop.sql("update t set n = 1 where id < 20", "delete from t where id = 30", "update t set id = 99 where id = 5")
    for thread in threads:
        thread.join()
    assert any(isinstance(one, IngestReport) and one.status is JobStatus.COMMITTED for one in reports)
    shop.run()
    assert shop.stored("id, n") == shop.source("id, n")


def test_slot_that_another_process_creates_is_waited_for_or_named(shop: PgShop) -> None:
    shop.sql("create table other (n int)", "create table t (id int primary key, n int)")
    shop.sql("insert into t select n, 0 from generate_series(1, 20) n")
    reports, threads = runs_at_once(shop)
    name = shop.server.name
    with shop.connected() as session:
        # The server creates no slot before the end of the transactions that are open.
        session("begin", "insert into other values (1)")
        threads[0].start()
        found = "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s"
        assert until(lambda: shop.server.query(found, (name,)) == [(None,)])
        threads[1].start()
        waits = "select 1 from pg_locks where locktype = 'advisory' and not granted"
        assert until(lambda: bool(shop.server.query(waits)))
        session("commit")
    for thread in threads:
        thread.join()
    # A run that lost the race for a commit says so, and none fails for good.
    assert len(reports) == 2
    assert any(isinstance(one, IngestReport) and one.status is JobStatus.COMMITTED for one in reports)
    shop.run()
    assert shop.stored("id, n") == shop.source("id, n")
    # A program that does not take the lock of this package.
    shop.server.run(f"select pg_drop_replication_slot('{name}')")
    with shop.connected() as session, shop.connected() as creator:
        session("begin", "insert into other values (2)")
        thread = threading.Thread(
            target=creator, args=(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')",)
        )
        thread.start()
        assert until(lambda: shop.server.query(found, (name,)) == [(None,)])
        with pytest.raises(
            RetryableError, match=rf"process \d+ of the server creates the replication slot '{name}' now"
        ):
            shop.run(full_refresh=True)
        with pytest.raises(SnapshotNeededError, match=r"is a new one, which process \d+ creates now.* --full-refresh"):
            shop.run()
        session("commit")
        thread.join()
    shop.run(full_refresh=True)
    assert shop.stored("id, n") == shop.source("id, n")


def test_name_that_exists_already_is_tried_again_and_a_missing_right_is_not(shop: PgShop) -> None:
    questions = Questions(postgres_access("postgres_default", shop.server.connection))
    shop.sql("create table t (id int primary key)", "create publication twice for table t")
    with pytest.raises(RetryableError, match=r"42710.* already exists"):
        questions.rows("create publication twice for table t")
    with pytest.raises(UserError, match="42P01"):
        questions.rows("select * from missing")
    questions.close()


def test_table_waits_for_transactions_that_changed_it_before_it_was_published(
    shop: PgShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql("create table a (id int primary key)", "insert into a values (1)")
    shop.table_settings = {}
    shop.settings = {"tables": ["public.*"], "into": "{table}", "slot": shop.server.name}
    shop.run()
    shop.sql("create table b (id int primary key, n int)", "insert into b values (1, 1), (2, 2)")
    changes = ("insert into b values (3, 3)", "update b set n = 10 where id = 1", "delete from b where id = 2")
    monkeypatch.setattr("lakehouse.platform.sources.postgres.server._OLDER_S", 0.0)
    with shop.connected() as session:
        session("begin", *changes)
        shop.sql("insert into a values (2)")
        report = shop.run()
        ((pid,),) = shop.server.query("select distinct pid from pg_locks where relation = 'b'::regclass")
        session("commit")
    # The other table is read meanwhile. The log never has these changes.
    assert shop.stored("id", "a") == [(1,), (2,)]
    assert report.error is not None and report.error.retryable
    assert f"public.b have been open for more than 0 seconds (processes {pid})" in report.error.message
    shop.sql("insert into b values (4, 4)")
    shop.run()
    assert shop.stored("id, n", "b") == shop.source("id, n", "b") == [(1, 10), (3, 3), (4, 4)]
    # Someone takes the table out of the publication and adds it again: the log has a gap.
    publication = f'alter publication "{shop.server.name}"'
    shop.sql(f"{publication} drop table b", "delete from b where id = 3", f"{publication} add table b")
    with shop.connected() as session:
        session("begin", "update b set n = 5 where id = 4")
        assert "public.b have been open" in str(shop.run().error)
        session("commit")
    shop.run()
    assert shop.stored("id, n", "b") == shop.source("id, n", "b") == [(1, 10), (4, 5)]
    # The log is read from the position of the other table, and changes nothing.
    assert shop.run().status is JobStatus.NOTHING_TO_DO


def test_slot_that_is_dropped_during_a_run_fails_it_and_leaves_no_gap(
    shop: PgShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    shop.run()
    shop.sql("delete from t where id = 2")
    inner, drop = PostgresServer.resumed, f"select pg_drop_replication_slot('{shop.server.name}')"
    monkeypatch.setattr(PostgresServer, "resumed", lambda *given: (inner(*given), shop.server.run(drop))[0])
    with pytest.raises(SnapshotNeededError, match=r"replication slot .* does not exist.* --full-refresh"):
        shop.run()
    monkeypatch.undo()
    for _ in range(2):
        # Each run says so, and no run makes a slot that lacks the change.
        with pytest.raises(SnapshotNeededError, match=r"does not exist any more.* --full-refresh"):
            shop.run()
    assert shop.stored("id, n") == [(1, 1), (2, 2)]
    shop.run(full_refresh=True)
    assert shop.stored("id, n") == [(1, 1)]
