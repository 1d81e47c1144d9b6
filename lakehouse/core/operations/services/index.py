"""Index: declared indexes of the metadata table are built while writers continue (MDT-11).

due        from the properties, the options and the definitions: which declared indexes are not usable
schedule   under the lock                                           <t>.indexing.requested
           the partitions are created without records and listed as being built: later commits record their changes
run        claim the plan, <t>.indexing.inflight, base files from a snapshot of the table without the lock;
           under the lock: delta commit <t> of the metadata table, <t>_<c>.indexing, the partitions are listed as usable

If a run fails, the plan stays. The next run resumes it with a new snapshot. If the partitions were dropped meanwhile,
or another engine compacted them without the records of the build, the plan is dropped. In version 6 it is also dropped
if a write left no records in them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.timeline.indexing import decode_index_plan, encode_index_metadata, encode_index_plan
from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.partitions.protocol import Definition, TableFiles
from lakehouse.core.metadata.partitions.registry import partition_named
from lakehouse.core.metadata.place import DEFINITIONS_KEY
from lakehouse.core.metadata.write.drop import drop_partitions
from lakehouse.core.metadata.write.index_build import (
    build_base_files,
    compaction_since,
    complete_build,
    is_recorded,
    list_as_usable,
    open_partitions,
    opening_of,
    unrecorded_change,
)
from lakehouse.core.metadata.write.initialise import index_definitions, unique_keys
from lakehouse.core.operations.commit.completion import Completion, complete_action
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.commits import writes_since
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.read.table_files import table_files
from lakehouse.core.operations.services.index_definition import definition_of, listed_in, refusal, require_supported
from lakehouse.core.operations.services.plan_executor import (
    ClaimedPlan,
    execute_plan,
    pending_plan,
    plans_without_executor,
)
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.planning.indexing import (
    PARTITION_STATS,
    RECORD_INDEX,
    declared_partitions,
    index_due,
    missing_partitions,
    plan_index,
)
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import CorruptTableError, RetryableError, UnsupportedError, UserError
from lakehouse.model.commit import WriteStat
from lakehouse.model.display import Readable, Shown
from lakehouse.model.indexing import COLUMN_STATS, IndexDue, IndexMetadata, IndexPlan
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed(Readable):
    """The completed indexing, its partitions of the metadata table, and the written rows, files and bytes."""

    instant: Instant
    partitions: tuple[str, ...]
    totals: Totals

    def _shown(self) -> Shown:
        return Shown(f"indexing {self.instant.requested}: built {', '.join(self.partitions)}", {"totals": self.totals})


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> IndexDue:
    """Return whether declared indexes are not built yet. Reads the index definitions if the table has any."""
    del request
    return index_due(_declared(table, policies), listed_in(table), table.timeline)


def plan(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> IndexPlan | NothingToDo:
    """Return the plan that would be scheduled now; writes nothing.

    Raises UnsupportedError for an index that this package cannot build.
    """
    del request
    return _plan(table, policies)


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Put a plan on the timeline; from here on all commits maintain the indexes that it builds."""
    del request
    require_writable(table.config, table.env.storage.root)
    table.store.refuse_during_restore(table.timeline)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.refresh()
        _settle(now, lock)
        now = now.refresh()
        planned = _plan(now, policies)
        if isinstance(planned, NothingToDo):
            return planned
        lock.check()
        instant = now.store.request(now.timeline, Action.INDEXING, encode_index_plan(planned))
        _open(now.reload(), policies, planned, lock)
    logger.info("%s: planned indexing %s of %s", table.env.storage.root, instant.requested, ", ".join(planned.names))
    return instant


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Indexed | NothingToDo:
    """Execute the plan of `request.instant`, or the oldest pending plan without executor, or a new plan if due.

    Raises UserError if there is no such plan. Raises RetryableError if another executor works on it or took it over,
    if a file of the snapshot was cleaned meanwhile, or if a restore is not finished.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.refresh()
    table.store.refuse_during_restore(table.timeline)
    if request.instant is not None:
        return _execute(table, engine, policies, pending_plan(table, Action.INDEXING, request.instant))
    for pending in plans_without_executor(table, policies.transaction, Action.INDEXING):
        outcome = _execute(table.refresh(), engine, policies, pending)
        if isinstance(outcome, Indexed):
            return outcome
    planned = schedule(table, policies, request)
    return planned if isinstance(planned, NothingToDo) else _execute(table.refresh(), engine, policies, planned)


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return the cost of a build: it reads the newest files of the table once for each index that is missing."""
    missing = missing_partitions(_declared(table, policies), listed_in(table))
    if not missing:
        return ServiceCost()
    newest = table_files(table, policies).newest
    files, size = max(newest.num_rows, 1), pc.sum(newest.column("size_bytes")).as_py() or 0
    return ServiceCost(files=files * len(missing), bytes=size * len(missing), benefit=float(files))


def _execute(table: LoadedTable, engine: Engine, policies: Policies, instant: Instant) -> Indexed | NothingToDo:
    return execute_plan(table, policies, instant, IndexExecution(engine=engine))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIndexes:
    """The base files of a build, the plan, and the timeline of the table from which it was built.

    `refused` explains why the rows of the table cannot be indexed, if so. `timeline` is the timeline of the snapshot
    that was read; None if an earlier executor read it.
    """

    plan: IndexPlan
    stats: tuple[WriteStat, ...] = ()
    refused: UserError | None = None
    timeline: Timeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexExecution:
    """The execution of one index plan. It writes base files of the metadata table, and no data files of the table."""

    engine: Engine
    writes_files: bool = False

    def start(self, table: LoadedTable, pending: Instant, lock: TableLock) -> None:
        """Create the inflight file, which is empty as in Hudi."""
        if pending.state is State.REQUESTED:
            lock.check()
            table.store.start(pending, b"")

    def load(self, claimed: ClaimedPlan) -> IndexPlan:
        """Read the plan from the requested file."""
        return _stored_plan(claimed.table, claimed.instant)

    def partitions(self, plan: IndexPlan) -> Collection[str]:
        """Return no partitions, because a build only writes to the metadata table."""
        del plan
        return ()

    def execute(self, claimed: ClaimedPlan, plan: IndexPlan) -> BuiltIndexes:
        """Write base files from a snapshot of the table that is taken now."""
        policies, requested = claimed.policies, claimed.instant.requested
        with table_lock(claimed.table.env, policies.transaction) as lock:
            # A crash after the plan was requested may have left its partitions unlisted.
            _open(claimed.table.refresh(), policies, plan, lock)
        table = claimed.table.refresh()
        if table.config.layout.stores_definitions and is_recorded(table.metadata, requested):
            return BuiltIndexes(plan=plan)
        build = replace(
            table_files(table, policies, self.engine),
            instant=requested,
            definitions=read_definitions(table.env.storage),
        )
        if not table.config.layout.stores_definitions:
            build = replace(build, definitions=index_definitions(plan.names, build, build.definitions))
        names = [name for name in plan.names if name in listed_in(table).building]
        stats: list[WriteStat] = []
        # Each partition is built from all newest files.
        sizes = [pc.sum(build.newest.column("size_bytes")).as_py() or 0] * len(names)
        with observed_stage(stage_of(table, "build of indexes", "index", sizes)) as running:
            for name, size in zip(names, sizes, strict=True):
                with running.tasks([size]):
                    try:
                        stats += _built(table, name, build)
                    except UserError as error:
                        if isinstance(error, UnsupportedError) or partition_named(name) is None:
                            # Another engine may be able to build it.
                            raise
                        # Drop the plan: the build would fail again, and a pending build blocks compactions of the
                        # metadata table.
                        return BuiltIndexes(plan=plan, refused=error)
        return BuiltIndexes(plan=plan, stats=tuple(stats), timeline=table.timeline)

    def complete(
        self, claimed: ClaimedPlan, work: BuiltIndexes, now: LoadedTable, lock: TableLock
    ) -> tuple[Indexed | NothingToDo, Collection[str]]:
        """Complete the build under the lock, or drop the plan if its partitions cannot be used.

        Raises UserError after the plan was dropped because rows of the table cannot be indexed.
        """
        now = now.refresh()
        requested, names = claimed.instant.requested, work.plan.names
        lost = work.refused.message if work.refused is not None else _reason_to_drop(now, work, requested)
        if lost is not None:
            lock.check()
            drop_partitions(now.metadata, [name for name in names if name in listed_in(now).building])
            now.store.remove_pending(claimed.instant)
            reason = f"the indexing {requested} was dropped: {lost}"
            if work.refused is not None:
                raise UserError(f"{now.env.storage.root}: {reason}", **work.refused.facts)
            logger.warning("%s: %s", now.env.storage.root, reason)
            return NothingToDo(code=NothingToDoReason.PLAN_DROPPED, reason=reason), ()
        recorded = complete_build(now.metadata, requested, work.stats, lock)
        metadata = IndexMetadata(partitions=work.plan.partitions)
        inflight = replace(claimed.instant, state=State.INFLIGHT)
        completion = Completion(instant=inflight, timeline=now.timeline, data=encode_index_metadata(metadata))
        completed = complete_action(now, completion, lock)
        list_as_usable(now.metadata, names, lock, _proof(work, now))
        logger.info("%s: completed indexing %s of %s", now.env.storage.root, requested, ", ".join(names))
        del recorded
        totals = Totals(
            rows=sum(stat.num_writes for stat in work.stats),
            files=len(work.stats),
            bytes=sum(stat.size_bytes for stat in work.stats),
        )
        return Indexed(instant=completed, partitions=names, totals=totals), ()


def _proof(work: BuiltIndexes, now: LoadedTable) -> Mapping[str, str | None]:
    """Return the property that keys are unique if a record index was built, and no write completed meanwhile."""
    timeline = work.timeline
    if RECORD_INDEX not in work.plan.names or timeline is None or writes_since(now, timeline, now.timeline):
        return {}
    return unique_keys(now.metadata, read_definitions(now.env.storage), timeline)


def _declared(table: LoadedTable, policies: Policies) -> tuple[str, ...]:
    defined = read_definitions(table.env.storage) if DEFINITIONS_KEY in table.config.raw else {}
    metadata = policies.transaction.metadata
    declared = declared_partitions(
        policies.indexing,
        # A table of version 6 may lack statistics because its writers of Hudi 0.15 do not enable them, and would drop
        # them again. `lakehouse metadata rebuild` builds them.
        statistics=metadata.enable and metadata.column_stats and table.config.layout.stores_definitions,
        is_partitioned=table.config.is_partitioned,
        defined=defined,
    )
    # Statistics are declared by default, even for tables that do not support them.
    config, usual = table.config, (COLUMN_STATS, PARTITION_STATS)
    # Hudi may have defined indexes that this package does not build; only declared indexes are refused.
    optional = {index.partition for index in policies.indexing.declared}
    buildable = [name for name in declared if name in optional or partition_named(name) is not None]
    return tuple(name for name in buildable if name not in usual or refusal(config, name, defined.get(name)) is None)


def _plan(table: LoadedTable, policies: Policies) -> IndexPlan | NothingToDo:
    answer = due(table, policies)
    pending = table.timeline.where(action=Action.INDEXING, pending=True).instants
    if pending:
        return NothingToDo(code=NothingToDoReason.ALREADY_PENDING, reason=answer.reason)
    if not answer.missing:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=answer.reason)
    definitions = _definitions(table, policies)
    for name in answer.missing:
        require_supported(table, name, definitions.get(name))
    return plan_index(answer.missing, table.timeline)


def _definitions(table: LoadedTable, policies: Policies) -> dict[str, Definition]:
    """Return the stored definitions, and those that the options declare."""
    stored = read_definitions(table.env.storage)
    return {index.partition: definition_of(table, index) for index in policies.indexing.declared} | stored


def _open(table: LoadedTable, policies: Policies, plan: IndexPlan, lock: TableLock) -> None:
    """List the partitions of a plan as being built, if they are not listed yet."""
    listed = listed_in(table)
    if set(plan.names) <= {*listed.usable, *listed.building}:
        return
    definitions = _definitions(table, policies)
    files = table_files(table, policies)
    open_partitions(table.metadata, plan.names, files, definitions, table.timeline, lock)


def _settle(table: LoadedTable, lock: TableLock) -> None:
    """List the partitions of completed indexings as usable, if an executor crashed before this step.

    Partitions that are listed as being built, but without a plan, are dropped.
    """
    building = set(listed_in(table).building)
    if not building or table.timeline.where(action=Action.INDEXING, pending=True).instants:
        return
    built: set[str] = set()
    for instant in table.timeline.where(action=Action.INDEXING, state=State.COMPLETED):
        # In version 6 nothing ensures that other writers record their changes after the check.
        if table.config.layout.stores_definitions and is_recorded(table.metadata, instant.requested):
            built |= set(_stored_plan(table, instant).names)
    list_as_usable(table.metadata, built & building, lock)
    if building - built:
        lock.check()
        drop_partitions(table.metadata, building - built)


def _stored_plan(table: LoadedTable, instant: Instant) -> IndexPlan:
    data = table.store.read(instant, State.REQUESTED)
    if not data:
        raise CorruptTableError(
            f"{table.env.storage.root}: the indexing {instant.requested} has no plan; drop its indexes with `lakehouse "
            "index drop`",
            instant=instant.requested,
        )
    return decode_index_plan(data)


def _built(table: LoadedTable, name: str, build: TableFiles) -> list[WriteStat]:
    try:
        return build_base_files(table.metadata, name, build, table.timeline)
    except NotFoundError as error:
        raise RetryableError(
            f"{table.env.storage.root}: a clean removed a file while the index {name} was built from it: {error}; run "
            "the indexing again",
            index=name,
        ) from error


def _reason_to_drop(table: LoadedTable, work: BuiltIndexes, requested: str) -> str | None:
    """Return why the base files of a build must not be used, or None if they may."""
    listed, plan = listed_in(table), work.plan
    gone = [name for name in plan.names if name not in listed.building and name not in listed.usable]
    if gone:
        return f"{', '.join(gone)} was dropped meanwhile"
    if not table.config.layout.stores_definitions:
        return _reason_of_other_writers(table, work)
    compaction = compaction_since(table.metadata, requested)
    return None if compaction is None else f"{compaction} compacted the metadata table during the build"


def _reason_of_other_writers(table: LoadedTable, work: BuiltIndexes) -> str | None:
    """Return what another writer did to an index of version 6 that makes the build useless, or None."""
    before = set() if work.timeline is None else {instant.key for instant in work.timeline.writes()}
    writes = [instant for instant in table.timeline.writes() if instant.key not in before]
    changes = [(instant, metadata) for instant, metadata in table.store.commits(writes)]
    for name in (name for name in work.plan.names if name in listed_in(table).building):
        opened = opening_of(table.metadata, name)
        compaction = None if opened is None else compaction_since(table.metadata, opened)
        if opened is None or compaction is not None:
            return f"another writer compacted {name} during the build"
        write = unrecorded_change(table.metadata, name, changes)
        if write is not None:
            return (
                f"the write {write} left no records in {name}, which was being built; enable the index and "
                "hoodie.metadata.index.async in the options of all writers, or run `lakehouse metadata rebuild`"
            )
    return None
