"""Run one ingestion: plan, read, write, report.

    open      open the table, if it exists; its newest commits contain the checkpoint and the data intervals
    plan      find the source's records after the checkpoint, or in the data interval
    read      turn the records into rows and bad records; too many bad records end the run
    make      apply the spec's transform (`lakehouse.platform.ingest.transform`)
    create    create the table, if it does not exist
    write     commit rows, checkpoint, interval and counts together
    clean up  delete the dead letters of failed attempts

A run that is killed before its commit leaves no checkpoint, so the next run plans the same records again.

Two runs may overlap, for example a retry and a first attempt that is still active. Each run commits only if its
precondition holds, which is checked under the table lock: no other commit has moved the checkpoint or written the
interval, and the commit with the checkpoint was not rolled back. The run that loses the conflict plans again, and
usually has nothing left to do. Runs of different intervals do not conflict.

The source may change between plan and commit; it is then unknown which version was read. The source is therefore
verified before the commit, and the run plans again if it changed.

Dead letters are written next to the table, before the commit, in a folder per attempt; the commit records the folder.
The dead letters of a failed attempt are deleted after a later attempt commits the same plan. If that attempt is killed
before the deletion, they stay, and no commit refers to them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lakehouse.core.engine.adapters import frame_schema
from lakehouse.core.env import Env
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.commits import latest_commit
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.system.ids import RandomIds
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.source_batch import SourceBatch
from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, ConflictError, LakehouseError, SourceChangedError, UserError
from lakehouse.model.instant import Timeline
from lakehouse.platform.catalog.declared_tables import (
    create_declared_table,
    open_declared_table,
    require_declared_name,
)
from lakehouse.platform.ingest.commit_reports import (
    BAD_RECORDS,
    CHECKPOINT,
    INTERVAL,
    RUN_ID,
    input_key,
    newest_commit,
    unread_fields,
    with_own_commit,
)
from lakehouse.platform.ingest.databases import DatabaseRun, SparkTasks, run_databases
from lakehouse.platform.ingest.deduplicate import deduplicated
from lakehouse.platform.ingest.lineage import view_lineage
from lakehouse.platform.ingest.transform import transformed
from lakehouse.platform.sources.databases.server import DatabaseServer
from lakehouse.platform.sources.databases.servers import open_server
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.registry import open_source
from lakehouse.platform.sources.source import SCHEMA, Batch, Interval, KnownColumns, Source, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.spark.deleted_rows import clear_deleted
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import (
    Schema,
    Session,
    ingest_settings,
    schema_from_json,
    schema_of_arrow,
    schema_to_json,
    storage_options_of,
)
from lakehouse.spec.contracts.job import IngestReport, JobReason, JobStatus, interval_text
from lakehouse.spec.contracts.lineage import is_lineage_wanted
from lakehouse.spec.job_command import IngestCommand, ReplayCommand
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)

#: More keys in a commit's extra metadata; each source adds further keys.
DEAD_LETTERS = "lakehouse.ingest.dead_letters"
#: The folders whose dead letters the commit has replayed; each folder is also a key, `<REPLAYED>/<folder>`.
REPLAYED = "lakehouse.ingest.replayed"

#: Keys per table input, because another input may commit in between.
_OF_INPUT = (CHECKPOINT, INTERVAL, RUN_ID, SCHEMA, DEAD_LETTERS)

_COMBINE = "hoodie.combine.before.insert"
#: The maximum number of plans per run if other writers commit first or the source changes.
MAX_PLANS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestContext:
    """The values that a run works with.

    Attributes:
        source: The source of the rows.
        spec: The spec of the table, with its location as an absolute path or URL.
        command: The command with the data interval and the run id.
        options: The write options.
        env: The environment of the table.
        open: Opens the storage of the dead letters.
        tables: The tables that stay open between runs.
    """

    source: Source[Any]
    spec: TableSpec
    command: IngestCommand | ReplayCommand
    options: Mapping[str, str]
    env: Env
    open: Callable[[str], Storage]
    tables: OpenedTables = field(default_factory=OpenedTables)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """The input of a run, and the precondition for its commit.

    `source` is None if a commit already contains the data interval; `reason` is the message about it. `previous` is the
    extra metadata of the commit with the checkpoint, and `newest` the instant of the ingestion's newest commit.
    """

    reason: str
    precondition: Precondition
    interval: str | None = None
    source: SourcePlan | None = None
    previous: Mapping[str, str] = field(default_factory=dict)
    newest: str | None = None


# parameters: the run's parameters, and tables that stay open in its process
def run_ingest(
    session: Session,
    spec: TableSpec,
    command: IngestCommand,
    *,
    environ: Mapping[str, str],
    storage_options: Mapping[str, str] | None = None,
    tables: OpenedTables | None = None,
) -> IngestReport:
    """Ingest the source's records that are missing in the table, and report the result.

    Args:
        session: The Spark session.
        spec: The spec of the table.
        command: The command with the data interval and the run id.
        environ: Environment variables: values of `${VAR}` in the spec, and `LAKEHOUSE_HOME`.
        storage_options: Storage options in addition to the session's `spark.hadoop.fs.*`.
        tables: The tables that stay open between the runs of this process; None if it has one run.

    Raises:
        UserError: The input is wrong; nothing was committed.
        RetryableError: A fault that may pass; nothing was committed.
    """
    access = {**storage_options_of(session), **(storage_options or {})}
    placed = replace(spec, location=location_of(spec, environ))
    tables = tables or OpenedTables()
    if ingest_of(placed).database is not None:
        server = open_server(placed, environ)
        return run_database(placed, command, server, SparkTasks(session=session), access=access, tables=tables)
    context = SourceContext(session=session, spec=placed, environ=environ, storage_options=access, tables=tables)
    run = ingest_context(context, command, open_source(context))
    report = timed(run, session, ingest)
    return replace(report, interval=command.interval_name)


def ingest_context(
    context: SourceContext, command: IngestCommand | ReplayCommand, source: Source[Any]
) -> IngestContext:
    """Return the values that a run of this source works with."""
    spec, access = context.spec, context.storage_options
    return IngestContext(
        source=source,
        spec=spec,
        command=command,
        options={**spec.write_options(), **command.options},
        env=context.tables.env(spec.location, access),
        open=partial(open_storage, options=access),
        tables=context.tables,
    )


def timed(run: IngestContext, session: Session, work: Callable[[IngestContext], IngestReport]) -> IngestReport:
    """Do the work of a run with the session in UTC, and return its report with the duration."""
    clock = run.env.clock
    started_ms = clock.now_ms()
    # Readers add the step to their errors; a lost process can also cause errors elsewhere.
    with spark_failures(f"the ingestion into {run.spec.table}"), ingest_settings(session):
        report = work(run)
    return replace(report, seconds=(clock.now_ms() - started_ms) / 1000)


# parameters: the run's parameters; the server is the source
def run_database(
    spec: TableSpec,
    command: IngestCommand,
    server: DatabaseServer,
    tasks: SparkTasks,
    *,
    access: Mapping[str, str],
    tables: OpenedTables | None = None,
) -> IngestReport:
    """Run an ingestion from a database with one or several tables.

    Args:
        spec: The spec, with its location as an absolute path or URL.
        command: The command.
        server: The server, which is closed at the end.
        tasks: The Spark session and the task runner.
        access: Storage options.
        tables: The tables that stay open between the runs of this process; None if it has one run.
    """
    opened = tables or OpenedTables()
    settings = ingest_of(spec).database
    assert settings is not None, "the caller looked"
    if command.interval is not None:
        raise UserError(
            f"{', '.join(settings.tables)} is read from the position of the last commit, and this run has a data "
            "interval. Remove --interval-start and --interval-end",
            table=spec.table,
        )
    clock = SystemClock()
    started_ms = clock.now_ms()

    def commit(target: TableSpec, source: Source[Any]) -> IngestReport:
        return ingest(
            IngestContext(
                source=source,
                spec=target,
                command=command,
                options={**target.write_options(), **command.options},
                env=opened.env(target.location, access),
                open=partial(open_storage, options=access),
                tables=opened,
            )
        )

    with spark_failures(f"the ingestion into {spec.table}"), ingest_settings(tasks.session):
        report = run_databases(
            DatabaseRun(
                tasks=tasks,
                spec=spec,
                settings=settings,
                command=command,
                server=server,
                attempt=command.run_id or RandomIds().uuid(),
                access=access,
                tables=opened,
                commit=commit,
            )
        )
    return replace(report, seconds=(clock.now_ms() - started_ms) / 1000)


def write_batch(
    table: Table, batch: Batch, operation: str, extra: Mapping[str, str], precondition: Precondition
) -> Committed | NothingToDo:
    """Write the rows in one commit with the extra metadata, if the precondition holds.

    The spec sets the operation; rows that replace the table overwrite it.
    """
    verbs = {"upsert": table.upsert, "insert": table.insert, "bulk_insert": table.bulk_insert}
    if batch.replaces:
        # An overwrite does not look up keys, so equal keys of the batch are combined like in an upsert.
        return table.insert_overwrite_table(
            batch.frame,
            commit_metadata=extra,
            allow_empty=True,
            precondition=precondition,
            options={_COMBINE: "true"},
        )
    # A commit without rows still records the checkpoint.
    return verbs[operation](
        SourceBatch(batch.frame, columns=batch.columns, deletes_yield=batch.deletes_yield),
        commit_metadata=extra,
        allow_empty=True,
        precondition=precondition,
    )


def ingest(run: IngestContext) -> IngestReport:
    """Run once; plan again if another writer committed first or the source changed while it was read."""
    for number in range(1, MAX_PLANS + 1):
        try:
            return _run_once(run)
        except (ConflictError, SourceChangedError) as error:
            if number == MAX_PLANS:
                raise
            log.warning("table %s: %s; planning again", run.spec.table, error)
    raise AssertionError("the last plan returns or raises")


def skip_reason(interval: Interval | None, committed_at: str | None, *, repeat: bool) -> str:
    """Return why a run has nothing to do for its data interval; empty if it has to check the source.

    `committed_at` is the instant whose commit has this interval, None if there is no such commit.
    """
    if interval is None or committed_at is None or repeat:
        return ""
    return f"interval {interval_text(interval)} is in commit {committed_at} already"


def _run_once(run: IngestContext) -> IngestReport:
    table = open_declared_table(run.spec, run.options, run.env, run.tables)
    plan = _plan(run, table)
    if plan.source is None or not plan.source.units:
        return _idle(run, table, plan)
    report = finished(run, table, plan.newest, ingested(run, table, plan, plan.source))
    warning = "; ".join((*((plan.source.warning,) if plan.source.warning else ()), *unread_fields(report)))
    if warning:
        log.warning("table %s: %s", run.spec.table, warning)
    return replace(report, folders=plan.source.names, missing=plan.source.missing, warning=warning)


def idle_report(run: IngestContext) -> IngestReport | None:
    """Return the report if a run has nothing to read, else None. Only plans, so it needs no session."""
    table = open_declared_table(run.spec, run.options, run.env, run.tables)
    plan = _plan(run, table)
    return _idle(run, table, plan) if plan.source is None or not plan.source.units else None


def _idle(run: IngestContext, table: Table | None, plan: IngestPlan) -> IngestReport:
    if plan.source is None:
        return finished(run, table, plan.newest, nothing_to_do(run, plan.reason, JobReason.INTERVAL_INGESTED))
    nothing = finished(run, table, plan.newest, nothing_to_do(run, plan.reason))
    return replace(nothing, missing=plan.source.missing, warning=plan.source.warning, lag=plan.source.lag)


def finished(run: IngestContext, table: Table | None, newest: str | None, report: IngestReport) -> IngestReport:
    """Return the report with the commit before the run and, without a commit, the commit of an earlier attempt."""
    return replace(with_own_commit(report, table, run.spec, run.command.run_id), previous=newest)


def ingested(run: IngestContext, table: Table | None, plan: IngestPlan, source_plan: SourcePlan) -> IngestReport:
    """Read the planned records and commit their rows; search for bad records first if the last run had some."""
    log.info("table %s: %s", run.spec.table, plan.reason)
    expects_bad = int(plan.previous.get(BAD_RECORDS, 0)) > 0
    try:
        return _ingested(run, table, plan, source_plan, expects_bad=expects_bad)
    except _RefusedRowsError as error:
        log.info("table %s: the write refused rows, so bad records are set aside first: %s", run.spec.table, error)
        return _ingested(run, table, plan, source_plan, expects_bad=True)


class _RefusedRowsError(Exception):
    """The write refused rows that were not searched for bad records."""


def _ingested(
    run: IngestContext, table: Table | None, plan: IngestPlan, source_plan: SourcePlan, *, expects_bad: bool
) -> IngestReport:
    """Read the planned records and commit their rows.

    Raises _RefusedRowsError if the write refused rows that were not counted; nothing was committed.
    """
    operation = ingest_of(run.spec).operation
    columns = replace(known_columns(run, table), previous=plan.previous)
    box = _dead_letter_box(run, plan, source_plan)
    with (
        run.source.read(source_plan, known=columns, dead_letters=box) as read,
        transformed(read, run.spec, table, box, expects_bad=expects_bad) as rows,
        deduplicated(rows, run.spec, table) as unique,
    ):
        batch = _with_cleared(run.spec, unique)
        if batch is None or not (batch.rows or batch.bad_records or batch.commits_empty):
            return nothing_to_do(run, "the source contains no rows")
        if table is None:
            table = create_declared_table(
                run.spec, run.options, run.env, exist_ok=True, columns=frame_schema(batch.frame)
            )
            require_declared_name(run.spec, table.config)
        extra = _extra(run, plan, source_plan, batch, box)
        # Other attempts that have dead letters now planned before this commit, and will conflict with it.
        others = box.others()
        try:
            precondition = replace(plan.precondition, confirm=partial(run.source.verify, source_plan))
            outcome = write_batch(table, batch, operation, extra, precondition)
        except CommitStateUnknownError:
            raise
        except LakehouseError as error:
            if type(error) is UserError and batch.rows is None:
                raise _RefusedRowsError(str(error)) from error
            if batch.bad_records:
                box.empty(box.attempt)
            raise
        if others and isinstance(outcome, Committed):
            _delete_unnamed_letters(table, box, others, input_key(run.spec, DEAD_LETTERS))
        lag = source_plan.lag if batch.lag is None else batch.lag
        return _traced(run, replace(_report(run, outcome, batch), lag=lag), read)


def _traced(run: IngestContext, report: IngestReport, read: Batch | None) -> IngestReport:
    """Return a commit's report with the transform's lineage, if lineage is enabled."""
    if read is None or report.status is not JobStatus.COMMITTED or not is_lineage_wanted():
        return report
    return replace(report, lineage=view_lineage(ingest_of(run.spec), read))


def _with_cleared(spec: TableSpec, batch: Batch | None) -> Batch | None:
    """Return the batch in which deletes are rows without values, if the spec requires it."""
    if batch is None or ingest_of(spec).on_delete != "clear":
        return batch
    partitions = (column.name for column in spec.partition_by)
    keep = {name.split(".")[0] for name in (*spec.record_key, *partitions, *spec.ordering, *spec.column_groups)}
    # Source columns that are missing in all rows of this batch. Other table columns belong to other sources.
    groups = [names for at, names in spec.column_groups.items() if at in batch.frame.columns]
    owned = {name for names in groups for name in names} if spec.column_groups else {*spec.schema}
    present = {*batch.frame.columns, *keep, DELETED_COLUMN}
    absent = {one.name: one.dataType for one in batch.schema if one.name in owned and one.name not in present}
    columns = batch.columns
    if absent and columns is not None:
        columns = replace(columns, lacks=(*columns.lacks, frozenset(absent)))
    frame = clear_deleted(
        batch.frame,
        keep=keep,
        absent=absent if columns is not None else {},
        group=len(columns.lacks) - 1 if columns is not None else 0,
        delete_field=spec.delete_field,
        delete_marker=spec.delete_marker,
    )
    return replace(batch, frame=frame, columns=columns)


def _plan(run: IngestContext, table: Table | None) -> IngestPlan:
    section, interval = ingest_of(run.spec), run.command.interval
    interval_key, checkpoint_key = input_key(run.spec, INTERVAL), input_key(run.spec, CHECKPOINT)
    loaded = None if table is None else table.refresh()
    committed, checkpoint_commit = None, None
    marks: dict[str, str | None] = {}
    if interval is not None:
        marks[interval_key] = interval_text(interval)
        committed = None if loaded is None else latest_commit(loaded, interval_key, marks[interval_key])
    if not section.is_by_interval:
        marks[checkpoint_key] = None
        checkpoint_commit = None if loaded is None else latest_commit(loaded, checkpoint_key)
    precondition = Precondition(
        timeline=Timeline(()) if loaded is None else loaded.timeline,
        marks=marks,
        source=None if checkpoint_commit is None else checkpoint_commit[0],
    )
    newest = None if loaded is None else newest_commit(loaded, run.spec)
    committed_at = None if committed is None else committed[0].requested
    full_refresh = isinstance(run.command, IngestCommand) and run.command.full_refresh
    # Retried runs usually end here, before the source is listed.
    reason = skip_reason(interval, committed_at, repeat=section.replace or full_refresh)
    if reason:
        return IngestPlan(reason=reason, precondition=precondition, newest=newest)
    previous = {} if checkpoint_commit is None else without_input(run.spec, checkpoint_commit[1].extra)
    source_plan = run.source.plan(previous.get(CHECKPOINT), interval, full_refresh=full_refresh)
    return IngestPlan(
        reason=source_plan.reason,
        precondition=precondition,
        interval=marks.get(interval_key),
        source=source_plan,
        previous=previous,
        newest=newest,
    )


def _delete_unnamed_letters(table: Table, box: DeadLetterBox, attempts: Iterable[str], key: str) -> None:
    """Delete the dead letters of other attempts at the committed plan.

    A folder in a commit's extra metadata under `key` stays.
    """
    named = {metadata.extra.get(key) for _, metadata in table.commits()}
    for attempt in attempts:
        if box.url_of(attempt) not in named and table.commits_with(key, box.url_of(attempt)) is None:
            box.empty(attempt)


def known_columns(run: IngestContext, table: Table | None) -> KnownColumns:
    """Return the columns that are known before the source is read."""
    keys = {key: text for key, text in run.options.items() if key not in CREATE_OPTIONS}
    schema = None if table is None else _known_schema(run.spec, table)
    is_stored = table is not None and bool(len(table.schema))
    return KnownColumns(
        policy=parse_options(keys).schema,
        schema=schema,
        is_stored=is_stored,
        table=schema_of_arrow(table.schema) if table is not None and is_stored else None,
    )


def _known_schema(spec: TableSpec, table: Table) -> Schema | None:
    """Return the columns with which earlier runs read, else the table's columns if the input is stored unchanged.

    A source with declared types, such as Parquet, needs no known columns: new columns are added to the table.
    """
    section = ingest_of(spec)
    if section.source.declares_types:
        return None
    stored = table.last_commit_extra(input_key(spec, SCHEMA))
    if stored is not None:
        return schema_from_json(stored)
    columns = table.schema
    return schema_of_arrow(columns) if len(columns) and not (section.select or section.transform) else None


def _extra(
    run: IngestContext, plan: IngestPlan, source_plan: SourcePlan, batch: Batch, box: DeadLetterBox
) -> dict[str, str]:
    """Return the extra metadata of the commit."""
    extra = {**source_plan.metadata, **batch.metadata, BAD_RECORDS: str(batch.bad_records)}
    checkpoint = source_plan.checkpoint if batch.checkpoint is None else batch.checkpoint
    if checkpoint is not None:
        extra[CHECKPOINT] = checkpoint
    if plan.interval is not None:
        extra[INTERVAL] = plan.interval
    if batch.bad_records:
        extra[DEAD_LETTERS] = box.url
    has_types = ingest_of(run.spec).source.declares_types
    if not has_types and set(batch.schema.names) != set(run.spec.schema):
        extra[SCHEMA] = schema_to_json(batch.schema)
    if run.command.run_id is not None:
        extra[RUN_ID] = run.command.run_id
    return {input_key(run.spec, name) if name in _OF_INPUT else name: text for name, text in extra.items()}


def without_input(spec: TableSpec, extra: Mapping[str, str]) -> dict[str, str]:
    """Return a commit's extra metadata under the names that sources use."""
    return {**extra, **{name: extra[key] for name in _OF_INPUT if (key := input_key(spec, name)) in extra}}


def _dead_letter_box(run: IngestContext, plan: IngestPlan, source_plan: SourcePlan) -> DeadLetterBox:
    """Return the folder next to the table for exactly these records and this attempt."""
    location = run.spec.location.rstrip("/")
    is_bucket = "://" in location and "/" not in location.partition("://")[2]
    folder = f"{location}/.dead_letters" if is_bucket else f"{location}_dead_letters"
    run_name = (plan.interval or run.command.run_id or "run").replace("/", "_")
    name = re.sub(r"[^\w.+=-]", "-", f"{run.spec.input}-{run_name}" if run.spec.input else run_name).lstrip(".")
    return DeadLetterBox(
        storage=run.open(folder), folder=f"{name}-{source_plan.fingerprint}", attempt=run.env.ids.uuid()
    )


def nothing_to_do(
    run: IngestContext,
    reason: str,
    code: JobReason = JobReason.NO_NEW_DATA,
    *,
    bad_records: int = 0,
) -> IngestReport:
    """Return the report of a run that commits nothing."""
    log.info("table %s: nothing to do: %s", run.spec.table, reason)
    return IngestReport(
        status=JobStatus.NOTHING_TO_DO,
        table=run.spec.table,
        bad_records=bad_records,
        reason=reason,
        code=code,
    )


def _report(run: IngestContext, outcome: Committed | NothingToDo, batch: Batch) -> IngestReport:
    if isinstance(outcome, NothingToDo):
        nothing = nothing_to_do(run, outcome.reason, bad_records=batch.bad_records)
        duplicates = batch.duplicates + outcome.duplicates_dropped
        return replace(nothing, late_rows_dropped=outcome.late_rows_dropped, duplicates_dropped=duplicates)
    stats = outcome.metadata.stats
    report = IngestReport(
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
        duplicates_dropped=batch.duplicates + outcome.duplicates_dropped,
        conflicts=outcome.conflicts,
        drift=outcome.drift,
    )
    log.info("table %s: commit %s, %s rows in %s files", report.table, report.instant, report.rows, report.files)
    for one in report.drift:
        log.warning("table %s: schema drift: %s", report.table, one)
    return report
