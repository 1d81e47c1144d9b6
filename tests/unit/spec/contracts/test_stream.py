"""Documents of streams survive their encoding."""

from __future__ import annotations

import pytest

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus, SourceLag
from lakehouse.spec.contracts.stream import (
    StopRequest,
    StreamEnd,
    StreamEvent,
    StreamRun,
    StreamState,
    StreamStatus,
    StreamWatch,
)

LAG = SourceLag(source="kafka:orders", unit="offsets", left=7, seconds=3.2)
REPORT = IngestReport(status=JobStatus.COMMITTED, table="t", instant="i7", rows=7, lag=(LAG,))
STATUS = StreamStatus(
    run_id="r/1",
    table="t",
    started_ms=1,
    written_ms=2,
    runs=4,
    commits=3,
    committed_ms=2,
    report=REPORT,
    problem=JobError.of(ValueError("bad")),
    ended=True,
)


@pytest.mark.parametrize(
    "document",
    [
        STATUS,
        StopRequest(run_id="r/1", within_s=2.5, by="a test"),
        StreamState(table="t", alive=True, host="h", until_ms=9, stop_asked=True, status=STATUS),
        StreamWatch(table="t.yaml", run_id="r/1", since_ms=1, start_by_ms=2, deadline_ms=3, poll_s=0.5, created=1.25),
        StreamEvent(end=StreamEnd.DIED, run_id="r/1", report=REPORT, problem="killed"),
        StreamRun(until_ms=9, restarts=2, total=REPORT, problem="killed"),
    ],
    ids=lambda document: type(document).__name__,
)
def test_document_survives_its_encoding(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document
