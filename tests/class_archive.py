"""Write an archive of the classes that Spark loads: `python tests/class_archive.py ARCHIVE`, with Spark's Python.

A JVM that starts with the archive neither parses nor verifies these classes (JEP 350). make runs it; see
`lakehouse.demo.jvm` for its use.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def work(place: Path) -> None:
    """Run a job that loads the classes of usual jobs: files, SQL, shuffles and tasks in Python."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )

    def same(batches: Iterator[Any]) -> Iterator[Any]:
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
    numbers.repartition(2, "k").sortWithinPartitions("s").mapInArrow(same, numbers.schema).toArrow()
    spark.stop()


def main(archive: Path) -> int:
    """Run this file as a Spark job that ends with the archive, and return the exit code."""
    submit = Path(sys.executable).with_name("spark-submit")
    written = archive.with_suffix(".tmp")
    written.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place:
        # Only the driver may write the archive. spark-class starts another JVM before it, which would too.
        flags = f"-XX:ArchiveClassesAtExit={written} -Xlog:disable -Xlog:all=error:stderr"
        done = subprocess.run(
            [str(submit), "--driver-java-options", flags, __file__, "--work", place],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode != 0 or not written.is_file():
        print(done.stdout, file=sys.stderr)
        print(f"no archive of Spark's classes was written to {archive}", file=sys.stderr)
        return 1
    written.replace(archive)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(Path(sys.argv[2]))
    else:
        sys.exit(main(Path(sys.argv[1])))
