"""Formats a job's report for people: a summary line, then one line per fact. Programs read the JSON report instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.model.texts import printable
from lakehouse.spec.contracts.job import IngestReport, JobReport, JobStatus, PublicationReport, ServiceReport
from lakehouse.spec.contracts.sync import SyncedTable
from lakehouse.spec.quantities import size_text

#: Maximum number of names per line.
_SHOWN = 5
_DRIFT = {
    Drift.ADDED: "added to the table",
    Drift.IGNORED: "ignored, its values were dropped",
    Drift.KEPT: "missing in some rows, stored values kept",
    Drift.NULLED: "missing in some rows, written as null",
    Drift.PROMOTED: "promoted",
    Drift.ROUNDED: "rounded",
    Drift.WIDENED: "widened to text",
}


def report_text(report: JobReport) -> str:
    """Format a report as several lines, without facts that are zero or empty."""
    lines = [_summary(report), *(f"  {label}: {text}" for label, text in _facts(report) if text)]
    for part in report.parts:
        lines += [f"  {line}" for line in report_text(part).splitlines()]
    return printable("\n".join(lines), keep="\n")


def _summary(report: JobReport) -> str:
    if report.status is JobStatus.COMMITTED:
        outcome = f"committed {report.instant}" if report.instant else "done"
    elif report.status is JobStatus.FAILED:
        outcome = "failed"
    else:
        earlier = f" (commit {report.instant} of an earlier try)" if report.instant else ""
        outcome = f"nothing to do{earlier}"
    name = f"{len(report.parts)} tables" if report.parts else report.table or "job"
    return f"{name}: {outcome} in {report.seconds:.1f} s"


def _facts(report: JobReport) -> Iterable[tuple[str, str]]:
    if report.error is not None and not report.parts:
        yield "error", f"{report.error.kind}: {report.error.message}"
    yield "reason", report.reason
    yield "interval", report.interval.replace("/", " to ")
    if isinstance(report, PublicationReport):
        yield "partitions", _names(report.partitions)
    else:
        yield from _written(report)
    if isinstance(report, IngestReport):
        yield from _ingested(report)
    if isinstance(report, ServiceReport):
        for table in report.tables:
            yield f"metastore table {table.table}", _synced(table)
    if not report.parts:
        yield "warning", report.warning


def _written(report: IngestReport | ServiceReport) -> Iterable[tuple[str, str]]:
    if report.rows:
        kinds = {"inserted": report.inserts, "updated": report.updates, "deleted": report.deletes}
        shown = [f"{number:,} {kind}" for kind, number in kinds.items() if number]
        yield "rows", f"{report.rows:,} written" + (f": {', '.join(shown)}" if shown else "")
    elif report.deletes:
        yield "rows", f"{report.deletes:,} deleted"
    if report.files or report.bytes:
        yield "files", f"{report.files:,}" + (f", {size_text(report.bytes)}" if report.bytes else "")


def _ingested(report: IngestReport) -> Iterable[tuple[str, str]]:
    yield "read", _names(report.folders)
    yield "folders without data, skipped", _names(report.missing)
    if report.bad_records:
        yield "bad records", f"{report.bad_records:,}, written as dead letters next to the table"
    if report.late_rows_dropped:
        yield "late rows dropped", f"{report.late_rows_dropped:,}, older than the delete of their key"
    if report.duplicates_dropped:
        yield "duplicates dropped", f"{report.duplicates_dropped:,}"
    for column in report.drift:
        yield "column", _drift(column)
    for lag in report.lag:
        if lag.is_kept:
            yield "log that the source keeps", f"{lag.left:,} bytes by {lag.source}"
        elif lag.left:
            age = "" if lag.seconds is None else f", the newest record that was read is {lag.seconds:,.0f} s old"
            yield "left for later runs", f"{lag.left:,} {lag.unit} of {lag.source}{age}"
    if report.conflicts:
        yield "retries after conflicts with other writers", f"{report.conflicts}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _synced(table: SyncedTable) -> str:
    """Describe the changes of a sync to a metastore table; empty if there are none."""
    numbers = {"added": table.added, "altered": table.altered, "dropped": table.dropped}
    partitions = ", ".join(f"{number:,} {change}" for change, number in numbers.items() if number)
    changed = f"changed {', '.join(table.changes)}" if table.changes else ""
    return "; ".join(
        part
        for part in ("created" if table.created else "", changed, partitions and f"partitions: {partitions}")
        if part
    )


def _drift(drift: ColumnDrift) -> str:
    types = f" from {drift.before} to {drift.after}" if drift.before else ""
    example = f", such as {drift.example}" if drift.example else ""
    rows = f"{drift.rows:,} {'row' if drift.rows == 1 else 'rows'}{example}"
    return f"{drift.column} {_DRIFT[drift.change]}{types} ({rows})"
