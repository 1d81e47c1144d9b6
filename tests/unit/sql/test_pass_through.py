"""Statements without tables of the catalog reach the engine unchanged, and others with views in place of references."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.sql.engine import Parameters
from lakehouse.sql.session import SqlSession
from lakehouse.sql.tokens import SPARK

#: Statements of Spark on tables that are not in the catalog, with spaces, comments and syntax that sqlglot lacks.
OTHERS = (
    "SELECT 1",
    "select  1 ;",
    "\n  SELECT a /* sales.orders */ FROM t -- sales.orders\n",
    "SELECT 'sales.orders' AS s, `b c`.`d` FROM `b c`",
    'SELECT "sales.orders"',
    "SELECT date_sub(d, 7), a DIV b, x <=> y FROM hr.people TABLESAMPLE (10 PERCENT)",
    "WITH orders AS (SELECT 1 AS id) SELECT * FROM orders",
    "FROM hr.people |> WHERE age > 3 |> SELECT name",
    "SELECT transform(a, x -> x + 1) FROM VALUES (array(1)) AS t(a)",
    "SELECT * FROM hr.people LATERAL VIEW explode(tags) e AS tag",
    "SELECT * FROM hr.people PIVOT (sum(x) FOR y IN (1, 2))",
    "SELECT * FROM parquet.`/data/x`",
    "SELECT :a, ? FROM hr.people",
    "SELECT {x} FROM {df}",
    "VALUES (1, 'a')",
    "TABLE hr.people",
    "CREATE TABLE hr.t (a INT) USING parquet",
    "CREATE TABLE hr.t USING delta AS SELECT 1 AS a",
    "CREATE TABLE hr.t (a INT DEFAULT 3) USING parquet",
    "CREATE OR REPLACE TEMP VIEW v AS SELECT 1",
    "CREATE VIEW hr.v AS SELECT * FROM hr.people",
    "CREATE FUNCTION f AS 'com.x.F'",
    "CREATE DATABASE hr LOCATION '/x'",
    "INSERT INTO hr.t SELECT 1",
    "INSERT OVERWRITE DIRECTORY '/x' USING parquet SELECT 1",
    "INSERT INTO hr.t PARTITION (d = 1) IF NOT EXISTS SELECT 1",
    "UPDATE hr.t SET a = 1 FROM hr.u",
    "DELETE FROM hr.t USING hr.u WHERE a = 1",
    "MERGE WITH SCHEMA EVOLUTION INTO hr.t USING hr.u ON t.a = u.a WHEN MATCHED THEN UPDATE SET *",
    "ALTER TABLE hr.t SET SERDE 'x'",
    "ALTER TABLE hr.t ADD PARTITION (d = 1)",
    "ALTER VIEW hr.v AS SELECT 2",
    "DROP TABLE IF EXISTS hr.t PURGE",
    "DROP VIEW hr.v",
    "TRUNCATE TABLE hr.t",
    "REFRESH TABLE hr.t",
    "ANALYZE TABLE hr.t COMPUTE STATISTICS FOR ALL COLUMNS",
    "MSCK REPAIR TABLE hr.t",
    "CACHE TABLE hr.t",
    "SHOW FUNCTIONS LIKE 'a*'",
    "SHOW TABLES IN hr",
    "SHOW CREATE TABLE hr.t",
    "SHOW PARTITIONS hr.t",
    "DESCRIBE FUNCTION abs",
    "DESCRIBE EXTENDED hr.t",
    "DESCRIBE QUERY SELECT 1",
    "EXPLAIN FORMATTED SELECT * FROM hr.t",
    "SET spark.sql.shuffle.partitions = 7",
    "SET -v",
    "SET hoodie.of.another.library = 3",
    "SET hoodie.clean.commits.retained = 3",
    "RESET spark.sql.shuffle.partitions",
    "ADD JAR '/x.jar'",
    "CALL catalog.system.rollback('db.t', 1)",
    "CALL show_commits(table => 'hr.t')",
    "DECLARE x INT",
    "BEGIN SELECT 1; END",
    "not a statement at all",
)


class RecordingEngine:
    """Records the statements that an engine receives, in the dialect of Spark."""

    dialect, mark, prunes, is_utc = SPARK, "`", False, True
    session: Any = "a session"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.views: Mapping[str, TableScan | pa.Table] = {}

    def text_problem(self, text: str) -> str:
        return ""

    def drop_view(self, name: str) -> None:
        return None

    def has_view(self, name: str) -> bool:
        return name == "people"

    def namespaces(self) -> tuple[str, ...]:
        return ("default",)

    def tables(self, namespace: str) -> tuple[str, ...]:
        return ()

    def has_namespace(self, namespace: str) -> bool:
        return False

    def run(self, text: str, views: Mapping[str, TableScan | pa.Table], parameters: Parameters) -> Any:
        self.texts.append(text)
        self.views = views
        return text

    def result(self, rows: pa.Table) -> pa.Table:
        return rows

    def option(self, key: str) -> str | None:
        return None


@pytest.fixture
def recorded(catalog: Catalog, tmp_path: Any) -> SqlSession:
    """Return a session with the table sales.orders."""
    schema = pa.schema([("id", pa.int32()), ("city", pa.string()), ("fare", pa.float64()), ("day", pa.date32())])
    Table.create(tmp_path / "orders", name="orders", record_key="id", schema=schema)
    catalog.register_table("sales.orders", str(tmp_path / "orders"))
    return SqlSession(catalog=catalog, engine=RecordingEngine())


def sent(session: SqlSession, statement: str) -> str:
    """Run a statement and return the text that the engine received, with one name for all views."""
    session.execute(statement)
    return re.sub(r"lakehouse_view_\d+", "VIEW", session.engine.texts[-1])


def narrowed(session: SqlSession, statement: str) -> list[tuple[Any, Any]]:
    """Return columns and condition of each scan in a statement."""
    session.execute(statement)
    return [(scan.request.columns, scan.request.where) for scan in session.engine.views.values()]


def test_statements_on_other_tables_reach_the_engine_as_the_same_string(recorded: SqlSession) -> None:
    for statement in OTHERS:
        recorded.execute(statement)
        assert recorded.engine.texts[-1] is statement
        assert recorded.engine.views == {}


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("SELECT  id FROM sales.orders", "SELECT  id FROM VIEW AS `orders`"),
        ("SELECT id FROM sales.orders o", "SELECT id FROM VIEW o"),
        (
            "SELECT date_sub(day, 7) D /* x */ FROM sales.orders AS o",
            "SELECT date_sub(day, 7) D /* x */ FROM VIEW AS o",
        ),
        ("SELECT sales.orders.id FROM sales.orders", "SELECT orders.id FROM VIEW AS `orders`"),
        (
            "SELECT id FROM sales.orders TABLESAMPLE (5 ROWS) WHERE id = 1",
            "SELECT id FROM VIEW TABLESAMPLE (5 ROWS) AS `orders` WHERE id = 1",
        ),
        (
            "INSERT INTO hr.t SELECT id FROM sales.orders JOIN hr.u USING (id)",
            "INSERT INTO hr.t SELECT id FROM VIEW AS `orders` JOIN hr.u USING (id)",
        ),
        (
            "CREATE TABLE hr.t USING parquet AS SELECT id FROM sales.orders",
            "CREATE TABLE hr.t USING parquet AS SELECT id FROM VIEW AS `orders`",
        ),
        ("EXPLAIN EXTENDED SELECT id FROM sales.orders", "EXPLAIN EXTENDED SELECT id FROM VIEW AS `orders`"),
        ("SELECT {x}, :y FROM {df}, sales.orders", "SELECT {x}, :y FROM {df}, VIEW AS `orders`"),
        ("SELECT id FROM lakehouse.sales.orders", "SELECT id FROM VIEW AS `orders`"),
    ],
)
def test_views_replace_references_and_nothing_else_changes(recorded: SqlSession, statement: str, text: str) -> None:
    assert sent(recorded, statement) == text


@pytest.mark.parametrize(
    ("statement", "columns", "where"),
    [
        ("SELECT id FROM sales.orders WHERE city = 'Rome'", ("id", "city"), "(city = 'Rome')"),
        ("SELECT * FROM sales.orders o WHERE 3 < o.id", ("id", "city", "fare", "day"), "(id > 3)"),
        ("SELECT count(*) FROM sales.orders", ("id",), None),
        ("SELECT ID FROM sales.orders WHERE Day >= '2026-01-01'", ("id", "day"), "(day >= DATE '2026-01-01')"),
        (
            "SELECT id FROM sales.orders WHERE fare BETWEEN 1 AND 2.5 AND (id IN (1, 2) OR city IS NULL)",
            ("id", "city", "fare"),
            "(fare BETWEEN 1 AND 2.5) AND ((id IN (1, 2)) OR (city IS NULL))",
        ),
        ("SELECT id FROM sales.orders WHERE city LIKE 'Ro%' AND city LIKE '%e'", ("id", "city"), "(city LIKE 'Ro%')"),
        ("SELECT id FROM sales.orders WHERE id = '1'", ("id",), None),
        ("SELECT id FROM sales.orders WHERE city = 1", ("id", "city"), None),
        ("SELECT id FROM sales.orders WHERE id + 1 = 2", ("id",), None),
        ("SELECT id FROM sales.orders WHERE city = 'it\\'s'", ("id", "city"), "(city = 'it''s')"),
        ("SELECT id FROM sales.orders WHERE NOT (id = 1)", ("id",), None),
        ("SELECT o.id FROM sales.orders o JOIN hr.u ON o.id = u.id WHERE o.id = 1", ("id",), "(id = 1)"),
        ("SELECT o.id FROM sales.orders o JOIN hr.u ON o.id = u.id WHERE fare = 1", ("id", "fare"), None),
        ("SELECT o.id FROM hr.u LEFT JOIN sales.orders o ON o.id = u.id WHERE o.id IS NULL", ("id",), None),
        ("SELECT o.id FROM hr.u LEFT JOIN sales.orders o ON o.id = u.id AND o.fare > 2", ("id", "fare"), "(fare > 2)"),
        ("SELECT o.id FROM sales.orders o LEFT JOIN hr.u ON o.id = u.id AND o.fare > 2", ("id", "fare"), None),
        ("SELECT o.id FROM sales.orders o FULL JOIN hr.u ON o.id = u.id WHERE o.id = 1", ("id",), None),
        ("SELECT o.id FROM hr.u RIGHT JOIN sales.orders o ON o.id = 1 WHERE o.id = 1", ("id",), None),
        ("SELECT id FROM sales.orders TABLESAMPLE (5 ROWS) WHERE id = 1", ("id",), None),
        ("SELECT id FROM sales.orders WHERE id = 1 OR EXISTS (SELECT 1)", ("id",), None),
        ("FROM sales.orders |> LIMIT 5 |> WHERE id = 1", ("id", "city", "fare", "day"), None),
        ("SELECT orders FROM sales.orders", ("id", "city", "fare", "day"), None),
        ("SELECT id, _hoodie_commit_time FROM sales.orders", ("_hoodie_commit_time", "id"), None),
    ],
)
def test_columns_and_conditions_are_pushed_if_no_row_can_be_lost(
    recorded: SqlSession, statement: str, columns: tuple[str, ...], where: str | None
) -> None:
    assert narrowed(recorded, statement) == [(columns, where)]


def test_references_of_one_statement_read_one_version(recorded: SqlSession) -> None:
    recorded.execute("SELECT a.id FROM sales.orders a JOIN sales.orders b ON a.id = b.id AND b.fare > 1")
    first, second = recorded.engine.views.values()
    assert first.table is second.table
    assert (first.request.where, second.request.where) == (None, "(fare > 1)")


def test_temporary_views_of_the_engine_hide_tables_without_namespace(recorded: SqlSession) -> None:
    recorded.execute("USE sales")
    assert sent(recorded, "SELECT id FROM orders") == "SELECT id FROM VIEW AS `orders`"
    assert sent(recorded, "SELECT id FROM people") == "SELECT id FROM people"


@pytest.mark.parametrize(
    "statement",
    [
        "CACHE TABLE x AS SELECT * FROM sales.orders",
        "ANALYZE TABLE sales.orders COMPUTE STATISTICS",
        "MSCK REPAIR TABLE sales.orders",
    ],
)
def test_unsupported_statements_on_tables_of_the_catalog_are_refused(recorded: SqlSession, statement: str) -> None:
    with pytest.raises(UserError, match="not supported"):
        recorded.execute(statement)
    assert recorded.engine.texts == []
