"""The DAG `services.schedule` in a complete Airflow: one pass per event, and decisions during long runs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from lakehouse.spec.contracts.fleet import FleetPass, JobResources, ServiceBatch
from lakehouse_airflow import schedule
from lakehouse_airflow.pools import SCHEDULER
from lakehouse_airflow.schedule import DAG_ID, decided_jobs, looked_tables
from lakehouse_airflow.services import POOL, due_batches
from tests.support.fake_submit import install
from tests.support.standalone import Standalone, standalone

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
SPEC = """\
table: sales.{name}
location: ${{LAKEHOUSE_TABLES}}/{name}
record_key: id
ingest: {{path: "${{LAKEHOUSE_LANDING}}", format: parquet}}
"""
#: The clock of this DAG starts no pass during a test. Airflow runs a DAG at once if its clock had a time since the
#: start date, and that pass would take the only slot for another table; so there must be none.
DAG_FILE = """\
from datetime import UTC, datetime

from lakehouse_airflow.schedule import schedule_dag

dag = schedule_dag(schedule="0 0 29 2 *", start_date=datetime.fromtimestamp({now}, tz=UTC))
"""
MAKE = """
import sys
import pyarrow as pa
from lakehouse import Table, load_catalog

catalog = load_catalog()
for name in ("orders", "items", "others"):
    table = Table.create(f"{sys.argv[1]}/{name}", name=name, record_key=["id"], table_type="MERGE_ON_READ")
    for value in range(6):
        table.upsert(pa.table({"id": ["a", "b"], "v": [value] * 2}))
    catalog.register_table(f"sales.{name}", f"{sys.argv[1]}/{name}")
"""


def asset(name: str, uri: str) -> SimpleNamespace:
    return SimpleNamespace(asset=SimpleNamespace(name=name, uri=uri))


def test_events_name_the_tables_of_a_pass_and_params_replace_them() -> None:
    events = {
        1: [asset("sales.orders", "lakehouse://sales/orders")] * 2,
        2: [asset("sales.items", "lakehouse://sales/items")],
        3: [asset("hive://a/b", "hive://a/b")],
    }
    assert looked_tables({"triggering_asset_events": events}) == ["sales.items", "sales.orders"]
    assert looked_tables({"triggering_asset_events": events, "params": {"tables": ["a.b"]}}) == ["a.b"]
    assert looked_tables({"params": {}}) == []


def test_jobs_of_a_pass_have_resources_that_properties_of_the_deployment_replace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resources = JobResources(driver_memory="2g", executor_memory="3g", num_executors=4, executor_cores=2)
    batch = ServiceBatch(service="clean", tables=("a.b",), seconds=1.0, bytes=5, resources=resources)
    commands: list[list[str]] = []

    def run(words: list[str]) -> str:
        commands.append(words)
        return FleetPass(batches=(batch,)).to_json()

    monkeypatch.setattr(schedule, "run_command", run)
    monkeypatch.setenv("LAKEHOUSE_SERVICE_SLOTS", "7")
    context: Any = {"params": {"tables": ["a.b"]}}
    (job,) = decided_jobs(context, arguments=["--horizon", "5m"], properties=["spark.executor.memory"])
    assert job == {"service": "clean", "table": ["a.b"], "driver_memory": "2g", "num_executors": 4, "executor_cores": 2}
    (words,) = commands
    assert words[:4] == ["services", "pass", "--slots", "7"] and words[4:7] == ["--table", "a.b", "--skip-unknown"]


def test_decision_releases_the_runs_of_dag_runs_that_ended_before_the_jobs_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"ended": "failed", "active": "running", "queued": "queued"}
    claims = ("by hand", *(f"{DAG_ID}/{run}" for run in (*states, "unknown")))
    commands: list[list[str]] = []

    def run(words: list[str]) -> str:
        commands.append(words)
        return FleetPass(claims=claims).to_json()

    def state(dag: str, run_id: str) -> str:
        if dag != DAG_ID or run_id not in states:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        return states[run_id]

    monkeypatch.setattr(schedule, "run_command", run)
    context: Any = {"run_id": "scheduled__1", "ti": SimpleNamespace(get_dagrun_state=state)}
    assert decided_jobs(context) == []
    decide, release = commands
    assert decide[-4:] == ["--claim", f"{DAG_ID}/scheduled__1", "--output", "json"]
    assert release == ["services", "release", "--claim", f"{DAG_ID}/ended"]


def test_failed_job_releases_its_own_runs_and_keeps_the_callbacks_of_the_deployment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def run(words: list[str]) -> str:
        commands.append(words)
        return ""

    def notify(context: Any) -> None:
        assert context["run_id"] == "scheduled__1"
        commands.append(["notify"])

    monkeypatch.setattr(schedule, "run_command", run)
    made: Any = schedule.schedule_dag(assets=[], default_args={"on_failure_callback": notify})
    mapped = made.get_task("run")
    task = mapped.unmap({"service": "clean", "table": ["a.b", "a.c"]})
    for callback in task.on_failure_callback:
        callback({"task": task, "run_id": "scheduled__1"})
    words = ["services", "release", "--claim", f"{DAG_ID}/scheduled__1", "--service", "clean"]
    assert commands == [[*words, "--table", "a.b", "--table", "a.c"], ["notify"]]
    # The callback of a process that ended has the mapped task, which has no table.
    schedule.release_failed({"task": mapped, "run_id": "scheduled__1"})
    assert len(commands) == 2


def test_deciding_and_jobs_have_different_pools_and_many_runs_may_be_active() -> None:
    bag = DagBag(ROOT / "dags")
    assert bag.import_errors == {}
    dag = bag.dags[DAG_ID]
    assert (dag.get_task("decide").pool, dag.get_task("run").pool) == (SCHEDULER.name, POOL)
    assert dag.max_active_runs >= 50
    watching = [name for name, other in bag.dags.items() if name.startswith("services.") and _watches(other)]
    assert watching == [DAG_ID]


def _watches(dag: Any) -> bool:
    return bool(getattr(dag.timetable, "asset_condition", None))


@pytest.mark.parametrize(("run_type", "decides"), [("scheduled", False), ("manual", True), ("backfill", True)])
def test_service_dag_leaves_scheduled_decisions_to_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, run_type: str, decides: bool
) -> None:
    asked: list[str] = []

    def tables(service: str, context: Any, *, arguments: Any) -> list[list[str]]:
        asked.append(service)
        return [["a.b"]]

    monkeypatch.setattr("lakehouse_airflow.services.due_tables", tables)
    found = due_batches.function("clean", (), False, dag_run=SimpleNamespace(run_type=run_type))
    assert (found, asked) == (([["a.b"]], ["clean"]) if decides else ([], []))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Run Airflow with three due tables, one slot for jobs, and jobs that do not end."""
    if not PYTHON.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    home = tmp_path_factory.mktemp("schedule")
    for name in ("specs", "dags", "landing", "tables"):
        (home / name).mkdir()
    for name in ("orders", "items", "others"):
        (home / "specs" / f"{name}.yaml").write_text(SPEC.format(name=name))
    (home / "dags" / "schedule.py").write_text(DAG_FILE.format(now=int(time.time())))
    for name in ("clean.py", "compaction.py", "archive.py"):
        (home / "dags" / name).symlink_to(ROOT / "dags" / name)
    fake = install(home)
    # Commands without spark-submit run in the real environment of Spark.
    (fake.home / "bin" / "python").unlink()
    (fake.home / "bin" / "python").write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    (fake.home / "bin" / "python").chmod(0o755)
    fake.plan(hang=True)
    environment = {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "LAKEHOUSE_CATALOG": f"sqlite:///{home}/catalog.db",
        "LAKEHOUSE_LANDING": str(home / "landing"),
        "LAKEHOUSE_REPORTS": str(home / "reports"),
        "LAKEHOUSE_SERVICE_SLOTS": "1",
        "LAKEHOUSE_SPARK_HOME": str(fake.home),
        "LAKEHOUSE_SPECS": str(home / "specs"),
        "LAKEHOUSE_TABLES": str(home / "tables"),
    }
    made = subprocess.run(
        [PYTHON, "-c", dedent(MAKE), str(home / "tables")],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    with standalone(home / "airflow", environment) as running:
        running.command("lakehouse", "setup")
        names = {DAG_ID, "services.clean", "services.compaction", "services.archive"}
        running.until(lambda: names <= {d["dag_id"] for d in running.call("dags")["dags"]}, "DAGs")
        for dag in sorted(names):
            running.call(f"dags/{dag}", {"is_paused": False}, method="PATCH")
        yield running
        for run in runs_of(running, DAG_ID):
            running.call(f"dags/{DAG_ID}/dagRuns/{quote(run['dag_run_id'])}", {"state": "failed"}, method="PATCH")


def runs_of(airflow: Standalone, dag: str, run_type: str = "asset_triggered") -> list[Any]:
    found = airflow.call(f"dags/{dag}/dagRuns?order_by=run_after")["dag_runs"]
    return [run for run in found if run["run_type"] == run_type]


def tasks_of(airflow: Standalone, run: Any) -> dict[str, Any]:
    place = f"dags/{DAG_ID}/dagRuns/{quote(run['dag_run_id'])}/taskInstances"
    return {task["task_id"]: task for task in airflow.call(place)["task_instances"]}


def jobs_of(airflow: Standalone, run: Any) -> set[str]:
    """Return the states of the jobs of a pass."""
    place = f"dags/{DAG_ID}/dagRuns/{quote(run['dag_run_id'])}/taskInstances"
    return {str(task["state"]) for task in airflow.call(place)["task_instances"] if task["task_id"] == "run"}


def commit(airflow: Standalone, table: str) -> None:
    """Create the event of a commit to a table."""
    found = airflow.call("assets?limit=100")["assets"]
    (number,) = [one["id"] for one in found if one["name"] == table]
    airflow.call("assets/events", {"asset_id": number, "extra": {}})


def decided_run(airflow: Standalone, number: int) -> Any:
    """Wait until the pass of an event has decided, and return its run."""

    def found() -> Any:
        runs = runs_of(airflow, DAG_ID)
        done = len(runs) >= number and tasks_of(airflow, runs[number - 1])["decide"]["state"] in ("success", "failed")
        return runs[number - 1] if done else None

    return airflow.until(found, f"pass {number} decides")


def log_of(airflow: Standalone, run: Any) -> str:
    place = f"dags/{DAG_ID}/dagRuns/{quote(run['dag_run_id'])}/taskInstances/decide/logs/1"
    return json.dumps(airflow.call(place))


@pytest.mark.slow
def test_commit_starts_one_pass_that_looks_at_its_table_and_long_jobs_delay_no_decision(airflow: Standalone) -> None:
    commit(airflow, "sales.orders")
    first = decided_run(airflow, 1)
    assert tasks_of(airflow, first)["decide"]["state"] == "success"
    text = log_of(airflow, first)
    assert '"looked at 1 tables: sales.orders"' in text
    # No other DAG of a service starts by the event.
    assert [runs_of(airflow, f"services.{name}") for name in ("clean", "compaction", "archive")] == [[], [], []]

    def is_running() -> bool:
        return "running" in jobs_of(airflow, first)

    airflow.until(is_running, lambda: f"the job of the first pass runs: {tasks_of(airflow, first)}")
    # The job holds the only slot of services. The next commit is decided still.
    commit(airflow, "sales.items")
    second = decided_run(airflow, 2)
    assert tasks_of(airflow, second)["decide"]["state"] == "success"
    assert '"looked at 1 tables: sales.items"' in log_of(airflow, second)
    decided = airflow.call(
        f"dags/{DAG_ID}/dagRuns/{quote(second['dag_run_id'])}/taskInstances/decide/xcomEntries/return_value"
    )
    jobs = decided["value"] if isinstance(decided["value"], list) else json.loads(decided["value"])
    # The service of the second table is due. Its job was to begin after that of the first one, and waits in the pool.
    assert [(job["service"], job["table"]) for job in jobs] == [("compaction", ["sales.items"])]
    assert is_running()
    assert "running" not in jobs_of(airflow, second)
    assert len(runs_of(airflow, DAG_ID)) == 2
