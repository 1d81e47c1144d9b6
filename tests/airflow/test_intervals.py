"""Parsing refuses schedules whose runs have no data interval, if a task needs one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    BaseOperator,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    MultipleCronTriggerTimetable,
)
from airflow.sdk.exceptions import AirflowFailException

from lakehouse.errors import UserError
from lakehouse.spec.contracts.publication import PublicationDue, PublicationStatus
from lakehouse_airflow import publish
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.publish import PublishPartitionsOperator
from lakehouse_airflow.services import ServiceOperator, service_interval
from tests.airflow.runs import own_run_id

DAY = timedelta(days=1)
ORDERS = Asset(name="sales.orders", uri="lakehouse://sales.orders")
EMPTY: dict[str, Any] = {
    "cron": "0 3 * * *",
    "preset": "@daily",
    "delta": DAY,
    "trigger": CronTriggerTimetable("@daily", timezone="UTC"),
    "several": MultipleCronTriggerTimetable("0 3 * * *", "0 5 * * *", timezone="UTC"),
    "partition": CronPartitionTimetable("@daily", timezone="UTC"),
    "or assets": AssetOrTimeSchedule(timetable=CronTriggerTimetable("@daily", timezone="UTC"), assets=[ORDERS]),
}
FULL: dict[str, Any] = {
    "cron interval": CronDataIntervalTimetable("@daily", timezone="UTC"),
    "delta interval": DeltaDataIntervalTimetable(DAY),
    "trigger with interval": CronTriggerTimetable("@daily", timezone="UTC", interval=DAY),
    "by hand": None,
    "assets": [ORDERS],
    "or assets": AssetOrTimeSchedule(timetable=CronDataIntervalTimetable("@daily", timezone="UTC"), assets=[ORDERS]),
}
OPERATORS: dict[str, Callable[..., BaseOperator]] = {
    "ingest": lambda **kwargs: LakehouseOperator(task_id="t", verb="ingest", action="run", table="x.yaml", **kwargs),
    "service": lambda **kwargs: ServiceOperator(task_id="t", service="clustering", table="sales.orders", **kwargs),
    "publish": lambda **kwargs: PublishPartitionsOperator(task_id="t", table="sales.orders", **kwargs),
}


@pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("schedule", EMPTY.values(), ids=EMPTY)
def test_by_interval_refuses_a_schedule_with_empty_intervals(make: Callable[..., BaseOperator], schedule: Any) -> None:
    with (
        DAG("nightly", schedule=schedule),
        pytest.raises(UserError, match=r"task 't' of DAG 'nightly' .*CronDataIntervalTimetable"),
    ):
        make(by_interval=True)
    with DAG("nightly", schedule=schedule):
        make()


@pytest.mark.parametrize("schedule", FULL.values(), ids=FULL)
@pytest.mark.parametrize("make", OPERATORS.values(), ids=OPERATORS)
def test_by_interval_accepts_schedules_with_intervals_and_without_a_clock(
    make: Callable[..., BaseOperator], schedule: Any
) -> None:
    with DAG("nightly", schedule=schedule) as dag:
        assert make(by_interval=True) in dag.tasks


def test_by_interval_is_checked_for_a_later_dag_and_a_mapped_task() -> None:
    late = OPERATORS["service"](by_interval=True)
    with pytest.raises(UserError, match="CronDataIntervalTimetable"):
        DAG("nightly", schedule="@daily").add_task(late)
    with DAG("nightly", schedule="@daily"), pytest.raises(UserError, match="CronDataIntervalTimetable"):
        ServiceOperator.partial(task_id="t", service="clustering", by_interval=True)
    with DAG("nightly", schedule=CronDataIntervalTimetable("@daily", timezone="UTC")) as dag:
        ServiceOperator.partial(task_id="t", service="clustering", by_interval=True).expand(table=["a.b"])
    assert dag.task_ids == ["t"]


def test_dag_file_with_a_cron_string_is_an_import_error_that_names_the_timetable(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from airflow.sdk import DAG\n"
        "from lakehouse_airflow.services import ServiceOperator\n"
        "with DAG('mine', schedule='@daily'):\n"
        "    ServiceOperator(task_id='lay_out', service='clustering', table='sales.orders', by_interval=True)\n"
    )
    bag = DagBag(tmp_path)
    (shown,) = bag.import_errors.values()
    assert bag.dags == {}
    assert "CronDataIntervalTimetable('@daily', timezone='UTC')" in shown


def test_service_of_whole_tables_refuses_an_interval() -> None:
    with pytest.raises(UserError, match="clean works on whole tables; compaction, logcompaction, clustering take"):
        ServiceOperator(task_id="t", service="clean", table="sales.orders", by_interval=True)


def test_backfill_without_an_interval_fails_instead_of_using_the_whole_table() -> None:
    run = SimpleNamespace(run_type="backfill")
    moment = {"data_interval_start": "2026-03-01T00:00:00", "data_interval_end": "2026-03-01T00:00:00"}
    with pytest.raises(UserError, match=r"is empty.*CronDataIntervalTimetable"):
        service_interval("clustering", {"dag_run": run, **moment})
    with pytest.raises(UserError, match="has none"):
        service_interval("clustering", {"dag_run": run})
    assert service_interval("clean", {"dag_run": run}) is None


def commands_of(monkeypatch: pytest.MonkeyPatch, **context: Any) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the result of a publication by interval, and its `publish run` commands."""
    words: list[list[str]] = []
    answers = {"due": PublicationDue(target="shop.orders"), "status": PublicationStatus(target="shop.orders")}

    def run_command(command: list[str], **_: Any) -> str:
        words.append(command)
        return answers[command[1]].to_json() if command[1] in answers else ""

    monkeypatch.setattr(publish, "run_command", run_command)
    task = PublishPartitionsOperator(task_id="publish", table="sales.orders", by_interval=True)
    run = SimpleNamespace(run_type=context.pop("run_type"), start_date=datetime.now(UTC))
    instance = SimpleNamespace(dag_id="d", run_id=own_run_id(), task_id="publish", map_index=-1)
    result = task.execute({"ti": instance, "dag_run": run, "params": {}, **context})
    return result, [command for command in words if command[1] == "run"]


def test_publication_needs_an_interval_for_scheduled_runs_and_none_for_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = {"data_interval_start": "2026-03-01T00:00:00", "data_interval_end": "2026-03-02T00:00:00"}
    result, commands = commands_of(monkeypatch, run_type="scheduled", **bounds)
    assert result["interval"] == "2026-03-01T00:00:00+00:00/2026-03-02T00:00:00+00:00"
    assert result["status"] == "nothing_to_do"
    assert ["--interval-start" in command for command in commands] == [True, False]
    result, commands = commands_of(monkeypatch, run_type="asset_triggered")
    assert (result["interval"], ["--interval-start" in command for command in commands]) == (None, [False])
    with pytest.raises(AirflowFailException, match="needs a data interval and has none"):
        commands_of(monkeypatch, run_type="manual")
    empty = {**bounds, "data_interval_end": bounds["data_interval_start"]}
    with pytest.raises(AirflowFailException, match="is empty"):
        commands_of(monkeypatch, run_type="manual", **empty)
