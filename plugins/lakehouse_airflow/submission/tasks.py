"""Steps of a task with an application on a cluster: submit, reattach, wait, read the report, end.

    attach ──► a live application of an earlier try ────────────► wait
       ├─────► a report of it without an error ─────────────────► accept
       └─────► nothing, or it has failed ──► record ─► submit ──► wait ──► report

The record of the submission is in the store of reports: the token before the submission, the ids after it. So the task
survives the loss of its worker. The record is deleted when the task has handled a success, or ends the application.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4  # noqa: TID251 -- each submission has its own token

from lakehouse.errors import RetryableError
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobReport
from lakehouse.spec.contracts.task_process import TASK, TaskProcess
from lakehouse.spec.job_command import JobCommand
from lakehouse.spec.report_store import JobDocument, JobDocuments, sibling
from lakehouse_airflow.compat import AirflowException, timezone
from lakehouse_airflow.job_reports import decoded_report
from lakehouse_airflow.submission.choice import open_submission
from lakehouse_airflow.submission.protocol import (
    Application,
    ApplicationState,
    ApplicationStatus,
    JobRequest,
    SubmissionChoice,
)

log = logging.getLogger(__name__)

#: Polls without an answer of the cluster after which the try fails. The next try reattaches.
FAILED_POLLS = 20
#: Heartbeats within the time after which the job ends without one.
_BEATS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord(Document):
    """A submission of a job, as the next try of its task reads it.

    Attributes:
        choice: The submission.
        token: Id of the application on the cluster.
        arguments: Arguments of the job. A try with other arguments submits again.
        application: The application; None while it is being submitted.
    """

    choice: SubmissionChoice
    token: str
    arguments: tuple[str, ...]
    application: Application | None = None

    @property
    def running(self) -> Application:
        """The application, which was submitted."""
        assert self.application is not None, "the application was submitted"
        return self.application


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """The job of a task on a cluster.

    Attributes:
        choice: The submission.
        store: Documents of the job.
        lost_after_s: Seconds without a task after which the job ends by itself.
        program: Builds the command line of spark-submit; None in a trigger.
    """

    choice: SubmissionChoice
    store: JobDocuments
    lost_after_s: int
    program: Callable[..., object] | None = None

    def attach(self, arguments: tuple[str, ...]) -> SubmissionRecord | JobReport | None:
        """Return the live application of an earlier try, or the report of one that succeeded, or None."""
        documents = self.store.read(JobDocument.SUBMISSION, JobDocument.REPORT)
        if JobDocument.SUBMISSION not in documents:
            return None
        record = SubmissionRecord.from_json(documents[JobDocument.SUBMISSION])
        submission = open_submission(record.choice)
        application = record.application or submission.find(record.token)
        if application is None:
            return record if self._is_same(record, arguments) else None
        status = submission.status(application)
        if not self._is_same(record, arguments):
            if not status.state.has_ended:
                log.warning("An earlier try started %s with other arguments; it is ended.", application.title)
                submission.kill(application)
            return None
        record = replace(record, application=application)
        if not status.state.has_ended:
            log.info("An earlier try started %s, which is %s; this try waits for it.", application.title, status.state)
            self._beat(record.token)
            return record
        report = decoded_report(self.store.read(JobDocument.REPORT), self.store.address)
        if report is not None and report.error is None:
            log.info("An earlier try started %s, which has ended; its report is accepted.", application.title)
            return report
        log.warning(
            "An earlier try started %s, which ended as %s; it is submitted again.", application.title, status.state
        )
        return None

    def submit(self, request: JobRequest, spec: str | None) -> SubmissionRecord:
        """Submit the job and return its record, which the next try of the task can read.

        `spec` is the content of its table spec, which the driver reads from the store.
        """
        submission = open_submission(self.choice, self.program)
        record = self.record_of(request)
        task = TaskProcess.of_submission(
            request.token, sibling(self.store.address, JobDocument.HEARTBEAT), lost_after_s=self.lost_after_s
        )
        prepared = submission.prepare(replace(request, variables={**request.variables, TASK: task.text}))
        self.store.change(
            {
                JobDocument.REPORT: None,
                JobDocument.STOP: None,
                JobDocument.SPEC: spec,
                JobDocument.HEARTBEAT: _heartbeat(request.token),
                JobDocument.SUBMISSION: record.to_json(),
            }
        )
        record = replace(record, application=submission.submit(prepared))
        self.store.change({JobDocument.SUBMISSION: record.to_json()})
        log.info("Submitted %s", record.running.title)
        return record

    def record_of(self, request: JobRequest) -> SubmissionRecord:
        """Return the record of a job that is not submitted yet."""
        return SubmissionRecord(choice=self.choice, token=request.token, arguments=tuple(request.arguments))

    def wait(
        self, record: SubmissionRecord, poll_s: float, show: Callable[[ApplicationStatus], None]
    ) -> ApplicationStatus:
        """Poll the application until it has ended; `show` gets each new status.

        Raises AirflowException if the cluster does not answer for FAILED_POLLS polls.
        """
        pause, watch = threading.Event(), StatusWatch(self, record, poll_s)
        while True:
            status, is_new = watch.poll()
            if status is not None and is_new:
                show(status)
            if status is not None and status.state.has_ended:
                return status
            pause.wait(poll_s)

    def report(self) -> JobReport | None:
        """Return the report of the job, or None if there is none."""
        return decoded_report(self.store.read(JobDocument.REPORT), self.store.address)

    def close(self) -> None:
        """Delete the record, because the task has handled the success of the job."""
        self.store.change({JobDocument.SUBMISSION: None, JobDocument.HEARTBEAT: None, JobDocument.STOP: None})

    def kill(self, record: SubmissionRecord) -> None:
        """End the application: by its cluster, and by a stop request for a driver that the cluster does not end."""
        submission = open_submission(record.choice)
        application = record.application or submission.find(record.token)
        if application is not None:
            log.warning("Ending %s", application.title)
            submission.kill(application)
        self.store.change({JobDocument.STOP: record.token, JobDocument.SUBMISSION: None, JobDocument.HEARTBEAT: None})

    def _is_same(self, record: SubmissionRecord, arguments: tuple[str, ...]) -> bool:
        return (record.choice.name, record.choice.connection) == (
            self.choice.name,
            self.choice.connection,
        ) and record.arguments == arguments

    def _beat(self, token: str) -> None:
        self.store.change({JobDocument.HEARTBEAT: _heartbeat(token)})


class StatusWatch:
    """Polls an application, and sends heartbeats to its driver."""

    def __init__(self, job: ClusterJob, record: SubmissionRecord, poll_s: float) -> None:
        self._job, self._record = job, record
        self._submission = open_submission(record.choice)
        self._polls_per_beat = max(1, int(job.lost_after_s / _BEATS / max(poll_s, 0.01)))
        self._polls, self._failed, self._last = 0, 0, None

    _last: ApplicationStatus | None

    def poll(self) -> tuple[ApplicationStatus | None, bool]:
        """Return the status and whether it is new; None if the cluster does not answer."""
        self._polls += 1
        try:
            if self._polls % self._polls_per_beat == 0:
                self._job._beat(self._record.token)
            status = self._submission.status(self._record.running)
        except RetryableError as error:
            self._failed += 1
            log.warning("poll %s without an answer: %s", self._failed, error)
            if self._failed >= FAILED_POLLS:
                raise AirflowException(f"{self._record.running.title} cannot be followed: {error}") from error
            return None, False
        self._failed = 0
        is_new, self._last = status != self._last, status
        return status, is_new


def new_token() -> str:
    """Return the token of a new submission."""
    return f"lakehouse-{uuid4().hex[:20]}"


def ended_without_report(application: Application, status: ApplicationStatus) -> AirflowException:
    """Return the exception for an application that wrote no report."""
    end = "is not known to the cluster" if status.state is ApplicationState.MISSING else f"ended as {status.state}"
    places = [f"log of the driver: {status.log}" if status.log else "", status.link or application.link]
    return AirflowException(
        "; ".join(filter(None, (f"{application.title} {end}, and left no report", status.reason, *places)))
    )


@contextmanager
def retried() -> Iterator[None]:
    """Raise AirflowException for errors of a cluster or a store after which a retry can help."""
    try:
        yield
    except RetryableError as error:
        raise AirflowException(str(error)) from error


def for_cluster(command: JobCommand) -> JobCommand:
    """Return the command with the spec in the store of reports instead of the file, which other hosts cannot read."""
    if spec_text(command) is None:
        return command
    return replace(command, table=sibling(str(command.report), JobDocument.SPEC))


def spec_text(command: JobCommand) -> str | None:
    """Return the content of the job's table spec, or None if its table is not given by a file."""
    path = Path(command.table)
    is_spec = path.suffix in (".yaml", ".yml") and path.is_file()
    return path.read_text(encoding="utf-8") if is_spec else None


def _heartbeat(token: str) -> str:
    return f"{token} {timezone.utcnow().isoformat()}"
