"""Publication in a complete Airflow with its scheduler: signals, sensors, runs per partition, backfills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.airflow.publishing import DAGS, Shop
from tests.support.standalone import Standalone, standalone

DAG_ID = "publish.sales.live"
DAY = "2026-03-05"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def airflow(shop: Shop) -> Iterator[Standalone]:
    """Start Airflow with the DAG of one publication and the example DAGs that wait for it, all unpaused."""
    spec = shop.add("live", f"{DAY}T10:00:00", f"{DAY}T11:00:00", ready="[event_time, signal]")
    folder = shop.place / "dags"
    folder.mkdir()
    (folder / "publish.py").write_text((DAGS / "publish.py").read_text(encoding="utf-8"), encoding="utf-8")
    example = (DAGS / "examples" / "report.py").read_text(encoding="utf-8")
    names = 'TABLE, PUBLISHED = "sales.orders", "shop.orders"'
    assert names in example
    example = example.replace(names, f'TABLE, PUBLISHED = "{spec}", "shop.live"')
    (folder / "report.py").write_text(example.replace('task_id="there"', 'task_id="there", poke_interval=2'))
    environment = {**shop.environment(), "AIRFLOW__CORE__DAGS_FOLDER": str(folder)}
    with standalone(shop.place / "airflow", environment) as running:
        for pool in ("lakehouse_publish", "lakehouse_services"):
            running.command("pools", "set", pool, "2", "publication")
        wanted = {DAG_ID, "report.daily", "report.partitions"}
        running.until(lambda: wanted <= {d["dag_id"] for d in running.call("dags")["dags"]}, "DAGs")
        for dag_id in sorted(wanted):
            running.command("dags", "unpause", "-y", dag_id)
        yield running


def tasks(airflow: Standalone, dag_id: str, task_id: str) -> list[dict[str, Any]]:
    found = airflow.call(f"dags/{dag_id}/dagRuns/~/taskInstances")["task_instances"]
    return [task for task in found if task["task_id"] == task_id]


def events(airflow: Standalone, uri: str) -> list[dict[str, Any]]:
    found = airflow.call(f"assets/events?source_dag_id={DAG_ID}&limit=100")["asset_events"]
    return [event for event in found if event["uri"] == uri]


def settled(airflow: Standalone) -> bool:
    """Return whether the scheduled run that unpausing starts has ended."""
    states = [run["state"] for run in airflow.call(f"dags/{DAG_ID}/dagRuns")["dag_runs"]]
    return bool(states) and not {"queued", "running"} & set(states)


def test_event_with_a_day_publishes_it_and_starts_waiting_runs(airflow: Standalone, shop: Shop) -> None:
    airflow.call("dags/report.daily/dagRuns", {"logical_date": f"{DAY}T00:00:00Z"})

    def waiting() -> bool:
        mine = [t for t in tasks(airflow, "report.daily", "there") if t["dag_run_id"].startswith("manual")]
        return [task["state"] for task in mine] == ["deferred"]

    airflow.until(waiting, "the sensor is deferred")
    airflow.until(lambda: settled(airflow), "the scheduled run has ended")
    assert shop.shown("live") == {}, "no signal or event says that the day is complete"

    (asset,) = [a for a in airflow.call("assets?limit=100")["assets"] if a["name"] == "sales.live"]
    at = time.time()
    airflow.call("assets/events", {"asset_id": asset["id"], "extra": {"partitions": [DAY]}})

    def partition_events() -> list[dict[str, Any]]:
        return events(airflow, "hive://shop/live")

    (event,) = airflow.until(partition_events, "the event of the partition")
    (name, parameters), *others = shop.shown("live").items()
    assert (name, others) == (f"dt={DAY}", [])
    assert (event["extra"]["partition"], event["extra"]["instant"]) == (name, parameters["lakehouse.instant"])
    published = datetime.fromisoformat(event["extra"]["published"]).timestamp()
    print(f"from the event to visible, through the scheduler: {published - at:.0f} s")
    assert published >= int(at)

    def seen() -> list[dict[str, Any]]:
        return [t for t in tasks(airflow, "report.daily", "report") if t["state"] == "success"]

    airflow.until(seen, "the sensor resumes")
    (keyed,) = events(airflow, "hive://shop/live/partitions")
    assert keyed["partition_key"] == name

    def by_partition() -> list[str]:
        runs = airflow.call("dags/report.partitions/dagRuns")["dag_runs"]
        return [run["partition_key"] for run in runs if run["state"] == "success"]

    assert airflow.until(by_partition, "the run of the partition") == [name]


def test_backfill_publishes_its_day_again(airflow: Standalone, shop: Shop) -> None:
    before = len(events(airflow, "hive://shop/live"))
    airflow.until(lambda: settled(airflow), "nothing runs")
    airflow.backfill(DAG_ID, DAY, DAY, "--reprocess-behavior", "completed")
    found = airflow.until(
        lambda: [e for e in events(airflow, "hive://shop/live") if e["source_run_id"].startswith("backfill")],
        "the second event of the day",
    )
    assert [event["extra"]["partition"] for event in found] == [f"dt={DAY}"]
    assert len(events(airflow, "hive://shop/live")) == before + 1
    assert list(shop.shown("live")) == [f"dt={DAY}"]
