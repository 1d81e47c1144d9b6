"""States of DAGs in Airflow's database: paused, overdue, missing; and the checks of doctor that read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.sdk import Asset, AssetOrTimeSchedule, CronDataIntervalTimetable, CronTriggerTimetable
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

from lakehouse.spec.contracts.dag_states import DagState, DagStates
from lakehouse.spec.contracts.doctor import CheckState
from lakehouse_airflow.dag_states import dag_states, deciding_dag, lakehouse_dag_ids, run_interval
from lakehouse_airflow.doctor import cluster_reports, examine
from lakehouse_airflow.doctor_database import read_dags, read_health, read_queued_tasks
from lakehouse_airflow.doctor_facts import QueuedTasks
from lakehouse_airflow.doctor_runtime import check_executor, check_paused_dags, check_scheduler
from tests.airflow.test_doctor import FACTS, POOLS, spark_home
from tests.airflow.test_user_dags import PUBLISHED

__all__ = ["spark_home"]
NOW = datetime(2026, 11, 25, 12, 2, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)
SCHEDULE, INGEST = "services.schedule", "ingest.sales.orders"
LINES = (
    "from lakehouse_airflow import lakehouse_dags\n"
    "lakehouse_dags(globals(), specs='tables', services={'clean': '0 5 * * *', 'ttl': ''}, paused=['ingest.*'])\n"
)


@pytest.fixture(scope="module")
def dags(database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The DAGs of a deployment in Airflow's database; ingestions are paused."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "tables").mkdir()
    (folder / "tables" / "orders.yaml").write_text(PUBLISHED, encoding="utf-8")
    (folder / "house.py").write_text(LINES, encoding="utf-8")
    with create_session() as session:
        # Other modules leave DAGs in the database of this process.
        session.query(DagRun).delete()
        session.query(DagModel).delete()
    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(folder, bundle_path=folder)
    assert bag.import_errors == {}
    sync_bag_to_db(bag, "dags-folder", None)
    yield
    with create_session() as session:
        session.query(DagRun).delete()
        session.query(DagModel).delete()


@pytest.fixture
def run(dags: None) -> Iterator[Any]:
    """Return a function that stores a run of a DAG which began before NOW."""

    def store(dag_id: str, ago: timedelta, state: DagRunState = DagRunState.SUCCESS) -> None:
        with create_session() as session:
            kind = {"run_type": DagRunType.MANUAL, "triggered_by": DagRunTriggeredByType.TEST, "state": state}
            session.add(
                DagRun(
                    dag_id=dag_id,
                    run_id=f"manual__{ago.total_seconds():.0f}",
                    start_date=NOW - ago,
                    run_after=NOW - ago,
                    **kind,
                )
            )

    yield store
    with create_session() as session:
        session.query(DagRun).delete()


def state_of(dag_id: str) -> DagState:
    """Return the state of a DAG at NOW."""
    with create_session() as session:
        (found,) = dag_states(session, NOW, [dag_id]).dags
    return found


@pytest.mark.parametrize(
    ("timetable", "last", "interval", "overdue"),
    [
        (CronTriggerTimetable("*/5 * * * *", timezone="UTC"), timedelta(minutes=8), 300, False),
        (CronTriggerTimetable("*/5 * * * *", timezone="UTC"), timedelta(minutes=20), 300, True),
        (CronDataIntervalTimetable("@daily", timezone="UTC"), timedelta(hours=13), 86_400, False),
        (CronDataIntervalTimetable("@daily", timezone="UTC"), timedelta(hours=35), 86_400, False),
        (CronDataIntervalTimetable("@daily", timezone="UTC"), timedelta(hours=37), 86_400, True),
        # It runs on Mondays; NOW is a Wednesday.
        (CronDataIntervalTimetable("0 9 * * 1", timezone="UTC"), timedelta(days=2), 604_800, False),
    ],
)
def test_run_is_overdue_when_the_next_two_have_not_begun(
    timetable: Any, last: timedelta, interval: int, overdue: bool
) -> None:
    from airflow.serialization.encoders import coerce_to_core_timetable

    assert run_interval(coerce_to_core_timetable(timetable), NOW - last, NOW) == (interval, overdue)
    by_asset = AssetOrTimeSchedule(timetable=timetable, assets=[Asset("one")])
    assert run_interval(coerce_to_core_timetable(by_asset), NOW - last, NOW) == (interval, overdue)


def test_states_have_pause_schedule_and_newest_run(run: Any) -> None:
    run(SCHEDULE, timedelta(hours=3), DagRunState.FAILED)
    run(SCHEDULE, timedelta(minutes=4))
    with create_session() as session:
        found = dag_states(session, NOW, [SCHEDULE, INGEST, "ingest.gone", SCHEDULE])
    schedule, ingest = found.dags
    assert (schedule.dag_id, schedule.is_paused, schedule.interval_s) == (SCHEDULE, False, 300)
    assert (schedule.last_run_ms, schedule.last_run_state) == (NOW_MS - 240_000, "success")
    assert not schedule.is_overdue
    assert (ingest.is_paused, ingest.last_run_ms, ingest.last_run_state) == (True, None, "")
    assert found.missing == ("ingest.gone",)
    assert DagStates.from_mapping(found.to_mapping()) == found


def test_dag_without_runs_for_longer_than_its_interval_is_overdue_unless_paused_or_busy(run: Any) -> None:
    assert not state_of(SCHEDULE).is_overdue, "it has not run yet"
    run(SCHEDULE, timedelta(hours=3))
    run("lakehouse.doctor", timedelta(days=9), DagRunState.RUNNING)
    run(INGEST, timedelta(days=9))
    assert state_of(SCHEDULE).is_overdue
    assert not state_of("lakehouse.doctor").is_overdue, "its only active run has not ended"
    assert not state_of(INGEST).is_overdue, "it is paused"


def test_service_with_a_schedule_of_its_own_decides_itself(dags: None) -> None:
    with create_session() as session:
        assert (deciding_dag(session, "clean"), deciding_dag(session, "ttl")) == ("services.clean", SCHEDULE)
        assert deciding_dag(session, "compaction") == SCHEDULE, "this deployment has no DAG of it"


def test_ids_are_those_of_tagged_dags_whose_files_exist(dags: None) -> None:
    with create_session() as session:
        session.get(DagModel, "services.ttl").is_stale = True
        session.flush()
        found = lakehouse_dag_ids(session)
        session.rollback()
    assert found == sorted(
        [INGEST, "publish.sales.orders", "lakehouse.actions", "lakehouse.doctor", SCHEDULE, "services.clean"]
    )


def test_doctor_names_paused_dags_with_their_commands_and_overdue_ones(run: Any) -> None:
    state, found = check_paused_dags(replace(FACTS, dags=read_dags()))
    assert (state, found) == (CheckState.WARNING, f"1 of 7 DAGs paused: `airflow dags unpause {INGEST}`")
    run(SCHEDULE, timedelta(days=3))
    with create_session() as session:
        states = dag_states(session, NOW, lakehouse_dag_ids(session))
    state, found = check_paused_dags(replace(FACTS, dags=states))
    assert state is CheckState.FAILED
    assert found.startswith(
        "no run for longer than the interval: services.schedule (last run 3d ago, interval 5m); 1 of"
    )
    assert check_paused_dags(replace(FACTS, dags=DagStates(now_ms=0)))[0] is CheckState.WARNING
    assert check_paused_dags(replace(FACTS, problem="no answer"))[0] is CheckState.SKIPPED
    both = tuple(DagState(dag_id=name, is_paused=True) for name in ("ingest.a", SCHEDULE))
    first = check_paused_dags(replace(FACTS, dags=DagStates(now_ms=0, dags=both)))[1]
    assert first.startswith(f"2 of 2 DAGs paused: `airflow dags unpause {SCHEDULE}`, ")
    running = DagStates(now_ms=0, dags=(DagState(dag_id=SCHEDULE, is_paused=False),))
    assert check_paused_dags(replace(FACTS, dags=running)) == (CheckState.OK, "1 DAGs, none paused")


def test_connection_in_the_database_of_airflow_is_seen_and_its_password_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, dags: None, tmp_path: Path
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    monkeypatch.delenv("LAKEHOUSE_SPARK_MASTER", raising=False)
    (before,) = examine(os.environ, ("spark_connection",)).checks
    assert (before.state, "does not exist" in before.found) == (CheckState.FAILED, True)
    with create_session() as session:
        fields = {"conn_type": "spark", "host": "local[3]", "login": "me", "password": "hunter22"}
        session.add(Connection(conn_id="spark_default", **fields))
    try:
        report = examine(os.environ, ("spark_connection",))
    finally:
        with create_session() as session:
            session.query(Connection).filter_by(conn_id="spark_default").delete()
    assert [(check.state, check.found) for check in report.checks] == [(CheckState.OK, "local[3]")]
    assert "hunter22" not in report.to_json()
    assert "_AIRFLOW_PROCESS_CONTEXT" not in os.environ


def test_checks_in_sparks_environment_get_the_catalog_of_the_database_of_airflow(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LAKEHOUSE_CATALOG")
    monkeypatch.delenv("LAKEHOUSE_HOME", raising=False)
    (missing,) = examine(os.environ, ("catalog",)).checks
    assert (missing.state, "connection lakehouse_catalog" in missing.advice) == (CheckState.WARNING, True)
    place = tmp_path / "of_airflow.db"
    with create_session() as session:
        session.add(Connection(conn_id="lakehouse_catalog", conn_type="sqlite", host=str(place)))
    try:
        (found,) = examine(os.environ, ("catalog",)).checks
    finally:
        with create_session() as session:
            session.query(Connection).filter_by(conn_id="lakehouse_catalog").delete()
    assert str(place) in found.found


@pytest.mark.parametrize(
    ("health", "state", "text"),
    [
        ({"scheduler": {"status": "healthy"}, "dag_processor": {"status": "healthy"}}, CheckState.OK, "heartbeats"),
        (
            {
                "scheduler": {"status": "unhealthy", "latest_scheduler_heartbeat": "2026-11-25T03:00:00"},
                "dag_processor": {"status": None},
            },
            CheckState.FAILED,
            "no scheduler runs (last heartbeat: 2026-11-25T03:00:00); no DAG processor runs (last heartbeat: never)",
        ),
    ],
)
def test_scheduler_and_dag_processor_are_judged_by_their_heartbeats(
    health: dict[str, Any], state: CheckState, text: str
) -> None:
    found = check_scheduler(replace(FACTS, health=lambda: health))
    assert found[0] is state
    assert text in found[1]


def test_database_without_heartbeats_has_no_scheduler(database: None) -> None:
    assert check_scheduler(replace(FACTS, health=read_health))[0] is CheckState.FAILED

    def unreachable() -> Any:
        raise OSError("connection refused")

    assert check_scheduler(replace(FACTS, health=unreachable))[0] is CheckState.WARNING


def test_executor_without_slots_or_workers_fails(monkeypatch: pytest.MonkeyPatch, database: None) -> None:
    assert check_executor(replace(FACTS, queued=read_queued_tasks()))[0] is CheckState.OK
    waiting = QueuedTasks(count=3, oldest_s=2400)
    state, found = check_executor(replace(FACTS, queued=waiting))
    assert state is CheckState.FAILED
    assert "3 tasks queued for up to 40m, and no task runs: no worker of the executor takes tasks" in found
    assert check_executor(replace(FACTS, queued=replace(waiting, running=2)))[0] is CheckState.WARNING
    empty = replace(POOLS, slots={**POOLS.slots, "default_pool": 0})
    assert "default_pool has 0 slots" in check_executor(replace(FACTS, pools=empty))[1]
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "0")
    assert check_executor(FACTS)[0] is CheckState.FAILED


def test_reports_of_drivers_on_other_hosts_need_a_shared_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cluster_reports({})[0] is CheckState.FAILED
    state, found = cluster_reports({"LAKEHOUSE_REPORTS": str(tmp_path / "new" / "reports")})
    assert state is CheckState.WARNING
    assert "Set LAKEHOUSE_REPORTS to a folder that all hosts mount" in found

    class Mount:
        mountpoint, fstype = str(tmp_path), "nfs4"

    monkeypatch.setattr("lakehouse_airflow.doctor.psutil.disk_partitions", lambda all: [Mount()])
    shared = {"LAKEHOUSE_REPORTS": str(tmp_path / "new")}
    assert cluster_reports(shared) == (CheckState.OK, f"reports in {tmp_path / 'new'}, on nfs4")
