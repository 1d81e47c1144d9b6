"""The same DAGs on clusters: a real Spark standalone cluster, and the spark-submit commands for YARN and Kubernetes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from lakehouse.spec.contracts.job import JobStatus, ServiceReport
from lakehouse_airflow import operators
from lakehouse_airflow.services import ServiceOperator
from tests.airflow.runs import run_context
from tests.airflow.test_services import MAKE, SPARK_HOME, python, run_dag
from tests.support.fake_submit import FakeSubmit

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
START_S = 90


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def compose_command(service: str, ports: dict[str, str]) -> list[str]:
    """Return the command with which docker-compose.yml starts a service of the cluster, on other ports."""
    parts = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"][service]["command"]
    words = [str(part) for part in parts]
    for old, new in {**ports, "spark-master": HOST, "${LAKEHOUSE_WORKER_CORES:-2}": "2"}.items():
        words = [word.replace(old, new) for word in words]
    return [word.replace("${LAKEHOUSE_WORKER_MEMORY:-4g}", "2g") for word in words]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Start a master and a worker as docker-compose.yml does; yield the URLs of the master and of its page."""
    if not (SPARK_HOME / "bin" / "spark-class").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("cluster")
    master, page, worker_page = map(str, free_ports(3))
    ports = {"7077": master, "8081": page, "8082": worker_page}
    home = subprocess.run(
        [SPARK_HOME / "bin" / "python", "-c", "import os, pyspark; print(os.path.dirname(pyspark.__file__))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": str(SPARK_HOME / "bin" / "python"),
    }
    running = []
    try:
        for part in ("spark-master", "spark-worker"):
            command = [str(SPARK_HOME / "bin" / "spark-class"), *compose_command(part, ports)]
            with (place / f"{part}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        command, cwd=place, env=environment, stdout=log, stderr=log, start_new_session=True
                    )
                )
            _wait_for(
                f"http://{HOST}:{page}/json/", lambda state, part=part: part == "spark-master" or state["aliveworkers"]
            )
        yield f"spark://{HOST}:{master}", f"http://{HOST}:{page}/json/"
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def _wait_for(url: str, holds: Any) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=5) as answer:
                if holds(json.load(answer)):
                    return
        except (URLError, OSError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"{url} gave no expected answer within {START_S} s")


@pytest.mark.slow
def test_service_runs_on_a_standalone_cluster(
    cluster: tuple[str, str], tmp_path: Path, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, page = cluster
    python(tmp_path, "-c", MAKE, str(tmp_path))
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(SPARK_HOME))
    monkeypatch.setenv("LAKEHOUSE_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("SPARK_LOCAL_IP", HOST)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
    assert run_dag("compaction", tables=["sales.orders"]) == {"due": ["success"], "run": ["success"]}
    assert len(list((tmp_path / "orders" / ".hoodie" / "timeline").glob("*_*.commit"))) == 1
    with urlopen(page, timeout=5) as answer:
        done = json.load(answer)["completedapps"]
    assert [app["state"] for app in done if "compaction" in app["name"]] == ["FINISHED"]


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (
            {"host": "yarn", "extra": json.dumps({"queue": "etl", "deploy-mode": "client"})},
            ["--master", "yarn", "--queue", "etl", "--deploy-mode", "client"],
        ),
        ({"host": "spark://m1:7077,m2:7077"}, ["--master", "spark://m1:7077,m2:7077"]),
    ],
)
def test_connection_selects_the_cluster_of_a_job(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], expected: list[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))
    submit.plan(report=ServiceReport(status=JobStatus.COMMITTED, table="a.b", instant="20260101000000001").to_json())
    task = service_task(conf={"spark.executor.memory": "4g"})
    task.execute(run_context(task))
    words = submit.argv
    for flag, value in zip(expected[::2], expected[1::2], strict=True):
        assert words[words.index(flag) + 1] == value
    assert "spark.executor.memory=4g" in words


def service_task(**kwargs: Any) -> Any:
    with DAG("ingest.sales.orders"):
        return ServiceOperator(task_id="ingest", service="clean", table="a.b", pool="default_pool", **kwargs)


KUBERNETES = {"conn_type": "spark", "host": "k8s://https://kubernetes", "port": 6443}


def test_kubernetes_master_is_refused_without_its_provider(submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch) -> None:
    # The environment of the tests has the provider.
    monkeypatch.setattr(operators, "find_spec", lambda name: None)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(KUBERNETES))
    task = service_task()
    with pytest.raises(AirflowFailException, match="apache-airflow-providers-cncf-kubernetes"):
        task.execute(run_context(task))


def test_job_is_submitted_to_kubernetes_with_the_provider(submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch) -> None:
    # The test only pretends that the provider and its client are installed; they do not change the command.
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    monkeypatch.setattr(operators, "find_spec", lambda name: name)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(KUBERNETES))
    submit.plan(
        report=ServiceReport(status=JobStatus.COMMITTED, table="a.b", instant="20260101000000001").to_json(),
        output="container status: exit code: 0",
    )
    conf = {"spark.kubernetes.namespace": "lake", "spark.kubernetes.container.image": "lakehouse-airflow"}
    task = service_task(conf=conf)
    task.execute(run_context(task))
    words = submit.argv
    assert words[words.index("--master") + 1] == "k8s://https://kubernetes:6443"
    assert "spark.kubernetes.namespace=lake" in words
