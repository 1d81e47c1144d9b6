"""Clean plans as values: due cleans, retained commits and deleted slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from lakehouse.core.planning.clean import (
    CleanState,
    Horizon,
    clean_due,
    horizon_of,
    plan_clean,
    still_holds,
    touched_since,
)
from lakehouse.core.state.file_system_view import Group, visible_timeline
from lakehouse.model.clean import CleanedPartition, CleanMetadata
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.clean import CleanPolicy

VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
HOURS = "KEEP_LATEST_BY_HOURS"


def at(number: int) -> str:
    """Return the time of an instant."""
    return f"202501010000{number:05d}"


def write(requested: int, completed: int | None = None, action: Action = Action.COMMIT) -> Instant:
    """Return a completed write; by default it completes right after its request."""
    done = at(completed) if completed is not None else f"{at(requested)[:-1]}5"
    return Instant(requested=at(requested), action=action, state=State.COMPLETED, completed=done)


def pending(requested: int, action: Action = Action.COMMIT) -> Instant:
    return Instant(requested=at(requested), action=action, state=State.INFLIGHT)


def line(*instants: Instant) -> Timeline:
    return Timeline(instants)


WRITES = tuple(write(10 * n) for n in range(1, 7))


def base(instant: int, partition: str = "p", file_id: str = "g") -> BaseFile:
    return BaseFile(partition=partition, file_id=file_id, write_token="0-0-0", instant=at(instant))


def version(instant: int, *logs: int, partition: str = "p", file_id: str = "g") -> FileSlice:
    """Return a slice with a base file of `instant` and logs of the times `logs`."""
    return FileSlice(
        partition=partition,
        file_id=file_id,
        base_instant=at(instant),
        base=base(instant, partition, file_id),
        logs=tuple(log(number, partition=partition, file_id=file_id) for number in logs),
    )


def log(instant: int, suffix: str = "", partition: str = "p", file_id: str = "g") -> LogFile:
    return LogFile(
        partition=partition, file_id=file_id, instant=at(instant), version=1, write_token="0-0-0", suffix=suffix
    )


def state(timeline: Timeline, slices: Sequence[FileSlice], **more: object) -> CleanState:
    groups: dict[Group, list[FileSlice]] = {}
    for file_slice in sorted(slices, key=lambda s: s.base_instant, reverse=True):
        groups.setdefault((file_slice.partition, file_slice.file_id), []).append(file_slice)
    return CleanState(timeline=timeline, visible=visible_timeline(timeline, ()), groups=groups, **more)  # type: ignore[arg-type]


def removed(timeline: Timeline, slices: Sequence[FileSlice], policy: CleanPolicy, **more: object) -> list[str]:
    """Return the instant times of the base files that a plan deletes."""
    horizon = horizon_of(timeline, policy, at(0))
    plan = None if horizon is None else plan_clean(state(timeline, slices, **more), policy, horizon)
    return sorted(path.rpartition("_")[2].partition(".")[0] for path in plan.paths) if plan is not None else []


def earliest(timeline: Timeline, policy: CleanPolicy, since: int = 0) -> str | None:
    horizon = horizon_of(timeline, policy, at(since))
    assert horizon is None or horizon.earliest is not None
    return None if horizon is None or horizon.earliest is None else horizon.earliest.requested


def test_horizon_keeps_the_retained_number_of_commits() -> None:
    assert earliest(line(*WRITES), CleanPolicy(commits_retained=2)) == at(50)
    assert earliest(line(*WRITES), CleanPolicy(commits_retained=5)) == at(20)
    assert earliest(line(*WRITES), CleanPolicy(commits_retained=6)) is None


def test_horizon_by_hours_keeps_commits_from_a_time_on() -> None:
    policy = CleanPolicy(policy=HOURS)
    assert earliest(line(*WRITES), policy, since=35) == at(40)
    assert earliest(line(*WRITES), policy, since=40) == at(40)
    assert earliest(line(*WRITES), policy, since=61) is None


@pytest.mark.parametrize(
    "action", [Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.COMPACTION, Action.CLUSTERING]
)
def test_horizon_is_before_pending_writes_and_plans(action: Action) -> None:
    timeline = line(*WRITES, pending(25, action))
    for policy in (CleanPolicy(commits_retained=1), CleanPolicy(policy=HOURS)):
        assert earliest(timeline, policy, since=50) == at(20)
    assert earliest(line(*WRITES, pending(5, action)), CleanPolicy(commits_retained=1)) is None
    # Pending services that do not change data have no effect.
    for harmless in (Action.CLEAN, Action.ROLLBACK, Action.INDEXING):
        assert earliest(line(*WRITES, pending(25, harmless)), CleanPolicy(commits_retained=1)) == at(60)


def test_versions_policy_keeps_slices_that_pending_writes_read() -> None:
    policy = CleanPolicy(policy=VERSIONS, versions_retained=2)
    slices = [version(10 * number) for number in range(1, 7)]
    assert removed(line(*WRITES), slices, policy) == [at(10), at(20), at(30), at(40)]
    assert removed(line(*WRITES, pending(35)), slices, policy) == [at(10)], (
        "the slice that the pending write reads and one before it are kept"
    )
    assert removed(line(*WRITES, pending(5)), slices, policy) == []
    assert removed(line(*WRITES, pending(35, Action.COMPACTION)), slices, policy) == [at(10), at(20), at(30), at(40)]


def test_clean_keeps_the_newest_slice_and_one_before_the_horizon() -> None:
    policy = CleanPolicy(commits_retained=2)
    assert removed(line(*WRITES), [version(10 * number) for number in range(1, 7)], policy) == [at(10), at(20), at(30)]
    assert removed(line(*WRITES), [version(10), version(30)], policy) == [at(10)]
    assert removed(line(*WRITES), [version(10)], policy) == []
    assert removed(line(*WRITES), [version(10), version(60)], policy) == []


def test_clean_keeps_the_slice_before_a_compaction_that_completed_late() -> None:
    # The horizon 40 completed before the compaction 30 did. A read as of 40 therefore needs the slice of 10.
    timeline = line(*WRITES[:2], write(30, completed=55), *WRITES[3:])
    slices = [version(10, 20), version(30, 40)]
    assert removed(timeline, slices, CleanPolicy(commits_retained=3)) == []
    later = line(*timeline, write(70), write(80), write(90))
    assert len(removed(later, slices, CleanPolicy(commits_retained=3))) == 2


def test_clean_deletes_logs_and_change_logs_with_their_slices() -> None:
    timeline, policy = line(*WRITES), CleanPolicy(commits_retained=2)
    changes = [log(10, ".cdc"), log(20, ".cdc"), log(30, ".cdc"), log(60, ".cdc"), log(65, ".cdc")]
    horizon = horizon_of(timeline, policy, "")
    assert horizon is not None
    plan = plan_clean(state(timeline, [version(10, 20), version(30)], change_logs=changes), policy, horizon)
    assert plan is not None and set(plan.paths) == {
        base(10).path,
        log(20).path,
        log(10, ".cdc").path,
        log(20, ".cdc").path,
    }


def test_clean_keeps_slices_of_savepoints_pins_and_compaction_plans() -> None:
    slices = [version(10, 15), version(30), version(50)]
    policy = CleanPolicy(commits_retained=1)
    assert len(removed(line(*WRITES), slices, policy)) == 3
    assert removed(line(*WRITES), slices, policy, protected_paths=frozenset({log(15).path})) == [at(30)], (
        "all files of a slice are kept"
    )
    assert removed(line(*WRITES), slices, policy, needed_from={("p", "g"): at(10)}) == []
    assert len(removed(line(*WRITES), slices, policy, needed_from={("p", "g"): at(30)})) == 2
    versions = CleanPolicy(policy=VERSIONS, versions_retained=2)
    assert removed(line(*WRITES), slices, versions, needed_from={("p", "g"): at(50)})[1:] != []


def metadata(earliest: int | None, extra: Mapping[str, str] | None = None, failed: Sequence[str] = ()) -> CleanMetadata:
    return CleanMetadata(
        start_time=at(99),
        seconds=0,
        earliest="" if earliest is None else at(earliest),
        last_completed=at(50),
        partitions={"p": CleanedPartition(policy="KEEP_LATEST_COMMITS", deleted=(), failed=tuple(failed))},
        extra=dict(extra or {}),
    )


def touched(last: CleanMetadata | None, *more: Instant, pinned: frozenset[str] = frozenset()) -> list[str] | None:
    timeline = line(*WRITES, *more)
    horizon = Horizon(requested=at(50), completed=at(55), earliest=WRITES[4])
    found = touched_since(timeline, last, horizon, pinned, archived_before=at(10))
    return None if found is None else [instant.requested for instant in found]


def test_incremental_clean_lists_partitions_of_writes_between_two_horizons() -> None:
    assert touched(metadata(30)) == [at(30), at(40)]
    assert touched(metadata(50)) == []
    # The write 22 completed after the horizon of the last clean.
    assert touched(metadata(30), write(22, completed=45)) == [at(22), at(30), at(40)]
    assert touched(metadata(30), write(42, completed=58)) == [at(30), at(40)], (
        "the write 42 completes after the new horizon"
    )


def test_clean_lists_all_partitions_if_the_last_clean_is_insufficient() -> None:
    assert touched(None) is None
    assert touched(metadata(None)) is None
    assert touched(metadata(5)) is None, "the earliest retained commit of the last clean is archived"
    assert touched(metadata(30, failed=["x"])) is None
    savepoint = Instant(requested=at(20), action=Action.SAVEPOINT, state=State.COMPLETED, completed=at(21))
    last_clean = metadata(30, {"savepointed_timestamps": at(20)})
    assert touched(last_clean) is None and touched(last_clean, savepoint) == [at(30), at(40)]
    pins = metadata(30, {"lakehouse.pinned_timestamps": f"{at(20)},{at(30)}"})
    assert touched(pins, pinned=frozenset({at(20)})) is None
    assert touched(pins, pinned=frozenset({at(20), at(30)})) == [at(30), at(40)]


def test_clean_due_counts_writes_since_the_last_clean() -> None:
    policy = CleanPolicy(commits_retained=2, max_commits=2)
    assert clean_due(line(*WRITES), policy, None, "").due
    answer = clean_due(line(*WRITES), policy, metadata(30), "")
    assert (answer.due, answer.commits) == (False, 1) and "due after 2" in answer.reason
    assert clean_due(line(*WRITES, write(70)), policy, metadata(30), "").due
    assert not clean_due(line(*WRITES), CleanPolicy(), None, "").due
    unfinished = clean_due(line(*WRITES, pending(80, Action.CLEAN)), policy, metadata(30), "")
    assert unfinished.due and f"the clean {at(80)} is not finished" in unfinished.reason


def test_clean_plan_holds_after_writes_and_not_after_undo_or_savepoint() -> None:
    before = line(*WRITES)
    assert still_holds(before, line(*WRITES, write(70), pending(80)))
    assert still_holds(line(*WRITES, pending(80)), line(*WRITES, write(80)))
    assert not still_holds(before, line(*WRITES[:-1]))
    for action in (Action.SAVEPOINT, Action.CLEAN, Action.ROLLBACK, Action.RESTORE):
        assert not still_holds(before, line(*WRITES, pending(80, action)))
