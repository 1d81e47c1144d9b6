"""Provide one Spark session to all tests, and collect many data frames with one query."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from lakehouse.spark import register
from lakehouse.spark.session import unix_sockets
from tests.support.spark35 import adapt_tests

#: Folder of the jars from `make s3a`, with which Spark's readers open s3a:// paths; the session loads all jars in it.
S3A_JARS = Path(__file__).resolve().parents[2] / ".jars" / "s3a"
_NUMBER = "number"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Run a local Spark session with two threads; tests that use it have the marker `spark`."""
    home: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config(map=unix_sockets({"spark.master": "local[2]"}, os.environ))
        .config("spark.jars", ",".join(map(str, sorted(S3A_JARS.glob("*.jar")))))
        .appName("lakehouse-tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        # With this setting Spark shares the planned read of a Python data source between queries.
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    with pytest.MonkeyPatch.context() as monkeypatch:
        adapt_tests(monkeypatch)
        yield session
    session.stop()


def used_relation(spark: SparkSession, location: str, **options: str) -> DataFrame:
    """Return the rows of a table by the data source, from a relation that other queries with filters used before."""
    register(spark)
    frame = spark.read.format("lakehouse").options(**options).load(location)
    used = frame.where(f"`{frame.columns[0]}` = 'no such value'").count()
    assert used == 0
    return frame


def collected(frames: Sequence[DataFrame]) -> list[pa.Table]:
    """Return the rows of each frame; one query collects all of them."""
    numbered = [frame.withColumn(_NUMBER, lit(number)) for number, frame in enumerate(frames)]
    rows = reduce(DataFrame.unionByName, numbered).toArrow()
    column = rows.column(_NUMBER)
    return [rows.filter(pc.equal(column, number)).drop_columns([_NUMBER]) for number in range(len(frames))]
