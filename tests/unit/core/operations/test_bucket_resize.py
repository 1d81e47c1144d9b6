"""Buckets of consistent hashing that split and merge, beside writers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakehouse.core.format.hashing_metadata import (
    INITIAL_INSTANT,
    LARGEST_HASH,
    encode_hashing_metadata,
    marker_path,
    metadata_path,
)
from lakehouse.core.index.hash.consistent_hashing import Ring, key_hashes
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.placement.rings import load_rings
from lakehouse.core.table.table import Table
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.model.instant import Instant
from lakehouse.spec.options.index import MERGE_THRESHOLD, MIN_NUM_BUCKETS, SPLIT_THRESHOLD
from tests.support.tables import Shape, batch, data_rows, make_table, row

SPLIT: dict[str, str] = {SPLIT_THRESHOLD: "0.2", MERGE_THRESHOLD: "0", "hoodie.parquet.max.file.size": "1000"}
MERGE: dict[str, str] = {SPLIT_THRESHOLD: "1e9", MERGE_THRESHOLD: "1e8", MIN_NUM_BUCKETS: "1"}


def ring_table(**values: Any) -> Table:
    """Return an empty table with consistent hashing and two buckets per partition."""
    options = {BUCKET_ENGINE: CONSISTENT_HASHING, **values.pop("options", {})}
    return make_table(Shape(type="MERGE_ON_READ", index="BUCKET", buckets=2, options=options, **values))


def rows_of(table: Table) -> dict[str, Any]:
    """Return v by id; assert that each id occurs once."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert not rows or max(Counter(r["id"] for r in rows).values()) == 1
    return {r["id"]: r["v"] for r in rows}


def ring_of(table: Table, partition: str = "a") -> Ring:
    """Return the current ring of a partition."""
    return load_rings(table.refresh(), [partition])[partition]


def assert_rows_in_their_buckets(table: Table) -> None:
    """Assert that each row is in the file group of its node, and that every file group has a node."""
    found = table.scan(["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]).to_arrow()
    hashes = key_hashes(found.column("_hoodie_record_key"), key_fields=("id",), hash_fields=())
    partitions = found.column("_hoodie_partition_path").to_pylist()
    rings = load_rings(table.refresh(), partitions)
    expected = [rings[p].node_of(int(value)).file_id for p, value in zip(partitions, hashes, strict=True)]
    names = found.column("_hoodie_file_name").to_pylist()
    assert [name.lstrip(".").partition("_")[0] for name in names] == expected
    for piece in load_slices(table.refresh()):
        assert rings[piece.partition].node_of_group(piece.file_id) is not None


def resize(table: Table, options: dict[str, str]) -> Committed:
    """Plan and execute a resize."""
    outcome = table.with_options(options).services.clustering.run(force=True)
    assert isinstance(outcome, Committed)
    return outcome


def plan(table: Table, options: dict[str, str]) -> Instant:
    """Plan a resize."""
    outcome = table.with_options(options).services.clustering.schedule(force=True)
    assert isinstance(outcome, Instant)
    return outcome


def keys(first: int, last: int, v: str, ts: int = 1) -> Any:
    """Return a batch of rows k<first> ... k<last - 1>."""
    return batch(row(f"k{number}", v=v, ts=ts) for number in range(first, last))


def test_split_divides_the_range_of_each_large_bucket_and_changes_no_row() -> None:
    table = ring_table()
    table.upsert(keys(0, 60, "old"))
    before = table.scan().to_arrow().drop_columns(["_hoodie_file_name"]).sort_by("id")
    resize(table, SPLIT)
    ring = ring_of(table)
    assert [node.value for node in ring.metadata.nodes] == [536870911, 1073741824, 1610612735, LARGEST_HASH]
    assert ring.metadata.sequence == 1
    after = table.scan().to_arrow().drop_columns(["_hoodie_file_name"]).sort_by("id")
    assert after.equals(before)
    assert_rows_in_their_buckets(table)
    table.upsert(keys(30, 90, "new", ts=2))
    assert rows_of(table) == {f"k{n}": "old" if n < 30 else "new" for n in range(90)}
    assert_rows_in_their_buckets(table)


def test_writes_during_a_pending_split_are_read_before_and_after_it_completes() -> None:
    table = ring_table()
    table.upsert(keys(0, 40, "old"))
    planned = plan(table, SPLIT)
    outcome = table.upsert(keys(20, 60, "new", ts=2))
    assert isinstance(outcome, Committed)
    copies = [stat for stat in outcome.metadata.stats if f"_{planned.requested}.log." in stat.path]
    assert len(copies) == 4
    assert sum(stat.num_writes for stat in copies) == outcome.rows == 40
    table.upsert(keys(30, 35, "newer", ts=3))
    table.delete([f"k{number}" for number in range(10)])
    expected = {f"k{n}": "old" for n in range(10, 20)} | {f"k{n}": "new" for n in range(20, 60)}
    expected |= {f"k{n}": "newer" for n in range(30, 35)}
    assert rows_of(table) == expected, "readers ignore the copies while the split is pending"
    done = table.services.clustering.run(instant=planned.requested)
    assert isinstance(done, Committed)
    assert rows_of(table) == expected
    assert len(ring_of(table).metadata.nodes) == 4
    assert_rows_in_their_buckets(table)
    table.services.compaction.run(force=True)
    assert rows_of(table) == expected
    table.upsert(keys(0, 60, "last", ts=9))
    assert rows_of(table) == {f"k{n}": "last" for n in range(60)}
    assert table.validate(deep=True).findings == ()


def test_write_that_began_before_the_plan_is_tried_again_and_copies_its_rows() -> None:
    table = ring_table(options={"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"})
    table.upsert(keys(0, 40, "old"))
    writer = table.with_options({})
    planned = plan(table, SPLIT)
    outcome = writer.upsert(keys(0, 50, "new", ts=2))
    assert isinstance(outcome, Committed)
    table.services.clustering.run(instant=planned.requested)
    assert rows_of(table) == {f"k{n}": "new" for n in range(50)}
    assert_rows_in_their_buckets(table)


def test_merge_joins_neighbouring_small_buckets_into_one() -> None:
    table = ring_table()
    table.upsert(keys(0, 60, "old"))
    resize(table, SPLIT)
    assert len(ring_of(table).metadata.nodes) == 4
    resize(table, {**MERGE, MIN_NUM_BUCKETS: "3"})
    assert len(ring_of(table).metadata.nodes) == 3
    resize(table, MERGE)
    assert [node.value for node in ring_of(table).metadata.nodes] == [LARGEST_HASH]
    assert ring_of(table).metadata.sequence == 3
    assert rows_of(table) == {f"k{n}": "old" for n in range(60)}
    assert_rows_in_their_buckets(table)


def test_write_during_a_pending_merge_is_read_after_it() -> None:
    table = ring_table()
    table.upsert(keys(0, 40, "old"))
    planned = plan(table, MERGE)
    table.upsert(keys(10, 60, "new", ts=2))
    table.services.clustering.run(instant=planned.requested)
    assert len(ring_of(table).metadata.nodes) == 1
    assert rows_of(table) == {f"k{n}": "old" if n < 10 else "new" for n in range(60)}
    assert_rows_in_their_buckets(table)


def test_split_stops_at_the_largest_number_of_buckets() -> None:
    table = ring_table()
    table.upsert(keys(0, 60, "old"))
    resize(table, {**SPLIT, "hoodie.bucket.index.max.num.buckets": "3"})
    assert len(ring_of(table).metadata.nodes) == 3
    assert not isinstance(
        table.with_options({**SPLIT, "hoodie.bucket.index.max.num.buckets": "3"}).services.clustering.run(force=True),
        Committed,
    )


def test_clustering_sorts_rows_within_buckets_once() -> None:
    table = ring_table()
    table.upsert(batch(row(f"k{number}", amount=float(-number)) for number in range(40)))
    sort = {"hoodie.clustering.plan.strategy.sort.columns": "amount", MERGE_THRESHOLD: "0"}
    before = [node.value for node in ring_of(table).metadata.nodes]
    outcome = resize(table, sort)
    assert len(outcome.metadata.stats) == 2
    assert [node.value for node in ring_of(table).metadata.nodes] == before
    assert_rows_in_their_buckets(table)
    for piece in load_slices(table.refresh()):
        assert piece.base is not None
        amounts = [r["amount"] for r in table.scan(["amount", "_hoodie_file_name"]).to_arrow().to_pylist()]
        assert len(amounts) == 40
    by_file: dict[str, list[float]] = {}
    for found in table.scan(["amount", "_hoodie_file_name"]).to_arrow().to_pylist():
        by_file.setdefault(found["_hoodie_file_name"], []).append(found["amount"])
    assert len(by_file) == 2
    assert all(amounts == sorted(amounts) for amounts in by_file.values())
    assert not isinstance(table.with_options(sort).services.clustering.run(force=True), Committed)


def test_rollback_of_a_resize_restores_the_ring_and_deletes_the_copies() -> None:
    table = ring_table()
    table.upsert(keys(0, 40, "old"))
    planned = plan(table, SPLIT)
    table.upsert(keys(20, 60, "new", ts=2))
    table.services.clustering.run(instant=planned.requested)
    table.rollback(planned.requested)
    expected = {f"k{n}": "old" if n < 20 else "new" for n in range(60)}
    assert rows_of(table) == expected
    assert len(ring_of(table).metadata.nodes) == 2
    assert not [
        f.path
        for f in table.refresh().env.storage.list("")
        if planned.requested in f.path and "/." in f.path[1:] and ".log." in f.path
    ]
    resize(table, SPLIT)
    assert rows_of(table) == expected
    assert_rows_in_their_buckets(table)


def test_rollback_of_a_write_deletes_its_copies() -> None:
    table = ring_table()
    table.upsert(keys(0, 40, "old"))
    planned = plan(table, SPLIT)
    outcome = table.upsert(keys(20, 60, "new", ts=2))
    assert isinstance(outcome, Committed)
    table.rollback(outcome.instant.requested)
    assert rows_of(table) == {f"k{n}": "old" for n in range(40)}
    table.services.clustering.run(instant=planned.requested)
    assert rows_of(table) == {f"k{n}": "old" for n in range(40)}
    assert not [file for file in table.refresh().env.storage.list("a") if ".log." in file.path]


@pytest.mark.parametrize("verb", ["delete_partition", "insert_overwrite", "insert_overwrite_table"])
def test_overwritten_partition_gets_new_groups_for_its_ranges(verb: str) -> None:
    table = ring_table()
    table.upsert(keys(0, 20, "old"))
    before = ring_of(table).metadata
    if verb == "delete_partition":
        table.delete_partitions(["a"])
    else:
        getattr(table, verb)(keys(10, 15, "over", ts=2))
    table.upsert(keys(12, 30, "new", ts=3))
    kept = {} if verb == "delete_partition" else {"k10": "over", "k11": "over"}
    assert rows_of(table) == kept | {f"k{n}": "new" for n in range(12, 30)}
    after = ring_of(table).metadata
    assert [node.value for node in after.nodes] == [node.value for node in before.nodes]
    assert not {node.prefix for node in after.nodes} & {node.prefix for node in before.nodes}
    assert_rows_in_their_buckets(table)


def test_data_rows_of_a_split_table_equal_those_of_a_table_that_was_never_split() -> None:
    tables = [ring_table(), ring_table()]
    for step in range(4):
        for table in tables:
            table.upsert(keys(step * 10, step * 10 + 25, f"v{step}", ts=step))
        resize(tables[0], SPLIT)
    assert len(ring_of(tables[0]).metadata.nodes) > len(ring_of(tables[1]).metadata.nodes) == 2
    assert data_rows(tables[0]) == data_rows(tables[1])


def test_newer_hashing_metadata_counts_only_with_its_marker_or_its_completed_replacecommit() -> None:
    table = ring_table()
    table.upsert(keys(0, 40, "old"))
    outcome = resize(table, SPLIT)
    storage, instant = table.refresh().env.storage, outcome.instant.requested
    assert len(ring_of(table).metadata.nodes) == 4
    storage.delete(marker_path("a", instant))
    assert len(ring_of(table).metadata.nodes) == 4, "the replacecommit is completed"
    table.upsert(keys(0, 5, "new", ts=2))
    assert storage.get(marker_path("a", instant)) == b"", "a writer creates the missing marker"
    later = replace(ring_of(table).metadata, instant="29991231000000000", nodes=ring_of(table).metadata.nodes[-1:])
    storage.put(metadata_path("a", later.instant), encode_hashing_metadata(later))
    assert len(ring_of(table).metadata.nodes) == 4, "no replacecommit belongs to the newest metadata"
    storage.put(marker_path("a", later.instant), b"")
    assert len(ring_of(table).metadata.nodes) == 1


def test_non_blocking_writers_copy_their_rows_while_a_split_is_pending() -> None:
    mode = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    table = ring_table(options=mode)
    table.upsert(keys(0, 40, "old"))
    planned = plan(table, SPLIT)
    first, second = table.with_options({}), table.with_options({})
    assert isinstance(first.upsert(keys(10, 50, "first", ts=2)), Committed)
    assert isinstance(second.upsert(keys(30, 60, "second", ts=3)), Committed)
    expected = {f"k{n}": "old" if n < 10 else "first" if n < 30 else "second" for n in range(60)}
    assert rows_of(table) == expected
    assert isinstance(table.services.clustering.run(instant=planned.requested), Committed)
    assert rows_of(table) == expected
    assert_rows_in_their_buckets(table)


def lose_the_metadata(table: Table) -> None:
    table.refresh().env.storage.delete(metadata_path("a", INITIAL_INSTANT))


def garble_the_metadata(table: Table) -> None:
    table.refresh().env.storage.put(metadata_path("a", INITIAL_INSTANT), b"{")


def replace_a_group(table: Table) -> None:
    change_nodes(table, prefix="0" * 8 + ring_of(table).metadata.nodes[0].prefix[8:])


def move_a_bound(table: Table) -> None:
    change_nodes(table, value=ring_of(table).metadata.nodes[0].value // 2)


def change_nodes(table: Table, **values: Any) -> None:
    """Change the first node of the ring of partition a."""
    metadata = ring_of(table).metadata
    first, *rest = metadata.nodes
    changed = replace(metadata, nodes=(replace(first, **values), *rest))
    table.refresh().env.storage.put(metadata_path("a", INITIAL_INSTANT), encode_hashing_metadata(changed))


def findings(table: Table) -> set[str]:
    return {finding.invariant for finding in table.validate(deep=True).findings}


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (lose_the_metadata, "bucket.layout"),
        (garble_the_metadata, "bucket.layout"),
        (replace_a_group, "bucket.layout"),
        (move_a_bound, "bucket.rows"),
    ],
)
def test_validation_finds_rows_and_file_groups_outside_of_their_ring(
    damage: Callable[[Table], None], invariant: str
) -> None:
    table = ring_table()
    table.upsert(keys(0, 30, "first"))
    assert findings(table) == set()
    damage(table)
    assert findings(table) == {invariant}
    if damage is garble_the_metadata:
        lose_the_metadata(table)
    table.insert_overwrite(keys(0, 30, "repaired", ts=2))
    assert findings(table) == set(), "the way out that the finding names"
    assert rows_of(table) == {f"k{number}": "repaired" for number in range(30)}


def test_validation_accepts_rings_before_during_and_after_a_resize() -> None:
    table = ring_table()
    table.upsert(keys(0, 30, "first"))
    planned = plan(table, SPLIT)
    table.upsert(keys(20, 40, "second", ts=2))
    assert findings(table) == set()
    assert isinstance(table.services.clustering.run(instant=planned.requested), Committed)
    assert findings(table) == set()
    resize(table, MERGE)
    assert findings(table) == set()
    table.refresh().env.storage.delete(metadata_path("a", planned.requested))
    assert findings(table) == set(), "the ring of the merge is the current one"
    table.refresh().env.storage.delete(metadata_path("a", ring_of(table).metadata.instant))
    assert "bucket.layout" in findings(table)
