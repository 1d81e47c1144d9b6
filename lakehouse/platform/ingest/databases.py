"""Run an ingestion from a database: passes over all tables of a spec, one commit per table and pass.

    targets   list the source tables that the spec selects; each gets a separate table spec
    plan      open each table; its newest commit contains the position and the loaded part
    stage     read chunks of all tables, then the log once for all of them
    commit    apply the window to each table, as `lakehouse.platform.ingest.run` does for all sources

A run makes passes until all snapshots are complete and the log is read to its end at the time of the last pass. A
killed run leaves the commits of its finished tables; every table continues from its checkpoint. An error of one table
does not prevent commits to the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.env import Env
from lakehouse.core.operations.load.commits import latest_commit
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError, OpenTransactionsError, SnapshotNeededError, UserError
from lakehouse.model.merge import PartialMode
from lakehouse.platform.catalog.declared_tables import open_declared_table, require_declared_name
from lakehouse.platform.ingest.commit_reports import newest_commit, with_own_commit
from lakehouse.platform.ingest.database_reports import failed_report, joined_report
from lakehouse.platform.sources.databases.checkpoint import DatabaseCheckpoint
from lakehouse.platform.sources.databases.keys import changed_keys, require_unique, target_problems
from lakehouse.platform.sources.databases.plan import DatabasePlan, first_state, is_replaced, key_of, next_state
from lakehouse.platform.sources.databases.server import (
    Chunk,
    DatabaseServer,
    LogPosition,
    SchemaEvent,
    SourceColumn,
    SourceTable,
)
from lakehouse.platform.sources.databases.source import IDLE_BYTES, Marker, StagedSource, Window
from lakehouse.platform.sources.databases.staging import FETCHED, KEYS, ChunkRead, Runner, Staged, Stager, StagingArea
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spark.database_rows import run_tasks
from lakehouse.spark.sources import Frame, Session
from lakehouse.spec.contracts.job import (
    KEPT,
    IngestReport,
    JobReason,
    JobStatus,
    SourceLag,
    combined,
)
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.database_source import METADATA_PREFIX, DatabaseSettings
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)

#: The number of rows per key chunk.
_KEY_ROWS = 2_000_000
_MOST_KEY_CHUNKS = 10_000
#: Reads of rows with missing values in changes: maximum attempts, maximum rows, rows per read.
_MOST_READS, _MOST_KEYS, _READ_KEYS = 4, 200_000, 10_000
#: The record key of appended rows: their log position.
_APPEND_KEY = f"{METADATA_PREFIX}position"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTasks:
    """The Spark session of a run; `run` runs a function in tasks (see `Runner`); None means Spark tasks."""

    session: Session
    run: Runner | None = None

    @property
    def runner(self) -> Runner:
        """Runs tasks."""
        return self.run or partial(run_tasks, self.session)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRun:
    """The values that a run works with.

    Attributes:
        tasks: The Spark session and the task runner.
        spec: The spec, with its location as an absolute path or URL.
        settings: The settings of the source.
        command: The command.
        server: The server.
        attempt: The id of the run; all attempts of an Airflow run share it.
        access: Storage options.
        tables: The tables that stay open between runs.
        commit: Commits the rows of a source into the table of a spec.
    """

    tasks: SparkTasks
    spec: TableSpec
    settings: DatabaseSettings
    command: IngestCommand
    server: DatabaseServer
    attempt: str
    access: Mapping[str, str]
    tables: OpenedTables
    commit: Callable[[TableSpec, StagedSource], IngestReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A source table and its target table.

    Attributes:
        source: The source table.
        spec: The spec of the target table.
        key: The key columns; empty to append.
        exists: Whether the source table exists.
        table: The target table; None if it does not exist yet.
        checkpoint: The checkpoint of its newest commit; None if there is none.
        lacks_log: Whether the log did not contain the table's changes until now.
    """

    source: SourceTable
    spec: TableSpec
    key: tuple[str, ...]
    exists: bool
    table: Table | None = None
    checkpoint: str | None = None
    lacks_log: bool = False

    @property
    def known(self) -> DatabaseCheckpoint | None:
        """The checkpoint of the newest commit."""
        return None if self.checkpoint is None else DatabaseCheckpoint.from_json(self.checkpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """State of the log and the tables in a pass, in addition to its plans.

    Attributes:
        before: The end of the log before the plan.
        after: The end of the log after the reads.
        tables: The tables after the reads.
        is_limited: Whether the window ends before the end of the log.
    """

    before: LogPosition
    after: LogPosition
    tables: Mapping[str, SourceTable]
    is_limited: bool


def run_databases(run: DatabaseRun) -> IngestReport:
    """Run passes until every table equals the source; return one report for all passes."""
    with closing(run.server):
        clock = Env(storage=open_storage(run.spec.location, run.access)).clock
        started, passes = clock.now_ms(), 0
        reports: dict[str, list[IngestReport]] = {}
        while True:
            passes += 1
            done, made = _pass(run, passes, clock.now_ms())
            for report in made:
                reports.setdefault(report.table, []).append(report)
            failed = any(report.status is JobStatus.FAILED for report in made)
            if done or failed or _is_over(run.settings, clock.now_ms() - started):
                break
        unconfirmed = _kept(run)
    joined = map(joined_report, reports.values())
    tables = [replace(report, lag=(*report.lag, *unconfirmed)) for report in joined]
    if not tables:
        patterns = ", ".join(run.settings.tables)
        raise UserError(
            f"no table of the source matches {patterns}, or the user of the connection may not read any. Create the "
            "table, correct ingest.tables, or grant SELECT",
            table=run.spec.table,
        )
    if not run.settings.into:
        return tables[0]
    return replace(combined(tables), table=run.spec.table)


def _pass(run: DatabaseRun, number: int, now_ms: int) -> tuple[bool, list[IngestReport]]:
    """Read and commit once; return whether the run is complete, and the reports of the tables."""
    begun = run.server.log_end()
    targets, failures = _targets(run)
    if not targets:
        return True, failures
    published = [replace(one.source, key=one.key) for one in targets if one.exists]
    if number == 1:
        run.server.check(published)
    fresh = run.server.prepare(published, resumes=any(_resumes(run, one) for one in targets))
    targets, starts, waiting = _starts(run, targets, fresh)
    failures += waiting
    if not targets:
        return True, failures
    end = run.server.log_end()
    start = run.server.earliest(tuple(starts.values()))
    limited = run.server.limited(start, end, run.settings.max_log_bytes)
    catches_up = limited.order < end.order
    plans = [_plan(run, one, starts[one.source.name], chunks=not catches_up) for one in targets]
    if catches_up:
        plans = [replace(one, is_ahead=_is_ahead(run, starts[one.table.name], limited)) for one in plans]
    is_idle = all(not plan.units for plan in plans) and start.order == end.order
    if is_idle:
        return True, [*failures, *(_nothing(run, one) for one in targets)]
    staging = open_storage(f"{run.spec.location.rstrip('/')}_staging", run.access)
    area = StagingArea(storage=staging, longest_s=ingest_of(run.spec).timeout_s)
    with area.folder(now_ms) as folder:
        stager = Stager(
            reads=run.server.reads,
            storage=area.storage,
            folder=folder,
            run=run.tasks.runner,
            log_end=run.server.log_end,
        )
        work = [*zip(targets, plans, strict=True)]
        staged = _with_lacking_rows(
            run, stager, work, _staged(stager, plans, start, limited if catches_up else None), begun
        )
        staged = replace(staged, events=(*staged.events, *_dropped(work, staged.end)))
        tables = run.server.describe([plan.table.name for plan in plans])
        ends = Ends(before=begun, after=run.server.log_end(), tables=tables, is_limited=catches_up)
        reports = [_committed(run, target, plan, staged, ends) for target, plan in work]
    _confirm(run, targets, reports, staged.end)
    return not catches_up and all(_is_done(plan, staged) for plan in plans), [*failures, *reports]


def _is_ahead(run: DatabaseRun, start: LogPosition, end: LogPosition) -> bool:
    """Return whether the log of a table begins behind the end of a window."""
    return run.server.earliest((end, start)).text == end.text


def _is_done(plan: DatabasePlan, staged: Staged) -> bool:
    renamed = any(one.table == plan.table.name and one.kind == "rename" for one in staged.events)
    return (plan.state.is_complete or plan.completes) and not renamed


def _targets(run: DatabaseRun) -> tuple[list[Target], list[IngestReport]]:
    """Return the tables in the spec, and reports for tables that cannot be read."""
    names = [name for name in run.server.tables() if run.settings.selects(name)]
    if not run.settings.into and not names:
        # The table may have been dropped. The log then contains the DROP statement.
        names = list(run.settings.tables)
    described, problems = run.server.describe(names), target_problems(run.settings, names)
    targets: list[Target] = []
    failed: list[IngestReport] = []
    for name in names:
        target = target_spec(run.spec, run.settings, name)
        try:
            if name in problems:
                raise problems[name]
            planned = _target(run, target, name, described.get(name))
            if planned is not None:
                targets.append(planned)
        except LakehouseError as error:
            if not run.settings.into:
                raise
            failed.append(failed_report(target, error))
    return targets, failed


def _starts(
    run: DatabaseRun, targets: Sequence[Target], fresh: frozenset[str]
) -> tuple[list[Target], dict[str, LogPosition], list[IngestReport]]:
    """Return the tables to read, the start of their log, and reports for tables that have to be read later."""
    # This run, or a concurrent run, may have published tables since they were described.
    tables = run.server.describe([one.source.name for one in targets])
    readable: list[Target] = []
    starts: dict[str, LogPosition] = {}
    failed: list[IngestReport] = []
    for one in targets:
        name = one.source.name
        target = replace(one, source=tables.get(name, one.source), lacks_log=name in fresh)
        try:
            starts[name] = _start(run, target)
            readable.append(target)
        except OpenTransactionsError as error:
            if not run.settings.into:
                raise
            failed.append(failed_report(target.spec, error))
    return readable, starts, failed


def target_spec(spec: TableSpec, settings: DatabaseSettings, name: str) -> TableSpec:
    """Return the spec of a source table's target; its record key is not set yet."""
    if not settings.into:
        return spec
    table = settings.target_of(name)
    return replace(spec, table=table, location=f"{spec.location.rstrip('/')}/{table}")


def written_spec(
    spec: TableSpec, table: str, *, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> TableSpec:
    """Return the spec of a table that a template run wrote: with its source's key, and without an `ingest` section."""
    target = replace(spec, table=table, location=f"{spec.location.rstrip('/')}/{table}", ingest=None)
    table_of_target = Table.open(location_of(target, environ), storage_options=storage_options)
    return replace(target, record_key=table_of_target.config.keys.record_key_fields)


def _target(run: DatabaseRun, spec: TableSpec, name: str, described: SourceTable | None) -> Target | None:
    source = described or SourceTable(name=name, columns=(), key=())
    key: tuple[str, ...] = ()
    if described is not None:
        declared = () if spec.record_key == (_APPEND_KEY,) else spec.record_key
        key = key_of(described, declared, run.settings)
        if not key:
            _check_append(run.settings, name)
        spec = replace(spec, record_key=key or (_APPEND_KEY,))
    env = run.tables.env(spec.location, run.access)
    options = {**spec.write_options(), **run.command.options}
    with changed_keys(described, spec, run.settings):
        is_there = described is not None
        table = open_declared_table(spec, options, env, run.tables) if is_there else _existing(spec, options, env)
    if table is None:
        new = _filling(spec) if run.server.reads.omits_unchanged else spec
        return None if described is None else Target(source=source, spec=new, key=key, exists=True)
    spec = replace(spec, record_key=table.config.keys.record_key_fields)
    if described is None:
        key = () if spec.record_key == (_APPEND_KEY,) else spec.record_key
        source = SourceTable(name=name, columns=_columns_of(table), key=key)
    commit = latest_commit(table.refresh(), "lakehouse.ingest.checkpoint")
    checkpoint = None if commit is None else commit[1].extra["lakehouse.ingest.checkpoint"]
    return Target(source=source, spec=spec, key=key, exists=described is not None, table=table, checkpoint=checkpoint)


def _filling(spec: TableSpec) -> TableSpec:
    """Return the spec of a new table that keeps stored values in place of placeholders."""
    if spec.partial_update or spec.merger or spec.column_groups:
        return spec
    return replace(spec, partial_update=PartialMode.FILL_UNAVAILABLE)


def _columns_of(table: Table) -> tuple[SourceColumn, ...]:
    """Return the columns of a target, for changes of a source table that was dropped later."""
    own = [column for column in table.schema if not column.name.startswith(("_hoodie_", METADATA_PREFIX))]
    return tuple(SourceColumn(name=column.name, kind="", type=column.type) for column in own)


def _existing(spec: TableSpec, options: Mapping[str, str], env: Env) -> Table | None:
    """Return the target of a dropped source table; None if there is none."""
    if not env.storage.list_dir(".hoodie")[0]:
        return None
    table = Table.open(spec.location, options={**spec.call_options()}, allowed_functions=spec.functions, env=env)
    require_declared_name(spec, table.config)
    return table


def _check_append(settings: DatabaseSettings, name: str) -> None:
    if "position" not in settings.metadata:
        raise UserError(
            f"table {name} has no key, so its rows are appended: write 'metadata: [position]' in ingest, which makes "
            "the place in the log the key of a row",
            table=name,
        )


def _start(run: DatabaseRun, target: Target) -> LogPosition:
    """Return the start position in a table's log; a new snapshot does not need the log since the last commit."""
    last, name = target.known, target.source.name
    start = run.server.resumed(last.position) if last is not None and _resumes(run, target) else None
    is_new = last is None or target.lacks_log or is_replaced(last, target.source)
    if target.exists and is_new:
        run.server.await_writers(name)
        start = None
    return start or run.server.low_watermark(name)


def _resumes(run: DatabaseRun, target: Target) -> bool:
    """Return whether a table's log is read from the position in its newest commit.

    The log before a new snapshot may contain the event that caused the new snapshot.
    """
    last = target.known
    return last is not None and not (_asks_snapshot(run, target) and last.resnapshot != run.attempt)


def _plan(run: DatabaseRun, target: Target, start: LogPosition, *, chunks: bool) -> DatabasePlan:
    """Plan one commit of a table; without `chunks` it reads the log only."""
    last = target.known
    resnapshot = run.attempt if _asks_snapshot(run, target) else ""
    state = _next_state(run, target, start, resnapshot)
    reads: Sequence[Chunk] = ()
    keys: Sequence[Chunk] = ()
    is_wanted = target.exists and (bool(target.key) or run.settings.snapshot != "never")
    if not state.is_complete and chunks and is_wanted:
        reads = _chunks(run, target, state)
    elif not state.is_complete and not target.exists:
        state = replace(state, is_complete=True, loaded=None, purges=False)
    if reads and reads[-1].upto is None and state.purges and target.key:
        keys = run.server.chunks(target.source, target.key, None, rows=_KEY_ROWS, most=_MOST_KEY_CHUNKS)
    return DatabasePlan(
        # A new start is committed, even if nothing is read: the log before it must not be read again.
        units=len(reads) + 1 if reads or last is None or last.resnapshot != state.resnapshot else 0,
        reason=f"{len(reads)} chunks of {target.source.name} and the log from {start.text} will be read",
        fingerprint=f"{start.order:x}",
        names=(target.source.name,),
        table=target.source,
        key=target.key,
        state=state,
        previous=target.checkpoint,
        chunks=tuple(reads),
        keys=tuple(keys),
        exists=target.exists,
        waits=not state.is_complete and not chunks and is_wanted,
    )


def _next_state(run: DatabaseRun, target: Target, start: LogPosition, resnapshot: str) -> DatabaseCheckpoint:
    """Return the state before the reads of a pass; raise UserError if the commits are from another source table."""
    last = target.known
    if last is None:
        return first_state(target.source, start, run.settings, resnapshot)
    if last.table != target.source.name:
        raise UserError(
            f"table {target.spec.table} was read from {last.table}, and the spec says {target.source.name}. Correct "
            "the spec, or use a new target table",
            table=target.spec.table,
        )
    return next_state(
        target.source, last, start, resnapshot=resnapshot, exists=target.exists, lacks_log=target.lacks_log
    )


def _chunks(run: DatabaseRun, target: Target, state: DatabaseCheckpoint) -> Sequence[Chunk]:
    """Return the parts of the snapshot that the next commit reads: key ranges, or the whole table if it has no key."""
    if not target.key:
        return (Chunk(),)
    rows, most = run.settings.chunk_rows, run.settings.max_chunks
    return run.server.chunks(target.source, target.key, state.loaded, rows=rows, most=most)


def _asks_snapshot(run: DatabaseRun, target: Target) -> bool:
    return run.command.full_refresh or target.source.name in run.command.resnapshot


def _staged(stager: Stager, plans: Sequence[DatabasePlan], start: LogPosition, end: LogPosition | None) -> Staged:
    reads = [ChunkRead(table=plan.table, key=plan.key, chunk=chunk) for plan in plans for chunk in plan.chunks]
    for plan in plans:
        columns = tuple(column for column in plan.table.columns if column.name in plan.key)
        narrow = replace(plan.table, columns=columns)
        reads += [ChunkRead(table=narrow, key=plan.key, chunk=chunk, kind=KEYS) for chunk in plan.keys]
    return stager.stage(reads, start, _keyed(plans), end)


def _keyed(plans: Sequence[DatabasePlan]) -> dict[str, SourceTable]:
    return {plan.table.name: plan.read_table for plan in plans}


def _with_lacking_rows(
    run: DatabaseRun, stager: Stager, work: Sequence[tuple[Target, DatabasePlan]], staged: Staged, begun: LogPosition
) -> Staged:
    """Read rows whose changes lack values, and the log up to these reads, until no change lacks a value.

    A row that is read now may be newer than the end of the window, so the window is extended to an end after the read.
    In the longer window, the last change of a key contains all values, or the row provides them: a value that no later
    change contains is as in the row that was read.

    If keys are changed all the time, the last reads are not followed by a longer window. Their values may then be newer
    than its end, until the next window, which contains the changes in between. A row that such a read does not find was
    deleted after the end; the next window contains its delete, and this window leaves the row out.
    """
    for number in range(_MOST_READS):
        reads: list[ChunkRead] = []
        for target, plan in work:
            ends = Ends(before=begun, after=staged.end, tables={}, is_limited=False)
            name = plan.table.name
            if name in staged.failures:
                continue
            try:
                keys = _source(run, target, plan, staged, ends).unknown_keys(_MOST_KEYS)
            except SnapshotNeededError as error:
                staged = replace(staged, failures={**staged.failures, name: error})
                continue
            portions = [tuple(keys[at : at + _READ_KEYS]) for at in range(0, len(keys), _READ_KEYS)]
            reads += [
                ChunkRead(table=plan.table, key=plan.key, chunk=Chunk(keys=portion), kind=FETCHED)
                for portion in portions
            ]
        if not reads:
            return staged
        log.info("rows are read again, because changes lack their values: %d reads", len(reads))
        is_last = number == _MOST_READS - 1
        going_on = [plan for _, plan in work if plan.table.name not in staged.failures]
        staged = stager.extended(staged, reads, {} if is_last else _keyed(going_on))
    return staged


def _source(run: DatabaseRun, target: Target, plan: DatabasePlan, staged: Staged, ends: Ends) -> StagedSource:
    """Return the source for one table's window."""
    read = run.server.log_bytes(plan.state.position, staged.end)
    # The plan has units if the window may contain changes of the table; whether it does is known only now.
    ready = replace(plan, units=max(1, plan.units))
    behind = run.server.log_bytes(staged.end, ends.after)
    window = Window(
        plan=ready,
        staged=staged,
        # Otherwise the next pass would reread a window that ends before the end of the log.
        is_far=read >= IDLE_BYTES or ends.is_limited,
        lag={
            "bytes": behind,
            "seconds": max(0, (ends.after.time_ms - staged.end.time_ms) // 1000) if behind else 0,
        },
        kinds=ends.tables[plan.table.name].kinds if plan.table.name in ends.tables else {},
        begun=ends.before,
        marker=_marker(run, target, plan),
    )
    return StagedSource(
        session=run.tasks.session,
        settings=run.settings,
        window=window,
        select=ingest_of(run.spec).select,
        allowed=ingest_of(run.spec).max_bad_records,
        stored=partial(_stored, run.tasks.session, target.table) if target.table is not None else None,
    )


def _marker(run: DatabaseRun, target: Target, plan: DatabasePlan) -> Marker:
    """Return how the table keeps stored values that are missing in changes.

    It contains all source rows only after its snapshot; expressions in the spec would use a placeholder as input.
    """
    last = target.known
    is_whole = last is not None and last.is_complete and plan.state.is_complete and run.settings.snapshot != "never"
    rule = None if target.table is None else target.table.config.merge_rule
    if rule is None or rule.partial is not PartialMode.FILL_UNAVAILABLE or not is_whole or ingest_of(run.spec).select:
        return Marker()
    places = (column.name for column in target.spec.partition_by)
    return Marker(text=rule.unavailable, needed=frozenset({*places, *rule.ordering}))


def _committed(run: DatabaseRun, target: Target, plan: DatabasePlan, staged: Staged, ends: Ends) -> IngestReport:
    """Commit the window of one table; an error of the table becomes its report."""
    failure = staged.failures.get(plan.table.name)
    try:
        if failure is not None:
            raise failure
        if plan.table.name in ends.tables:
            # The key may have changed since the plan.
            require_unique(ends.tables[plan.table.name], plan.key, run.settings)
        return run.commit(target.spec, _source(run, target, plan, staged, ends))
    except LakehouseError as error:
        if not run.settings.into:
            raise
        return failed_report(target.spec, error)


def _confirm(run: DatabaseRun, targets: Sequence[Target], reports: Sequence[IngestReport], end: LogPosition) -> None:
    """Allow the server to delete the log that is applied in the commits of all tables."""
    positions = []
    for target, report in zip(targets, reports, strict=True):
        if report.status is JobStatus.COMMITTED:
            positions.append(end)
        elif target.known is not None:
            positions.append(target.known.position)
    if positions:
        run.server.confirm(positions)


def _kept(run: DatabaseRun) -> tuple[SourceLag, ...]:
    """Return the size of the log that the server keeps for the tables."""
    unconfirmed = run.server.unconfirmed()
    if unconfirmed is None:
        return ()
    name, size = unconfirmed
    return (SourceLag(source=f"{ingest_of(run.spec).source.KIND}:slot {name}", unit=KEPT, left=size),)


def _dropped(work: Sequence[tuple[Target, DatabasePlan]], end: LogPosition) -> list[SchemaEvent]:
    """Return the statements that dropped tables, for a server whose log lacks them."""
    return [
        SchemaEvent(kind="drop", table=plan.table.name, position=end.order, statement=f"DROP TABLE {plan.table.name}")
        for target, plan in work
        if not plan.exists and target.known is not None and target.known.incarnation
    ]


def _stored(session: Session, table: Table, columns: Sequence[str]) -> Frame:
    frame: Frame = table.scan(columns=list(columns)).to_spark(session)
    return frame


def _nothing(run: DatabaseRun, target: Target) -> IngestReport:
    """Return the report of an up-to-date table, with the commit of an earlier attempt."""
    report = IngestReport(
        status=JobStatus.NOTHING_TO_DO,
        table=target.spec.table,
        reason="the log has nothing after the last commit",
        code=JobReason.NO_NEW_DATA,
        previous=None if target.table is None else newest_commit(target.table.refresh(), target.spec),
    )
    return with_own_commit(report, target.table, target.spec, run.command.run_id)


def _is_over(settings: DatabaseSettings, elapsed_ms: int) -> bool:
    return bool(settings.max_seconds) and elapsed_ms >= 1000 * settings.max_seconds
