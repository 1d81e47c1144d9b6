"""A script of a user, whose PATH has a `python3` without NumPy, uses the Python of the script in Spark's workers."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.spark.worker_python import WorkerPythonWarning, set_worker_python

_SCRIPT = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
from lakehouse import Table
from lakehouse.spark import register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
table = Table.create(sys.argv[1], name="t", record_key=["id"])
if sys.argv[2] == "register":
    table.insert(pa.table({"id": ["a", "b"]}))
    register(spark)
    print("rows:", spark.read.format("lakehouse").load(sys.argv[1]).count())
else:
    table.insert(spark.range(2).selectExpr("cast(id AS string) AS id"))
    print("rows:", table.scan().to_spark(spark).count())
"""


@pytest.mark.parametrize("door", ["register", "Table"])
def test_script_with_a_plain_session_runs_its_own_python_in_workers(tmp_path: Path, door: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    # `-S` leaves out the packages of the environment.
    (folder / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    (folder / "python3").chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "t"), door],
        env={**environ, "PATH": f"{folder}:{environ['PATH']}", "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "rows: 2" in done.stdout, done.stderr[-3000:]


def session(master: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec="python3"))


def test_workers_of_a_local_master_get_the_python_of_the_driver_unless_one_is_named() -> None:
    given, chosen = session("local[4]"), session("local[*]")
    set_worker_python(given, {})
    set_worker_python(chosen, {"PYSPARK_PYTHON": "/opt/python"})
    assert (given.sparkContext.pythonExec, chosen.sparkContext.pythonExec) == (sys.executable, "python3")


def test_cluster_without_a_named_python_warns_before_the_first_task() -> None:
    cluster = session("spark://main:7077")
    with pytest.warns(WorkerPythonWarning, match="'python3' of their PATH.*set PYSPARK_PYTHON"):
        set_worker_python(cluster, {})
    assert cluster.sparkContext.pythonExec == "python3"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_worker_python(cluster, {"PYSPARK_PYTHON": "/opt/python"})
        set_worker_python(session("spark://main:7077").sparkContext, {})
