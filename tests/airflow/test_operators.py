"""The operators, run with a fake spark-submit."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)

from lakehouse.errors import (
    CorruptTableError,
    LakehouseError,
    RetryableError,
    SourceMissingError,
    TableBusyError,
    UserError,
)
from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.spec.contracts.decisions import DueServices
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus
from lakehouse.spec.job_command import JobCommand, parse_command
from lakehouse_airflow.job_environment import spec_variables
from lakehouse_airflow.operators import FINAL_EXIT_CODES, LakehouseOperator
from lakehouse_airflow.publish import PublishPartitionsOperator
from lakehouse_airflow.services import ServiceOperator, due_tables
from lakehouse_airflow.spark_environment import spark_environment
from tests.airflow.runs import RUN_ID, run_context
from tests.support.fake_submit import FakeSubmit

ORDERS = Asset(name="sales.orders", uri="lakehouse://sales.orders")
COMMITTED = IngestReport(
    status=JobStatus.COMMITTED,
    table="sales.orders",
    instant="20260101000000001",
    rows=7,
    files=2,
    bytes=99,
    late_rows_dropped=4,
    seconds=1.5,
)


def operator(**kwargs: Any) -> LakehouseOperator:
    with DAG("ingest.sales.orders"):
        arguments = {"task_id": "ingest", "verb": "ingest", "action": "run", "table": "sales.orders"}
        return LakehouseOperator(**(arguments | {"outlets": [ORDERS]} | kwargs))


def error_report(kind: type[LakehouseError], message: str) -> str:
    error = JobError.of(kind(message))
    return IngestReport(status=JobStatus.FAILED, error=error).to_json()


def command_of(argv: list[str]) -> JobCommand:
    return parse_command(argv[argv.index("ingest") :])


def test_operator_returns_a_commit_and_adds_it_to_the_asset_event(submit: FakeSubmit) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator()
    context = run_context(task)
    assert task.execute(context) == COMMITTED.to_mapping()
    extra = context["outlet_events"][ORDERS].extra
    assert extra["instant"] == "20260101000000001"
    assert (extra["rows"], extra["files"], extra["bytes"], extra["seconds"]) == (7, 2, 99, 1.5)
    assert extra["late_rows_dropped"] == 4


def test_operator_reports_schema_drift_in_xcom_and_asset_event(submit: FakeSubmit) -> None:
    drift = (ColumnDrift(column="tip", change=Drift.ADDED, rows=7),)
    submit.plan(report=replace(COMMITTED, drift=drift).to_json())
    task = operator()
    context = run_context(task)
    drift = [{"column": "tip", "change": "added", "rows": 7, "before": "", "after": "", "example": ""}]
    assert task.execute(context)["drift"] == drift
    assert context["outlet_events"][ORDERS].extra["drift"] == drift


def test_replay_in_the_params_parses_dead_letters_without_an_interval(submit: FakeSubmit) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator()
    task.execute(run_context(task, params={"replay": True, "commit": "20260131120000000", "dead_letters": None}))
    command = command_of(submit.argv)
    assert (command.ACTION, command.commit, command.interval) == ("replay", "20260131120000000", None)


def test_job_gets_its_command_and_the_environment_of_spark(submit: FakeSubmit) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator(options={"hoodie.parquet.compression.codec": "snappy"}, conf={"spark.executor.memory": "2g"})
    task.execute(run_context(task, params={"full_refresh": True, "options": {"hoodie.combine.before.insert": True}}))
    command = command_of(submit.argv)
    assert (command.verb, command.ACTION, command.table) == ("ingest", "run", "sales.orders")
    assert command.run_id == f"ingest.sales.orders/{RUN_ID}/ingest"
    assert command.full_refresh
    assert command.options == {
        "hoodie.parquet.compression.codec": "snappy",
        "hoodie.combine.before.insert": "true",
    }
    assert submit.argv[:2] == ["--master", "local[2]"]
    assert "spark.executor.memory=2g" in submit.argv
    assert "spark.log.level=WARN" in submit.argv
    application = Path(submit.argv[submit.argv.index("ingest") - 1])
    assert application.parts[-2:] == ("lakehouse", "__main__.py")
    assert submit.environment["PYSPARK_PYTHON"] == str(submit.home / "bin" / "python")
    assert submit.environment["PYTHONSAFEPATH"] == "1"


def test_job_environment_has_the_spec_folders_and_the_author(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    submit.plan(report=COMMITTED.to_json())
    context = {"DAG_OWNER": "ada", "DAG_ID": "d", "DAG_RUN_ID": "r"}
    for name, value in context.items():
        monkeypatch.setenv(f"AIRFLOW_CTX_{name}", value)
    for specs in (None, tmp_path):
        if specs is not None:
            monkeypatch.setenv("LAKEHOUSE_SPECS", str(specs))
        task = operator()
        task.execute(run_context(task))
        expected = specs or Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "tables"
        assert submit.environment["LAKEHOUSE_SYNC_SPECS"] == str(expected)
        assert submit.environment["LAKEHOUSE_AUTHOR"] == "ada (Airflow, d/r)"
    assert spec_variables({"LAKEHOUSE_SPECS": str(tmp_path / "nowhere")}) == {}
    run = {"dag_run": SimpleNamespace(triggering_user_name="bo")}
    monkeypatch.setattr("lakehouse_airflow.job_environment.get_current_context", lambda: run)
    assert spec_variables(os.environ)["LAKEHOUSE_AUTHOR"] == "bo (Airflow, d/r)"
    # A variable that the deployment sets is kept.
    assert spec_variables({"LAKEHOUSE_SPECS": str(tmp_path), "LAKEHOUSE_SYNC_SPECS": "/specs"}) == {}


@pytest.mark.parametrize("master", ["local[2]", "yarn"])
def test_job_gets_secrets_in_its_environment_and_in_no_argument(
    submit: FakeSubmit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    connection = {"conn_type": "postgres", "login": "me", "password": "hunter2", "host": "db", "schema": "lake"}
    for name in ("LAKEHOUSE_CATALOG", "LAKEHOUSE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
    monkeypatch.setenv("AIRFLOW_CONN_LAKEHOUSE_CATALOG", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_LOCKS", json.dumps(connection))
    spec = tmp_path / "orders.yaml"
    spec.write_text(
        "table: sales.orders\nlocation: /lake/orders\nrecord_key: [id]\ningest: {path: /in}\n"
        "options: {lakehouse.lock.sqlalchemy.url: 'airflow:locks'}\n"
    )
    submit.plan(report=COMMITTED.to_json())
    task = operator(table=str(spec))
    task.execute(run_context(task))
    assert submit.environment["LAKEHOUSE_CATALOG"] == "postgresql+psycopg://me:hunter2@db/lake"
    assert "hunter2" in submit.environment["AIRFLOW_CONN_LOCKS"]
    assert "hunter2" not in json.dumps([submit.argv, task.env_vars])
    assert "LAKEHOUSE_CATALOG" not in os.environ


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("lakehouse.lock.sqlalchemy.url", "postgresql://me:hunter2@db/locks", "names a server"),
        ("fs.s3a.secret.key", "hunter2", "contains a secret"),
    ],
)
def test_operator_refuses_a_server_or_a_secret_in_options_before_spark_starts(
    submit: FakeSubmit, name: str, text: str, reason: str
) -> None:
    task = operator()
    context = run_context(task)
    context["params"] = {"options": {name: text}}
    with pytest.raises(AirflowFailException, match=reason) as error:
        task.execute(context)
    assert "hunter2" not in str(error.value) and not submit.was_started


def test_run_named_like_a_parent_folder_writes_its_report_into_its_own_folder(submit: FakeSubmit) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator()
    context = run_context(task)
    context["ti"].run_id = ".."
    report = task._command(context).report
    assert report is not None and ".." not in Path(report).parts
    assert Path(report).parts[-4:] == (context["ti"].dag_id, "_", task.task_id, "report.json")


def test_operator_does_not_use_a_report_folder_of_another_user(
    submit: FakeSubmit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAKEHOUSE_REPORTS")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / f"lakehouse-reports-{os.geteuid()}").symlink_to(victim)
    task = operator()
    with pytest.raises(AirflowFailException, match="symbolic link"):
        task.execute(run_context(task))
    assert list(victim.iterdir()) == [] and not submit.was_started


@pytest.mark.parametrize(
    ("kwargs", "params", "expected"),
    [
        ({"by_interval": True}, {}, ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00")),
        (
            {"by_interval": True},
            {"interval_start": "2025-05-01T02:00:00+02:00", "interval_end": "2025-06-01"},
            ("2025-05-01T00:00:00+00:00", "2025-06-01T00:00:00+00:00"),
        ),
        ({"by_interval": False}, {}, (None, None)),
    ],
)
def test_params_override_the_data_interval_and_a_checkpoint_needs_none(
    submit: FakeSubmit, kwargs: dict[str, Any], params: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator(**kwargs)
    interval = {
        "data_interval_start": datetime(2026, 1, 1, tzinfo=UTC),
        "data_interval_end": datetime(2026, 1, 2, tzinfo=UTC),
    }
    task.execute(run_context(task, params=params, **interval))
    command = command_of(submit.argv)
    assert (command.interval_start, command.interval_end) == expected


@pytest.mark.parametrize(
    ("hours", "words"),
    [(None, "needs a data interval and has none"), (0, r"is empty: it starts and ends at 2026-01-01T00:00:00\+00:00")],
)
def test_operator_refuses_a_run_without_its_interval_before_spark_starts(
    submit: FakeSubmit, hours: int | None, words: str
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    interval = {} if hours is None else {"data_interval_start": start, "data_interval_end": start}
    task = operator(by_interval=True)
    with pytest.raises(AirflowFailException, match=words):
        task.execute(run_context(task, **interval))
    assert not submit.was_started
    submit.plan(report=COMMITTED.to_json())
    bounds = {"interval_start": "2026-01-01", "interval_end": "2026-01-02"}
    task.execute(run_context(task, params=bounds, **interval))
    assert command_of(submit.argv).interval_name == "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"interval_start": "2026-01-01"}, "give both, or none"),
        ({"interval_start": "2026-01-02", "interval_end": "2026-01-01"}, "is not before"),
        ({"interval_start": "soon", "interval_end": "later"}, "'soon'"),
        ({"options": ["a"]}, "expected a mapping"),
    ],
)
def test_operator_refuses_invalid_params_before_spark_starts(
    submit: FakeSubmit, params: dict[str, Any], words: str
) -> None:
    task = operator(by_interval="options" not in params)
    with pytest.raises(AirflowFailException, match=words):
        task.execute(run_context(task, params=params))
    assert not submit.was_started


def test_operator_refuses_an_interval_for_a_table_with_a_checkpoint(submit: FakeSubmit) -> None:
    task = operator()
    with pytest.raises(AirflowFailException, match="ingested by checkpoint"):
        task.execute(run_context(task, params={"interval_start": "2026-01-01", "interval_end": "2026-01-02"}))


def test_wrong_configuration_fails_without_retry_before_spark_starts(submit: FakeSubmit) -> None:
    message = (
        "option hoodie.clustering.plan.strategy.sort.columns: column 'zon' is not in the table. Did you mean 'zone'?"
    )
    submit.plan_check(exit_code=64, report=error_report(UserError, message))
    task = operator(conf={"spark.hadoop.fs.s3a.endpoint": "http://s3:9000", "spark.executor.cores": "2"})
    with pytest.raises(AirflowFailException, match=rf"^UserError: {re.escape(message)}$"):
        task.execute(run_context(task))
    assert not submit.was_started
    checked = submit.check["argv"]
    assert parse_command(checked[checked.index("ingest") :]).check
    settings = json.loads(submit.check["environment"]["LAKEHOUSE_STORAGE_SETTINGS"])
    assert settings == {"spark.hadoop.fs.s3a.endpoint": "http://s3:9000"}
    assert submit.check["environment"]["LAKEHOUSE_JOB"].startswith("ingest.sales.orders/")


def test_unreachable_storage_of_a_check_is_retried(submit: FakeSubmit) -> None:
    submit.plan_check(exit_code=75, report=error_report(RetryableError, "s3://lake does not answer"))
    task = operator()
    with pytest.raises(AirflowException, match=r"^RetryableError: s3://lake does not answer$") as raised:
        task.execute(run_context(task))
    assert not isinstance(raised.value, AirflowFailException) and not submit.was_started


def test_check_that_cannot_run_fails_with_its_output(submit: FakeSubmit) -> None:
    submit.plan_check(exit_code=64, output="UserError: unknown argument '--check'")
    task = operator()
    with pytest.raises(AirflowFailException, match="ended with exit code 64: UserError: unknown argument"):
        task.execute(run_context(task))
    assert not submit.was_started


def test_operator_checks_a_table_that_an_earlier_task_opened_only_with_options(submit: FakeSubmit) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator(check=False)
    task.execute(run_context(task))
    assert submit.check is None and submit.was_started
    task.execute(run_context(task, params={"options": {"hoodie.combine.before.insert": "true"}}))
    assert submit.check is not None


@pytest.mark.parametrize(
    ("kwargs", "conf", "words"),
    [
        ({"options": {"hoodie.clean.comits.retained": "1"}}, {}, "unknown option 'hoodie.clean.comits.retained'"),
        ({"verb": "clenn"}, {}, "unknown job 'clenn'. Did you mean 'clean'?"),
        ({"table": "/nowhere/orders.yaml"}, {}, "cannot read the table spec /nowhere/orders.yaml"),
        ({}, {"full_refesh": True}, "contains 'full_refesh', which is not a param of this DAG. Did you mean"),
    ],
)
def test_operator_names_a_wrong_setting_before_any_process_starts(
    submit: FakeSubmit, kwargs: dict[str, Any], conf: dict[str, Any], words: str
) -> None:
    task = operator(**kwargs)
    run = {"dag_run": SimpleNamespace(conf=conf), "dag": SimpleNamespace(params={"full_refresh": False})}
    with pytest.raises(AirflowFailException, match=re.escape(words)):
        task.execute(run_context(task, **run))
    assert not submit.was_started and submit.check is None


def test_report_is_logged_once_as_readable_text(submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def record(message: str, *values: Any) -> None:
        lines.append(message % values)

    logger = SimpleNamespace(info=record, warning=record, error=record, debug=record)
    monkeypatch.setattr(LakehouseOperator, "log", logger)
    report = replace(
        COMMITTED, rows=1234, inserts=1000, updates=234, bytes=4_560_000, warning="the disk is nearly full"
    )
    submit.plan(report=report.to_json())
    task = operator()
    task.execute(run_context(task))
    text = (
        "sales.orders: committed 20260101000000001 in 1.5 s\n"
        "  rows: 1,234 written: 1,000 inserted, 234 updated\n"
        "  files: 2, 4.56 MB\n"
        "  late rows dropped: 4, older than the delete of their key\n"
        "  warning: the disk is nearly full"
    )
    assert [line for line in lines if "20260101000000001" in line] == [text]


@pytest.mark.parametrize("code", sorted(FINAL_EXIT_CODES))
def test_final_error_fails_without_retry_and_shows_its_message(submit: FakeSubmit, code: int) -> None:
    submit.plan(exit_code=code, report=error_report(CorruptTableError, "footer of part-7 is cut short"))
    task = operator()
    with pytest.raises(AirflowFailException, match=r"^CorruptTableError: footer of part-7 is cut short$"):
        task.execute(run_context(task))


def test_final_exit_codes_match_the_error_classes() -> None:
    assert frozenset({64, 65, 69, 76}) == FINAL_EXIT_CODES


@pytest.mark.parametrize("code", [1, 70, 75, 137])
def test_other_errors_are_retried_and_show_their_message(submit: FakeSubmit, code: int) -> None:
    submit.plan(exit_code=code, report=error_report(RetryableError, "the lock is held"))
    task = operator()
    with pytest.raises(AirflowException, match=r"^RetryableError: the lock is held$") as raised:
        task.execute(run_context(task))
    assert not isinstance(raised.value, AirflowFailException)


def test_busy_table_is_rescheduled_without_using_a_try(submit: FakeSubmit) -> None:
    submit.plan(exit_code=75, report=error_report(TableBusyError, "run x is at it"))
    task = operator(execution_timeout=timedelta(hours=1))
    context = run_context(task)
    now = datetime.now(UTC)
    context["ti"].get_first_reschedule_date = lambda _: None
    with pytest.raises(AirflowRescheduleException) as raised:
        task.execute(context)
    assert timedelta(seconds=5) < raised.value.reschedule_date - now < timedelta(seconds=60)
    context["ti"].get_first_reschedule_date = lambda _: now - timedelta(minutes=50)
    with pytest.raises(AirflowRescheduleException):
        task.execute(context)
    context["ti"].get_first_reschedule_date = lambda _: now - timedelta(minutes=61)
    with pytest.raises(AirflowFailException, match="without success: run x is at it"):
        task.execute(context)


def test_operator_reschedules_while_data_is_missing_and_fails_after_its_deadline(submit: FakeSubmit) -> None:
    error = JobError.of(SourceMissingError("no data files in 'x'", wait_for_s=3600))
    submit.plan(exit_code=75, report=IngestReport(status=JobStatus.FAILED, error=error).to_json())
    task = operator(execution_timeout=timedelta(minutes=1))
    context = run_context(task)
    now = datetime.now(UTC)
    pauses = []
    for waited in (None, 20, 59):
        since = None if waited is None else now - timedelta(minutes=waited)
        context["ti"].get_first_reschedule_date = lambda _, since=since: since
        with pytest.raises(AirflowRescheduleException) as raised:
            task.execute(context)
        pauses.append(round((raised.value.reschedule_date - now) / timedelta(seconds=30)))
    assert pauses == [1, 10, 10]
    context["ti"].get_first_reschedule_date = lambda _: now - timedelta(minutes=61)
    with pytest.raises(AirflowFailException, match="without success: no data files in 'x'"):
        task.execute(context)


def test_failed_job_without_report_shows_the_end_of_its_output(submit: FakeSubmit) -> None:
    submit.plan(exit_code=1, output="java.lang.OutOfMemoryError: heap")
    task = operator()
    with pytest.raises(AirflowException, match="OutOfMemoryError: heap"):
        task.execute(run_context(task))


def test_job_with_exit_code_zero_and_no_report_fails(submit: FakeSubmit) -> None:
    task = operator()
    with pytest.raises(AirflowException, match="left no report"):
        task.execute(run_context(task))


def test_operator_ignores_the_report_of_an_earlier_try(submit: FakeSubmit) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator()
    task.execute(run_context(task))
    submit.plan(report=None)
    with pytest.raises(AirflowException, match="left no report"):
        operator().execute(run_context(task))


def test_nothing_to_do_succeeds_with_a_report_and_no_event(submit: FakeSubmit) -> None:
    submit.plan(report=IngestReport(status=JobStatus.NOTHING_TO_DO).to_json())
    alias = AssetAlias("any")
    task = operator(outlets=[ORDERS, alias])
    context = run_context(task)
    assert task.execute(context)["status"] == "nothing_to_do"
    assert context["outlet_events"][ORDERS].extra == {}
    assert task.outlets == [alias], "Airflow makes an event of each asset among the outlets"


def test_nothing_to_do_is_skipped_with_a_report_if_skip_is_set(submit: FakeSubmit) -> None:
    submit.plan(report=IngestReport(status=JobStatus.NOTHING_TO_DO, reason="no new files").to_json())
    task = operator(skip_if_nothing_to_do=True)
    context = run_context(task)
    with pytest.raises(AirflowSkipException, match="no new files"):
        task.execute(context)
    assert context["pushed"]["return_value"]["status"] == "nothing_to_do"
    assert context["outlet_events"][ORDERS].extra == {}


def test_retry_that_finds_its_own_commit_emits_the_event_again(submit: FakeSubmit) -> None:
    submit.plan(report=IngestReport(status=JobStatus.NOTHING_TO_DO, instant="20260101000000001").to_json())
    task = operator()
    context = run_context(task)
    assert task.execute(context)["instant"] == "20260101000000001"
    assert context["outlet_events"][ORDERS].extra["instant"] == "20260101000000001"


def test_stopping_the_task_ends_a_driver_that_ignores_sigterm(submit: FakeSubmit) -> None:
    submit.plan(hang=True)
    task = operator()
    raised: list[BaseException] = []

    def execute() -> None:
        try:
            task.execute(run_context(task))
        except AirflowException as error:
            raised.append(error)

    running = threading.Thread(target=execute)
    running.start()
    driver = wait_for_driver(submit)
    tree = [psutil.Process(driver), psutil.Process(psutil.Process(driver).ppid())]
    task.on_kill()
    running.join(timeout=30)
    assert not running.is_alive()
    assert [process.pid for process in tree if lives(process)] == []
    assert len(raised) == 1


def test_stopping_the_task_ends_a_driver_that_outlives_its_jvm(submit: FakeSubmit) -> None:
    submit.plan(orphan=True, exit_code=75)
    task = operator()
    with pytest.raises(AirflowException):
        task.execute(run_context(task))
    assert submit.driver_pid is not None
    assert not (psutil.pid_exists(submit.driver_pid) and lives(psutil.Process(submit.driver_pid)))


def test_master_comes_from_the_environment_without_a_connection(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_SPARK_MASTER", "local[1]")
    # monkeypatch restores the variable at the end of the test, although the operator sets it.
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    submit.plan(report=COMMITTED.to_json())
    task = operator()
    task.execute(run_context(task))
    assert submit.argv[:2] == ["--master", "local[1]"]


@pytest.mark.parametrize("connection", [None, "spark://local[*]"])
def test_task_without_usable_connection_names_the_setting_and_does_not_use_yarn(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, connection: str | None
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    task = operator()
    with pytest.raises(AirflowFailException, match="AIRFLOW_CONN_SPARK_DEFAULT="):
        task.execute(run_context(task))


@pytest.mark.parametrize("home", [None, "nowhere"])
def test_task_without_spark_environment_names_the_setting(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None
) -> None:
    monkeypatch.delenv("LAKEHOUSE_SPARK_HOME")
    if home is not None:
        monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(tmp_path / home))
    task = operator()
    with pytest.raises(AirflowFailException, match="LAKEHOUSE_SPARK_HOME"):
        task.execute(run_context(task))


@pytest.mark.parametrize("named", [True, False], ids=["LAKEHOUSE_MODULES", "the folder of the DAGs"])
def test_job_finds_the_modules_that_specs_name(submit: FakeSubmit, tmp_path: Path, named: bool) -> None:
    (tmp_path / "dags").mkdir()
    environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": "/of/the/user"}
    environ.pop("AIRFLOW__CORE__DAGS_FOLDER", None)
    if named:
        environ["LAKEHOUSE_MODULES"] = "/mergers/of/sales:/mergers/of/trips"
    folders = spark_environment(environ).variables["PYTHONPATH"].split(":")
    assert folders[-1] == "/of/the/user"
    expected = ["/mergers/of/sales", "/mergers/of/trips"] if named else [str(tmp_path / "dags")]
    assert folders[-1 - len(expected) : -1] == expected


def lives(process: psutil.Process) -> bool:
    # An orphan process stays a zombie if no process reaps it, as in a container.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_driver(submit: FakeSubmit) -> int:
    for _ in range(600):
        if submit.driver_pid is not None:
            return submit.driver_pid
        threading.Event().wait(0.05)
    raise AssertionError(f"no driver after 30 s in {os.listdir(submit.directory)}")


def test_operators_accept_a_text_as_a_list_of_one() -> None:
    with DAG("publish"):
        task = PublishPartitionsOperator(task_id="publish", table="/specs/orders.yaml", partitions="dt=2026-01-01")
    assert task.partitions == ["dt=2026-01-01"]
    service = ServiceOperator(task_id="clean", service="clean", table="sales.orders")
    command = service._command(run_context(service, params={"partitions": "day=1"}))
    assert (command.tables, command.partitions) == (("sales.orders",), ("day=1",))


def test_operators_refuse_values_that_are_not_texts() -> None:
    with DAG("publish"), pytest.raises(UserError, match="partitions contains 7, which is of type int"):
        PublishPartitionsOperator(task_id="publish", table="/specs/orders.yaml", partitions=[7])
    empty = ServiceOperator(task_id="clean", service="clean", table=[])
    with pytest.raises(UserError, match="table is an empty list"):
        empty._command(run_context(empty))


def test_due_tables_accept_one_table_of_the_form_as_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(words: list[str]) -> str:
        asked.append(words)
        return DueServices(batches={"clean": ()}).to_json()

    monkeypatch.setattr("lakehouse_airflow.services.run_command", answer)
    due_tables("clean", {"params": {"tables": "sales.orders"}}, arguments="--quick")
    assert asked == [
        ["services", "due", "--service", "clean", "--table", "sales.orders", "--quick", "--output", "json"]
    ]
