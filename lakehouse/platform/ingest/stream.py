"""Repeat an ingestion in one process: `lakehouse ingest stream`.

Each run is that of `lakehouse ingest run`: it reads from the checkpoint of the last commit and commits once. A
stream therefore has the same guarantees, and one that is killed continues where its last commit ended. After a run that
left records behind, because of the limits of the spec, the next one starts at once; otherwise it starts when `every`
has passed since the start of the run before.

A lease beside the table keeps a second stream of the same spec from running. It only saves useless work: two
streams, or a stream and a run, never commit the same records twice.

The first SIGTERM or SIGINT ends the stream after the commit that is under way; the second one ends it at once.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType

from lakehouse.core.env import Env
from lakehouse.core.timeline.locks.lease import FileRegister, LeaseLock
from lakehouse.core.timeline.locks.lease_record import LeaseRecordCodec
from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.errors import JobStoppedError, LakehouseError, RetryableError
from lakehouse.spec.contracts.job import JobError, JobReason, JobReport, JobStatus
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.stream import StreamSpec

log = logging.getLogger(__name__)

_LEASES = ".hoodie/.locks"
_LEASE_MS, _RENEW_MS = 60_000, 20_000
#: Consecutive failures after which a stream fails, and bounds of the pause after a failure, in seconds.
MAX_FAILURES = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 300.0
_SUMS = ("rows", "inserts", "updates", "deletes", "files", "bytes", "bad_records", "late_rows_dropped", "conflicts")


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks a stream to end; `wait` returns early then."""

    _event: threading.Event = field(default_factory=threading.Event)

    @property
    def is_set(self) -> bool:
        """Whether the stream was asked to end."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask the stream to end."""
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait until the time has passed or the stream is asked to end."""
        self._event.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The parts of a stream.

    Attributes:
        table: The name of the table, for messages.
        settings: The times of the stream.
        run: Runs the ingestion once, under this run id.
        done: Called with the report of each run, failed ones included.
        env: The clock and the timers.
        lock: The lease of the stream.
        stop: Asks the stream to end.
        run_id: Start of the run ids.
    """

    table: str
    settings: StreamSpec
    run: Callable[[str], JobReport]
    done: Callable[[JobReport], None]
    env: Env
    lock: Lock
    stop: Stop
    run_id: str


def open_lease(env: Env, input: str = "") -> LeaseLock:
    """Return the lease of the streams that fill a table, or one input of it; `env` is the environment of the table."""
    path = f"{_LEASES}/ingest_stream{f'.{input}' if input else ''}.json"
    register, codec = FileRegister(env.storage, path), LeaseRecordCodec(env)
    name = f"{env.storage.root}/{path}"
    return LeaseLock(env, register, codec, name=name, lease_ms=_LEASE_MS, renew_ms=_RENEW_MS)


@contextmanager
def stop_by_signal(stop: Stop) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT of the block; raise JobStoppedError at the next one."""

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        if stop.is_set:
            raise JobStoppedError(f"the stream was stopped by a second signal, {name}")
        log.warning("%s: the stream ends after the commit that is under way", name)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_stream(stream: Stream) -> JobReport:
    """Run the stream until its time is over or it is asked to end, and return the sum of its reports.

    Raises:
        UserError: The input or the spec is wrong; the records of the run are in no commit.
        RetryableError: `MAX_FAILURES` runs failed one after the other, the last run failed, or the lease was lost.
    """
    found = stream.lock.try_acquire()
    if isinstance(found, Held):
        stream.lock.release()
        return JobReport(
            status=JobStatus.NOTHING_TO_DO,
            table=stream.table,
            reason=f"another stream writes to the table: {found.by}",
            code=JobReason.OTHER_RUN_ACTIVE,
        )
    timer = stream.env.timers.every(_RENEW_MS / 1000, lambda: _renew(stream), "lease of a stream")
    try:
        return _repeated(stream)
    finally:
        timer.stop()
        stream.lock.release()


def _keep_lease(stream: Stream) -> None:
    """Renew the lease before a run; raise RetryableError if another stream has it."""
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


def _repeated(stream: Stream) -> JobReport:
    clock, settings = stream.env.clock, stream.settings
    started_s = clock.monotonic_s()
    runs = commits = failures = 0
    total = JobReport(status=JobStatus.NOTHING_TO_DO, table=stream.table, code=JobReason.NO_NEW_DATA)
    while True:
        _keep_lease(stream)
        began_s = clock.monotonic_s()
        failure = None
        try:
            report = stream.run(f"{stream.run_id}/{clock.now_ms()}")
        except JobStoppedError:
            raise
        except RetryableError as error:
            failure, failures = error, failures + 1
            stream.done(JobReport(status=JobStatus.FAILED, table=stream.table, error=JobError.of(error)))
            pause_s = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
            log.warning("table %s: run failed, next try in %s: %s", stream.table, duration_text(pause_s), error)
        else:
            runs, failures = runs + 1, 0
            commits += report.status is JobStatus.COMMITTED
            total = _sum(total, report)
            stream.done(report)
            is_behind = report.status is JobStatus.COMMITTED and any(lag.left for lag in report.lag)
            pause_s = 0.0 if is_behind else max(0.0, began_s + settings.every_s - clock.monotonic_s())
        is_over = bool(settings.run_for_s) and clock.monotonic_s() + pause_s >= started_s + settings.run_for_s
        if not (is_over or failures >= MAX_FAILURES):
            stream.stop.wait(pause_s)
        if is_over or failures >= MAX_FAILURES or stream.stop.is_set:
            break
    if failure is not None:
        # The last run failed, so the stream did not end well.
        raise failure
    text = f"{commits} commits in {runs} runs"
    seconds = clock.monotonic_s() - started_s
    return replace(total, reason=text if commits else f"{text}: the source had nothing new", seconds=seconds)


def _sum(total: JobReport, report: JobReport) -> JobReport:
    """Return the sum of reports, with the facts of the newer one."""
    sums = {name: getattr(total, name) + getattr(report, name) for name in _SUMS}
    if report.status is not JobStatus.COMMITTED:
        return replace(total, **sums, lag=report.lag or total.lag)
    return replace(
        total,
        **sums,
        status=JobStatus.COMMITTED,
        code=JobReason.NONE,
        instant=report.instant,
        drift=tuple(dict.fromkeys((*total.drift, *report.drift))),
        warning=report.warning or total.warning,
        lag=report.lag,
    )
