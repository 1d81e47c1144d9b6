"""The DAG files: their DAGs, the effect of a bad spec, the cost of parsing, and runs in Airflow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset, CronDataIntervalTimetable
from airflow.serialization.serialized_objects import DagSerialization

from lakehouse.spec.contracts.job import ErrorCode, IngestReport, JobError, JobStatus
from lakehouse.spec.job_command import parse_command
from lakehouse.spec.table.services import SERVICES
from tests.support.fake_submit import FakeSubmit

ROOT = Path(__file__).resolve().parents[2]
DAGS = ROOT / "dags"
ORDERS = """\
table: sales.orders
location: s3://lake/sales/orders
record_key: order_id
ingest:
  path: s3://landing/orders/{start:%Y-%m-%d}/
  format: parquet
  schedule: "15 * * * *"
  start_date: 2026-01-01
  catchup: true
  retries: 5
  retry_delay: 30s
  timeout: 45m
  pool: big_tables
  spark: {spark.executor.memory: 4g}
"""

WriteSpecs = Callable[..., Path]


@pytest.fixture
def write_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteSpecs:
    """Return a function that writes specs, by file name, into the folder that the DAG files read."""
    folder = tmp_path / "specs"
    folder.mkdir()
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(folder))

    def write(**texts: str) -> Path:
        for name, text in texts.items():
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        return folder

    return write


def minimal(table: str, ingest: str = "{path: landing}") -> str:
    return f"table: {table}\nlocation: lake/{table}\nrecord_key: id\ningest: {ingest}\n"


def ingest_dags(bag: DagBag) -> list[str]:
    return sorted(dag_id for dag_id in bag.dags if dag_id.startswith("ingest."))


def test_dags_of_the_repository_have_no_import_errors() -> None:
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert ingest_dags(bag) == ["ingest.ride_orders", "ingest.ride_trips"]
    assert {"nightly.ride_trips", "report.daily", "report.partitions"} < set(bag.dags)
    decided = {"services.schedule", *(f"services.{name}" for name in SERVICES)}
    assert {name for name in bag.dags if name.startswith("services.")} == decided


def test_each_input_of_a_spec_becomes_a_dag(write_specs: WriteSpecs) -> None:
    inputs = "{inputs: {riders: {path: landing/r, pool: one}, payments: {path: landing/p, schedule: '@daily'}}}"
    write_specs(trips=minimal("trips", inputs))
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert ingest_dags(bag) == ["ingest.trips.payments", "ingest.trips.riders"]
    task = bag.dags["ingest.trips.riders"].get_task("ingest")
    assert (task.input, task.pool, [asset.uri for asset in task.outlets]) == ("riders", "one", ["lakehouse://trips/"])


def test_spec_with_a_stream_becomes_a_continuous_dag_that_is_paused_after_failures(write_specs: WriteSpecs) -> None:
    write_specs(stream=minimal("live", "{path: landing, stream: {every: 30s, run_for: 20m}, timeout: 10m}"))
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    dag = bag.dags["ingest.live"]
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert (dag.max_active_runs, dag.catchup, dag.max_consecutive_failed_dag_runs) == (1, False, 5)
    task = dag.get_task("ingest")
    assert (task.verb, task.action, task.by_interval) == ("ingest", "stream", False)
    assert task.execution_timeout == timedelta(minutes=30)
    DagSerialization.to_dict(dag)


def test_spec_becomes_a_dag_with_its_schedule_retries_and_pool(write_specs: WriteSpecs) -> None:
    write_specs(orders=ORDERS)
    dag = DagBag(DAGS).dags["ingest.sales.orders"]
    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert dag.timetable.expression == "15 * * * *"
    assert (dag.start_date, dag.catchup, dag.max_active_runs) == (datetime(2026, 1, 1, tzinfo=UTC), True, 1)
    assert dag.tags == {"lakehouse", "ingest"}
    (task,) = dag.tasks
    assert (task.pool, task.retries, task.retry_delay) == ("big_tables", 5, timedelta(seconds=30))
    assert task.execution_timeout == timedelta(minutes=45)
    assert task.max_active_tis_per_dag == 1
    assert task.conf["spark.executor.memory"] == "4g"
    assert task.by_interval
    assert task.outlets == [Asset(name="sales.orders", uri="lakehouse://sales.orders", group="lakehouse")]


FORM = {"full_refresh": False, "replay": False, "commit": None, "dead_letters": None, "options": {}}


def test_trigger_form_of_an_ingestion_has_refresh_and_options(write_specs: WriteSpecs) -> None:
    write_specs(orders=ORDERS)
    dag = DagBag(DAGS).dags["ingest.sales.orders"]
    assert dag.params.dump() == FORM
    assert dag.params.get_param("full_refresh").schema["type"] == ["null", "boolean"]
    write_specs(orders=minimal("sales.orders"))
    by_checkpoint = DagBag(DAGS).dags["ingest.sales.orders"]
    assert by_checkpoint.params.dump() == FORM


def test_dag_of_a_database_offers_to_read_tables_again_and_names_its_tables(write_specs: WriteSpecs) -> None:
    ingest = '{source: mysql, tables: "shop.*", into: "{table}"}'
    write_specs(shop=f"table: shop\nlocation: lake/shop\ningest: {ingest}\n")
    dag = DagBag(DAGS).dags["ingest.shop"]
    assert dag.params.dump() == {"full_refresh": False, "resnapshot": None, "options": {}}
    assert "shop.* of mysql_default" in str(dag.description)
    assert [outlet.name for outlet in dag.tasks[0].outlets] == ["shop", "lakehouse.tables"]
    assert not dag.tasks[0].by_interval


def test_spec_without_ingest_has_no_dag_and_without_schedule_a_manual_one(write_specs: WriteSpecs) -> None:
    write_specs(quiet="table: quiet\nlocation: lake/quiet\nrecord_key: id\n", manual=minimal("manual"))
    bag = DagBag(DAGS)
    assert ingest_dags(bag) == ["ingest.manual"]
    assert not bag.dags["ingest.manual"].timetable.can_be_scheduled
    assert not bag.dags["ingest.manual"].tasks[0].by_interval


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("table: broken\nlocation: x\nrecord_kye: id\n", "bad.yaml:3: unknown name 'record_kye'"),
        ("table: broken\nlocation: [\n", "bad.yaml:3: not valid YAML"),
        (minimal("broken", "{path: x, schedule: every day}"), "'every day' is not a cron expression"),
        (minimal("good"), "table 'good' is already declared in"),
    ],
)
def test_bad_spec_is_an_import_error_and_does_not_affect_others(write_specs: WriteSpecs, bad: str, words: str) -> None:
    # The first file is valid. The order of paths decides which file is the duplicate.
    write_specs(a_good=minimal("good"), bad=bad, worse="- nothing")
    bag = DagBag(DAGS)
    assert ingest_dags(bag) == ["ingest.good"]
    assert [Path(path).name for path in bag.import_errors] == ["spec_errors.py"]
    (shown,) = bag.import_errors.values()
    assert words in shown
    assert "worse.yaml:1:" in shown


def test_missing_folder_of_specs_is_an_import_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(tmp_path / "nowhere"))
    (shown,) = DagBag(DAGS).import_errors.values()
    assert "nowhere is not a directory: create it for table specs" in shown


def test_dags_are_equal_at_every_parse(write_specs: WriteSpecs) -> None:
    write_specs(orders=ORDERS, manual=minimal("manual"))
    first, second = ({name: DagSerialization.to_dict(dag) for name, dag in DagBag(DAGS).dags.items()} for _ in range(2))
    assert {"ingest.manual", "ingest.sales.orders", "services.clean"} <= set(first)
    assert first == second


def test_task_builds_its_own_dag_only(write_specs: WriteSpecs, monkeypatch: pytest.MonkeyPatch) -> None:
    write_specs(one=minimal("one"), two=minimal("two"))
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "ingest.two")
    assert ingest_dags(DagBag(DAGS)) == ["ingest.two"]


MEASURE = """
import json, sys
# What Airflow's own processes have imported before they parse.
import airflow.sdk
from airflow.dag_processing.dagbag import DagBag
# Calls of Python functions measure the work of parsing; their number does not depend on the machine.
calls = 0

def count(frame, event, argument):
    global calls
    calls += event == "call"

sys.setprofile(count)
bag = DagBag(sys.argv[1])
sys.setprofile(None)
heavy = [name for name in ("pyspark", "pyarrow", "numpy", "pandas", "fastavro") if name in sys.modules]
print(json.dumps({"calls": calls, "dags": len(bag.dags), "errors": bag.import_errors, "heavy": heavy}))
"""


#: The same DAGs written by hand: the least work that a file of a hundred DAGs needs.
BY_HAND = """
from datetime import datetime
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param

PARAMS = {name: Param(None, type=["null", "string"], title=name) for name in ("start", "end", "refresh", "options")}
for number in range(100):
    with DAG(f"by_hand_{number}", schedule="15 * * * *", start_date=datetime(2026, 1, 1), params=PARAMS):
        SparkSubmitOperator(task_id="ingest", application="ingest.py", conf={"spark.executor.memory": "4g"})
"""


@pytest.mark.parametrize(("file", "dags"), [("ingest.py", 100), ("clustering.py", 1)])
def test_hundred_specs_parse_with_bounded_work_and_no_heavy_imports(
    write_specs: WriteSpecs, tmp_path: Path, file: str, dags: int
) -> None:
    """The processor time of parsing is measured in `tests.bench`; the number of function calls bounds it here."""
    by_hand = tmp_path / "by_hand.py"
    by_hand.write_text(BY_HAND)
    write_specs(**{f"t{number:03}": ORDERS.replace("sales.orders", f"sales.t{number:03}") for number in range(100)})
    ours, theirs = parsed(DAGS / file), parsed(by_hand)
    assert (ours["dags"], ours["errors"], ours["heavy"]) == (dags, {}, [])
    assert ours["calls"] <= 2.5 * theirs["calls"], (ours, theirs)


def parsed(file: Path) -> dict[str, Any]:
    """Parse a file in a new process; return the numbers that it prints."""
    ran = subprocess.run([sys.executable, "-c", MEASURE, str(file)], check=True, capture_output=True)
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def test_plugins_folder_has_no_errors_and_shadows_no_module() -> None:
    script = """
        import json, sys
        from airflow import plugins_manager
        before = set(sys.modules)
        plugins, errors = plugins_manager._get_plugins()
        ours = ("operators", "assets", "specs", "data_intervals", "processes", "spark_environment", "__init__")
        print(json.dumps([[p.name for p in plugins], errors, [name for name in ours if name in sys.modules]]))
    """
    ran = subprocess.run([sys.executable, "-c", dedent(script)], check=True, capture_output=True, text=True)
    names, errors, shadows = json.loads(ran.stdout.splitlines()[-1])
    assert "lakehouse" in names
    assert (errors, shadows) == ({}, [])


def test_dag_run_stores_the_report_and_the_asset_event(submit: FakeSubmit, write_specs: WriteSpecs) -> None:
    folder = write_specs(orders=ORDERS)
    report = IngestReport(status=JobStatus.COMMITTED, table="sales.orders", instant="20260102000000001", rows=3)
    submit.plan(report=report.to_json())
    conf = {"interval_start": "2026-01-01T00:00:00Z", "interval_end": "2026-01-02T00:00:00Z"}
    state, xcom, events = run_dag("ingest.sales.orders", conf)
    assert state == "success"
    assert xcom == report.to_mapping()
    assert [(event["instant"], event["rows"]) for event in events] == [("20260102000000001", 3)]
    command = parse_command(submit.argv[submit.argv.index("ingest") :])
    assert command.table == str(folder / "orders.yaml")
    assert command.interval_start == "2026-01-01T00:00:00+00:00"


def test_final_error_fails_the_run_at_the_first_try(submit: FakeSubmit, write_specs: WriteSpecs) -> None:
    write_specs(manual=minimal("manual", "{path: landing, retries: 3}"))
    error = JobError(kind="UserError", message="column 'id' is missing", retryable=False, code=ErrorCode.USER)
    submit.plan(exit_code=64, report=IngestReport(status=JobStatus.FAILED, error=error).to_json())
    state, xcom, events = run_dag("ingest.manual", {})
    assert (state, xcom, events) == ("failed", None, [])


def test_run_with_nothing_to_do_succeeds_without_event(submit: FakeSubmit, write_specs: WriteSpecs) -> None:
    write_specs(idle=minimal("idle"))
    submit.plan(report=IngestReport(status=JobStatus.NOTHING_TO_DO, table="idle").to_json())
    state, xcom, events = run_dag("ingest.idle", {})
    assert (state, events) == ("success", [])
    assert xcom is not None
    assert xcom["status"] == "nothing_to_do"
    assert task_states(DagBag(DAGS).dags["ingest.idle"].test()) == {"ingest": "success"}
    submit.plan(report=IngestReport(status=JobStatus.COMMITTED, table="idle", instant="20260101000000001").to_json())
    assert [event["instant"] for event in run_dag("ingest.idle", {})[2]] == ["20260101000000001"]


def test_downstream_task_runs_after_a_service_without_work_unless_skip_is_set(submit: FakeSubmit) -> None:
    submit.plan(report=IngestReport(status=JobStatus.NOTHING_TO_DO, table="default.ride_trips").to_json())
    dag = DagBag(DAGS).dags["nightly.ride_trips"]
    # Airflow 3.3 fails to look up the deadline of a run without a queue, as in this test.
    dag.deadline = None
    date = datetime(2026, 3, 2, tzinfo=UTC)
    assert task_states(dag.test(logical_date=date)) == {"lay_out": "success", "clean": "success"}
    command = parse_command(submit.argv[submit.argv.index("clean") :])
    assert (command.verb, command.table) == ("clean", "default.ride_trips")
    assert "(Airflow, nightly.ride_trips/" in submit.environment["LAKEHOUSE_AUTHOR"]
    dag.get_task("lay_out").skip_if_nothing_to_do = True
    assert task_states(dag.test(logical_date=date)) == {"lay_out": "skipped", "clean": "skipped"}


def task_states(run: Any) -> dict[str, str]:
    return {instance.task_id: str(instance.state) for instance in run.get_task_instances()}


def run_dag(dag_id: str, conf: dict[str, Any]) -> tuple[str, dict[str, Any] | None, list[dict[str, Any]]]:
    """Run a DAG in this process; return its state, its task's report, and the extras of its asset events."""
    from airflow.models.asset import AssetEvent
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    dag = DagBag(DAGS).dags[dag_id]
    run = dag.test(run_conf=conf)
    with create_session() as session:
        found = session.scalars(select(XComModel).where(XComModel.dag_id == dag_id, XComModel.key == "return_value"))
        reports = [XComModel.deserialize_value(row) for row in found]
        events = session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == dag_id))
        return str(run.state), reports[0] if reports else None, [dict(event.extra) for event in events]


def test_ingest_dag_of_derived_tables_runs_after_any_commit_of_their_sources(write_specs: WriteSpecs) -> None:
    tables = "source: table, tables: {a: lake/a, b: lake/b/, c: lake/elsewhere}, transform: {sql: SELECT 1}"
    both = minimal("both", f"{{{tables}, join: {{j: lake/j}}}}")
    timed = minimal("timed", '{source: table, tables: {a: lake/a}, schedule: "@hourly"}')
    manual = minimal("manual", "{source: table, tables: {a: lake/elsewhere}}")
    write_specs(a=minimal("a"), b=minimal("b"), j=minimal("j"), both=both, timed=timed, manual=manual)
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    timetables = {
        name: DagSerialization.to_dict(bag.dags[f"ingest.{name}"])["dag"]["timetable"]
        for name in ("both", "timed", "manual")
    }
    condition = timetables["both"]["__var"]["asset_condition"]
    assert condition["__type"] == "asset_any"
    assert sorted(asset["name"] for asset in condition["objects"]) == ["a", "b"]
    assert "CronDataInterval" in timetables["timed"]["__type"]
    assert "Null" in timetables["manual"]["__type"]
