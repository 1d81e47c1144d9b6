"""`lakehouse doctor` in Airflow's environment: its own checks, those of Spark's environment, and the DAG's task."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from lakehouse import __version__
from lakehouse.cli.main import main
from lakehouse.errors import UserError
from lakehouse.spec.contracts.doctor import CHECKS, CheckedEnvironment, CheckState, DoctorReport
from lakehouse.spec.contracts.pools import PoolFacts
from lakehouse.spec.table.table_spec import load_spec
from lakehouse_airflow import doctor, doctor_database
from lakehouse_airflow.compat import versions
from lakehouse_airflow.doctor import examine
from lakehouse_airflow.doctor_dag import check_deployment, doctor_dag, failure_text, pools_of_run
from lakehouse_airflow.doctor_facts import AirflowFacts
from lakehouse_airflow.setup_deployment import pool_facts
from tests.support.fake_submit import FakeSubmit

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = ROOT / ".venv"
POOLS = PoolFacts(
    slots={"default_pool": 128, "lakehouse_ingest": 1, "lakehouse_services": 1, "lakehouse_publish": 1},
    needed=("lakehouse_ingest", "lakehouse_services"),
)
FACTS = AirflowFacts(environ={}, pools=POOLS)


@pytest.fixture
def spark_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: None) -> Path:
    """The real environment of Spark, with a connection to a local master, and without specs."""
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(SPARK_HOME))
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(tmp_path))
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    return SPARK_HOME


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **fields}))


def test_every_description_of_airflow_has_a_function_in_the_same_order() -> None:
    described = [c.name for c in CHECKS.values() if c.environment is CheckedEnvironment.AIRFLOW]
    assert list(doctor.FUNCTIONS) == described


def test_report_has_the_checks_of_both_environments_in_their_order(spark_home: Path) -> None:
    report = examine(os.environ, pools=POOLS, in_task=True)
    assert [check.name for check in report.checks] == list(CHECKS)
    assert [(check.name, check.found) for check in report.failures] == []
    found = {check.name: check for check in report.checks}
    assert found["versions"].found == f"lakehouse {__version__} in both environments"
    assert str(SPARK_HOME) in found["python"].found
    assert "lakehouse_ingest 1 slots" in found["pools"].found


def test_command_prints_one_table_of_both_environments_and_fails_for_missing_pools(
    spark_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_database, "read_pools", lambda: replace(POOLS, needed=("big_tables",)))
    words = ["doctor", "--check", "pools", "--check", "python", "--output", "json"]
    assert main(words) == UserError.exit_code
    printed = capsys.readouterr()
    report = DoctorReport.from_json(printed.out)
    assert [(check.name, check.state) for check in report.checks] == [("pools", "failed"), ("python", "ok")]
    assert "missing: big_tables" in report.failures[0].found
    assert "`airflow lakehouse setup`" in report.failures[0].advice
    assert "1 of 2 checks failed: pools" in printed.err


def test_pools_of_the_command_come_from_the_database_of_airflow(database: None) -> None:
    facts = doctor_database.read_pools()
    assert facts == pool_facts()
    assert "default_pool" in facts.slots


def test_other_version_in_sparks_environment_fails_with_both_versions() -> None:
    report = DoctorReport(lakehouse_version="0.0.9", python_version="3.11")
    state, found = doctor.check_versions(replace(FACTS, report=report))
    assert state is CheckState.FAILED
    assert found == f"lakehouse {__version__} in Airflow's environment, 0.0.9 in Spark's environment"


@pytest.mark.parametrize(
    ("line", "svcs", "is_broken"),
    [((3, 2), "26.2.0", True), ((3, 2), "27.1.0", True), ((3, 2), "26.1.0", False), ((3, 3), "26.2.0", False)],
)
def test_package_that_breaks_dags_test_is_a_warning_on_airflow_3_2(
    monkeypatch: pytest.MonkeyPatch, line: tuple[int, int], svcs: str, is_broken: bool
) -> None:
    monkeypatch.setattr(versions, "installed_line", lambda: line)
    monkeypatch.setattr(versions, "version", lambda name: svcs if name == "svcs" else "3.2.2")
    state, text = doctor.check_airflow(FACTS)
    assert state is (CheckState.WARNING if is_broken else CheckState.OK)
    assert (f"fails with svcs {svcs}: run pip install 'svcs<26.2'" in text) is is_broken


def test_python_that_prints_no_report_fails_spark_home_and_versions(submit: FakeSubmit) -> None:
    report = examine(os.environ, ("spark_home", "versions", "java"), pools=POOLS, in_task=True)
    assert [check.name for check in report.failures] == ["spark_home", "versions"]
    assert "in Spark's environment ended with exit code" in report.failures[0].found


def test_missing_spark_home_fails_with_its_variable(monkeypatch: pytest.MonkeyPatch, database: None) -> None:
    monkeypatch.delenv("LAKEHOUSE_SPARK_HOME", raising=False)
    report = examine(os.environ, ("spark_home",), pools=POOLS, in_task=True)
    assert "LAKEHOUSE_SPARK_HOME" in report.failures[0].found


@pytest.mark.parametrize(
    ("slots", "state", "text"),
    [
        ({"lakehouse_ingest": 1}, CheckState.FAILED, "missing: lakehouse_services"),
        ({"lakehouse_ingest": 1, "lakehouse_services": 0}, CheckState.FAILED, "without slots: lakehouse_services"),
        ({"lakehouse_ingest": -1, "lakehouse_services": 2}, CheckState.OK, "lakehouse_ingest unlimited"),
    ],
)
def test_pools_are_judged_by_existence_and_slots(slots: dict[str, int], state: CheckState, text: str) -> None:
    found = doctor.check_pools(replace(FACTS, pools=replace(POOLS, slots=slots)))
    assert found[0] is state
    assert text in found[1]


def test_run_without_pools_of_the_scheduler_fails_the_check_of_pools(spark_home: Path) -> None:
    report = examine(os.environ, ("pools",), in_task=True)
    assert "it has not loaded the plugin" in report.failures[0].found


def test_spark_connection_is_judged_by_its_master(monkeypatch: pytest.MonkeyPatch, database: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as running:
        port = running.getsockname()[1]
        connect(monkeypatch, host="spark://127.0.0.1", port=port)
        assert doctor.check_spark_connection(FACTS) == (CheckState.OK, f"spark://127.0.0.1:{port} answers")
    state, found = doctor.check_spark_connection(FACTS)
    assert state is CheckState.FAILED
    assert f"spark://127.0.0.1:{port} does not answer" in found
    connect(monkeypatch, host="local[2]", extra={"deploy-mode": "cluster"})
    assert "deploy-mode" in doctor.check_spark_connection(FACTS)[1]
    connect(monkeypatch)
    assert "submit to YARN" in doctor.check_spark_connection(FACTS)[1]
    connect(monkeypatch, host="yarn")
    assert doctor.check_spark_connection(FACTS)[0] is CheckState.FAILED
    assert doctor.check_spark_connection(replace(FACTS, environ={"HADOOP_CONF_DIR": "/etc/hadoop"}))[0] is CheckState.OK


def test_missing_spark_connection_fails_unless_the_variable_names_a_master(
    monkeypatch: pytest.MonkeyPatch, database: None
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    assert doctor.check_spark_connection(FACTS)[0] is CheckState.FAILED
    named = replace(FACTS, environ={"LAKEHOUSE_SPARK_MASTER": "local[2]"})
    assert doctor.check_spark_connection(named)[0] is CheckState.OK


def test_more_drivers_than_memory_are_a_warning() -> None:
    many = replace(POOLS, slots={**POOLS.slots, "lakehouse_services": 1_000_000})
    assert doctor.check_driver_memory(replace(FACTS, pools=many))[0] is CheckState.WARNING
    assert doctor.check_driver_memory(FACTS)[0] is CheckState.OK
    assert [doctor._memory(text) for text in ("2g", "512m", "many")] == [2 << 30, 512 << 20, None]


class Health(BaseHTTPRequestHandler):
    """The health of a deployment, as Airflow's API server tells it."""

    status: str | None = "healthy"

    def do_GET(self) -> None:
        assert self.path == "/api/v2/monitor/health"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(
            json.dumps({"triggerer": {"status": self.status, "latest_triggerer_heartbeat": None}}).encode()
        )

    def log_message(self, format: str, *values: Any) -> None:
        """Print nothing."""


def test_triggerer_is_needed_by_streams_that_triggers_watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.check_triggerer(FACTS)[0] is CheckState.SKIPPED
    (tmp_path / "t.yaml").write_text(
        "{table: t, location: lake/t, record_key: id, ingest: {path: landing, stream: {watch: deferred}}}"
    )
    facts = replace(FACTS, specs=(load_spec(tmp_path / "t.yaml"),))
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        monkeypatch.setenv(
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL", f"http://127.0.0.1:{server.server_port}/execution/"
        )
        answering = Thread(target=server.serve_forever)
        answering.start()
        try:
            assert doctor.check_triggerer(facts) == (CheckState.OK, "a triggerer runs, for t")
            monkeypatch.setattr(Health, "status", None)
            state, found = doctor.check_triggerer(facts)
        finally:
            server.shutdown()
            answering.join()
    assert (state, found) == (CheckState.FAILED, "no triggerer runs (last heartbeat: never), but t need one")
    assert doctor.check_triggerer(facts)[0] is CheckState.WARNING, "no API server answers"


def test_broken_check_stops_no_other(monkeypatch: pytest.MonkeyPatch, spark_home: Path) -> None:
    def broken(facts: AirflowFacts) -> Any:
        raise KeyError("postgresql://me:hunter22@db/x")

    monkeypatch.setattr(doctor, "FUNCTIONS", {**doctor.FUNCTIONS, "airflow": broken})
    report = examine(os.environ, ("airflow", "pools"), pools=POOLS, in_task=True)
    assert [(check.name, check.state) for check in report.checks] == [("airflow", "failed"), ("pools", "ok")]
    assert "hunter22" not in report.to_json()


def test_task_fails_with_the_list_of_failures_and_leaves_its_report(
    monkeypatch: pytest.MonkeyPatch, submit: FakeSubmit
) -> None:
    pushed: dict[str, Any] = {}

    class Instance:
        def xcom_push(self, key: str, value: Any) -> None:
            pushed[key] = value

    class Run:
        conf = {"pools": replace(POOLS, needed=("big_tables",)).to_mapping()}  # noqa: RUF012

    with pytest.raises(AirflowFailException, match="pools: missing: big_tables") as failure:
        check_deployment.function(ti=Instance(), dag_run=Run())
    report = DoctorReport.from_mapping(pushed["return_value"])
    assert str(failure.value) == failure_text(report)
    assert {check.name for check in report.failures} >= {"pools", "spark_home", "versions"}


def test_pools_of_a_run_survive_their_encoding() -> None:
    class Run:
        conf = {"pools": POOLS.to_mapping()}  # noqa: RUF012

    assert pools_of_run({"dag_run": Run()}) == POOLS
    assert pools_of_run({}) is None


def test_dag_runs_in_the_default_pool() -> None:
    dag = doctor_dag()
    assert dag.dag_id == "lakehouse.doctor"
    assert [task.pool for task in dag.tasks] == ["default_pool"]
