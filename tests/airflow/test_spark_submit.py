"""The adapter to Spark's provider, on the pinned release and on the oldest one that pyproject.toml allows."""

from __future__ import annotations

import ast
import os
import subprocess
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from lakehouse_airflow.spark_submit import SparkJobOperator
from tests.airflow.runs import run_context
from tests.support.fake_submit import FakeSubmit
from tests.support.spark_provider import PROVIDER, ROOT, oldest_provider_python, provider_bounds
from tests.support.waiting import until

#: Set in the process that repeats these tests with the oldest provider.
REPEATED = "TESTS_WITH_OLDEST_PROVIDER"
CLUSTER = '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}'


def operator(submit: FakeSubmit, **kwargs: Any) -> SparkJobOperator:
    with DAG("spark", default_args=kwargs.pop("default_args", {})):
        arguments: dict[str, Any] = {"application": "job.py", "application_args": ["--report", "r"], **kwargs}
        task = SparkJobOperator(task_id="job", **arguments)
    assert not task.has_program
    task.use_program(str(submit.home / "bin" / "spark-submit"))
    assert task.has_program
    return task


def test_operator_runs_the_program_that_is_set_while_the_task_runs(submit: FakeSubmit) -> None:
    task = operator(submit, conf={"spark.executor.memory": "2g"}, env_vars={"NAME": "value"})
    assert task.submit_process is None
    task.execute(run_context(task))
    assert submit.argv[-3:] == ["job.py", "--report", "r"]
    assert "spark.executor.memory=2g" in submit.argv
    assert submit.environment["NAME"] == "value"
    assert task.submit_process is not None and task.submit_process.returncode == 0
    task.close_output()
    assert task.submit_process.stdout is not None and task.submit_process.stdout.closed


def test_operator_shows_the_exit_code_of_spark_submit(submit: FakeSubmit) -> None:
    submit.plan(exit_code=65, output="bad data")
    task = operator(submit)
    with pytest.raises(AirflowException):
        task.execute(run_context(task))
    assert task.submit_process is not None and task.submit_process.returncode == 65
    task.close_output()


def test_submit_command_starts_the_same_as_execute(submit: FakeSubmit) -> None:
    task = operator(submit, conf={"spark.a": "b"}, env_vars={"NAME": "value", "NUMBER": "7"})
    task.execute(run_context(task))
    task.close_output()
    executed = submit.argv
    command = task.submit_command()
    assert command.words == (str(submit.home / "bin" / "spark-submit"), *executed)
    assert command.variables == {"NAME": "value", "NUMBER": "7"}


def test_deploy_mode_is_that_of_the_argument_or_of_the_connection(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not operator(submit).is_cluster
    assert operator(submit, deploy_mode="cluster").is_cluster
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", CLUSTER)
    task = operator(submit, default_args={"conn_id": "other"})
    assert (task.spark_connection, task.is_cluster) == ("other", True)
    words = task.submit_command().words
    assert words[words.index("--master") + 1] == "yarn"
    assert words[words.index("--deploy-mode") + 1] == "cluster"
    assert not operator(submit, conn_id="other", deploy_mode="client").is_cluster


def test_kill_ends_spark_submit_and_does_nothing_before_its_start(submit: FakeSubmit) -> None:
    submit.plan(hang=True)
    task = operator(submit)
    task.on_kill()
    assert not submit.was_started
    raised: list[Exception] = []

    def run() -> None:
        try:
            task.execute(run_context(task))
        except AirflowException as error:
            raised.append(error)

    running = threading.Thread(target=run)
    running.start()
    assert until(lambda: submit.driver_pid is not None)
    assert task.submit_process is not None and psutil.Process(task.submit_process.pid).is_running()
    task.on_kill()
    running.join(timeout=30)
    assert not running.is_alive() and len(raised) == 1
    assert task.submit_process.returncode != 0
    task.close_output()


def test_only_the_adapter_uses_private_names_of_the_provider() -> None:
    private = {"_hook", "_get_hook", "_submit_sp", "_spark_binary", "_conn_id", "_deploy_mode", "_env", "_connection"}
    uses = {
        (path.name, node.attr)
        for path in (ROOT / "plugins" / "lakehouse_airflow").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and (node.attr in private or node.attr.startswith("_build_spark"))
    }
    assert {name for name, _ in uses} == {"spark_submit.py"}


@pytest.mark.skipif(REPEATED in os.environ, reason="this process repeats the tests with the oldest provider")
def test_adapter_works_with_the_oldest_provider() -> None:
    python = oldest_provider_python()
    code = f"import importlib.metadata as m; print(m.version({PROVIDER!r}))"
    release = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    oldest = provider_bounds().split(",")[0].removeprefix(">=")
    assert release.startswith(oldest) and release != version(PROVIDER)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(Path(__file__))],
        cwd=ROOT,
        env={**os.environ, REPEATED: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "passed" in done.stdout
