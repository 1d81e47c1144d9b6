"""Archive plans as values: the instants that are moved out of the active timeline."""

from __future__ import annotations

import pytest

from lakehouse.core.format.timeline.archive import files_to_merge, history_file, merged_file, parse_history_file
from lakehouse.core.planning.archive import Bound, bound_of_clean, bound_of_compaction, plan_archive
from lakehouse.errors import UserError
from lakehouse.model.archive import HistoryFile
from lakehouse.model.clean import CleanPlan
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.archive import ArchivePolicy
from lakehouse.spec.options.clean import CleanPolicy
from lakehouse.spec.options.compaction import CompactionPolicy
from lakehouse.spec.options.parser import parse_options

POLICY = ArchivePolicy(min_commits=2, max_commits=4)
CLEAN = CleanPolicy(commits_retained=1)


def at(number: int) -> str:
    return f"202601010000{number:02}000"


def done(number: int, action: Action = Action.COMMIT, completed: int | None = None) -> Instant:
    """Return an action requested at second `number` and completed half a second later by default."""
    ends = f"{at(number)[:-3]}500" if completed is None else f"{at(completed)[:-3]}500"
    return Instant(requested=at(number), action=action, state=State.COMPLETED, completed=ends)


def pending(number: int, action: Action = Action.COMMIT, state: State = State.INFLIGHT) -> Instant:
    return Instant(requested=at(number), action=action, state=state)


def archived(
    *instants: Instant, policy: ArchivePolicy = POLICY, bounds: tuple[Bound, ...] = (), force: bool = False
) -> list[int]:
    found = plan_archive(Timeline(instants), policy, CLEAN, bounds, force=force)
    assert found.kept
    return [int(i.requested[12:14]) for i in found.instants]


def commits(*numbers: int) -> list[Instant]:
    return [done(number) for number in numbers]


def test_archive_starts_above_max_commits_and_keeps_min_commits() -> None:
    assert archived(*commits(1, 2, 3, 4)) == []
    assert archived(*commits(1, 2, 3, 4, 5)) == [1, 2, 3]
    assert archived(*commits(1, 2, 3), force=True) == [1]
    assert archived(*commits(1, 2), force=True) == []


def test_cleans_and_rollbacks_are_archived_with_older_commits_except_the_newest_clean() -> None:
    beside = [done(2, Action.CLEAN), done(4, Action.ROLLBACK), done(5, Action.CLEAN), pending(3, Action.CLEAN)]
    assert archived(*commits(1, 6, 7, 8, 9), *beside) == [1, 2, 4, 6, 7]
    assert archived(*commits(1, 6, 7, 8, 9), *beside, done(10, Action.CLEAN)) == [1, 2, 4, 5, 6, 7]


def test_completed_indexings_are_archived_with_older_commits_and_pending_ones_stay() -> None:
    beside = [done(2, Action.INDEXING), pending(3, Action.INDEXING), done(9, Action.INDEXING)]
    assert archived(*commits(1, 4, 6, 7, 8), *beside) == [1, 2, 4, 6]


@pytest.mark.parametrize("action", [Action.COMMIT, Action.COMPACTION, Action.CLUSTERING, Action.LOGCOMPACTION])
@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT])
def test_archive_stops_at_the_last_commit_before_a_pending_write(action: Action, state: State) -> None:
    assert archived(*commits(1, 2, 4, 5, 6, 7), pending(3, action, state)) == [1]
    assert archived(*commits(2, 3, 4, 5, 6), pending(1, action, state)) == []


def test_archive_keeps_commits_that_completed_after_the_request_of_a_pending_write() -> None:
    late = done(2, completed=9)
    assert archived(done(1), late, *commits(3, 4, 5, 6, 7), pending(8)) == [1]
    assert archived(done(1), late, *commits(3, 4, 5, 6, 10)) == [1, 2, 3, 4, 5]


def test_archive_keeps_the_commit_that_completed_last() -> None:
    assert archived(done(1), done(2, completed=20), *commits(3, 4, 5)) == [1]


def test_archive_stops_at_the_first_savepoint_unless_beyond_savepoint_is_set() -> None:
    saved = [*commits(1, 2, 3, 4, 5, 6), done(2, Action.SAVEPOINT)]
    assert archived(*saved) == [1]
    beyond = ArchivePolicy(min_commits=2, max_commits=4, beyond_savepoint=True)
    assert archived(*saved, policy=beyond) == [1, 3, 4, 5]
    half = [*commits(1, 2, 3, 4, 5, 6), pending(2, Action.SAVEPOINT)]
    assert archived(*half) == [1]


def test_archive_stops_at_a_given_bound() -> None:
    assert archived(*commits(1, 2, 3, 4, 5), bounds=(Bound(requested=at(2), reason="so"),)) == [1]


def test_archive_keeps_more_commits_than_the_clean_policy_retains() -> None:
    timeline = Timeline(tuple(commits(*range(1, 10))))
    by_commits = CleanPolicy(commits_retained=5)
    assert len(plan_archive(timeline, POLICY, by_commits, ()).instants) == 3
    by_hours = CleanPolicy(policy="KEEP_LATEST_BY_HOURS", hours_retained=1)
    assert plan_archive(timeline, POLICY, by_hours, ()).instants == ()
    by_versions = CleanPolicy(policy="KEEP_LATEST_FILE_VERSIONS")
    assert len(plan_archive(timeline, POLICY, by_versions, ()).instants) == 7


def test_archive_bound_is_the_first_replacecommit_that_is_not_cleaned() -> None:
    timeline = Timeline((*commits(1, 3), done(2, Action.REPLACECOMMIT), done(5, Action.REPLACECOMMIT)))

    def plan(earliest: int | None, **extra: str) -> CleanPlan:
        start = None if earliest is None else done(earliest)
        return CleanPlan(policy="", earliest=start, last_completed="", files={}, extra=extra)

    def bound(cleaned: CleanPlan | None, number: int = 6) -> str | None:
        found = bound_of_clean(timeline, None if cleaned is None else (done(number, Action.CLEAN), cleaned))
        return None if found is None else found.requested

    assert bound(None) == at(2)
    assert bound(plan(2)) == at(2)
    assert bound(plan(3)) == at(5)
    assert bound(plan(6)) is None
    assert bound(plan(None)) is None
    assert bound(plan(None), number=4) == at(5)
    assert bound(plan(3, savepointed_timestamps=f"{at(4)},{at(1)}")) == at(2)
    assert bound_of_clean(Timeline(tuple(commits(1, 2))), None) is None


def test_archive_keeps_delta_commits_that_make_a_compaction_due() -> None:
    policy = CompactionPolicy(max_delta_commits=2)
    deltas = [done(number, Action.DELTACOMMIT) for number in (1, 2, 4, 5, 6)]
    timeline = Timeline((*deltas, done(3)))

    def bound(timeline: Timeline, policy: CompactionPolicy) -> str | None:
        found = bound_of_compaction(timeline, policy)
        return None if found is None else found.requested

    assert bound(timeline, policy) == at(5)
    assert bound(timeline, CompactionPolicy(max_delta_commits=9)) == at(3)
    assert bound(Timeline(tuple(deltas)), policy) == at(5)
    assert bound(timeline, CompactionPolicy(max_delta_commits=2, trigger="TIME_ELAPSED")) is None
    assert bound(Timeline(), policy) is None


@pytest.mark.parametrize(
    "options",
    [
        {"hoodie.keep.min.commits": "30"},
        {"hoodie.keep.min.commits": "0"},
        {"hoodie.keep.max.commits": "20"},
        {"hoodie.timeline.compaction.batch.size": "1"},
    ],
)
def test_contradicting_archive_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        parse_options(options)


def test_history_files_of_a_full_level_are_merged_oldest_first() -> None:
    def file(number: int, level: int = 0, size: int = 10) -> HistoryFile:
        found = parse_history_file(f"{at(number)}_{at(number + 1)}_{level}.parquet", size)
        assert found is not None
        return found

    files = [file(5), file(1), file(3), file(0, level=1)]
    assert files_to_merge(files, 0, batch=4, target_bytes=100) == []
    assert files_to_merge(files, 0, batch=3, target_bytes=100) == [file(1), file(3), file(5)]
    assert files_to_merge(files, 0, batch=2, target_bytes=100) == [file(1), file(3)]
    assert files_to_merge(files, 0, batch=3, target_bytes=15) == [file(1), file(3)]
    assert files_to_merge([file(1, size=20), file(3), file(5, size=1)], 0, batch=3, target_bytes=15) == [
        file(3),
        file(5, size=1),
    ]
    assert files_to_merge([file(1, size=20), file(3, size=20)], 0, batch=2, target_bytes=15) == []
    assert files_to_merge([file(n, level=9) for n in (1, 3)], 9, batch=2, target_bytes=100) == []
    assert merged_file([file(3), file(1)]) == history_file(at(1), at(4), 1)
    assert parse_history_file("a.parquet", 1) is None
