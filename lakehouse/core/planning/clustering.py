"""Plan a clustering: whether it is due, and which file groups are rewritten together (TL-9.2).

The planner must run under the table lock that creates the plan's instant, on slices listed under that lock, or listed
before it if the timeline has not changed. The executor assumes that the slices of the plan contain all earlier writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.errors import UserError, nearest
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.display import Condition
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.clustering import LAYOUTS, SORT_COLUMNS, ClusteringFilter, ClusteringPolicy
from lakehouse.spec.options.write import WritePolicy

_Numbers = np.ndarray[Any, Any]
#: Function that returns for each slice whether its rows must be sorted.
Unsorted = Callable[[FileSlices], np.ndarray[Any, Any]]
#: Function that returns the policy of a partition, or None if clustering is disabled there.
PolicyOf = Callable[[str], ClusteringPolicy | None]

_MB = 1024 * 1024
_HOURS = 24
#: Key of the row layout in the extra metadata of plans and commits of this package. In Hudi the executor chooses the
#: layout.
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
    """The order of rows in files, by columns: lexicographic or along a space-filling curve.

    Without columns, rows are unsorted.
    """

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
    policy_of: PolicyOf | None = None,
) -> ClusteringPlan | None:
    """Return the clustering plan for the newest slices, or None if no group would benefit.

    Args:
        slices: The newest slice of each file group.
        busy_groups: File groups (partition, file id) of other pending plans and pending writes.
        policy: The clustering policy.
        selected: Partition paths to which the plan is limited; empty for the partitions of the policy's option.
        hour: The current hour, for the partition mode DAY_ROLLING.
        laid_out: Layouts of completed clusterings by requested time. Files with the requested layout are not sorted
            again.
        max_file_bytes: Assumed size of a slice without base file, as in Hudi.
        policy_of: Returns the policy that decides about the files of a partition; None means `policy` for all. `policy`
            always decides about partitions, row order and the number of groups.

    Raises:
        UserError: The policy selects a partition that the table does not have.
    """
    newest = FileSlices.of(slices).ordered()
    paths = partitions_of(pc.unique(newest.partitions).to_pylist(), policy, hour, selected)
    free = newest.filter(~newest.is_in_groups(busy_groups))
    layout = Layout(columns=policy.columns, curve=policy.layout)
    candidates: list[tuple[str, _Packed, int, int]] = []
    for own, partitions in partitions_by_policy(paths, policy, policy_of):
        small = own.whole_partitions | (free.base_sizes < own.small_file_bytes)
        packed = _packed(free.filter(small & free.flags(members(free.partitions, partitions))), own, max_file_bytes)
        outputs = np.maximum(np.ceil(packed.sizes / own.target_file_bytes), 1).astype(np.int64)
        gains = np.flatnonzero(_gains(packed, outputs, own, layout, laid_out or {}))
        names = packed.partitions.take(pa.array(gains)).to_pylist()
        candidates += [(name, packed, n, int(outputs[n])) for name, n in zip(names, gains.tolist(), strict=True)]
    # The sort is stable: groups of one partition keep their order.
    candidates.sort(key=lambda group: group[0])
    chosen, rest = candidates[: policy.max_groups], candidates[policy.max_groups :]
    if not chosen:
        return None
    return ClusteringPlan(
        groups=tuple(_group(packed.group(number), outputs, max_file_bytes) for _, packed, number, outputs in chosen),
        params={SORT_COLUMNS: policy.sort_columns} if policy.columns else {},
        extra={LAYOUT_KEY: policy.layout},
        missing_partitions=tuple(sorted({partition for partition, *_ in rest})),
    )


def partitions_by_policy(
    paths: Iterable[str], policy: ClusteringPolicy, policy_of: PolicyOf | None
) -> list[tuple[ClusteringPolicy, list[str]]]:
    """Return the partitions of each policy, without those in which clustering is switched off."""
    if policy_of is None:
        return [(policy, list(paths))]
    by_policy: dict[ClusteringPolicy, list[str]] = {}
    for path in paths:
        own = policy_of(path)
        if own is not None:
            by_policy.setdefault(own, []).append(path)
    return list(by_policy.items())


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
    """Return a layout as a string for the commit metadata of a clustering; empty for unsorted rows."""
    return f"{layout.curve}:{','.join(layout.columns)}" if layout.columns else ""


def layout_from_metadata(metadata: CommitMetadata) -> Layout | None:
    """Return the layout in the commit metadata of a clustering, or None without one."""
    curve, _, columns = metadata.extra.get(LAYOUT_KEY, "").partition(":")
    return Layout(columns=tuple(columns.split(",")), curve=curve) if columns else None


def layout_of(plan: ClusteringPlan, default: str) -> Layout:
    """Return the layout of a plan. A plan without a curve, as Hudi writes it, gets the curve `default`."""
    columns = tuple(name.strip() for name in plan.params.get(SORT_COLUMNS, "").split(",") if name.strip())
    curve = plan.extra.get(LAYOUT_KEY, default)
    return Layout(columns=columns, curve=curve if curve in LAYOUTS else default)


def aborts_on_conflict(plan: ClusteringPlan) -> bool:
    """Return whether the executor of the plan aborts on conflicts with completed writes.

    This package's executor does. Other writers may execute their plans with another one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """Slices of partitions in groups: `slices` are in the order of the groups, `starts` contains their limits.

    `slice_sizes` are the bytes of each slice, with an assumed size for slices without base file.
    """

    slices: FileSlices
    slice_sizes: _Numbers
    starts: _Numbers

    @property
    def sizes(self) -> _Numbers:
        """The bytes of each group."""
        return self.sums(self.slice_sizes)

    @property
    def counts(self) -> _Numbers:
        """The number of slices in each group."""
        counts: _Numbers = np.diff(self.starts)
        return counts

    @property
    def partitions(self) -> pa.Array:
        """The partition of each group."""
        return self.slices.partitions.take(pa.array(self.starts[:-1]))

    def sums(self, of_slices: _Numbers) -> _Numbers:
        """Return for each group the sum of a number per slice."""
        totals = np.concatenate(([0], np.cumsum(of_slices, dtype=np.int64)))
        sums: _Numbers = totals[self.starts[1:]] - totals[self.starts[:-1]]
        return sums

    def group(self, number: int) -> FileSlices:
        """Return the slices of one group."""
        return self.slices[int(self.starts[number]) : int(self.starts[number + 1])]


def _packed(slices: FileSlices, policy: ClusteringPolicy, max_file_bytes: int) -> _Packed:
    """Return each partition's slices in groups of at most `group_bytes`, in descending order of size."""
    # The size of a skeleton file does not show the size of its rows.
    sizes = np.where(slices.has_base & ~slices.is_skeleton, slices.base_sizes, max_file_bytes)
    partition = slices.partitions.dictionary_encode().indices.to_numpy()
    if not policy.whole_partitions:
        order = np.lexsort((-sizes, partition))
        slices, sizes, partition = slices.take(order), sizes[order], partition[order]
    limits = [*np.flatnonzero(np.diff(partition, prepend=-1)).tolist(), len(sizes)]
    starts = limits[:-1]
    if not policy.whole_partitions:
        # Cumulative bytes of the slices. A group ends before the slice that would make it too large.
        totals = np.cumsum(sizes, dtype=np.int64)
        starts = []
        for at, end in pairwise(limits):
            while at < end:
                starts.append(at)
                before = int(totals[at] - sizes[at])
                at = max(min(int(np.searchsorted(totals, before + policy.group_bytes, side="right")), end), at + 1)
    return _Packed(slices=slices, slice_sizes=sizes, starts=np.array([*starts, len(sizes)], np.int64))


# parameters: the packed groups, and the relevant parts of the policy
def _gains(
    packed: _Packed, outputs: _Numbers, policy: ClusteringPolicy, layout: Layout, laid_out: Mapping[str, Layout]
) -> _Numbers:
    """Return whether rewriting each group reduces the number of files, merges logs or skeleton files, or sorts rows."""
    is_sorting = bool(layout.columns)
    gains = (packed.counts > outputs) | (packed.sums(packed.slices.log_counts) > 0)
    if is_sorting and len(packed.counts):
        made_by = packed.slices.base_instants.dictionary_encode()
        code = made_by.indices.to_numpy()
        has_layout = np.array([laid_out.get(instant) == layout for instant in made_by.dictionary.to_pylist()])
        first = np.repeat(code[packed.starts[:-1]], packed.counts)
        gains |= packed.sums((code != first) | ~has_layout[code]) > 0
    if not (policy.single_group or is_sorting):
        gains &= packed.counts > 1
    # A skeleton file alone is worth it: the table then needs its source file no longer.
    numbers: _Numbers = gains | (packed.sums(packed.slices.is_skeleton) > 0)
    return numbers


def _group(slices: FileSlices, outputs: int, max_file_bytes: int) -> ClusteringGroup:
    """Return a group of a plan; only the slices of a plan become objects."""
    pieces = tuple(slices)
    return ClusteringGroup(
        slices=tuple(ClusteredSlice.of(piece) for piece in pieces),
        outputs=outputs,
        metrics=metrics_of(pieces, max_file_bytes),
    )


def _size(piece: FileSlice, max_file_bytes: int) -> int:
    return piece.base.size_bytes if piece.base is not None else max_file_bytes
