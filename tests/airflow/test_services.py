"""The DAGs of table services: their structure, and runs on tables of a catalog through Spark."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Connection, CronDataIntervalTimetable
from airflow.serialization.serialized_objects import DagSerialization

from lakehouse.spec.contracts.decisions import TableExplanation
from lakehouse.spec.contracts.job import JobStatus, ServiceReport
from lakehouse_airflow.dags_services import usual_service_dag
from lakehouse_airflow.job_environment import catalog_url
from lakehouse_airflow.services import POOL, ServiceOperator, service_interval
from tests.airflow.runs import own_run_id
from tests.support.fake_submit import FakeSubmit

HOUR = timedelta(hours=1)
ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = ROOT / ".venv"
SERVICES = (
    "archive",
    "clean",
    "clustering",
    "compaction",
    "export",
    "index",
    "logcompaction",
    "orphans",
    "sync",
    "ttl",
    "validation",
)


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(ROOT / "dags")


def test_every_service_has_a_dag_with_its_own_form_and_pool(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert {dag_id for dag_id in bag.dags if dag_id.startswith("services.")} == {
        "services.schedule",
        *(f"services.{service}" for service in SERVICES),
    }
    for service in SERVICES:
        dag = bag.dags[f"services.{service}"]
        assert {task.pool for task in dag.tasks} == {POOL}
        assert set(dag.params) >= {"tables", "dry_run", "force", "options"}
        # No event of a table starts it, and it can be backfilled by days.
        assert isinstance(dag.timetable, CronDataIntervalTimetable)
        assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable.can_be_scheduled


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        (
            {"conn_type": "postgres", "host": "db", "port": 5433, "login": "me", "password": "a/b", "schema": "lake"},
            "postgresql+psycopg://me:a%2Fb@db:5433/lake",
        ),
        (
            {
                "conn_type": "postgres",
                "host": "db",
                "login": "me",
                "schema": "x",
                "extra": '{"sslmode": "verify-full"}',
            },
            "postgresql+psycopg://me@db/x?sslmode=verify-full",
        ),
        ({"conn_type": "sqlite", "host": "/var/catalog.db"}, "sqlite:////var/catalog.db"),
        ({"conn_type": "generic", "extra": '{"url": "sqlite:///x.db"}'}, "sqlite:///x.db"),
    ],
)
def test_airflow_connection_names_the_catalog(connection: dict[str, Any], url: str) -> None:
    assert catalog_url(Connection(conn_id="lakehouse_catalog", **connection)) == url


def test_backfill_limits_services_by_partition_and_other_runs_use_whole_tables() -> None:
    bounds = {"data_interval_start": "2026-03-01T00:00:00", "data_interval_end": "2026-03-02T00:00:00"}
    backfill = {"dag_run": SimpleNamespace(run_type="backfill"), **bounds}
    expected = ("2026-03-01T00:00:00+00:00", "2026-03-02T00:00:00+00:00")
    assert service_interval("clustering", backfill) == expected
    assert service_interval("clean", backfill) is None
    # Partitions are whole days, at any time of the run.
    at_three = {**backfill, "data_interval_start": "2026-03-01T03:00:00", "data_interval_end": "2026-03-02T03:00:00"}
    assert service_interval("clustering", at_three) == expected
    quarter = {**backfill, "data_interval_start": "2026-03-01T03:00:00", "data_interval_end": "2026-03-01T03:15:00"}
    hour = ("2026-03-01T03:00:00+00:00", "2026-03-01T04:00:00+00:00")
    assert service_interval("clustering", quarter) == hour
    hourly = {**backfill, "data_interval_start": "2026-03-01T03:10:00", "data_interval_end": "2026-03-01T04:10:00"}
    assert service_interval("compaction", hourly) == hour
    assert service_interval("clustering", {**backfill, "dag_run": SimpleNamespace(run_type="scheduled")}) is None
    asked = {"params": {"interval_start": "2026-03-01", "interval_end": "2026-03-02"}}
    assert service_interval("compaction", asked) == expected


@pytest.mark.parametrize(("schedule", "length"), [({}, timedelta(days=1)), ({"schedule": "0 * * * *"}, HOUR)])
def test_runs_of_a_backfill_get_the_periods_of_the_schedule_one_after_the_other(
    schedule: dict[str, str], length: timedelta
) -> None:
    first, last = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC) + 4 * length
    dag = DagSerialization.from_dict(DagSerialization.to_dict(usual_service_dag("compaction", **schedule)))
    # As `airflow backfill create --from-date --to-date` makes runs; the last date is one of them.
    runs = list(dag.iter_dagrun_infos_between(first, last))
    assert len(runs) == 5
    for number, run in enumerate(runs):
        bounds = {"data_interval_start": run.data_interval.start, "data_interval_end": run.data_interval.end}
        period = first + number * length, first + (number + 1) * length
        found = service_interval("compaction", {"dag_run": SimpleNamespace(run_type="backfill"), **bounds})
        assert found == tuple(bound.isoformat() for bound in period)


def test_one_job_serves_all_tables_of_a_batch(submit: FakeSubmit) -> None:
    submit.plan(
        report=ServiceReport(status=JobStatus.COMMITTED, table="a.b, a.c", instant="20260101000000001").to_json()
    )
    task = ServiceOperator(task_id="run", service="clustering", table=["a.b", "a.c"], pool="default_pool")
    run_id = own_run_id()
    instance = SimpleNamespace(
        task=task, dag_id="d", task_id="run", run_id=run_id, map_index=3, xcom_push=lambda key, value: None
    )
    context: Any = {"ti": instance, "params": {"partitions": ["x"], "force": True}, "outlet_events": {}}
    task.execute(context)
    words = submit.argv[submit.argv.index("clustering") :]
    assert words[:6] == ["clustering", "run", "--table", "a.b", "--table", "a.c"]
    assert words[6:8] == ["--partition", "x"] and "--force" in words
    assert words[words.index("--run-id") + 1] == f"d/{run_id}/run.3"


MAKE = """
import sys
import pyarrow as pa
from lakehouse import Table, load_catalog

catalog = load_catalog()
for name, kind in (("orders", "MERGE_ON_READ"), ("items", "COPY_ON_WRITE")):
    place = f"{sys.argv[1]}/{name}"
    table = Table.create(place, name=name, record_key=["id"], partition_by=["day"], table_type=kind)
    for value in range(6):
        table.upsert(pa.table({"id": ["a", "b"], "day": ["2026-03-01", "2026-03-02"], "v": [value] * 2}))
    catalog.register_table(f"sales.{name}", place)
    if name == "items":
        table.services.create_index("v")
catalog.set_policy("sales", "clean", {"commits_retained": 1})

# A table without metadata table has no index to build, and its timeline is archived without a compaction of it.
place = f"{sys.argv[1]}/events"
table = Table.create(
    place, name="events", record_key=["id"], partition_by=["day"], options={"hoodie.metadata.enable": "false"}
)
for value in range(5):
    table.upsert(pa.table({"id": ["a", "b"], "day": ["2026-03-01", "2026-03-02"], "v": [value] * 2}))
catalog.register_table("web.events", place)
catalog.set_policy("web", "clean", {"commits_retained": 1})
catalog.set_policy("web", "archive", {"min_commits": 2, "max_commits": 3})
catalog.set_policy("web", "ttl", {"max_partitions": 1})
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create tables in a catalog: one is due for compaction, one for clean and index, one for ttl and archive."""
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    home = tmp_path_factory.mktemp("lake")
    python(home, "-c", dedent(MAKE), str(home))
    return home


def python(home: Path, *words: str) -> str:
    done = subprocess.run(
        [SPARK_HOME / "bin" / "python", *words],
        cwd=ROOT,
        env={"LAKEHOUSE_HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_dag(service: str, **conf: Any) -> dict[str, list[str]]:
    """Run a DAG in this process; return the states of its tasks."""
    # A DAG object keeps the params of its previous run, so load the DAG again.
    run = DagBag(ROOT / "dags").dags[f"services.{service}"].test(run_conf=conf)
    states: dict[str, list[str]] = {}
    for instance in run.get_task_instances():
        states.setdefault(instance.task_id, []).append(str(instance.state))
    return states


def completed(table: Path, action: str) -> set[str]:
    """Return the names of the completed instants of an action."""
    return {path.name for path in (table / ".hoodie" / "timeline").glob(f"*_*.{action}")}


def listed_indexes(table: Path) -> str:
    """Return the property that lists the usable partitions of the metadata table."""
    lines = (table / ".hoodie" / "hoodie.properties").read_text().splitlines()
    return next(line for line in lines if line.startswith("hoodie.table.metadata.partitions="))


@pytest.mark.slow
def test_due_services_run_and_are_explained(lake: Path, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(lake))
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(SPARK_HOME))
    monkeypatch.setenv("LAKEHOUSE_REPORTS", str(lake / "reports"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    files = set(lake.rglob("*.parquet"))
    assert run_dag("compaction", dry_run=True) == {"due": ["success"], "run": ["skipped"]}
    assert set(lake.rglob("*.parquet")) == files
    assert run_dag("compaction") == {"due": ["success"], "run": ["success"]}
    assert len(set((lake / "orders").rglob("*.parquet")) - files) == 2
    assert run_dag("compaction") == {"due": ["success"], "run": ["skipped"]}
    assert run_dag("clean", tables=["sales.items"]) == {"due": ["success"], "run": ["success"]}
    assert len(list((lake / "items").rglob("*.parquet"))) < 12
    assert run_dag("index") == {"due": ["success"], "run": ["success"]}
    assert "secondary_index_v" in listed_indexes(lake / "items")
    assert run_dag("ttl") == {"due": ["success"], "run": ["success"]}
    assert len(completed(lake / "events", "replacecommit")) == 1
    before = completed(lake / "events", "commit")
    assert run_dag("archive", tables=["web.events"]) == {"due": ["success"], "run": ["success"]}
    assert completed(lake / "events", "commit") < before
    words = ("services", "explain", "--table", "sales.orders", "--service", "compaction", "--output", "json")
    (last,) = TableExplanation.from_json(python(lake, "-m", "lakehouse", *words)).services["compaction"].last_runs
    assert last.state == "committed" and last.run.startswith("services.compaction/")
    assert last.predicted["files"] == 12 and last.actual["files"] == 2


TRIPS = """
import sys
import pyarrow as pa
from lakehouse import Table, load_catalog

table = Table.create(f"{sys.argv[1]}/trips", name="ride_trips", record_key=["trip_id"], partition_by=["trip_date"])
for n in range(3):
    for day in ("2026-03-01", "2026-03-02"):
        rows = {"trip_id": [f"{day}-{n}"], "trip_date": [day], "zone": [f"z{9 - n}"], "pickup_at": [n]}
        table.bulk_insert(pa.table(rows))
load_catalog().register_table("ride_trips", table.location)
"""


@pytest.mark.slow
def test_user_dag_clusters_the_partitions_of_its_day(
    lake: Path, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(lake, "-c", dedent(TRIPS), str(lake))
    monkeypatch.setenv("LAKEHOUSE_HOME", str(lake))
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(SPARK_HOME))
    monkeypatch.setenv("LAKEHOUSE_REPORTS", str(lake / "reports"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    before = {path.name for path in (lake / "trips").rglob("*.parquet")}
    dag = DagBag(ROOT / "dags").dags["nightly.ride_trips"]
    # Airflow 3.3 fails to look up the deadline of a run without a queue, as in this test.
    dag.deadline = None
    # A manual run has the last completed interval.
    run = dag.test(logical_date=datetime(2026, 3, 2, tzinfo=UTC))
    assert {i.task_id: str(i.state) for i in run.get_task_instances()} == {"lay_out": "success", "clean": "success"}
    new = [path for path in (lake / "trips").rglob("*.parquet") if path.name not in before]
    assert [path.parent.name for path in new] == ["2026-03-01"]
    assert len(list((lake / "trips" / ".hoodie" / "timeline").glob("*_*.replacecommit"))) == 1


HOURS = """
import sys
import pyarrow as pa
from lakehouse import Table, load_catalog

for name, kind in (("hours", "COPY_ON_WRITE"), ("logged_hours", "MERGE_ON_READ")):
    table = Table.create(
        f"{sys.argv[1]}/{name}", name=name, record_key=["id"], partition_by=["day", "hour"], table_type=kind,
        options={"hoodie.datasource.write.hive_style_partitioning": "true"},
    )
    for n in range(3):
        hours = ["06", "07", "08"]
        rows = pa.table({"id": [f"{h}-{n}" for h in hours], "day": ["2026-03-01"] * 3, "hour": hours, "v": [n] * 3})
        table.bulk_insert(rows) if kind == "COPY_ON_WRITE" else table.upsert(rows.set_column(0, "id", [hours]))
    load_catalog().register_table(f"hourly.{name}", table.location)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("service", "table"), [("clustering", "hours"), ("compaction", "logged_hours")])
def test_hourly_run_of_a_service_works_on_the_partitions_of_its_hour(
    lake: Path, database: None, monkeypatch: pytest.MonkeyPatch, service: str, table: str
) -> None:
    if not (lake / table).exists():
        python(lake, "-c", dedent(HOURS), str(lake))
    monkeypatch.setenv("LAKEHOUSE_HOME", str(lake))
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(SPARK_HOME))
    monkeypatch.setenv("LAKEHOUSE_REPORTS", str(lake / "reports"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    before = {path.name for path in (lake / table).rglob("*.parquet")}
    hour = {"interval_start": "2026-03-01T07:00:00+00:00", "interval_end": "2026-03-01T08:00:00+00:00"}
    assert run_dag(service, tables=[f"hourly.{table}"], **hour) == {"due": ["success"], "run": ["success"]}
    new = [path for path in (lake / table).rglob("*.parquet") if path.name not in before]
    assert {path.parent.name for path in new if ".hoodie" not in path.parts} == {"hour=07"}
