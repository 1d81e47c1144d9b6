"""Clustering: due, plan, run (TL-6.5, TL-9.2).

due    from the timeline alone
plan   under the lock: slices complete by now, of groups no other plan holds       <t>.clustering.requested
run    claim the plan, <t>.clustering.inflight, one task per group, under the lock <t>_<c>.replacecommit

The commit hides the groups that went in and shows those that came out; no row changes. A write that changed one of
them since the plan was made was first (see operations.giving_way): the plan is dropped then, with all its files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.clustering_writer import ClusteringContext, cluster_group, clustering_markers
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.timeline.clustering import SORT_AND_SIZE, encode_clustering_plan
from lakehouse.core.format.timeline.commit_metadata import encode_commit
from lakehouse.core.operations.commit.bucket_counts import bucket_rules
from lakehouse.core.operations.commit.cleanup import delete_unreported
from lakehouse.core.operations.commit.clustering_conflicts import (
    clustering_plan,
    conflicting_write,
    groups_of_active_writes,
    write_without_profile,
)
from lakehouse.core.operations.commit.markers import WriteMarkers
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.commits import archived_writes, latest_extra
from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.damage import checked_slices, planned_files_exist, with_stated_sizes
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.services.plan_executor import (
    UnusablePlanError,
    check_executor,
    claim_of,
    claim_plan,
    drop_unusable,
    finish,
    let_go,
    pending_plan,
    planned_try,
    try_under,
    without_plan,
)
from lakehouse.core.operations.write.prepare import maintenance_context
from lakehouse.core.planning.clustering import (
    LAYOUT_KEY,
    ClusteringDue,
    Layout,
    clustering_due,
    layout_of,
    layout_text,
    layout_told,
    plan_clustering,
)
from lakehouse.core.planning.key_ranges import RANGES_KEY, encode_ranges
from lakehouse.core.rows.space_filling_curves import is_sortable
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.timeline.heartbeat import Heartbeat, active_writes
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import (
    CommitStateUnknownError,
    RetryableError,
    UnsupportedError,
    UserError,
    nearest,
)
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.clustering import SORT_COLUMNS
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

_HOUR = slice(8, 10)


def due(table: LoadedTable, policies: Policies) -> ClusteringDue:
    """Return whether a clustering is due now, and why; reads nothing but the timeline."""
    require_clusterable(table, policies)
    replaced = table.timeline.where(action=Action.REPLACECOMMIT, state=State.COMPLETED).by_completion()
    last = next((instant for instant in reversed(replaced) if _was_clustering(table, instant)), None)
    return clustering_due(table.timeline, last, policies.clustering)


def plan(table: LoadedTable, policies: Policies, *, force: bool = False) -> Instant | NothingToDo:
    """Put a plan on the timeline if one is due (or by `force`); any process may run it, any time later.

    Raises UserError for sort columns that the table does not have, or cannot be ordered by.
    """
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    answer = due(table, policies)
    if not force and not answer.commits >= max(policies.clustering.max_commits, 1):
        return NothingToDo(reason=answer.reason)
    return request(table, policies, partial(propose, policies=policies))


def request(
    table: LoadedTable, policies: Policies, propose: Callable[[LoadedTable], ClusteringPlan | None]
) -> Instant | NothingToDo:
    """Put the plan that `propose` makes of the table on the timeline."""
    # Listing takes long and the lock is short, so files are listed before; if a write completed since, once more.
    proposed = propose(table)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        if now.timeline != table.timeline:
            proposed = propose(now)
        if proposed is None:
            return NothingToDo(reason="no file group gains by it that no other plan holds and no write is changing")
        lock.check()
        data = encode_clustering_plan(proposed, base_path=table.env.storage.root)
        instant = table.store.request(now.timeline, Action.CLUSTERING, data)
    logger.info("%s: planned clustering %s", table.env.storage.root, instant.requested)
    return instant


def propose(table: LoadedTable, policies: Policies) -> ClusteringPlan | None:
    """Return what would be planned now; writes nothing. Raises UserError as `plan` does."""
    require_clusterable(table, policies)
    _require_sortable(table, policies.clustering.columns)
    held = frozenset(pending_compactions(table)) | frozenset(pending_clustering(table))
    slices = checked_slices(table, policies.write, policies.clustering.selected_partitions or None)
    return plan_clustering(
        slices,
        held | groups_of_active_writes(table, policies.transaction),
        policies.clustering,
        hour=int(table.store.new_instant_time(table.timeline)[_HOUR]),
        laid_out=_laid_out(table, {piece.base_instant for piece in slices}) if policies.clustering.columns else {},
        max_file_bytes=policies.write.max_file_bytes,
    )


def _laid_out(table: LoadedTable, instants: set[str]) -> dict[str, Layout]:
    """Return how those of these instants that were clusterings laid out rows, archived ones included."""
    writes = table.timeline.writes()
    old = instants - {instant.requested for instant in writes}
    commits = table.store.commits(i for i in writes.where(action=Action.REPLACECOMMIT) if i.requested in instants)
    if old:
        archived = archived_writes(table, requested_from=min(old), requested_up_to=max(old))
        commits += table.store.archived_commits([i for i in archived if i.requested in old], LAYOUT_KEY)
    told = {instant.requested: layout_told(metadata) for instant, metadata in commits}
    return {requested: layout for requested, layout in told.items() if layout is not None}


def run(
    table: LoadedTable, engine: Engine, policies: Policies, *, instant: str | None = None, force: bool = False
) -> Committed | NothingToDo:
    """Run the plan of `instant`, else the oldest pending plan nobody is at, else a new one if due (or by `force`).

    There is nothing to do where a write was first: the plan is dropped. Raises UserError if there is no such plan,
    RetryableError if another executor is at it or took it over, a write that began before the plan has not said yet
    what it changes, or a restore is not finished.
    """
    require_clusterable(table, policies)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    if instant is not None:
        return execute(table, engine, policies, pending_plan(table, Action.CLUSTERING, instant))
    living = active_writes(table.env, policies.transaction)
    for pending in table.timeline.where(action=Action.CLUSTERING, pending=True):
        if pending.requested not in living:
            outcome = execute(table.reload(), engine, policies, pending)
            if isinstance(outcome, Committed):
                return outcome
    if force or due(table, policies).commits >= policies.clustering.max_commits:
        # Before there is a plan, which holds back other writes.
        require_known_writers(table, policies, None)
    planned = plan(table, policies, force=force)
    return planned if isinstance(planned, NothingToDo) else execute(table.reload(), engine, policies, planned)


def execute(table: LoadedTable, engine: Engine, policies: Policies, instant: Instant) -> Committed | NothingToDo:
    """Carry out a plan; see `run`."""
    heartbeat = Heartbeat(table.env, policies.transaction)
    partitions: set[str] | None = None
    try:
        number = claim_plan(table, policies.transaction, instant, heartbeat)
    except BaseException:
        heartbeat.discard()
        raise
    try:
        table = table.reload()
        found = clustering_plan(table, instant)
        if found is None:
            return without_plan(table, policies.transaction, instant, number, heartbeat)
        partitions = {piece.partition for piece in found.slices}
        outcome, markers = _rewrite(table, engine, policies, instant, found, number)
    except CommitStateUnknownError:
        # The commit may land yet, so its files must stay: nobody may take the plan over before the lease ends.
        heartbeat.stop()
        raise
    except UnusablePlanError as error:
        return drop_unusable(table, policies.transaction, instant, number, heartbeat, partitions, error)
    except BaseException:
        let_go(table, instant, number, heartbeat, partitions)
        raise
    finish(table, instant, heartbeat, markers)
    return outcome


def _rewrite(
    table: LoadedTable, engine: Engine, policies: Policies, instant: Instant, found: ClusteringPlan, number: int
) -> tuple[Committed, list[str]]:
    """Carry out the plan; return the commit, and the markers that are to go."""
    requested, root = instant.requested, table.env.storage.root
    _require_right_of_way(table, policies, instant, found)
    schema = table_schema(table)
    if schema is None:
        raise UserError(f"{root}: the clustering {requested} is of a table that has no schema")
    context = _context(table, policies, instant, found)
    stated = iter(with_stated_sizes(table, found.slices))
    sized = [replace(group, slices=tuple(next(stated) for _ in group.slices)) for group in found.groups]
    groups = sorted(sized, key=lambda group: -group.metrics.get("TOTAL_IO_MB", float(len(group.slices))))
    markers = WriteMarkers(table, requested, policies.write)
    marked = [clustering_markers(context.write, planned_try(n, number), group) for n, group in enumerate(groups)]
    markers.announce([name for names in marked for name in names])
    with planned_files_exist(table, instant, number, found.slices, skips=policies.write.skips_damage):
        stats = [stat for written in engine.run(partial(_task, context, number), groups) for stat in written]
    metadata = CommitMetadata(
        operation=Operation.CLUSTER.value,
        stats=tuple(sorted(stats, key=lambda s: (s.partition, s.file_id))),
        replaced=found.replaced,
        extra={"schema": context.write.avro_schema, RANGES_KEY: encode_ranges(stats)}
        | ({LAYOUT_KEY: layout_text(context.layout)} if context.layout.columns else {}),
    )
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        check_executor(table, now.timeline, instant, number)
        reason = conflicting_write(now, policies.transaction, instant, found)
        if reason is not None:
            raise UnusablePlanError(reason)
        # Not of later claims: who is suspended here and taken over must not delete what the successor reports.
        left = delete_unreported(
            table, requested, metadata.stats, ours=lambda path: claim_of(path) <= number, known=markers.known
        )
        # The newest commit tells the table's schema: what writers added meanwhile must stay.
        declared = latest_extra(now, "schema") or context.write.avro_schema
        metadata = replace(metadata, extra={**metadata.extra, "schema": declared})
        lock.check()
        started = Instant(requested=requested, action=Action.CLUSTERING, state=State.INFLIGHT)
        data = encode_commit(metadata, table_version=table.config.version, replace=True)
        completed = table.store.complete(started, now.timeline, data, lock)
    logger.info("%s: completed clustering %s, %d files", root, requested, len(stats))
    return Committed(instant=completed, metadata=metadata), left


def _require_right_of_way(table: LoadedTable, policies: Policies, instant: Instant, found: ClusteringPlan) -> None:
    """Raise before any work is done that would be in vain."""
    reason = conflicting_write(table, policies.transaction, instant, found)
    if reason is not None:
        raise UnusablePlanError(reason)
    require_known_writers(table, policies, instant)


def require_known_writers(table: LoadedTable, policies: Policies, before: Instant | None) -> None:
    """Raise RetryableError naming a write that is in flight and has not said yet which files it changes."""
    unknown = write_without_profile(table, policies.transaction, before)
    if unknown is not None:
        raise RetryableError(
            f"{table.env.storage.root}: the write {unknown.requested} is in flight and has not said yet which files it "
            "changes; run the clustering again when it is done",
            instant=unknown.requested,
        )


def _was_clustering(table: LoadedTable, instant: Instant) -> bool:
    """Return whether a completed replacecommit was planned as a clustering, as the names of its files tell."""
    return any(pending.action is Action.CLUSTERING for pending in table.store.pending_files(instant))


def _context(table: LoadedTable, policies: Policies, instant: Instant, found: ClusteringPlan) -> ClusteringContext:
    schema = table_schema(table)
    assert schema is not None, "a table with files has a schema"
    if found.strategy not in ("", SORT_AND_SIZE):
        raise UnsupportedError(
            f"{table.env.storage.root}: the clustering {instant.requested} is to be run by {found.strategy}; only "
            "plans that sort and size files are run here. Run it, or roll it back, with Hudi",
            strategy=found.strategy,
        )
    layout = layout_of(found, policies.clustering.layout)
    _require_sortable(table, layout.columns)
    sized = replace(policies.write, max_file_bytes=policies.clustering.target_file_bytes)
    write = maintenance_context(table, replace(policies, write=sized), schema, instant.requested)
    # Rows to be sorted are held while slices are merged, so what merging may hold is halved.
    budget = policies.write.memory_budget_bytes // 2
    read = slice_context(table, schema, budget=budget, skips_damage=policies.write.skips_damage)
    return ClusteringContext(write=write, read=read, layout=layout)


def _task(context: ClusteringContext, number: int, attempt: Attempt, group: ClusteringGroup) -> list[WriteStat]:
    return cluster_group(context, try_under(attempt, number), group)


def require_clusterable(table: LoadedTable, policies: Policies) -> None:
    """Raise UnsupportedError for a table whose file groups cannot be made anew."""
    root = table.env.storage.root
    if table.config.version < 8:
        raise UnsupportedError(
            f"{root}: tables of version {table.config.version} are read only here; upgrade with Hudi"
        )
    require_mergeable(table.config)
    if bucket_rules(table, policies.index) is not None:
        raise UnsupportedError(
            f"{root}: with the bucket index the hash of its key says in which file group a row is; clustering, which "
            "makes other groups of the rows, would hide them from writes. Bucket tables are not clustered"
        )


def _require_sortable(table: LoadedTable, columns: tuple[str, ...]) -> None:
    schema = table_schema(table) if columns else None
    if schema is None:
        return
    fields = {name: None for name in META_COLUMNS[:4]} | {field.name: field.type for field in schema}
    for name in columns:
        if name not in fields:
            raise UserError(
                f"option {SORT_COLUMNS}: column {name!r} is not in {table.env.storage.root}.{nearest(name, fields)}",
                column=name,
            )
        kind = fields[name]
        if kind is not None and not is_sortable(kind):
            raise UserError(
                f"option {SORT_COLUMNS}: column {name!r} is {kind}, and rows are not ordered by such columns",
                column=name,
            )
