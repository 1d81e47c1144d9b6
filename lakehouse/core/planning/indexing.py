"""Plan an index build: which declared indexes the metadata table lacks (MDT-11).

    declared   in options of the table, or in definitions that the table stores
    listed     usable partitions, and partitions that are being built
    plan       the declared partitions that are not usable, in the order in which they are built

A secondary index depends on the record index to locate record keys, so a plan builds the record index first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lakehouse.model.indexing import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    IndexDue,
    IndexedPartition,
    IndexPlan,
)
from lakehouse.model.instant import Action, Timeline
from lakehouse.model.partition_kind import PartitionKind, partition_kind
from lakehouse.spec.options.indexing import IndexingPolicy

FILES, PARTITION_STATS, RECORD_INDEX = "files", "partition_stats", "record_index"
#: Partitions in the order in which they are built. Named indexes follow.
_ORDER = (FILES, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX, PARTITION_STATS)
_WRITING = frozenset(Action) - {Action.CLEAN, Action.SAVEPOINT, Action.ROLLBACK, Action.RESTORE, Action.INDEXING}
_NO_TABLE = "the table has no metadata table; `lakehouse metadata rebuild` creates one"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPartitions:
    """The partitions of the metadata table in the properties: usable ones, and partitions that are being built."""

    usable: tuple[str, ...]
    building: tuple[str, ...] = ()


def is_named_index(partition: str) -> bool:
    """Return whether a partition of the metadata table is a secondary index or an expression index."""
    kind = partition_kind(partition)
    return kind is not None and kind.is_named_by_users


def declared_partitions(
    policy: IndexingPolicy, *, statistics: bool, is_partitioned: bool, defined: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the partitions that options declare or that the table defines, in the order in which they are built.

    Args:
        policy: The options of indexes.
        statistics: Whether the options declare column statistics.
        is_partitioned: Whether the table has partitions; partition statistics exist only then.
        defined: The partitions with an index definition.
    """
    named = {index.partition for index in policy.declared} | {name for name in defined if is_named_index(name)}
    declared = {
        COLUMN_STATS: statistics,
        PARTITION_STATS: statistics and is_partitioned,
        BLOOM_FILTERS: policy.bloom_filters,
        RECORD_INDEX: policy.record_index
        or policy.partitioned_record_index
        or any(partition_kind(name) is PartitionKind.SECONDARY_INDEX for name in named),
    }
    return in_build_order([*(name for name, wanted in declared.items() if wanted), *named])


def in_build_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort partitions in build order: each partition follows the partitions that it depends on."""
    return tuple(sorted(set(names), key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)))


def index_due(declared: Sequence[str], listed: ListedPartitions, timeline: Timeline) -> IndexDue:
    """Return whether declared indexes are missing, or a build is not finished."""
    pending = timeline.where(action=Action.INDEXING, pending=True).instants
    missing = missing_partitions(declared, listed)
    if pending:
        reason = f"the indexing {pending[0].requested} is not finished"
        return IndexDue(due=True, reason=reason, missing=missing, building=listed.building)
    if listed.building:
        names = ", ".join(listed.building)
        reason = f"the build of {names} ended without a usable index"
        return IndexDue(due=True, reason=reason, missing=missing, building=listed.building)
    if FILES not in listed.usable:
        return IndexDue(due=False, reason=_NO_TABLE)
    if missing:
        return IndexDue(due=True, reason=f"{', '.join(missing)} declared and not built", missing=missing)
    count = len(declared)
    return IndexDue(due=False, reason=f"all {count} declared indexes are built" if count else "no index is declared")


def missing_partitions(declared: Sequence[str], listed: ListedPartitions) -> tuple[str, ...]:
    """Return the declared partitions that are not usable; none without a metadata table."""
    return tuple(name for name in declared if name not in listed.usable) if FILES in listed.usable else ()


def plan_index(missing: Collection[str], timeline: Timeline) -> IndexPlan:
    """Return the plan that builds partitions, as Hudi describes it (TL-4.9)."""
    up_to = _up_to(timeline)
    return IndexPlan(
        partitions=tuple(IndexedPartition(partition=name, up_to=up_to) for name in in_build_order(missing))
    )


def _up_to(timeline: Timeline) -> str:
    """Return the requested time of the newest completed write without a pending write before it."""
    pending = next((i.requested for i in timeline.where(action=_WRITING, pending=True)), None)
    before = [i.requested for i in timeline.writes() if pending is None or i.requested < pending]
    return before[-1] if before else ""
