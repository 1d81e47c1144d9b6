"""Planning of cleans, on values: what is due, what is retained, which slices go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from lakehouse.core.planning.clean import (
    CleanState,
    Horizon,
    clean_due,
    horizon_of,
    partitions_of,
    plan_clean,
    still_holds,
    touched_since,
)
from lakehouse.core.state.file_system_view import Group, visible_timeline
from lakehouse.model.clean import CleanedPartition, CleanMetadata
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.clean import CleanPolicy

VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
HOURS = "KEEP_LATEST_BY_HOURS"


def at(number: int) -> str:
    """Return the time of an instant."""
    return f"202501010000{number:05d}"


def write(requested: int, completed: int | None = None, action: Action = Action.COMMIT) -> Instant:
    """Return a completed write; it completes right after its request unless told otherwise."""
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
    """Return a slice that begins with a base file of this time, under logs of these."""
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


def gone(timeline: Timeline, slices: Sequence[FileSlice], policy: CleanPolicy, **more: object) -> list[str]:
    """Return the times of the base files that a plan removes."""
    horizon = horizon_of(timeline, policy, at(0))
    plan = None if horizon is None else plan_clean(state(timeline, slices, **more), policy, horizon)
    return sorted(path.rpartition("_")[2].partition(".")[0] for path in plan.paths) if plan is not None else []


def earliest(timeline: Timeline, policy: CleanPolicy, since: int = 0) -> str | None:
    horizon = horizon_of(timeline, policy, at(since))
    assert horizon is None or horizon.earliest is not None
    return None if horizon is None or horizon.earliest is None else horizon.earliest.requested


def test_so_many_writes_are_retained() -> None:
    assert earliest(line(*WRITES), CleanPolicy(commits_retained=2)) == at(50)
    assert earliest(line(*WRITES), CleanPolicy(commits_retained=5)) == at(20)
    assert earliest(line(*WRITES), CleanPolicy(commits_retained=6)) is None


def test_writes_from_a_time_on_are_retained() -> None:
    policy = CleanPolicy(policy=HOURS)
    assert earliest(line(*WRITES), policy, since=35) == at(40)
    assert earliest(line(*WRITES), policy, since=40) == at(40)
    assert earliest(line(*WRITES), policy, since=61) is None


@pytest.mark.parametrize(
    "action", [Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.COMPACTION, Action.CLUSTERING]
)
def test_what_is_pending_holds_the_earliest_write_back(action: Action) -> None:
    timeline = line(*WRITES, pending(25, action))
    for policy in (CleanPolicy(commits_retained=1), CleanPolicy(policy=HOURS)):
        assert earliest(timeline, policy, since=50) == at(20)
    assert earliest(line(*WRITES, pending(5, action)), CleanPolicy(commits_retained=1)) is None
    # Services that change nothing a reader sees do not.
    for harmless in (Action.CLEAN, Action.ROLLBACK, Action.INDEXING):
        assert earliest(line(*WRITES, pending(25, harmless)), CleanPolicy(commits_retained=1)) == at(60)


def test_versions_are_counted_and_heed_pending_writes_only() -> None:
    policy = CleanPolicy(policy=VERSIONS, versions_retained=2)
    slices = [version(10 * number) for number in range(1, 7)]
    assert gone(line(*WRITES), slices, policy) == [at(10), at(20), at(30), at(40)]
    assert gone(line(*WRITES, pending(35)), slices, policy) == [at(10)], "what it read, and one slice before"
    assert gone(line(*WRITES, pending(5)), slices, policy) == []
    assert gone(line(*WRITES, pending(35, Action.COMPACTION)), slices, policy) == [at(10), at(20), at(30), at(40)]


def test_the_newest_slice_and_the_one_before_the_earliest_write_stay() -> None:
    policy = CleanPolicy(commits_retained=2)
    assert gone(line(*WRITES), [version(10 * number) for number in range(1, 7)], policy) == [at(10), at(20), at(30)]
    assert gone(line(*WRITES), [version(10), version(30)], policy) == [at(10)]
    assert gone(line(*WRITES), [version(10)], policy) == []
    assert gone(line(*WRITES), [version(10), version(60)], policy) == []


def test_a_compaction_that_took_longer_than_others_hides_nothing_from_who_reads_before_its_end() -> None:
    # E is 40, which completed before the compaction of 30 did: as of then, the slice of 10 is what there was.
    timeline = line(*WRITES[:2], write(30, completed=55), *WRITES[3:])
    slices = [version(10, 20), version(30, 40)]
    assert gone(timeline, slices, CleanPolicy(commits_retained=3)) == []
    later = line(*timeline, write(70), write(80), write(90))
    assert len(gone(later, slices, CleanPolicy(commits_retained=3))) == 2


def test_logs_go_with_their_slice_and_change_logs_with_theirs() -> None:
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


def test_what_a_savepoint_a_pin_or_a_plan_of_compaction_needs_stays() -> None:
    slices = [version(10, 15), version(30), version(50)]
    policy = CleanPolicy(commits_retained=1)
    assert len(gone(line(*WRITES), slices, policy)) == 3
    assert gone(line(*WRITES), slices, policy, kept=frozenset({log(15).path})) == [at(30)], "slices stay whole"
    assert gone(line(*WRITES), slices, policy, held={("p", "g"): at(10)}) == []
    assert len(gone(line(*WRITES), slices, policy, held={("p", "g"): at(30)})) == 2
    versions = CleanPolicy(policy=VERSIONS, versions_retained=2)
    assert gone(line(*WRITES), slices, versions, held={("p", "g"): at(50)})[1:] != []


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


def test_partitions_of_writes_between_two_horizons_are_looked_at() -> None:
    assert touched(metadata(30)) == [at(30), at(40)]
    assert touched(metadata(50)) == []
    # It completed too late for the clean before.
    assert touched(metadata(30), write(22, completed=45)) == [at(22), at(30), at(40)]
    assert touched(metadata(30), write(42, completed=58)) == [at(30), at(40)], "and this one for the clean to come"


def test_everything_is_looked_at_where_the_last_clean_does_not_tell_enough() -> None:
    assert touched(None) is None
    assert touched(metadata(None)) is None
    assert touched(metadata(5)) is None, "its earliest write is archived"
    assert touched(metadata(30, failed=["x"])) is None
    savepoint = Instant(requested=at(20), action=Action.SAVEPOINT, state=State.COMPLETED, completed=at(21))
    told = metadata(30, {"savepointed_timestamps": at(20)})
    assert touched(told) is None and touched(told, savepoint) == [at(30), at(40)]
    pins = metadata(30, {"lakehouse.pinned_timestamps": f"{at(20)},{at(30)}"})
    assert touched(pins, pinned=frozenset({at(20)})) is None
    assert touched(pins, pinned=frozenset({at(20), at(30)})) == [at(30), at(40)]


def test_partitions_are_those_written_to_and_those_replaced() -> None:
    stat = WriteStat(partition="p", file_id="g", path="p/x")
    commit = CommitMetadata(operation="INSERT_OVERWRITE", stats=(stat,), replaced={"q": ("g",)})
    assert partitions_of([(WRITES[0], commit)]) == ("p", "q")


def test_due_counts_writes_since_the_last_clean_looked() -> None:
    policy = CleanPolicy(commits_retained=2, max_commits=2)
    assert clean_due(line(*WRITES), policy, None, "").due
    answer = clean_due(line(*WRITES), policy, metadata(30), "")
    assert (answer.due, answer.commits) == (False, 1) and "due after 2" in answer.reason
    assert clean_due(line(*WRITES, write(70)), policy, metadata(30), "").due
    assert not clean_due(line(*WRITES), CleanPolicy(), None, "").due
    unfinished = clean_due(line(*WRITES, pending(80, Action.CLEAN)), policy, metadata(30), "")
    assert unfinished.due and f"the clean {at(80)} is not finished" in unfinished.reason


def test_a_plan_outlives_writes_and_nothing_that_goes_back() -> None:
    before = line(*WRITES)
    assert still_holds(before, line(*WRITES, write(70), pending(80)))
    assert still_holds(line(*WRITES, pending(80)), line(*WRITES, write(80)))
    assert not still_holds(before, line(*WRITES[:-1]))
    for action in (Action.SAVEPOINT, Action.CLEAN, Action.ROLLBACK, Action.RESTORE):
        assert not still_holds(before, line(*WRITES, pending(80, action)))
