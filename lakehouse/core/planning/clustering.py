"""When a table is due for clustering, and which file groups a plan puts together (TL-9.2).

Call the planner under the lock under which the plan's instant is drawn, on slices listed there (or listed before, if
the timeline is still the same): who executes the plan takes its slices for all that was written to them before it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.errors import UserError, nearest
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.clustering import LAYOUTS, SORT_COLUMNS, ClusteringFilter, ClusteringPolicy
from lakehouse.spec.options.write import WritePolicy

_MB = 1024 * 1024
_HOURS = 24
#: Extra metadata of our plans, and of their commits: how rows are laid out. Hudi leaves that to who executes a plan.
LAYOUT_KEY = "lakehouse.clustering.layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringDue:
    """Whether a clustering is due, and the numbers that say so; `pending` are plans that wait to be run."""

    due: bool
    reason: str
    commits: int
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of rows in files: by columns, one after the other or along a curve. No columns: as they come."""

    columns: tuple[str, ...] = ()
    curve: str = LAYOUTS[0]


def clustering_due(timeline: Timeline, last: Instant | None, policy: ClusteringPolicy) -> ClusteringDue:
    """Return whether a clustering is due, from the timeline and the newest completed clustering, if there is one.

    Writes count that were completed since it was requested, compactions not among them: those bring no rows. A plan
    that waits to be run is due whatever the number.
    """
    pending = tuple(instant.requested for instant in timeline.where(action=Action.CLUSTERING, pending=True))
    writes = timeline.where(action=_bringing(timeline), state=State.COMPLETED)
    since = writes if last is None else writes.where(completed_after=last.requested)
    commits = sum(last is None or instant.key != last.key for instant in since)
    after = "" if last is None else f" since clustering {last.requested}"
    if pending:
        reason = f"clustering {pending[0]} is planned and waits to be run"
        return ClusteringDue(due=True, reason=reason, commits=commits, pending=pending)
    reason = f"{commits} commits{after}; it takes {policy.max_commits}"
    return ClusteringDue(due=commits > 0 and commits >= policy.max_commits, reason=reason, commits=commits)


def plan_clustering(
    slices: Iterable[FileSlice],
    held: Collection[tuple[str, str]],
    policy: ClusteringPolicy,
    *,
    hour: int = 0,
    laid_out: Mapping[str, Layout] | None = None,
    max_file_bytes: int = WritePolicy().max_file_bytes,
) -> ClusteringPlan | None:
    """Return the plan for the newest slices, None if clustering gains nothing.

    `held` are (partition, file id) groups that other plans hold or that a write is about to change. `laid_out` tells
    how completed clusterings, by their instants, laid out rows: what one of them left in the order that is asked for
    is not sorted again. A slice without base file is taken to be of `max_file_bytes`, as in Hudi; `hour` is that of
    now, for the mode DAY_ROLLING. Raises UserError for a selected partition that the table does not have.
    """
    found = sorted(slices, key=lambda s: (s.partition, s.file_id))
    layout = Layout(columns=policy.columns, curve=policy.layout)
    free: dict[str, list[FileSlice]] = {}
    for piece in found:
        small = policy.whole_partitions or (piece.base.size_bytes if piece.base else 0) < policy.small_file_bytes
        if small and (piece.partition, piece.file_id) not in held:
            free.setdefault(piece.partition, []).append(piece)
    groups: list[ClusteringGroup] = []
    missing: set[str] = set()
    for partition in partitions_of([piece.partition for piece in found], policy, hour):
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


def partitions_of(known: Iterable[str], chosen: ClusteringFilter, hour: int) -> tuple[str, ...]:
    """Return the partitions that are looked at, in order."""
    partitions = sorted(set(known))
    for name in chosen.selected_partitions:
        if name not in partitions:
            raise UserError(f"{name!r} is not a partition with files.{nearest(name, partitions)}", partition=name)
    if chosen.selected_partitions:
        partitions = [name for name in partitions if name in chosen.selected_partitions]
    if chosen.partition_pattern:
        partitions = [name for name in partitions if chosen.covers(name)]
    if chosen.partition_mode == "RECENT_DAYS":
        newest = partitions[::-1][chosen.skip_latest_partitions :]
        return tuple(sorted(newest[: chosen.lookback_partitions] if chosen.lookback_partitions else newest))
    if chosen.partition_mode == "SELECTED_PARTITIONS":
        return tuple(name for name in partitions if chosen.first_partition <= name <= chosen.last_partition)
    if chosen.partition_mode == "DAY_ROLLING":
        return tuple(name for number, name in enumerate(partitions) if number % _HOURS == hour)
    return tuple(partitions)


def layout_text(layout: Layout) -> str:
    """Return a layout as the commit of a clustering tells it; empty for rows as they come."""
    return f"{layout.curve}:{','.join(layout.columns)}" if layout.columns else ""


def layout_told(metadata: CommitMetadata) -> Layout | None:
    """Return how the commit of a clustering says that it laid out rows; None if it says nothing."""
    curve, _, columns = metadata.extra.get(LAYOUT_KEY, "").partition(":")
    return Layout(columns=tuple(columns.split(",")), curve=curve) if columns else None


def layout_of(plan: ClusteringPlan, default: str) -> Layout:
    """Return how a plan wants rows laid out; where it does not tell the curve, as plans of Hudi, it is `default`."""
    columns = tuple(name.strip() for name in plan.params.get(SORT_COLUMNS, "").split(",") if name.strip())
    curve = plan.extra.get(LAYOUT_KEY, default)
    return Layout(columns=columns, curve=curve if curve in LAYOUTS else default)


def gives_way(plan: ClusteringPlan) -> bool:
    """Return whether who executes the plan looks for writes that were faster: ours do, of others we cannot know."""
    return LAYOUT_KEY in plan.extra


def overtaken(plan: ClusteringPlan, commits: Iterable[tuple[Instant, CommitMetadata]]) -> str | None:
    """Return why the plan may not complete any more: one of `commits`, completed since, changed what it rewrites."""
    planned = {(piece.partition, piece.file_id): piece.names for piece in plan.slices}
    for instant, metadata in commits:
        replaced = {(partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids}
        changed = {
            (stat.partition, stat.file_id)
            for stat in metadata.stats
            if stat.path.rpartition("/")[2] not in planned.get((stat.partition, stat.file_id), ())
        }
        both = sorted(planned.keys() & (changed | replaced))
        if both:
            return f"{instant.requested} changed file group {both[0][1]} of {both[0][0]!r} first"
    return None


def metrics_of(slices: Sequence[FileSlice], max_file_bytes: int) -> dict[str, float]:
    """Return what clustering these slices takes, under the keys of Hudi's plans and in whole MB as there."""
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
    # On a merge-on-read table, told by its delta commits, every commit is a compaction.
    has_logs = any(instant.action is Action.DELTACOMMIT for instant in timeline)
    return frozenset({Action.DELTACOMMIT if has_logs else Action.COMMIT, Action.REPLACECOMMIT})


def _packed(slices: Sequence[FileSlice], policy: ClusteringPolicy, max_file_bytes: int) -> list[list[FileSlice]]:
    """Return the slices of one partition in groups: the largest first, until the next one would be too many bytes."""
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
    """Return whether rewriting these slices makes fewer files of them, merges logs, or orders their rows."""
    if len(slices) == 1 and not (policy.single_group or layout.columns):
        return False
    if len(slices) > outputs or any(piece.logs for piece in slices):
        return True
    made_by = {piece.base_instant for piece in slices}
    in_order = len(made_by) == 1 and laid_out.get(made_by.pop()) == layout
    return bool(layout.columns) and not in_order


def _size(piece: FileSlice, max_file_bytes: int) -> int:
    return piece.base.size_bytes if piece.base is not None else max_file_bytes
