"""Plan a clustering: whether it is due, and which file groups are rewritten together (TL-9.2).

The planner must run under the table lock that creates the plan's instant, on slices listed under that lock, or listed
before it if the timeline has not changed. The executor assumes that the slices of the plan contain all earlier writes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.errors import UserError, nearest
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.display import Condition
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.clustering import LAYOUTS, SORT_COLUMNS, ClusteringFilter, ClusteringPolicy
from lakehouse.spec.options.write import WritePolicy

_MB = 1024 * 1024
_HOURS = 24
#: Extra metadata of plans and commits of this package: the layout of rows. In Hudi the executor chooses the layout.
LAYOUT_KEY = "lakehouse.clustering.layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringDue(Condition):
    """Whether a clustering is due, the reason, the number of commits, and the pending plans."""

    due: bool
    reason: str
    commits: int
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of rows in files: by columns, lexicographic or along a space-filling curve. No columns: unsorted."""

    columns: tuple[str, ...] = ()
    curve: str = LAYOUTS[0]


def clustering_due(timeline: Timeline, last: Instant | None, policy: ClusteringPolicy) -> ClusteringDue:
    """Return whether a clustering is due, from the timeline and the newest completed clustering `last`.

    The count includes writes that completed after `last` was requested, without compactions, because these add no rows.
    A pending plan is always due.
    """
    pending = tuple(instant.requested for instant in timeline.where(action=Action.CLUSTERING, pending=True))
    writes = timeline.where(action=_bringing(timeline), state=State.COMPLETED)
    since = writes if last is None else writes.where(completed_after=last.requested)
    commits = sum(last is None or instant.key != last.key for instant in since)
    after = "" if last is None else f" since clustering {last.requested}"
    if pending:
        reason = f"clustering {pending[0]} is planned and not executed yet"
        return ClusteringDue(due=True, reason=reason, commits=commits, pending=pending)
    reason = f"{commits} commits{after}; due after {policy.max_commits}"
    return ClusteringDue(due=commits > 0 and commits >= policy.max_commits, reason=reason, commits=commits)


# parameters: a planner takes each independent part of the table state
def plan_clustering(
    slices: Iterable[FileSlice],
    busy_groups: Collection[tuple[str, str]],
    policy: ClusteringPolicy,
    *,
    selected: Collection[str] = (),
    hour: int = 0,
    laid_out: Mapping[str, Layout] | None = None,
    max_file_bytes: int = WritePolicy().max_file_bytes,
) -> ClusteringPlan | None:
    """Return the plan for the newest slices, or None if no group would benefit.

    Args:
        slices: The newest slice of each file group.
        busy_groups: File groups (partition, file id) of other pending plans and of pending writes.
        policy: The clustering policy.
        selected: Partition paths to which the plan is limited; empty for those of the policy's option.
        hour: The current hour, for the partition mode DAY_ROLLING.
        laid_out: Layouts of completed clusterings by requested time. Files with the requested layout are not sorted
            again.
        max_file_bytes: Assumed size of a slice without base file, as in Hudi.

    Raises:
        UserError: The policy selects a partition that the table does not have.
    """
    ordered_slices = sorted(slices, key=lambda s: (s.partition, s.file_id))
    layout = Layout(columns=policy.columns, curve=policy.layout)
    free: dict[str, list[FileSlice]] = {}
    for piece in ordered_slices:
        small = policy.whole_partitions or (piece.base.size_bytes if piece.base else 0) < policy.small_file_bytes
        if small and (piece.partition, piece.file_id) not in busy_groups:
            free.setdefault(piece.partition, []).append(piece)
    groups: list[ClusteringGroup] = []
    missing: set[str] = set()
    for partition in partitions_of([piece.partition for piece in ordered_slices], policy, hour, selected):
        for packed in _packed(free.get(partition, []), policy, max_file_bytes):
            size = sum(_size(piece, max_file_bytes) for piece in packed)
            outputs = max(math.ceil(size / policy.target_file_bytes), 1)
            if not _gains(packed, outputs, policy, layout, laid_out or {}):
                continue
            if len(groups) >= policy.max_groups:
                missing.add(partition)
                continue
            pieces = tuple(ClusteredSlice.of(piece) for piece in packed)
            groups.append(ClusteringGroup(slices=pieces, outputs=outputs, metrics=metrics_of(packed, max_file_bytes)))
    if not groups:
        return None
    return ClusteringPlan(
        groups=tuple(groups),
        params={SORT_COLUMNS: policy.sort_columns} if policy.columns else {},
        extra={LAYOUT_KEY: policy.layout},
        missing_partitions=tuple(sorted(missing)),
    )


def partitions_of(
    paths: Iterable[str], selection: ClusteringFilter, hour: int, selected: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the partitions that the filter selects, sorted; `selected` replaces the paths of the filter's option."""
    partitions = sorted(set(paths))
    selected = selected or selection.selected_partitions
    for name in selected:
        if name not in partitions:
            raise UserError(f"{name!r} is not a partition with files.{nearest(name, partitions)}", partition=name)
    if selected:
        partitions = [name for name in partitions if name in selected]
    if selection.partition_pattern:
        partitions = [name for name in partitions if selection.covers(name)]
    if selection.partition_mode == "RECENT_DAYS":
        newest = partitions[::-1][selection.skip_latest_partitions :]
        return tuple(sorted(newest[: selection.lookback_partitions] if selection.lookback_partitions else newest))
    if selection.partition_mode == "SELECTED_PARTITIONS":
        return tuple(name for name in partitions if selection.first_partition <= name <= selection.last_partition)
    if selection.partition_mode == "DAY_ROLLING":
        return tuple(name for number, name in enumerate(partitions) if number % _HOURS == hour)
    return tuple(partitions)


def layout_text(layout: Layout) -> str:
    """Return a layout as text for the commit metadata of a clustering; empty for unsorted rows."""
    return f"{layout.curve}:{','.join(layout.columns)}" if layout.columns else ""


def layout_from_metadata(metadata: CommitMetadata) -> Layout | None:
    """Return the layout in the commit metadata of a clustering, or None if it has none."""
    curve, _, columns = metadata.extra.get(LAYOUT_KEY, "").partition(":")
    return Layout(columns=tuple(columns.split(",")), curve=curve) if columns else None


def layout_of(plan: ClusteringPlan, default: str) -> Layout:
    """Return the layout of a plan; a plan without curve, as Hudi writes it, gets the curve `default`."""
    columns = tuple(name.strip() for name in plan.params.get(SORT_COLUMNS, "").split(",") if name.strip())
    curve = plan.extra.get(LAYOUT_KEY, default)
    return Layout(columns=columns, curve=curve if curve in LAYOUTS else default)


def aborts_on_conflict(plan: ClusteringPlan) -> bool:
    """Return whether the executor of the plan aborts on conflicts with completed writes.

    The executor of this package does. Plans of other writers may have another executor.
    """
    return LAYOUT_KEY in plan.extra


def metrics_of(slices: Sequence[FileSlice], max_file_bytes: int) -> dict[str, float]:
    """Return the cost of clustering slices, with the keys of Hudi's plans, in whole MB as in Hudi."""
    logs = sum(piece.total_log_bytes for piece in slices)
    base = sum(piece.base.size_bytes for piece in slices if piece.base)
    read, write = (base + logs) // _MB, sum(_size(piece, max_file_bytes) for piece in slices) // _MB
    return {
        "TOTAL_LOG_FILES": float(sum(len(piece.logs) for piece in slices)),
        "TOTAL_IO_MB": float(read + write),
        "TOTAL_IO_READ_MB": float(read),
        "TOTAL_LOG_FILES_SIZE": float(logs),
        "TOTAL_IO_WRITE_MB": float(write),
    }


def _bringing(timeline: Timeline) -> frozenset[Action]:
    # A timeline with delta commits belongs to a merge-on-read table, where every commit is a compaction.
    has_logs = any(instant.action is Action.DELTACOMMIT for instant in timeline)
    return frozenset({Action.DELTACOMMIT if has_logs else Action.COMMIT, Action.REPLACECOMMIT})


def _packed(slices: Sequence[FileSlice], policy: ClusteringPolicy, max_file_bytes: int) -> list[list[FileSlice]]:
    """Return the slices of one partition in groups of at most `group_bytes`, largest slices first."""
    if policy.whole_partitions:
        return [list(slices)] if slices else []
    groups: list[list[FileSlice]] = []
    size = 0
    for piece in sorted(slices, key=lambda s: -_size(s, max_file_bytes)):
        more = _size(piece, max_file_bytes)
        if not groups or size + more > policy.group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += more
    return groups


def _gains(
    slices: Sequence[FileSlice],
    outputs: int,
    policy: ClusteringPolicy,
    layout: Layout,
    laid_out: Mapping[str, Layout],
) -> bool:
    """Return whether rewriting the slices reduces the number of files, merges logs or sorts rows."""
    if len(slices) == 1 and not (policy.single_group or layout.columns):
        return False
    if len(slices) > outputs or any(piece.logs for piece in slices):
        return True
    made_by = {piece.base_instant for piece in slices}
    in_order = len(made_by) == 1 and laid_out.get(made_by.pop()) == layout
    return bool(layout.columns) and not in_order


def _size(piece: FileSlice, max_file_bytes: int) -> int:
    return piece.base.size_bytes if piece.base is not None else max_file_bytes
