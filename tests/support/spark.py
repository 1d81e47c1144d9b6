"""One Spark session for all tests that need one: two threads, no UI, UTC; and many frames in one query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

#: Where `make s3a` puts the jars that let Spark's own readers open s3a:// paths; the session takes what is there.
S3A_JARS = Path(__file__).resolve().parents[2] / ".jars" / "s3a"
_NUMBER = "number"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with few shuffle partitions; mark tests that use it `spark`."""
    home: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, sorted(S3A_JARS.glob("*.jar")))))
        .appName("lakehouse-tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def collected(frames: Sequence[DataFrame]) -> list[pa.Table]:
    """Return the rows of every frame, all of them from one query."""
    numbered = [frame.withColumn(_NUMBER, lit(number)) for number, frame in enumerate(frames)]
    rows = reduce(DataFrame.unionByName, numbered).toArrow()
    column = rows.column(_NUMBER)
    return [rows.filter(pc.equal(column, number)).drop_columns([_NUMBER]) for number in range(len(frames))]
