"""Conflicts of concurrent commits under each conflict resolution strategy (TL-8.2, TL-8.3)."""

from __future__ import annotations

import json

import pytest

from lakehouse.core.planning.conflict import (
    COLUMNS_KEY,
    Strategy,
    WriteSummary,
    buckets,
    file_groups,
    find_conflict,
    may_share_keys,
    non_blocking,
    strategy_named,
    write_summary,
)
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import Action, Instant, State

RIVAL = Instant(requested="5", action=Action.COMMIT, state=State.COMPLETED, completed="6")
STRATEGIES = (file_groups, buckets, non_blocking)


def base(partition: str, group: str, *, inserts: int = 0) -> WriteStat:
    """Return the write stat of a base file."""
    return WriteStat(partition=partition, file_id=group, path=f"{partition}/{group}.parquet", num_inserts=inserts)


def log(partition: str, group: str) -> WriteStat:
    """Return the write stat of a log file."""
    return WriteStat(partition=partition, file_id=group, path=f"{partition}/.{group}_1.log.1_0-0-0", num_updates=1)


def wrote(
    *stats: WriteStat,
    replaced: dict[str, tuple[str, ...]] | None = None,
    columns: tuple[str, ...] | None = None,
    operation: str = "UPSERT",
) -> CommitMetadata:
    """Return the commit metadata of a write of these files."""
    extra = {} if columns is None else {COLUMNS_KEY: json.dumps(columns)}
    return CommitMetadata(operation=operation, stats=stats, replaced=replaced or {}, extra=extra)


def reason(strategy: Strategy, mine: CommitMetadata, theirs: CommitMetadata) -> str | None:
    """Return the reason of the conflict of `mine` with the completed commit `theirs`, or None."""
    shared = frozenset({"id", "ts"})
    ours = write_summary(mine, shared_columns=shared)
    overlap = find_conflict([(RIVAL, write_summary(theirs, shared_columns=shared))], ours, strategy)
    assert overlap is None or (overlap.winner == RIVAL and overlap.reason.startswith(RIVAL.requested))
    return None if overlap is None else overlap.reason


G, H = "00000000-1111", "00000001-1111"


@pytest.mark.parametrize(
    ("mine", "theirs", "conflicts"),
    [
        (wrote(base("a", G)), wrote(base("a", G)), "oob"),
        (wrote(log("a", G)), wrote(log("a", G)), "oo-"),
        (wrote(log("a", G)), wrote(base("a", G)), "oob"),
        (wrote(base("a", G)), wrote(log("a", G)), "oob"),
        (wrote(log("a", G)), wrote(replaced={"a": (G,)}), "oob"),
        (wrote(replaced={"a": (G,)}), wrote(log("a", G)), "oob"),
        (wrote(base("a", G)), wrote(base("b", G)), "---"),
        (wrote(base("a", G)), wrote(base("a", H)), "---"),
        (wrote(base("a", "00000000-x")), wrote(base("a", "00000000-y")), "-bb"),
        (wrote(log("a", "00000000-x")), wrote(log("a", "00000000-y")), "-bb"),
        (wrote(replaced={"a": (G,)}), wrote(base("a", H, inserts=1)), "oob"),
        (wrote(base("a", H, inserts=1)), wrote(replaced={"a": (G,)}), "---"),
    ],
)
def test_conflicts_of_two_writes_depend_on_the_strategy(
    mine: CommitMetadata, theirs: CommitMetadata, conflicts: str
) -> None:
    for strategy, mark in zip(STRATEGIES, conflicts, strict=True):
        found = reason(strategy, mine, theirs)
        assert (found is not None) == (mark != "-"), strategy.__name__
        assert found is None or "'a'" in found


@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.LOG_COMPACT])
def test_compaction_conflicts_only_with_a_base_file_of_its_group(operation: Operation) -> None:
    theirs = wrote(base("a", G), operation=operation.value)
    for strategy in STRATEGIES:
        assert reason(strategy, wrote(base("a", G)), theirs) is not None
        assert reason(strategy, wrote(log("a", G)), theirs) is None
        assert reason(strategy, wrote(replaced={"a": (G,)}), theirs) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "column"),
    [
        (("id", "ts", "x"), ("id", "ts", "y"), None),
        (("id", "ts", "x", "y"), ("id", "ts", "y"), "y"),
        (("id", "ts", "x"), None, ""),
        (None, ("id", "ts", "x"), ""),
    ],
)
def test_partial_logs_of_one_group_conflict_only_on_common_columns(
    mine: tuple[str, ...] | None, theirs: tuple[str, ...] | None, column: str | None
) -> None:
    found = reason(file_groups, wrote(log("a", G), columns=mine), wrote(log("a", G), columns=theirs))
    assert (found is None) == (column is None)
    assert not column or f"column {column!r}" in str(found)


def test_base_files_of_one_group_conflict_for_all_columns() -> None:
    mine, theirs = wrote(base("a", G), columns=("x",)), wrote(log("a", G), columns=("y",))
    assert reason(file_groups, mine, theirs) is not None
    assert reason(file_groups, theirs, mine) is not None


def test_file_groups_read_by_a_write_conflict_without_a_written_file() -> None:
    ours = write_summary(wrote(), touched=[("a", G)])
    assert find_conflict([(RIVAL, write_summary(wrote(base("a", G))))], ours, file_groups) is not None


def test_writes_may_share_keys_only_if_both_inserted() -> None:
    mine = write_summary(wrote(base("a", G, inserts=1), base("b", H)))
    assert may_share_keys(mine, write_summary(wrote(base("a", H, inserts=1))), global_keys=False)
    assert not may_share_keys(mine, write_summary(wrote(base("b", H, inserts=1))), global_keys=False)
    assert may_share_keys(mine, write_summary(wrote(base("b", H, inserts=1))), global_keys=True)
    assert not may_share_keys(mine, write_summary(wrote(base("a", H))), global_keys=True)
    compacted = write_summary(wrote(base("a", H, inserts=1), operation=Operation.COMPACT.value))
    assert not may_share_keys(mine, compacted, global_keys=True)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("file_groups", file_groups),
        ("org.apache.hudi.client.transaction.BucketIndexConcurrentFileWritesConflictResolutionStrategy", buckets),
        ("tests.unit.core.planning.test_conflict:never", None),
    ],
)
def test_strategy_is_named_by_short_name_hudi_class_or_function(name: str, strategy: Strategy | None) -> None:
    found = strategy_named(name)
    assert found is strategy or (strategy is None and reason(found, wrote(base("a", G)), wrote(base("a", G))) is None)


def never(ours: WriteSummary, theirs: WriteSummary) -> str | None:
    """Return None: a strategy without conflicts."""
    return None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file_group", "Did you mean 'file_groups'"),
        ("nowhere.at_all:strategy", "cannot be loaded.*nowhere"),
        ("tests.unit.core.planning.test_conflict:G", "is not a function but of type str"),
    ],
)
def test_unknown_strategy_is_refused_with_its_name(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        strategy_named(name)


def test_write_without_concurrent_commits_has_no_conflict() -> None:
    assert find_conflict([], write_summary(wrote(base("a", G, inserts=1))), file_groups) is None
