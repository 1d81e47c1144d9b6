"""Pools in a complete Airflow: a run without its pool fails with the reason; `airflow lakehouse setup` creates them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lakehouse.spec.contracts.doctor import DoctorReport
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from tests.support.fake_submit import install
from tests.support.standalone import Standalone, standalone

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
table: sales.orders
location: ${LAKEHOUSE_TABLES}/orders
record_key: order_id
ingest: {path: "${LAKEHOUSE_LANDING}", format: parquet, pool: big_tables}
"""
#: A DAG of another team. lakehouse must not change its runs.
OTHER = """\
from airflow.sdk import DAG, task
with DAG("other", schedule=None):
    @task(pool="pool_of_another_team")
    def wait(): ...
    wait()
"""
DAGS = ("ingest.sales.orders", "services.clean", "lakehouse.doctor", "other")
PYTHON = ROOT / ".venv" / "bin" / "python"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    home = tmp_path_factory.mktemp("pools")
    for name in ("specs", "dags", "landing"):
        (home / name).mkdir()
    (home / "specs" / "orders.yaml").write_text(SPEC)
    (home / "dags" / "other.py").write_text(OTHER)
    for name in ("ingest.py", "clean.py", "doctor.py"):
        (home / "dags" / name).symlink_to(ROOT / "dags" / name)
    if not PYTHON.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    fake = install(home)
    # Commands without spark-submit run in the real environment of Spark.
    (fake.home / "bin" / "python").unlink()
    (fake.home / "bin" / "python").write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    (fake.home / "bin" / "python").chmod(0o755)
    fake.plan(
        report=IngestReport(status=JobStatus.COMMITTED, table="sales.orders", instant="20260101000000000").to_json()
    )
    environment = {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "LAKEHOUSE_CATALOG": f"sqlite:///{home}/catalog.db",
        "LAKEHOUSE_DAGS_PAUSED": "*, !ingest.*",
        "LAKEHOUSE_LANDING": str(home / "landing"),
        "LAKEHOUSE_REPORTS": str(home / "reports"),
        "LAKEHOUSE_SPARK_HOME": str(fake.home),
        "LAKEHOUSE_SPECS": str(home / "specs"),
        "LAKEHOUSE_TABLES": str(home / "tables"),
    }
    with standalone(home / "airflow", environment) as running:
        wanted = set(DAGS)
        running.until(lambda: wanted <= {d["dag_id"] for d in running.call("dags")["dags"]}, "DAGs")
        paused = {d["dag_id"]: d["is_paused"] for d in running.call("dags")["dags"] if d["dag_id"] != "other"}
        assert paused == {"ingest.sales.orders": False, "services.clean": True, "lakehouse.doctor": True}
        for dag in DAGS:
            running.call(f"dags/{dag}", {"is_paused": False}, method="PATCH")
        yield running


def start(airflow: Standalone, dag: str) -> str:
    return str(airflow.call(f"dags/{dag}/dagRuns", {"logical_date": None})["dag_run_id"])


def run_of(airflow: Standalone, dag: str, run_id: str) -> Any:
    return airflow.call(f"dags/{dag}/dagRuns/{run_id}")


def ended(airflow: Standalone, dag: str, run_id: str) -> Any:
    """Wait for the end of a run and return it."""

    def finished() -> Any:
        run = run_of(airflow, dag, run_id)
        return run if run["state"] in ("success", "failed") else None

    return airflow.until(finished, f"the run of {dag} ends")


def tasks(airflow: Standalone, dag: str, run_id: str) -> dict[str, Any]:
    found = airflow.call(f"dags/{dag}/dagRuns/{run_id}/taskInstances")["task_instances"]
    return {task["task_id"]: task for task in found}


def test_service_run_without_its_pool_fails_before_its_first_task(airflow: Standalone) -> None:
    dag = "services.clean"
    run_id = start(airflow, dag)
    assert ended(airflow, dag, run_id)["state"] == "failed"
    found = tasks(airflow, dag, run_id)
    assert {name: task["state"] for name, task in found.items()} == {"due": "failed", "run": "failed"}
    assert "the pool 'lakehouse_services' does not exist" in found["due"]["note"]
    # No asset event of a later test starts this DAG again.
    airflow.call(f"dags/{dag}", {"is_paused": True}, method="PATCH")


def test_doctor_runs_without_the_pools_and_fails_with_their_names(airflow: Standalone) -> None:
    dag = "lakehouse.doctor"
    run_id = start(airflow, dag)
    run = ended(airflow, dag, run_id)
    assert run["state"] == "failed"
    assert run["conf"]["pools"]["slots"] == {"default_pool": 128}
    entry = airflow.call(f"dags/{dag}/dagRuns/{quote(run_id)}/taskInstances/doctor/xcomEntries/return_value")
    report = DoctorReport.from_json(json.dumps(entry["value"]))
    assert [check.name for check in report.failures] == ["pools"]
    found = {check.name: check for check in report.checks}
    assert (found["scheduler"].state, found["executor"].state) == ("ok", "ok")
    assert found["paused_dags"].state == "warning"
    assert found["paused_dags"].found == "1 of 3 DAGs paused: `airflow dags unpause services.clean`"
    assert "missing: big_tables, lakehouse_services" in report.failures[0].found
    log = json.dumps(airflow.call(f"dags/{dag}/dagRuns/{quote(run_id)}/taskInstances/doctor/logs/1"))
    assert "airflow lakehouse setup" in log


def test_run_with_a_missing_pool_fails_with_pool_and_command_and_runs_after_setup(airflow: Standalone) -> None:
    dag = "ingest.sales.orders"
    other = start(airflow, "other")
    run_id = start(airflow, dag)
    run = ended(airflow, dag, run_id)
    assert run["state"] == "failed"
    for note in (run["note"], tasks(airflow, dag, run_id)["ingest"]["note"]):
        assert "the pool 'big_tables' does not exist" in note
        assert "`airflow lakehouse setup`" in note
    (event,) = airflow.call(f"eventLogs?dag_id={dag}&run_id={quote(run_id)}&event=missing%20pool")["event_logs"]
    assert event["task_id"] == "ingest"
    assert "big_tables" in event["extra"]

    # The runs of other teams are not changed: Airflow lets them wait.
    waiting = lambda: tasks(airflow, "other", other)["wait"]["state"] == "scheduled"  # noqa: E731
    airflow.until(waiting, "the task of the other DAG waits")
    assert run_of(airflow, "other", other)["note"] is None

    printed = airflow.command("lakehouse", "setup", "--service-slots", "3")
    assert "pool big_tables: created with 2 slots" in printed
    assert "pool lakehouse_services: created with 3 slots" in printed
    assert f"folder of reports: {airflow.environment['LAKEHOUSE_REPORTS']}" in printed
    assert Path(airflow.environment["LAKEHOUSE_REPORTS"]).stat().st_mode & 0o777 == 0o700
    again = airflow.command("lakehouse", "setup", "--service-slots", "5")
    assert "pool lakehouse_services: exists with 3 slots, not changed" in again
    pools = {pool["name"]: pool["slots"] for pool in airflow.call("pools")["pools"]}
    assert pools.items() >= {"big_tables": 2, "lakehouse_ingest": 2, "lakehouse_services": 3}.items()
    assert "pool_of_another_team" not in pools

    airflow.call(f"dags/{dag}/clearTaskInstances", {"dag_run_id": run_id, "only_failed": True, "dry_run": False})
    cleared = ended_again(airflow, dag, run_id)
    assert cleared["state"] == "success"
    assert cleared["note"] is None
    assert tasks(airflow, dag, run_id)["ingest"]["note"] is None


def ended_again(airflow: Standalone, dag: str, run_id: str) -> Any:
    airflow.until(lambda: tasks(airflow, dag, run_id)["ingest"]["state"] == "success", f"{dag} runs after setup")
    return ended(airflow, dag, run_id)


def test_doctor_succeeds_after_setup(airflow: Standalone) -> None:
    airflow.command("lakehouse", "setup")
    run = ended(airflow, "lakehouse.doctor", start(airflow, "lakehouse.doctor"))
    assert run["state"] == "success"
    assert run["conf"]["pools"]["slots"].keys() >= {"big_tables", "lakehouse_services"}
