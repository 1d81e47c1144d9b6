"""Jobs whose drivers run on YARN: a real resource manager and node manager on this host, and real spark-submits.

The nodes have the environment of this host by its paths, so nothing is packed. Reports go through the catalog, which is
SQLite here, and through HDFS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lakehouse.spec.report_store import JobDocument
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.submission.trigger import ApplicationLink
from tests.airflow.runs import RUN_ID, run_context
from tests.airflow.test_services import SPARK_HOME, python
from tests.support.hadoop import Hadoop, hadoop_at
from tests.support.waiting import until

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
#: The script of a driver that writes its secrets before and after the job loads them.
READS = """
import os, runpy
names = ("LAKEHOUSE_CATALOG", "AWS_SECRET_ACCESS_KEY")
text = "before " + " ".join(str(os.environ.get(name)) for name in names)
try:
    runpy.run_module("lakehouse", run_name="__main__", alter_sys=True)
finally:
    open({result!r}, "w").write(text + " after " + str(os.environ.get(names[1])))
"""
MAKE_ORDERS = """
import sys
import pyarrow as pa
from lakehouse import Table, load_catalog

place = f"{sys.argv[1]}/orders"
table = Table.create(place, name="orders", record_key=["id"], table_type="MERGE_ON_READ")
for value in range(3):
    table.upsert(pa.table({"id": ["a", "b"], "v": [value] * 2}))
load_catalog().register_table("sales.orders", place)
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


def test_retry_after_a_killed_task_process_waits_for_the_same_application(yarn: Hadoop, place: Path) -> None:
    """The first try is killed with SIGKILL while its driver runs, as when the worker's host is lost."""
    before = set(applications(yarn))
    hold, started, script = held(place)
    arguments = {"table": str(place / "specs" / "orders.yaml"), "application": script}
    words = [sys.executable, "-c", TASK, json.dumps(arguments), RUN_ID]
    killed = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        assert until(started.exists, limit_s=180)
    finally:
        killed.kill()
        killed.wait()
    task = operator(**arguments)
    context = run_context(task)
    with ThreadPoolExecutor(1) as pool:
        retry = pool.submit(task.execute, context)
        assert until(lambda: task._running is not None, limit_s=120)
        hold.unlink()
        assert retry.result(timeout=300)["rows"] == 2
    (new,) = set(applications(yarn)) - before
    app = applications(yarn)[new]
    assert (app["finalStatus"], app["name"]) == ("SUCCEEDED", "lakehouse ingest run")
    assert task._running[1].running.ids == {"application": new}
    assert context["pushed"][ApplicationLink.xcom_key].startswith("http")
    # The task has handled the success, so another run of it submits again.
    assert task._store(task._command(context)).read(JobDocument.SUBMISSION) == {}


def test_driver_gets_secrets_in_a_file_that_no_setting_contains(
    yarn: Hadoop, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret, result = "sentinel-9b41", tmp_path / "result"
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "login": "k", "password": secret}))
    monkeypatch.setenv("LAKEHOUSE_STORAGE_CONNECTIONS", "lake")
    script = place / "reads.py"
    script.write_text(READS.format(result=str(result)))
    before = set(applications(yarn))
    # The catalog, which stores the report, is a secret too.
    task = operator(
        table=str(place / "specs" / "orders.yaml"),
        application=str(script),
        env_vars={"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert task.execute(run_context(task))["rows"] == 2
    assert result.read_text() == f"before None None after {secret}"
    (new,) = set(applications(yarn)) - before
    texts = {
        path: path.read_bytes()
        for path in yarn.log.parent.rglob("*")
        if path.is_file() and new in str(path) and path.name != "lakehouse-credentials.json"
    }
    assert texts, "YARN keeps logs of the application"
    assert not [path for path, data in texts.items() if secret.encode() in data]
    assert secret not in json.dumps(applications(yarn))
    assert not list(Path(tempfile.gettempdir()).glob("lakehouse-*/lakehouse-credentials.json"))


def test_compaction_runs_in_cluster_mode_with_its_report_on_hdfs(
    yarn: Hadoop, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [SPARK_HOME / "bin" / "python", "-c", "import hdfs_native"]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("missing: hdfs-native in .venv; install lakehouse-tables[hdfs]")
    python(place, "-c", MAKE_ORDERS, str(place))
    monkeypatch.setenv("LAKEHOUSE_REPORTS", f"{yarn.place()}/reports")
    task = operator(verb="compaction", table="sales.orders")
    assert task.execute(run_context(task, params={"force": True}))["status"] == "committed"
    assert len(list((place / "orders" / ".hoodie" / "timeline").glob("*_*.commit"))) == 1


def test_user_error_of_a_driver_fails_the_task_without_retry_and_with_its_message(yarn: Hadoop, place: Path) -> None:
    task = operator(verb="clean", table="sales.nothing", check=False)
    with pytest.raises(AirflowFailException, match=r"^UserError: .*sales\.nothing"):
        task.execute(run_context(task))


def test_stopped_task_kills_its_application(yarn: Hadoop, place: Path) -> None:
    _, started, script = held(place)
    task = operator(table=str(place / "specs" / "orders.yaml"), application=script)
    context = run_context(task)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task.execute, context)
        assert until(started.exists, limit_s=180)
        assert task._running is not None
        application = task._running[1].running.ids["application"]
        task.on_kill()
        with pytest.raises(AirflowException, match=r"ended as (killed|failed), and left no report"):
            running.result(timeout=120)
    # The signal to its container may arrive before YARN has recorded the kill.
    assert applications(yarn)[application]["state"] in ("KILLED", "FAILED")
    assert task._store(task._command(context)).read(JobDocument.SUBMISSION) == {}
