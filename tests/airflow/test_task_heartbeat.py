"""What a job gets to notice that its task is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakehouse.spec.contracts.job import JobCommand
from lakehouse.spec.contracts.task_process import TASK, TaskProcess
from lakehouse_airflow import task_heartbeat
from lakehouse_airflow.stream import StreamOperator
from lakehouse_airflow.task_heartbeat import heartbeat
from tests.airflow.runs import run_context
from tests.airflow.test_operators import COMMITTED, operator
from tests.support.fake_submit import FakeSubmit
from tests.support.waiting import until


def test_job_gets_the_process_and_the_heartbeat_of_its_task(submit: FakeSubmit, tmp_path: Path) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = operator()
    task.execute(run_context(task))
    watched = TaskProcess.from_text(submit.environment[TASK])
    assert (watched.pids, watched.is_here, watched.has_ended) == ((os.getpid(),), True, False)
    beat = Path(watched.heartbeat)
    assert beat.is_relative_to(tmp_path / "reports") and not beat.exists()


def test_heartbeat_changes_while_the_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_heartbeat, "BEAT_S", 0.01)
    beat = tmp_path / "heartbeat"
    with heartbeat(tmp_path / "report.json"):
        first = beat.read_text()
        assert until(lambda: beat.read_text() not in (first, ""))
    assert not beat.exists()


def test_stream_continues_without_its_deferred_task_and_a_replay_does_not() -> None:
    task = StreamOperator(task_id="run", table="t.yaml", run_for_s=60)
    stream = JobCommand(verb="ingest", action="stream", table="t.yaml", run_for="60s")
    assert not task._ends_with_task(stream)
    assert task._ends_with_task(JobCommand(verb="ingest", action="replay", table="t.yaml"))
