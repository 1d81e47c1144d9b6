"""The database servers of the tests start, keep a binlog of rows with full metadata, and know both accounts."""

from __future__ import annotations

from contextlib import closing

from tests.support.mysql import READER, READER_PASSWORD, DatabaseServer


def test_server_has_a_binlog_of_rows_with_full_metadata(database_server: DatabaseServer) -> None:
    names = ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata")
    row = database_server.query(f"select {', '.join(f'@@global.{name}' for name in names)}")[0]
    assert row == (1, "ROW", "FULL", "FULL")


def test_reader_sees_tables_and_the_position_of_the_binlog(database_server: DatabaseServer) -> None:
    database = database_server.database()
    database_server.run("create table t (id int primary key)", "insert into t values (7)", database=database)
    account = {"user": READER, "password": READER_PASSWORD}
    with closing(database_server.connect(database, **account)) as connection, connection.cursor() as cursor:
        cursor.execute("select id from t")
        assert cursor.fetchall() == ((7,),)
        cursor.execute("show master status")
        assert cursor.fetchone()[0].startswith("binlog.")
