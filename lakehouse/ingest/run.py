"""One ingest run: plan, read, write, report.

    open      the table, if there is one; its newest commits say what was ingested
    plan      list the source; choose files by checkpoint or by data interval
    read      probe, parse, set bad records aside; too many of them end the run here
    create    the table, if there was none
    write     one commit that carries rows, checkpoint, interval and counts together

A run that is killed at any line leaves a table that does not know of it, so the next run plans the same files again:
what was ingested is said by completed commits alone. Dead letters have a folder per set of files, so a retry replaces
those of the earlier try, and no commit loses its own.
Two runs of one table at the same time are not told apart by the checkpoint: run one at a time, as the ingest DAG does.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakehouse.errors import RetryableError
from lakehouse.ingest.checkpoint import Checkpoint
from lakehouse.ingest.declared import create_declared, open_declared
from lakehouse.ingest.paths import fill_interval, interval_text, location_of, resolve
from lakehouse.ingest.read import Batch, DeadLetterBox, ingest_of, open_batch
from lakehouse.ingest.source import IngestPlan, SourceListing, list_source, plan_ingest
from lakehouse.operations.results import Committed, NothingToDo
from lakehouse.spark.sources import (
    Frame,
    Schema,
    Session,
    schema_from_json,
    schema_of_arrow,
    schema_to_json,
    storage_options_of,
    utc,
)
from lakehouse.spec.job import JobCommand, JobReport, JobStatus
from lakehouse.spec.table import TableSpec
from lakehouse.storage.locate import open_storage
from lakehouse.table import Table
from lakehouse.txn.env import Env

log = logging.getLogger(__name__)

#: Keys of a commit's extra metadata.
CHECKPOINT = "lakehouse.ingest.checkpoint"
INTERVAL = "lakehouse.ingest.interval"
FILES = "lakehouse.ingest.files"
BAD_RECORDS = "lakehouse.ingest.bad_records"
DEAD_LETTERS = "lakehouse.ingest.dead_letters"
SCHEMA = "lakehouse.ingest.schema"
RUN_ID = "lakehouse.ingest.run_id"

_RACES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestContext:
    """What a run works with: the spec with its places resolved, the command, options, and the table's world."""

    session: Session
    spec: TableSpec
    command: JobCommand
    options: Mapping[str, str]
    storage_options: Mapping[str, str]
    env: Env


def run_ingest(
    session: Session,
    spec: TableSpec,
    command: JobCommand,
    *,
    environ: Mapping[str, str],
    storage_options: Mapping[str, str] | None = None,
    env: Env | None = None,
) -> JobReport:
    """Ingest what the spec's source has and the table has not, and report it.

    `environ` fills `${VAR}` in the spec and tells `LAKEHOUSE_HOME`. `storage_options` add to the session's
    `spark.hadoop.fs.*`. `env` is the world of the table's location, for tests. Raises UserError for input that has to
    be mended, RetryableError for faults that pass; nothing is committed then.
    """
    placed = _placed(spec, environ)
    access = {**storage_options_of(session), **(storage_options or {})}
    world = env or Env(storage=open_storage(placed.location, access))
    run = IngestContext(
        session=session,
        spec=placed,
        command=command,
        options={**placed.write_options(), **command.options},
        storage_options=access,
        env=world,
    )
    started_ms = world.clock.now_ms()
    with utc(session):
        report = _until_no_race(run)
    return replace(report, seconds=(world.clock.now_ms() - started_ms) / 1000)


def write_batch(table: Table, frame: Frame, operation: str, extra: Mapping[str, str]) -> Committed | NothingToDo:
    """Write the rows by the spec's operation, in one commit that carries `extra`."""
    verbs = {"upsert": table.upsert, "insert": table.insert, "bulk_insert": table.bulk_insert}
    # Without good rows the commit is empty, and still says that these files were read.
    return verbs[operation](frame, commit_metadata=extra, allow_empty=True)


def _until_no_race(run: IngestContext) -> JobReport:
    """Run, and plan anew when another writer committed first: what is left to do may have changed."""
    for race in range(1, _RACES + 1):
        try:
            return _run_once(run)
        except RetryableError as error:
            if "winner" not in error.facts or race == _RACES:
                raise
            log.warning("table %s: %s; planning anew", run.spec.table, error)
    raise AssertionError("the last race returns or raises")


def _run_once(run: IngestContext) -> JobReport:
    ingest = ingest_of(run.spec)
    table = open_declared(run.spec, run.options, run.env)
    plan, listing = _plan(run, table)
    if not plan.files or listing is None:
        return _nothing(run, plan.reason, instant=_own_commit(run, table))
    log.info("table %s: %s, %s bytes", run.spec.table, plan.reason, plan.size_bytes)
    known = None if table is None else _known_schema(run.spec, table)
    box = _dead_letter_box(run, plan)
    with open_batch(run.session, listing.storage, plan.files, run.spec, known_schema=known, dead_letters=box) as batch:
        if batch is None or not (batch.rows or batch.bad_records):
            return _nothing(run, "the files hold no rows")
        if table is None:
            table = create_declared(run.spec, run.options, run.env, exist_ok=True)
        extra = _extra(run, plan, batch, box, inferred=not run.spec.schema and ingest.format != "parquet")
        outcome = write_batch(table, batch.frame, ingest.operation, extra)
        return _report(run, outcome, batch)


def _plan(run: IngestContext, table: Table | None) -> tuple[IngestPlan, SourceListing | None]:
    ingest, interval = ingest_of(run.spec), run.command.interval
    path = fill_interval(ingest.path, interval)
    committed = None
    checkpoint = Checkpoint()
    if table is not None:
        if interval is not None:
            committed = table.commits_with(INTERVAL, interval_text(interval))
        stored = None if ingest.is_by_interval else table.last_commit_extra(CHECKPOINT)
        checkpoint = checkpoint if stored is None else Checkpoint.from_json(stored)
    repeat = ingest.replace or run.command.full_refresh
    # Most runs that are repeated end here, before the source is listed.
    listing = None if committed is not None and not repeat else list_source(path, run.storage_options)
    plan = plan_ingest(
        () if listing is None else listing.files,
        checkpoint,
        interval=interval,
        by_interval=ingest.is_by_interval,
        committed_at=None if committed is None else committed.requested,
        repeat=ingest.replace,
        full_refresh=run.command.full_refresh,
    )
    return plan, listing


def _placed(spec: TableSpec, environ: Mapping[str, str]) -> TableSpec:
    """Return the spec with `location` and `ingest.path` as addresses; placeholders of the interval stay."""
    ingest = ingest_of(spec)
    path = resolve(ingest.path, environ, name="ingest.path")
    return replace(spec, location=location_of(spec, environ), ingest=replace(ingest, path=path))


def _known_schema(spec: TableSpec, table: Table) -> Schema | None:
    """Return the columns by which earlier runs read, else the table's own where the input is stored as it is read.

    Parquet files bring their columns along, so new ones reach the table.
    """
    ingest = ingest_of(spec)
    if ingest.format == "parquet":
        return None
    stored = table.last_commit_extra(SCHEMA)
    if stored is not None:
        return schema_from_json(stored)
    columns = table.schema
    return schema_of_arrow(columns) if len(columns) and not ingest.select else None


def _extra(run: IngestContext, plan: IngestPlan, batch: Batch, box: DeadLetterBox, *, inferred: bool) -> dict[str, str]:
    extra = {FILES: plan.summary(), BAD_RECORDS: str(batch.bad_records)}
    if plan.checkpoint is not None:
        extra[CHECKPOINT] = plan.checkpoint.to_json()
    if plan.interval is not None:
        extra[INTERVAL] = plan.interval
    if batch.bad_records:
        extra[DEAD_LETTERS] = box.url
    if inferred:
        extra[SCHEMA] = schema_to_json(batch.schema)
    if run.command.run_id is not None:
        extra[RUN_ID] = run.command.run_id
    return extra


def _dead_letter_box(run: IngestContext, plan: IngestPlan) -> DeadLetterBox:
    """Return the folder beside the table for exactly these files: a retry has the same, another commit another."""
    location = run.spec.location.rstrip("/")
    is_bucket = "://" in location and "/" not in location.partition("://")[2]
    place = f"{location}/.dead_letters" if is_bucket else f"{location}_dead_letters"
    entries = b"".join(b"%d:%s" % file.entry for file in plan.files)
    digest = hashlib.blake2b(entries, digest_size=6).hexdigest()
    run_name = (plan.interval or run.command.run_id or "run").replace("/", "_")
    name = re.sub(r"[^\w.+=-]", "-", run_name).lstrip(".")
    return DeadLetterBox(storage=open_storage(place, run.storage_options), folder=f"{name}-{digest}")


def _own_commit(run: IngestContext, table: Table | None) -> str | None:
    """Return the instant that an earlier try of this very run committed before it could report, or None."""
    if table is None or run.command.run_id is None:
        return None
    instant = table.commits_with(RUN_ID, run.command.run_id)
    return None if instant is None else instant.requested


def _nothing(run: IngestContext, reason: str, *, bad_records: int = 0, instant: str | None = None) -> JobReport:
    log.info("table %s: nothing to do: %s", run.spec.table, reason)
    return JobReport(status=JobStatus.NOTHING_TO_DO, table=run.spec.table, bad_records=bad_records, instant=instant)


def _report(run: IngestContext, outcome: Committed | NothingToDo, batch: Batch) -> JobReport:
    if isinstance(outcome, NothingToDo):
        return _nothing(run, outcome.reason, bad_records=batch.bad_records)
    stats = outcome.metadata.stats
    report = JobReport(
        status=JobStatus.COMMITTED,
        table=run.spec.table,
        instant=outcome.instant.requested,
        rows=outcome.rows,
        inserts=sum(stat.num_inserts for stat in stats),
        updates=sum(stat.num_updates for stat in stats),
        deletes=sum(stat.num_deletes for stat in stats),
        files=len(stats),
        bytes=sum(stat.size_bytes for stat in stats),
        bad_records=batch.bad_records,
    )
    log.info("table %s: commit %s, %s rows in %s files", report.table, report.instant, report.rows, report.files)
    return report
