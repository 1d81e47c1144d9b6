"""Plan a compaction or log compaction: whether it is due, and which file groups it contains (TL-9.1).

The planners must run under the table lock that creates the plan's instant, on slices listed under that lock, or listed
before it if the timeline has not changed. A plan at P must contain every log file of its groups that completed before
P: readers assume that the base file of P includes all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import pyarrow.compute as pc

from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.errors import UserError
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.display import Condition
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State, Timeline, instant_moment
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.options.compaction import PARTITION_REGEX, CompactionPolicy
from lakehouse.spec.options.write import WritePolicy

_MB = 1024 * 1024
_MAX_FILE_BYTES = WritePolicy().max_file_bytes
_DAY = re.compile(r"(\d{4})[/-](\d{1,2})[/-](\d{1,2})")
_PARTITION_KEY = re.compile(r"(^|/)[^/=]*=")

_Operations = list[CompactionOperation]
#: Function that returns the policy of a partition, or None if the service is disabled there.
PolicyOf = Callable[[str], CompactionPolicy | None]
_Policies = Mapping[str, CompactionPolicy]
_BY_DAY = ("BoundedPartitionAware", "UnBoundedPartitionAware")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionDue(Condition):
    """Whether a compaction is due, the reason, and the delta commits and seconds since the last compaction."""

    due: bool
    reason: str
    delta_commits: int
    seconds: float


def compaction_due(timeline: Timeline, policy: CompactionPolicy, now: str) -> CompactionDue:
    """Return whether a compaction is due at `now` (an instant time of 17 or 14 digits), from the timeline only.

    The count includes delta commits that completed after the last compaction was requested, because that compaction
    does not contain their logs. Without such a delta commit no compaction is due.
    """
    last = last_compaction(timeline, requested=policy.trigger == "NUM_COMMITS_AFTER_LAST_REQUEST")
    deltas = delta_commits_since(timeline, last)
    if not deltas:
        since = "" if last is None else f" since compaction {last.requested}"
        return CompactionDue(
            due=False, reason=f"no delta commit{since}, so there is nothing to compact", delta_commits=0, seconds=0
        )
    start = last.requested if last is not None else deltas[0].requested
    seconds = (_moment(now) - _moment(start)).total_seconds()
    many, late = len(deltas) >= policy.max_delta_commits, seconds >= policy.max_delta_seconds
    commits, age = f"{policy.max_delta_commits} delta commits", f"{policy.max_delta_seconds} s"
    due, needed = {
        "NUM_COMMITS": (many, commits),
        "NUM_COMMITS_AFTER_LAST_REQUEST": (many, commits),
        "TIME_ELAPSED": (late, age),
        "NUM_AND_TIME": (many and late, f"{commits} and {age}"),
        "NUM_OR_TIME": (many or late, f"{commits} or {age}"),
    }[policy.trigger]
    since = f"compaction {start}" if last is not None else f"the first delta commit {start}"
    reason = f"{len(deltas)} delta commits and {seconds:.0f} s since {since}; due after {needed}"
    return CompactionDue(due=due, reason=reason, delta_commits=len(deltas), seconds=seconds)


def last_compaction(timeline: Timeline, *, requested: bool = False) -> Instant | None:
    """Return the completed compaction with the latest requested time. With `requested`, pending ones are included.

    Every commit of a merge-on-read table is a compaction.
    """
    compactions = list(timeline.where(action=Action.COMMIT, state=State.COMPLETED))
    if requested:
        compactions += timeline.where(action=Action.COMPACTION, pending=True)
    return max(compactions, key=lambda instant: instant.requested, default=None)


def delta_commits_since(timeline: Timeline, compaction: Instant | None) -> list[Instant]:
    """Return the completed delta commits whose logs the compaction does not contain; all if it is None."""
    deltas = timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    return [delta for delta in deltas if compaction is None or delta.completion >= compaction.requested]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionDue(Condition):
    """Whether a log compaction should be planned, the reason, and the number of delta commits that was compared."""

    due: bool
    reason: str
    delta_commits: int


def log_compaction_due(compaction: CompactionDue, policy: CompactionPolicy) -> LogCompactionDue:
    """Return whether there were at least as many delta commits as the threshold of log files per file group.

    A delta commit adds one log file to a file group, seldom more. Only the plan shows which groups have enough of them.
    """
    commits, threshold = compaction.delta_commits, policy.log_blocks_threshold
    reason = f"{commits} delta commits since the last compaction; file groups need {threshold} logs"
    return LogCompactionDue(due=commits >= threshold, reason=reason, delta_commits=commits)


# parameters: all inputs of a plan, most of them optional
def plan_compaction(
    slices: Iterable[FileSlice],
    busy_groups: Collection[tuple[str, str]],
    policy: CompactionPolicy,
    *,
    selected: Collection[str] = (),
    now: str | None = None,
    max_file_bytes: int = _MAX_FILE_BYTES,
    policy_of: PolicyOf | None = None,
    every_group: bool = False,
) -> CompactionPlan | None:
    """Return the plan of the policy's strategies for the newest slices, or None if no group has to be compacted.

    Args:
        slices: The newest slice of each file group.
        busy_groups: File groups (partition, file id) of other pending plans.
        policy: The compaction policy with its strategies.
        selected: Partition paths to which the plan is limited; empty for the partitions of the policy's option.
        now: An instant time, for strategies by day.
        max_file_bytes: Assumed base file size of a group that has none.
        policy_of: Returns the policy whose thresholds apply to a partition; None means `policy` for all.
        every_group: Also plan file groups without log files.

    Raises:
        UserError: A strategy needs the dates of partitions, and a partition path has none.
    """
    newest = FileSlices.of(slices)
    partitions = sorted(pc.unique(newest.partitions).to_pylist())
    if chosen_paths := frozenset(selected or policy.selected_partitions):
        partitions = [partition for partition in partitions if partition in chosen_paths]
    for strategy in policy.strategies:
        partitions = _partitions(strategy, partitions, policy, now)
    policies = _policies(partitions, policy, policy_of)
    partitions = sorted(policies)
    in_partitions = newest.filter(members(newest.partitions, partitions))
    logged = in_partitions if every_group else in_partitions.filter(in_partitions.log_counts > 0)
    operations = _operations(logged, busy_groups, max_file_bytes)
    chosen = operations
    for strategy in policy.strategies:
        chosen = _ORDERS.get(strategy, _everything)(chosen, policy, policies)
    if not chosen:
        return None
    planned_groups = {(operation.partition, operation.file_id) for operation in chosen}
    # Hudi's next planner only reads partitions that were written later, and partitions that this plan lists as missing.
    missing = {op.partition for op in operations if (op.partition, op.file_id) not in planned_groups}
    return CompactionPlan(operations=tuple(chosen), missing_partitions=tuple(sorted(missing)))


# parameters: all inputs of a plan, most of them optional
def plan_log_compaction(
    slices: Iterable[FileSlice],
    busy_groups: Collection[tuple[str, str]],
    policy: CompactionPolicy,
    *,
    log_compactions: Collection[str] = (),
    selected: Collection[str] = (),
    max_file_bytes: int = _MAX_FILE_BYTES,
    policy_of: PolicyOf | None = None,
) -> CompactionPlan | None:
    """Return a plan that merges log files in each group with many log files, or None if no group has enough.

    `log_compactions` are the instants of completed log compactions. The log files that they merged stay in the slice,
    so only later log files are counted. A plan lists all log files of the slice, as in Hudi; the reader decides which
    blocks are valid. `selected` limits the plan to some partitions; if it is empty, the policy's option decides.
    `policy_of` returns the policy whose threshold applies to a partition.
    """

    def logs_since(file_slice: FileSlice) -> int:
        merged = max((log.instant for log in file_slice.logs if log.instant in log_compactions), default="")
        return sum(log.instant > merged for log in file_slice.logs)

    columns = FileSlices.of(slices)
    chosen = frozenset(selected or policy.selected_partitions)
    paths = [p for p in pc.unique(columns.partitions).to_pylist() if not chosen or p in chosen]
    policies = _policies(paths, policy, policy_of)
    least = max(min((own.log_blocks_threshold for own in policies.values()), default=1), 1)
    logged = columns.filter(columns.log_counts >= least)
    candidates = logged.filter(members(logged.partitions, sorted(policies)))
    # Slice objects are made only for slices with log files.
    worth = [s for s in candidates if logs_since(s) >= max(policies[s.partition].log_blocks_threshold, 1)]
    operations = _operations(worth, busy_groups, max_file_bytes)
    return CompactionPlan(operations=tuple(operations)) if operations else None


def metrics_of(file_slice: FileSlice, max_file_bytes: int = _MAX_FILE_BYTES) -> dict[str, float]:
    """Return the cost of compacting a slice, with the keys of Hudi's plans: MB, and bytes for TOTAL_LOG_FILES_SIZE.

    Hudi truncates to whole MB. Here fractions are kept, so that a bound is effective for many small groups, too.
    """
    base_bytes = file_slice.base.size_bytes if file_slice.base is not None else 0
    read = (base_bytes + file_slice.total_log_bytes) / _MB
    write = (base_bytes or max_file_bytes) / _MB
    return {
        "TOTAL_IO_READ_MB": read,
        "TOTAL_IO_WRITE_MB": write,
        "TOTAL_IO_MB": read + write,
        "TOTAL_LOG_FILES_SIZE": float(file_slice.total_log_bytes),
        "TOTAL_LOG_FILES": float(len(file_slice.logs)),
    }


def _operations(
    slices: Iterable[FileSlice], busy_groups: Collection[tuple[str, str]], max_file_bytes: int
) -> _Operations:
    free = [s for s in slices if (s.partition, s.file_id) not in busy_groups]
    return [
        CompactionOperation.of(file_slice, metrics_of(file_slice, max_file_bytes))
        for file_slice in sorted(free, key=lambda s: (s.partition, s.file_id))
    ]


def _partitions(strategy: str, partitions: list[str], policy: CompactionPolicy, now: str | None) -> list[str]:
    """Return the partitions that a strategy selects."""
    if strategy == "PartitionRegexBased":
        pattern = compile_pattern(policy.partition_regex, f"option {PARTITION_REGEX}")
        return [partition for partition in partitions if pattern.found_in(partition)]
    if strategy == "DayBased":
        newest = sorted(partitions, key=lambda partition: (_day(partition, strategy), partition), reverse=True)
        return sorted(newest[: policy.target_partitions])
    if strategy in _BY_DAY:
        if now is None:
            raise UserError(f"compaction strategy {strategy} counts days back from now, and no time was given")
        first = _days_before(_moment(now).date(), policy.target_partitions)
        recent = strategy == "BoundedPartitionAware"
        return [partition for partition in partitions if (_day(partition, strategy) >= first) is recent]
    return partitions


def _days_before(day: date, days: int) -> date:
    return day - timedelta(days=days) if days < day.toordinal() else date.min


def _day(partition: str, strategy: str) -> date:
    """Return the date at the start of a partition path; keys as in `day=2026-01-31` are ignored."""
    match = _DAY.match(_PARTITION_KEY.sub(r"\1", partition))
    try:
        return date(*map(int, match.groups())) if match else _no_day(partition, strategy)
    except ValueError:
        return _no_day(partition, strategy)


def _no_day(partition: str, strategy: str) -> date:
    raise UserError(
        f"compaction strategy {strategy} needs partitions that begin with a date, yyyy/MM/dd or yyyy-MM-dd; "
        f"{partition!r} does not. Choose another hoodie.compaction.strategy",
        partition=partition,
    )


def _policies(
    partitions: Iterable[str], policy: CompactionPolicy, policy_of: PolicyOf | None
) -> dict[str, CompactionPolicy]:
    """Return the policies of the partitions in which the service is enabled."""
    by_partition = {partition: policy if policy_of is None else policy_of(partition) for partition in partitions}
    return {partition: own for partition, own in by_partition.items() if own is not None}


def _everything(operations: _Operations, _policy: CompactionPolicy, _policies: _Policies) -> _Operations:
    return operations


def _bounded(operations: _Operations, policy: CompactionPolicy, _policies: _Policies) -> _Operations:
    """Return operations up to and including the first that reaches the bound, so that large groups are compacted."""
    bounded: _Operations = []
    remaining_mb = float(policy.target_io_mb)
    for operation in operations:
        if remaining_mb <= 0:
            break
        bounded.append(operation)
        remaining_mb -= operation.metrics["TOTAL_IO_MB"]
    return bounded


def _by_log_size(operations: _Operations, policy: CompactionPolicy, policies: _Policies) -> _Operations:
    least = {partition: own.log_bytes_threshold for partition, own in policies.items()}
    return _bounded(_largest(operations, "TOTAL_LOG_FILES_SIZE", least), policy, policies)


def _by_log_files(operations: _Operations, policy: CompactionPolicy, policies: _Policies) -> _Operations:
    least = {partition: own.log_files_threshold for partition, own in policies.items()}
    return _bounded(_largest(operations, "TOTAL_LOG_FILES", least), policy, policies)


def _largest(operations: Sequence[CompactionOperation], key: str, least: Mapping[str, int]) -> _Operations:
    enough = [operation for operation in operations if operation.metrics[key] >= least[operation.partition]]
    return sorted(enough, key=lambda operation: -operation.metrics[key])


_ORDERS: dict[str, Callable[[_Operations, CompactionPolicy, _Policies], _Operations]] = {
    "LogFileSizeBased": _by_log_size,
    "LogFileNumBased": _by_log_files,
    "BoundedIO": _bounded,
    "DayBased": _bounded,
}


def _moment(instant: str) -> datetime:
    return instant_moment(instant) + timedelta(milliseconds=int(instant[14:17] or "999"))
