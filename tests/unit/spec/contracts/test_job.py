"""Reports of jobs: each is decoded to the value that was encoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

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
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import (
    ErrorCode,
    IngestReport,
    JobError,
    JobReason,
    JobReport,
    JobStatus,
    PublicationReport,
    ServiceReport,
    SourceLag,
    combined,
    parse_report,
)
from lakehouse.spec.contracts.stream import StreamEvent, StreamRun, StreamStatus
from lakehouse.spec.contracts.sync import SyncedTable

nouns = st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True)


def failed(table: str, error: Exception) -> IngestReport:
    return IngestReport(status=JobStatus.FAILED, table=table, error=JobError.of(error))


def test_batch_report_fails_if_one_table_fails_and_is_retryable_if_one_error_is() -> None:
    done = IngestReport(status=JobStatus.COMMITTED, table="a.a", files=2, bytes=10)
    idle = IngestReport(status=JobStatus.NOTHING_TO_DO, table="a.b", reason="too early")
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


kinds = st.sampled_from((IngestReport, ServiceReport, PublicationReport))
synced = st.builds(SyncedTable, table=st.text(), added=counts)
instants = st.none() | st.from_regex(r"[0-9]{17}", fullmatch=True)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("rows", "inserts", "updates", "deletes", "files", "bytes", "bad_records"), counts),
    **dict.fromkeys(("late_rows_dropped", "duplicates_dropped", "conflicts", "plans_dropped"), counts),
    **dict.fromkeys(("table", "reason", "warning", "interval"), st.text()),
    **dict.fromkeys(("instant", "previous"), instants),
    **dict.fromkeys(("folders", "missing", "partitions"), st.lists(st.text(), max_size=2).map(tuple)),
    "seconds": st.floats(0, 1e6),
    "code": st.sampled_from(JobReason),
    "drift": st.lists(drifts, max_size=2).map(tuple),
    "lag": st.lists(lags, max_size=2).map(tuple),
    "tables": st.lists(synced, max_size=2).map(tuple),
    "lineage": st.none(),
}


@st.composite
def reports(draw: st.DrawFn, kind: type[JobReport] | None = None) -> JobReport:
    is_part = kind is not None
    kind = draw(kinds) if kind is None else kind
    status = draw(st.sampled_from(JobStatus))
    values = {one.name: draw(FIELDS[one.name]) for one in fields(kind) if one.name in FIELDS}
    error = draw(errors) if status is JobStatus.FAILED else None
    if kind is not PublicationReport and not is_part:
        values["parts"] = tuple(draw(st.lists(reports(kind), max_size=2)))
    assert {one.name for one in fields(kind)} <= {*FIELDS, "status", "error", "parts"}
    report: JobReport = kind(status=status, error=error, **values)
    return report


@given(report=reports())
def test_report_round_trips_through_json(report: JobReport) -> None:
    assert parse_report(report.to_json()) == report


RECORDED = json.loads((Path(__file__).parent / "reports_0_1.json").read_text(encoding="utf-8"))
DOCUMENTS = [(kind, name) for kind, documents in RECORDED.items() for name in documents]
#: The empty values of an ingestion, a service and a publication: then the kind is not known.
PLAIN = {"status": "nothing_to_do", "version": 1}


def without_job(document: Any) -> Any:
    """Return a document as the first release wrote it: without the kind of the job."""
    if isinstance(document, list):
        return [without_job(part) for part in document]
    if not isinstance(document, dict):
        return document
    return {name: without_job(value) for name, value in document.items() if name != "job"}


@pytest.mark.parametrize(("kind", "name"), DOCUMENTS)
def test_document_of_release_0_1_is_read_and_written_with_the_same_fields(kind: str, name: str) -> None:
    recorded = RECORDED[kind][name]
    readers: dict[str, Callable[[str], Document]] = {
        one.__name__: one.from_json for one in (StreamStatus, StreamEvent, StreamRun)
    }
    document = readers.get(kind, parse_report)(json.dumps(recorded))
    assert type(document).__name__ == kind
    written = document.to_mapping()
    assert written != recorded and without_job(written) == recorded


def test_report_without_facts_of_a_kind_is_that_of_an_ingestion() -> None:
    assert parse_report(json.dumps(PLAIN)) == IngestReport(status=JobStatus.NOTHING_TO_DO)
    service = {**PLAIN, "parts": [{**PLAIN, "plans_dropped": 2}]}
    assert type(parse_report(json.dumps(service))) is ServiceReport


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
        '{"version": 1, "status": "committed", "job": "backup"}',
        '{"version": 1, "status": "committed", "job": "service", "parts": [{"status": "done"}]}',
    ],
)
def test_from_json_refuses_a_text_that_is_no_report(text: str) -> None:
    with pytest.raises(UserError, match="report"):
        parse_report(text)


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
