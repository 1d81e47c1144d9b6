"""A deferred task whose application a real triggerer follows: it defers, the application ends, it resumes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.airflow.publishing import SPARK_HOME
from tests.support.background_submit import RunningYarn, install
from tests.support.fake_clusters import served
from tests.support.standalone import Standalone, standalone

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DAG_ID = "nightly"
DAG = """
from datetime import datetime, UTC
from airflow.sdk import DAG
from lakehouse_airflow.services import ServiceOperator

with DAG("nightly", schedule=None, start_date=datetime(2026, 3, 1, tzinfo=UTC)):
    ServiceOperator(
        task_id="clean", service="clean", table="{place}/specs/orders.yaml", force=True, deferrable=True, poll_s=1,
        pool="default_pool",
    )
"""
SPEC = "table: shop.orders\nlocation: {place}/orders\nrecord_key: id\noptions: {{hoodie.clean.commits.retained: 1}}\n"
FILL = """
import sys
import pyarrow as pa
from lakehouse import Table

table = Table.create(sys.argv[1], name="orders", record_key=["id"])
for number in range(4):
    table.upsert(pa.table({"id": ["a"], "v": [number]}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of four commits, its spec, and a DAG that cleans it."""
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("deferred")
    for name in ("specs", "dags"):
        (place / name).mkdir()
    (place / "specs" / "orders.yaml").write_text(SPEC.format(place=place))
    (place / "dags" / "nightly.py").write_text(DAG.format(place=place))
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    subprocess.run([SPARK_HOME / "bin" / "python", "-c", FILL, str(place / "orders")], env=environ, check=True)
    return place


@pytest.fixture(scope="module")
def yarn() -> Iterator[RunningYarn]:
    """A resource manager."""
    with served(RunningYarn()) as fake:
        assert isinstance(fake, RunningYarn)
        yield fake


@pytest.fixture(scope="module")
def airflow(place: Path, yarn: RunningYarn) -> Iterator[Standalone]:
    """Airflow with its scheduler and its triggerer, which submits to the resource manager."""
    home = install(place / "spark", SPARK_HOME / "bin" / "python", yarn.url)
    extra = {"deploy-mode": "cluster", "lakehouse": {"resource_manager": yarn.url}}
    environment = {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "yarn", "extra": json.dumps(extra)}),
        "AIRFLOW__CORE__DAGS_FOLDER": str(place / "dags"),
        "LAKEHOUSE_CATALOG": f"sqlite:///{place}/catalog.db",
        "LAKEHOUSE_REPORTS": str(place / "reports"),
        "LAKEHOUSE_SPARK_HOME": str(home),
        "LAKEHOUSE_SPECS": str(place / "specs"),
    }
    subprocess.run(
        [SPARK_HOME / "bin" / "python", "-m", "lakehouse", "catalog", "upgrade"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
        check=True,
    )
    with standalone(place / "airflow", environment) as running:
        running.until(lambda: DAG_ID in {d["dag_id"] for d in running.call("dags")["dags"]}, "DAGs")
        running.command("dags", "unpause", "-y", DAG_ID)
        yield running


def task(airflow: Standalone, run_id: str) -> dict[str, Any]:
    """Return the only task instance of a run."""
    (instance,) = airflow.call(f"dags/{DAG_ID}/dagRuns/{run_id}/taskInstances")["task_instances"]
    return dict(instance)


def reaches(airflow: Standalone, run_id: str, state: str) -> None:
    """Wait until the task of a run has the state; fail at once if it has failed."""

    def is_reached() -> bool:
        current = task(airflow, run_id)["state"]
        logs = (Path(airflow.environment["AIRFLOW_HOME"]) / "logs").glob(f"**/run_id={run_id}/**/*.log")
        assert current not in ("failed", "up_for_retry"), "\n".join(log.read_text()[-5000:] for log in logs)
        return bool(current == state)

    airflow.until(is_reached, lambda: str(task(airflow, run_id)), timeout_s=300)


def started(airflow: Standalone, run_id: str) -> None:
    """Start a run and wait until its task is deferred, while the driver waits in its application."""
    airflow.call(f"dags/{DAG_ID}/dagRuns", {"dag_run_id": run_id, "logical_date": None})
    reaches(airflow, run_id, "deferred")


def test_deferred_task_resumes_with_the_report_when_its_application_ends(
    airflow: Standalone, yarn: RunningYarn, place: Path
) -> None:
    hold = place / "spark" / "hold"
    hold.touch()
    started(airflow, "first")
    airflow.until(lambda: yarn.newest["state"] == "RUNNING", "the driver runs", timeout_s=200)
    polls = [f"GET /ws/v1/cluster/apps/{yarn.newest['id']}"]
    seen = yarn.requests.count(polls[0])
    airflow.until(
        lambda: yarn.requests.count(polls[0]) > seen + 2, "the triggerer polls the application", timeout_s=200
    )
    assert task(airflow, "first")["state"] == "deferred"
    assert task(airflow, "first")["trigger"]["classpath"].endswith("ApplicationTrigger")
    hold.unlink()
    reaches(airflow, "first", "success")
    path = f"dags/{DAG_ID}/dagRuns/first/taskInstances/clean/xcomEntries/return_value?deserialize=true"
    report = airflow.call(path)["value"]
    report = json.loads(report) if isinstance(report, str) else report
    assert report["status"] == "committed", report
    assert len(list((place / "orders").glob("*.parquet"))) < 4
    assert task(airflow, "first")["try_number"] == 1


def test_triggerer_that_is_killed_and_started_again_follows_the_application(
    airflow: Standalone, yarn: RunningYarn, place: Path
) -> None:
    hold = place / "spark" / "hold"
    hold.touch()
    started(airflow, "second")
    triggerers = [one for one in psutil.process_iter(["cmdline"]) if is_triggerer(one, airflow)]
    assert triggerers
    for process in triggerers:
        process.kill()
    with subprocess.Popen(
        [airflow.programs / "airflow", "triggerer"],
        env=airflow.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as again:
        try:
            hold.unlink()
            reaches(airflow, "second", "success")
        finally:
            again.terminate()
    assert len(yarn.applications) == 2


def is_triggerer(process: psutil.Process, airflow: Standalone) -> bool:
    """Return whether a process is the triggerer of this Airflow."""
    try:
        return (
            "triggerer" in (process.info["cmdline"] or [])
            and process.environ().get("AIRFLOW_HOME") == airflow.environment["AIRFLOW_HOME"]
        )
    except psutil.Error:
        return False
