"""Early conflict detection: a write that would lose finds out before it writes data (TL-8.4).

    announce   markers of all files of the plan
    look       at the markers of other writes at work, then at what was completed since the load

Of two writers at least one sees the other: who looks first is seen by who looks second, and markers go only after the
commit. Who sees an earlier instant gives way at once. Who sees later ones only leaves them a moment to give way, and
does so itself if they stay: then they had looked before, and are at work. So two never both write data, and both give
way only if one takes longer over its look than that moment; they try again after pauses of different lengths.

This saves work and decides nothing: a write that sees nobody is still compared at its commit. It is not asked where
writers of one file group may both be right, which markers do not tell: partial updates bring different columns, and
non-blocking writers exclude nobody. Nor of shards (bulk_insert), whose new groups nobody else has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.files.markers import MARKERS_ROOT, read_listed_markers
from lakehouse.core.format.file_names import marked_file, parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.operations.commit.markers import GIVEN_UP
from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.commits import writes_since
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.write.prepare import PreparedWrite
from lakehouse.core.planning.conflict import WriteSummary, find_conflict, write_summary
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import LakehouseError
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import Instant
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: Longer than the look of another writer takes, as a rule.
_MOMENT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedWrite:
    """A write that has announced its files: their markers, and the groups that it read and decided about."""

    prepared: PreparedWrite
    instant: Instant
    operation: Operation
    markers: Sequence[str]
    touched: frozenset[tuple[str, str]]


def uses_early_detection(policy: TransactionPolicy, prepared: PreparedWrite) -> bool:
    """Return whether this write looks for others before it writes."""
    optimistic = policy.many_writers and not policy.non_blocking
    return policy.early_detection and optimistic and not prepared.template.keeps


def early_conflict(ours: AnnouncedWrite, policy: TransactionPolicy) -> Conflict | None:
    """Return to whom this write gives way, None if it may go on; call when it has announced its files."""
    found = _rivals(ours, policy)
    if found and all(conflict.winner.requested > ours.instant.requested for conflict in found):
        later = {conflict.winner.requested for conflict in found}
        ours.prepared.table.env.clock.sleep(_MOMENT_S)
        # Who came in between has seen us.
        found = [conflict for conflict in _rivals(ours, policy) if conflict.winner.requested in later]
    if found:
        logger.info("%s: %s gives way: %s", _root(ours), ours.instant.requested, found[0].reason)
    return found[0] if found else None


def _root(ours: AnnouncedWrite) -> str:
    return ours.prepared.table.env.storage.root


def _rivals(ours: AnnouncedWrite, policy: TransactionPolicy) -> list[Conflict]:
    """Return the conflicts with what was completed since the load and with writes at work, the earliest first."""
    prepared, table = ours.prepared, ours.prepared.table
    change = _change(ours.operation, ours.markers, prepared.extra([], 0), ours.touched, prepared.shared_columns)
    # In this order: a write whose markers are gone by now is on the timeline that is read afterwards.
    listed = _listed(table, ours.instant)
    timeline = table.store.load()
    others = table.store.commits(writes_since(table, table.timeline, timeline))
    completed = [(instant, write_summary(other, shared_columns=prepared.shared_columns)) for instant, other in others]
    overlap = find_conflict(completed, change, prepared.strategy)
    if overlap is not None:
        return [Conflict(winner=overlap.winner, reason=overlap.reason)]
    marking = [i for i in pending_writes(replace(table, timeline=timeline)) if i.requested in listed]
    living = active_writes(table.env, policy) if marking else frozenset()
    found = []
    for rival in sorted(marking, key=lambda instant: instant.requested):
        paths = listed[rival.requested]
        if rival.requested not in living or any(path.endswith(f"/{GIVEN_UP}") for path in paths):
            continue
        names = read_listed_markers(table.env.storage, rival.requested, paths).values()
        theirs = _change(Operation.UPSERT, [name for of_object in names for name in of_object])
        reason = prepared.strategy(change, theirs)
        if reason is not None:
            found.append(Conflict(winner=rival, reason=f"{rival.requested}, which is at work, {reason}"))
    return found


def _listed(table: LoadedTable, ours: Instant) -> dict[str, list[str]]:
    """Return the marker objects of all other writes, by instant; one listing."""
    listed: dict[str, list[str]] = {}
    for file in table.env.storage.list(MARKERS_ROOT):
        requested = file.path.removeprefix(f"{MARKERS_ROOT}/").partition("/")[0]
        if requested != ours.requested:
            listed.setdefault(requested, []).append(file.path)
    return listed


def _change(
    operation: Operation,
    markers: Iterable[str],
    extra: dict[str, str] | None = None,
    touched: frozenset[tuple[str, str]] = frozenset(),
    shared_columns: frozenset[str] = frozenset(),
) -> WriteSummary:
    """Return what a write is about to do, as far as the names of its files tell."""
    stats = [stat for name in markers if (stat := _stat(marked_file(name))) is not None]
    metadata = CommitMetadata(operation=operation.value, stats=tuple(stats), extra=extra or {})
    return write_summary(metadata, touched=touched, shared_columns=shared_columns)


def _stat(path: str) -> WriteStat | None:
    partition, _, name = path.rpartition("/")
    try:
        file = parse_base_file(name, partition, 0) or parse_log_file(name, partition, 0)
    except LakehouseError:
        return None
    file = file or parse_cdc_file(name, partition, 0)
    return None if file is None else WriteStat(partition=partition, file_id=file.file_id, path=path, prev_commit=None)
