"""The text of job reports, and of sizes in it."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus, SourceLag, combined
from lakehouse.spec.contracts.job_text import report_text
from lakehouse.spec.quantities import size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (45_600_000_000, "45.6 GB"),
        (2 * 10**18, "2000 PB"),
    ],
)
def test_size_text_has_three_digits_and_a_unit(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_report_text_has_one_line_per_fact_and_none_for_zeros() -> None:
    report = IngestReport(
        status=JobStatus.COMMITTED,
        table="sales.orders",
        instant="20260101000000001",
        rows=12_345,
        inserts=12_000,
        updates=345,
        files=3,
        bytes=1_234_567,
        bad_records=2,
        late_rows_dropped=1,
        duplicates_dropped=12,
        conflicts=1,
        seconds=61.04,
        interval="2026-01-01T00:00:00Z/2026-01-02T00:00:00Z",
        folders=tuple(f"landing/{n}" for n in range(7)),
        missing=("landing/9",),
        drift=(
            ColumnDrift(column="tip", change=Drift.ADDED, rows=7),
            ColumnDrift(column="fare", change=Drift.PROMOTED, rows=9, before="int", after="bigint"),
            ColumnDrift(column="note", change=Drift.IGNORED, rows=1, example='"x"'),
        ),
        lag=(
            SourceLag(source="kafka:orders", unit="offsets", left=1200, seconds=61.4),
            SourceLag(source="kafka:fares", unit="offsets", left=0, seconds=0.0),
        ),
        warning="metastore sync: no answer",
    )
    assert report_text(report).splitlines() == [
        "sales.orders: committed 20260101000000001 in 61.0 s",
        "  interval: 2026-01-01T00:00:00Z to 2026-01-02T00:00:00Z",
        "  rows: 12,345 written: 12,000 inserted, 345 updated",
        "  files: 3, 1.23 MB",
        "  read: landing/0, landing/1, landing/2, landing/3, landing/4 and 2 more",
        "  folders without data, skipped: landing/9",
        "  bad records: 2, written as dead letters next to the table",
        "  late rows dropped: 1, older than the delete of their key",
        "  duplicates dropped: 12",
        "  column: tip added to the table (7 rows)",
        "  column: fare promoted from int to bigint (9 rows)",
        '  column: note ignored, its values were dropped (1 row, such as "x")',
        "  left for later runs: 1,200 offsets of kafka:orders, the newest record that was read is 61 s old",
        "  retries after conflicts with other writers: 1",
        "  warning: metastore sync: no answer",
    ]


def test_report_text_says_why_there_was_nothing_to_do_and_what_failed() -> None:
    idle = IngestReport(status=JobStatus.NOTHING_TO_DO, table="a.b", reason="1 commit of 4")
    assert report_text(idle) == "a.b: nothing to do in 0.0 s\n  reason: 1 commit of 4"
    failed = IngestReport(status=JobStatus.FAILED, table="a.c", error=JobError.of(UserError("no column 'x'")))
    assert report_text(combined((idle, failed))).splitlines() == [
        "2 tables: failed in 0.0 s",
        "  a.b: nothing to do in 0.0 s",
        "    reason: 1 commit of 4",
        "  a.c: failed in 0.0 s",
        "    error: UserError: no column 'x'",
    ]


def test_report_text_escapes_control_characters() -> None:
    report = IngestReport(status=JobStatus.NOTHING_TO_DO, table="a.b", reason="\x1b[31mred")
    assert "\x1b" not in report_text(report)


def test_report_text_describes_every_kind_of_drift() -> None:
    for change in Drift:
        drift = (ColumnDrift(column="c", change=change, rows=1),)
        assert "column: c " in report_text(IngestReport(status=JobStatus.COMMITTED, drift=drift))
