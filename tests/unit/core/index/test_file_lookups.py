"""Plans of look-ups and file groups by examples; tests/property/test_write_planner.py has the properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lakehouse.core.index.file_index import plan_groups
from lakehouse.core.index.hash.hash_index import HashIndex, NumberedBuckets
from lakehouse.core.index.protocol import IndexSetup
from lakehouse.core.index.write_tasks import GroupTask, Sizing, StagedEntry, TagResult, row_hashes, run_seed, united
from lakehouse.errors import UserError
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.spec.table.bucket_rules import BucketRules
from tests.support.tables import SeededIds

SIZING = Sizing(rows_per_file=10, bytes_per_row=10.0, max_file_bytes=100, small_file_bytes=60)
SETUP = IndexSetup(sizing=SIZING, looks_up=True)


def entry(rows: int, *, deletes: int = 0, partition: str = "p", run: str = "r", bucket: int = -1) -> StagedEntry:
    """Return an entry at the start of its run."""
    return StagedEntry(run=run, partition=partition, bucket=bucket, offset=0, rows=rows, deletes=deletes)


def stored(file_id: str, size: int = 0, partition: str = "p") -> FileSlice:
    """Return a slice with a base file."""
    base = BaseFile(partition=partition, file_id=file_id, write_token="0-0-0", instant="1", size_bytes=size)
    return FileSlice(partition=partition, file_id=file_id, base_instant="1", base=base)


def ranges(entries: list[StagedEntry], slices: list[FileSlice], tags: list[TagResult] | None = None):
    """Return the insert ranges of a plan by group; new groups are called new-0, new-1 ..."""
    names = iter(f"new-{number}" for number in range(99))
    return {
        task.file_id: task.insert_range for task in plan_groups(entries, slices, tags or [], SETUP, lambda: next(names))
    }


def test_inserts_fill_small_files_by_size_then_new_ones() -> None:
    # File a can take 5 rows, b 8, and c is not small.
    slices = [stored("a", 50), stored("b", 20), stored("c", 60)]
    assert ranges([entry(4)], slices) == {"b": (0, None)}
    assert ranges([entry(10)], slices) == {"b": (0, 8), "a": (8, None)}
    assert ranges([entry(34)], slices) == {
        "b": (0, 8),
        "a": (8, 13),
        "new-0": (13, 23),
        "new-1": (23, 33),
        "new-2": (33, None),
    }


def spread_ranges(entries: list[StagedEntry], slices: list[FileSlice], **changes: int) -> dict[str, tuple[int, int]]:
    """Return the inserted rows of a plan for four tasks by group, with partition and value of the group."""
    names = iter(f"new-{number}" for number in range(99))
    sizing = replace(SIZING, rows_per_file=1_000, max_file_bytes=10_000, small_file_bytes=5_000, tasks=4, **changes)
    setup = IndexSetup(sizing=sizing, looks_up=False, owners={"own": "big"})
    found = {}
    for task in plan_groups(entries, slices, [], setup, lambda: next(names)):
        total = sum(one.upserts for one in task.entries)
        first, last = task.insert_range or (0, 0)
        assert all(one.value == task.value for one in task.entries)
        found[f"{task.partition}/{task.value}/{task.file_id}"] = (first, total if last is None else last)
    return found


def test_inserts_of_a_hot_partition_are_divided_over_tasks() -> None:
    entries = [entry(90), entry(4, partition="q"), entry(6, partition="r")]
    found = spread_ranges(entries, [])
    assert {name[0]: sum(1 for other in found if other[0] == name[0]) for name in found} == {"p": 3, "q": 1, "r": 1}
    assert max(last - first for first, last in found.values()) <= 2 * 100 / 4
    # A small file takes a share, not all rows; a group gets no fewer rows than are worth a file.
    assert spread_ranges(entries[:1], [stored("small", 10)])["p/None/small"] == (0, 23)
    assert list(spread_ranges(entries, [], least_rows=60).values()) == [(0, 60), (60, 90), (0, 4), (0, 6)]


def test_large_values_have_groups_of_their_own() -> None:
    entries = [replace(entry(30), value="big"), entry(5), replace(entry(5, run="s"), value="big")]
    slices = [stored("own", 10), stored("shared", 10)]
    found = spread_ranges(entries, slices, least_rows=100)
    assert found == {"p/big/own": (0, 35), "p/None/shared": (0, 5)}
    assert set(spread_ranges(entries, slices[1:], least_rows=100)) == {"p/big/new-0", "p/None/shared"}


def test_deletes_insert_nothing() -> None:
    assert ranges([entry(5, deletes=5)], [stored("a", 10)]) == {}


def test_inserts_do_not_fill_files_of_other_partitions() -> None:
    assert ranges([entry(3)], [stored("a", 10, partition="q")]) == {"new-0": (0, None)}


def test_matched_rows_are_not_inserted() -> None:
    slices = [stored("a", 90)]
    tag = TagResult(base=slices[0].base, matches_file="matches-a", matched_rows=3, consumed={"p": 3})
    assert ranges([entry(3)], slices, [tag]) == {"a": None}
    (update, insert) = plan_groups([entry(5)], slices, [tag], SETUP, lambda: "new")
    assert (update.matches_file, update.insert_range) == ("matches-a", None)
    assert (insert.file_id, insert.insert_range, insert.consumed_by) == ("new", (0, None), ("matches-a",))


def test_row_in_two_files_does_not_hide_a_row_in_no_file() -> None:
    slices = [stored("a", 90), stored("b", 90)]
    tags = [
        TagResult(base=s.base, matches_file=f"matches-{s.file_id}", matched_rows=1, consumed={"p": 1}) for s in slices
    ]
    tasks = {task.file_id: task for task in plan_groups([entry(2)], slices, tags, SETUP, lambda: "new")}
    assert tasks["new"].insert_range == (0, None)
    assert tasks["new"].consumed_by == ("matches-a", "matches-b")


def matched(base: FileSlice, rows: list[int]) -> TagResult:
    """Return the result of a look-up that found these rows of run `r`."""
    hashes = row_hashes(np.uint64(run_seed("r")), np.array(rows))
    return TagResult(
        base=base.base,
        matches_file=f"matches-{base.file_id}",
        matched_rows=len(rows),
        consumed={"p": len(rows)},
        fingerprints={"p": united(hashes.tolist())},
    )


def test_batch_whose_rows_all_have_one_match_has_no_task_for_inserts() -> None:
    slices = [stored("a", 90), stored("b", 90)]
    tags = [matched(slices[0], [0, 3]), matched(slices[1], [1, 2])]
    assert ranges([entry(4)], slices, tags) == {"a": None, "b": None}


@pytest.mark.parametrize("rows", [[1, 3], [0, 1], [3, 3]])
def test_batch_whose_rows_have_two_matches_keeps_the_task_for_inserts(rows: list[int]) -> None:
    slices = [stored("a", 90), stored("b", 90)]
    tags = [matched(slices[0], [0, 3]), matched(slices[1], rows)]
    assert ranges([entry(4)], slices, tags) == {"a": None, "b": None, "new-0": (0, None)}


def test_small_file_with_matches_takes_inserts_in_the_same_task() -> None:
    slices = [stored("a", 10)]
    tag = TagResult(base=slices[0].base, matches_file="matches-a", matched_rows=1, consumed={"p": 1})
    (task,) = plan_groups([entry(3)], slices, [tag], SETUP, lambda: "new")
    assert (task.file_id, task.matches_file, task.insert_range) == ("a", "matches-a", (0, None))


def test_match_whose_row_moves_away_rewrites_its_file_without_inserts() -> None:
    slices = [stored("a", 10, partition="old")]
    tag = TagResult(base=slices[0].base, matches_file="matches-a", matched_rows=1, consumed={})
    tasks = plan_groups([entry(1)], slices, [tag], SETUP, lambda: "new")
    assert [(t.partition, t.file_id, t.insert_range) for t in tasks] == [("old", "a", None), ("p", "new", (0, None))]


def test_files_take_no_inserts_without_a_small_file_limit() -> None:
    off = Sizing(rows_per_file=10, bytes_per_row=10.0, max_file_bytes=100, small_file_bytes=0)
    assert off.free_rows(stored("a", 10).base) == 0
    assert SIZING.free_rows(stored("a", 10).base) == 9
    assert SIZING.free_rows(stored("a", 60).base) == 0


def bucket_tasks(entries: list[StagedEntry], slices: list[FileSlice]) -> tuple[GroupTask, ...]:
    """Plan an upsert into a table with two buckets per partition."""
    setup = IndexSetup(sizing=SIZING, looks_up=True, buckets=BucketRules(2))
    index = HashIndex(setup, NumberedBuckets(setup))
    return index.groups(entries, slices, (), in_clustering=frozenset(), new_uuid=SeededIds().uuid)


BUCKET_ID = "0000000{}-0000-4000-8000-000000000000-0"


@pytest.mark.parametrize(
    "slices", [[stored(BUCKET_ID.format(3))], [stored(BUCKET_ID.format(0)), stored(BUCKET_ID.format(0)[:-1] + "1")]]
)
def test_bucket_index_refuses_groups_that_do_not_fit_the_number_of_buckets(slices: list[FileSlice]) -> None:
    with pytest.raises(UserError, match="does not fit 2 buckets"):
        bucket_tasks([entry(1, bucket=0)], slices)


def test_deletes_for_a_bucket_without_rows_create_no_group() -> None:
    assert bucket_tasks([entry(2, deletes=2, bucket=0)], []) == ()
