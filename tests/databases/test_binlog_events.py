"""Events of the log beside plain changes of rows: whole transactions, DDL, settings of the server and of sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from lakehouse.errors import RetryableError, SnapshotNeededError, UnsupportedError, UserError
from lakehouse.platform.sources.binlog.changes import ChangeBatch, SchemaEvent, TableName
from lakehouse.platform.sources.binlog.positions import BinlogPosition, covers
from tests.support.binlog import Log, rows_of
from tests.support.mysql import DatabaseServer
from tests.support.waiting import until

T = "create table t (id int primary key, v varchar(20), w int)"


@contextmanager
def setting(server: DatabaseServer, name: str, value: str) -> Iterator[None]:
    """Change a global variable for the time of a `with` block."""
    before = server.query(f"select @@global.{name}")[0][0]
    server.run(f"set global {name} = {value}")
    try:
        yield
    finally:
        server.run(f"set global {name} = {before!r}")


def state(changes: list[ChangeBatch | SchemaEvent], key: str = "id") -> dict[Any, dict[str, Any]]:
    """Return the rows that remain after all changes."""
    rows: dict[Any, dict[str, Any]] = {}
    for change in changes:
        if isinstance(change, SchemaEvent):
            if change.kind in ("truncate", "drop"):
                rows.clear()
            continue
        for kind, row in rows_of(change):
            if kind == "delete":
                del rows[row[key]]
            else:
                rows[row[key]] = row
    return rows


def kinds(changes: list[ChangeBatch | SchemaEvent]) -> list[str]:
    """Return the kinds of the statements that changed tables."""
    return [change.kind for change in changes if isinstance(change, SchemaEvent)]


def test_transaction_in_the_file_is_read_before_its_gtid_is_among_those_of_the_server(
    database_server: DatabaseServer,
) -> None:
    if database_server.kind != "mysql":
        pytest.skip("MariaDB tells the place of a snapshot")
    log = Log(database_server)
    log.run("create table t (n int)")
    before = log.now()
    start = replace(before, file="", offset=0)
    assert log.batches(start=start, until=before) == []
    log.run("insert into t values (7)")
    # The server says so while the transaction is written and not yet committed.
    (batch,) = log.batches(start=start, until=replace(log.now(), gtid=before.gtid))
    assert rows_of(batch) == [("insert", {"n": 7})]


def test_only_whole_transactions_are_given_with_the_place_after_them(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "begin", "insert into t values (1, 'a', 1)", "insert into t values (2, 'b', 2)", "commit")
    middle = log.now()
    log.run("begin", "update t set w = 3", "savepoint s", "delete from t", "rollback to s", "commit")
    log.run("begin", "delete from t", "rollback")
    decoded = list(log.read(batch_bytes=1))
    assert [one.transactions for one in decoded] == [1, 1, 1]
    assert [one.rows for one in decoded] == [0, 2, 2]
    second, last = decoded[1].position, decoded[2].position
    assert (second.gtid, second.file, second.offset) == (middle.gtid, middle.file, middle.offset)
    assert covers(last, second) and not covers(second, last)
    (again,) = log.read(start=second)
    assert [rows_of(change) for change in again.changes] == [rows_of(change) for change in decoded[2].changes]
    assert again.changes[0].rows.equals(decoded[2].changes[0].rows)


def test_read_ends_after_the_transaction_that_exceeds_the_limit(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, *(f"insert into t values ({n}, 'x', {n})" for n in range(20)))
    (first,) = log.read(limit_bytes=1500)
    assert 0 < first.rows < 20
    (rest,) = log.read(start=first.position)
    assert first.rows + rest.rows == 20
    assert [row["id"] for one in (first, rest) for row in one.changes[-1].rows.to_pylist()] == list(range(20))
    (nothing,) = log.read(start=rest.position)
    assert (nothing.rows, nothing.transactions, nothing.position) == (0, 0, rest.position)


def test_read_continues_by_file_and_offset(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "insert into t values (1, 'a', 1)")
    place = log.now()
    log.run("insert into t values (2, 'b', 2)")
    start = BinlogPosition(flavor=place.flavor, file=place.file, offset=place.offset)
    (decoded,) = log.read(start=start)
    (batch,) = decoded.changes
    assert isinstance(batch, ChangeBatch) and rows_of(batch) == [("insert", {"id": 2, "v": "b", "w": 2})]
    # The GTIDs of the transactions that were read are not all before the place.
    assert decoded.position.gtid == "" and decoded.position.order == log.now().order


def test_read_follows_the_log_into_further_files(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "insert into t values (1, 'a', 1)", "flush binary logs", "insert into t values (2, 'b', 2)")
    log.run("flush binary logs", "flush binary logs", "insert into t values (3, 'c', 3)")
    (batch,) = log.batches()
    places = batch.rows["_position"].to_pylist()
    assert batch.rows["id"].to_pylist() == [1, 2, 3]
    assert places == sorted(set(places))
    assert log.start.order < places[0] < places[-1] <= log.end.order


def test_place_in_a_file_without_transactions_is_reached(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "insert into t values (1, 'a', 1)", "flush binary logs")
    assert until(lambda: next(iter(log.read())).position.order == log.now().order)
    by_gtid = BinlogPosition(flavor=log.start.flavor, gtid=log.start.gtid)
    log.run("flush binary logs")
    # MariaDB writes a checkpoint event into the new file in the background.
    assert until(lambda: next(iter(log.read(start=by_gtid))).position.order == log.now().order)
    (again,) = log.read(start=by_gtid)
    assert again.rows == 1
    (nothing,) = log.read(start=again.position)
    assert (nothing.position, nothing.transactions) == (again.position, 0)


def test_place_of_another_server_is_not_compared_by_its_file(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    start = replace(log.start, file="binlog.000999")
    log.run(T, "insert into t values (1, 'a', 1)")
    (batch,) = log.batches(start=start)
    assert batch.rows.num_rows == 1


def test_transactions_larger_than_a_packet_and_a_batch_are_read(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run("set session max_error_count = 0", "create table t (id int primary key, v longblob)")
    with closing(database_server.connect(log.database)) as session, session.cursor() as cursor:
        cursor.execute("begin")
        cursor.execute("insert into t values (0, repeat('x', 9000000))")
        cursor.execute("update t set v = concat(repeat('y', 9000000), 'z')")
        cursor.execute(
            "insert into t (id) with recursive n as (select 1 as i union all select i + 1 from n "
            "where i < 900) select i from n"
        )
        cursor.execute("commit")
    (batch,) = log.batches(batch_bytes=1 << 20)
    assert batch.rows.num_rows == 902
    assert len(batch.rows["v"][1].as_py()) == 9_000_001
    assert batch.rows["v"][1].as_py().endswith(b"yz")


def test_statements_that_change_tables_come_between_the_changes(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(
        T,
        "insert into t values (1, 'a', 1)",
        "alter table t add column x int null, add index (w)",
        "insert into t values (2, 'b', 2, 22)",
        "alter table t add column y int not null default 7",
        "alter table t drop column v",
        "rename table t to s",
        "insert into s values (3, 3, 33, 8)",
        "alter table s rename to t",
        "create index i on t (x)",
        "delete from t where id = 1",
        "truncate table t",
        "drop table t",
        T,
    )
    found: list[object] = []
    for change in log.changes():
        if isinstance(change, SchemaEvent):
            found.append(
                (change.kind, change.table.table, change.changes_rows, change.renamed_to and change.renamed_to[1])
            )
        else:
            found.append([(kind, tuple(row.values())) for kind, row in rows_of(change)])
    assert found == [
        ("create", "t", False, None),
        [("insert", (1, "a", 1))],
        ("alter", "t", False, None),
        [("insert", (2, "b", 2, 22))],
        ("alter", "t", True, None),
        ("alter", "t", False, None),
        ("rename", "t", False, "s"),
        [("insert", (3, 3, 33, 8))],
        ("rename", "s", False, "t"),
        [("delete", (1, 1, None, 7))],
        ("truncate", "t", False, None),
        ("drop", "t", False, None),
        ("create", "t", False, None),
    ]


def test_statements_on_partitions_and_databases_say_that_rows_changed(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    parts = "partition by range (id) (partition p0 values less than (10), partition p1 values less than (20))"
    log.run(f"create table t (id int primary key) {parts}", "insert into t values (1), (11)")
    log.run("alter table t truncate partition p0", "alter table t drop partition p1", f"drop database {log.database}")
    changes = log.changes()
    assert kinds(changes) == ["create", "truncate", "truncate", "drop"]
    assert [change.changes_rows for change in changes if isinstance(change, SchemaEvent)] == [False, True, True, False]
    dropped = changes[-1]
    assert isinstance(dropped, SchemaEvent) and dropped.table == TableName(log.database, "*")


def test_tables_that_are_not_wanted_are_left_out(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "create table other (id int primary key, t time(3))", "insert into other values (1, '1:2:3')")
    log.run(
        "begin", "insert into t values (1, 'a', 1)", "insert into other values (2, null)", "commit", "drop table other"
    )
    changes = log.changes(wants=lambda name: name == (log.database, "t"))
    assert kinds(changes) == ["create"]
    assert state(changes) == {1: {"id": 1, "v": "a", "w": 1}}


def test_statement_instead_of_rows_needs_a_snapshot(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "create table other (id int primary key)", "insert into t values (1, 'a', 1)")
    with closing(database_server.connect(log.database)) as session, session.cursor() as cursor:
        cursor.execute("set session binlog_format = 'STATEMENT'")
        cursor.execute("insert into other values (5)")
    wants = {"wants": lambda name: name == (log.database, "t")}
    assert state(log.changes(**wants)) == {1: {"id": 1, "v": "a", "w": 1}}
    with closing(database_server.connect(log.database)) as session, session.cursor() as cursor:
        cursor.execute("set session binlog_format = 'STATEMENT'")
        cursor.execute("update t set v = 'changed' where id = 1")
    with pytest.raises(
        SnapshotNeededError, match=r"changes table shop_\d+\.t by a statement.*binlog_format=ROW"
    ) as caught:
        log.changes(**wants)
    assert caught.value.facts["tables"] == (f"{log.database}.t",)


def test_minimal_images_list_what_they_lack(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "insert into t values (1, 'a', 1), (2, 'b', 2)")
    log.run(
        "set session binlog_row_image = 'MINIMAL'",
        "update t set w = 5 where id = 1",
        "update t set id = 9 where id = 2",
        "insert into t (id) values (3)",
        "delete from t where id = 1",
    )
    (batch,) = log.batches()
    rows = [(kind, row) for kind, row in rows_of(batch)]
    lacks = batch.rows["_unavailable"].to_pylist()
    assert rows[2:] == [
        ("update", {"id": 1, "v": None, "w": 5}),
        ("delete", {"id": 2, "v": None, "w": None}),
        ("insert", {"id": 9, "v": None, "w": None}),
        ("insert", {"id": 3, "v": None, "w": None}),
        ("delete", {"id": 1, "v": None, "w": None}),
    ]
    assert lacks[:3] == [None, None, ["v"]]
    assert (lacks[3], lacks[4], lacks[6]) == (None, ["v", "w"], None)
    # MariaDB writes all columns of an inserted row, MySQL those that the statement names.
    assert lacks[5] in (None, ["v", "w"])


def test_tables_without_primary_key_have_no_key_or_a_declared_one(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run("create table t (a int not null, b int)", "insert into t values (1, 1), (1, 1)")
    log.run("update t set b = 2 limit 1", "delete from t where b = 1", "update t set a = 5")
    (batch,) = log.batches()
    assert batch.key == ()
    assert [kind for kind, _ in rows_of(batch)] == ["insert", "insert", "update", "delete", "update"]
    (batch,) = log.batches(keys={TableName(log.database, "t"): ("a",)})
    assert batch.key == ("a",)
    assert [kind for kind, _ in rows_of(batch)] == ["insert", "insert", "update", "delete", "delete", "insert"]


def test_keys_of_several_columns_and_of_prefixes_are_known(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run("create table t (v int, b varchar(9), a int, primary key (a, b))", "insert into t values (1, 'x', 2)")
    log.run("create table s (v int, b varchar(50), primary key (b(5)))", "insert into s values (1, 'long text')")
    assert {batch.table.table: batch.key for batch in log.batches()} == {"t": ("a", "b"), "s": ("b",)}


def test_names_and_statements_in_other_alphabets_are_read(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(
        "create table `таблица ü` (`ключ` int primary key, `名 前` text)", "insert into `таблица ü` values (1, '値')"
    )
    with closing(database_server.connect(log.database, charset="latin1")) as session, session.cursor() as cursor:
        cursor.execute("create table tü (id int primary key)")
    changes = log.changes()
    created, second = (change for change in changes if isinstance(change, SchemaEvent))
    (rows,) = (change for change in changes if isinstance(change, ChangeBatch))
    assert (created.table.table, second.table.table) == ("таблица ü", "tü")
    assert rows_of(rows) == [("insert", {"ключ": 1, "名 前": "値"})]


def test_log_without_names_of_columns_is_refused(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    level = "'NO_LOG'" if database_server.kind == "mariadb" else "'MINIMAL'"
    with setting(database_server, "binlog_row_metadata", level):
        log.run(T, "insert into t values (1, 'a', 1)")
    with pytest.raises(UserError, match="binlog_row_metadata=FULL"):
        log.changes()


def test_rows_of_a_prepared_xa_transaction_are_refused(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "create table other (id int primary key)")
    log.run("xa start 'a'", "insert into other values (1)", "xa end 'a'", "xa prepare 'a'", "xa commit 'a'")
    log.run("xa start 'b'", "insert into t values (1, 'a', 1)", "xa end 'b'", "xa commit 'b' one phase")
    wants = {"wants": lambda name: name == (log.database, "t")}
    assert state(log.changes(**wants)) == {1: {"id": 1, "v": "a", "w": 1}}
    log.run("xa start 'c'", "insert into t values (2, 'b', 1)", "xa end 'c'", "xa prepare 'c'", "xa rollback 'c'")
    with pytest.raises(UnsupportedError, match="XA transaction"):
        log.changes(**wants)


def test_log_without_checksums_is_read(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T)
    with setting(database_server, "binlog_checksum", "'NONE'"):
        log.run("insert into t values (1, 'a', 1)")
        assert state(log.changes()) == {1: {"id": 1, "v": "a", "w": 1}}
    log.run("insert into t values (2, 'b', 2)")
    assert sorted(state(log.changes())) == [1, 2]


def test_compressed_log_of_mariadb_is_read(mariadb: DatabaseServer) -> None:
    log = Log(mariadb)
    with setting(mariadb, "log_bin_compress", "'ON'"), setting(mariadb, "log_bin_compress_min_len", "10"):
        values = ", ".join(f"({n}, 'text {n}', {n})" for n in range(500))
        log.run(
            T,
            f"insert into t values {values}",
            "update t set w = w + 1000 where id < 400",
            "delete from t where id < 3",
        )
        log.run("alter table t comment 'a long comment, so that the statement itself is compressed in the log'")
    changes = log.changes()
    assert kinds(changes) == ["create", "alter"]
    rows = state(changes)
    assert len(rows) == 497
    assert rows[3] == {"id": 3, "v": "text 3", "w": 1003} and rows[499] == {"id": 499, "v": "text 499", "w": 499}
    places = [
        place for change in changes if isinstance(change, ChangeBatch) for place in change.rows["_position"].to_pylist()
    ]
    assert places == sorted(set(places))


def test_gone_and_unknown_places_need_a_snapshot(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T)
    place = log.now()
    gone = BinlogPosition(flavor=place.flavor, file="binlog.999999", offset=4)
    with pytest.raises(SnapshotNeededError, match="Read the tables again"):
        log.changes(start=gone, until=None)
    gtid = f"0-1-{10**12}" if database_server.kind == "mariadb" else f"{place.gtid.split(':')[0]}:1-{10**12}"
    future = BinlogPosition(flavor=place.flavor, gtid=gtid)
    with pytest.raises(SnapshotNeededError):
        log.changes(start=future, until=None)


def test_log_that_ends_before_the_wanted_place_can_be_read_again_later(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    log.run(T, "insert into t values (1, 'a', 1)")
    end = log.now()
    later = BinlogPosition(flavor=end.flavor, file=end.file, offset=end.offset + 1000)
    with pytest.raises(RetryableError, match="ends at"):
        log.changes(until=later)


def test_account_without_rights_is_named(database_server: DatabaseServer) -> None:
    log = Log(database_server)
    database_server.run("create user if not exists 'plain'@'%' identified by 'plain-password'")
    log.connect = lambda: database_server.connect(user="plain", password="plain-password")  # type: ignore[method-assign]
    log.run(T)
    with pytest.raises(UserError, match="REPLICATION SLAVE"):
        log.changes()
