"""The argv contract and the report: what one side writes, the other reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import CommitStateUnknownError, RetryableError, UserError
from lakehouse.platform.jobs.run import exit_code
from lakehouse.spec.job import JobCommand, JobError, JobReport, JobStatus, combined

words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
nouns = st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
intervals = st.none() | st.tuples(moments, st.timedeltas(timedelta(microseconds=1), timedelta(days=400))).map(
    lambda pair: (pair[0].isoformat(), (pair[0] + pair[1]).isoformat())
)


@st.composite
def commands(draw: st.DrawFn) -> JobCommand:
    interval = draw(intervals)
    keys = words.filter(lambda key: bool(key) and "=" not in key)
    verb = draw(nouns)
    return JobCommand(
        verb=verb,
        action=draw(nouns),
        table=draw(words),
        interval_start=interval[0] if interval else None,
        interval_end=interval[1] if interval else None,
        run_id=draw(st.none() | words),
        report=draw(st.none() | words),
        full_refresh=draw(st.booleans()),
        force=draw(st.booleans()),
        also=() if verb == "ingest" else draw(st.lists(words, max_size=2).map(tuple)),
        partitions=draw(st.lists(words, max_size=2).map(tuple)),
        options=draw(st.dictionaries(keys, words, max_size=3)),
    )


@given(command=commands())
def test_a_command_read_from_its_own_argv_is_equal(command: JobCommand) -> None:
    argv = command.to_argv()
    assert JobCommand.from_argv(argv) == command
    assert all(isinstance(word, str) for word in argv)


def test_the_words_of_a_command_are_those_people_type() -> None:
    command = JobCommand(
        verb="ingest",
        action="run",
        table="orders.yaml",
        interval_start="2026-01-01",
        interval_end="2026-01-02",
        run_id="r1",
        report="/tmp/report.json",
        options={"hoodie.b": "2", "hoodie.a": "x=y"},
    )
    text = (
        "ingest run --table orders.yaml --interval-start 2026-01-01 --interval-end 2026-01-02 --run-id r1 "
        "--report /tmp/report.json --option hoodie.a=x=y --option hoodie.b=2"
    )
    assert " ".join(command.to_argv()) == text
    assert JobCommand.from_argv(["ingest", "run", "--table=orders.yaml", "--option=hoodie.a=x=y"]).options == {
        "hoodie.a": "x=y"
    }


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "expected a verb and an action"),
        ("ingest", "expected a verb and an action"),
        ("ingest --table x", "expected a verb and an action"),
        ("ingest run", "ingest run needs --table"),
        ("ingest run --table", "--table needs a value"),
        ("ingest run --tabel x", "unknown argument '--tabel'. Did you mean '--table'?"),
        ("ingest run orders.yaml", "unknown argument 'orders.yaml'"),
        ("ingest run --table x --table y", "ingest works on one table; --table was given 2 times"),
        ("ingest run --table x --full-refresh=yes", "--full-refresh takes no value"),
        ("ingest run --table x --option a", "--option a: expected key=value"),
        ("ingest run --table x --option a=1 --option a=2", "each key once"),
        ("ingest run --table x --interval-start 2026-01-01", "needs both"),
        ("ingest run --table x --interval-start 2026-01-01 --interval-end 2026-01-01", "is not before"),
        ("ingest run --table x --interval-start soon --interval-end 2026-01-01", "'soon' is not a time"),
    ],
)
def test_wrong_arguments_are_named(argv: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        JobCommand.from_argv(argv.split())
    assert message in raised.value.message


def test_bounds_of_an_interval_without_a_zone_are_utc() -> None:
    command = JobCommand(
        verb="ingest", action="run", table="t", interval_start="2026-01-01", interval_end="2026-01-01T03:00:00+02:00"
    )
    assert command.interval == (
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=2))),
    )


def test_a_service_may_be_told_several_tables_and_partitions() -> None:
    words = "clustering run --table a.b --table a.c --partition x --partition y"
    command = JobCommand.from_argv(words.split())
    assert command.tables == ("a.b", "a.c") and command.partitions == ("x", "y")


def failed(table: str, kind: str, *, retryable: bool) -> JobReport:
    error = JobError(kind=kind, message="because", retryable=retryable)
    return JobReport(status=JobStatus.FAILED, table=table, error=error)


def test_a_batch_is_failed_if_one_table_is_and_worth_a_retry_if_one_failure_is() -> None:
    done = JobReport(status=JobStatus.COMMITTED, table="a.a", files=2, bytes=10)
    idle = JobReport(status=JobStatus.NOTHING_TO_DO, table="a.b", reason="too early")
    assert combined([done, idle]).status is JobStatus.COMMITTED
    assert combined([idle]).status is JobStatus.NOTHING_TO_DO
    bad = combined([done, failed("a.c", "UserError", retryable=False), idle])
    assert bad.error is not None and exit_code(bad.error) == 64 and not bad.error.retryable
    assert bad.error.message == "1 of 3 tables: a.c: UserError: because"
    both = combined([failed("a.c", "UserError", retryable=False), failed("a.d", "RetryableError", retryable=True)])
    assert both.error is not None and exit_code(both.error) == 75 and both.error.retryable
    # That a table is busy, and only that, spends no try: nothing else may hide behind it.
    busy = failed("a.e", "TableBusyError", retryable=True)
    waits = combined([done, busy, failed("a.c", "UserError", retryable=False)])
    assert waits.error is not None and waits.error.kind == "TableBusyError" and exit_code(waits.error) == 75
    again = combined([busy, failed("a.d", "RetryableError", retryable=True)])
    assert again.error is not None and again.error.kind == "RetryableError"
    assert (bad.files, bad.bytes, bad.parts[0]) == (2, 10, done)
    assert exit_code(JobError(kind="MemoryError", message="", retryable=True)) == 70


counts = st.integers(0, 10**15)
errors = st.builds(JobError, kind=nouns, message=st.text(), retryable=st.booleans())


@st.composite
def reports(draw: st.DrawFn, inner: bool = False) -> JobReport:
    status = draw(st.sampled_from(JobStatus))
    return JobReport(
        status=status,
        table=draw(st.text()),
        instant=draw(st.none() | st.from_regex(r"[0-9]{17}", fullmatch=True)),
        rows=draw(counts),
        files=draw(counts),
        bytes=draw(counts),
        bad_records=draw(counts),
        seconds=draw(st.floats(0, 1e6)),
        reason=draw(st.text()),
        error=draw(errors) if status is JobStatus.FAILED else None,
        parts=() if inner else tuple(draw(st.lists(reports(inner=True), max_size=2))),
    )


@given(report=reports())
def test_a_report_read_from_its_own_json_is_equal(report: JobReport) -> None:
    assert JobReport.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"status": "done"}', '{"status": "committed", "row": 1}', '{"status": "failed"}'],
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="report"):
        JobReport.from_json(text)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UserError("no such column"), JobError(kind="UserError", message="no such column", retryable=False)),
        (RetryableError("busy"), JobError(kind="RetryableError", message="busy", retryable=True)),
        (CommitStateUnknownError("?"), JobError(kind="CommitStateUnknownError", message="?", retryable=False)),
        (MemoryError(), JobError(kind="MemoryError", message="MemoryError", retryable=True)),
    ],
)
def test_an_error_becomes_a_value_that_says_whether_to_try_again(error: Any, expected: JobError) -> None:
    assert JobError.of(error) == expected
