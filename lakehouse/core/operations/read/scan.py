"""Reading: which files, planned; rows, streamed. Snapshot, time travel, incremental (TL-6.5 to TL-6.7)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lakehouse.core.files.log_reader import SliceContext, VisibleBlocks
from lakehouse.core.files.slice_reader import read_slice
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow, with_meta_fields
from lakehouse.core.format.file_names import LAYOUT_V6
from lakehouse.core.operations.load.cleaned_files import require_uncleaned
from lakehouse.core.operations.load.commits import archived_writes, with_archived_writes
from lakehouse.core.operations.load.schema import data_columns, table_schema
from lakehouse.core.operations.load.slices import load_listing, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.damage import ChangedWhileListedError, check_listing
from lakehouse.core.planning.damage import Damage
from lakehouse.core.planning.key_ranges import RANGES_KEY, decode_ranges
from lakehouse.core.planning.predicate import Range, parse_predicate, to_arrow
from lakehouse.core.planning.scan import ScanPlan, partition_filter, plan_scan
from lakehouse.core.state.file_system_view import read_optimized, visible_timeline
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.commit import Operation
from lakehouse.model.files import FileSlice
from lakehouse.model.index_type import stored_index_type
from lakehouse.model.instant import Instant
from lakehouse.model.predicate import Predicate, columns_of
from lakehouse.spec.options.write import WritePolicy

EARLIEST = "earliest"
_TRIES = 3
_ARCHIVED_AT_MOST = 2_048
READ_BUDGET = WritePolicy().memory_budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """What a reader asks for: columns and a condition; the table now, at an instant, or what changed in (begin, end].

    `begin` and `end` are completion times (requested times for version 6); `begin` may be "earliest". `read_optimized`
    reads base files alone: faster, and as old as the last compaction of each file group. A task that merges logs holds
    `memory_budget_bytes`. `completed_up_to` is a completion time: the table with all writes up to it, and no other.
    `skips_damage` goes on without the rows of committed files that are missing or damaged.
    """

    columns: tuple[str, ...] | None = None
    where: str | Predicate | None = None
    as_of: str | None = None
    incremental: bool = False
    begin: str | None = None
    end: str | None = None
    read_optimized: bool = False
    memory_budget_bytes: int = READ_BUDGET
    completed_up_to: str | None = None
    skips_damage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A planned read.

    `stored_schemas` maps the instant of a file to the Avro schema its commit declared, if that is on the timeline; see
    `with_archived_schemas`. `damage` are the files whose rows are skipped because the request allows it.
    """

    plan: ScanPlan
    context: SliceContext
    stored_schemas: Mapping[str, str]
    damage: tuple[Damage, ...] = ()

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        return self.context.storage

    @property
    def table_schema(self) -> pa.Schema:
        """All columns, meta columns in front."""
        return self.context.table

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer."""
        return self.plan.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, slice by slice."""
        for file_slice in self.plan.slices:
            yield from read_rows(self.context, file_slice, self.plan)


def plan_read(table: LoadedTable, request: ScanRequest) -> Scan:
    """Plan a read of the table; opens no data file.

    Raises UserError for columns that are not there, times that do not parse and times whose files were cleaned,
    UnsupportedError for logs whose merge mode cannot be applied, CorruptTableError for committed files that are lost.
    """
    for _ in range(_TRIES):
        try:
            return _plan_read(table, request)
        except ChangedWhileListedError:
            table = table.reload()
    return _plan_read(table, request)


def _plan_read(table: LoadedTable, request: ScanRequest) -> Scan:
    where = parse_predicate(request.where) if isinstance(request.where, str) else request.where
    as_of = None if request.as_of is None else instant_text(request.as_of)
    end = _bound(request.end) if request.incremental else request.completed_up_to
    commit_times: frozenset[str] | None = None
    if request.incremental:
        if request.begin != EARLIEST or request.end is not None:
            table = reaching_back(table, request.begin, request.end)
        changed, everything = _changed(table, request)
        schema = table_schema(table)
        keep = _keep(table, where, schema)
        listing = load_listing(table, completed_up_to=end, keep=keep)
        slices = listing.slices
        if end is not None:
            require_uncleaned(table, slices, load_visible(table, completed_up_to=end), end, keep=keep)
        if not everything:
            _refuse_virtual_keys(table)
            commit_times = frozenset(instant.requested for instant in changed)
            # A log compaction writes again what others wrote, some writers under its own time; it changes no group.
            commits = [m for _, m in table.store.commits(changed) if m.operation != Operation.LOG_COMPACT]
            groups = {(stat.partition, stat.file_id) for metadata in commits for stat in metadata.stats}
            slices = tuple(s for s in slices if (s.partition, s.file_id) in groups)
    else:
        schema = table_schema(table, up_to=as_of if end is None else _last_request(table, end))
        keep = _keep(table, where, schema)
        listing = load_listing(table, as_of=as_of, completed_up_to=end, keep=keep)
        slices = listing.slices
        at = as_of if end is None else end
        if at is not None:
            visible = load_visible(table, as_of=as_of, completed_up_to=end)
            require_uncleaned(table, slices, visible, at, keep=keep)
    if request.read_optimized:
        slices = read_optimized(slices)
    full = schema if schema is not None else pa.schema([])
    stored, ranges = _file_facts(table, slices, full, needs_ranges=where is not None)
    damage = check_listing(table, listing, skips=request.skips_damage, base_files_only=request.read_optimized)
    planned = partial(
        plan_scan, slices, full, table.config.keys, columns=request.columns, where=where, commit_times=commit_times
    )
    plan = planned(ranges=ranges)
    archived = {} if where is None else _archived_ranges(table, plan.slices, where, full)
    if archived:
        plan = planned(ranges={**archived, **ranges})
    context = slice_context(table, full, as_of=as_of, completed_up_to=end, budget=request.memory_budget_bytes)
    context = replace(context, commit_times=commit_times, skips_damage=request.skips_damage)
    if any(file_slice.logs for file_slice in plan.slices):
        require_mergeable(table.config)
    return Scan(plan=plan, context=context, stored_schemas=stored, damage=damage)


def _last_request(table: LoadedTable, completed_up_to: str) -> str | None:
    """Return the time of the last request among the writes completed up to a time; None if that is before them all."""
    known = [i.requested for i in table.timeline.writes().where(completed_up_to=completed_up_to)]
    return max(known, default=completed_up_to if archived_writes(table, requested_up_to=completed_up_to) else None)


def _keep(table: LoadedTable, where: Predicate | None, schema: pa.Schema | None) -> Callable[[str], bool] | None:
    # A global index may leave a row where it is although the value of its partition column changed.
    if schema is None or stored_index_type(table.config.raw).is_global:
        return None
    return partition_filter(where, schema, table.config.keys)


def slice_context(
    table: LoadedTable,
    schema: pa.Schema,
    *,
    as_of: str | None = None,
    completed_up_to: str | None = None,
    budget: int = READ_BUDGET,
    skips_damage: bool = False,
) -> SliceContext:
    """Return what reading slices of the table takes; `schema` is that of the data columns."""
    blocks = VisibleBlocks()
    if table.config.layout == LAYOUT_V6:
        visible = visible_timeline(table.timeline, (), as_of=as_of, completed_up_to=completed_up_to)
        blocks = VisibleBlocks(instants=frozenset(visible.instants), archived_before=visible.archived_before)
    return SliceContext(
        storage=table.env.storage,
        table=with_meta_fields(schema),
        rule=table.config.merge_rule,
        keys=table.config.keys,
        budget_bytes=budget,
        visible=blocks,
        skips_damage=skips_damage,
    )


def changed_instants(table: LoadedTable, begin: str | None, end: str | None) -> tuple[Instant, ...]:
    """Return the writes that completed in (begin, end], in order of completion; without `begin`, only the last one."""
    table = reaching_back(table, begin, end)
    return _changed(table, ScanRequest(incremental=True, begin=begin, end=end))[0]


def reaching_back(table: LoadedTable, begin: str | None, end: str | None) -> LoadedTable:
    """Return the table with the archived writes on its timeline, where a read of (begin, end] has to do with them."""
    if begin is None and len(table.timeline.writes().where(completed_up_to=_bound(end))):
        return table
    return with_archived_writes(table, "" if begin is None or begin == EARLIEST else instant_text(begin))


def read_rows(context: SliceContext, file_slice: FileSlice, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Yield the matching rows of one slice in the schema of the plan."""
    wanted = list(plan.schema.names)
    extra = [] if plan.residual is None else [c for c in dict.fromkeys(columns_of(plan.residual)) if c not in wanted]
    read = pa.schema([context.table.field(name) for name in (*wanted, *extra)])
    for _, rows in read_slice(context, file_slice, read):
        if plan.residual is not None:
            rows = rows.filter(to_arrow(plan.residual, read)).select(wanted)
        if rows.num_rows:
            yield from rows.combine_chunks().to_batches()


def instant_text(text: str) -> str:
    """Return a time as an instant: digits as they are, or ISO 8601 such as 2026-01-31, 2026-01-31 10:00:00[.123]."""
    if re.fullmatch(r"\d{14}|\d{17}", text):
        return text
    match = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?(?:Z|\+00:00)?", text)
    if match is None:
        raise UserError(f"{text!r} is not a time; write 20260131100000000, 2026-01-31 or 2026-01-31 10:00:00.000")
    day, time = match.groups("00")[:3], match.groups("00")[3:6]
    return "".join((*day, *time)) + (match.group(7) or "").ljust(3, "0")[:3]


def _changed(table: LoadedTable, request: ScanRequest) -> tuple[tuple[Instant, ...], bool]:
    """Return the instants of an incremental range, and whether the range is the whole table."""
    begin, end = _bound(request.begin), _bound(request.end)
    writes = table.timeline.writes()
    upto = (writes if end is None else writes.where(completed_up_to=end)).by_completion()
    if begin is None:
        return upto[-1:], False
    if begin == EARLIEST:
        return upto, end is None
    return tuple(instant for instant in upto if instant.completion > begin), False


def _bound(text: str | None) -> str | None:
    return text if text is None or text == EARLIEST else instant_text(text)


def _refuse_virtual_keys(table: LoadedTable) -> None:
    if not table.config.populate_meta_fields:
        raise UnsupportedError(
            f"{table.env.storage.root}: rows of this table do not say which commit wrote them "
            "(hoodie.populate.meta.fields=false), so an incremental read is impossible"
        )


def _file_facts(
    table: LoadedTable, slices: Sequence[FileSlice], schema: pa.Schema, *, needs_ranges: bool
) -> tuple[dict[str, str], dict[str, Mapping[str, Range]]]:
    """Return what commits say of the files they wrote: stored schemas by instant, and column ranges by path."""
    wanted = {s.base.instant for s in slices if s.base} | {log.instant for s in slices for log in s.logs}
    instants = [instant for instant in table.timeline.writes() if instant.requested in wanted]
    schemas: dict[str, str] = {}
    ranges: dict[str, Mapping[str, Range]] = {}
    for instant, metadata in table.store.commits(instants):
        if metadata.extra.get("schema"):
            schemas[instant.requested] = metadata.extra["schema"]
        if needs_ranges:
            ranges.update(decode_ranges(metadata.extra.get(RANGES_KEY), _ranged(schema)))
    return schemas, ranges


def _archived_ranges(
    table: LoadedTable, slices: Sequence[FileSlice], where: Predicate, schema: pa.Schema
) -> dict[str, Mapping[str, Range]]:
    """Return the column ranges that archived commits state of files in these slices, by path.

    `slices` are those that nothing else has ruled out. The archive is not asked for conditions that partition paths
    settle, and of very many commits only the newest are.
    """
    keys = table.config.keys
    settled = {f for f, kind in zip(keys.partition_fields, keys.partition_types, strict=False) if kind == "SIMPLE"}
    if not slices or set(columns_of(where)) <= settled | {META_COLUMNS[3]}:
        return {}
    known = {instant.requested for instant in table.timeline.writes()}
    written = {s.base.instant for s in slices if s.base} | {log.instant for s in slices for log in s.logs}
    asked = sorted(written - known, reverse=True)[:_ARCHIVED_AT_MOST]
    ranges: dict[str, Mapping[str, Range]] = {}
    for text in table.store.archived_extras(asked, RANGES_KEY).values():
        ranges.update(decode_ranges(text, _ranged(schema)))
    return ranges


def _ranged(schema: pa.Schema) -> pa.Schema:
    return with_meta_fields(schema) if META_COLUMNS[0] not in schema.names else schema


def with_archived_schemas(table: LoadedTable, scan: Scan) -> Scan:
    """Return the scan with the schemas that archived commits declared, for readers that do not adapt to each file.

    Types only ever widen, so the archive is asked only if a column has not the type it was created with.
    """
    config, schema = table.config, data_columns(scan.table_schema)
    created = data_columns(avro_to_arrow(config.create_schema)) if config.create_schema else pa.schema([])
    files = {s.base.instant for s in scan.plan.slices if s.base is not None} - scan.stored_schemas.keys()
    if not files or all(
        field.name in created.names and field.type == created.field(field.name).type for field in schema
    ):
        return scan
    found = archived_writes(table, requested_from=min(files), requested_up_to=max(files))
    commits = table.store.archived_commits([instant for instant in found if instant.requested in files])
    schemas = {i.requested: metadata.extra["schema"] for i, metadata in commits if metadata.extra.get("schema")}
    return replace(scan, stored_schemas={**scan.stored_schemas, **schemas})


def stored_data_schema(scan: Scan, instant: str) -> pa.Schema | None:
    """Return the data columns that files of an instant store, as their commit declared; None if it says nothing."""
    text = scan.stored_schemas.get(instant)
    return None if text is None else data_columns(avro_to_arrow(text))
