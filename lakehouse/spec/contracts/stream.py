"""Documents of a continuous ingestion: its status and stop requests, stored next to its lease, and events for Airflow.

The stream writes `StreamStatus` and reads `StopRequest`. `lakehouse ingest status` prints both with the state of the
lease as a `StreamState`. A trigger of Airflow, described by a `StreamWatch`, reads that and sends a `StreamEvent` to
its task. `StreamRun` is the state that the task keeps between two events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import IngestReport, JobError, JobReason, JobStatus

_SUMS = (
    "rows",
    "inserts",
    "updates",
    "deletes",
    "files",
    "bytes",
    "bad_records",
    "late_rows_dropped",
    "duplicates_dropped",
    "conflicts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus(Document):
    """The status that a stream writes next to its lease, after each run and at its end.

    Attributes:
        run_id: Id of the stream's job.
        table: Name of the table.
        started_ms: Start of the stream, UTC milliseconds.
        written_ms: Time of this document, UTC milliseconds.
        runs: Runs without an error.
        commits: Runs with a commit.
        committed_ms: Time of the last commit, UTC milliseconds; 0 before the first commit.
        report: The sum of the runs so far, with the last instant and lag; the final report if the stream has ended.
        problem: Error of the last run, None if it had none.
        ended: Whether the stream has ended.
    """

    run_id: str
    table: str
    started_ms: int
    written_ms: int
    runs: int = 0
    commits: int = 0
    committed_ms: int = 0
    report: IngestReport
    problem: JobError | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest(Document):
    """A request to end a stream after its current commit.

    Attributes:
        run_id: Id of the stream's job; empty after the stream obeyed the request.
        within_s: Time in seconds after which the stream ends without waiting for the commit.
        by: The sender of the request, for messages.
    """

    run_id: str = ""
    within_s: float = 120
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState(Document):
    """The state of a table's stream for readers.

    Attributes:
        table: Name of the table.
        alive: Whether a stream holds the lease.
        host: Host of the process that holds the lease or last held it; empty if there is no lease.
        until_ms: Time at which the lease expires unless it is renewed, UTC milliseconds; 0 if there is no lease.
        stop_asked: Whether the stream of `status` has received a stop request and not yet handled it.
        status: The newest status, None if no stream has written one.
    """

    table: str
    alive: bool = False
    host: str = ""
    until_ms: int = 0
    stop_asked: bool = False
    status: StreamStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWatch(Document):
    """The process and the status that a trigger watches.

    Attributes:
        table: The table spec.
        input: The name of the input if the spec has several inputs, otherwise empty.
        run_id: Id of the stream's job that the task started or found running.
        since_ms: Time at which the watch began, UTC milliseconds: an older status belongs to an earlier stream.
        start_by_ms: Time by which the stream must have its lease, UTC milliseconds.
        deadline_ms: Time by which the stream must have ended, UTC milliseconds.
        poll_s: Time between two polls, in seconds.
        place: Host and PID namespace of the spark-submit process; empty if no process of this host is watched.
        pid: Id of that process.
        created: Start time of that process as psutil shows it.
        storage: Settings `spark.hadoop.fs.*` of the job as JSON.
    """

    table: str
    input: str = ""
    run_id: str
    since_ms: int
    start_by_ms: int
    deadline_ms: int
    poll_s: float
    place: str = ""
    pid: int = 0
    created: float = 0
    storage: str = ""


class StreamEnd(StrEnum):
    """The outcome that a trigger observed."""

    #: The stream has ended; the event contains its report.
    ENDED = "ended"
    #: The lease has expired, or the process has ended without a report.
    DIED = "died"
    #: The stream did not end in time.
    OVERDUE = "overdue"
    #: The state of the stream cannot be read.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent(Document):
    """The event that a trigger sends to the task of a stream.

    Attributes:
        end: The outcome that the trigger observed.
        run_id: Id of the stream's job that it followed last.
        report: The final report, or for a crashed stream the sum of its runs; None if it is unknown.
        problem: Explanation for people; empty for a stream that has ended.
    """

    end: StreamEnd
    run_id: str
    report: IngestReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun(Document):
    """The state that a stream's task keeps while it is deferred.

    Attributes:
        until_ms: Planned end of the stream, UTC milliseconds.
        restarts: Number of times that the stream was started again.
        total: Sum over the crashed streams; None if no stream crashed.
        problem: Reason of the last restart.
    """

    until_ms: int
    restarts: int = 0
    total: IngestReport | None = None
    problem: str = ""


def sum_of_runs(total: IngestReport, report: IngestReport) -> IngestReport:
    """Add the numbers of two reports; all other values are from the newer report."""
    sums = {name: getattr(total, name) + getattr(report, name) for name in _SUMS}
    if report.status is not JobStatus.COMMITTED:
        return replace(total, **sums, lag=report.lag or total.lag, previous=total.previous or report.previous)
    return replace(
        total,
        **sums,
        status=JobStatus.COMMITTED,
        code=JobReason.NONE,
        instant=report.instant,
        drift=tuple(dict.fromkeys((*total.drift, *report.drift))),
        warning=report.warning or total.warning,
        lag=report.lag,
        previous=total.previous or report.previous,
    )


def progress_text(status: StreamStatus) -> str:
    """Return one line about the progress of a stream: its commits, and the lag of its sources."""
    report = status.report
    newest = f", the newest one is {report.instant}" if report.instant else ""
    parts = [f"{status.commits} commits with {report.rows:,} rows{newest}"]
    for lag in report.lag:
        age = "" if lag.seconds is None else f", {lag.seconds:,.0f} s"
        parts.append(f"lag of {lag.source}: {lag.left:,} {lag.unit}{age}")
    if status.problem is not None:
        parts.append(f"the last run failed: {status.problem.message}")
    return "; ".join(parts)
