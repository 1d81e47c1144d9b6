"""Plan a clean: whether it is due, which instants stay readable, and which files are deleted (TL-9.3).

    writes    b1 ..... b2 ..... b3 ..... E ..... b4 ..... now        one file group; E is the earliest retained write
              delete   delete   keep     keep    keep

All views from E on are retained: views as of a requested time, and views up to a completion time, not earlier than E. A
slice is deleted if all retained views contain the base file of a newer slice of its group. A replaced group is deleted
if all retained views contain the commit that replaced it. Hudi uses the same rules (`CleanPlanner`), but only compares
requested times. If writes do not complete in the order of their requests, this module keeps more files: a compaction
that was requested before E and completed after E hides no file from a reader at E.

A pending write needs its files, so E is older than the earliest pending write. The policy by file versions retains no
write, but keeps files of pending writes, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.state.file_system_view import Group, VisibleTimeline
from lakehouse.model.clean import CleanMetadata, CleanPlan
from lakehouse.model.display import Condition
from lakehouse.model.files import FileSlice, LogFile
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline
from lakehouse.spec.options.clean import CleanPolicy

#: Keys in the extra metadata of a plan: savepoints (as in Hudi), and pins, which only this package has.
SAVEPOINTS_KEY = "savepointed_timestamps"
PINS_KEY = "lakehouse.pinned_timestamps"
FILE_VERSIONS = "KEEP_LATEST_FILE_VERSIONS"

_COMPACTIONS = frozenset({Action.COMPACTION, Action.LOGCOMPACTION})
# A pending clustering needs the newest slices of its groups. A policy by versions never deletes the slices of a
# compaction plan.
_MAY_READ = WRITE_ACTIONS | {Action.CLUSTERING}
_AFTER_ALL = "9" * 17


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanDue(Condition):
    """Whether a clean is due, the reason, and the number of commits completed since the last clean."""

    due: bool
    reason: str
    commits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The writes that all retained views contain: requested before `requested` and completed up to `completed`.

    `earliest` is the earliest retained write; None for the policy by file versions.
    """

    requested: str
    completed: str
    earliest: Instant | None = None

    def passed(self, requested: str, completion: str) -> bool:
        """Return whether all retained views contain a write with these times."""
        return requested < self.requested and completion <= self.completed


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanState:
    """The table state that a clean plan is computed from.

    Attributes:
        timeline: The active timeline.
        visible: The file system view of the timeline.
        groups: All slices of the listed file groups, newest first.
        change_logs: Change logs (`.cdc` files) of the file groups.
        listed_paths: Paths of all data files in the listed partitions.
        needed_from: By file group, the first base instant whose slice a pending compaction needs.
        protected_paths: Paths that savepoints and pins keep.
        pinned: Requested times of pinned instants.
    """

    timeline: Timeline
    visible: VisibleTimeline
    groups: Mapping[Group, Sequence[FileSlice]]
    change_logs: Sequence[LogFile] = ()
    listed_paths: Collection[str] = ()
    needed_from: Mapping[Group, str] = field(default_factory=dict)
    protected_paths: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()


def clean_due(
    timeline: Timeline, policy: CleanPolicy, last: CleanMetadata | None, since: str, exported: str | None = None
) -> CleanDue:
    """Return whether a clean is due, from the timeline and the newest completed clean; see `horizon_of`."""
    writes = timeline.writes()
    commits = sum(write.requested > last.last_completed for write in writes) if last is not None else len(writes)
    pending = timeline.where(action=Action.CLEAN, pending=True)
    if pending:
        return CleanDue(due=True, reason=f"the clean {pending.instants[0].requested} is not finished", commits=commits)
    counted = f"{commits} writes since {f'the clean {last.start_time}' if last is not None else 'the first one'}"
    if commits < policy.max_commits:
        return CleanDue(due=False, reason=f"{counted}; due after {policy.max_commits}", commits=commits)
    horizon = horizon_of(timeline, policy, since, exported)
    if horizon is None:
        return CleanDue(due=False, reason=f"{counted}; all of them are retained", commits=commits)
    retained = f"; the earliest write retained is {horizon.earliest.requested}" if horizon.earliest is not None else ""
    return CleanDue(due=True, reason=f"{counted}{retained}", commits=commits)


def horizon_of(timeline: Timeline, policy: CleanPolicy, since: str, exported: str | None = None) -> Horizon | None:
    """Return the horizon of the policy, or None if all writes stay readable.

    Args:
        timeline: The active timeline.
        policy: The policy of the clean.
        since: The instant time from which on a policy by hours retains writes.
        exported: Requested time from which on views of other formats may lack writes. Readers of these views need
            their files, as a pending write does. None: there are no views.
    """
    writes = timeline.writes().instants
    if policy.policy == FILE_VERSIONS:
        pending = _earlier(_first_pending(timeline, _MAY_READ), exported)
        if pending is None:
            return Horizon(requested=_AFTER_ALL, completed=_AFTER_ALL)
        bound = _last_before(writes, pending)
        return None if bound is None else _horizon(bound, pending)
    if policy.policy == "KEEP_LATEST_COMMITS":
        count = len(writes) - policy.commits_retained
        earliest = writes[count] if count > 0 else None
    else:
        earliest = next((write for write in writes if write.requested >= since), None)
    pending = _earlier(_first_pending(timeline, _MAY_READ | _COMPACTIONS), exported)
    if earliest is not None and pending is not None and pending < earliest.requested:
        earliest = _last_before(writes, pending)
    return None if earliest is None else replace(_horizon(earliest, pending), earliest=earliest)


def touched_since(
    timeline: Timeline, last: CleanMetadata | None, horizon: Horizon, pinned: frozenset[str], *, archived_before: str
) -> tuple[Instant, ...] | None:
    """Return the writes whose partitions may have files to clean, or None if all partitions have to be listed.

    The last clean handled the writes before its horizon, so only writes between the two horizons are relevant. If a
    savepoint or a pin was deleted since, files of any partition may have been kept for it.
    """
    if last is None or horizon.earliest is None or not last.earliest or last.earliest < archived_before:
        return None
    released = _listed(last, SAVEPOINTS_KEY) - timeline.savepoints() or _listed(last, PINS_KEY) - pinned
    if released or any(partition.failed for partition in last.partitions.values()):
        return None
    # The last clean handled every write that completed before the request of its earliest retained write.
    return tuple(
        write
        for write in timeline.writes()
        if write.completion > last.earliest and horizon.passed(write.requested, write.completion)
    )


def plan_clean(state: CleanState, policy: CleanPolicy, horizon: Horizon) -> CleanPlan | None:
    """Return the plan that deletes the files no retained view needs, or None if there are none."""
    logs: dict[Group, list[LogFile]] = {}
    for log in state.change_logs:
        if state.visible.shows(log.instant):
            logs.setdefault((log.partition, log.file_id), []).append(log)
    files: dict[str, list[str]] = {}
    for group in sorted({*state.groups, *logs}):
        slices = state.groups.get(group, ())
        removable = _removable_slices(group, slices, state, policy, horizon)
        paths = [path for file_slice in removable for path in slice_paths(file_slice)]
        paths += _removable_change_logs(group, slices, removable, logs.get(group, ()), state, horizon)
        if paths:
            files.setdefault(group[0], []).extend(paths)
    if not files:
        return None
    nonempty = {path.rpartition("/")[0] for path in {*state.listed_paths}.difference(*files.values())}
    writes = state.timeline.writes().instants
    retained_times = {SAVEPOINTS_KEY: state.timeline.savepoints(), PINS_KEY: state.pinned}
    return CleanPlan(
        policy=policy.policy,
        earliest=horizon.earliest,
        last_completed=writes[-1].requested if writes else "",
        files={partition: tuple(paths) for partition, paths in files.items()},
        # The root of the table is never deleted as an empty partition.
        partitions_to_delete=tuple(partition for partition in files if partition and partition not in nonempty),
        extra={key: ",".join(sorted(times)) for key, times in retained_times.items() if times},
    )


def still_holds(before: Timeline, now: Timeline) -> bool:
    """Return whether a plan that was computed on the timeline `before` may be executed on the later timeline `now`.

    Later writes need no file of the plan, but after a rollback, or for a new savepoint, a file may be needed.
    """
    removed_writes = {write.key for write in before.writes()} - {write.key for write in now.writes()}
    undoing = {Action.CLEAN, Action.SAVEPOINT, Action.ROLLBACK, Action.RESTORE}
    return not removed_writes and before.where(action=undoing) == now.where(action=undoing)


def _removable_slices(
    group: Group, slices: Sequence[FileSlice], state: CleanState, policy: CleanPolicy, horizon: Horizon
) -> Sequence[FileSlice]:
    needed_from = state.needed_from.get(group)
    free = [s for s in slices if needed_from is None or s.base_instant < needed_from]
    replaced = state.visible.replaced.get(group)
    if replaced is not None:
        removable = free if horizon.passed(replaced.requested, replaced.completion) else []
    else:
        anchor = _anchor(slices, state.visible, horizon)
        older = () if anchor is None else slices[anchor + 1 :]
        if policy.policy == FILE_VERSIONS:
            # The slice of a pending compaction counts as the newest version.
            counted = policy.versions_retained - (needed_from is not None)
            older = [s for s in free[counted:] if s in older]
        removable = [s for s in older if s in free]
    return [s for s in removable if state.protected_paths.isdisjoint(slice_paths(s))]


def _anchor(slices: Sequence[FileSlice], visible: VisibleTimeline, horizon: Horizon) -> int | None:
    """Return the position of the newest slice whose base instant all retained views contain."""
    for position, file_slice in enumerate(slices):
        if horizon.passed(file_slice.base_instant, visible.completion(file_slice.base_instant)):
            return position
    return None


# parameters: a file group with its slices and change logs, and the state and horizon used for planning
def _removable_change_logs(
    group: Group,
    slices: Sequence[FileSlice],
    removable: Sequence[FileSlice],
    logs: Sequence[LogFile],
    state: CleanState,
    horizon: Horizon,
) -> list[str]:
    """Return the paths of change logs to delete. A change log belongs to the newest slice that is older than it."""
    if not logs:
        return []
    removed_instants = {file_slice.base_instant for file_slice in removable}
    # A change log that is older than all slices belongs to a slice that an earlier clean deleted.
    replaced = state.visible.replaced.get(group)
    if replaced is not None:
        orphaned = not slices and horizon.passed(replaced.requested, replaced.completion)
    else:
        orphaned = _anchor(slices, state.visible, horizon) is not None
    paths = []
    for log in logs:
        completion = state.visible.completion(log.instant)
        start = next((s.base_instant for s in slices if s.base_instant <= completion), None)
        if (start in removed_instants if start is not None else orphaned) and log.path not in state.protected_paths:
            paths.append(log.path)
    return paths


def _horizon(earliest: Instant, pending: str | None) -> Horizon:
    completed = earliest.completion if pending is None else min(earliest.completion, pending)
    return Horizon(requested=earliest.requested, completed=completed)


def _first_pending(timeline: Timeline, actions: Collection[Action]) -> str | None:
    return min((instant.requested for instant in timeline.where(action=actions, pending=True)), default=None)


def _earlier(first: str | None, second: str | None) -> str | None:
    return min((time for time in (first, second) if time is not None), default=None)


def _last_before(writes: Sequence[Instant], requested: str) -> Instant | None:
    return next((write for write in reversed(writes) if write.requested < requested), None)


def _listed(last: CleanMetadata, key: str) -> frozenset[str]:
    return frozenset(filter(None, last.extra.get(key, "").split(",")))
