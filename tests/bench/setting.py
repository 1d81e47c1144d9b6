"""Common parts of all benchmarks: their parameters, the Spark session, and tables."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from lakehouse.core.table.table import Table
from lakehouse.spark.session import unix_sockets
from tests.bench.data import KEY, ORDERING, PARTITION, write_orders

CODEC = "zstd"
CORES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Parameters of a benchmark: the directory of inputs and tables, the rows, and the measured runs of each side."""

    home: Path
    rows: int
    rounds: int

    def input(self) -> str:
        """Return the directory of the Parquet files with all rows."""
        return write_orders(self.home / f"input-{self.rows}", np.arange(self.rows), files=8)

    def fresh(self, name: str) -> str:
        """Return the path of a directory and delete it if it exists."""
        path = self.home / name
        shutil.rmtree(path, ignore_errors=True)
        return str(path)


@cache
def spark() -> SparkSession:
    """Return the Spark session: two cores, one JVM, and Python workers of this interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config(map=unix_sockets({"spark.master": "local"}, os.environ))
        .appName("lakehouse-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(2 * CORES))
        .config("spark.sql.parquet.compression.codec", CODEC)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def create(
    path: str, *, partitioned: bool = True, options: dict[str, str] | None = None, merge_on_read: bool = False
) -> Table:
    """Return a new empty table of orders with the codec of all sides."""
    return Table.create(
        path,
        name="orders",
        record_key=[KEY],
        partition_by=[PARTITION] if partitioned else [],
        ordering=ORDERING,
        options={"hoodie.parquet.compression.codec": CODEC, **(options or {})},
        table_type="MERGE_ON_READ" if merge_on_read else "COPY_ON_WRITE",
    )


def read(path: str) -> DataFrame:
    """Return the rows of Parquet files as a DataFrame."""
    return spark().read.parquet(path)
