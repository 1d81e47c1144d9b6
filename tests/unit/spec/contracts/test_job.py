"""Reports of jobs: each is decoded to the value that was encoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import (
    CommitStateUnknownError,
    CorruptTableError,
    JobStoppedError,
    LakehouseError,
    RetryableError,
    SourceMissingError,
    TableBusyError,
    UnsupportedError,
    UserError,
)
from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.spec.contracts.job import ErrorCode, JobError, JobReason, JobReport, JobStatus, SourceLag, combined

nouns = st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True)


def failed(table: str, error: Exception) -> JobReport:
    return JobReport(status=JobStatus.FAILED, table=table, error=JobError.of(error))


def test_batch_report_fails_if_one_table_fails_and_is_retryable_if_one_error_is() -> None:
    done = JobReport(status=JobStatus.COMMITTED, table="a.a", files=2, bytes=10)
    idle = JobReport(status=JobStatus.NOTHING_TO_DO, table="a.b", reason="too early")
    assert combined([done, idle]).status is JobStatus.COMMITTED
    assert combined([idle]).status is JobStatus.NOTHING_TO_DO
    bad = combined([done, failed("a.c", UserError("because")), idle])
    assert bad.error is not None and bad.error.exit_code == 64 and not bad.error.retryable
    assert bad.error.message == "1 of 3 tables: a.c: UserError: because"
    both = combined([failed("a.c", UserError("because")), failed("a.d", RetryableError("because"))])
    assert both.error is not None and both.error.exit_code == 75 and both.error.retryable
    # The task waits without using a try for a busy table only. The error of another table must not be hidden.
    busy = failed("a.e", TableBusyError("because"))
    waits = combined([done, busy, failed("a.c", UserError("because"))])
    assert waits.error is not None and waits.error.code is ErrorCode.TABLE_BUSY and waits.error.exit_code == 75
    again = combined([busy, failed("a.d", RetryableError("because"))])
    assert again.error is not None and again.error.code is ErrorCode.RETRYABLE
    assert (bad.files, bad.bytes, bad.parts[0]) == (2, 10, done)
    assert JobError.of(MemoryError()).exit_code == 70


counts = st.integers(0, 10**15)
errors = st.builds(JobError, kind=nouns, message=st.text(), retryable=st.booleans(), code=st.sampled_from(ErrorCode))
drifts = st.builds(ColumnDrift, column=st.text(), change=st.sampled_from(Drift), rows=counts, example=st.text())
lags = st.builds(SourceLag, source=st.text(), unit=st.text(), left=counts, seconds=st.none() | st.floats(0, 1e6))


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
        code=draw(st.sampled_from(JobReason)),
        drift=tuple(draw(st.lists(drifts, max_size=2))),
        missing=tuple(draw(st.lists(st.text(), max_size=2))),
        lag=tuple(draw(st.lists(lags, max_size=2))),
        error=draw(errors) if status is JobStatus.FAILED else None,
        parts=() if inner else tuple(draw(st.lists(reports(inner=True), max_size=2))),
    )


@given(report=reports())
def test_job_report_round_trips_through_json(report: JobReport) -> None:
    assert JobReport.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"status": "done"}',
        '{"status": "committed", "row": 1}',
        '{"status": "failed"}',
        '{"version": 1, "status": "done"}',
        '{"version": 1, "status": "failed"}',
        '{"version": 1, "status": "committed", "rows": "3"}',
    ],
)
def test_from_json_refuses_a_text_that_is_no_report(text: str) -> None:
    with pytest.raises(UserError, match="report"):
        JobReport.from_json(text)


class RaceError(RetryableError):
    """A class of errors that has no code of its own."""


@pytest.mark.parametrize(
    ("error", "code", "retryable", "exit_code"),
    [
        (UserError("no such column"), ErrorCode.USER, False, 64),
        (UnsupportedError("no such type"), ErrorCode.UNSUPPORTED, False, 69),
        (CorruptTableError("bad bytes"), ErrorCode.CORRUPT_TABLE, False, 65),
        (RetryableError("busy"), ErrorCode.RETRYABLE, True, 75),
        (RaceError("a class without a code has the code of its base class"), ErrorCode.RETRYABLE, True, 75),
        (TableBusyError("another run"), ErrorCode.TABLE_BUSY, True, 75),
        (JobStoppedError("SIGTERM"), ErrorCode.JOB_STOPPED, True, 75),
        (CommitStateUnknownError("?"), ErrorCode.COMMIT_STATE_UNKNOWN, False, 76),
        (LakehouseError("?"), ErrorCode.INTERNAL, False, 70),
        (MemoryError(), ErrorCode.INTERNAL, True, 70),
    ],
)
def test_job_error_has_the_code_and_exit_code_of_the_exception(
    error: Exception, code: ErrorCode, retryable: bool, exit_code: int
) -> None:
    found = JobError.of(error)
    message = str(error) or type(error).__name__
    assert found == JobError(kind=type(error).__name__, message=message, retryable=retryable, code=code)
    assert found.exit_code == exit_code


def test_job_error_of_a_missing_source_says_how_long_to_wait() -> None:
    found = JobError.of(SourceMissingError("no files yet", wait_for_s=60))
    assert (found.code, found.retryable, found.wait_for_s) == (ErrorCode.SOURCE_MISSING, True, 60)
