"""Invariants of compaction plans: repeatable, within the strategy's bounds, and complete for all completed logs."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.planning.compaction import compaction_due, plan_compaction, plan_log_compaction
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.compaction import STRATEGIES, TRIGGERS, CompactionPolicy
from tests.support.merged_groups import MergedGroups
from tests.support.tables import examples

MB = 1024 * 1024
NOW = "20260110120000000"
PARTITIONS = ("2026/01/01", "2026/01/05", "2026/01/09")


@st.composite
def slices(draw: st.DrawFn) -> list[FileSlice]:
    """Draw file slices of several file groups, with and without a base file and logs, of different sizes."""
    found = []
    for number in range(draw(st.integers(0, 8))):
        partition, file_id = draw(st.sampled_from(PARTITIONS)), f"group-{number}"
        base = None
        if draw(st.booleans()):
            size = draw(st.integers(0, 200)) * MB
            base = BaseFile(partition=partition, file_id=file_id, write_token="0-0-0", instant="1", size_bytes=size)
        sizes = draw(st.lists(st.integers(0, 50), max_size=6))
        logs = tuple(
            LogFile(
                partition=partition,
                file_id=file_id,
                instant=str(i + 2),
                version=1,
                write_token="0-0-0",
                size_bytes=megabytes * MB,
            )
            for i, megabytes in enumerate(sizes)
        )
        if base is not None or logs:
            found.append(FileSlice(partition=partition, file_id=file_id, base_instant="1", base=base, logs=logs))
    return found


@st.composite
def policies(draw: st.DrawFn) -> CompactionPolicy:
    """Draw a policy with one to three strategies and any thresholds."""
    return CompactionPolicy(
        strategy=",".join(draw(st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=3))),
        target_io_mb=draw(st.integers(0, 500)),
        log_bytes_threshold=draw(st.integers(0, 100)) * MB,
        log_files_threshold=draw(st.integers(0, 5)),
        target_partitions=draw(st.integers(0, 4)),
        partition_regex=draw(st.sampled_from(("2026", "0[15]$", "none"))),
        log_blocks_threshold=draw(st.integers(1, 5)),
    )


HELD = st.frozensets(st.tuples(st.sampled_from(PARTITIONS), st.sampled_from([f"group-{i}" for i in range(8)])))


@given(slices(), HELD, policies(), st.randoms(use_true_random=False))
@examples(200)
def test_compaction_plan_is_repeatable_and_names_whole_slices_of_free_groups(
    found: list[FileSlice], held: frozenset[tuple[str, str]], policy: CompactionPolicy, random: Random
) -> None:
    plan = plan_compaction(found, held, policy, now=NOW)
    shuffled = random.sample(found, len(found))
    assert plan_compaction(shuffled, held, policy, now=NOW) == plan
    assert plan_log_compaction(shuffled, held, policy) == plan_log_compaction(found, held, policy)
    by_group = {(s.partition, s.file_id): s for s in found}
    for operation in plan.operations if plan else ():
        planned = by_group[(operation.partition, operation.file_id)]
        assert operation.log_files == tuple(log.name for log in planned.logs) != ()
        assert operation.data_file == (planned.base.name if planned.base else None)
    groups = [(operation.partition, operation.file_id) for operation in (plan.operations if plan else ())]
    assert len(groups) == len(set(groups))
    assert not held & set(groups)


@given(slices(), policies())
@examples(200)
def test_compaction_plan_stays_within_bounds_and_thresholds_of_its_strategies(
    found: list[FileSlice], policy: CompactionPolicy
) -> None:
    plan = plan_compaction(found, (), policy, now=NOW)
    if plan is None:
        return
    operations = plan.operations
    if {"LogFileSizeBased", "LogFileNumBased", "BoundedIO", "DayBased"} & set(policy.strategies):
        # Only the last file group of a plan may reach the bound.
        assert sum(operation.metrics["TOTAL_IO_MB"] for operation in operations[:-1]) < policy.target_io_mb
    if "LogFileSizeBased" in policy.strategies:
        assert all(op.metrics["TOTAL_LOG_FILES_SIZE"] >= policy.log_bytes_threshold for op in operations)
    if "LogFileNumBased" in policy.strategies:
        assert all(len(op.log_files) >= policy.log_files_threshold for op in operations)
    if "DayBased" in policy.strategies:
        assert len({op.partition for op in operations}) <= policy.target_partitions


@given(slices(), HELD)
@examples(100)
def test_unbounded_compaction_plan_takes_every_free_slice_with_logs(
    found: list[FileSlice], held: frozenset[tuple[str, str]]
) -> None:
    plan = plan_compaction(found, held, CompactionPolicy(strategy="UnBounded"))
    taken = {(op.partition, op.file_id) for op in plan.operations} if plan else set()
    assert taken == {(s.partition, s.file_id) for s in found if s.logs} - held


@given(slices(), policies())
@examples(100)
def test_compaction_plan_names_the_partitions_of_groups_beyond_its_bound(
    found: list[FileSlice], policy: CompactionPolicy
) -> None:
    plan = plan_compaction(found, (), policy, now=NOW)
    if plan is None or len(policy.strategies) > 1 or policy.strategies[0] not in ("BoundedIO", "LogFileSizeBased"):
        return
    taken = {(op.partition, op.file_id) for op in plan.operations}
    assert set(plan.missing_partitions) == {
        s.partition for s in found if s.logs and (s.partition, s.file_id) not in taken
    }


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("write", "write", "complete", "plan")),
            st.integers(0, 7),
            st.lists(st.sampled_from(("g", "h")), unique=True, min_size=1),
        ),
        max_size=25,
    )
)
@examples(150)
def test_compaction_plan_names_exactly_the_logs_that_completed_before_it(
    steps: list[tuple[str, int, list[str]]],
) -> None:
    table, pending = MergedGroups(), list[Instant]()
    for verb, number, groups in steps:
        if verb == "write":
            pending.append(table.request(Action.DELTACOMMIT, groups))
        elif verb == "complete" and pending:
            table.complete(pending.pop(number % len(pending)))
        elif verb == "plan" and (planned := table.plan()):
            instant, plan = planned
            pending.append(instant)
            completed = {i.requested: i.completion for i in table.timeline.writes()}
            for operation in plan.operations:
                named = [name.split("_")[1].split(".")[0] for name in operation.log_files]
                assert all(completed[time] < instant.requested for time in named)
                base = BaseFile(
                    partition="p", file_id=operation.file_id, write_token="0-0-0", instant=instant.requested
                )
                assert sorted(table.included[base.name]) == table.committed()[operation.file_id]


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 600)), max_size=8, unique_by=lambda d: d[0]),
    st.none() | st.integers(0, 3000),
    st.sampled_from(TRIGGERS),
    st.integers(1, 6),
    st.integers(0, 4000),
)
@examples(150)
def test_compaction_due_is_monotone_in_time_and_reports_its_numbers(
    deltas: list[tuple[int, int]], compaction: int | None, trigger: str, commits: int, seconds: int
) -> None:
    def time(second: int) -> str:
        return f"2026011010{second // 60:02}{second % 60:02}000"

    def completed(action: Action, second: int, lasting: int) -> Instant:
        return Instant(
            requested=time(second), action=action, state=State.COMPLETED, completed=time(min(second + lasting, 3599))
        )

    instants = [completed(Action.DELTACOMMIT, second, lasting) for second, lasting in deltas]
    if compaction is not None:
        instants.append(completed(Action.COMMIT, compaction, 1))
    policy = CompactionPolicy(trigger=trigger, max_delta_commits=commits, max_delta_seconds=seconds)
    early = compaction_due(Timeline(tuple(instants)), policy, time(3599))
    late = compaction_due(Timeline(tuple(instants)), policy, NOW)
    assert late.due or not early.due
    assert late.delta_commits == early.delta_commits <= len(deltas)
    if late.delta_commits:
        assert f"{late.delta_commits} delta commits and {late.seconds:.0f} s" in late.reason
    else:
        assert not late.due
