"""A stream repeats an ingestion: its pauses, its end, its failures and its lease."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from lakehouse.core.env import Env
from lakehouse.core.system.stop import JobStop
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.ingest.stream import MAX_FAILURES, Stop, Stream, run_stream, stop_by_signal
from lakehouse.platform.ingest.stream_files import open_lease
from lakehouse.spec.contracts.job import IngestReport, JobReason, JobStatus, SourceLag
from lakehouse.spec.sources.stream import StreamSpec
from tests.support.tables import make_env

BEHIND = (SourceLag(source="kafka:orders", unit="offsets", left=7),)


def committed(rows: int = 1, *, behind: bool = False) -> IngestReport:
    return IngestReport(
        status=JobStatus.COMMITTED, table="t", instant=f"i{rows}", rows=rows, lag=BEHIND if behind else ()
    )


NOTHING = IngestReport(status=JobStatus.NOTHING_TO_DO, table="t", code=JobReason.NO_NEW_DATA)


@dataclass(frozen=True, slots=True)
class Waits(Stop):
    """Records the pauses, and lets the simulated clock pass instead of waiting."""

    env: Env = field(default_factory=make_env)
    pauses: list[float] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 1))
        self.env.clock.sleep(seconds)


def stream(
    outcomes: Iterator[IngestReport | BaseException],
    *,
    every_s: int = 60,
    run_for_s: int = 600,
    took_s: float = 5,
    env: Env | None = None,
    during: Callable[[Stop], None] = lambda stop: None,
) -> tuple[Stream, Waits, list[IngestReport]]:
    env = env or make_env()
    stop, done = Waits(env=env), list[IngestReport]()

    def run(run_id: str) -> IngestReport:
        env.clock.sleep(took_s)
        during(stop)
        outcome = next(outcomes)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    settings = StreamSpec(every_s=every_s, run_for_s=run_for_s)
    made = Stream(
        table="t", settings=settings, run=run, done=done.append, env=env, lock=open_lease(env), stop=stop, run_id="r"
    )
    return made, stop, done


def test_stream_commits_at_its_pace_until_its_time_is_over() -> None:
    made, stop, done = stream(iter([committed(3), NOTHING, committed(4), NOTHING, NOTHING]), run_for_s=290)
    report = run_stream(made)
    assert stop.pauses == [55, 55, 55, 55]
    assert [one.rows for one in done] == [3, 0, 4, 0, 0]
    assert (report.status, report.rows, report.instant) == (JobStatus.COMMITTED, 7, "i4")
    assert report.reason == "2 commits in 5 runs"


def test_stream_does_not_pause_while_the_source_has_more() -> None:
    outcomes = [committed(5, behind=True), committed(5, behind=True), committed(2), NOTHING]
    made, stop, _ = stream(iter(outcomes), run_for_s=125)
    report = run_stream(made)
    assert stop.pauses == [0, 0, 55]
    assert (report.rows, report.lag) == (12, ())


def test_stream_that_is_slower_than_its_pace_does_not_pause() -> None:
    made, stop, _ = stream(iter([committed()] * 3), every_s=10, took_s=20, run_for_s=60)
    run_stream(made)
    assert stop.pauses == [0, 0]


def test_stream_without_new_data_says_so() -> None:
    made, _, _ = stream(iter([NOTHING, NOTHING]), run_for_s=100)
    report = run_stream(made)
    assert (report.status, report.code) == (JobStatus.NOTHING_TO_DO, JobReason.NO_NEW_DATA)
    assert report.reason == "0 commits in 2 runs: the source had nothing new"


def test_stream_ends_after_the_commit_during_which_it_was_stopped() -> None:
    made, _, done = stream(iter([committed(2), committed(3)]), run_for_s=0, during=lambda stop: stop.set())
    assert run_stream(made).rows == 2
    assert len(done) == 1
    assert open_lease(made.env).try_acquire() == 2, "the lease is free"


def test_failures_are_tried_again_with_growing_pauses_and_counted_from_zero_after_a_success() -> None:
    failures = [RetryableError("broker away") for _ in range(3)]
    made, stop, done = stream(iter([*failures, committed(1), RetryableError("again"), committed(2)]), run_for_s=150)
    report = run_stream(made)
    assert stop.pauses == [2, 4, 8, 55, 2]
    assert report.rows == 3
    assert [one.status for one in done].count(JobStatus.FAILED) == 4


def test_stream_fails_after_many_failures_in_a_row() -> None:
    made, stop, _ = stream(iter([RetryableError("broker away")] * MAX_FAILURES), run_for_s=0)
    with pytest.raises(RetryableError, match="broker away"):
        run_stream(made)
    assert len(stop.pauses) == MAX_FAILURES - 1
    assert max(stop.pauses) == 300


def test_stream_whose_last_run_failed_does_not_end_well() -> None:
    made, _, _ = stream(iter([committed(), RetryableError("broker away")]), run_for_s=66)
    with pytest.raises(RetryableError, match="broker away"):
        run_stream(made)


@pytest.mark.parametrize("error", [UserError("wrong spec"), JobStop("stopped")], ids=["user", "stopped"])
def test_wrong_input_and_a_stop_end_the_stream_at_once(error: BaseException) -> None:
    made, stop, _ = stream(iter([error]))
    with pytest.raises(type(error)):
        run_stream(made)
    assert stop.pauses == []
    assert open_lease(made.env).try_acquire() == 2, "the lease is free"


def test_second_stream_of_a_table_has_nothing_to_do() -> None:
    env = make_env()
    held = open_lease(env)
    assert held.try_acquire() == 1
    made, _, done = stream(iter([]), env=env)
    report = run_stream(made)
    assert (report.status, report.code, done) == (JobStatus.NOTHING_TO_DO, JobReason.OTHER_RUN_ACTIVE, [])
    assert "another stream" in report.reason
    held.check()


def test_stream_that_lost_its_lease_ends_before_the_next_run() -> None:
    env = make_env()

    def overtake(stop: Stop) -> None:
        env.clock.sleep(120)
        assert open_lease(env).try_acquire() == 2

    made, _, done = stream(iter([committed(1)]), env=env, during=overtake)
    with pytest.raises(RetryableError, match="this stream ends, because its lease was lost"):
        run_stream(made)
    assert len(done) == 1


def test_first_signal_asks_and_the_second_one_stops() -> None:
    stop = Stop()
    before = signal.getsignal(signal.SIGTERM)
    with stop_by_signal(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set
        with pytest.raises(JobStop, match="second signal, SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
