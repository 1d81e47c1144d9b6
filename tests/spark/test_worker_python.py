"""A script of a user, whose PATH has a `python3` without NumPy, uses the Python of the script in Spark's workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

import lakehouse
from lakehouse.errors import RetryableError, UserError
from lakehouse.spark.worker_credentials import hadoop_settings, worker_variables
from lakehouse.spark.worker_python import set_worker_python
from tests.spark.test_ended_workers import JavaError

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


class Answers:
    """A context on a cluster with two executors, whose tasks return an answer or fail."""

    master, pythonExec, conf = "spark://main:7077", "python3", "(?i)secret|access[.]?key"

    def __init__(self, *answers: tuple[str, str, str, str], failure: str = "") -> None:
        self.answers, self.failure = answers, failure
        self.tasks: list[int] = []
        self.applicationId = f"app-{id(self)}"
        self.environment: dict[str, str] = {}
        self.hadoop: dict[str, str] = {}
        self._jsc = SimpleNamespace(
            sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 3)),
            hadoopConfiguration=lambda: SimpleNamespace(set=self.hadoop.__setitem__),
        )

    def parallelize(self, numbers: range, tasks: int) -> Answers:
        self.tasks.append(tasks)
        return self

    def mapPartitions(self, function: Any) -> Answers:
        # Spark sends the function as code: it refers to nothing that a worker would have to import.
        assert not any(name in function.__code__.co_names for name in ("lakehouse", "UserError", "SparkContext"))
        return self

    def collect(self) -> list[tuple[str, str, str, str]]:
        if self.failure:
            raise Py4JJavaError("failed", JavaError("org.apache.spark.SparkException", self.failure))
        return list(self.answers)

    def getConf(self) -> Any:
        return SimpleNamespace(get=lambda key, default: self.conf, contains=lambda key: False)

    def getLocalProperty(self, key: str) -> None:
        return None

    def setLocalProperty(self, key: str, value: str | None) -> None:
        return None


def test_workers_of_a_local_master_get_the_python_of_the_driver_unless_one_is_named() -> None:
    given, chosen = (
        SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec="python3"))
        for master in ("local[4]", "local[*]")
    )
    set_worker_python(given, {})
    set_worker_python(chosen, {"PYSPARK_PYTHON": "/opt/python"})
    assert (given.sparkContext.pythonExec, chosen.sparkContext.pythonExec) == (sys.executable, "python3")


def checked(context: Answers, environ: dict[str, str] | None = None) -> None:
    set_worker_python(SimpleNamespace(sparkContext=context), environ or {})  # type: ignore[arg-type]


def test_executors_of_a_cluster_are_checked_once_per_application() -> None:
    context = Answers(("node", "python3", "", lakehouse.__version__))
    checked(context)
    checked(context)
    assert context.tasks == [2]
    set_worker_python(SimpleNamespace(), {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (
            Answers(("node-1", "/usr/bin/python3", "ModuleNotFoundError: No module named 'lakehouse'", "")),
            r"workers on node-1 \(/usr/bin/python3\) cannot run tasks: .*'lakehouse'. Give the nodes",
        ),
        (Answers(("node-1", "python3", "", "0.0.9")), r"has lakehouse 0\.0\.9, and the driver has .*environment pack"),
        (
            Answers(failure='Job aborted: java.io.IOException: Cannot run program "./environment/bin/python": error=2'),
            r"workers \(python3\) does not start: Cannot run program .*error=2. Give the nodes",
        ),
        (
            Answers(failure="Error from python worker: [PYTHON_VERSION_MISMATCH] Python in worker has version 3.9\nat"),
            r"does not start: \[PYTHON_VERSION_MISMATCH\] Python in worker has version 3.9\. Give",
        ),
        (
            Answers(failure="Error from python worker:\n  python3: No module named pyspark.daemon\nPYTHONPATH was"),
            r"does not start: python3: No module named pyspark\.daemon\. Give",
        ),
    ],
)
def test_python_of_a_worker_that_cannot_run_tasks_is_a_user_error_with_the_remedy(
    context: Answers, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        checked(context)
    with pytest.raises(UserError):
        checked(context)
    assert len(context.tasks) == 2, "a failed check is repeated"


def test_lost_executor_during_the_check_is_retryable() -> None:
    with pytest.raises(RetryableError, match="checking the Python of the workers"):
        checked(Answers(failure="Job aborted: ExecutorLostFailure (executor 1 exited)"))


def test_credentials_reach_workers_and_readers_but_no_setting_that_spark_shows() -> None:
    context = Answers(("node", "python3", "", lakehouse.__version__))
    environ = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": "http://store",
        "AZURE_STORAGE_ACCOUNT_NAME": "lake",
        "AZURE_STORAGE_ACCOUNT_KEY": "shown",
        "PATH": "/bin",
    }
    checked(context, environ)
    assert context.environment == {name: value for name, value in environ.items() if name != "PATH"}
    # Spark's default hides no key of Azure, so the setting is left out.
    assert context.hadoop == {
        "fs.s3a.access.key": "key",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.endpoint": "http://store",
        "fs.s3a.path.style.access": "true",
    }
    assert "fs.azure.account.key.lake.dfs.core.windows.net" in hadoop_settings(environ, "account[.]key")


def test_variables_of_the_driver_host_are_not_sent(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text("{}")
    environ = {
        "AWS_PROFILE": "mine",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/token",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2",
        "AWS_REGION": "us-east-1",
        "AZURE_FEDERATED_TOKEN_FILE": "/token",
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
        "HADOOP_USER_NAME": "etl",
    }
    sent = {"AWS_REGION": "us-east-1", "GOOGLE_SERVICE_ACCOUNT_KEY": "{}", "HADOOP_USER_NAME": "etl"}
    assert worker_variables(environ) == sent
    with pytest.raises(UserError, match=r"the key file .* cannot be read"):
        worker_variables({"GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "none")})
