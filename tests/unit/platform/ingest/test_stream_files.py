"""The documents beside the lease of a stream: its status, stop requests, and what a reader sees."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.system.processes import ProcessId
from lakehouse.core.system.stop import JobStop
from lakehouse.errors import RetryableError
from lakehouse.platform.ingest.stream import Stop, Stream, run_stream
from lakehouse.platform.ingest.stream_files import RENEW_MS, StreamFiles, ask_to_stop, open_lease, read_state
from lakehouse.spec.contracts.job import ErrorCode, IngestReport, JobStatus, SourceLag
from lakehouse.spec.contracts.stream import StopRequest, StreamState, progress_text, sum_of_runs
from lakehouse.spec.sources.stream import StreamSpec
from tests.support.tables import make_env

LAG = (SourceLag(source="kafka:orders", unit="offsets", left=0, seconds=0),)


def committed(rows: int) -> IngestReport:
    return IngestReport(status=JobStatus.COMMITTED, table="t", instant=f"i{rows}", rows=rows, lag=LAG)


@dataclass(slots=True)
class Clockwork:
    """Timers that call when a test says so."""

    functions: list[Callable[[], None]] = field(default_factory=list)

    def every(self, seconds: float, function: Callable[[], None], name: str) -> Clockwork:
        assert seconds * 1000 == RENEW_MS
        self.functions.append(function)
        return self

    def stop(self) -> None:
        """Nothing runs between two calls of `tick`."""

    def tick(self) -> None:
        for function in self.functions:
            function()


def stream(env: Env, run: Callable[[str], IngestReport], **more: Any) -> Stream:
    class Waits(Stop):
        def wait(self, seconds: float) -> None:
            env.clock.sleep(seconds)

    settings = StreamSpec(every_s=60, run_for_s=150)
    parts: dict[str, Any] = {"env": env, "lock": open_lease(env), "stop": Waits(), "run_id": "r", "table": "t"}
    return Stream(**parts, settings=settings, run=run, done=lambda _: None, **more)


def test_status_shows_each_run_and_the_end() -> None:
    env = make_env()
    seen: list[StreamState] = []

    def run(run_id: str) -> IngestReport:
        seen.append(read_state(env, "t"))
        return committed(len(seen))

    report = run_stream(stream(env, run))
    assert [(one.alive, one.status and one.status.report.rows) for one in seen] == [(True, 0), (True, 1), (True, 3)]
    state = read_state(env, "t")
    assert state.status is not None and not state.alive
    assert (state.status.ended, state.status.report, state.status.commits) == (True, report, 3)
    assert progress_text(state.status) == (
        "3 commits with 6 rows, the newest one is i3; lag of kafka:orders: 0 offsets, 0 s"
    )


def test_status_shows_the_error_of_a_run_and_of_the_end() -> None:
    env = make_env()
    texts: list[str] = []

    def run(run_id: str) -> IngestReport:
        status = StreamFiles(env.storage).status()
        texts.append(progress_text(status) if status is not None else "")
        if len(texts) == 1:
            raise RetryableError("broker away")
        raise JobStop("stopped")

    with pytest.raises(JobStop):
        run_stream(stream(env, run))
    assert texts == ["0 commits with 0 rows", "0 commits with 0 rows; the last run failed: broker away"]
    status = StreamFiles(env.storage).status()
    assert status is not None and status.ended and status.report.error is not None
    assert status.report.error.code is ErrorCode.JOB_STOPPED
    assert status.report.error.message == "stopped"


def test_stream_that_lost_its_lease_leaves_the_status_of_its_successor_unchanged() -> None:
    env = make_env()
    files = StreamFiles(env.storage)

    def overtaken(run_id: str) -> IngestReport:
        env.clock.sleep(120)
        assert open_lease(env).try_acquire() == 2
        status = files.status()
        assert status is not None
        files.put_status(replace(status, run_id="successor"))
        return committed(1)

    with pytest.raises(RetryableError, match="lease was lost"):
        run_stream(stream(env, overtaken))
    status = files.status()
    assert status is not None and (status.run_id, status.ended) == ("successor", False)


def test_stop_request_ends_the_stream_after_its_commit_and_is_removed() -> None:
    timers = Clockwork()
    env = replace(make_env(), timers=timers)
    made = stream(env, lambda run_id: committed(1))
    request = StopRequest(run_id="r", by="a test")

    def run(run_id: str) -> IngestReport:
        ask_to_stop(env, request, is_alive=True)
        assert read_state(env, "t").stop_asked
        timers.tick()
        assert made.stop.is_set
        return committed(1)

    report = run_stream(replace(made, run=run))
    assert report.reason == "1 commits in 1 runs"
    assert StreamFiles(env.storage).stop() == StopRequest()
    assert run_stream(stream(env, lambda run_id: committed(1))).rows == 3, "the next try is not stopped"


def test_stop_request_before_the_first_run_ends_the_stream_without_one() -> None:
    env = make_env()
    StreamFiles(env.storage).put_stop(StopRequest(run_id="r"))
    assert run_stream(stream(env, lambda run_id: committed(1))).reason.startswith("0 commits in 0 runs")


def test_stop_request_for_another_stream_is_not_obeyed() -> None:
    env = make_env()
    StreamFiles(env.storage).put_stop(StopRequest(run_id="earlier"))
    assert run_stream(stream(env, lambda run_id: committed(1))).rows == 3
    assert StreamFiles(env.storage).stop().run_id == "earlier"


def test_stream_is_interrupted_when_its_commit_takes_longer_than_the_request_allows() -> None:
    timers = Clockwork()
    env = replace(make_env(), timers=timers)
    calls: list[str] = []

    def run(run_id: str) -> IngestReport:
        StreamFiles(env.storage).put_stop(StopRequest(run_id="r", within_s=100))
        for _ in range(3):
            timers.tick()
            env.clock.sleep(60)
        assert calls == ["interrupted"]
        raise JobStop("stopped by a second signal")

    with pytest.raises(JobStop):
        run_stream(stream(env, run, interrupt=lambda: calls.append("interrupted")))
    assert not read_state(env, "t").alive


@dataclass(frozen=True, slots=True)
class Other:
    """The processes of a host with a stream in another process than this one."""

    process: ProcessId
    runs: bool = True

    def current(self) -> ProcessId:
        return self.process

    def is_running(self, process: ProcessId) -> bool:
        return self.runs


HERE = ProcessId(host="h", pid=os.getpid(), boot="b", namespace="n", started="1")


@pytest.mark.parametrize(
    ("reader", "runs", "sent"),
    [
        (replace(HERE, pid=8, started="2"), True, [(7, signal.SIGTERM)]),
        (replace(HERE, pid=8, started="2"), False, []),
        (replace(HERE, pid=8, started="2", host="elsewhere"), True, []),
    ],
    ids=["same host", "process gone", "other host"],
)
def test_request_sends_one_signal_to_a_stream_of_the_same_host(
    reader: ProcessId, runs: bool, sent: list[tuple[int, int]]
) -> None:
    holder = replace(make_env(), processes=Other(replace(HERE, pid=7)))
    assert open_lease(holder).try_acquire() == 1
    env = replace(holder, processes=Other(reader, runs))
    assert read_state(env, "t").alive is (runs or reader.host == "elsewhere")
    signals: list[tuple[int, int]] = []
    for _ in range(2):
        ask_to_stop(env, StopRequest(run_id="r"), is_alive=True, send=lambda pid, number: signals.append((pid, number)))
    assert signals == sent, "a second signal would interrupt the commit"
    assert StreamFiles(env.storage).stop().run_id == "r"


def test_sum_keeps_the_facts_of_the_newer_run() -> None:
    nothing = IngestReport(status=JobStatus.NOTHING_TO_DO, table="t")
    assert sum_of_runs(nothing, committed(3)).instant == "i3"
    assert sum_of_runs(committed(3), nothing).status is JobStatus.COMMITTED
