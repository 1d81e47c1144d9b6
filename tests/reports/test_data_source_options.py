"""Options of the Spark data source: none is ignored silently, and a read has the types that Spark expects."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DecimalType, LongType, StructField, StructType, TimestampType

from lakehouse import Table
from lakehouse.errors import UserError
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.metastore.protocol import Column, Format, HiveTable
from lakehouse.platform.publish import spark_source
from lakehouse.spark.source import LakehouseDataSource, LakehouseReader, LakehouseStreamReader

QUERY, BEGIN = "hoodie.datasource.query.type", "hoodie.datasource.read.begin.instanttime"
ANY_TYPE = {"lakehouse.schema.type.change": "any"}
#: The options that Spark 4.1 passes to `schema` for CREATE TABLE ... USING lakehouse OPTIONS (path ...).
OF_PERMANENT = {"location": "file:/x", "path": "file:/x", "provider": "lakehouse", "owner": "root", "option.path": "/x"}


def batch(key: str, amount: str, kind: pa.DataType) -> pa.Table:
    return pa.table({"id": [key], "amount": pa.array([Decimal(amount)], kind)})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with one row."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", options=ANY_TYPE)
    table.upsert(batch("a", "1.50", pa.decimal128(5, 2)))
    return table


def amounts(reader: LakehouseReader) -> list[Decimal]:
    batches = [rows for task in reader.partitions() for rows in reader.read(task)]
    return [value for rows in batches for value in rows.column("amount").to_pylist()]


def loaded(table: Table, **options: str) -> LakehouseReader:
    """Return the reader of a DataFrame, as Spark creates it at load()."""
    source = LakehouseDataSource({"path": table.location, **options})
    reader = source.reader(source.schema())  # type: ignore[arg-type]
    assert isinstance(reader, LakehouseReader)
    return reader


def test_stream_is_refused_after_the_scale_of_a_decimal_grew(table: Table) -> None:
    """delta-io/delta#6050: the schema of a stream is frozen; rows of a newer schema gave silently incorrect results.

    Spark rounds a decimal to the scale that it expects: 1.125 became 1.13.
    """
    schema = LakehouseDataSource({"path": table.location}).schema()
    assert isinstance(schema, StructType)
    reader = LakehouseStreamReader({"path": table.location}, schema)
    start = reader.latestOffset()
    table.upsert(batch("b", "2.50", pa.decimal128(5, 2)))
    middle = reader.latestOffset()
    assert len(reader.partitions(start, middle)) == 1
    table.upsert(batch("c", "1.125", pa.decimal128(7, 3)))
    with pytest.raises(UserError, match=r"'amount' has type decimal\(7,3\).*expects decimal\(5,2\).*Start the stream"):
        reader.partitions(middle, reader.latestOffset())
    restarted = LakehouseStreamReader({"path": table.location}, LakehouseDataSource({"path": table.location}).schema())  # type: ignore[arg-type]
    assert len(restarted.partitions(middle, restarted.latestOffset())) == 1


def test_loaded_frame_returns_its_version_or_is_refused_after_a_change_of_type(table: Table) -> None:
    """delta-io/delta#2002: a DataFrame keeps the types of its load while the table's change."""
    snapshot, last = loaded(table), loaded(table, **{QUERY: "incremental"})
    every = loaded(table, **{QUERY: "incremental", BEGIN: "earliest"})
    table.upsert(batch("b", "1234.125", pa.decimal128(7, 3)))
    assert amounts(snapshot) == amounts(every) == [Decimal("1.50")]
    with pytest.raises(UserError, match="Load the DataFrame again"):
        last.partitions()
    assert amounts(loaded(table, **{QUERY: "incremental"})) == [Decimal("1234.125")]


@pytest.mark.parametrize(
    ("column", "declared", "stored"),
    [
        ("amount", DecimalType(5, 1), r"decimal\(5,2\)"),
        ("at", LongType(), "timestamp"),
        ("s", StructType([StructField("y", LongType())]), "struct<x:bigint,y:bigint>"),
    ],
)
def test_declared_schema_with_another_type_is_refused(
    tmp_path: Path, column: str, declared: DataType, stored: str
) -> None:
    """apache/hudi#4678: a schema that a user declares must be honoured or refused.

    Spark rounds decimals, returns times as numbers, and takes the fields of structs by position.
    """
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id")
    rows = batch("a", "1.50", pa.decimal128(5, 2)).append_column("at", pa.array([1], pa.timestamp("us")))
    table.upsert(rows.append_column("s", pa.array([{"x": 1, "y": 2}])))
    with pytest.raises(UserError, match=f"{column!r} has type {stored}, but this read expects .*schema"):
        LakehouseReader({"path": table.location}, StructType([StructField(column, declared)])).partitions()
    schema = StructType([StructField("amount", DecimalType(5, 2)), StructField("at", TimestampType())])
    assert amounts(LakehouseReader({"path": table.location}, schema)) == [Decimal("1.50")]


def test_permanent_table_is_refused_because_spark_loses_its_options() -> None:
    """apache/spark#44305: CREATE TABLE with a Python data source; Spark 4.1 reads such a table without any option."""
    with pytest.raises(UserError, match=r"CREATE TABLE .* is not supported.*TEMPORARY VIEW"):
        LakehouseDataSource(OF_PERMANENT).schema()
    with pytest.raises(UserError, match=r"needs the table's location.*CREATE TABLE.*TEMPORARY VIEW"):
        LakehouseDataSource({}).schema()


@pytest.fixture
def daily(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the options of a read of a published table."""
    columns = (Column(name="id", type="string"), Column(name="v", type="bigint"))
    table = HiveTable(
        database="bank",
        name="daily",
        location="/x",
        format=Format(input_format="", output_format="", serde=""),
        columns=columns,
        partition_columns=(Column(name="dt", type="string"),),
    )
    monkeypatch.setattr(spark_source, "open_metastore", lambda *args, **kwargs: MemoryMetastore())
    monkeypatch.setattr(spark_source, "published_table", lambda metastore, name: table)
    return {"published": "bank.daily"}


@pytest.mark.parametrize(
    "option", ["as.of.instant", QUERY, "hoodie.datasource.view.type", "path", "colums", "provider"]
)
def test_published_table_refuses_an_option_that_it_would_ignore(daily: dict[str, str], option: str) -> None:
    """apache/spark#29535: options of a reader were lost, and the result was that of a read without them."""
    for call in (spark_source.schema_ddl, lambda options: spark_source.plan(options, ())):
        with pytest.raises(UserError, match=r"unknown to format|not supported"):
            call({**daily, option: "1"})


def test_published_table_returns_the_selected_columns(daily: dict[str, str]) -> None:
    """apache/spark#29535: the option `columns` was accepted and ignored."""
    assert spark_source.schema_ddl(daily) == "`id` string, `v` bigint, `dt` string"
    assert spark_source.schema_ddl({**daily, "Columns": "dt, v"}) == "`dt` string, `v` bigint"
    with pytest.raises(UserError, match="column 'w' is not in the published table"):
        spark_source.schema_ddl({**daily, "columns": "w"})
    assert spark_source.storage_options({**daily, "aws_region": "x", "columns": "v"}) == {"aws_region": "x"}
