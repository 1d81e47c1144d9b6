"""Temporary views and tables of a session beside tables of the catalog with the same names."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.sql.session import SqlSession
from tests.unit.sql.conftest import rows_of


@pytest.fixture
def spaces(session: SqlSession) -> SqlSession:
    """Return a session with the tables a.t and b.t; a is the current namespace."""
    for space, ids in (("a", "(1), (2)"), ("b", "(5)")):
        session.execute(f"CREATE TABLE {space}.t (id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id')")
        session.execute(f"INSERT INTO {space}.t VALUES {ids}")
    session.execute("USE a")
    return session


def test_view_reads_the_tables_that_its_names_meant_when_it_was_defined(spaces: SqlSession) -> None:
    spaces.execute("CREATE TEMP VIEW v AS SELECT id FROM t")
    spaces.execute("CREATE TEMP VIEW w AS SELECT max(id) AS id FROM v")
    spaces.execute("CREATE TEMP VIEW c AS SELECT id FROM hudi_table_changes('t', 'latest_state', 'earliest')")
    spaces.execute("USE b")
    for view, rows in (("v", [(1,), (2,)]), ("w", [(2,)]), ("c", [(1,), (2,)]), ("t", [(5,)])):
        assert rows_of(spaces, f"SELECT id FROM {view} ORDER BY id") == rows
    spaces.execute("USE a")
    spaces.execute("CREATE TEMP TABLE t AS SELECT 9 AS id")
    assert rows_of(spaces, "SELECT id FROM v ORDER BY id") == [(1,), (2,)]
    assert rows_of(spaces, "SELECT id FROM t") == [(9,)]
    assert rows_of(spaces, "SELECT count(*) FROM a.t") == [(2,)]


def test_view_may_have_the_name_of_its_table_and_is_not_changed(spaces: SqlSession) -> None:
    spaces.execute("CREATE TEMP VIEW t AS SELECT id FROM t WHERE id > 1")
    assert rows_of(spaces, "SELECT id FROM t") == [(2,)]
    for change in ("UPDATE t SET id = 1", "DELETE FROM t", "INSERT INTO t VALUES (7)", "TRUNCATE TABLE t"):
        with pytest.raises(UserError, match="t is a temporary view of this session"):
            spaces.execute(change)
    with pytest.raises(UserError, match="would read itself"):
        spaces.execute("CREATE OR REPLACE TEMP VIEW t AS SELECT id FROM t")
    spaces.execute("DROP VIEW t")
    assert rows_of(spaces, "SELECT id FROM t ORDER BY id") == [(1,), (2,)]


def test_newest_definition_of_a_name_is_read(spaces: SqlSession) -> None:
    spaces.execute("CREATE TEMP VIEW v AS SELECT id FROM t")
    with pytest.raises(UserError, match="the view v exists already"):
        spaces.execute("CREATE TEMP VIEW v AS SELECT 7 AS id")
    spaces.execute("CREATE OR REPLACE TEMP VIEW v AS SELECT 7 AS id")
    assert rows_of(spaces, "SELECT id FROM v") == [(7,)]
    spaces.execute("CREATE OR REPLACE TEMP VIEW v AS SELECT id FROM b.t")
    assert rows_of(spaces, "SELECT id FROM v") == [(5,)]
    # The engine itself may get a view with the name, such as by createOrReplaceTempView of Spark.
    spaces.execute("CREATE TEMP TABLE v AS SELECT 8 AS id")
    assert rows_of(spaces, "SELECT id FROM v") == [(8,)]
    with pytest.raises(UserError, match="v is a temporary table: DROP TABLE"):
        spaces.execute("CREATE OR REPLACE TEMP VIEW v AS SELECT id FROM b.t")


def test_table_that_would_end_with_the_session_or_be_hidden_is_refused(spaces: SqlSession) -> None:
    for statement, message in (
        ("CREATE TABLE other AS SELECT 1 AS id", "CREATE TABLE other: the table would be lost"),
        ("CREATE TABLE other (id INT)", "CREATE TEMPORARY TABLE"),
        ("CREATE TABLE t AS SELECT 1 AS id", "table t exists already in the catalog"),
        ("CREATE VIEW b.t AS SELECT 1 AS id", "table b.t exists already in the catalog"),
        ("CREATE TABLE b.u LIKE b.t", "LIKE is not supported"),
        ("CREATE TEMP VIEW v AS SELECT * FROM missing, t", "there is no table missing"),
        ("DESCRIBE HISTORY b.t", "CALL show_commits"),
    ):
        with pytest.raises(UserError, match=message):
            spaces.execute(statement)
    spaces.execute("CREATE TEMPORARY TABLE other AS SELECT id FROM t")
    assert rows_of(spaces, "SELECT count(*) FROM other") == [(2,)]


def test_view_on_the_data_source_itself_is_made_by_the_engine(spaces: SqlSession) -> None:
    # DuckDB has no such statement, so its own message shows that the statement reached it.
    with pytest.raises(UserError, match="DuckDB"):
        spaces.execute("CREATE TEMPORARY VIEW v USING lakehouse OPTIONS (path '/data/t', columns 'id')")
