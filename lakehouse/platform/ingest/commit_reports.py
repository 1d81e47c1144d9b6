"""Keys of an ingestion in its commits' extra metadata, and reports restored from these commits.

An attempt that ended around its commit has no report. The commit metadata contains all numbers for the report, so a
later attempt, or a later run, reads them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.tombstones import LATE_ROWS_KEY
from lakehouse.core.table.table import Table
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.drift import Drift, decode_drift
from lakehouse.model.instant import Instant
from lakehouse.model.timeline_service import RUN_ID_KEY
from lakehouse.spec.contracts.ingest_commits import IngestCommit, IngestCommits
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.table.table_spec import TableSpec

#: Keys in a commit's extra metadata.
CHECKPOINT = "lakehouse.ingest.checkpoint"
INTERVAL = "lakehouse.ingest.interval"
BAD_RECORDS = "lakehouse.ingest.bad_records"
RUN_ID = RUN_ID_KEY


def input_key(spec: TableSpec, name: str) -> str:
    """Return a key of extra metadata; each input of a table has a separate key."""
    return f"{name}.{spec.input}" if spec.input else name


def newest_commit(table: LoadedTable, spec: TableSpec) -> str | None:
    """Return the requested time of an ingestion's newest commit on the active timeline; None if there is none."""
    return next((instant.requested for instant, _ in _newest_first(table, spec)), None)


def recent_commits(table: Table, spec: TableSpec, limit: int) -> IngestCommits:
    """Return at most `limit` commits of an ingestion on the active timeline, newest first."""
    loaded = table.refresh()
    commits: list[IngestCommit] = []
    for instant, metadata in _newest_first(loaded, spec):
        if len(commits) == limit:
            break
        commits.append(
            IngestCommit(
                instant=instant.requested,
                completed=instant.completion,
                run_id=metadata.extra.get(input_key(spec, RUN_ID)),
                interval=metadata.extra.get(input_key(spec, INTERVAL), ""),
                **_written(loaded, instant, metadata.extra),
            )
        )
    return IngestCommits(table=table.name, commits=tuple(commits))


def with_own_commit(report: IngestReport, table: Table | None, spec: TableSpec, run_id: str | None) -> IngestReport:
    """Return the report of an attempt without work, completed with the commit of an earlier attempt.

    The archived timeline is not searched: the checkpoint covers such old runs.
    """
    if report.status is not JobStatus.NOTHING_TO_DO or table is None or run_id is None:
        return report
    loaded, key = table.refresh(), input_key(spec, RUN_ID)
    for instant, metadata in _newest_first(loaded, spec):
        if metadata.extra.get(key) == run_id:
            return replace(report, instant=instant.requested, **_written(loaded, instant, metadata.extra))
    return report


def unread_fields(report: IngestReport) -> tuple[str, ...]:
    """Return one sentence for each dropped record field."""
    return tuple(
        f"field {one.column} of {one.rows} records is not read"
        + (f", such as {one.example}" if one.example else "")
        + ": declare it in 'schema', or set new_column"
        for one in report.drift
        if one.change is Drift.IGNORED
    )


def _newest_first(table: LoadedTable, spec: TableSpec) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Yield the commits of an ingestion by descending completion time; the metadata may lack write statistics."""
    # A replay of dead letters only records its run id.
    keys = [input_key(spec, name) for name in (CHECKPOINT, INTERVAL, RUN_ID)]
    for instant in reversed(table.timeline.writes().by_completion()):
        metadata = table.store.summary(instant)
        if any(metadata.extra.get(key) for key in keys):
            yield instant, metadata


def _written(table: LoadedTable, instant: Instant, extra: Mapping[str, str]) -> dict[str, Any]:
    """Return a commit's statistics under the names in reports."""
    files = table.store.files([instant])
    sums = {name: pc.sum(files[f"num_{name}"]).as_py() or 0 for name in ("inserts", "updates", "deletes")}
    return {
        **sums,
        "rows": sum(sums.values()),
        "files": files.num_rows,
        "bytes": pc.sum(files["size_bytes"]).as_py() or 0,
        "bad_records": int(extra.get(BAD_RECORDS, 0)),
        "late_rows_dropped": int(extra.get(LATE_ROWS_KEY, 0)),
        "drift": decode_drift(extra),
    }
