"""Asset events in Airflow's database: one for the commits of each run, also of runs that could not emit theirs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from lakehouse.spec.contracts.ingest_commits import IngestCommit, IngestCommits
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from tests.support.fake_submit import FakeSubmit

ROOT = Path(__file__).resolve().parents[2]
DAG_ID = "ingest.market.stock_ticks"
TABLE = "market.stock_ticks"


def instant(minutes: int) -> str:
    """Return an instant some minutes after the start of an hour in the past."""
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    return f"{start + timedelta(minutes=minutes):%Y%m%d%H%M%S}000"


def commit(minutes: int, run_id: str | None, rows: int) -> IngestCommit:
    """Return a commit of some rows."""
    at = instant(minutes)
    return IngestCommit(instant=at, completed=at, run_id=run_id, rows=rows)


class Deployment:
    """Runs of the DAG of one table, whose jobs are a fake, and the events of its asset in Airflow's database."""

    def __init__(self, submit: FakeSubmit) -> None:
        self.submit = submit

    def run(self, report: IngestReport) -> str:
        """Run the DAG once with a report of the job, and return the state of its task."""
        self.submit.plan(report=replace(report, table=TABLE).to_json())
        run = DagBag(ROOT / "dags").dags[DAG_ID].test()
        (task,) = run.get_task_instances()
        return str(task.state)

    @property
    def events(self) -> list[tuple[str, int]]:
        """The instants and rows of the events, ordered by instant."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session

        with create_session() as session:
            found = session.query(AssetEvent).join(AssetEvent.asset).filter(AssetModel.name == TABLE)
            return sorted((str(event.extra["instant"]), int(event.extra["rows"])) for event in found)

    def forget(self) -> None:
        """Delete all events, as `airflow db clean` does."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        with create_session() as session:
            session.query(AssetEvent).delete()


@pytest.fixture
def deployment(submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deployment:
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(ROOT / "tests" / "support" / "specs"))
    for name in ("LAKEHOUSE_SHARED", "LAKEHOUSE_LANDING", "LAKEHOUSE_TABLES"):
        monkeypatch.setenv(name, str(tmp_path))
    made = Deployment(submit)
    made.forget()
    return made


def nothing(**facts: Any) -> IngestReport:
    return IngestReport(status=JobStatus.NOTHING_TO_DO, **facts)


def committed(minutes: int, rows: int, previous: int | None) -> IngestReport:
    before = None if previous is None else instant(previous)
    return IngestReport(status=JobStatus.COMMITTED, instant=instant(minutes), rows=rows, previous=before)


def test_next_run_emits_the_events_of_runs_that_died_around_their_commits(deployment: Deployment) -> None:
    """apache/hudi#9101: the job failed after its commit, which stays on the timeline.

    A run of a stream made two commits, which are one event, as if it had ended well. A run of another DAG emits its
    own event.
    """
    assert deployment.run(committed(1, 10, None)) == "success"
    assert deployment.events == [(instant(1), 10)]

    lost = [
        commit(5, None, 40),
        commit(4, "other/run/ingest", 1),
        commit(3, f"{DAG_ID}/second/ingest/1a2b/200", 100),
        commit(2, f"{DAG_ID}/second/ingest/1a2b/100", 50),
        commit(1, f"{DAG_ID}/first/ingest", 10),
    ]
    deployment.submit.plan_commits(IngestCommits(table=TABLE, commits=tuple(lost)).to_json())
    assert deployment.run(nothing(previous=instant(5))) == "success"
    expected = [(instant(1), 10), (instant(3), 150), (instant(5), 40)]
    assert deployment.events == expected
    argv = deployment.submit.commits_argv
    assert argv is not None and argv[:3] == ["ingest", "commits", "--table"]

    # The next run finds all events and starts no process.
    deployment.submit.plan_commits("the commits are not read")
    assert deployment.run(nothing(previous=instant(5))) == "success"
    assert deployment.run(committed(6, 7, 5)) == "success"
    assert deployment.events == [*expected, (instant(6), 7)]
    assert deployment.submit.commits_argv is None


def test_commit_and_the_missing_event_before_it_are_emitted_together(deployment: Deployment) -> None:
    assert deployment.run(committed(1, 10, None)) == "success"
    listed = [
        commit(3, f"{DAG_ID}/third/ingest", 30),
        commit(2, f"{DAG_ID}/second/ingest", 20),
        commit(1, f"{DAG_ID}/first/ingest", 10),
    ]
    deployment.submit.plan_commits(IngestCommits(table=TABLE, commits=tuple(listed)).to_json())
    assert deployment.run(committed(3, 30, 2)) == "success"
    assert deployment.events == [(instant(1), 10), (instant(2), 20), (instant(3), 30)]


def test_cleared_run_emits_no_second_event_and_a_retry_emits_a_missing_one(deployment: Deployment) -> None:
    """apache/airflow#56749: each event of an asset may start runs of its consumers."""
    assert deployment.run(committed(1, 10, None)) == "success"
    deployment.submit.plan_commits("the commits are not read")
    assert deployment.run(nothing(instant=instant(1), rows=10, previous=instant(1))) == "success"
    assert deployment.events == [(instant(1), 10)]

    listed = [commit(2, f"{DAG_ID}/second/ingest", 20), commit(1, f"{DAG_ID}/first/ingest", 10)]
    deployment.submit.plan_commits(IngestCommits(table=TABLE, commits=tuple(listed)).to_json())
    assert deployment.run(nothing(instant=instant(2), rows=20, previous=instant(2))) == "success"
    assert deployment.events == [(instant(1), 10), (instant(2), 20)]


def test_asset_without_events_gets_those_of_its_dag_and_of_the_last_days_only(deployment: Deployment) -> None:
    """A table that was loaded by hand, or whose old events were deleted, causes no wave of events."""
    old = commit(1, f"{DAG_ID}/old/ingest", 5)
    before = (datetime.now(UTC) - timedelta(days=8)).strftime("%Y%m%d%H%M%S000")
    listed = [
        commit(9, f"{DAG_ID}/new/ingest", 90),
        replace(old, instant=before, completed=before),
        commit(0, f"{DAG_ID}/older/ingest", 1),
    ]
    deployment.submit.plan_commits(IngestCommits(table=TABLE, commits=tuple(listed)).to_json())
    assert deployment.run(nothing(previous=instant(9))) == "success"
    assert deployment.events == [(instant(9), 90)]

    deployment.forget()
    by_hand = (commit(9, None, 90),)
    deployment.submit.plan_commits(IngestCommits(table=TABLE, commits=by_hand).to_json())
    assert deployment.run(nothing(previous=instant(9))) == "success"
    assert deployment.events == []
