"""Compaction plans: due compactions, and the file groups that a plan contains."""

from __future__ import annotations

import pytest

from lakehouse.core.planning.compaction import (
    CompactionDue,
    compaction_due,
    metrics_of,
    plan_compaction,
    plan_log_compaction,
)
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.compaction import CompactionPolicy

MB = 1024 * 1024
NOW = "20260110120000000"


def at(seconds: int) -> str:
    """Return an instant time in the hour before NOW."""
    return f"2026011011{seconds // 60:02}{seconds % 60:02}000"


def delta(requested: int, completed: int | None = None) -> Instant:
    state = State.INFLIGHT if completed is None else State.COMPLETED
    done = None if completed is None else at(completed)
    return Instant(requested=at(requested), action=Action.DELTACOMMIT, state=state, completed=done)


def compacted(requested: int, completed: int) -> Instant:
    return Instant(requested=at(requested), action=Action.COMMIT, state=State.COMPLETED, completed=at(completed))


def planned(requested: int) -> Instant:
    return Instant(requested=at(requested), action=Action.COMPACTION, state=State.REQUESTED)


def due(instants: list[Instant], now: str = NOW, **policy: object) -> CompactionDue:
    return compaction_due(Timeline(tuple(instants)), CompactionPolicy(**policy), now)  # type: ignore[arg-type]


def file_slice(
    group: str, logs: int = 1, *, partition: str = "p", base: int | None = 0, log: int = MB, first: int = 10
) -> FileSlice:
    """Return a slice with `logs` log files of `log` bytes each and a base file of `base` bytes."""
    base_file = None
    if base is not None:
        base_file = BaseFile(partition=partition, file_id=group, write_token="0-0-0", instant="1", size_bytes=base)
    files = tuple(
        LogFile(
            partition=partition, file_id=group, instant=str(first + i), version=1, write_token="0-0-0", size_bytes=log
        )
        for i in range(logs)
    )
    return FileSlice(partition=partition, file_id=group, base_instant="1", base=base_file, logs=files)


def planned_groups(plan: CompactionPlan | None) -> list[str]:
    return [] if plan is None else [operation.file_id for operation in plan.operations]


def test_compaction_is_due_after_max_delta_commits() -> None:
    deltas = [delta(i, i + 1) for i in range(0, 8, 2)]
    answer = due(deltas)
    assert answer == CompactionDue(
        due=False,
        reason=f"4 delta commits and 3600 s since the first delta commit {at(0)}; due after 5 delta commits",
        delta_commits=4,
        seconds=3600.0,
    )
    assert due([*deltas, delta(8, 9)]).due
    assert not due([*deltas, delta(8)]).due
    assert due(deltas, max_delta_commits=4).due


def test_delta_commits_count_from_the_request_of_the_last_compaction_by_their_completion() -> None:
    # The compaction of 10 does not hold the log of the delta commit that was requested before and completed after.
    instants = [delta(0, 1), delta(2, 11), compacted(10, 20), delta(12, 13)]
    answer = due(instants)
    assert (answer.delta_commits, answer.seconds) == (2, 3590.0)
    assert f"since compaction {at(10)}" in answer.reason


def test_a_pending_compaction_counts_as_the_last_one_only_where_requests_count() -> None:
    instants = [delta(0, 1), delta(2, 3), planned(10), delta(12, 13)]
    assert due(instants).delta_commits == 3
    assert due(instants, trigger="NUM_COMMITS_AFTER_LAST_REQUEST").delta_commits == 1


@pytest.mark.parametrize(
    ("trigger", "many", "late", "both"),
    [
        ("NUM_COMMITS", True, False, True),
        ("NUM_COMMITS_AFTER_LAST_REQUEST", True, False, True),
        ("TIME_ELAPSED", False, True, True),
        ("NUM_AND_TIME", False, False, True),
        ("NUM_OR_TIME", True, True, True),
    ],
)
def test_compaction_triggers_use_commits_time_or_both(trigger: str, many: bool, late: bool, both: bool) -> None:
    def is_due(commits: int, seconds: int) -> bool:
        deltas = [delta(0, 1), delta(2, 3)]
        return due(deltas, trigger=trigger, max_delta_commits=commits, max_delta_seconds=seconds).due

    assert (is_due(2, 3601), is_due(3, 3600), is_due(2, 3600)) == (many, late, both)
    assert not is_due(3, 3601)


def test_compaction_is_not_due_without_new_delta_commits() -> None:
    assert due([], trigger="TIME_ELAPSED").reason == "no delta commit, so there is nothing to compact"
    idle = due([delta(0, 1), compacted(2, 3)], trigger="TIME_ELAPSED", max_delta_seconds=1)
    assert idle == CompactionDue(
        due=False,
        reason=f"no delta commit since compaction {at(2)}, so there is nothing to compact",
        delta_commits=0,
        seconds=0.0,
    )


def test_instant_times_of_14_digits_end_their_second() -> None:
    old = Instant(requested="20260110115959", action=Action.DELTACOMMIT, state=State.COMPLETED)
    assert due([old]).seconds == 0.001
    with pytest.raises(CorruptTableError, match="'20260199000000' is not an instant time"):
        due([Instant(requested="20260199000000", action=Action.DELTACOMMIT, state=State.COMPLETED)])


def test_compaction_plan_names_files_and_io_of_each_slice() -> None:
    plan = plan_compaction(
        [file_slice("g", 2, base=10 * MB, log=3 * MB), file_slice("new", base=None)], (), CompactionPolicy()
    )
    assert plan is not None
    first, second = plan.operations
    assert (first.partition, first.file_id, first.base_instant) == ("p", "g", "1")
    assert first.data_file == "g_0-0-0_1.parquet"
    assert first.log_files == (".g_10.log.1_0-0-0", ".g_11.log.1_0-0-0")
    assert first.metrics == {
        "TOTAL_IO_READ_MB": 16.0,
        "TOTAL_IO_WRITE_MB": 10.0,
        "TOTAL_IO_MB": 26.0,
        "TOTAL_LOG_FILES_SIZE": 6.0 * MB,
        "TOTAL_LOG_FILES": 2.0,
    }
    # A group without base file is estimated to write a base file of the maximum size.
    assert (second.data_file, second.metrics["TOTAL_IO_WRITE_MB"]) == (None, 120.0)
    assert metrics_of(file_slice("new", base=None), 5 * MB)["TOTAL_IO_MB"] == 6.0


def test_compaction_skips_groups_without_logs_and_groups_of_other_plans() -> None:
    slices = [file_slice("a"), file_slice("b", 0), file_slice("c"), file_slice("a", partition="q")]
    plan = plan_compaction(slices, {("p", "a")}, CompactionPolicy())
    assert plan is not None
    assert [(op.partition, op.file_id) for op in plan.operations] == [("p", "c"), ("q", "a")]
    assert plan_compaction([file_slice("b", 0)], (), CompactionPolicy()) is None
    assert plan_compaction([file_slice("a")], {("p", "a")}, CompactionPolicy()) is None


def test_compaction_orders_groups_by_log_size_and_skips_small_logs() -> None:
    slices = [file_slice("a", log=2), file_slice("b", log=9), file_slice("c", 2, log=3), file_slice("d", log=1)]
    assert planned_groups(plan_compaction(slices, (), CompactionPolicy())) == ["b", "c", "a", "d"]
    plan = plan_compaction(slices, (), CompactionPolicy(log_bytes_threshold=6))
    assert plan is not None
    assert (planned_groups(plan), plan.missing_partitions) == (["b", "c"], ("p",))


def test_log_file_num_strategy_orders_groups_by_number_of_logs() -> None:
    slices = [file_slice("a", 1), file_slice("b", 3), file_slice("c", 2)]
    policy = CompactionPolicy(strategy="LogFileNumBased", log_files_threshold=2)
    assert planned_groups(plan_compaction(slices, (), policy)) == ["b", "c"]


def test_bounded_io_plan_ends_with_the_group_that_reaches_the_target() -> None:
    slices = [file_slice(name, base=MB) for name in "abcd"]
    # Each group needs 3 MB: it reads 2 MB and writes 1 MB.
    assert planned_groups(plan_compaction(slices, (), CompactionPolicy(strategy="BoundedIO", target_io_mb=6))) == [
        "a",
        "b",
    ]
    assert planned_groups(plan_compaction(slices, (), CompactionPolicy(strategy="BoundedIO", target_io_mb=7))) == [
        "a",
        "b",
        "c",
    ]
    assert planned_groups(plan_compaction(slices, (), CompactionPolicy(strategy="BoundedIO", target_io_mb=1))) == ["a"]
    assert planned_groups(plan_compaction(slices, (), CompactionPolicy(strategy="UnBounded", target_io_mb=1))) == list(
        "abcd"
    )


@pytest.mark.parametrize(
    "days",
    [
        ("2026/01/09", "2025/12/31", "2026/01/10"),
        ("2026-01-09", "2025-12-31", "2026-01-10"),
        ("day=2026-01-09", "day=2025-12-31", "day=2026-01-10"),
        ("y=2026/m=01/d=09", "y=2025/m=12/d=31", "y=2026/m=01/d=10"),
    ],
)
def test_day_based_strategies_parse_dates_in_partition_paths(days: tuple[str, ...]) -> None:
    slices = [file_slice(day[-2:], partition=day) for day in days]

    def chosen(strategy: str, partitions: int) -> list[str]:
        policy = CompactionPolicy(strategy=strategy, target_partitions=partitions)
        return sorted(planned_groups(plan_compaction(slices, (), policy, now=NOW)))

    assert chosen("DayBased", 2) == ["09", "10"]
    assert chosen("BoundedPartitionAware", 1) == ["09", "10"]
    assert chosen("BoundedPartitionAware", 0) == ["10"]
    assert chosen("UnBoundedPartitionAware", 1) == ["31"]


def test_day_based_strategy_counts_partitions_without_logs() -> None:
    slices = [file_slice("new", 0, partition="2026/01/02"), file_slice("old", partition="2026/01/01")]
    assert plan_compaction(slices, (), CompactionPolicy(strategy="DayBased", target_partitions=1)) is None


@pytest.mark.parametrize("partition", ["eu", "", "2026/13/01", "day=__HIVE_DEFAULT_PARTITION__"])
def test_day_based_strategy_refuses_a_partition_without_date(partition: str) -> None:
    with pytest.raises(UserError, match="needs partitions that begin with a date") as raised:
        plan_compaction([file_slice("g", partition=partition)], (), CompactionPolicy(strategy="DayBased"))
    assert repr(partition) in str(raised.value)
    with pytest.raises(UserError, match="counts days back from now"):
        plan_compaction([file_slice("g")], (), CompactionPolicy(strategy="BoundedPartitionAware"))


def test_compaction_partitions_are_selected_by_regular_expression() -> None:
    slices = [file_slice(str(i), partition=f"region={r}/day={i}") for i, r in enumerate(("eu", "us", "eu"))]
    policy = CompactionPolicy(strategy="PartitionRegexBased", partition_regex="=eu/")
    assert planned_groups(plan_compaction(slices, (), policy)) == ["0", "2"]


def test_compaction_partitions_are_selected_by_thousands_of_paths() -> None:
    slices = [file_slice(f"{i:04d}", partition=f"region=eu/day={i:04d}") for i in range(3_000)]
    policy = CompactionPolicy(partitions=",".join(f"region=eu/day={i:04d}" for i in range(1, 3_000)))
    assert planned_groups(plan_compaction(slices, (), policy)) == [f"{i:04d}" for i in range(1, 3_000)]
    one = CompactionPolicy(partitions="region=eu/day=0001/", log_blocks_threshold=1)
    assert planned_groups(plan_log_compaction(slices, (), one)) == ["0001"]


def test_compaction_strategies_are_applied_in_sequence() -> None:
    slices = [
        file_slice("a", 1, partition="2026/01/01"),
        file_slice("b", 2, partition="2026/01/02"),
        file_slice("c", 3, partition="2026/01/03"),
    ]
    policy = CompactionPolicy(strategy="DayBased,LogFileNumBased", target_partitions=2)
    assert planned_groups(plan_compaction(slices, (), policy)) == ["c", "b"]


def test_log_compaction_contains_groups_with_many_logs_since_the_last_one() -> None:
    slices = [file_slice("a", 4), file_slice("b", 5), file_slice("c", 5, base=None)]
    plan = plan_log_compaction(slices, {("p", "c")}, CompactionPolicy())
    assert plan is not None
    assert planned_groups(plan) == ["b"]
    assert len(plan.operations[0].log_files) == 5
    # The groups have logs 10 to 14. If a log compaction wrote log 14, no log is newer.
    assert plan_log_compaction(slices, (), CompactionPolicy(), log_compactions={"14"}) is None
    again = plan_log_compaction(slices, (), CompactionPolicy(log_blocks_threshold=2), log_compactions={"12"})
    assert again is not None
    assert planned_groups(again) == ["b", "c"]
