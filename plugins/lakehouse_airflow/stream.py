"""Operator that keeps the stream of a table running. It starts the job and is deferred, so it occupies no worker slot.

    execute ─► a stream holds the lease: watch it ─┐
          └──► start spark-submit ─────────────────┴─► deferred: StreamTrigger ─► execute_complete
                    ▲                                                                 │ ended: report of the run
                    └── died: start it again, at most `restarts` times ◄──────────────┘ overdue: stop it, fail

The job is a separate process. It continues when the task is deferred and when the worker or the triggerer restarts. If
a stream is already running, the task watches it instead of starting a second one. With the deploy mode `cluster`
spark-submit ends after the submission, and the driver runs on the cluster.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4  # noqa: TID251 -- each start of a stream has its own id

import psutil

from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.contracts.stream import (
    StreamEnd,
    StreamEvent,
    StreamRun,
    StreamState,
    StreamWatch,
    sum_of_runs,
)
from lakehouse.spec.job_command import STREAM, JobCommand, StreamCommand
from lakehouse.spec.reports_folder import make_reports_folder
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.compat import AirflowException, AirflowFailException, Context, timezone
from lakehouse_airflow.job_reports import FINAL_EXIT_CODES, failed_task, read_report
from lakehouse_airflow.operators import LakehouseOperator, folder_name
from lakehouse_airflow.processes import end_job
from lakehouse_airflow.stream_trigger import StreamTrigger, process_place, storage_variables, table_words

#: Time within which a new stream must hold its lease. It includes the start of Spark.
START_S = 300
#: spark-submit does not wait for the end of an application in cluster mode.
_SUBMIT_ONLY = {
    "spark.yarn.submit.waitAppCompletion": "false",
    "spark.kubernetes.submission.waitAppCompletion": "false",
}
_LOG_LINES = 20


class StreamOperator(LakehouseOperator):
    """Keep a continuous ingestion running for `run_for_s` seconds. Return the sum over its commits as a JobReport.

    The task fails if the stream fails, if it crashed more than `restarts` times, or if it has not ended `overdue_s`
    seconds after its time. When a user clears the task or sets its state, the stream ends after the current commit. A
    replay runs as in LakehouseOperator. The deferral needs a triggerer.

    Args:
        run_for_s: Time after which the stream ends, in seconds.
        overdue_s: Additional time that its last commit may take, in seconds.
        restarts: Maximum number of restarts after a crash of the stream.
        poll_s: Time between two polls of the trigger, in seconds.
        kwargs: Arguments of LakehouseOperator.
    """

    # parameters: the arguments of an Airflow operator
    def __init__(
        self, *, run_for_s: int, overdue_s: int = 3600, restarts: int = 3, poll_s: float = 30, **kwargs: Any
    ) -> None:
        super().__init__(**{"verb": "ingest", "action": STREAM, **kwargs})
        self.run_for_s = run_for_s
        self.overdue_s = overdue_s
        self.restarts = restarts
        self.poll_s = poll_s
        self._until_ms = 0

    def execute(self, context: Context) -> dict[str, Any]:
        """Start the stream, or use the running one, and wait for its end in the triggerer."""
        if (context.get("params") or {}).get("replay"):
            return super().execute(context)
        return self._watch(context, StreamRun(until_ms=_now_ms() + self.run_for_s * 1000))

    def execute_complete(self, context: Context, event: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
        """Set the state of the task by the trigger's event; restart a crashed stream."""
        outcome, previous = StreamEvent.from_mapping(event), StreamRun.from_mapping(run)
        command = self._command(context)
        total = outcome.report if previous.total is None else _sum(previous.total, outcome.report)
        if outcome.end in (StreamEnd.OVERDUE, StreamEnd.UNREADABLE):
            self._stop(outcome)
        if outcome.end is StreamEnd.UNREADABLE:
            raise AirflowFailException(f"the stream cannot be watched, so its end was requested: {outcome.problem}")
        if outcome.end is StreamEnd.OVERDUE:
            raise AirflowException(f"{outcome.problem}; its end was requested")
        # The stream has ended, so only its JVM may still be running here.
        end_job(self._job_of(command))
        if outcome.end is StreamEnd.ENDED and total is not None:
            if total.error is not None:
                raise failed_task(total, final=total.error.exit_code in FINAL_EXIT_CODES)
            return self._success(context, command, _described(total, previous))
        self._show_log(command)
        report = read_report(self._store(command))
        if report is not None and report.error is not None:
            # The stream failed before it held its lease.
            raise failed_task(report, final=report.error.exit_code in FINAL_EXIT_CODES)
        if previous.restarts >= self.restarts:
            raise AirflowException(
                f"the stream crashed {previous.restarts + 1} times, the last time: {outcome.problem}"
            )
        self.log.warning("%s; start %s of %s follows", outcome.problem, previous.restarts + 1, self.restarts)
        again = replace(previous, restarts=previous.restarts + 1, total=total, problem=outcome.problem)
        return self._watch(context, again)

    def _command(self, context: Context) -> JobCommand:
        """Build the command that starts a stream. Its id is unique, so a stop request only concerns this start."""
        command = super()._command(context)
        if not isinstance(command, StreamCommand):
            return command
        # A stream that restarts at the end of its time still makes one commit.
        seconds = max(1, (self._until_ms - _now_ms()) // 1000)
        return replace(command, run_id=f"{command.run_id}/{uuid4().hex[:8]}", run_for=f"{seconds}s")

    def _ends_with_task(self, command: JobCommand) -> bool:
        # The stream must not end with this process: it continues while its task is deferred.
        return not isinstance(command, StreamCommand)

    def _job_of(self, command: JobCommand) -> str:
        job = str(command.run_id)
        return job.rpartition("/")[0] if isinstance(command, StreamCommand) else job

    def _watch(self, context: Context, run: StreamRun) -> dict[str, Any]:
        """Start a stream if none is running, and defer the task, which raises TaskDeferred."""
        self._until_ms = run.until_ms
        state, now_ms = self._state(), _now_ms()
        watch = StreamWatch(
            table=str(self.table),
            input=self.input,
            run_id="",
            since_ms=now_ms,
            start_by_ms=now_ms + START_S * 1000,
            deadline_ms=max(run.until_ms, now_ms) + self.overdue_s * 1000,
            poll_s=self.poll_s,
            storage=self._storage_settings,
        )
        if state.alive:
            self.log.warning("A stream is already running on host %s; this task watches it.", state.host or "unknown")
            watch = replace(watch, run_id="" if state.status is None else state.status.run_id)
        else:
            watch = self._started(self._ready_command(context), watch)
        self.defer(
            trigger=StreamTrigger(watch=watch.to_mapping()),
            method_name="execute_complete",
            kwargs={"run": run.to_mapping()},
        )
        raise AssertionError("defer() raises an exception")

    def _state(self) -> StreamState:
        try:
            words = ["ingest", "status", *table_words(str(self.table), self.input), "--output", "json"]
            return StreamState.from_json(run_command(words, variables=storage_variables(self._storage_settings)))
        except UserError as error:
            raise AirflowFailException(str(error)) from error

    def _started(self, command: JobCommand, watch: StreamWatch) -> StreamWatch:
        """Start spark-submit as a process that outlives this task, and return the input of the trigger."""
        is_cluster = self.is_cluster
        if is_cluster:
            self.conf = {**_SUBMIT_ONLY, **(self.conf or {})}
        submit = self.submit_command()
        path = self._log_path(command)
        with path.open("wb") as output:
            path.chmod(0o600)
            process = subprocess.Popen(
                submit.words,
                env={**os.environ, **submit.variables, **self._secrets},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A signal to the process group of the task must not end the stream.
                start_new_session=True,
            )
        self.log.info("Started process %s; its output is in %s", process.pid, path)
        watch = replace(watch, run_id=str(command.run_id))
        if not is_cluster:
            created = psutil.Process(process.pid).create_time()
            return replace(watch, place=process_place(), pid=process.pid, created=created)
        if process.wait():
            self._show_log(command)
            raise AirflowException(f"spark-submit ended with exit code {process.returncode} before the stream started")
        return watch

    def _stop(self, event: StreamEvent) -> None:
        """Request the end of a stream. The task fails anyway, so an error here is only logged."""
        if not event.run_id:
            return
        words = ["ingest", "stop", *table_words(str(self.table), self.input), "--run-id", event.run_id]
        try:
            run_command(words, variables=storage_variables(self._storage_settings))
        except AirflowException as error:
            self.log.error("the end of the stream %s could not be requested: %s", event.run_id, error)

    def _log_path(self, command: JobCommand) -> Path:
        """Return the file with the output of a stream, which is on this host wherever its report is."""
        return make_reports_folder(os.environ, *map(folder_name, self._job_of(command).split("/"))) / "stream.log"

    def _show_log(self, command: JobCommand) -> None:
        """Log the last output lines of a stream that ran on this host."""
        path = self._log_path(command)
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
            self.log.warning("the last lines of %s:\n%s", path, "\n".join(lines))


def _sum(total: IngestReport, report: IngestReport | None) -> IngestReport:
    if report is None:
        return total
    summed = sum_of_runs(total, report)
    return summed if report.error is None else replace(summed, status=report.status, error=report.error)


def _described(total: IngestReport, run: StreamRun) -> IngestReport:
    """Return the report, with a warning if the stream was restarted."""
    if not run.restarts:
        return total
    text = f"the stream was restarted {run.restarts} times, the last time because: {run.problem}"
    return replace(total, warning="; ".join(filter(None, (total.warning, text))))


def _now_ms() -> int:
    return int(timezone.utcnow().timestamp() * 1000)
