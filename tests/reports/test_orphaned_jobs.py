"""A job ends when its Airflow task is gone: on its host by the processes, on another host by the heartbeat."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.errors import JobStoppedError, UserError
from lakehouse.platform.jobs.report_stores import open_report_store
from lakehouse.spec.contracts.job import ErrorCode, parse_report
from lakehouse.spec.contracts.task_process import TASK, TaskProcess, process_start
from lakehouse.spec.report_store import JobDocument

#: A job that says when it works, and that would work for an hour.
JOB = """
import sys, threading
from lakehouse.platform.jobs import run, task_watch
from lakehouse.spec.job_command import IngestCommand

task_watch.POLL_S = task_watch.STORE_POLL_S = 0.05

def work(command):
    print("works", flush=True)
    pause = threading.Event()
    for _ in range(36_000):
        pause.wait(0.1)

command = IngestCommand(table="t", report=sys.argv[1])
sys.exit(run.run_job(command, work, lambda command: ()))
"""
PAUSE = "import sys; sys.stdin.read()"


class Jobs:
    """Starts processes that end with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.report, self.stack = folder / "report.json", stack

    def start(self, script: str, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start a process of Python."""
        process = subprocess.Popen(
            [sys.executable, "-c", script, *words],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path)), **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    def job(self, task: TaskProcess) -> subprocess.Popen[str]:
        """Start the job of a task, which works when this returns."""
        catalog = {name: os.environ[name] for name in ("LAKEHOUSE_CATALOG",) if name in os.environ}
        job = self.start(JOB, str(self.report), **{TASK: task.text}, **catalog)
        assert job.stdout is not None and job.stdout.readline() == "works\n"
        return job

    def error(self) -> ErrorCode:
        """Return the error that the job reported."""
        report = parse_report(self.report.read_text(encoding="utf-8"))
        assert report.error is not None
        return report.error.code


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with ExitStack() as stack:
        yield Jobs(tmp_path, stack)


def test_job_ends_when_the_process_of_its_task_is_killed(jobs: Jobs, tmp_path: Path) -> None:
    """apache/airflow#17479: a worker ended, and its Spark job wrote the data a second time beside the retry."""
    supervisor, runner = jobs.start(PAUSE), jobs.start(PAUSE)
    job = jobs.job(TaskProcess.of((runner.pid, supervisor.pid), tmp_path / "heartbeat"))
    assert job.poll() is None
    # The test does not wait for it, so it stays a zombie, as under a busy supervisor.
    runner.kill()
    assert job.wait(timeout=120) == JobStoppedError.exit_code
    assert jobs.error() is ErrorCode.JOB_STOPPED


def test_job_ends_when_the_supervisor_of_its_task_is_killed(jobs: Jobs, tmp_path: Path) -> None:
    """apache/airflow#17479: without its supervisor a task has no heartbeat, and Airflow starts another try."""
    supervisor, runner = jobs.start(PAUSE), jobs.start(PAUSE)
    job = jobs.job(TaskProcess.of((runner.pid, supervisor.pid), tmp_path / "heartbeat"))
    supervisor.kill()
    assert job.wait(timeout=120) == JobStoppedError.exit_code


def test_job_that_starts_after_its_task_was_killed_does_not_work(jobs: Jobs, tmp_path: Path) -> None:
    """stackabletech/spark-k8s-operator#646: a driver starts although its submission was killed."""
    runner = jobs.start(PAUSE)
    task = TaskProcess.of((runner.pid,), tmp_path / "heartbeat")
    runner.kill()
    runner.wait()
    job = jobs.start(JOB, str(jobs.report), **{TASK: task.text})
    assert job.wait(timeout=120) == JobStoppedError.exit_code


def test_job_on_another_host_ends_when_the_heartbeat_of_its_task_stops(jobs: Jobs, tmp_path: Path) -> None:
    """stackabletech/spark-k8s-operator#646: a driver in cluster mode does not see the process that submitted it."""
    beat = tmp_path / "heartbeat"
    beat.write_text("0")
    task = TaskProcess(place="worker-1 pid:[1]", pids=(1,), started=("1",), heartbeat=str(beat), lost_after_s=1)
    job = jobs.job(task)
    assert job.wait(timeout=120) == JobStoppedError.exit_code
    assert jobs.error() is ErrorCode.JOB_STOPPED


def test_job_on_another_host_without_a_common_folder_is_refused_before_it_works(jobs: Jobs, tmp_path: Path) -> None:
    """apache/airflow#17479: in cluster mode the report of the driver would be on a host that the task cannot read."""
    task = TaskProcess(place="worker-1 pid:[1]", pids=(1,), started=("1",), heartbeat=str(tmp_path / "missing"))
    job = jobs.start(JOB, str(jobs.report), **{TASK: task.text})
    output, errors = job.communicate(timeout=120)
    assert (job.returncode, output) == (UserError.exit_code, "")
    assert "Set LAKEHOUSE_REPORTS to a store that both reach" in errors


@pytest.mark.parametrize("place", ["{folder}", "file://{folder}", "catalog:d/r/t"])
@pytest.mark.parametrize("document", [JobDocument.STOP, JobDocument.HEARTBEAT])
def test_job_on_a_cluster_ends_on_a_stop_request_or_a_newer_submission(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, document: JobDocument
) -> None:
    """apache/spark: SIGTERM to spark-submit of the cluster mode does not end the application."""
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    address = f"{place.format(folder=tmp_path)}/heartbeat"
    store = open_report_store(address, os.environ)
    store.change({JobDocument.HEARTBEAT: "first 1", JobDocument.STOP: "an older submission"})
    job = jobs.job(TaskProcess.of_submission("first", address, lost_after_s=3600))
    assert job.poll() is None
    store.change({document: "first" if document is JobDocument.STOP else "second 1"})
    assert job.wait(timeout=120) == JobStoppedError.exit_code
    assert jobs.error() is ErrorCode.JOB_STOPPED


def test_another_process_with_the_number_of_the_task_is_not_the_task(jobs: Jobs, tmp_path: Path) -> None:
    """apache/airflow#17479: numbers of processes are used again."""
    runner = jobs.start(PAUSE)
    task = TaskProcess.of((runner.pid,), tmp_path / "heartbeat")
    assert TaskProcess.from_text(task.text) == task and task.is_here and not task.has_ended
    assert replace(task, started=("1",)).has_ended
    runner.kill()
    assert process_start(runner.pid) is None or runner.wait() is not None
    assert task.has_ended
