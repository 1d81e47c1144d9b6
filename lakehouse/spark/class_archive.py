"""Write an archive of the classes that Spark loads: `python -m lakehouse.spark.class_archive ARCHIVE`.

A JVM that starts with the archive neither parses nor verifies these classes (JEP 350).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast


def work(place: Path) -> None:
    """Run a sample job that loads the classes of typical jobs: for files, SQL, shuffles and Python tasks."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
        .getOrCreate()
    )

    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    numbers = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS s", "current_date() d")
    for name in ("parquet", "json", "csv"):
        numbers.write.format(name).save(str(place / name))
        spark.read.schema(numbers.schema).format(name).load(str(place / name)).createOrReplaceTempView(name)
    joined = spark.sql(
        "SELECT p.k, count(*) AS n, max(j.s) AS s, sum(j.id) AS total FROM parquet p JOIN json j ON p.id = j.id "
        "WHERE j.k IN (1, 2, 3) GROUP BY p.k ORDER BY n"
    )
    joined.mapInArrow(same, joined.schema).collect()
    numbers.repartition(2, "k").sortWithinPartitions("s").mapInArrow(same, numbers.schema).collect()
    # What a write and a snapshot read of a table with logs use: Python tasks on lists, a rebalance, an anti join.
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
    files = spark.read.parquet(str(place / "parquet"))
    files.hint("rebalance", "k").mapInArrow(same, files.schema).collect()
    positions = files.selectExpr("*", "_metadata.row_index AS position")
    positions.join(broadcast(numbers.select("id")), positions["position"] == numbers["id"], "left_anti").collect()
    spark.stop()


def main(words: Sequence[str]) -> int:
    """Write the archive that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lakehouse.spark.class_archive", description=__doc__)
    parser.add_argument("archive", type=Path, help="the file to write, about 170 MB")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.work:
        work(given.archive)
        return 0
    return write(given.archive)


def write(archive: Path) -> int:
    """Run this file as a Spark job whose JVM writes the archive at its end, and return the exit code."""
    submit = Path(sys.executable).with_name("spark-submit")
    if not submit.is_file():
        sys.stderr.write(f"{submit} does not exist; run this with the Python of an environment that has pyspark\n")
        return 1
    written = archive.with_suffix(".tmp")
    written.unlink(missing_ok=True)
    # A JVM that uses an archive cannot write one.
    inherited = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    with tempfile.TemporaryDirectory() as place:
        # Only the driver may write the archive. The JVM that spark-class starts before the driver must not write it.
        flags = f"-XX:ArchiveClassesAtExit={written} -Xlog:disable -Xlog:all=error:stderr"
        done = subprocess.run(
            [str(submit), "--driver-java-options", flags, __file__, "--work", place],
            env={**inherited, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode != 0 or not written.is_file():
        sys.stderr.write(f"{done.stdout}\nno archive of Spark's classes was written to {archive}\n")
        return 1
    written.replace(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
