"""Ingest real files into a table through Airflow and Spark: one DAG run, and a complete Airflow with its scheduler."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from airflow.dag_processing.dagbag import DagBag

from lakehouse_airflow.processes import JOB
from tests.support.shared import shared_dir
from tests.support.standalone import Standalone, standalone

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = ROOT / ".venv"
SPECS = ROOT / "tests" / "support" / "specs"
#: Each month is a run of Spark, so this number decides how long the test takes.
MONTHS = ("2018-11", "2018-12", "2019-01")
ROWS = 10_000 * len(MONTHS)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with the specs of the real data, a landing zone, and a folder for tables."""
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    root = tmp_path_factory.mktemp("world")
    shutil.copytree(SPECS, root / "specs")
    (root / "landing" / "stock_ticks").mkdir(parents=True)
    return root


def environment(world: Path) -> dict[str, str]:
    return {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "LAKEHOUSE_SPARK_HOME": str(SPARK_HOME),
        "LAKEHOUSE_REPORTS": str(world / "reports"),
        "LAKEHOUSE_SPECS": str(world / "specs"),
        "LAKEHOUSE_SHARED": str(shared_dir()),
        "LAKEHOUSE_LANDING": str(world / "landing"),
        "LAKEHOUSE_TABLES": str(world / "tables"),
    }


def rows_of(location: Path) -> int:
    """Count the rows of a table in Spark's environment, because this environment has no Arrow."""
    script = "import sys; from lakehouse import Table; print(Table.open(sys.argv[1]).scan().to_arrow().num_rows)"
    command = [SPARK_HOME / "bin" / "python", "-c", script, str(location)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_two_batches_of_stock_ticks_make_197_rows(world: Path, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(world).items():
        monkeypatch.setenv(name, value)
    landing, table = world / "landing" / "stock_ticks", world / "tables" / "stock_ticks"
    dag_id = "ingest.market.stock_ticks"
    for batch in (1, 2):
        shutil.copy(shared_dir() / "data" / "stock_ticks" / f"batch_{batch}.json", landing)
        assert run_dag(dag_id) == "success"
        assert rows_of(table) == 197
    commits = sorted(path.name for path in (table / ".hoodie" / "timeline").glob("*_*.commit"))
    assert run_dag(dag_id) == "success"
    assert sorted(path.name for path in (table / ".hoodie" / "timeline").glob("*_*.commit")) == commits
    assert len(commits) == 2


def run_dag(dag_id: str) -> str:
    """Run the DAG in this process and return the state of its task."""
    run = DagBag(ROOT / "dags").dags[dag_id].test()
    (instance,) = run.get_task_instances()
    return str(instance.state)


@pytest.fixture(scope="module")
def airflow(world: Path) -> Iterator[Standalone]:
    """Start Airflow with the specs, a spec whose run takes long, and a broken spec."""
    specs = world / "specs"
    taxi = specs / "nyc_taxi.yaml"
    taxi.write_text(taxi.read_text(encoding="utf-8").replace("catchup: true", "catchup: false"), encoding="utf-8")
    stopped = (SPECS / "stock_ticks.yaml").read_text(encoding="utf-8")
    stopped = stopped.replace("table: market.stock_ticks", "table: stopped")
    stopped = stopped.replace("TABLES}/stock_ticks", "TABLES}/stopped")
    # A run without files does not start Spark.
    (world / "landing" / "stopped").mkdir()
    shutil.copy(shared_dir() / "data" / "stock_ticks" / "batch_1.json", world / "landing" / "stopped")
    stopped = stopped.replace("LANDING}/stock_ticks", "LANDING}/stopped")
    (specs / "stopped.yaml").write_text(stopped, encoding="utf-8")
    (specs / "broken.yaml").write_text("table: broken\nlocaton: x\n", encoding="utf-8")
    with standalone(world / "airflow", environment(world)) as running:
        running.command("pools", "set", "lakehouse_ingest", "2", "Spark jobs of ingestion")
        wanted = {"ingest.taxi.trips", "ingest.stopped"}
        running.until(lambda: wanted <= set(dags(running)), "the DAGs are there")
        yield running


def dags(airflow: Standalone) -> list[str]:
    return [dag["dag_id"] for dag in airflow.call("dags")["dags"] if not dag["has_import_errors"]]


def tasks(airflow: Standalone, dag_id: str) -> list[dict[str, Any]]:
    return list(airflow.call(f"dags/{dag_id}/dagRuns/~/taskInstances")["task_instances"])


def test_broken_spec_is_an_import_error_and_other_dags_remain(airflow: Standalone) -> None:
    (error,) = airflow.call("importErrors")["import_errors"]
    assert error["filename"] == "spec_errors.py"
    assert "broken.yaml:2: unknown name 'locaton'" in error["stack_trace"]
    found = {dag for dag in dags(airflow) if dag.startswith("ingest.")}
    assert found == {"ingest.market.stock_ticks", "ingest.taxi.trips", "ingest.stopped"}
    assert airflow.call("plugins/importErrors")["import_errors"] == []


def test_marking_a_run_failed_ends_the_jvm_and_the_driver(airflow: Standalone) -> None:
    airflow.command("dags", "unpause", "-y", "ingest.stopped")
    run_id = airflow.call("dags/ingest.stopped/dagRuns", {"logical_date": None})["dag_run_id"]
    job_id = f"ingest.stopped/{run_id}/ingest"
    # The job has a JVM, and the JVM starts the Python driver.
    airflow.until(lambda: {"java", "python"} <= set(processes(job_id)), "the driver runs")
    url = f"dags/ingest.stopped/dagRuns/{quote(run_id)}/taskInstances/ingest"
    airflow.call(url, {"new_state": "failed"}, method="PATCH")
    airflow.until(lambda: not processes(job_id), "all processes of the job are gone")
    assert [task["state"] for task in tasks(airflow, "ingest.stopped")] == ["failed"]


def processes(job_id: str) -> list[str]:
    """Return the running processes of a job."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(JOB) == job_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append("python" if process.name().startswith("python") else process.name())
        except psutil.Error:
            continue
    return found


def test_backfill_ingests_months_of_trips_once(airflow: Standalone, world: Path) -> None:
    dag_id = "ingest.taxi.trips"
    airflow.backfill(dag_id, "2018-11-01", "2019-01-31")
    cancelled = ended(airflow, dag_id)
    airflow.command("dags", "unpause", "-y", dag_id)
    airflow.until(lambda: count(airflow, dag_id, "success") == len(MONTHS), "the months are ingested")
    assert rows_of(world / "tables" / "nyc_taxi") == ROWS
    events = airflow.call("assets/events?source_dag_id=" + dag_id)["asset_events"]
    assert sum(event["extra"]["rows"] for event in events) == ROWS
    assert len({event["extra"]["instant"] for event in events}) == len(MONTHS)
    assert {event["extra"]["interval_start"][:7] for event in events} == set(MONTHS)

    # The second run of a month finds its interval in a commit and makes no new commit.
    airflow.until(lambda: ended(airflow, dag_id) > cancelled, "the backfill ended")
    before = ended(airflow, dag_id)
    airflow.backfill(dag_id, "2018-11-01", "2018-11-30", "--reprocess-behavior", "completed")
    airflow.until(lambda: ended(airflow, dag_id) > before, "the month ran again")
    assert rows_of(world / "tables" / "nyc_taxi") == ROWS
    again = airflow.call("assets/events?source_dag_id=" + dag_id)["asset_events"]
    assert {event["extra"]["instant"] for event in again} == {event["extra"]["instant"] for event in events}

    # Voided trips have a negative total. Only these rows are deleted.
    voided = sum(
        voided_trips(path)
        for path in (shared_dir() / "data" / "nyc_taxi").glob("*.csv.gz")
        if path.name.removesuffix(".csv.gz").endswith(MONTHS)
    )
    assert voided > 0
    command = ["-m", "lakehouse", "table", "delete", "--table", str(world / "tables" / "nyc_taxi")]
    condition = ["--where", "total_amount < 0", "--output", "json"]
    done = subprocess.run(
        [SPARK_HOME / "bin" / "python", *command, *condition], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["rows"] == voided
    assert rows_of(world / "tables" / "nyc_taxi") == ROWS - voided


def test_interval_without_a_file_fails_at_the_first_try_with_a_logged_reason(airflow: Standalone) -> None:
    # Unpausing ran the latest past month, for which there is no file.
    dag_id = "ingest.taxi.trips"
    (failed,) = airflow.until(
        lambda: [task for task in tasks(airflow, dag_id) if task["state"] == "failed"], "it failed"
    )
    assert failed["try_number"] == 1
    log = airflow.call(f"dags/{dag_id}/dagRuns/{quote(failed['dag_run_id'])}/taskInstances/ingest/logs/1")
    assert "yellow_tripdata_sample_20" in json.dumps(log)
    assert "UserError" in json.dumps(log)


def voided_trips(path: Path) -> int:
    with gzip.open(path, "rt", newline="") as lines:
        return sum(float(row["total_amount"]) < 0 for row in csv.DictReader(lines))


def count(airflow: Standalone, dag_id: str, state: str) -> int:
    return len([task for task in tasks(airflow, dag_id) if task["state"] == state])


def ended(airflow: Standalone, dag_id: str) -> int:
    return len([b for b in airflow.call(f"backfills?dag_id={dag_id}")["backfills"] if b["completed_at"]])
