"""Repeat an ingestion in one process: `lakehouse ingest stream`.

Each run is the same as `lakehouse ingest run`: it reads from the last checkpoint and commits once. A stream therefore
has the same guarantees, and a killed stream continues where its last commit ended. If the spec's limits leave records
behind, the next run starts immediately; otherwise it starts when `every` has passed since the start of the previous
run.

A lease next to the table prevents a second stream of the same spec from running. It only saves useless work: two
streams, or a stream and a run, never commit the same records twice.

The first SIGTERM or SIGINT ends the stream after the current commit; the second one ends it immediately. A stop request
stored next to the lease does the same from another host: the stream ends after the current commit, or immediately after
the request's deadline. After each run the stream writes its status next to the lease, for readers without Spark
(`lakehouse.platform.ingest.stream_files`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from lakehouse.core.env import Env
from lakehouse.core.system.stop import JobStop, stop_job
from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.errors import LakehouseError, RetryableError
from lakehouse.platform.ingest.stream_files import RENEW_MS, StreamFiles
from lakehouse.spec.contracts.job import IngestReport, JobError, JobReason, JobStatus
from lakehouse.spec.contracts.stream import StopRequest, StreamStatus, sum_of_runs
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.sources.stream import StreamSpec

log = logging.getLogger(__name__)

#: Consecutive failures after which a stream fails, and bounds of the pause after a failure, in seconds.
MAX_FAILURES = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 300.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Requests a stream to end; `wait` then returns early."""

    _event: threading.Event = field(default_factory=threading.Event)

    @property
    def is_set(self) -> bool:
        """Whether the stream has to end."""
        return self._event.is_set()

    def set(self) -> None:
        """Request the stream to end."""
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait until the time has passed or the stream has to end."""
        self._event.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The parts of a stream.

    Attributes:
        table: The name of the table, for messages.
        settings: The intervals and deadlines of the stream.
        run: Runs the ingestion once, under this run id.
        done: Called with the report of each run, including failed runs.
        env: The clock and the timers.
        lock: The lease of the stream.
        stop: Requests the stream to end.
        run_id: Id of the stream, and start of the run ids.
        input: The input's name for a table with several inputs; otherwise empty.
        interrupt: Ends the stream without waiting for its commit; called in another thread.
    """

    table: str
    settings: StreamSpec
    run: Callable[[str], IngestReport]
    done: Callable[[IngestReport], None]
    env: Env
    lock: Lock
    stop: Stop
    run_id: str
    input: str = ""
    interrupt: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stop_by_signal(stop: Stop) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT in the block; raise JobStop at the next one."""

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        if stop.is_set:
            stop_job(f"the stream was stopped by a second signal, {name}")
        log.warning("%s: the stream ends after the commit that is under way", name)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_stream(stream: Stream) -> IngestReport:
    """Run the stream until its time is over or a stop is requested, and return the sum of its reports.

    Raises:
        UserError: The input or the spec is wrong; no commit contains the run's records.
        RetryableError: `MAX_FAILURES` consecutive runs failed, the last run failed, or the lease was lost.
        JobStop: A second signal stopped the stream.
    """
    lease = stream.lock.try_acquire()
    if isinstance(lease, Held):
        stream.lock.release()
        return IngestReport(
            status=JobStatus.NOTHING_TO_DO,
            table=stream.table,
            reason=f"another stream writes to the table: {lease.by}",
            code=JobReason.OTHER_RUN_ACTIVE,
        )
    progress, requests = _Progress.of(stream), _Requests(stream)
    timer = stream.env.timers.every(RENEW_MS / 1000, lambda: _attend(stream, requests), "lease of a stream")
    try:
        try:
            progress.write()
            report = _repeated(stream, progress, requests)
        except (Exception, JobStop) as error:
            problem = JobError.of(error.error if isinstance(error, JobStop) else error)
            failed = replace(progress.status.report, status=JobStatus.FAILED, error=problem)
            progress.write(ended=True, report=replace(failed, code=JobReason.NONE))
            raise
        progress.write(ended=True, report=report)
        return report
    finally:
        requests.is_over = True
        timer.stop()
        requests.answer()
        stream.lock.release()


@dataclass(slots=True)
class _Progress:
    """The status of a stream. Its file is only informational, so a storage error does not end the stream."""

    stream: Stream
    status: StreamStatus

    @classmethod
    def of(cls, stream: Stream) -> _Progress:
        now_ms = stream.env.clock.now_ms()
        report = IngestReport(status=JobStatus.NOTHING_TO_DO, table=stream.table, code=JobReason.NO_NEW_DATA)
        status = StreamStatus(
            run_id=stream.run_id, table=stream.table, started_ms=now_ms, written_ms=now_ms, report=report
        )
        return cls(stream, status)

    def write(self, **changes: Any) -> None:
        """Change the status and write it, unless another stream holds the lease and writes its status."""
        self.status = replace(self.status, written_ms=self.stream.env.clock.now_ms(), **changes)
        try:
            self.stream.lock.check()
            StreamFiles(self.stream.env.storage, self.stream.input).put_status(self.status)
        except LakehouseError as error:
            log.warning("table %s: the status of the stream was not written: %s", self.stream.table, error)


@dataclass(slots=True)
class _Requests:
    """The stop requests that a stream reads."""

    stream: Stream
    asked_s: float | None = None
    is_over: bool = False

    def heed(self) -> None:
        """Set `stop` if a stop request exists, and end the stream immediately after the request's deadline."""
        stream = self.stream
        try:
            request = StreamFiles(stream.env.storage, stream.input).stop()
        except LakehouseError as error:
            log.warning("table %s: the stop request of the stream was not read: %s", stream.table, error)
            return
        if request.run_id != stream.run_id:
            return
        # Times of this process: the clock of the requesting host may differ.
        now_s = stream.env.clock.monotonic_s()
        if self.asked_s is None:
            self.asked_s = now_s
            log.warning("%s: the stream ends after the commit that is under way", request.by or "a stop request")
            stream.stop.set()
        elif now_s > self.asked_s + request.within_s and not self.is_over:
            log.warning("the stream did not end within %s of its stop request", duration_text(request.within_s))
            stream.interrupt()

    def answer(self) -> None:
        """Remove a completed request, so that it does not stop a later attempt with the same id."""
        if self.asked_s is None:
            return
        try:
            StreamFiles(self.stream.env.storage, self.stream.input).put_stop(StopRequest())
        except LakehouseError as error:
            log.warning("table %s: the stop request of the stream was not removed: %s", self.stream.table, error)


def _attend(stream: Stream, requests: _Requests) -> None:
    _renew(stream)
    requests.heed()


def _keep_lease(stream: Stream) -> None:
    """Renew the lease before a run; raise RetryableError if another stream holds it."""
    try:
        stream.lock.renew()
    except RetryableError as error:
        raise RetryableError(f"table {stream.table}: this stream ends, because its lease was lost: {error}") from error


def _renew(stream: Stream) -> None:
    try:
        stream.lock.renew()
    except LakehouseError as error:
        # The next run of this stream renews the lease, too.
        log.warning("table %s: the lease of the stream was not renewed: %s", stream.table, error)


def _repeated(stream: Stream, progress: _Progress, requests: _Requests) -> IngestReport:
    clock, settings = stream.env.clock, stream.settings
    started_s = clock.monotonic_s()
    runs = commits = failures = 0
    total, failure = progress.status.report, None
    while True:
        _keep_lease(stream)
        requests.heed()
        if stream.stop.is_set:
            break
        began_s = clock.monotonic_s()
        failure = None
        try:
            report = stream.run(f"{stream.run_id}/{clock.now_ms()}")
        except RetryableError as error:
            failure, failures = error, failures + 1
            problem = JobError.of(error)
            stream.done(IngestReport(status=JobStatus.FAILED, table=stream.table, error=problem))
            progress.write(problem=problem)
            pause_s = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
            log.warning("table %s: run failed, next try in %s: %s", stream.table, duration_text(pause_s), error)
        else:
            runs, failures = runs + 1, 0
            commits += report.status is JobStatus.COMMITTED
            total = sum_of_runs(total, report)
            stream.done(report)
            committed_ms = clock.now_ms() if report.status is JobStatus.COMMITTED else progress.status.committed_ms
            progress.write(runs=runs, commits=commits, committed_ms=committed_ms, report=total, problem=None)
            is_behind = report.status is JobStatus.COMMITTED and any(lag.left for lag in report.lag if not lag.is_kept)
            pause_s = 0.0 if is_behind else max(0.0, began_s + settings.every_s - clock.monotonic_s())
        is_over = bool(settings.run_for_s) and clock.monotonic_s() + pause_s >= started_s + settings.run_for_s
        if not (is_over or failures >= MAX_FAILURES):
            stream.stop.wait(pause_s)
        if is_over or failures >= MAX_FAILURES or stream.stop.is_set:
            break
    if failure is not None:
        # The last run failed, so the stream failed.
        raise failure
    text = f"{commits} commits in {runs} runs"
    seconds = clock.monotonic_s() - started_s
    return replace(total, reason=text if commits else f"{text}: the source had nothing new", seconds=seconds)
