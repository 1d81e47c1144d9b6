"""Publication in Airflow: its DAGs, and publications of a real table in a real Hive Metastore."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent
from airflow.sdk import Asset, AssetOrTimeSchedule
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import TriggerEvent
from airflow.utils.session import create_session
from sqlalchemy import select

from lakehouse.spec.contracts.publication import PartitionState, PartitionStatus, PublicationStatus, PublishReason
from lakehouse_airflow import dags_actions, publish, publish_sensor
from lakehouse_airflow.assets import PUBLISHED
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.publish import POOL, PublishPartitionsOperator, whole_periods
from lakehouse_airflow.publish_sensor import PartitionReadySensor, PartitionReadyTrigger
from lakehouse_airflow.services import POOL as SPARK_POOL
from tests.airflow.publishing import DAGS, SPEC, Shop
from tests.airflow.runs import own_run_id

LATE = """
import sys
from datetime import datetime
import pyarrow as pa
from lakehouse import Table

place, name, time = sys.argv[1:]
at = pa.array([datetime.fromisoformat(time)], pa.timestamp("us"))
options = {"hoodie.payload.event.time.field": "at"}
Table.open(f"{place}/{name}", options=options).upsert(pa.table({"id": ["late"], "at": at}))
"""

REGISTER = """
import sys
from pathlib import Path
from lakehouse import load_catalog
from lakehouse.spec.table.table_spec import load_spec

with load_catalog() as catalog:
    catalog.ensure_table(load_spec(Path(sys.argv[1])))
"""


@pytest.fixture
def in_shop(shop: Shop, database: None, monkeypatch: pytest.MonkeyPatch) -> Shop:
    for name, value in shop.environment().items():
        monkeypatch.setenv(name, value)
    return shop


def context(task: Any, **more: Any) -> dict[str, Any]:
    """Return what Airflow hands to a task, of a run that begins now; `signals` are partitions that an event names."""
    now = datetime.fromtimestamp(time.time(), UTC)
    instance = SimpleNamespace(
        dag_id="d", run_id=own_run_id(), task_id=task.task_id, map_index=-1, xcom_push=lambda **_: None, start_date=now
    )
    asset = Asset(name="sales.any", uri="lakehouse://sales.any")
    event = SimpleNamespace(asset=asset, extra={"partitions": more.pop("signals", [])})
    run = SimpleNamespace(run_type=more.pop("run_type", "manual"), start_date=now)
    events = {"triggering_asset_events": {asset: [event]}, "outlet_events": OutletEventAccessors()}
    return {"ti": instance, "dag_run": run, "params": {}, **events, **more}


def run_dag(name: str, logical_date: datetime | None = None, **conf: Any) -> dict[str, str]:
    """Run the DAG of a table in this process; return the states of its tasks."""
    run = DagBag(DAGS).dags[f"publish.sales.{name}"].test(run_conf=conf, logical_date=logical_date)
    return {instance.task_id: str(instance.state) for instance in run.get_task_instances()}


def events(name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the events of a published table tell, and the keys of those of its partitions."""
    with create_session() as session:
        found = session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == f"publish.sales.{name}"))
        result = [(event.asset.uri, event.partition_key, dict(event.extra)) for event in found]
    plain = [extra for uri, _, extra in result if uri == f"hive://shop/{name}"]
    return plain, [str(key) for uri, key, _ in result if uri == f"hive://shop/{name}/partitions"]


@pytest.mark.slow
def test_ended_day_is_published_and_emitted_as_an_event(in_shop: Shop) -> None:
    in_shop.add("orders", "2026-03-01T10:00:00", "2026-03-02T01:00:00")
    assert run_dag("orders", dry_run=True)["publish"] == "skipped"
    assert in_shop.shown("orders") == {}
    states = run_dag("orders")
    assert states == {
        "publish": "success",
        "archive_due": "success",
        "archive": "skipped",
        "signals_accepted": "success",
    }
    ((name, parameters),) = in_shop.shown("orders").items()
    plain, keys = events("orders")
    assert (name, keys) == ("dt=2026-03-01", ["dt=2026-03-01"])
    assert [(e["table"], e["partition"], e["instant"]) for e in plain] == [
        ("shop.orders", name, parameters["lakehouse.instant"])
    ]
    assert run_dag("orders")["publish"] == "success", "nothing is new"
    assert events("orders") == (plain, keys)


@pytest.mark.slow
def test_old_partition_is_copied_by_a_spark_submit(in_shop: Shop) -> None:
    in_shop.add("old", "2026-03-01T10:00:00", "2026-03-02T01:00:00", more=", archive_after: 1s")
    done = {"publish": "success", "archive_due": "success", "archive": "success", "signals_accepted": "success"}
    assert run_dag("old") == done
    ((name, parameters),) = in_shop.shown("old").items()
    assert (name, parameters["lakehouse.state"]) == ("dt=2026-03-01", "copy")
    plain, keys = events("old")
    assert [event["partition"] for event in plain] == keys == [name], "one event"


@pytest.mark.slow
def test_signalled_partition_is_visible_when_the_signal_command_ends_and_not_before(
    in_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = in_shop.add("signalled", "2026-03-01T10:00:00", "2026-03-01T11:00:00", ready="signal")
    first = PublishPartitionsOperator(task_id="publish", table=table, signals=True)
    idle = first.execute(context(first))
    assert (idle["status"], idle["published"], idle["interval"]) == ("nothing_to_do", [], None)
    skipping = PublishPartitionsOperator(task_id="publish", table=table, signals=True, skip_if_nothing_to_do=True)
    with pytest.raises(AirflowSkipException, match="nothing is ready"):
        skipping.execute(context(skipping))
    assert in_shop.shown("signalled") == {}
    task = PublishPartitionsOperator(task_id="publish", table=table, signals=True)
    steps: list[tuple[str, list[str]]] = []

    def observed(words: Sequence[str], **more: Any) -> str:
        printed = run_command(words, **more)
        steps.append((words[1], list(in_shop.shown("signalled"))))
        return printed

    with monkeypatch.context() as patched:
        patched.setattr(publish, "run_command", observed)
        result = task.execute(context(task, signals=["dt=2026-03-01"]))
    # One light process publishes it: the task needs no Spark job, no second run and no loop of the scheduler.
    day = ["dt=2026-03-01"]
    assert steps == [("signal", day), ("run", day), ("due", day), ("status", day)]
    assert ([row["partition"] for row in result["published"]], result["refused"]) == (["dt=2026-03-01"], None)
    # A wrong name is reported and does not prevent the other partition.
    wrong = PublishPartitionsOperator(task_id="publish", table=table, signals=True)
    result = wrong.execute(context(wrong, signals=["dt=2026-3-2", "2026-03-01"]))
    assert "'dt=2026-3-2' names no day" in result["refused"]
    assert [row["partition"] for row in result["published"]] == ["dt=2026-03-01"], "signalled again, published again"


@pytest.mark.slow
def test_backfill_publishes_only_its_interval_again(in_shop: Shop) -> None:
    table = in_shop.add("again", "2026-03-01T10:00:00", "2026-03-02T10:00:00", "2026-03-03T10:00:00")
    task = PublishPartitionsOperator(task_id="publish", table=table)
    result = task.execute(context(task))
    assert [row["partition"] for row in result["published"]] == ["dt=2026-03-01", "dt=2026-03-02"]
    before = in_shop.shown("again")
    in_shop.python("-c", dedent(LATE), str(in_shop.place), "again", "2026-03-01T12:00:00")
    # A schedule at three o'clock: the interval is still that of the first of March.
    interval = {"data_interval_start": "2026-03-01T03:00:00", "data_interval_end": "2026-03-02T03:00:00"}
    again = PublishPartitionsOperator(task_id="publish", table=table)
    result = again.execute(context(again, run_type="backfill", **interval))
    after = in_shop.shown("again")
    assert [row["partition"] for row in result["published"]] == ["dt=2026-03-01"]
    assert after["dt=2026-03-01"]["lakehouse.instant"] > before["dt=2026-03-01"]["lakehouse.instant"]
    assert after["dt=2026-03-02"] == before["dt=2026-03-02"]


@pytest.mark.slow
def test_next_try_emits_events_of_partitions_that_a_failed_try_published(in_shop: Shop) -> None:
    table = in_shop.add("died", "2026-03-01T10:00:00", "2026-03-02T10:00:00")
    task = PublishPartitionsOperator(task_id="publish", table=table)
    run = context(task)
    in_shop.python("-m", "lakehouse", "publish", "run", "--table", table)
    result = task.execute(run)
    assert [row["partition"] for row in result["published"]] == ["dt=2026-03-01"]
    (event,) = run["outlet_events"][PUBLISHED].asset_alias_events
    assert (event.dest_asset_key.uri, event.extra["partition"]) == ("hive://shop/died", "dt=2026-03-01")


@pytest.mark.slow
def test_sensor_returns_published_partitions_waits_for_others_and_fails_for_wrong_names(in_shop: Shop) -> None:
    table = in_shop.add("sensed", "2026-03-01T10:00:00", "2026-03-02T10:00:00", ready="event_time")

    def sensor(partition: str, **more: Any) -> PartitionReadySensor:
        return PartitionReadySensor(task_id="there", table=table, partition=partition, **{"deferrable": True, **more})

    waiting = sensor("dt=2026-03-01", poke_interval=0.2)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(context(waiting))
    path, given = deferred.value.trigger.serialize()
    assert path == f"{PartitionReadyTrigger.__module__}.PartitionReadyTrigger"

    async def first_event() -> TriggerEvent:
        looking = asyncio.ensure_future(anext(PartitionReadyTrigger(**given).run()))
        # Not before it is published.
        done, _ = await asyncio.wait([looking], timeout=4)
        assert not done
        await asyncio.to_thread(in_shop.python, "-m", "lakehouse", "publish", "run", "--table", table)
        return await asyncio.wait_for(looking, 30)

    event = asyncio.run(first_event())
    seen = waiting.execute_complete({}, event.payload)
    assert seen["partition"] == "dt=2026-03-01"
    assert seen["instant"] == in_shop.shown("sensed")["dt=2026-03-01"]["lakehouse.instant"]
    there = sensor("dt=2026-03-01", deferrable=False)
    assert there.execute(context(there)) == seen
    wrong = sensor("day=2026-03-01")
    with pytest.raises(AirflowFailException, match=r"names no day of shop\.sensed; write one like dt="):
        wrong.execute(context(wrong))
    never = sensor("dt=2026-03-09", deferrable=False, timeout=0.1, poke_interval=0.1)
    with pytest.raises(AirflowSensorTimeout):
        never.execute(context(never))


@pytest.mark.slow
def test_actions_of_a_user_publish_and_withdraw_a_partition(in_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = in_shop.add("acted", "2026-03-01T10:00:00", "2026-03-01T11:00:00", ready="signal")
    in_shop.python("-c", REGISTER, spec)
    given = {"table": "sales.acted", "parameters": {"partitions": ["dt=2026-03-01"]}}
    run = SimpleNamespace(triggering_user_name="oleg")

    def act(action: str) -> dict[str, Any]:
        instance = SimpleNamespace(dag_id="lakehouse.actions", run_id=own_run_id(), task_id="act")
        found = {"ti": instance, "dag_run": run, "params": {**given, "action": action}}
        monkeypatch.setattr(dags_actions, "get_current_context", lambda: found)
        record: dict[str, Any] = dags_actions.act.function()["action"]
        return record

    published = act("publish")
    assert (published["state"], published["author"]) == ("done", "oleg")
    assert published["result"]["published"] == ["dt=2026-03-01"]
    assert list(in_shop.shown("acted")) == ["dt=2026-03-01"]
    withdrawn = act("withdraw")
    assert (withdrawn["state"], withdrawn["result"]["withdrawn"]) == ("done", ["dt=2026-03-01"])
    assert in_shop.shown("acted") == {}
    again = act("publish")
    assert (again["state"], list(in_shop.shown("acted"))) == ("done", ["dt=2026-03-01"])


@pytest.mark.parametrize(
    ("code", "reason", "final"),
    [
        (PublishReason.UNREACHABLE, "waits for nothing: its name has no time", True),
        (PublishReason.WAITS_FOR_CONDITION, "waits for a signal: its name has no time", False),
        (PublishReason.WAITS_FOR_CONDITION, "waits for nothing is only a text for people", False),
    ],
)
def test_sensor_fails_for_a_partition_that_cannot_be_published(
    monkeypatch: pytest.MonkeyPatch, code: PublishReason, reason: str, final: bool
) -> None:
    row = PartitionStatus(partition="day=other", state=PartitionState.WAITING, code=code, reason=reason)
    answer = PublicationStatus(target="shop.orders", partitions=(row,)).to_json()
    monkeypatch.setattr(publish_sensor, "run_command", lambda _: answer)
    looking = PartitionReadySensor(task_id="there", table="sales.orders", partition="day=other", deferrable=False)
    if final:
        with pytest.raises(AirflowFailException, match=r"day=other waits for nothing.*publish it with --force"):
            looking.poke({})
    else:
        assert not looking.poke({})


@pytest.mark.slow
def test_operator_fails_without_retry_for_wrong_input(in_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    table = in_shop.add("wrong", "2026-03-01T10:00:00")
    task = PublishPartitionsOperator(task_id="publish", table=table, partitions=["march"])
    with pytest.raises(AirflowFailException, match=r"'march' names no day of shop\.wrong"):
        task.execute(context(task))
    half = PublishPartitionsOperator(task_id="publish", table=table)
    with pytest.raises(AirflowFailException, match="give both, or none"):
        half.execute(context(half, params={"interval_start": "2026-03-01T00:00:00Z"}))
    monkeypatch.delenv("LAKEHOUSE_METASTORE")
    with pytest.raises(AirflowFailException, match="no metastore is configured"):
        half.execute(context(half))


def test_each_publication_has_a_dag_with_params_pools_and_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(tmp_path))
    write = {
        "daily": ", timezone: Europe/Berlin",
        "asked": ', schedule: ""',
        "off": ", enabled: false",
        "bad": ", schedule: often",
    }
    for name, more in write.items():
        (tmp_path / f"{name}.yaml").write_text(SPEC.format(name=name, place="lake", ready="signal", more=more))
    bag = DagBag(DAGS)
    assert sorted(d for d in bag.dags if d.startswith("publish.")) == ["publish.sales.asked", "publish.sales.daily"]
    ((file, shown),) = bag.import_errors.items()
    assert Path(file).name == "spec_errors.py"
    assert "services.publish.schedule: 'often' is not a cron expression" in shown
    daily, asked = bag.dags["publish.sales.daily"], bag.dags["publish.sales.asked"]
    assert isinstance(daily.timetable, AssetOrTimeSchedule) and daily.max_active_runs == 1
    assert str(daily.timetable.timetable.timezone) == "Europe/Berlin"
    assert set(daily.params) == {"partitions", "interval_start", "interval_end", "force", "newest", "dry_run"}
    assert {task.task_id: task.pool for task in daily.tasks} == {
        "publish": POOL,
        "archive_due": POOL,
        "archive": SPARK_POOL,
        "signals_accepted": POOL,
    }
    assert DagSerialization.from_dict(DagSerialization.to_dict(daily)).timetable.can_be_scheduled
    assert not isinstance(asked.timetable, AssetOrTimeSchedule)


@pytest.mark.parametrize(
    ("bounds", "place", "granularity", "backfill", "expected"),
    [
        (("01T00", "02T00"), "UTC", "day", False, ("01T00", "02T00")),
        (("01T03", "02T03"), "UTC", "day", False, ("01T00", "02T03")),
        (("01T03", "02T03"), "UTC", "day", True, ("01T00", "02T00")),
        (("01T10", "01T11"), "UTC", "day", False, ("01T00", "01T11")),
        (("01T10", "01T11"), "UTC", "day", True, ("01T00", "02T00")),
        (("01T10", "01T11"), "UTC", "hour", True, ("01T10", "01T11")),
        (("01T23", "02T23"), "Europe/Berlin", "day", True, ("01T23", "02T23")),
    ],
)
def test_whole_periods_rounds_the_interval_of_a_run(
    bounds: tuple[str, str], place: str, granularity: str, backfill: bool, expected: tuple[str, str]
) -> None:
    def full(pair: tuple[str, str]) -> tuple[str, str]:
        start, end = (f"2026-03-{bound}:00:00+00:00" for bound in pair)
        return start, end

    found = whole_periods(*full(bounds), timezone=place, granularity=granularity, backfill=backfill)
    assert found == full(expected)
