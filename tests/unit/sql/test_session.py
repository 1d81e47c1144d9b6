"""SqlSession with DuckDB: names, versions, views, parameters and refusals."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakehouse.errors import ConflictError, UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.sql.engine import Parameters
from lakehouse.sql.session import SqlSession
from tests.unit.sql.conftest import rows_of

CREATE = (
    "CREATE TABLE sales.orders (id INT, city STRING, fare DOUBLE, day STRING) USING lakehouse "
    "PARTITIONED BY (day) TBLPROPERTIES (primaryKey = 'id')"
)
INSERT = "INSERT INTO sales.orders VALUES (1, 'Rome', 2.5, '2026-01-01'), (2, 'Oslo', 3.5, '2026-01-02')"


@pytest.fixture
def orders(session: SqlSession) -> SqlSession:
    """Return a session with the table sales.orders."""
    session.execute(CREATE)
    session.execute(INSERT)
    return session


def test_tables_are_read_by_name_and_new_commits_are_visible(orders: SqlSession) -> None:
    query = "SELECT o.city, `fare` FROM sales.orders o WHERE o.id = 1"
    assert rows_of(orders, query) == [("Rome", 2.5)]
    orders.execute("DELETE FROM sales.orders WHERE id = 1")
    assert rows_of(orders, query) == []


def test_names_with_a_prefix_or_other_case_are_found(orders: SqlSession) -> None:
    for name in ("lakehouse.sales.orders", "SALES.Orders", "`sales`.`orders`", '"sales"."orders"'):
        assert rows_of(orders, f"SELECT count(*) FROM {name}") == [(2,)]


def test_qualified_columns_keep_their_meaning(orders: SqlSession) -> None:
    query = "SELECT sales.orders.id, sales.orders.* FROM sales.orders WHERE sales.orders.id = 2"
    table = orders.execute(query).read_all()
    assert [column.to_pylist() for column in table.columns] == [[2], [2], ["Oslo"], [3.5], ["2026-01-02"]]


def test_common_table_expression_hides_the_table_of_its_name(orders: SqlSession) -> None:
    orders.execute("USE sales")
    assert rows_of(orders, "WITH orders AS (SELECT 7 AS id) SELECT id FROM orders") == [(7,)]
    query = "WITH orders AS (SELECT id FROM orders WHERE id = 2) SELECT id FROM orders"
    assert rows_of(orders, query) == [(2,)]


def test_versions_are_read_by_instant(orders: SqlSession, catalog: Catalog) -> None:
    first = catalog.load_table("sales.orders").timeline.by_completion()[0].requested
    orders.execute("DELETE FROM sales.orders WHERE id = 1")
    for clause in (f"VERSION AS OF '{first}'", f"TIMESTAMP AS OF '{first}'", f"FOR VERSION AS OF {first}"):
        assert rows_of(orders, f"SELECT id FROM sales.orders {clause} ORDER BY id") == [(1,), (2,)]
    now = "SELECT n.id FROM sales.orders n JOIN sales.orders VERSION AS OF '{}' p ON n.id = p.id"
    assert rows_of(orders, now.format(first)) == [(2,)]


def test_changes_and_timeline_are_table_functions(orders: SqlSession) -> None:
    changes = "SELECT id FROM hudi_table_changes('sales.orders', 'latest_state', 'earliest') ORDER BY id"
    assert rows_of(orders, changes) == [(1,), (2,)]
    assert rows_of(orders, "SELECT action, state FROM hudi_query_timeline('sales.orders')") == [("commit", "COMPLETED")]
    with pytest.raises(UserError, match="latest_state"):
        orders.execute("SELECT * FROM hudi_table_changes('sales.orders', 'all', 'earliest')")


def test_views_read_the_newest_version(orders: SqlSession) -> None:
    orders.execute("CREATE TEMPORARY VIEW cities (town) AS SELECT city FROM sales.orders")
    orders.execute("CREATE TEMP VIEW first_city AS SELECT min(town) AS town FROM cities")
    assert rows_of(orders, "SELECT town FROM first_city") == [("Oslo",)]
    orders.execute("DELETE FROM sales.orders WHERE id = 2")
    assert rows_of(orders, "SELECT town FROM first_city f") == [("Rome",)]
    orders.execute("DROP VIEW first_city")
    with pytest.raises(UserError, match="first_city"):
        orders.execute("SELECT * FROM first_city")
    with pytest.raises(UserError, match="CREATE TEMPORARY VIEW"):
        orders.execute("CREATE VIEW v AS SELECT city FROM sales.orders")


def test_named_parameters_are_values(orders: SqlSession) -> None:
    parameters = Parameters(values={"id": 1, "city": "x' OR 1=1 --"})
    rows = orders.execute("SELECT city FROM sales.orders WHERE id = $id", Parameters(values={"id": 1})).read_all()
    assert rows.to_pylist() == [{"city": "Rome"}]
    orders.execute("DELETE FROM sales.orders WHERE city = :city", parameters)
    assert rows_of(orders, "SELECT count(*) FROM sales.orders") == [(2,)]
    orders.execute("DELETE FROM sales.orders WHERE id = :id", parameters)
    assert rows_of(orders, "SELECT id FROM sales.orders") == [(2,)]


def test_rows_must_be_read_before_the_next_statement(orders: SqlSession) -> None:
    rows: pa.RecordBatchReader = orders.execute("SELECT * FROM sales.orders")
    orders.execute("SELECT 1")
    with pytest.raises(UserError, match="before the next statement"):
        rows.read_all()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("ANALYZE TABLE sales.orders COMPUTE STATISTICS", "not supported"),
        ("ALTER TABLE sales.orders RENAME TO sales.o2", "register_table"),
        ("UPDATE sales.orders SET fare = 1 FROM x", "MERGE INTO"),
        ("CREATE TABLE sales.orders (id INT) USING hudi TBLPROPERTIES (primaryKey='id')", "exists already"),
        ("CREATE TABLE sales.t (id INT) USING lakehouse TBLPROPERTIES (primarykeys='id')", "primaryKey"),
        ("CREATE TABLE sales.t (id VARCHAR(3)) USING lakehouse TBLPROPERTIES (primaryKey='id')", "STRING"),
        ("INSERT INTO sales.orders SELECT 1", "4 are needed"),
        ("INSERT INTO sales.orders VALUES ('a', 'b', 1.0, 'd')", "column id"),
        ("INSERT INTO sales.orders (id, id) VALUES (1, 2)", "two values"),
        ("SELECT * FROM hudi_metadata('sales.orders')", "CALL lakehouse.metadata"),
        ("CALL lakehouse.cleann(table => 'sales.orders')", "'clean'"),
        ("CALL lakehouse.clean(tabl => 'sales.orders')", "'table'"),
        ("CALL run_bootstrap(table => 'sales.orders')", "lakehouse table bootstrap"),
        ("SHOW TABLES IN sale", "sales"),
        ("SELECT * FROM sales.orders VERSION AS OF current_date()", "literal"),
        ("SELECT * FROM sales.orders TIMESTAMP AS OF '2026-13-45'", "not a time"),
    ],
)
def test_statements_are_refused_by_name(orders: SqlSession, statement: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        orders.execute(statement).read_all()


def test_delete_with_a_subquery_fails_if_another_writer_commits_in_between(
    orders: SqlSession, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = orders.engine.run

    def run_late(text: str, *rest: Any) -> Any:
        rows = run(text, *rest).read_all()
        catalog.load_table("sales.orders").upsert(
            pa.table({"id": pa.array([1], pa.int32()), "city": ["Pisa"], "fare": [1.0], "day": ["2026-01-01"]})
        )
        return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())

    monkeypatch.setattr(orders.engine, "run", run_late)
    with pytest.raises(ConflictError):
        orders.execute("DELETE FROM sales.orders WHERE id IN (SELECT min(id) FROM sales.orders)")
    monkeypatch.setattr(orders.engine, "run", run)
    assert rows_of(orders, "SELECT city FROM sales.orders WHERE id = 1") == [("Pisa",)]


@pytest.mark.parametrize("kind", ["mor", "cow"])
def test_delete_with_a_subquery_refuses_keys_of_rows_that_it_would_not_delete_rightly(
    orders: SqlSession, kind: str
) -> None:
    properties = f"TBLPROPERTIES (primaryKey = 'id', type = '{kind}')"
    orders.execute(f"CREATE TABLE sales.twice (id INT, v INT) USING lakehouse {properties}")
    orders.execute("INSERT INTO sales.twice VALUES (1, 1), (1, 2), (3, 3)")
    with pytest.raises(UserError, match="several rows have the key"):
        orders.execute("DELETE FROM sales.twice WHERE v = 1 AND id IN (SELECT 1)")
    orders.execute("DELETE FROM sales.twice WHERE id IN (SELECT 3)")
    assert rows_of(orders, "SELECT id, v FROM sales.twice ORDER BY v") == [(1, 1), (1, 2)]
    if kind == "mor":
        with pytest.raises(UserError, match="compaction"):
            orders.execute("DELETE FROM sales.twice WHERE id IN (SELECT 1)")
        orders.execute("CALL lakehouse.compaction(table => 'sales.twice', op => 'run', force => true)")
    orders.execute("DELETE FROM sales.twice WHERE id IN (SELECT 1)")
    assert rows_of(orders, "SELECT count(*) FROM sales.twice") == [(0,)]


def test_earlier_versions_have_the_columns_of_their_time(orders: SqlSession, catalog: Catalog) -> None:
    first = catalog.load_table("sales.orders").timeline.by_completion()[0].requested
    orders.execute("ALTER TABLE sales.orders DROP COLUMN city")
    orders.execute("ALTER TABLE sales.orders ADD COLUMNS (note STRING)")
    old = f"sales.orders VERSION AS OF '{first}'"
    assert rows_of(orders, f"SELECT * FROM {old} WHERE id = 1") == [(1, "Rome", 2.5, "2026-01-01")]
    query = f"SELECT o.city, n.note FROM {old} o JOIN sales.orders n ON o.id = n.id WHERE o.city = 'Oslo'"
    assert rows_of(orders, query) == [("Oslo", None)]


def test_outcome_has_rows_without_effect_and_no_count_for_whole_partitions(session: SqlSession) -> None:
    declared = "USING lakehouse TBLPROPERTIES (primaryKey = 'id', orderingFields = 'at')"
    session.execute(f"CREATE TABLE x.t (id INT, at INT, v INT) {declared}")
    session.execute("INSERT INTO x.t VALUES (1, 5, 0), (2, 5, 0)")
    result = session.execute(
        "MERGE INTO x.t t USING (SELECT 1 AS id, 6 AS at UNION ALL SELECT 2, 4) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET at = s.at"
    ).read_all()
    assert result.column("num_updated_rows").to_pylist() == [1]
    assert result.column("reason").to_pylist() == [
        "1 update without effect: the ordering value is lower than the stored one"
    ]
    result = session.execute("DELETE FROM x.t").read_all()
    assert (result["num_affected_rows"][0].as_py(), result["num_deleted_rows"][0].as_py()) == (None, None)
    assert rows_of(session, "SELECT count(*) FROM x.t") == [(0,)]


def test_declared_index_is_shown_before_it_is_built(orders: SqlSession) -> None:
    orders.execute("CREATE INDEX by_city ON sales.orders (city)")
    assert ("secondary_index_by_city", "declared") in rows_of(orders, "SHOW INDEXES FROM sales.orders")
    orders.execute("CALL lakehouse.index(table => 'sales.orders', op => 'run')")
    assert ("secondary_index_by_city", "built") in rows_of(orders, "SHOW INDEXES FROM sales.orders")
