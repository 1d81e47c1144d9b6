"""Typical mistakes in statements: the error names the mistake and the way out, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.read.pinned_read import PinnedRead
from lakehouse.errors import RetryableError, UserError
from lakehouse.sql.session import SqlSession
from tests.unit.sql.conftest import rows_of


@pytest.fixture
def orders(session: SqlSession) -> Iterator[SqlSession]:
    """Return a session with the table sales.orders, which no statement of a test changes."""
    session.execute(
        "CREATE TABLE sales.orders (id INT, city STRING, fare DOUBLE, day STRING, addr STRUCT<zip: INT>) "
        "USING lakehouse PARTITIONED BY (day) TBLPROPERTIES (primaryKey = 'id')"
    )
    session.execute("INSERT INTO sales.orders (id, city, day) VALUES (1, 'Rome', '2026-01-01')")
    yield session
    assert rows_of(session, "SELECT id, city, fare, addr FROM sales.orders") == [(1, "Rome", None, None)]


NO_TABLE = r"there is no table sales\.order\. Did you mean 'sales\.orders'\? SHOW TABLES IN sales"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM sales.order",
        "SELECT * FROM sales.orders o JOIN sales.order p ON o.id = p.id",
        "WITH x AS (SELECT * FROM sales.order) SELECT * FROM x",
        "EXPLAIN SELECT * FROM sales.order",
        "INSERT INTO sales.order VALUES (1)",
        "INSERT INTO sales.orders SELECT * FROM sales.order",
        "UPDATE sales.order SET fare = 1",
        "DELETE FROM sales.order",
        "DELETE FROM sales.orders WHERE id IN (SELECT id FROM sales.order)",
        "MERGE INTO sales.order t USING sales.orders s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "MERGE INTO sales.orders t USING sales.order s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "ALTER TABLE sales.order ADD COLUMNS (x INT)",
        "DROP TABLE sales.order",
        "DROP TABLE sales.order PURGE",
        "TRUNCATE TABLE sales.order",
        "DESCRIBE sales.order",
        "SHOW PARTITIONS sales.order",
        "SHOW CREATE TABLE sales.order",
        "SHOW COLUMNS IN sales.order",
        "SHOW TBLPROPERTIES sales.order",
        "SHOW INDEXES FROM sales.order",
        "REFRESH TABLE sales.order",
    ],
)
def test_missing_tables_are_named_with_a_similar_one(orders: SqlSession, statement: str) -> None:
    with pytest.raises(UserError, match=NO_TABLE):
        orders.execute(statement).read_all()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM sale.orders", "there is no namespace 'sale'. Did you mean 'sales'"),
        ("SELECT * FROM orders", r"Did you mean 'sales\.orders'"),
        ("SELEC * FROM sales.orders", "no statement SELEC. Did you mean 'SELECT'"),
        ("SELECT * FORM sales.orders", "syntax error near 'sales' in line 1"),
        ("SELECT count(* FROM sales.orders", "syntax error near 'FROM'"),
        ("SELECT * FROM sales.orders WHERE", "syntax error near 'WHERE'"),
        ("SELECT idd FROM sales.orders", "idd"),
        ("SELECT * FROM sales.orders TIMESTAMP AS OF '2020-01-01'", r"^[^:]*: as_of=20200101000000000 is before"),
        ("SELECT * FROM hudi_table_changes('sales.orders', 'latest_state', 'x')", "^'x' is not a time"),
        ("UPDATE sales.orders SET fare = 1 WHERE", "expected a condition before the end"),
        ("DELETE FROM sales.orders WHERE", "expected a condition"),
        ("DELETE FROM sales.orders WHERE -- id = 1", "expected a condition"),
        ("MERGE INTO sales.orders t USING (SELECT 1 AS id) s ON WHEN MATCHED THEN DELETE", "expected a condition"),
        (
            "MERGE INTO sales.orders t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED AND THEN DELETE",
            "expected a condition before 'THEN'",
        ),
        ("TRUNCATE sales.orders", "write TRUNCATE TABLE"),
        ("OPTIMIZE sales.orders", r"CALL lakehouse\.clustering"),
        ("VACUUM sales.orders", r"CALL lakehouse\.clean"),
        ("ANALYZE TABLE sales.orders COMPUTE STATISTICS", r"CALL lakehouse\.metadata"),
        ("ALTER TABLE sales.orders RENAME city TO town", "RENAME COLUMN old TO new"),
        ("CREATE INDEX i ON sales.orders USING btree (city)", "Indexes are secondary_index"),
        ("CREATE TABLE sales.n (id INT) USING lakhouse", "Did you mean 'lakehouse'"),
        ("CREATE TABLE sales.n (id INT)", "USING lakehouse TBLPROPERTIES"),
        ("CREATE TABLE sales.n (id INT PRIMARY KEY) USING lakehouse", "declares the key"),
        ("CALL clean(table => 'sales.orders')", r"write CALL lakehouse\.clean"),
        ("CALL lakehouse.savepoint(table => 'sales.orders', instant => '123')", "op => 'create'"),
        ("SHOW TABLES IN sales LIKE orders", "expected a pattern in quotes"),
        ("SHOW TABLES LIKE orders", "expected a pattern in quotes"),
        ("DROP VIEW v", "there is no view v"),
        ("SET hoodie.metadata.enable = maybe", "expected true or false"),
        ("SET hoodie.spark.sql.insert.into.operation = upsrt", "must be one of insert, upsert, bulk_insert. Did you"),
        ("SET hoodie.datasource.overwrite.mode = statik", "must be one of dynamic, static. Did you mean 'static'"),
        ("UPDATE sales.orders SET city = '\ud800'", "surrogate pair"),
    ],
)
def test_mistakes_are_named_with_the_way_out(orders: SqlSession, statement: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        orders.execute(statement).read_all()
    assert "lakehouse_view" not in str(caught.value)
    assert ".." not in str(caught.value).replace("...", "")


def test_drop_of_a_missing_table_with_if_exists_does_nothing(orders: SqlSession) -> None:
    for name in ("sales.order", "nowhere.orders", "order_items"):
        orders.execute(f"DROP TABLE IF EXISTS {name} PURGE")


def test_errors_of_scans_keep_their_class(orders: SqlSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> pa.Table:
        raise RetryableError("the store is busy")

    monkeypatch.setattr(PinnedRead, "plan", fail)
    with pytest.raises(RetryableError, match=r"^the store is busy"):
        orders.execute("SELECT * FROM sales.orders").read_all()
    monkeypatch.undo()


def test_partition_of_null_is_dropped_by_the_value_that_show_partitions_prints(session: SqlSession) -> None:
    session.execute(
        "CREATE TABLE x.t (id STRING, p STRING) USING lakehouse PARTITIONED BY (p) TBLPROPERTIES (primaryKey = 'id')"
    )
    session.execute("INSERT INTO x.t VALUES ('a', '1'), ('b', NULL), ('c', NULL)")
    for statement in ("TRUNCATE TABLE x.t", "ALTER TABLE x.t DROP"):
        with pytest.raises(UserError, match="'__HIVE_DEFAULT_PARTITION__' for the partition of null"):
            session.execute(f"{statement} PARTITION (p = NULL)")
    assert ("__HIVE_DEFAULT_PARTITION__",) in rows_of(session, "SHOW PARTITIONS x.t")
    session.execute("TRUNCATE TABLE x.t PARTITION (p = '__HIVE_DEFAULT_PARTITION__')")
    assert rows_of(session, "SELECT id FROM x.t") == [("a",)]
