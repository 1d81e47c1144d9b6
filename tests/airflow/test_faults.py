"""Service DAGs in a whole Airflow, disturbed: each plan is executed once, and Airflow shows what is true within 60 s.

Jobs run without Spark, so each takes a second. What random moments do to a run is in tests/property/test_service_runs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from lakehouse_airflow.processes import JOB
from lakehouse_airflow.services import POOL
from tests.support.plain_submit import install
from tests.support.standalone import Standalone, standalone

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
DAG = "services.compaction"
TRUE_WITHIN_S = 60
OVER = ("success", "failed", "skipped", "upstream_failed")

pytestmark = pytest.mark.slow

MAKE = """
import sys
import pyarrow as pa
from lakehouse import Table, load_catalog

catalog = load_catalog()
orders = Table.create(
    f"{sys.argv[1]}/orders", name="orders", record_key=["id"], partition_by=["day"], table_type="MERGE_ON_READ"
)
orders.upsert(pa.table({"id": ["a", "b"], "day": ["2026-03-01", "2026-03-02"], "v": [0, 0]}))
catalog.register_table("sales.orders", orders.location)
trips = Table.create(f"{sys.argv[1]}/trips", name="trips", record_key=["id"], partition_by=["day"])
for n in range(3):
    for day in ("2026-02-28", "2026-03-01", "2026-03-02", "2026-03-03"):
        trips.bulk_insert(pa.table({"id": [f"{day}-{n}"], "day": [day], "v": [n]}))
catalog.register_table("ride.trips", trips.location)
# Only what is asked for: the runs of the schedule find nothing to do.
catalog.set_policy("ride", "clustering", {"enabled": False})
catalog.set_policy("sales", "clustering", {"enabled": False})
catalog.set_policy("sales", "compaction", {"enabled": False})
"""
WRITE = """
import sys
import pyarrow as pa
from lakehouse import Table

orders = Table.open(f"{sys.argv[1]}/orders")
for n in range(5):
    orders.upsert(pa.table({"id": ["a", "b"], "day": ["2026-03-01", "2026-03-02"], "v": [n, n]}))
"""
TELL = """
import json, sys
from lakehouse import Table, load_catalog

catalog = load_catalog()
table = catalog.load_table(sys.argv[1])
rows = table.scan().to_arrow().select(["id", "v"]).to_pylist()
commits = [[i.requested, m.operation, sorted({s.partition for s in m.stats})] for i, m in table.commits()]
runs = catalog.history.runs(catalog.entry(sys.argv[1]).id, sys.argv[2], limit=100)
told = {run.run_id: [str(run.state), run.instant] for run in runs}
pending = [i.requested for i in table.timeline.where(pending=True)]
print(json.dumps({"rows": {r["id"]: r["v"] for r in rows}, "commits": commits, "runs": told, "pending": pending}))
"""


class Lake:
    """Tables in a catalog, the submit that their jobs go through, and a running Airflow."""

    def __init__(self, home: Path, airflow: Standalone) -> None:
        self.home, self.airflow, self.spark = home, airflow, home / "spark"

    def due(self) -> None:
        python(self.home, WRITE)

    def told(self, table: str = "sales.orders", service: str = "compaction") -> dict[str, Any]:
        return dict(json.loads(python(self.home, TELL, table, service)))

    def slots(self, count: int) -> None:
        """Give the pool of services so many slots."""
        self.airflow.command("pools", "set", POOL, str(count), "Spark jobs of table services")

    def hold(self) -> None:
        (self.spark / "held").unlink(missing_ok=True)
        (self.spark / "hold").touch()

    def let_go(self) -> None:
        (self.spark / "hold").unlink()

    def trigger(self, dag: str = DAG) -> str:
        asked = {"logical_date": None, "conf": {"tables": ["sales.orders"], "force": True}}
        return str(self.airflow.call(f"dags/{dag}/dagRuns", asked)["dag_run_id"])

    def tasks(self, run_id: str, dag: str = DAG) -> dict[str, str | None]:
        found = self.airflow.call(f"dags/{dag}/dagRuns/{quote(run_id)}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def state(self, run_id: str, dag: str = DAG) -> str:
        return str(self.airflow.call(f"dags/{dag}/dagRuns/{quote(run_id)}")["state"])

    def becomes(self, run_id: str, state: str, dag: str = DAG) -> None:
        """Wait until the task `run` of a run is in a state."""
        self.airflow.until(
            lambda: self.tasks(run_id, dag).get("run") == state,
            f"{run_id} is {state}, and not {self.tasks(run_id, dag)}",
            timeout_s=TRUE_WITHIN_S,
        )

    def held(self, run_id: str) -> None:
        self.airflow.until((self.spark / "held").exists, f"the job of {run_id} was submitted", timeout_s=TRUE_WITHIN_S)

    def living(self, run_id: str) -> list[int]:
        """Return the processes of the job of a run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(JOB) == f"{DAG}/{run_id}/run.0" and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def compacted(self, run_id: str | None, before: int) -> None:
        """Check that the table was compacted once, by this run (None: not at all)."""
        told = self.told()
        made = [requested for requested, operation, _ in told["commits"] if operation == "COMPACT"]
        assert len(made) == before + (run_id is not None) and told["pending"] == []
        assert run_id is None or told["runs"][f"{DAG}/{run_id}/run.0"] == ["committed", made[-1]]
        assert told["rows"] == {"a": 4, "b": 4}

    @property
    def compactions(self) -> int:
        return [operation for _, operation, _ in self.told()["commits"]].count("COMPACT")


def python(home: Path, script: str, *words: str) -> str:
    command = [PYTHON, "-c", dedent(script), *(words or (str(home),))]
    environment = {"LAKEHOUSE_HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    if not PYTHON.exists():
        pytest.skip("missing: .venv with lakehouse[spark]; run 'make venvs'")
    home = tmp_path_factory.mktemp("faults")
    python(home, MAKE)
    environment = {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW__CORE__PARALLELISM": "4",
        "LAKEHOUSE_HOME": str(home),
        "LAKEHOUSE_REPORTS": str(home / "reports"),
        "LAKEHOUSE_SPARK_HOME": str(install(home / "spark", PYTHON)),
        # One table with a spec is an asset, so the schedule is one of time and assets.
        "LAKEHOUSE_SPECS": str(ROOT / "tests" / "support" / "specs"),
        **{name: str(home) for name in ("LAKEHOUSE_SHARED", "LAKEHOUSE_LANDING", "LAKEHOUSE_TABLES")},
    }
    with standalone(home / "airflow", environment) as airflow:
        airflow.call("pools", {"name": POOL, "slots": 2})
        running = Lake(home, airflow)
        wanted = {DAG, "services.clustering"}
        airflow.until(
            lambda: wanted <= {d["dag_id"] for d in airflow.call("dags?limit=100")["dags"]},
            "DAGs are there",
            timeout_s=120,
        )
        for dag in wanted:
            airflow.call(f"dags/{dag}", {"is_paused": False}, method="PATCH")
        for dag in wanted:
            # The newest interval of the schedule that is over runs at once.
            airflow.until(lambda dag=dag: finished(airflow, dag) > 0, f"{dag} ran", timeout_s=120)
        yield running


def finished(airflow: Standalone, dag: str) -> int:
    runs = airflow.call(f"dags/{dag}/dagRuns?limit=100")["dag_runs"]
    return sum(run["state"] in ("success", "failed") for run in runs)


def test_a_run_that_is_cleared_while_it_runs_is_ended_and_runs_once(lake: Lake) -> None:
    before = lake.compactions
    lake.due()
    lake.hold()
    run_id = lake.trigger()
    lake.held(run_id)
    first = set(lake.living(run_id))
    assert first
    lake.airflow.call(
        f"dags/{DAG}/clearTaskInstances",
        {"dry_run": False, "task_ids": ["run"], "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True},
    )
    lake.airflow.until(lambda: not first & set(lake.living(run_id)), "the first try is gone", timeout_s=TRUE_WITHIN_S)
    lake.let_go()
    lake.becomes(run_id, "success")
    lake.compacted(run_id, before)
    # Cleared once more, it finds what it did, and no other plan is made.
    lake.airflow.call(
        f"dags/{DAG}/clearTaskInstances",
        {"dry_run": False, "task_ids": ["run"], "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True},
    )
    lake.airflow.until(lambda: lake.state(run_id) != "success", "it runs again", timeout_s=TRUE_WITHIN_S)
    lake.becomes(run_id, "success")
    lake.compacted(run_id, before)


def test_a_run_that_is_marked_failed_is_ended_and_the_next_one_compacts(lake: Lake) -> None:
    before = lake.compactions
    lake.due()
    lake.hold()
    run_id = lake.trigger()
    lake.held(run_id)
    url = f"dags/{DAG}/dagRuns/{quote(run_id)}/taskInstances/run/0"
    lake.airflow.call(url, {"new_state": "failed"}, method="PATCH")
    lake.airflow.until(lambda: not lake.living(run_id), "the job is gone", timeout_s=TRUE_WITHIN_S)
    lake.let_go()
    lake.becomes(run_id, "failed")
    lake.compacted(None, before)
    following = lake.trigger()
    lake.becomes(following, "success")
    lake.compacted(following, before)


def test_a_worker_that_is_killed_after_submit_is_followed_by_one_that_runs(lake: Lake) -> None:
    before = lake.compactions
    lake.due()
    lake.hold()
    run_id = lake.trigger()
    lake.held(run_id)
    for pid in lake.living(run_id):
        os.kill(pid, 9)
    lake.let_go()
    lake.airflow.until(
        lambda: lake.tasks(run_id).get("run") == "up_for_retry", "the try failed", timeout_s=TRUE_WITHIN_S
    )
    lake.compacted(None, before)
    # Nobody waits for the minute until the retry.
    lake.airflow.call(
        f"dags/{DAG}/clearTaskInstances",
        {"dry_run": False, "task_ids": ["run"], "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True},
    )
    lake.becomes(run_id, "success")
    lake.compacted(run_id, before)


def test_of_two_runs_at_once_one_compacts_and_a_pool_without_slots_starves_both(lake: Lake) -> None:
    before = lake.compactions
    lake.due()
    lake.slots(0)
    first, second = lake.trigger(), lake.trigger()
    lake.airflow.until(lambda: lake.tasks(first).get("due") == "scheduled", "it waits", timeout_s=TRUE_WITHIN_S)
    lake.compacted(None, before)
    lake.slots(1)
    lake.airflow.until(
        lambda: {lake.state(first), lake.state(second)} == {"success"}, "both are over", timeout_s=2 * TRUE_WITHIN_S
    )
    states = {run: lake.tasks(run).get("run") for run in (first, second)}
    assert sorted(map(str, states.values())) == ["skipped", "success"]
    (winner,) = [run for run, state in states.items() if state == "success"]
    lake.compacted(winner, before)
    lake.slots(2)


def test_a_backfill_over_two_days_clusters_their_partitions_once(lake: Lake) -> None:
    airflow, dag_id, days = lake.airflow, "services.clustering", ("2026-03-01", "2026-03-02")
    airflow.backfill(dag_id, *days)
    cancelled = ended(airflow)
    with pytest.raises(AssertionError, match="Another backfill is running"):
        airflow.backfill(dag_id, *days)
    # Both days are of one table, so one of the two runs may have to wait a minute for the other.
    airflow.until(lambda: ended(airflow) > cancelled, "the backfill is over", timeout_s=4 * TRUE_WITHIN_S)
    runs = airflow.call("dags/services.clustering/dagRuns?run_type=backfill&limit=10")["dag_runs"]
    assert sorted((run["state"], run["data_interval_start"][:10]) for run in runs) == [
        ("success", "2026-03-01"),
        ("success", "2026-03-02"),
    ]
    assert clustered(lake) == [["2026-03-01"], ["2026-03-02"]]
    # The same days again: nothing is created, or nothing is left to do.
    before = ended(airflow)
    airflow.backfill(dag_id, *days)
    airflow.until(lambda: ended(airflow) > before, "the second backfill is over", timeout_s=2 * TRUE_WITHIN_S)
    assert clustered(lake) == [["2026-03-01"], ["2026-03-02"]]


def ended(airflow: Standalone) -> int:
    found = airflow.call("backfills?dag_id=services.clustering")["backfills"]
    return len([backfill for backfill in found if backfill["completed_at"]])


def clustered(lake: Lake) -> list[list[str]]:
    """Return the partitions of each clustering of the trips."""
    commits = lake.told("ride.trips", "clustering")["commits"]
    return sorted(partitions for _, operation, partitions in commits if operation == "CLUSTER")
