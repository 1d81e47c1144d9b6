"""Contract of all registered indexes: each one finds the stored keys and assigns rows to valid file groups.

In the history tests a key never changes its partition. Indexes differ there by design: global indexes move the row,
others store a second one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.hashing_metadata import INITIAL_INSTANT, HashingMetadata, HashingNode, initial_metadata
from lakehouse.core.index.hash.bucket import bucket_ids, bucket_of
from lakehouse.core.index.hash.consistent_hashing import Ring, key_hashes
from lakehouse.core.index.protocol import Groups, Index, IndexSetup
from lakehouse.core.index.write_tasks import GroupTask, LocatedRows, Sizing, StagedEntry, TagResult
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.placement.registry import PLACEMENTS, placement_of
from lakehouse.errors import UnsupportedError
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.index_type import (
    BUCKET_ENGINE,
    CONSISTENT_BUCKET,
    CONSISTENT_HASHING,
    INDEX_TYPES,
    IndexType,
    index_type,
)
from lakehouse.spec.options.index import IndexPolicy
from lakehouse.spec.table.bucket_rules import BucketRules
from tests.support.model import Model, Shape, Verb, apply_verb, histories, rows, shapes
from tests.support.tables import SeededIds, batch, data_rows, examples, make_table, row

BUCKETS = 3
TYPES = tuple(PLACEMENTS)
#: The number of file groups of 30 new rows of a partition, with 3 rows per file and 3 buckets.
GROUPS_OF_NEW_ROWS = {
    "SIMPLE": 10,
    "GLOBAL_SIMPLE": 10,
    "BLOOM": 10,
    "GLOBAL_BLOOM": 10,
    "RECORD_INDEX": 10,
    "RECORD_LEVEL_INDEX": 10,
    "BUCKET": BUCKETS,
}
NO_GROUPS: Groups = frozenset()
SIZING = Sizing(rows_per_file=10, bytes_per_row=10.0, max_file_bytes=100, small_file_bytes=60)
each_index = pytest.mark.parametrize(
    "index", TYPES, ids=lambda index: f"{index.name} ring" if index.has_ring else index.name
)


def shape_of(index: IndexType, shape: Shape | None = None, **values: Any) -> Shape:
    """Return a table shape with this index."""
    shape = replace(shape or Shape(), index=index.name, buckets=BUCKETS, **values)
    if not index.has_ring:
        return shape
    return replace(shape, type="MERGE_ON_READ", options={**shape.options, BUCKET_ENGINE: CONSISTENT_HASHING})


def new_index(
    index: IndexType, *, looks_up: bool = True, appends: bool = False, located: Sequence[FileSlice] = ()
) -> Index:
    """Return the index for one write; `located` are the file groups of the stored locations."""
    buckets = BucketRules(BUCKETS) if index.hashes_keys else None
    rings = {partition: ring_of(partition) for partition in ("p", "other")}
    rows = (LocatedRows(path="located", batches=(0,), rows=4),)
    groups = {(s.partition, s.file_id): rows for s in located} if index.stores_locations else {}
    setup = IndexSetup(sizing=SIZING, looks_up=looks_up, appends=appends, buckets=buckets, rings=rings, located=groups)
    return placement_of(index).index(setup)


def ring_of(partition: str) -> Ring:
    """Return a ring whose node `number` has the file group of bucket `number` in `stored`."""
    nodes = tuple(
        HashingNode(value=number, prefix=f"{number:08d}-0000-4000-8000-{len(partition):012d}")
        for number in range(BUCKETS)
    )
    return Ring(HashingMetadata(partition=partition, instant=INITIAL_INSTANT, buckets=3, sequence=0, nodes=nodes))


def staged(index: IndexType, partition: str = "p", *, rows: int = 4, deletes: int = 0) -> list[StagedEntry]:
    """Return entries of one staged run: one, or one per bucket if the index hashes keys."""
    buckets = range(BUCKETS) if index.hashes_keys else [-1]
    return [
        StagedEntry(run="run", partition=partition, bucket=bucket, offset=rows * number, rows=rows, deletes=deletes)
        for number, bucket in enumerate(buckets)
    ]


def stored(partition: str, size: int = 90) -> list[FileSlice]:
    """Return one file slice per bucket of a partition. Their file ids are valid for all indexes."""
    slices = []
    for number in range(BUCKETS):
        file_id = f"{number:08d}-0000-4000-8000-{len(partition):012d}-0"
        base = BaseFile(
            partition=partition,
            file_id=file_id,
            write_token="0-0-0",
            instant="20260101000000000",
            size_bytes=size,
        )
        slices.append(FileSlice(partition=partition, file_id=file_id, base_instant=base.instant, base=base))
    return slices


def assigned(
    index: Index,
    entries: list[StagedEntry],
    slices: list[FileSlice],
    tags: list[TagResult] | None = None,
    in_clustering: Groups = NO_GROUPS,
) -> tuple[GroupTask, ...]:
    """Return the group tasks of the index, with reproducible file ids."""
    return index.groups(entries, slices, tags or [], in_clustering=in_clustering, new_uuid=SeededIds().uuid)


def with_fixed_partition(values: dict[str, Any]) -> dict[str, Any]:
    """Return the row with partition columns derived from its id, so that a key never changes its partition."""
    number = int(values["id"][1:])
    return values | {"p": ("a", None)[number % 2], "region": ("eu", "us")[number % 2], "at": 86_400_000 * (number % 3)}


def test_registry_has_one_implementation_for_each_index_type() -> None:
    assert set(PLACEMENTS) == {*INDEX_TYPES.values(), CONSISTENT_BUCKET}
    assert IndexPolicy(type="bucket", engine=CONSISTENT_HASHING).index_type == CONSISTENT_BUCKET
    assert {name: IndexPolicy(type=name).index_type for name in INDEX_TYPES} == INDEX_TYPES
    assert INDEX_TYPES["GLOBAL_RECORD_LEVEL_INDEX"] is INDEX_TYPES["RECORD_INDEX"]


def test_registry_refuses_an_index_type_of_hudi_without_implementation() -> None:
    with pytest.raises(UnsupportedError, match="'HBASE' is not supported for writing; supported: SIMPLE, "):
        placement_of(index_type("hbase"))


@pytest.mark.parametrize(
    ("name", "is_global"),
    [("BLOOM", False), ("GLOBAL_BLOOM", True), ("global_simple", True), ("", False), ("GLOBAL_OTHER", True)],
)
def test_index_type_of_a_stored_name_has_the_scope_of_its_keys(name: str, is_global: bool) -> None:
    assert index_type(name).is_global == is_global


@each_index
def test_lookups_search_each_possible_file_once_unless_group_tasks_find_the_matches(index: IndexType) -> None:
    slices = [*stored("p"), *stored("other")]
    entries = staged(index)
    located = [slices[0], slices[-1]] if index.is_global else slices[:1]
    tasks = new_index(index, located=located).lookups(entries, slices, parallelism=2, read_logs_of=NO_GROUPS)
    searched = Counter(base.path for task in tasks for base in task.bases)
    if index.hashes_keys:
        assert not tasks
        assert [task.finds_matches for task in assigned(new_index(index), entries, slices)] == [True] * BUCKETS
        return
    possible = [s.base.path for s in slices if s.base and (index.is_global or s.partition == "p")]
    if index.stores_locations:
        possible = [s.base.path for s in located if s.base]
        assert all(len(task.located) == len(task.bases) for task in tasks)
    assert searched == Counter(possible)
    assert {entry for task in tasks for entry in task.entries} == set(entries)


@each_index
def test_lookups_read_logs_of_the_requested_groups(index: IndexType) -> None:
    slices = stored("p")
    logged = frozenset({("p", slices[0].file_id)})
    plan = new_index(index, located=slices)
    tasks = plan.lookups(staged(index), slices, parallelism=2, read_logs_of=logged)
    merged = [file_slice.file_id for task in tasks for file_slice in task.slices]
    assert merged == ([] if index.hashes_keys else [slices[0].file_id])
    assert all(base.file_id != slices[0].file_id for task in tasks for base in task.bases)


@each_index
def test_lookups_are_empty_if_rows_are_only_added(index: IndexType) -> None:
    inserting = new_index(index, looks_up=False, located=stored("p"))
    assert inserting.lookups(staged(index), stored("p"), parallelism=2, read_logs_of=NO_GROUPS) == ()
    assert not any(task.finds_matches or task.matches_file for task in assigned(inserting, staged(index), stored("p")))


@each_index
@pytest.mark.parametrize("size", [10, 90], ids=["small files", "full files"])
def test_group_tasks_write_each_insert_once_to_a_valid_group(index: IndexType, size: int) -> None:
    slices, entries = stored("p", size), staged(index, rows=20, deletes=3)
    tasks = assigned(new_index(index, looks_up=False), entries, slices)
    assert len({(task.partition, task.file_id) for task in tasks}) == len(tasks)
    assert {task.partition for task in tasks} == {"p"}
    if index.hashes_keys:
        for task in tasks:
            assert {entry.bucket for entry in task.entries} == {bucket_of(task.file_id)}
        assert [task.file_id for task in tasks] == [s.file_id for s in slices]
        assert {entry for task in tasks for entry in task.entries} == set(entries)
        return
    ranges = sorted(task.insert_range for task in tasks if task.insert_range is not None)
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] is None
    ids = {s.file_id for s in slices}
    assert {task.file_id in ids for task in tasks} == ({True, False} if size < 60 and len(tasks) > 3 else {size < 60})


@each_index
def test_groups_in_clustering_get_no_inserts_unless_the_key_determines_the_group(index: IndexType) -> None:
    slices = stored("p", 10)
    clustering = frozenset((s.partition, s.file_id) for s in slices)
    tasks = assigned(new_index(index, looks_up=False), staged(index), slices, in_clustering=clustering)
    ids = {s.file_id for s in slices}
    assert {task.file_id in ids for task in tasks} == {index.hashes_keys}


@each_index
def test_group_tasks_append_to_logs_of_matched_groups_on_merge_on_read(index: IndexType) -> None:
    slices = stored("p")
    matched = slices if index.hashes_keys else slices[:1]
    tag = TagResult(base=slices[0], matches_file="matches", matched_rows=4, consumed={"p": 4})
    tasks = assigned(new_index(index, appends=True), staged(index), slices, [] if index.hashes_keys else [tag])
    assert [(task.file_id, task.appends, task.file_slice) for task in tasks] == [(s.file_id, True, s) for s in matched]


@each_index
def test_plans_do_not_depend_on_the_order_of_entries_slices_and_tags(index: IndexType) -> None:
    entries = [*staged(index, "p", rows=20), *staged(index, "other", rows=7)]
    slices = [*stored("p", 20), *stored("other", 30)]
    tags = [
        TagResult(base=s.base, matches_file=f"m-{s.file_id}", matched_rows=1, consumed={s.partition: 1}) for s in slices
    ]
    tags = [] if index.hashes_keys else tags
    shuffled, plan = random.Random(3), new_index(index, located=slices)
    again = [shuffled.sample(one, len(one)) for one in (entries, slices)]
    assert plan.lookups(again[0], again[1], parallelism=2, read_logs_of=NO_GROUPS) == plan.lookups(
        entries, again[1], parallelism=2, read_logs_of=NO_GROUPS
    )
    planned, replanned = (
        sorted(
            (replace(task, entries=tuple(sorted(task.entries, key=repr)), consumed_by=()) for task in tasks), key=repr
        )
        for tasks in (assigned(plan, entries, slices, tags), assigned(plan, again[0], again[1], tags[::-1]))
    )
    assert planned == replanned


@examples(8)
@given(shape=shapes(), history=histories(5, row=rows().map(with_fixed_partition)))
def test_all_indexes_give_equal_rows_after_any_history(shape: Shape, history: list[Verb]) -> None:
    # Deletes of keys that are inserted again differ between table types, so those of merge-on-read are compared below.
    types = [index for index in TYPES if not index.has_ring]
    tables = [make_table(shape_of(index, shape)) for index in types]
    models = [Model(shape_of(index, shape)) for index in types]
    for verb in history:
        for table, model in zip(tables, models, strict=True):
            apply_verb(table, model, verb, unique=False)
        found = [data_rows(table) for table in tables]
        assert all(other == found[0] for other in found), verb.name


@examples(15)
@given(shape=shapes(type="MERGE_ON_READ", merge="commit"), history=histories(5, row=rows().map(with_fixed_partition)))
def test_both_engines_of_the_bucket_index_give_equal_rows_after_any_history(shape: Shape, history: list[Verb]) -> None:
    # With event time a delete of an absent key is remembered only if its bucket has a file group, so layouts differ.
    types = [index for index in TYPES if index.hashes_keys]
    tables = [make_table(shape_of(index, shape)) for index in types]
    models = [Model(shape_of(index, shape)) for index in types]
    for verb in history:
        for table, model in zip(tables, models, strict=True):
            apply_verb(table, model, verb, unique=False)
        numbered, ranges = [data_rows(table) for table in tables]
        assert numbered == ranges, verb.name


@each_index
def test_upsert_rewrites_only_the_groups_that_hold_its_keys(index: IndexType) -> None:
    table = make_table(shape_of(index, rows_per_file=2, fills_small_files=False))
    table.upsert(batch(row(f"k{number}") for number in range(12)))
    groups = {stat.file_id for _, metadata in table.commits() for stat in metadata.stats}
    outcome = table.upsert(batch([row("k3", ts=2, v="new")]))
    assert isinstance(outcome, Committed)
    (stat,) = outcome.metadata.stats
    assert stat.file_id in groups
    assert (stat.num_updates, stat.num_inserts, stat.num_deletes) == (1, 0, 0)
    assert data_rows(table, ["id"], where="v = 'new'") == [{"id": "k3"}]


@each_index
@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_upsert_finds_exactly_the_stored_keys(index: IndexType, type: str) -> None:
    table = make_table(shape_of(index, type=type, rows_per_file=2))
    table.upsert(batch(row(f"k{number}", v="old") for number in range(0, 20, 2)))
    table.upsert(batch(row(f"k{number}", ts=2, v="new") for number in range(5, 15)))
    values = {found["id"]: found["v"] for found in data_rows(table, ["id", "v"])}
    assert len(data_rows(table)) == len(values) == 15
    assert {key for key, value in values.items() if value == "new"} == {f"k{number}" for number in range(5, 15)}


@each_index
@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_delete_finds_exactly_the_stored_keys(index: IndexType, type: str) -> None:
    table = make_table(shape_of(index, type=type, rows_per_file=2))
    table.upsert(batch(row(f"k{number}") for number in range(10)))
    table.delete(["k3", "k7", "k99"])
    assert {found["id"] for found in data_rows(table, ["id"])} == {f"k{n}" for n in range(10)} - {"k3", "k7"}


@each_index
def test_new_rows_of_a_partition_get_the_declared_number_of_file_groups(index: IndexType) -> None:
    table = make_table(shape_of(index, rows_per_file=3))
    outcome = table.insert(batch(row(f"k{number}", p="a") for number in range(30)))
    assert isinstance(outcome, Committed)
    assert len({stat.file_id for stat in outcome.metadata.stats}) == GROUPS_OF_NEW_ROWS[index.name]


@each_index
def test_upsert_of_a_key_of_another_partition_follows_the_scope_of_keys(index: IndexType) -> None:
    table = make_table(shape_of(index))
    table.upsert(batch([row("k1", p="a", v="old"), row("k2", p="a")]))
    table.upsert(batch([row("k1", p="b", ts=2, v="new")]))
    found = [(one["p"], one["v"]) for one in data_rows(table, ["id", "p", "v"]) if one["id"] == "k1"]
    assert sorted(found) == ([("b", "new")] if index.is_global else [("a", "old"), ("b", "new")])


@each_index
def test_global_index_that_does_not_move_rows_updates_them_in_their_partition(index: IndexType) -> None:
    table = make_table(shape_of(index, moves=False))
    table.upsert(batch([row("k1", p="a", v="old")]))
    before = {stat.file_id for _, metadata in table.commits() for stat in metadata.stats}
    outcome = table.upsert(batch([row("k1", p="b", ts=2, v="new")]))
    assert isinstance(outcome, Committed)
    assert ({stat.file_id for stat in outcome.metadata.stats} == before) == index.is_global
    assert len(data_rows(table)) == (1 if index.is_global else 2)


@each_index
def test_delete_without_partition_columns_finds_keys_in_all_partitions(index: IndexType) -> None:
    table = make_table(shape_of(index))
    table.upsert(batch([row("k1", p="a"), row("k2", p="b"), row("k3", p="b")]))
    table.delete(["k1", "k2"])
    assert data_rows(table, ["id"]) == [{"id": "k3"}]


@each_index
def test_inserted_rows_are_in_the_file_group_of_their_bucket_if_keys_are_hashed(index: IndexType) -> None:
    table = make_table(shape_of(index, rows_per_file=3))
    table.insert(batch(row(f"k{number}") for number in range(30)))
    found = table.scan(["_hoodie_record_key", "_hoodie_file_name"]).to_arrow().combine_chunks()
    groups = [name.partition("_")[0] for name in found.column("_hoodie_file_name").to_pylist()]
    assert len(groups) == 30
    assert set(groups) == {stat.file_id for _, metadata in table.commits() for stat in metadata.stats}
    if index.has_ring:
        keys = found.column("_hoodie_record_key")
        ring = Ring(initial_metadata("a", BUCKETS))
        places = ring.places(key_hashes(keys, key_fields=("id",), hash_fields=()))
        assert groups == [ring.metadata.nodes[place].file_id for place in places]
    elif index.hashes_keys:
        keys = found.column("_hoodie_record_key")
        expected = bucket_ids(keys, key_fields=("id",), hash_fields=(), buckets=BUCKETS)
        assert [bucket_of(group) for group in groups] == expected.tolist()


@each_index
def test_deleted_key_is_inserted_again(index: IndexType) -> None:
    # On a merge-on-read table with event time the base file still has the newest version.
    table = make_table(shape_of(index, merge="commit" if index.has_ring else "event"))
    table.upsert(batch([row("k1", ts=9), row("k2")]))
    table.delete(["k1"])
    assert data_rows(table, ["id"]) == [{"id": "k2"}]
    table.upsert(batch([row("k1", ts=1)]))
    assert data_rows(table, ["id", "ts"]) == [{"id": "k1", "ts": 1}, {"id": "k2", "ts": 1}]


@given(data=st.data())
@examples(10)
def test_lookup_result_does_not_depend_on_the_memory_budget(data: st.DataObject) -> None:
    shape: Shape = data.draw(shapes())
    history = data.draw(histories(3, names=("upsert", "delete", "insert")))
    tables = [make_table(replace(shape, budget=budget)) for budget in (64 << 20, 1_000)]
    for verb in history:
        for table in tables:
            apply_verb(table, Model(shape), verb, unique=False)
    assert data_rows(tables[0]) == data_rows(tables[1])
