"""Early conflict detection: find a conflict by markers, before data is written (TL-8.4).

announce   create the markers of all planned files
check      read the markers of other active writes, then the writes that completed since the load

Each write announces before it checks, and markers are deleted only after the commit. So at least one of two writers
finds the markers of the other. A write that finds an earlier instant aborts immediately. A write that finds only later
instants waits for a moment. If a later instant still has markers after the wait, it checked before our announcement and
is now writing, so this write aborts. Two conflicting writes never both write data. Both abort only if one check takes
longer than the wait; they retry after pauses of different lengths.

Detection only saves work. The conflict check before the commit decides. Detection is off where markers cannot show
whether there is a conflict: partial updates may write different columns of a file group, and non-blocking writers may
write the same one. It is not used for bulk_insert, which only writes new file groups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.files.stage.markers import MARKERS_ROOT, read_listed_markers
from lakehouse.core.format.file_names import marked_file, parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.operations.commit.cleanup import ABANDONED
from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.commits import writes_since
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import PreparedWrite
from lakehouse.core.operations.write.prepare import commit_extra, shared_columns
from lakehouse.core.planning.conflict import WriteSummary, find_conflict, write_summary
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import LakehouseError
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import Instant

logger = logging.getLogger(__name__)

#: The wait for later instants. The check of another writer usually takes less time.
_WAIT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedWrite:
    """A write that created its markers; `touched` are the stored file groups that it read or extends."""

    write: PreparedWrite
    instant: Instant
    markers: Sequence[str]
    touched: frozenset[tuple[str, str]]


def early_conflict(ours: AnnouncedWrite) -> Conflict | None:
    """Return the conflict for which this write must abort, or None if it may write.

    Call this after its markers exist.
    """
    conflicts = _conflicts(ours)
    if conflicts and all(conflict.winner.requested > ours.instant.requested for conflict in conflicts):
        later = {conflict.winner.requested for conflict in conflicts}
        ours.write.table.env.clock.sleep(_WAIT_S)
        # A write that announced during the wait reads our markers, so it aborts or waits itself.
        conflicts = [conflict for conflict in _conflicts(ours) if conflict.winner.requested in later]
    if conflicts:
        logger.info("%s: %s aborts early: %s", _root(ours), ours.instant.requested, conflicts[0].reason)
    return conflicts[0] if conflicts else None


def _root(ours: AnnouncedWrite) -> str:
    return ours.write.table.env.storage.root


def _conflicts(ours: AnnouncedWrite) -> list[Conflict]:
    """Return the conflicts with writes that completed since the load.

    If there are none, return those with active writes, earliest first.
    """
    write, table, shared = ours.write, ours.write.table, shared_columns(ours.write)
    change = _change(write.request.operation, ours.markers, commit_extra(write, [], 0), ours.touched, shared)
    # Read markers before the timeline: a write that deletes its markers in between is then seen on the timeline.
    listed = _list_markers(table, ours.instant)
    timeline = table.store.load()
    others = table.store.commits(writes_since(table, table.timeline, timeline))
    completed = [(instant, write_summary(other, shared_columns=shared)) for instant, other in others]
    overlap = find_conflict(completed, change, write.strategy)
    if overlap is not None:
        return [Conflict(winner=overlap.winner, reason=overlap.reason)]
    announced = [i for i in pending_writes(replace(table, timeline=timeline)) if i.requested in listed]
    active = active_writes(table.env, write.policies.transaction) if announced else frozenset()
    conflicts = []
    for rival in sorted(announced, key=lambda instant: instant.requested):
        paths = listed[rival.requested]
        if rival.requested not in active or any(path.endswith(f"/{ABANDONED}") for path in paths):
            continue
        names = read_listed_markers(table.env.storage, rival.requested, paths).values()
        theirs = _change(Operation.UPSERT, [name for of_object in names for name in of_object])
        reason = write.strategy(change, theirs)
        if reason is not None:
            conflicts.append(Conflict(winner=rival, reason=f"{rival.requested}, which is active, {reason}"))
    return conflicts


def _list_markers(table: LoadedTable, ours: Instant) -> dict[str, list[str]]:
    """Return the paths of other writes' marker objects, by instant; one listing."""
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
    """Return the summary of a pending write, derived from the names of its files."""
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
