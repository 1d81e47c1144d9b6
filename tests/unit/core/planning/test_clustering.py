"""Clustering plans: due clusterings, groups of slices, and plans overtaken by other writes."""

from __future__ import annotations

import pytest

from lakehouse.core.planning.bucket_children import overtaken
from lakehouse.core.planning.clustering import Layout, clustering_due, partitions_of, plan_clustering
from lakehouse.core.planning.clustering_changes import unchanged_tasks, without_changed_slices
from lakehouse.errors import UserError
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.clustering import ClusteringPolicy
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.table_spec import parse_spec

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


def policy(**settings: object) -> ClusteringPolicy:
    return ClusteringPolicy(**settings)  # type: ignore[arg-type]


def grouped(plan: ClusteringPlan | None) -> list[tuple[list[str], int]]:
    return [] if plan is None else [([piece.file_id for piece in g.slices], g.outputs) for g in plan.groups]


def test_clustering_is_due_after_max_commits_since_the_last_one() -> None:
    commits = [done(number) for number in (10, 20, 30)]
    answer = clustering_due(Timeline(tuple(commits)), None, policy())
    assert (answer.due, answer.commits, answer.reason) == (False, 3, "3 commits; due after 4")
    assert clustering_due(Timeline((*commits, done(40))), None, policy()).due
    last = done(25, Action.REPLACECOMMIT, 45)
    answer = clustering_due(Timeline((*commits, last, done(50))), last, policy(max_commits=2))
    # Commit 30 completed while the clustering ran, so the clustering does not contain its rows.
    assert (answer.due, answer.commits) == (True, 2)
    assert answer.reason == "2 commits since clustering 25; due after 2"
    assert not clustering_due(Timeline(()), None, policy(max_commits=0)).due


def test_clustering_due_ignores_compactions_of_merge_on_read_tables() -> None:
    deltas = [done(number, Action.DELTACOMMIT) for number in (10, 20)]
    answer = clustering_due(Timeline((*deltas, done(30), done(40))), None, policy())
    assert answer.commits == 2


def test_pending_clustering_plan_is_due() -> None:
    pending = Instant(requested="30", action=Action.CLUSTERING, state=State.REQUESTED)
    answer = clustering_due(Timeline((done(10), pending)), None, policy())
    assert (answer.due, answer.pending) == (True, ("30",))
    assert "30 is planned and not executed" in answer.reason


def test_clustering_groups_are_filled_with_the_largest_slices_first() -> None:
    slices = [file_slice("a", 10), file_slice("b", 40), file_slice("c", 30), file_slice("d", 20)]
    plan = plan_clustering(slices, (), policy(group_bytes=70 * MB, target_file_bytes=40 * MB))
    assert grouped(plan) == [(["d", "a"], 1)], "a group of b and c would not reduce the number of files"
    plan = plan_clustering(slices, (), policy(group_bytes=70 * MB, target_file_bytes=80 * MB))
    assert grouped(plan) == [(["b", "c"], 1), (["d", "a"], 1)]
    assert plan is not None
    assert plan.groups[0].metrics["TOTAL_IO_READ_MB"] == plan.groups[0].metrics["TOTAL_IO_WRITE_MB"] == 70


def test_clustering_skips_large_files_planned_groups_and_single_files() -> None:
    slices = [file_slice("a"), file_slice("b"), file_slice("c", 300), file_slice("d", partition="q")]
    assert grouped(plan_clustering(slices, (), policy())) == [(["a", "b"], 1)]
    assert plan_clustering(slices, {("p", "a")}, policy()) is None
    whole = plan_clustering(slices, (), policy(whole_partitions=True))
    assert grouped(whole) == [(["a", "b", "c"], 1)]


def test_single_file_is_clustered_only_for_its_logs_or_its_sort_order() -> None:
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
    assert plan_clustering(two, (), sorted_apart, laid_out=ordered) is not None, (
        "files sorted separately are not sorted"
    )


def test_slice_without_base_file_counts_with_the_maximum_file_size() -> None:
    plan = plan_clustering([file_slice("a", None, logs=1), file_slice("b")], (), policy(), max_file_bytes=120 * MB)
    assert grouped(plan) == [(["a", "b"], 1)]
    assert plan is not None and plan.groups[0].metrics["TOTAL_IO_WRITE_MB"] == 121
    assert plan.groups[0].slices[0].data_file is None


def test_clustering_plan_is_limited_to_max_groups_and_names_missing_partitions() -> None:
    slices = [file_slice(f"{p}{n}", partition=p) for p in "abc" for n in range(2)]
    plan = plan_clustering(slices, (), policy(max_groups=2))
    assert plan is not None
    assert [group.partition for group in plan.groups] == ["a", "b"]
    assert plan.missing_partitions == ("c",)


@pytest.mark.parametrize(
    ("settings", "expected"),
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
def test_clustering_partitions_are_selected_by_the_policy(settings: dict[str, object], expected: str) -> None:
    assert partitions_of("fedcba", policy(**settings), hour=4) == tuple(expected)


def test_selection_of_an_unknown_partition_is_refused() -> None:
    with pytest.raises(UserError, match="'day=1' is not a partition"):
        plan_clustering([file_slice("a", partition="day=2")], (), policy(partitions="day=1"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition_pattern": "("}, "not a regular expression"),
        ({"partition_mode": "SELECTED_PARTITIONS", "first_partition": "a"}, "needs"),
        ({"layout": "z-ordr"}, "Did you mean 'z-order'"),
        ({"updates": "SparkRejectUpdate"}, "one of reject, give_way"),
        ({"sort_columns": "a,b,a"}, "twice"),
        ({"target_file_bytes": 0}, "at least 1"),
    ],
)
def test_invalid_clustering_options_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        policy(**settings)


def test_clustering_options_accept_the_values_of_hudi() -> None:
    assert [policy(layout=name).layout for name in ("LINEAR", "ZORDER", "z-order", "HILBERT")] == [
        "linear",
        "z-order",
        "z-order",
        "hilbert",
    ]
    long = "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
    assert (policy(updates=long).updates, policy(updates="reject").updates) == ("give_way", "reject")
    assert policy().updates == "give_way", "writes have priority by default"


def test_clustering_plan_is_overtaken_by_later_changes_of_its_groups() -> None:
    plan = plan_clustering([file_slice("a", logs=1), file_slice("b")], (), policy())
    assert plan is not None

    def wrote(file_id: str, path: str, **more: object) -> list[tuple[Instant, CommitMetadata]]:
        stat = WriteStat(partition="p", file_id=file_id, path=path)
        return [(done(9), CommitMetadata(operation=Operation.UPSERT, stats=(stat,), **more))]  # type: ignore[arg-type]

    assert overtaken(plan, wrote("c", "p/c_0-0-0_9.parquet"), "3") is None
    assert overtaken(plan, wrote("a", "p/.a_5.log.1_0-0-0"), "3") is None, "the plan contains this log"
    assert overtaken(plan, wrote("a", "p/.a_9.log.1_0-0-0"), "3") == "9 changed file group a of 'p' before"
    assert overtaken(plan, wrote("b", "p/b_0-0-0_9.parquet"), "3") is not None
    assert overtaken(plan, wrote("c", "p/c_0-0-0_9.parquet", replaced={"p": ("b",)}), "3") is not None
    assert overtaken(plan, wrote("c", "p/c_0-0-0_9.parquet", replaced={"q": ("b",)}), "3") is None


def test_changed_file_groups_are_left_out_of_a_plan() -> None:
    groups = (
        ClusteringGroup(slices=tuple(ClusteredSlice(partition="p", file_id=name, data_file=name) for name in "abc")),
        ClusteringGroup(slices=tuple(ClusteredSlice(partition="q", file_id=name, data_file=name) for name in "de")),
    )
    plan = ClusteringPlan(groups=groups)

    def kept(*changed: tuple[str, str], sorts: bool = False) -> dict[int, str]:
        found = without_changed_slices(plan, changed, sorts=sorts)
        return {number: "".join(one.file_id for one in group.slices) for number, group in found.items()}

    assert kept(("p", "a")) == {0: "bc", 1: "de"}
    assert kept(("q", "d")) == {0: "abc"}, "one file that remains has nothing to be merged with"
    assert kept(("q", "d"), sorts=True) == {0: "abc", 1: "e"}
    assert kept(("p", "a"), ("p", "b"), ("p", "c")) == {1: "de"}
    assert unchanged_tasks(plan, {("p", "b")}) == [1]
    assert unchanged_tasks(plan, {("q", "b")}) == [0, 1]


SPEC = """
table: t
location: lake/t
record_key: id
services:
  clustering: {sort_columns: [a, b], layout: hilbert, partition_mode: RECENT_DAYS, max_commits: 8, single_group: false}
"""


def test_clustering_section_of_a_spec_sets_the_policy() -> None:
    clustering = Policies().override(parse_spec(SPEC, source="t.yaml").call_options()).clustering
    expected = (("a", "b"), "hilbert", "RECENT_DAYS")
    assert (clustering.columns, clustering.layout, clustering.partition_mode) == expected
    assert (clustering.max_commits, clustering.single_group) == (8, False)
    with pytest.raises(UserError, match=r"t.yaml.*unknown setting 'sort_column'. Did you mean 'sort_columns'"):
        parse_spec(SPEC.replace("sort_columns", "sort_column"), source="t.yaml")
    with pytest.raises(UserError, match=r"t.yaml.*Did you mean 'hilbert'"):
        parse_spec(SPEC.replace("hilbert", "hilbrt"), source="t.yaml")
