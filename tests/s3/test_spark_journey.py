"""Spark with a table on S3: Python workers access S3 without S3A, which only Spark's own scan needs."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.spark.scan import missing_connector
from lakehouse.spark.versions.choice import spark_version
from tests.support.killed import leftovers
from tests.support.s3 import S3Server
from tests.support.spark import S3A_JARS

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.fixture(scope="module")
def table(s3_server: S3Server, spark: SparkSession) -> Table:
    """Return a table on S3 that Spark loaded and then changed."""
    made = Table.create(
        f"s3://{s3_server.bucket}/spark-{os.getpid()}/rides",
        name="rides",
        record_key=["id"],
        partition_by=["city"],
        ordering="ts",
        storage_options=s3_server.options,
    )
    columns = "id string, city string, fare double, ts long"
    rides = [(f"r{i}", ("Lyon", "São Paulo")[i % 2], float(i), 1) for i in range(100)]
    made.bulk_insert(spark.createDataFrame(rides, columns))
    changes = [("r1", "São Paulo", 99.0, 2), ("r2", "Lyon", -1.0, 0), ("r200", "Köln", 5.0, 1)]
    made.upsert(spark.createDataFrame(changes, columns))
    return made


def fares(rows: pa.Table) -> dict[str, float]:
    assert rows.num_rows == 101
    return dict(zip(rows.column("id").to_pylist(), rows.column("fare").to_pylist(), strict=True))


def test_spark_workers_write_to_s3_without_s3a(table: Table, s3_server: S3Server) -> None:
    found = fares(table.scan().to_arrow())
    assert (found["r1"], found["r2"], found["r200"]) == (99.0, 2.0, 5.0)
    assert leftovers(open_storage(table.location, s3_server.options)) == []


def test_spark_without_the_connector_reads_by_workers_and_logs_its_package(
    table: Table, s3_server: S3Server, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    spark.conf.set("fs.s3a.impl", "org.apache.hadoop.fs.s3a.NoSuchFileSystem")
    try:
        rows = table.scan(columns=["id", "fare"], where="fare >= 0").to_spark(spark)
        assert fares(spark_version().to_arrow(rows)) == fares(table.scan().to_arrow())
        assert table.scan(where="city = 'Köln'").to_spark(spark).collect()[0].id == "r200"
        missing = missing_connector(spark, open_storage(table.location, s3_server.options))
    finally:
        spark.conf.unset("fs.s3a.impl")
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.util.VersionInfo.getVersion()  # type: ignore[union-attr]
    assert missing is not None
    assert f"start Spark with --packages org.apache.hadoop:hadoop-aws:{hadoop}" in missing
    assert missing in caplog.text


@pytest.mark.skipif(not any(S3A_JARS.glob("*.jar")), reason="missing: jars of S3A; `make s3a` fetches them with mvn")
def test_spark_reads_the_table_through_s3a(table: Table, s3_server: S3Server, spark: SparkSession) -> None:
    for key, value in s3_server.options.items():
        spark.conf.set(key, value)
    rows = table.scan(columns=["id", "fare"], where="fare >= 0").to_spark(spark)
    assert fares(spark_version().to_arrow(rows)) == fares(table.scan().to_arrow())
    assert table.scan(where="city = 'Köln'").to_spark(spark).collect()[0].id == "r200"
