"""Jobs whose drivers run on YARN: a real resource manager and node manager on this host, and real spark-submits.

The nodes have the environment of this host by its paths, so nothing is packed. Reports go through the catalog, which is
SQLite here, and through HDFS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lakehouse_airflow.operators import LakehouseOperator
from tests.airflow.runs import run_context
from tests.airflow.test_services import SPARK_HOME
from tests.support.hadoop import Hadoop, hadoop_at

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SPEC = """table: sales.orders
location: {place}/orders
record_key: [id]
type: MERGE_ON_READ
ingest: {{path: {place}/in, format: csv}}
"""
#: The script of a driver that waits while a file exists, and then runs the job.
HELD = """
import os, runpy, time
open({started!r}, "w").close()
while os.path.exists({hold!r}):
    time.sleep(0.1)
runpy.run_module("lakehouse", run_name="__main__", alter_sys=True)
"""
TASK = """
import json, sys
from tests.airflow.test_yarn import operator
from tests.airflow.runs import run_context

task = operator(**json.loads(sys.argv[1]))
context = run_context(task)
context["ti"].run_id = sys.argv[2]
print(json.dumps(task.execute(context)))
"""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    with hadoop_at(tmp_path_factory.mktemp("yarn"), nodemanagers=1) as running:
        yield running


@pytest.fixture
def place(yarn: Hadoop, tmp_path: Path, database: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table spec and a file to ingest, and the environment of a task."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id,v\na,1\nb,2\n")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "orders.yaml").write_text(SPEC.format(place=tmp_path))
    jars = next((SPARK_HOME / "lib").glob("python*/site-packages/pyspark/jars"))
    extra = {"deploy-mode": "cluster"}
    variables = {
        **yarn.environment,
        "LAKEHOUSE_CATALOG": f"sqlite:///{tmp_path}/catalog.db",
        "LAKEHOUSE_SPARK_HOME": str(SPARK_HOME),
        "LAKEHOUSE_REPORTS": "catalog",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "yarn", "extra": json.dumps(extra)}),
        "TEST_JARS": str(jars),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def operator(**kwargs: Any) -> LakehouseOperator:
    conf = {
        # The jars of Spark are on each node, so they are not uploaded.
        "spark.yarn.jars": f"local:{os.environ['TEST_JARS']}/*",
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
    }
    variables = {"LAKEHOUSE_CATALOG": os.environ["LAKEHOUSE_CATALOG"], "SPARK_LOCAL_IP": "127.0.0.1"}
    arguments = {"verb": "ingest", "action": "run", "poll_s": 0.5, "conf": conf, "env_vars": variables}
    return LakehouseOperator(task_id="run", **{**arguments, **kwargs})


def applications(yarn: Hadoop) -> dict[str, dict[str, Any]]:
    answer = requests.get(f"{yarn.resource_manager}/ws/v1/cluster/apps", timeout=30).json()
    return {app["id"]: app for app in (answer["apps"] or {}).get("app", ())}


def held(place: Path) -> tuple[Path, Path, str]:
    """Return a file whose deletion lets the driver continue, a file that it creates, and its script."""
    hold, started, script = place / "hold", place / "started", place / "held.py"
    hold.touch()
    script.write_text(HELD.format(started=str(started), hold=str(hold)))
    return hold, started, str(script)


def test_ingest_and_compaction_run_in_cluster_mode(yarn: Hadoop, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(applications(yarn))
    ingest = operator(table=str(place / "specs" / "orders.yaml"))
    context = run_context(ingest)
    assert ingest.execute(context)["rows"] == 2
    (new,) = set(applications(yarn)) - before
    app = applications(yarn)[new]
    assert (app["finalStatus"], app["name"]) == ("SUCCEEDED", "lakehouse ingest run")
    assert context["pushed"]["lakehouse_application_link"].startswith("http")
    if "hdfs" in sys.argv or python_has_hdfs():
        monkeypatch.setenv("LAKEHOUSE_REPORTS", f"{yarn.place()}/reports")
    compaction = operator(verb="compaction", table="sales.orders", force=True)
    compaction.force = True
    assert compaction.execute(run_context(compaction))["status"] in ("committed", "nothing_to_do")
    assert len(applications(yarn)) == len(before) + 2


def python_has_hdfs() -> bool:
    code = "import hdfs_native"
    return subprocess.run([SPARK_HOME / "bin" / "python", "-c", code], capture_output=True, check=False).returncode == 0
