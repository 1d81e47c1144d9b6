"""One ingest run: plan, read, write, report.

    open      the table, if there is one; its newest commits say what was ingested
    plan      list the source; choose files by checkpoint or by data interval
    read      probe, parse, set bad records aside; too many of them end the run here
    create    the table, if there was none
    write     one commit that carries rows, checkpoint, interval and counts together
    tidy      letters of tries that no commit names

A run that is killed at any line leaves a table that does not know of it, so the next run plans the same files again:
what was ingested is said by completed commits alone.

Runs may also meet: a retry beside a first try that is alive after all, a person beside the schedule. Each commits only
if what it planned by still holds, which is looked up under the lock of the commit: no other commit has moved the
checkpoint (or brought the interval), and the one the checkpoint was read from was not undone. Who is late plans anew,
and as a rule finds nothing left to do. Runs of different intervals do not stand in each other's way.

Between listing and commit a file may be written again. Then it is not known which version was read, so before the
commit the files are looked up once more, and where one has changed the run plans anew.

Dead letters lie beside the table and are written before the commit, in a folder of their own try that the commit
names: of a commit each is there once. What a try that died left is deleted with the commit of the same files; if that
one dies before it comes to this, it stays, and no commit names it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from lakehouse.core.operations.commit.precondition import Premise
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.commits import latest_commit
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.env import Env
from lakehouse.errors import CommitStateUnknownError, ConflictError, LakehouseError, SourceChangedError
from lakehouse.model.instant import Timeline
from lakehouse.platform.catalog.declared_tables import create_declared_table, open_declared_table
from lakehouse.platform.ingest.read import Batch, DeadLetterBox, Known, ingest_of, open_batch
from lakehouse.platform.sources.file_checkpoint import Checkpoint, SourceFile
from lakehouse.platform.sources.file_paths import interval_paths
from lakehouse.platform.sources.files import IngestPlan, SourceListing, list_source, plan_ingest, refuse_changed
from lakehouse.platform.sources.missing_folders import check_missing
from lakehouse.spark.sources import (
    Schema,
    Session,
    schema_from_json,
    schema_of_arrow,
    schema_to_json,
    storage_options_of,
    utc,
)
from lakehouse.spec.contracts.job import JobCommand, JobReason, JobReport, JobStatus, interval_text
from lakehouse.spec.location import location_of, resolve
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table import TableSpec

log = logging.getLogger(__name__)

#: Keys of a commit's extra metadata.
CHECKPOINT = "lakehouse.ingest.checkpoint"
INTERVAL = "lakehouse.ingest.interval"
FILES = "lakehouse.ingest.files"
BAD_RECORDS = "lakehouse.ingest.bad_records"
DEAD_LETTERS = "lakehouse.ingest.dead_letters"
SCHEMA = "lakehouse.ingest.schema"
RUN_ID = "lakehouse.ingest.run_id"
MISSING = "lakehouse.ingest.missing"

_RACES = 3
#: Missing folders that a commit spells out.
_NAMED = 20


class Reader(Protocol):
    """Turns files into rows for the time of a `with` block, as `open_batch` does on a Spark session."""

    def __call__(
        self,
        storage: Storage,
        files: Sequence[SourceFile],
        spec: TableSpec,
        *,
        known: Known,
        dead_letters: DeadLetterBox,
    ) -> AbstractContextManager[Batch | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestContext:
    """What a run works with: the spec with its places resolved, the command, options, and the table's world.

    `reader` makes frames of files; `open` opens the place of the dead letters.
    """

    reader: Reader
    spec: TableSpec
    command: JobCommand
    options: Mapping[str, str]
    storage_options: Mapping[str, str]
    env: Env
    open: Callable[[str], Storage]


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
        reader=partial(open_batch, session),
        spec=placed,
        command=command,
        options={**placed.write_options(), **command.options},
        storage_options=access,
        env=world,
        open=partial(open_storage, options=access),
    )
    started_ms = world.clock.now_ms()
    with utc(session):
        report = ingest(run)
    return replace(report, interval=command.interval_name, seconds=(world.clock.now_ms() - started_ms) / 1000)


def write_batch(
    table: Table, batch: Batch, operation: str, extra: Mapping[str, str], premise: Premise
) -> Committed | NothingToDo:
    """Write the rows by the spec's operation, in one commit that carries `extra`, if `premise` holds until then."""
    verbs = {"upsert": table.upsert, "insert": table.insert, "bulk_insert": table.bulk_insert}
    # Without good rows the commit is empty, and still says that these files were read.
    return verbs[operation](
        batch.frame, commit_metadata=extra, allow_empty=True, premise=premise, columns=batch.columns
    )


def ingest(run: IngestContext) -> JobReport:
    """Run, and plan anew when another writer committed first, or a file changed: what is left to do is another."""
    for race in range(1, _RACES + 1):
        try:
            return _run_once(run)
        except (ConflictError, SourceChangedError) as error:
            if race == _RACES:
                raise
            log.warning("table %s: %s; planning anew", run.spec.table, error)
    raise AssertionError("the last race returns or raises")


def _run_once(run: IngestContext) -> JobReport:
    table = open_declared_table(run.spec, run.options, run.env)
    plan, premise, listing = _plan(run, table)
    if listing is None:
        return _nothing(run, plan.reason, plan.code, instant=_own_commit(run, table))
    missing = tuple(folder.path for folder in listing.missing)
    if not plan.files:
        return replace(_nothing(run, plan.reason, plan.code, instant=_own_commit(run, table)), missing=missing)
    read = tuple(folder.path for folder in listing.folders if folder.files)
    return replace(_ingested(run, table, plan, premise, listing), folders=read, missing=missing)


def _ingested(
    run: IngestContext, table: Table | None, plan: IngestPlan, premise: Premise, listing: SourceListing
) -> JobReport:
    """Read the files of the plan and commit their rows."""
    operation = ingest_of(run.spec).operation
    log.info("table %s: %s, %s bytes", run.spec.table, plan.reason, plan.size_bytes)
    known = _known(run, table)
    box = _dead_letter_box(run, plan)
    with run.reader(listing.storage, plan.files, run.spec, known=known, dead_letters=box) as batch:
        if batch is None or not (batch.rows or batch.bad_records):
            return _nothing(run, "the files hold no rows")
        if table is None:
            table = create_declared_table(run.spec, run.options, run.env, exist_ok=True)
        extra = _extra(run, plan, batch, box)
        extra |= _missing_extra(listing)
        # Other tries whose letters are here by now planned before this commit, and lose to it.
        others = box.others()
        try:
            still = replace(premise, confirm=partial(refuse_changed, listing.storage, plan.files))
            outcome = write_batch(table, batch, operation, extra, still)
        except CommitStateUnknownError:
            raise
        except LakehouseError:
            if batch.bad_records:
                box.empty(box.attempt)
            raise
        if others and isinstance(outcome, Committed):
            _forget(table, box, others)
        return _report(run, outcome, batch)


def _plan(run: IngestContext, table: Table | None) -> tuple[IngestPlan, Premise, SourceListing | None]:
    ingest, interval = ingest_of(run.spec), run.command.interval
    paths = interval_paths(ingest.path, interval, once=ingest.operation != "upsert")
    loaded = None if table is None else table.refresh()
    committed, source = None, None
    marks: dict[str, str | None] = {}
    checkpoint = Checkpoint()
    if interval is not None:
        marks[INTERVAL] = interval_text(interval)
        committed = None if loaded is None else latest_commit(loaded, INTERVAL, marks[INTERVAL])
    if not ingest.is_by_interval:
        marks[CHECKPOINT] = None
        source = None if loaded is None else latest_commit(loaded, CHECKPOINT)
    if source is not None:
        checkpoint = Checkpoint.from_json(source[1].extra[CHECKPOINT])
    premise = Premise(
        timeline=Timeline(()) if loaded is None else loaded.timeline,
        marks=marks,
        source=None if source is None else source[0],
    )
    repeat = ingest.replace or run.command.full_refresh
    # Most runs that are repeated end here, before the source is listed.
    listing = None if committed is not None and not repeat else list_source(paths, run.storage_options)
    if listing is not None:
        check_missing(listing.folders, ingest)
    plan = plan_ingest(
        () if listing is None else listing.files,
        checkpoint,
        interval=interval,
        by_interval=ingest.is_by_interval,
        committed_at=None if committed is None else committed[0].requested,
        repeat=ingest.replace,
        full_refresh=run.command.full_refresh,
    )
    return plan, premise, listing


def _forget(table: Table, box: DeadLetterBox, tries: Iterable[str]) -> None:
    """Delete the letters of other tries to ingest the files that were just committed, unless a commit names them."""
    named = {metadata.extra.get(DEAD_LETTERS) for _, metadata in table.commits()}
    for attempt in tries:
        if box.url_of(attempt) not in named and table.commits_with(DEAD_LETTERS, box.url_of(attempt)) is None:
            box.empty(attempt)


def _placed(spec: TableSpec, environ: Mapping[str, str]) -> TableSpec:
    """Return the spec with `location` and `ingest.path` as addresses; placeholders of the interval stay."""
    ingest = ingest_of(spec)
    path = resolve(ingest.path, environ, name="ingest.path")
    return replace(spec, location=location_of(spec, environ), ingest=replace(ingest, path=path))


def _known(run: IngestContext, table: Table | None) -> Known:
    """Return what is known of columns before the files are read."""
    keys = {key: text for key, text in run.options.items() if key not in CREATE_OPTIONS}
    schema = None if table is None else _known_schema(run.spec, table)
    is_stored = table is not None and bool(len(table.schema))
    return Known(policy=parse_options(keys).schema, schema=schema, is_stored=is_stored)


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


def _extra(run: IngestContext, plan: IngestPlan, batch: Batch, box: DeadLetterBox) -> dict[str, str]:
    extra = {FILES: plan.summary(), BAD_RECORDS: str(batch.bad_records)}
    if plan.checkpoint is not None:
        extra[CHECKPOINT] = plan.checkpoint.to_json()
    if plan.interval is not None:
        extra[INTERVAL] = plan.interval
    if batch.bad_records:
        extra[DEAD_LETTERS] = box.url
    if ingest_of(run.spec).format != "parquet" and set(batch.schema.names) != set(run.spec.schema):
        extra[SCHEMA] = schema_to_json(batch.schema)
    if run.command.run_id is not None:
        extra[RUN_ID] = run.command.run_id
    return extra


def _dead_letter_box(run: IngestContext, plan: IngestPlan) -> DeadLetterBox:
    """Return the folder beside the table for exactly these files and this try."""
    location = run.spec.location.rstrip("/")
    is_bucket = "://" in location and "/" not in location.partition("://")[2]
    place = f"{location}/.dead_letters" if is_bucket else f"{location}_dead_letters"
    entries = b"".join(b"%d:%s" % file.entry for file in plan.files)
    digest = hashlib.blake2b(entries, digest_size=6).hexdigest()
    run_name = (plan.interval or run.command.run_id or "run").replace("/", "_")
    name = re.sub(r"[^\w.+=-]", "-", run_name).lstrip(".")
    return DeadLetterBox(storage=run.open(place), folder=f"{name}-{digest}", attempt=run.env.ids.uuid())


def _own_commit(run: IngestContext, table: Table | None) -> str | None:
    """Return the instant that an earlier try of this very run committed before it could report, or None."""
    if table is None or run.command.run_id is None:
        return None
    # Of a run as old as the archive the checkpoint says what it did.
    instant = table.commits_with(RUN_ID, run.command.run_id, archived=False)
    return None if instant is None else instant.requested


def _nothing(
    run: IngestContext,
    reason: str,
    code: JobReason = JobReason.NO_NEW_DATA,
    *,
    bad_records: int = 0,
    instant: str | None = None,
) -> JobReport:
    log.info("table %s: nothing to do: %s", run.spec.table, reason)
    return JobReport(
        status=JobStatus.NOTHING_TO_DO,
        table=run.spec.table,
        bad_records=bad_records,
        instant=instant,
        reason=reason,
        code=code,
    )


def _missing_extra(listing: SourceListing) -> dict[str, str]:
    """Return what the commit says of folders that were skipped: their number, and the first of them."""
    paths = [folder.path for folder in listing.missing]
    value = {"count": len(paths), "names": paths[:_NAMED]}
    return {MISSING: json.dumps(value, ensure_ascii=False)} if paths else {}


def _report(run: IngestContext, outcome: Committed | NothingToDo, batch: Batch) -> JobReport:
    if isinstance(outcome, NothingToDo):
        nothing = _nothing(run, outcome.reason, bad_records=batch.bad_records)
        return replace(nothing, late_rows_dropped=outcome.late_rows_dropped)
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
        late_rows_dropped=outcome.late_rows_dropped,
        conflicts=outcome.conflicts,
        drift=outcome.drift,
    )
    log.info("table %s: commit %s, %s rows in %s files", report.table, report.instant, report.rows, report.files)
    for one in report.drift:
        log.warning("table %s: schema drift: %s", report.table, one)
    return report
