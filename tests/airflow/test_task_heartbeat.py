"""What a job gets to notice that its task is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lakehouse.spec.contracts.task_process import TASK, TaskProcess
from lakehouse.spec.job_command import ReplayCommand, StreamCommand
from lakehouse_airflow import task_heartbeat
from lakehouse_airflow.stream import StreamOperator
from lakehouse_airflow.task_heartbeat import heartbeat
from tests.airflow.runs import run_context
from tests.airflow.test_operators import COMMITTED, operator
from tests.support.fake_submit import FakeSubmit
from tests.support.plain_submit import install
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]


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
    with heartbeat(str(tmp_path / "report.json")):
        first = beat.read_text()
        assert until(lambda: beat.read_text() not in (first, ""))
    assert not beat.exists()


def test_stream_continues_without_its_deferred_task_and_a_replay_does_not() -> None:
    task = StreamOperator(task_id="run", table="t.yaml", run_for_s=60)
    stream = StreamCommand(table="t.yaml", run_for="60s")
    assert not task._ends_with_task(stream)
    assert task._ends_with_task(ReplayCommand(table="t.yaml"))


TABLE = """
import sys
import pyarrow as pa
from lakehouse import Table

table = Table.create(sys.argv[1], name="t", record_key=["id"], table_type="MERGE_ON_READ")
for value in range(3):
    table.upsert(pa.table({"id": ["a", "b"], "v": [value, value]}))
"""
TASK_PROCESS = """
import sys
from lakehouse_airflow.services import ServiceOperator
from tests.airflow.runs import run_context

task = ServiceOperator(task_id="run", service="compaction", table=sys.argv[1], force=True, check=False)
task.execute(run_context(task))
"""


def test_job_of_a_killed_task_process_ends_without_a_commit(tmp_path: Path, database: None) -> None:
    """The job is a real one without Spark, and waits at its start; apache/airflow#17479."""
    python, location = ROOT / ".venv" / "bin" / "python", tmp_path / "t"
    if not python.exists():
        pytest.skip("missing: .venv with lakehouse-tables[spark]; run 'make venvs'")
    subprocess.run([python, "-c", TABLE, str(location)], cwd=ROOT, check=True)
    home = install(tmp_path / "spark", python)
    environ = {
        **os.environ,
        "LAKEHOUSE_SPARK_HOME": str(home),
        "LAKEHOUSE_REPORTS": str(tmp_path / "reports"),
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
    }

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", TASK_PROCESS, str(location)], cwd=ROOT, env=environ)

    def instants() -> set[str]:
        return {path.name for path in (location / ".hoodie" / "timeline").iterdir()}

    before, held, hold = instants(), home / "held", home / "hold"
    hold.touch()
    killed = start()
    try:
        assert until(lambda: any(held.iterdir()), limit_s=300)
        (waiting,) = held.iterdir()
        job = psutil.Process(int(waiting.name))
    finally:
        killed.kill()
        killed.wait()
    assert job.is_running()
    hold.unlink()
    assert until(lambda: not job.is_running() or job.status() == psutil.STATUS_ZOMBIE, limit_s=300)
    assert instants() == before
    # The next try compacts the table.
    assert start().wait(timeout=600) == 0
    assert any(name.endswith(".commit") for name in instants() - before)
