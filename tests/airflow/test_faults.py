"""Faults of service DAGs in a complete Airflow: plans are executed once, and Airflow shows their state within 60 s.

Jobs run without Spark, so each takes a second. tests/property/test_service_runs has faults at random moments.

LAKEHOUSE_EXAMPLES=20 pytest tests/airflow/test_faults.py      each fault happens to 20 runs, five tables at a time
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from lakehouse_airflow.processes import JOB, end_job
from lakehouse_airflow.services import POOL
from tests.support.plain_submit import install
from tests.support.postgresql import Server, server
from tests.support.standalone import Standalone, standalone

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
DAG = "services.compaction"
FAULTS = int(os.environ.get("LAKEHOUSE_EXAMPLES", "1"))
#: The number of tables that have the same fault at once, each in its own task.
WIDTH = min(FAULTS, 5)
ROUNDS = math.ceil(FAULTS / WIDTH)
TABLES = [f"t{n}" for n in range(WIDTH)]
DAYS = [str(date(2026, 3, 1) + timedelta(days=n)) for n in range(max(2, FAULTS))]
#: The longest time until Airflow and the jobs reach a state; each task starts Python twice.
PATIENCE_S = 400 + 20 * WIDTH

pytestmark = pytest.mark.slow

COMPACTION = """
from datetime import UTC, datetime
from lakehouse_airflow.services import service_dag

# A task for each table, and two concurrent runs, as two schedulers would make.
service_dag(
    "compaction",
    schedule="0 0 1 1 *",
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    assets=(),
    arguments=("--batch-tables", "1"),
    max_active_runs=2,
)
"""
STREAM = """
from airflow.sdk import DAG
from lakehouse_airflow.stream import StreamOperator

with DAG("stream", schedule=None):
    StreamOperator(task_id="run", table="{table}", run_for_s=3600, poll_s=1, check=False)
"""
STREAM_SPEC = """
{table: s, location: lake/s, record_key: id, ingest: {path: landing, stream: {every: 1s, watch: deferred}}}
"""
MAKE = """
import sys
import pyarrow as pa
from lakehouse import Table, load_catalog
from lakehouse.cli.main import main

main(["catalog", "upgrade"])
home, tables, days = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
catalog = load_catalog()
for name in tables:
    table = Table.create(
        f"{home}/{name}", name=name, record_key=["id"], partition_by=["day"], table_type="MERGE_ON_READ"
    )
    table.upsert(pa.table({"id": ["a", "b"], "day": ["2026-03-01", "2026-03-02"], "v": [0, 0]}))
    catalog.register_table(f"sales.{name}", table.location)
trips = Table.create(f"{home}/trips", name="trips", record_key=["id"], partition_by=["day"])
for n in range(3):
    trips.bulk_insert(pa.table({"id": [f"{day}-{n}" for day in days], "day": days, "v": [n] * len(days)}))
catalog.register_table("ride.trips", trips.location)
# Only requested services run: the scheduled runs find nothing to do.
catalog.set_policy("ride", "clustering", {"enabled": False})
catalog.set_policy("sales", "clustering", {"enabled": False})
catalog.set_policy("sales", "compaction", {"enabled": False})
"""
WRITE = """
import sys
import pyarrow as pa
from lakehouse import Table

for name in sys.argv[2].split():
    table = Table.open(f"{sys.argv[1]}/{name}")
    for n in range(5):
        table.upsert(pa.table({"id": ["a", "b"], "day": ["2026-03-01", "2026-03-02"], "v": [n, n]}))
"""
TELL = """
import json, sys
from lakehouse import load_catalog

def facts(name):
    table = catalog.load_table(name)
    rows = table.scan().to_arrow().select(["id", "v"]).to_pylist()
    runs = catalog.history.runs(catalog.entry(name).id, sys.argv[1], limit=100)
    return {
        "rows": {row["id"]: row["v"] for row in rows},
        "commits": [[i.requested, m.operation, sorted({s.partition for s in m.stats})] for i, m in table.commits()],
        "runs": {run.run_id: [str(run.state), run.instant, run.ended_ms] for run in runs},
        "pending": [i.requested for i in table.timeline.where(pending=True)],
    }

catalog = load_catalog()
print(json.dumps({name: facts(name) for name in sys.argv[2].split()}))
"""


class Lake:
    """Tables in a catalog, the fake spark-submit of their jobs, and a running Airflow."""

    def __init__(self, home: Path, catalog: str, database: Server | None = None) -> None:
        self.home, self.catalog, self.database, self.spark = home, catalog, database, home / "spark"
        self.airflow: Standalone
        self.made = dict.fromkeys(TABLES, 0)

    def python(self, script: str, *words: str) -> str:
        environment = {"LAKEHOUSE_HOME": str(self.home), "LAKEHOUSE_CATALOG": self.catalog, "PATH": "/usr/bin:/bin"}
        command = [PYTHON, "-c", dedent(script), *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def due(self) -> None:
        self.python(WRITE, str(self.home), " ".join(TABLES))

    def facts(self, *tables: str, service: str = "compaction") -> dict[str, Any]:
        return dict(json.loads(self.python(TELL, service, " ".join(tables))))

    def slots(self, count: int) -> None:
        """Set the number of slots of the pool of services."""
        self.airflow.command("pools", "set", POOL, str(count), "Spark jobs of table services")

    def hold(self) -> None:
        for held in (self.spark / "held").iterdir():
            held.unlink()
        (self.spark / "hold").touch()

    def release(self) -> None:
        (self.spark / "hold").unlink()

    def trigger(self) -> str:
        asked = {"logical_date": None, "conf": {"tables": [f"sales.{name}" for name in TABLES], "force": True}}
        return str(self.airflow.call(f"dags/{DAG}/dagRuns", asked)["dag_run_id"])

    def clear(self, run_id: str) -> None:
        """Clear the tasks `run` of a run."""
        asked = {"dry_run": False, "task_ids": ["run"], "dag_run_id": run_id, "only_failed": False}
        self.airflow.call(f"dags/{DAG}/clearTaskInstances", {**asked, "reset_dag_runs": True})

    def tasks(self, run_id: str) -> list[dict[str, Any]]:
        return list(self.airflow.call(f"dags/{DAG}/dagRuns/{quote(run_id)}/taskInstances?limit=100")["task_instances"])

    def due_task(self, run_id: str) -> str | None:
        (state,) = [task["state"] for task in self.tasks(run_id) if task["task_id"] == "due"]
        return str(state) if state else None

    def states(self, run_id: str) -> list[str | None]:
        """Return the states of the tasks `run`."""
        return [task["state"] for task in self.tasks(run_id) if task["task_id"] == "run"]

    def state(self, run_id: str) -> str:
        return str(self.airflow.call(f"dags/{DAG}/dagRuns/{quote(run_id)}")["state"])

    def become(self, run_id: str, state: str, timeout_s: int = PATIENCE_S) -> None:
        """Wait until all tasks `run` of a run are in a state."""
        self.airflow.until(
            lambda: self.states(run_id) == [state] * WIDTH,
            lambda: f"{run_id} is {state}, and not {self.states(run_id)}",
            timeout_s=timeout_s,
        )

    def held(self, jobs: int = WIDTH) -> None:
        """Wait until so many jobs were submitted, and wait for `release`."""
        held = self.spark / "held"
        self.airflow.until(
            lambda: len(list(held.iterdir())) == jobs,
            lambda: f"{jobs} jobs and not {len(list(held.iterdir()))} were submitted",
            timeout_s=PATIENCE_S * jobs // WIDTH,
        )

    def living(self, run_id: str) -> set[int]:
        """Return the processes of the jobs of a run."""
        found = set()
        for process in psutil.process_iter():
            try:
                mine = process.environ().get(JOB, "").startswith(f"{DAG}/{run_id}/run.")
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process.pid)
            except psutil.Error:
                continue
        return found

    def gone(self, run_id: str, processes: set[int]) -> None:
        self.airflow.until(lambda: not processes & self.living(run_id), "the jobs before are gone")

    def compacted(self, *run_ids: str) -> None:
        """Check that every table was compacted once more, by one of these runs (none: not at all).

        The catalog has the same state, and Airflow ended the task after the run and before it was asked for the state.
        """
        shown = {(run_id, task["map_index"]): task for run_id in run_ids for task in self.tasks(run_id)}
        for name, facts in self.facts(*(f"sales.{name}" for name in TABLES)).items():
            self.made[name.removeprefix("sales.")] += bool(run_ids)
            made = [requested for requested, operation, _ in facts["commits"] if operation == "COMPACT"]
            assert len(made) == self.made[name.removeprefix("sales.")] and facts["pending"] == []
            assert facts["rows"] == {"a": 4, "b": 4}
            if not run_ids:
                continue
            (winner,) = [run for run, (_, instant, _) in facts["runs"].items() if instant == made[-1]]
            state, _, ended_ms = facts["runs"][winner]
            _, run_id, task_id = winner.split("/")
            task = shown[run_id, int(task_id.removeprefix("run."))]
            assert (state, task["state"]) == ("committed", "success")
            ended = datetime.fromtimestamp(ended_ms / 1000, UTC)
            assert ended <= datetime.fromisoformat(task["end_date"]) <= datetime.now(UTC)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    if not PYTHON.exists():
        pytest.skip("missing: .venv with lakehouse-tables[spark]; run 'make venvs'")
    home = tmp_path_factory.mktemp("faults")
    with ExitStack() as stack:
        try:
            database = stack.enter_context(server())
        except pytest.skip.Exception:
            database = None
        lake = Lake(home, f"sqlite:///{home}/catalog.db" if database is None else database.url, database)
        lake.python(MAKE, str(home), " ".join(TABLES), " ".join(DAYS))
        (home / "dags").mkdir()
        (home / "dags" / "compaction.py").write_text(COMPACTION)
        (home / "s.yaml").write_text(STREAM_SPEC)
        (home / "dags" / "stream.py").write_text(STREAM.format(table=home / "s.yaml"))
        (home / "dags" / "clustering.py").symlink_to(ROOT / "dags" / "clustering.py")
        environment = {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__PARALLELISM": str(2 + 2 * WIDTH),
            "FAKE_STREAM": str(home / "commits"),
            "LAKEHOUSE_CATALOG": lake.catalog,
            "LAKEHOUSE_HOME": str(home),
            "LAKEHOUSE_REPORTS": str(home / "reports"),
            "LAKEHOUSE_SPARK_HOME": str(install(home / "spark", PYTHON)),
            # One table with a spec is an asset, so the schedule of clustering consists of time and assets.
            "LAKEHOUSE_SPECS": str(ROOT / "tests" / "support" / "specs"),
            **{name: str(home) for name in ("LAKEHOUSE_SHARED", "LAKEHOUSE_LANDING", "LAKEHOUSE_TABLES")},
        }
        airflow = lake.airflow = stack.enter_context(standalone(home / "airflow", environment))
        airflow.call("pools", {"name": POOL, "slots": 2 * WIDTH})
        wanted = {DAG, "services.clustering", "stream"}
        airflow.until(
            lambda: wanted <= {d["dag_id"] for d in airflow.call("dags?limit=100")["dags"]},
            "DAGs are there",
        )
        for dag in wanted:
            airflow.call(f"dags/{dag}", {"is_paused": False}, method="PATCH")
        for dag in wanted - {"stream"}:
            # The newest completed interval of the schedule runs at once.
            airflow.until(lambda dag=dag: finished(airflow, dag) > 0, f"{dag} ran")
        yield lake


def finished(airflow: Standalone, dag: str) -> int:
    runs = airflow.call(f"dags/{dag}/dagRuns?limit=100")["dag_runs"]
    return sum(run["state"] in ("success", "failed") for run in runs)


def rounds(test: Any) -> Any:
    """Run a test as many times as LAKEHOUSE_EXAMPLES requires."""
    return pytest.mark.parametrize("number", range(ROUNDS))(test)


@rounds
def test_cleared_active_runs_are_stopped_and_run_again_once(lake: Lake, number: int) -> None:
    lake.due()
    lake.hold()
    run_id = lake.trigger()
    lake.held()
    first = lake.living(run_id)
    assert first
    lake.clear(run_id)
    lake.gone(run_id, first)
    lake.release()
    lake.become(run_id, "success")
    lake.compacted(run_id)
    # Cleared again, the tasks find their own commits, and no new plan is scheduled.
    made = dict(lake.made)
    lake.clear(run_id)
    lake.airflow.until(lambda: lake.state(run_id) != "success", "it runs again")
    lake.become(run_id, "success")
    lake.compacted()
    assert lake.made == made


@rounds
def test_runs_marked_failed_are_stopped_and_the_next_run_compacts(lake: Lake, number: int) -> None:
    lake.due()
    lake.hold()
    run_id = lake.trigger()
    lake.held()
    running = lake.living(run_id)
    for index in range(WIDTH):
        url = f"dags/{DAG}/dagRuns/{quote(run_id)}/taskInstances/run/{index}"
        lake.airflow.call(url, {"new_state": "failed"}, method="PATCH")
    lake.gone(run_id, running)
    lake.release()
    lake.become(run_id, "failed")
    lake.compacted()
    following = lake.trigger()
    lake.become(following, "success")
    lake.compacted(following)


@rounds
def test_new_workers_run_the_tasks_of_workers_killed_after_submit(lake: Lake, number: int) -> None:
    lake.due()
    lake.hold()
    run_id = lake.trigger()
    lake.held()
    for pid in lake.living(run_id):
        os.kill(pid, signal.SIGKILL)
    lake.release()
    lake.become(run_id, "up_for_retry")
    lake.compacted()
    # The test does not wait for the minute until the retry.
    lake.clear(run_id)
    lake.become(run_id, "success")
    lake.compacted(run_id)


@rounds
def test_one_of_two_concurrent_runs_compacts_and_an_empty_pool_delays_both(lake: Lake, number: int) -> None:
    lake.due()
    lake.slots(0)
    first, second = lake.trigger(), lake.trigger()
    lake.airflow.until(
        lambda: (lake.due_task(first), lake.due_task(second)) == ("scheduled", "scheduled"),
        "both wait for a slot",
    )
    lake.compacted()
    lake.hold()
    lake.slots(2 * WIDTH)
    lake.held(2 * WIDTH)
    lake.release()
    # A run whose table is busy is rescheduled. Afterwards it has nothing to do.
    lake.airflow.until(
        lambda: (lake.state(first), lake.state(second)) == ("success", "success"),
        lambda: f"both are over, and not {lake.states(first)} and {lake.states(second)}",
        timeout_s=2 * PATIENCE_S,
    )
    states = sorted(map(str, (*lake.states(first), *lake.states(second))))
    assert states == ["success"] * 2 * WIDTH
    lake.compacted(first, second)


@rounds
def test_catalog_restart_causes_no_wrong_outcome_of_active_runs(lake: Lake, number: int) -> None:
    if lake.database is None:
        pytest.skip("missing: PostgreSQL (initdb); on Debian: apt-get install postgresql")
    lake.due()
    lake.hold()
    run_id = lake.trigger()
    lake.held()
    lake.release()
    time.sleep(random.uniform(0, 1 + WIDTH))
    lake.database.stop(random.choice([signal.SIGINT, signal.SIGQUIT]))
    time.sleep(0.5)
    lake.database.start()
    over = ("success", "up_for_retry")
    lake.airflow.until(
        lambda: all(state in over for state in lake.states(run_id)),
        lambda: f"all have ended or wait for their retry, and not {lake.states(run_id)}",
        timeout_s=PATIENCE_S,
    )
    if lake.states(run_id) != ["success"] * WIDTH:
        lake.clear(run_id)
        lake.become(run_id, "success")
    lake.compacted(run_id)


def test_repeated_backfill_clusters_the_partition_of_each_day_once(lake: Lake) -> None:
    airflow, dag_id, ends = lake.airflow, "services.clustering", (DAYS[0], DAYS[-1])
    airflow.backfill(dag_id, *ends)
    cancelled = ended(airflow)
    with pytest.raises(AssertionError, match="Another backfill is running"):
        airflow.backfill(dag_id, *ends)
    # All days belong to one table, so their runs execute one after the other.
    airflow.until(lambda: ended(airflow) > cancelled, "the backfill is over")
    runs = airflow.call("dags/services.clustering/dagRuns?run_type=backfill&limit=100")["dag_runs"]
    assert sorted((run["data_interval_start"][:10], run["state"]) for run in runs) == [(d, "success") for d in DAYS]
    assert clustered(lake) == [[day] for day in DAYS]
    # For the same days again, no run is created, or a run has nothing to do.
    before = ended(airflow)
    airflow.backfill(dag_id, *ends, "--reprocess-behavior", "completed")
    airflow.until(lambda: ended(airflow) > before, "the second backfill is over")
    assert clustered(lake) == [[day] for day in DAYS]


def ended(airflow: Standalone) -> int:
    found = airflow.call("backfills?dag_id=services.clustering")["backfills"]
    return len([backfill for backfill in found if backfill["completed_at"]])


def clustered(lake: Lake) -> list[list[str]]:
    """Return the partitions of each clustering of the trips."""
    commits = lake.facts("ride.trips", service="clustering")["ride.trips"]["commits"]
    return sorted(partitions for _, operation, partitions in commits if operation == "CLUSTER")


def test_stream_outlives_its_task_is_started_again_and_ends_when_a_user_ends_the_run(lake: Lake) -> None:
    airflow, commits, locks = lake.airflow, lake.home / "commits", lake.home / "lake/s/.hoodie/.locks"
    run_id = airflow.call("dags/stream/dagRuns", {"logical_date": None})["dag_run_id"]
    path = f"dags/stream/dagRuns/{quote(run_id)}"

    def rows() -> Counter[str]:
        """Return the number of commits of each start of the stream."""
        return (
            Counter(commit.rpartition("/")[0] for commit in commits.read_text().split())
            if commits.exists()
            else Counter()
        )

    def is_deferred() -> bool:
        return [task["state"] for task in airflow.call(f"{path}/taskInstances")["task_instances"]] == ["deferred"]

    def lease() -> dict[str, Any]:
        return dict(json.loads((locks / "ingest_stream.json").read_text()))

    try:
        airflow.until(lambda: rows() and is_deferred(), "the stream commits while its task is deferred")
        first = psutil.Process(lease()["pid"])
        assert first.environ()[JOB] == f"stream/{run_id}/run"
        first.kill()
        airflow.until(lambda: len(rows()) == 2 and is_deferred(), "the stream is started again")
        assert lease()["pid"] != first.pid
        airflow.call(path, {"state": "failed"}, method="PATCH")
        airflow.until(lambda: lease().get("released"), "the stream ends after its commit")
    finally:
        end_job(f"stream/{run_id}/run")
    status = json.loads((locks / "ingest_stream.status.json").read_text())
    assert status["ended"] and status["report"]["status"] == "committed"
    assert rows()[status["run_id"]] == status["report"]["rows"]
    assert len(rows()) == 2
