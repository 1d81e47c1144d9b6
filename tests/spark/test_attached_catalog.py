"""attach: tables of a catalog by name in spark.sql, in one session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.spark import attach, detach
from lakehouse.spark.attached_catalog import SparkSqlEngine
from lakehouse.sql.session import SqlSession
from tests.support.sql_corpus import CORPUS, problems

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Return a catalog with the table sales.orders of eight files."""
    folder = tmp_path_factory.mktemp("attached")
    rows = pa.table({"id": range(8), "city": ["Rome", "Oslo"] * 4, "day": [f"2026-01-0{day}" for day in range(1, 9)]})
    table = Table.create(folder / "orders", name="orders", record_key="id", partition_by="day", schema=rows.schema)
    table.insert(rows)
    with load_catalog(f"sqlite:///{folder}/catalog.db") as opened:
        opened.register_table("sales.orders", str(folder / "orders"))
        yield opened


@pytest.fixture
def attached(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> Iterator[SparkSession]:
    """Return the session with the catalog."""
    attach(spark, catalog, warehouse=str(tmp_path))
    yield spark
    detach(spark)


def ids(frame: Any) -> list[int]:
    """Return the column id of a DataFrame."""
    return sorted(row.id for row in frame.collect())


def test_filtered_query_opens_the_files_of_the_scan(attached: SparkSession, catalog: Catalog) -> None:
    where = "day >= '2026-01-07'"
    query = attached.sql(f"SELECT city FROM sales.orders o WHERE o.{where}")
    scan = catalog.load_table("sales.orders").scan(where=where).to_spark(attached)
    assert sorted(query.inputFiles()) == sorted(scan.inputFiles())
    assert len(query.inputFiles()) == 2
    assert len(attached.sql("SELECT * FROM sales.orders").inputFiles()) == 8


def test_statement_replaces_no_other_session_and_is_undone(attached: SparkSession) -> None:
    views = {table.name for table in attached.catalog.listTables()}
    before = attached.sql("SELECT id FROM sales.orders WHERE id < 2")
    assert ids(attached.table("sales.orders")) == list(range(8))
    with pytest.raises(AnalysisException):
        attached.newSession().sql("SELECT * FROM sales.orders")
    detach(attached)
    with pytest.raises(AnalysisException):
        attached.sql("SELECT * FROM sales.orders")
    assert ids(before) == [0, 1]
    assert {table.name for table in attached.catalog.listTables()} == views


def test_frames_keep_their_version_and_statements_read_new_commits(attached: SparkSession) -> None:
    attached.sql("CREATE TABLE sales.small (id INT, v STRING) USING hudi TBLPROPERTIES (primaryKey = 'id')")
    attached.sql("INSERT INTO sales.small VALUES (1, 'a')")
    before = attached.sql("SELECT * FROM sales.small")
    attached.sql("INSERT INTO sales.small VALUES (2, 'b')")
    assert ids(before) == [1]
    assert ids(attached.sql("SELECT * FROM sales.small")) == [1, 2]


def test_parameters_and_frames_of_a_call_are_used(attached: SparkSession) -> None:
    assert ids(attached.sql("SELECT id FROM sales.orders WHERE id = :id", {"id": 3})) == [3]
    assert ids(attached.sql("SELECT id FROM sales.orders WHERE id = ?", [4])) == [4]
    frame = attached.range(2)
    joined = attached.sql("SELECT o.id FROM {df} d JOIN sales.orders o ON o.id = d.id WHERE o.id > {x}", df=frame, x=0)
    assert ids(joined) == [1]


def test_lossy_values_fail_the_insert(attached: SparkSession) -> None:
    attached.sql("CREATE TABLE sales.exact (id INT, n INT) USING hudi TBLPROPERTIES (primaryKey = 'id')")
    with pytest.raises(Exception, match="without loss"):
        attached.sql("INSERT INTO sales.exact SELECT 1, CAST(1.5 AS DOUBLE)")
    with pytest.raises(UserError, match="convert it in the query"):
        attached.sql("INSERT INTO sales.exact SELECT 1, '7'")
    attached.sql("INSERT INTO sales.exact SELECT 1, CAST(7 AS BIGINT)")
    assert [row.n for row in attached.sql("SELECT n FROM sales.exact").collect()] == [7]


def test_other_statements_reach_spark_as_the_same_string(spark: SparkSession, catalog: Catalog) -> None:
    texts: list[str] = []

    def sql(text: str, *_: Any) -> Any:
        texts.append(text)
        return spark.range(1)

    session = SqlSession(catalog=catalog, engine=SparkSqlEngine(spark, sql))
    for statement in ("select  1 -- sales.orders", "SHOW FUNCTIONS", "CREATE TABLE hr.t (a INT) USING parquet", "x y"):
        session.execute(statement)
        assert texts[-1] is statement


@pytest.mark.parametrize(
    ("name", "driver_bytes"),
    [
        *((file.stem, "16777216") for file in sorted(CORPUS.glob("*.sql"))),
        # Executors run each MERGE, UPDATE and DELETE.
        ("merges", "0"),
        ("writes", "0"),
    ],
)
def test_statements_of_the_corpus_return_the_same_rows_as_duckdb(
    spark: SparkSession, name: str, driver_bytes: str, tmp_path: Path
) -> None:
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as opened:
        session = SqlSession(
            catalog=opened,
            engine=SparkSqlEngine(spark, spark.sql),
            warehouse=str(tmp_path / "lake"),
            options={"lakehouse.statement.driver.bytes": driver_bytes},
        )
        assert list(problems(session, CORPUS / f"{name}.sql", "spark")) == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM sales.order", r"^there is no table sales\.order\. Did you mean 'sales\.orders'\?"),
        ("SELECT * FROM sale.orders", "there is no namespace 'sale'. Did you mean 'sales'"),
        (
            "SELECT * FROM sales.orders o JOIN sales.qqq l ON o.id = l.id",
            r"^there is no table sales\.qqq\. .*SHOW TABLES",
        ),
        ("DROP TABLE sales.order", r"^there is no table sales\.order\. Did you mean 'sales\.orders'"),
        ("SHOW TABLES IN sale", "there is no namespace 'sale'. Did you mean 'sales'"),
        ("UPDATE sales.order SET city = 'x'", "Did you mean 'sales.orders'"),
        (
            "MERGE INTO sales.orders t USING sales.order s ON t.id = s.id WHEN MATCHED THEN DELETE",
            "no table sales.order",
        ),
        ("SELECT * FROM hudi_table_change('sales.orders', 'cdc', 'earliest')", "Did you mean 'hudi_table_changes'"),
        # Views have the columns of the statement, and Spark proposes names of all columns.
        ("SELECT id FROM sales.orders WHERE citty = 'Rome'", r"Did you mean one of the following\? \[`city`"),
        ("SELECT id FROM elsewhere.things", "TABLE_OR_VIEW_NOT_FOUND"),
    ],
)
def test_mistakes_in_names_are_answered_with_the_similar_name(
    attached: SparkSession, statement: str, message: str
) -> None:
    with pytest.raises(AnalysisException, match=message) as caught:
        attached.sql(statement)
    assert isinstance(caught.value, UserError) == ("there is no" in str(caught.value))
    assert [table.name for table in attached.catalog.listTables() if "lakehouse" in table.name] == []


def test_misspelt_procedure_with_a_table_of_the_catalog_is_named(attached: SparkSession) -> None:
    with pytest.raises(UserError, match=r"there is no procedure show_commit\. Did you mean 'show_commits'"):
        attached.sql("CALL show_commit(table => 'sales.orders')")
    with pytest.raises(UserError, match=r"write CALL lakehouse\.clean\(\.\.\.\)"):
        attached.sql("CALL clean(table => 'sales.orders')")
    with pytest.raises(AnalysisException):
        attached.sql("CALL show_commit(table => 'elsewhere.things')")
