"""Plans reads of rows: which files to read, with which schema and filter, and reads the planned slices.

select    the file slices of the queried version, or of the commits of a range
check     committed files that are missing or changed raise CorruptTableError (see `damage`)
prune     by partition values and by file metadata, step by step (see `pruning`)
read      each slice with Arrow, logs merged
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from lakehouse.core.files.log.log_reader import SliceContext, VisibleBlocks
from lakehouse.core.format.avro.schema import avro_to_arrow, with_meta_fields
from lakehouse.core.operations.load.cleaned_files import require_uncleaned
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.schema import data_columns, table_schema
from lakehouse.core.operations.load.slices import Listing, load_listing, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.commit_range import loaded_commits_in_range, settled_range, with_archived_range
from lakehouse.core.operations.read.damage import ChangedWhileListedError, check_listing
from lakehouse.core.operations.read.event_time import event_time_bound
from lakehouse.core.operations.read.file_metadata import compared_commits, instants_of
from lakehouse.core.operations.read.partitions import PartitionChoice, PartitionInput, choose_partitions
from lakehouse.core.operations.read.pruning import PruneInput, prune
from lakehouse.core.operations.read.queries import (
    EARLIEST,
    READ_BUDGET,
    SNAPSHOT,
    CompletedUpTo,
    EventTimeTravel,
    Incremental,
    ReadOptimized,
    RowQuery,
    ScanRequest,
    Snapshot,
    TimeTravel,
    Version,
    instant_text,
    range_bound,
)
from lakehouse.core.operations.read.row_reader import read_plan
from lakehouse.core.planning.damage import Damage
from lakehouse.core.planning.partitions import PartitionFilter, partition_filter
from lakehouse.core.planning.predicate import check_columns, parse_predicate
from lakehouse.core.planning.scan import PlanStep, ScanExplanation, ScanPlan, chosen_columns, row_condition
from lakehouse.core.rows.stored_names import is_evolved, without_stored_names
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import visible_timeline
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.commit import Operation
from lakehouse.model.display import Readable, Shown, count_text, sentence, size_text
from lakehouse.model.instant import Action
from lakehouse.model.keys import KeyGeneratorType
from lakehouse.model.predicate import Predicate, statistics_condition

_ATTEMPTS = 4
#: Maximum number of file groups from an index for which no statistics are read.
_FEW_LOCATED = 8
#: Maximum number of file slices in the representation of a planned scan.
_SHOWN = 1_000

#: A version whose bound is an instant or a completion time, not an event time.
TimelineVersion = Snapshot | TimeTravel | CompletedUpTo


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Readable):
    """A planned read of rows.

    Attributes:
        plan: The slices to read, the columns of the result and the filter to apply to rows.
        context: The settings for readers of slices: storage, schema, merge rule, memory budget.
        stored_schemas: Avro schema by instant, as commits on the timeline declare it; see `with_stored_schemas`.
        damage: Missing or damaged files whose rows are skipped because the request allows it.
    """

    plan: ScanPlan
    context: SliceContext
    stored_schemas: Mapping[str, str]
    damage: tuple[Damage, ...] = ()

    @property
    def storage(self) -> Storage:
        """The storage of the table."""
        return self.context.storage

    @property
    def table_schema(self) -> pa.Schema:
        """All columns of the table, meta columns first."""
        return self.context.table

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return without_stored_names(self.plan.schema)

    def explain(self) -> ScanExplanation:
        """Return how many partitions, files and bytes each step of the plan left, and why."""
        return ScanExplanation(steps=self.plan.steps)

    def batches(self, *, threads: int | None = None, ordered: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows, slice by slice; see `read_plan`."""
        batches = read_plan(self.context, self.plan, threads=threads, ordered=ordered)
        schema = self.schema
        return batches if schema is self.plan.schema else _in_schema(batches, schema)

    def _shown(self) -> Shown:
        plan = self.plan
        line = sentence(
            f"planned scan: {count_text(len(plan.slices), 'file slice')}",
            size_text(plan.slices.bytes),
            f"{plan.skipped:,} skipped" if plan.skipped else "",
            count_text(len(plan.schema), "column"),
            count_text(len(self.damage), "damaged file") if self.damage else "",
        )
        first = plan.slices[:_SHOWN]
        rows = [{"partition": s.partition, "file_group": s.file_id, "log_files": len(s.logs)} for s in first]
        return Shown(line, {"columns": tuple(plan.schema.names)}, rows)


def _in_schema(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches with a schema that differs only in the metadata of its fields."""
    with closing(batches):  # type: ignore[type-var]
        for batch in batches:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """The slices that a query reads before pruning, and the steps that led to them.

    `commit_times` limits the rows to these commits, if it is set. `is_located` is whether an index chose the groups.
    """

    table: LoadedTable
    schema: pa.Schema | None
    version: TimelineVersion
    listing: Listing
    slices: FileSlices
    steps: tuple[PlanStep, ...]
    commit_times: frozenset[str] | None = None
    is_located: bool = False


def plan_row_read(
    table: LoadedTable, query: RowQuery, request: ScanRequest, *, reloaded_query: RowQuery | None = None
) -> Scan:
    """Plan a read of rows; no data file is opened.

    Args:
        table: The loaded table.
        query: Which rows to read.
        request: Columns, condition and limits; its query is not used.
        reloaded_query: The query to plan in its place if the table changes during the call, so that it is loaded again.

    Raises:
        UserError: A column does not exist, a time does not parse, or files of that time were cleaned.
        UnsupportedError: Log files need a merge mode that is not supported.
        CorruptTableError: Committed files are missing or damaged.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _plan(table, query, request)
        except ChangedWhileListedError:
            if attempt == _ATTEMPTS - 1:
                raise
            table, query = table.reload(), reloaded_query or query
    raise AssertionError("the last attempt returns or raises")


def _plan(table: LoadedTable, query: RowQuery, request: ScanRequest) -> Scan:
    where = parse_predicate(request.where) if isinstance(request.where, str) else request.where
    # Rows answer all of the condition. Files are excluded by the part that statistics and indexes answer.
    pruning = None if where is None else statistics_condition(where)
    base_files_only = isinstance(query, ReadOptimized)
    if isinstance(query, Incremental):
        selection = _select_range(table, query, request, pruning)
    else:
        version = query.version if isinstance(query, ReadOptimized) else query
        selection = _select_version(table, _timeline_version(table, version), request, pruning)
    table, schema = selection.table, selection.schema if selection.schema is not None else pa.schema([])
    slices, steps = selection.slices, selection.steps
    if base_files_only:
        slices = slices.base_only()
        steps = (*steps, PlanStep.of("read_optimized", "only base files are read, without log files", slices))
    chosen = chosen_columns(with_meta_fields(schema), request.columns)
    # Files in the metadata table are committed. A lost file is detected when it is opened.
    schemas = {} if selection.listing.from_metadata else compared_commits(table, slices)
    damage = check_listing(table, selection.listing, skips=request.skips_damage, base_files_only=base_files_only)
    remaining, pruned = slices, tuple[PlanStep, ...]()
    if where is not None:
        check_columns(where, with_meta_fields(schema))
    if pruning is not None:
        given = PruneInput(table=table, where=pruning, schema=schema)
        # Reading statistics for a few file groups from an index costs more requests than reading the groups.
        if not (selection.is_located and len(slices) <= _FEW_LOCATED):
            remaining, pruned = prune(given, slices)
    plan = ScanPlan(
        slices=remaining,
        schema=chosen,
        residual=row_condition(where, selection.commit_times),
        skipped=len(slices) - len(remaining),
        steps=(*steps, *pruned),
    )
    context = slice_context(table, schema, version=selection.version, budget=request.memory_budget_bytes)
    context = replace(context, commit_times=selection.commit_times, skips_damage=request.skips_damage)
    if remaining.log_counts.any():
        require_mergeable(table.config)
    return Scan(plan=plan, context=context, stored_schemas=schemas, damage=damage)


def _select_version(
    table: LoadedTable, version: TimelineVersion, request: ScanRequest, where: Predicate | None
) -> _Selection:
    """Select the slices of a version; raise UserError if a clean removed files that it needs."""
    as_of, completed_up_to = _bounds(version)
    schema = version_schema(table, version)
    keep = _keep(table, where, schema)
    on_storage = request.skips_damage or (version != SNAPSHOT and is_cleaning(table))
    choice = PartitionChoice(keep=keep)
    if where is not None and schema is not None and not on_storage:
        choice = choose_partitions(
            PartitionInput(
                table=table,
                where=where,
                schema=schema,
                keep=keep,
                is_newest=version == SNAPSHOT,
                merges_logs=not isinstance(request.query, ReadOptimized),
                trusts_keys=request.trusts_keys,
            )
        )
    listing = load_listing(
        table,
        choice.partitions,
        as_of=as_of,
        completed_up_to=completed_up_to,
        keep=choice.keep,
        on_storage=on_storage,
    )
    bound = as_of if completed_up_to is None else completed_up_to
    if as_of is not None and not listing.slices:
        require_commit_before(table, as_of)
    if bound is not None:
        visible = load_visible(table, as_of=as_of, completed_up_to=completed_up_to)
        require_uncleaned(table, listing.slices, visible, bound, keep=keep)
    timeline = f"{_version_text(version)} of {count_text(len(table.timeline), 'instant')}"
    slices, steps = _located(listing, choice, timeline)
    return _Selection(
        table=table,
        schema=schema,
        version=version,
        listing=listing,
        slices=slices,
        steps=steps,
        is_located=choice.groups is not None,
    )


def _select_range(table: LoadedTable, query: Incremental, request: ScanRequest, where: Predicate | None) -> _Selection:
    """Select the slices that the commits of a range wrote, as of the end of the range.

    Raises UserError if a clean removed some of their files, RetryableError if a bound is after a pending write
    (`settled_range`).
    """
    is_whole_table = query.begin == EARLIEST and query.end is None
    if not is_whole_table:
        query = settled_range(table, query)
        table = with_archived_range(table, query.begin, query.end)
    commits = loaded_commits_in_range(table, query.begin, query.end)
    end = range_bound(query.end)
    schema = table_schema(table)
    keep = _keep(table, where, schema)
    on_storage = request.skips_damage or (end is not None and is_cleaning(table))
    choice = PartitionChoice(keep=keep)
    if where is not None and schema is not None and not on_storage:
        choice = choose_partitions(
            PartitionInput(
                table=table,
                where=where,
                schema=schema,
                keep=keep,
                is_newest=end is None,
                trusts_keys=request.trusts_keys,
            )
        )
    listing = load_listing(table, choice.partitions, completed_up_to=end, keep=choice.keep, on_storage=on_storage)
    if end is not None:
        require_uncleaned(table, listing.slices, load_visible(table, completed_up_to=end), end, keep=keep)
    slices, steps = _located(listing, choice, f"{count_text(len(commits), 'commit')} in the range")
    version: TimelineVersion = SNAPSHOT if end is None else CompletedUpTo(end)
    selection = _Selection(table=table, schema=schema, version=version, listing=listing, slices=slices, steps=steps)
    if is_whole_table:
        return selection
    _require_commit_times(table)
    # A log compaction changes no row. It rewrites rows of earlier commits, and some writers give them its own commit
    # time.
    written = [m for _, m in table.store.commits(commits) if m.operation != Operation.LOG_COMPACT]
    slices = slices.in_groups({(stat.partition, stat.file_id) for metadata in written for stat in metadata.stats})
    return replace(
        selection,
        slices=slices,
        steps=(*steps, PlanStep.of("range", "file groups that the commits of the range wrote", slices)),
        commit_times=frozenset(instant.requested for instant in commits),
    )


def _located(listing: Listing, choice: PartitionChoice, timeline: str) -> tuple[FileSlices, tuple[PlanStep, ...]]:
    """Return the listed slices of the file groups that an index found, and the steps that led to them."""
    steps = [PlanStep(name="timeline", reason=timeline), *choice.steps]
    source = "storage: directories that can match" if listing.keep is not None else "storage: all directories"
    if listing.from_metadata:
        source = "the metadata table lists the files of these partitions"
    slices = listing.slices
    steps.append(PlanStep.of("files", source, slices))
    if choice.groups is not None:
        slices = slices.in_groups(choice.groups)
        steps.append(PlanStep.of("file_groups", "file groups that an index found", slices))
    return slices, tuple(steps)


def is_cleaning(table: LoadedTable) -> bool:
    """Return whether a clean is pending: the metadata table still lists the files that it is removing."""
    return len(table.timeline.where(action=Action.CLEAN, pending=True)) > 0


def _version_text(version: TimelineVersion) -> str:
    if isinstance(version, TimeTravel):
        return f"as of {version.instant}"
    return f"completed up to {version.completion}" if isinstance(version, CompletedUpTo) else "the newest version"


def _timeline_version(table: LoadedTable, version: Version) -> TimelineVersion:
    if isinstance(version, EventTimeTravel):
        return CompletedUpTo(event_time_bound(table, version.event_time))
    return TimeTravel(instant_text(version.instant)) if isinstance(version, TimeTravel) else version


def version_schema(table: LoadedTable, version: TimelineVersion) -> pa.Schema | None:
    """Return the data columns of a version, or None if no write and no property declares them."""
    as_of, completed_up_to = _bounds(version)
    return table_schema(table, up_to=as_of if completed_up_to is None else _last_request(table, completed_up_to))


def _bounds(version: TimelineVersion) -> tuple[str | None, str | None]:
    """Return the bounds of a version: `as_of` (requested time) and `completed_up_to`; at most one is not None."""
    as_of = version.instant if isinstance(version, TimeTravel) else None
    return as_of, version.completion if isinstance(version, CompletedUpTo) else None


def _last_request(table: LoadedTable, completed_up_to: str) -> str | None:
    """Return the last requested time among the writes completed up to a time; None if there is no such write."""
    requested = [i.requested for i in table.timeline.writes().where(completed_up_to=completed_up_to)]
    return max(requested, default=completed_up_to if archived_writes(table, requested_up_to=completed_up_to) else None)


def _keep(table: LoadedTable, where: Predicate | None, schema: pa.Schema | None) -> PartitionFilter | None:
    """Return the partition filter for a condition; raise UserError if the condition does not fit the columns."""
    if schema is None or where is None:
        return None
    check_columns(where, with_meta_fields(schema))
    return partition_filter(where, schema, table.config.path_keys)


def _require_commit_times(table: LoadedTable) -> None:
    if not table.config.populate_meta_fields:
        raise UnsupportedError(
            f"{table.env.storage.root}: rows of this table do not say which commit wrote them "
            "(hoodie.populate.meta.fields=false), so an incremental read is impossible"
        )


def slice_context(
    table: LoadedTable,
    schema: pa.Schema,
    *,
    version: TimelineVersion = SNAPSHOT,
    budget: int = READ_BUDGET,
    skips_damage: bool = False,
) -> SliceContext:
    """Return the settings for readers of slices.

    Args:
        table: The loaded table.
        schema: Its data columns, without meta columns.
        version: The version to read. It decides which log blocks are visible.
        budget: Memory in bytes that one task may use.
        skips_damage: Skip missing or damaged log files instead of raising an error.
    """
    blocks = VisibleBlocks()
    if table.config.is_merge_on_read:
        as_of, completed_up_to = _bounds(version)
        visible = visible_timeline(table.timeline, (), as_of=as_of, completed_up_to=completed_up_to)
        blocks = VisibleBlocks(
            instants=frozenset(visible.instants),
            archived_before=visible.archived_before,
            copies_only=not table.config.layout.appends_to_logs,
            upgraded=table.config.is_upgraded,
        )
    return SliceContext(
        storage=table.env.storage,
        table=with_meta_fields(schema),
        rule=table.config.merge_rule,
        keys=table.config.keys,
        budget_bytes=budget,
        decode_deletes=table.config.decode_deletes,
        visible=blocks,
        skips_damage=skips_damage,
    )


def with_stored_schemas(table: LoadedTable, scan: Scan) -> Scan:
    """Add the schemas that commits declared, for readers that need the stored schema of each file.

    Commits are read only if files can have other types than the table. Types are only ever widened, so all files have
    the same types if the columns have the types with which the table was created. The exceptions are timestamp
    partition columns: updates and deletes by Hudi can store their values as strings.
    """
    config, schema = table.config, data_columns(scan.table_schema)
    created = data_columns(avro_to_arrow(config.create_schema)) if config.create_schema else pa.schema([])
    files = instants_of(scan.plan.slices) - scan.stored_schemas.keys()
    timestamps = {
        name
        for name, kind in zip(config.keys.partition_fields, config.keys.partition_types, strict=True)
        if kind == KeyGeneratorType.TIMESTAMP
    }
    if not files or all(
        not is_evolved(field)
        and field.name in created.names
        and field.type == created.field(field.name).type
        and (field.name not in timestamps or pa.types.is_string(field.type))
        for field in schema
    ):
        return scan
    active = [instant for instant in table.timeline.writes() if instant.requested in files]
    archived = archived_writes(table, requested_from=min(files), requested_up_to=max(files))
    commits = table.store.commits(active)
    commits += table.store.archived_commits([instant for instant in archived if instant.requested in files])
    schemas = {i.requested: metadata.extra["schema"] for i, metadata in commits if metadata.extra.get("schema")}
    return replace(scan, stored_schemas={**scan.stored_schemas, **schemas})


def stored_data_schema(scan: Scan, instant: str) -> pa.Schema | None:
    """Return the data columns of the files that an instant wrote; None if its commit does not declare them."""
    text = scan.stored_schemas.get(instant)
    return None if text is None else data_columns(avro_to_arrow(text))


def require_commit_before(table: LoadedTable, as_of: str) -> None:
    """Raise UserError, with the first and the last commit, if all commits of the table were requested after `as_of`.

    Apache Hudi returns no rows for such a time. The archived timeline is read only if `as_of` is before the active one.
    """
    active = table.timeline.writes().instants
    if active and active[0].requested <= as_of:
        return
    archived = archived_writes(table).instants
    commits = sorted(instant.requested for instant in (*archived, *active))
    if commits and as_of < commits[0]:
        raise UserError(
            f"{table.env.storage.root}: as_of={as_of} is before the first commit of the table, {commits[0]}; the last "
            f"commit is {commits[-1]}. Give a time from {commits[0]} on",
            as_of=as_of,
            first=commits[0],
            last=commits[-1],
        )
