"""When a clustering is due, what it puts together, and when it may not complete any more."""

from __future__ import annotations

import pytest

from lakehouse.core.planning.clustering import Layout, clustering_due, overtaken, partitions_of, plan_clustering
from lakehouse.errors import UserError
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.clustering import ClusteringPolicy
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table import parse_spec

MB = 1024 * 1024


def done(requested: int, action: Action = Action.COMMIT, completed: int | None = None) -> Instant:
    return Instant(
        requested=str(requested), action=action, state=State.COMPLETED, completed=str(completed or requested + 1)
    )


def file_slice(
    group: str, size_mb: int | None = 1, *, partition: str = "p", logs: int = 0, instant: str = "1"
) -> FileSlice:
    base = None
    if size_mb is not None:
        base = BaseFile(
            partition=partition, file_id=group, write_token="0-0-0", instant=instant, size_bytes=size_mb * MB
        )
    files = tuple(
        LogFile(partition=partition, file_id=group, instant=str(5 + i), version=1, write_token="0-0-0", size_bytes=MB)
        for i in range(logs)
    )
    return FileSlice(partition=partition, file_id=group, base_instant=instant, base=base, logs=files)


def policy(**given: object) -> ClusteringPolicy:
    return ClusteringPolicy(**given)  # type: ignore[arg-type]


def grouped(plan: ClusteringPlan | None) -> list[tuple[list[str], int]]:
    return [] if plan is None else [([piece.file_id for piece in g.slices], g.outputs) for g in plan.groups]


def test_so_many_commits_since_the_last_clustering_make_one_due() -> None:
    commits = [done(number) for number in (10, 20, 30)]
    answer = clustering_due(Timeline(tuple(commits)), None, policy())
    assert (answer.due, answer.commits, answer.reason) == (False, 3, "3 commits; due after 4")
    assert clustering_due(Timeline((*commits, done(40))), None, policy()).due
    last = done(25, Action.REPLACECOMMIT, 45)
    answer = clustering_due(Timeline((*commits, last, done(50))), last, policy(max_commits=2))
    # 30 completed while it ran: it does not hold those rows.
    assert (answer.due, answer.commits) == (True, 2)
    assert answer.reason == "2 commits since clustering 25; due after 2"
    assert not clustering_due(Timeline(()), None, policy(max_commits=0)).due


def test_on_a_merge_on_read_table_compactions_do_not_count() -> None:
    deltas = [done(number, Action.DELTACOMMIT) for number in (10, 20)]
    answer = clustering_due(Timeline((*deltas, done(30), done(40))), None, policy())
    assert answer.commits == 2


def test_a_plan_that_waits_is_due_at_once() -> None:
    pending = Instant(requested="30", action=Action.CLUSTERING, state=State.REQUESTED)
    answer = clustering_due(Timeline((done(10), pending)), None, policy())
    assert (answer.due, answer.pending) == (True, ("30",))
    assert "30 is planned and not executed" in answer.reason


def test_groups_are_filled_by_size_the_largest_first() -> None:
    slices = [file_slice("a", 10), file_slice("b", 40), file_slice("c", 30), file_slice("d", 20)]
    plan = plan_clustering(slices, (), policy(group_bytes=70 * MB, target_file_bytes=40 * MB))
    assert grouped(plan) == [(["d", "a"], 1)], "two files in place of b and c would be as many"
    plan = plan_clustering(slices, (), policy(group_bytes=70 * MB, target_file_bytes=80 * MB))
    assert grouped(plan) == [(["b", "c"], 1), (["d", "a"], 1)]
    assert plan is not None
    assert plan.groups[0].metrics["TOTAL_IO_READ_MB"] == plan.groups[0].metrics["TOTAL_IO_WRITE_MB"] == 70


def test_large_files_held_groups_and_what_gains_nothing_are_left_alone() -> None:
    slices = [file_slice("a"), file_slice("b"), file_slice("c", 300), file_slice("d", partition="q")]
    assert grouped(plan_clustering(slices, (), policy())) == [(["a", "b"], 1)]
    assert plan_clustering(slices, {("p", "a")}, policy()) is None
    whole = plan_clustering(slices, (), policy(whole_partitions=True))
    assert grouped(whole) == [(["a", "b", "c"], 1)]


def test_a_single_file_is_taken_for_its_logs_or_its_order() -> None:
    alone = [file_slice("a")]
    assert plan_clustering(alone, (), policy()) is None
    assert grouped(plan_clustering([file_slice("a", logs=2)], (), policy())) == [(["a"], 1)]
    assert plan_clustering([file_slice("a", logs=2)], (), policy(single_group=False)) is None
    by_x = policy(sort_columns="x", single_group=False)
    assert grouped(plan_clustering(alone, (), by_x)) == [(["a"], 1)]
    assert plan_clustering(alone, (), by_x, laid_out={"1": Layout(columns=("x",))}) is None
    assert plan_clustering(alone, (), by_x, laid_out={"1": Layout(columns=("x",), curve="hilbert")}) is not None
    two = [file_slice("a", 600, instant="1"), file_slice("b", 600, instant="2")]
    ordered = {instant: Layout(columns=("x",)) for instant in "12"}
    sorted_apart = policy(sort_columns="x", whole_partitions=True, target_file_bytes=600 * MB)
    assert plan_clustering(two, (), sorted_apart, laid_out=ordered) is not None, "two orders are none"


def test_a_slice_without_base_file_counts_as_a_full_one() -> None:
    plan = plan_clustering([file_slice("a", None, logs=1), file_slice("b")], (), policy(), max_file_bytes=120 * MB)
    assert grouped(plan) == [(["a", "b"], 1)]
    assert plan is not None and plan.groups[0].metrics["TOTAL_IO_WRITE_MB"] == 121
    assert plan.groups[0].slices[0].data_file is None


def test_a_plan_has_no_more_groups_than_it_may_and_says_where_more_are() -> None:
    slices = [file_slice(f"{p}{n}", partition=p) for p in "abc" for n in range(2)]
    plan = plan_clustering(slices, (), policy(max_groups=2))
    assert plan is not None
    assert [group.partition for group in plan.groups] == ["a", "b"]
    assert plan.missing_partitions == ("c",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "abcdef"),
        ({"partitions": "b, d/"}, "bd"),
        ({"partition_pattern": "[c-e]|x"}, "cde"),
        ({"partition_mode": "RECENT_DAYS"}, "ef"),
        ({"partition_mode": "RECENT_DAYS", "lookback_partitions": 3, "skip_latest_partitions": 1}, "cde"),
        ({"partition_mode": "RECENT_DAYS", "lookback_partitions": 0}, "abcdef"),
        ({"partition_mode": "SELECTED_PARTITIONS", "first_partition": "b", "last_partition": "cz"}, "bc"),
        ({"partition_mode": "DAY_ROLLING"}, "e"),
        ({"partitions": "a,b,c", "partition_mode": "RECENT_DAYS"}, "bc"),
    ],
)
def test_partitions_are_chosen(given: dict[str, object], expected: str) -> None:
    assert partitions_of("fedcba", policy(**given), hour=4) == tuple(expected)


def test_a_selected_partition_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="'day=1' is not a partition"):
        plan_clustering([file_slice("a", partition="day=2")], (), policy(partitions="day=1"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partition_pattern": "("}, "not a regular expression"),
        ({"partition_mode": "SELECTED_PARTITIONS", "first_partition": "a"}, "needs"),
        ({"layout": "z-ordr"}, "Did you mean 'z-order'"),
        ({"updates": "SparkRejectUpdate"}, "one of reject, give_way"),
        ({"sort_columns": "a,b,a"}, "twice"),
        ({"target_file_bytes": 0}, "at least 1"),
    ],
)
def test_options_that_mean_nothing_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        policy(**given)


def test_hudis_spellings_are_ours() -> None:
    assert [policy(layout=name).layout for name in ("LINEAR", "ZORDER", "z-order", "HILBERT")] == [
        "linear",
        "z-order",
        "z-order",
        "hilbert",
    ]
    long = "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
    assert (policy(updates=long).updates, policy().updates) == ("give_way", "reject")


def test_a_plan_is_overtaken_by_what_touched_its_groups_and_is_not_in_it() -> None:
    plan = plan_clustering([file_slice("a", logs=1), file_slice("b")], (), policy())
    assert plan is not None

    def wrote(file_id: str, path: str, **more: object) -> list[tuple[Instant, CommitMetadata]]:
        stat = WriteStat(partition="p", file_id=file_id, path=path)
        return [(done(9), CommitMetadata(operation=Operation.UPSERT, stats=(stat,), **more))]  # type: ignore[arg-type]

    assert overtaken(plan, wrote("c", "p/c_0-0-0_9.parquet")) is None
    assert overtaken(plan, wrote("a", "p/.a_5.log.1_0-0-0")) is None, "that log is in the plan"
    assert overtaken(plan, wrote("a", "p/.a_9.log.1_0-0-0")) == "9 changed file group a of 'p' before"
    assert overtaken(plan, wrote("b", "p/b_0-0-0_9.parquet")) is not None
    assert overtaken(plan, wrote("c", "p/c_0-0-0_9.parquet", replaced={"p": ("b",)})) is not None
    assert overtaken(plan, wrote("c", "p/c_0-0-0_9.parquet", replaced={"q": ("b",)})) is None


SPEC = """
table: t
location: lake/t
record_key: id
services:
  clustering: {sort_columns: [a, b], layout: hilbert, partition_mode: RECENT_DAYS, max_commits: 8, single_group: false}
"""


def test_a_spec_declares_a_clustering_by_the_names_of_its_settings() -> None:
    told = Policies().override(parse_spec(SPEC, source="t.yaml").call_options()).clustering
    assert (told.columns, told.layout, told.partition_mode) == (("a", "b"), "hilbert", "RECENT_DAYS")
    assert (told.max_commits, told.single_group) == (8, False)
    with pytest.raises(UserError, match=r"t.yaml.*unknown setting 'sort_column'. Did you mean 'sort_columns'"):
        parse_spec(SPEC.replace("sort_columns", "sort_column"), source="t.yaml")
    with pytest.raises(UserError, match=r"t.yaml.*Did you mean 'hilbert'"):
        parse_spec(SPEC.replace("hilbert", "hilbrt"), source="t.yaml")
