"""A run of an ingestion that its check ended: Spark is not started, and the events are those of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow.sdk import DAG, Asset

from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse_airflow.operators import LakehouseOperator
from tests.airflow.runs import run_context
from tests.support.fake_submit import FakeSubmit

ORDERS = Asset(name="sales.orders", uri="lakehouse://sales.orders")


def operator(verb: str = "ingest", **kwargs: Any) -> LakehouseOperator:
    with DAG(f"{verb}.sales.orders"):
        return LakehouseOperator(task_id=verb, verb=verb, action="run", table="sales.orders", **kwargs)


def test_run_that_its_check_ended_starts_no_spark_and_emits_the_missing_event(submit: FakeSubmit) -> None:
    idle = IngestReport(status=JobStatus.NOTHING_TO_DO, table="sales.orders", reason="no new files")
    submit.plan_check(exit_code=0, report=idle.to_json())
    context = run_context(task := operator(outlets=[ORDERS]))
    assert task.execute(context)["status"] == "nothing_to_do"
    assert not submit.was_started and task.outlets == []
    # An earlier try committed and ended before its event.
    submit.plan_check(exit_code=0, report=replace(idle, instant="20260101000000001", rows=7).to_json())
    context = run_context(task := operator(outlets=[ORDERS]))
    task.execute(context)
    assert not submit.was_started
    assert context["outlet_events"][ORDERS].extra["instant"] == "20260101000000001"


def test_only_the_check_of_an_ingestion_may_end_the_run(submit: FakeSubmit) -> None:
    submit.plan(report=IngestReport(status=JobStatus.NOTHING_TO_DO).to_json())
    (task := operator()).execute(run_context(task))
    assert "--end-if-idle" in submit.check["argv"]
    (task := operator(verb="clean")).execute(run_context(task))
    assert "--end-if-idle" not in submit.check["argv"]
