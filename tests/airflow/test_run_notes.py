"""A run that failed by its parameters has the reason in its note and in the note of its task."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse_airflow.refusals import REFUSED, noted_refusals
from tests.support.fake_submit import FakeSubmit

ROOT = Path(__file__).resolve().parents[2]
DAG_ID = "ingest.market.stock_ticks"


@pytest.fixture
def notes(submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that runs the DAG with a conf, and returns the state and the notes of run and task."""
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(ROOT / "tests" / "support" / "specs"))
    for name in ("LAKEHOUSE_SHARED", "LAKEHOUSE_LANDING", "LAKEHOUSE_TABLES"):
        monkeypatch.setenv(name, str(tmp_path))

    def run(conf: dict[str, Any]) -> tuple[str, str | None, str | None]:
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session

        run_id = DagBag(ROOT / "dags").dags[DAG_ID].test(run_conf=conf).run_id
        with create_session() as session:
            ended = session.query(DagRun).filter(DagRun.dag_id == DAG_ID, DagRun.run_id == run_id).one()
            task = session.query(TaskInstance).filter(TaskInstance.run_id == run_id).one()
            return str(ended.state), ended.note, task.note

    submit.plan(report=IngestReport(status=JobStatus.COMMITTED, instant="20260101000000001").to_json())
    return run


def test_run_with_refused_parameters_has_the_reason_in_its_notes(notes: Any) -> None:
    """A user sees the failed run first; apache/airflow#49462 has dates that the UI shows otherwise."""
    state, of_run, of_task = notes({"full_refrsh": True})
    assert state == "failed"
    assert of_run == of_task
    assert str(of_run).startswith("lakehouse: ingest: the run's conf contains 'full_refrsh', which is not a param")
    state, of_run, of_task = notes({"interval_start": "yesterday", "interval_end": "2026-03-01"})
    assert state == "failed" and "interval_start='yesterday', which is not a time in ISO 8601" in str(of_run)


def test_run_with_accepted_parameters_has_no_note(notes: Any) -> None:
    assert notes({"full_refresh": True}) == ("success", None, None)


def test_reason_of_a_command_is_stored_and_other_outcomes_are_not() -> None:
    stored: dict[str, str] = {}
    context = {"ti": SimpleNamespace(xcom_push=lambda key, value: stored.update({key: value}))}
    with pytest.raises(AirflowFailException, match="no table"), noted_refusals(context):
        raise UserError("no table")
    assert stored == {REFUSED: "no table"}
    with pytest.raises(AirflowFailException), noted_refusals(context):
        raise AirflowFailException("lakehouse services due: unknown table")
    assert stored == {REFUSED: "lakehouse services due: unknown table"}
    stored.clear()
    with pytest.raises(AirflowRescheduleException), noted_refusals(context):
        raise AirflowRescheduleException(timezone.utcnow())
    assert stored == {}
    # A task without connection to the API server still fails with the reason.
    with pytest.raises(AirflowFailException, match="no table"), noted_refusals({"ti": None}):
        raise UserError("no table")
