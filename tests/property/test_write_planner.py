"""The plan of a write: one file group for each insert, small files first, no dependence on the order of listings."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.index.file_index import plan_groups, plan_tags
from lakehouse.core.index.hash.bucket import bucket_file_id, bucket_of
from lakehouse.core.index.hash.hash_index import HashIndex, NumberedBuckets
from lakehouse.core.index.protocol import IndexSetup
from lakehouse.core.index.write_tasks import GroupTask, Sizing, StagedEntry, TagResult
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.spec.table.bucket_rules import BucketRules
from tests.support.tables import SeededIds, examples

PARTITIONS = ("", "a", "b/c")


@st.composite
def staged(draw: st.DrawFn, bucket: bool = False) -> list[StagedEntry]:
    """Draw staged entries of one to three runs; the rows of a run are contiguous."""
    entries = []
    for run in range(draw(st.integers(1, 3))):
        offset = 0
        for partition in draw(st.lists(st.sampled_from(PARTITIONS), unique=True, min_size=1)):
            buckets = draw(st.lists(st.integers(0, 3), unique=True, min_size=1)) if bucket else [-1]
            for number in buckets:
                rows = draw(st.integers(1, 40))
                deletes = draw(st.integers(0, rows))
                entries.append(
                    StagedEntry(
                        run=f"run-{run}", partition=partition, bucket=number, offset=offset, rows=rows, deletes=deletes
                    )
                )
                offset += rows
    return entries


@st.composite
def stored(draw: st.DrawFn, bucket: bool = False) -> list[FileSlice]:
    """Draw file slices with base files of random sizes; with `bucket`, one slice for each bucket."""
    slices = []
    for partition in PARTITIONS:
        for number in range(draw(st.integers(0, 4))):
            uuid = f"{number:08d}-0000-4000-8000-{len(slices):012d}"
            file_id = bucket_file_id(number, uuid) if bucket else f"{uuid}-0"
            base = BaseFile(
                partition=partition,
                file_id=file_id,
                write_token="0-0-0",
                instant="20260101000000000",
                size_bytes=draw(st.integers(0, 1200)),
            )
            slices.append(FileSlice(partition=partition, file_id=file_id, base_instant=base.instant, base=base))
    return slices


@st.composite
def sizings(draw: st.DrawFn) -> Sizing:
    """Draw file size limits for files of at most 1000 bytes."""
    bytes_per_row = draw(st.floats(1, 300))
    return Sizing(
        rows_per_file=max(int(1000 / bytes_per_row), 1),
        bytes_per_row=bytes_per_row,
        max_file_bytes=1000,
        small_file_bytes=draw(st.sampled_from([0, 500, 900])),
    )


@st.composite
def lookup_results(draw: st.DrawFn, entries: list[StagedEntry], slices: list[FileSlice]) -> list[TagResult]:
    """Draw results of index lookups; the consumed rows of a partition do not exceed its upserts."""
    tags = []
    for partition in PARTITIONS:
        remaining = sum(entry.upserts for entry in entries if entry.partition == partition)
        for file_slice in slices:
            if file_slice.partition != partition or file_slice.base is None:
                continue
            used = draw(st.integers(0, remaining))
            remaining -= used
            matches = used + draw(st.integers(0, 2))
            tags.append(
                TagResult(
                    base=file_slice.base,
                    matches_file=f"matches/{file_slice.file_id}" if matches else None,
                    matched_rows=matches,
                    consumed={partition: used} if used else None,
                )
            )
    return tags


def groups(entries: list[StagedEntry], slices: list[FileSlice], tags: list[TagResult], sizing: Sizing):
    """Plan the file groups of a write with deterministic file ids."""
    ids = SeededIds()
    return plan_groups(entries, slices, tags, IndexSetup(sizing=sizing, looks_up=True), lambda: f"{ids.uuid()}-0")


def of_partition(tasks: tuple[GroupTask, ...], partition: str) -> list[GroupTask]:
    """Return the tasks that insert into a partition, ordered by the start of their insert ranges."""
    inserting = [task for task in tasks if task.partition == partition and task.insert_range is not None]
    return sorted(inserting, key=lambda task: task.insert_range[0])


@examples(60)
@given(data=st.data())
def test_plan_assigns_each_insert_to_exactly_one_file_group(data: st.DataObject) -> None:
    entries, slices, sizing = data.draw(staged()), data.draw(stored()), data.draw(sizings())
    tags = data.draw(lookup_results(entries, slices))
    tasks = groups(entries, slices, tags, sizing)
    assert len({(task.partition, task.file_id) for task in tasks}) == len(tasks)
    for partition in PARTITIONS:
        upserts = sum(entry.upserts for entry in entries if entry.partition == partition)
        used = sum((tag.consumed or {}).get(partition, 0) for tag in tags)
        inserting = of_partition(tasks, partition)
        if upserts == used:
            # Several files may have counted the same row as consumed. One task then checks for a remaining row.
            several = sum(bool((tag.consumed or {}).get(partition)) for tag in tags) > 1
            assert len(inserting) == (1 if several else 0)
            continue
        ranges = [task.insert_range for task in inserting]
        assert ranges[0][0] == 0 and ranges[-1][1] is None
        assert all(end == start for (_, end), (start, _) in pairwise(ranges))
        assert ranges[-1][0] < upserts - used
        assert all(task.entries == tuple(e for e in entries if e.partition == partition) for task in inserting)


@examples(60)
@given(data=st.data())
def test_plan_fills_small_files_first_and_leaves_at_most_one_new_file_small(data: st.DataObject) -> None:
    entries, slices, sizing = data.draw(staged()), data.draw(stored()), data.draw(sizings())
    tasks = groups(entries, slices, [], sizing)
    for partition in PARTITIONS:
        inserting = of_partition(tasks, partition)
        bases = [s.base for s in slices if s.partition == partition and s.base]
        free = {base.file_id: sizing.free_rows(base) for base in bases if sizing.free_rows(base)}
        fresh = [task for task in inserting if task.base is None]
        filled = [task for task in inserting if task.base is not None]
        for task in filled:
            assert task.base.size_bytes < sizing.small_file_bytes
            start, stop = task.insert_range
            assert stop is None or stop - start <= free[task.file_id]
        if fresh:
            assert {task.file_id for task in filled} == set(free), "the plan skipped a small file"
            assert all(t.insert_range[1] - t.insert_range[0] == sizing.rows_per_file for t in fresh[:-1])
        assert all(stop is not None for _, stop in [task.insert_range for task in inserting[:-1]])
        sizes = [task.base.size_bytes for task in filled]
        assert sizes == sorted(sizes)


@examples(40)
@given(data=st.data(), seed=st.integers(0, 99))
def test_plan_does_not_depend_on_the_order_of_entries_and_files(data: st.DataObject, seed: int) -> None:
    entries, slices, sizing = data.draw(staged()), data.draw(stored()), data.draw(sizings())
    tags = data.draw(lookup_results(entries, slices))
    once = groups(entries, slices, tags, sizing)
    shuffled = random.Random(seed)
    again = [shuffled.sample(entries, len(entries)), shuffled.sample(slices, len(slices))]
    assert groups(again[0], again[1], tags, sizing) == once
    assert plan_tags(again[0], slices, global_keys=False, parallelism=2) == plan_tags(
        entries, slices, global_keys=False, parallelism=2
    )


@examples(60)
@given(data=st.data(), global_keys=st.booleans(), parallelism=st.integers(1, 4))
def test_lookup_plan_reads_each_file_that_may_contain_a_key_once(
    data: st.DataObject, global_keys: bool, parallelism: int
) -> None:
    entries, slices = data.draw(staged()), data.draw(stored())
    tasks = plan_tags(entries, slices, global_keys=global_keys, parallelism=parallelism)
    looked = [base.path for task in tasks for base in task.bases]
    touched = {entry.partition for entry in entries}
    expected = [s.base.path for s in slices if s.base and (global_keys or s.partition in touched)]
    assert sorted(looked) == sorted(expected)
    for task in tasks:
        partitions = touched if global_keys else {task.bases[0].partition}
        assert {base.partition for base in task.bases} == {task.bases[0].partition}
        assert sorted(task.entries, key=repr) == sorted((e for e in entries if e.partition in partitions), key=repr)
    assert len(tasks) <= 4 * parallelism + len(PARTITIONS)


@examples(60)
@given(data=st.data(), looks_up=st.booleans())
def test_bucket_index_plans_one_file_group_for_each_bucket(data: st.DataObject, looks_up: bool) -> None:
    entries, slices = data.draw(staged(bucket=True)), data.draw(stored(bucket=True))
    ids = SeededIds()
    sizing = Sizing(rows_per_file=10, bytes_per_row=10.0, max_file_bytes=100, small_file_bytes=60)
    setup = IndexSetup(sizing=sizing, looks_up=looks_up, buckets=BucketRules(4))
    index = HashIndex(setup, NumberedBuckets(setup))
    tasks = index.groups(entries, slices, (), in_clustering=frozenset(), new_uuid=ids.uuid)
    stored_ids = {(s.partition, bucket_of(s.file_id)): s.file_id for s in slices}
    buckets = {(e.partition, e.bucket) for e in entries if e.upserts or (e.partition, e.bucket) in stored_ids}
    assert [(task.partition, bucket_of(task.file_id)) for task in tasks] == sorted(buckets)
    for task in tasks:
        where = (task.partition, bucket_of(task.file_id))
        assert task.file_id == stored_ids.get(where, task.file_id)
        assert task.finds_matches == (looks_up and where in stored_ids)
        assert set(task.entries) == {e for e in entries if (e.partition, e.bucket) == where}


@examples(30)
@given(data=st.data())
def test_plan_rewrites_each_file_with_matches(data: st.DataObject) -> None:
    entries, slices, sizing = data.draw(staged()), data.draw(stored()), data.draw(sizings())
    tags = data.draw(lookup_results(entries, slices))
    tasks = {(task.partition, task.file_id): task for task in groups(entries, slices, tags, sizing)}
    for tag in tags:
        task = tasks.get((tag.base.partition, tag.base.file_id))
        assert (task is not None and task.matches_file == tag.matches_file) or not tag.matched_rows
    assert all(task.matches_file is not None or task.insert_range is not None for task in tasks.values())
