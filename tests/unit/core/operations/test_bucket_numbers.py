"""Numbered buckets whose number changes per partition, beside writers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.index.hash.bucket import bucket_ids, bucket_of
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.planning.numbered_resize import partition_pattern
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Instant
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.options.clustering import BUCKETS
from lakehouse.spec.table.bucket_rules import parse_rules, render_rules
from tests.support.tables import Shape, batch, examples, make_table, row

LOCKED = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


def numbered_table(buckets: int = 2, type: str = "MERGE_ON_READ", **values: Any) -> Table:
    """Return an empty table with the bucket index."""
    return make_table(Shape(type=type, index="BUCKET", buckets=buckets, **values))


def keys(first: int, last: int, v: str, ts: int = 1, p: str = "a") -> Any:
    """Return a batch of rows k<first> ... k<last - 1>."""
    return batch(row(f"k{number}", v=v, ts=ts, p=p) for number in range(first, last))


def rows_of(table: Table) -> dict[str, Any]:
    """Return v by id; assert that each id occurs once."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert not rows or max(Counter(r["id"] for r in rows).values()) == 1
    return {r["id"]: r["v"] for r in rows}


def assert_buckets(table: Table, counts: dict[str, int]) -> None:
    """Assert that each row is in the file group of its bucket, of which each partition has `counts`."""
    found = table.scan(["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"]).to_arrow()
    for partition, count in counts.items():
        of_partition = [r for r in found.to_pylist() if r["_hoodie_partition_path"] == partition]
        stored = [bucket_of(r["_hoodie_file_name"].lstrip(".").partition("_")[0]) for r in of_partition]
        names = table.scan(["_hoodie_record_key"], where=f"p = '{partition}'").to_arrow().column(0)
        expected = bucket_ids(names, key_fields=("id",), hash_fields=(), buckets=count)
        by_key = dict(zip(names.to_pylist(), expected.tolist(), strict=True))
        assert stored == [by_key[r["_hoodie_record_key"]] for r in of_partition]
    groups = Counter((s.partition, bucket_of(s.file_id)) for s in load_slices(table.refresh()))
    assert not groups or max(groups.values()) == 1
    assert table.validate(deep=True).findings == ()


def to(table: Table, count: int | str, **options: str) -> Table:
    """Return the table with the option for the number of buckets."""
    return table.with_options({BUCKETS: str(count), **options})


def resize(table: Table, count: int, partition: str = "a") -> Committed:
    """Change the number of buckets of a partition."""
    outcome = to(table, count).services.clustering.run(force=True, partitions=[partition])
    assert isinstance(outcome, Committed)
    return outcome


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 6), (6, 4), (1, 5), (4, 1)])
def test_resize_moves_the_rows_of_one_partition_to_their_new_buckets(type: str, before: int, after: int) -> None:
    table = numbered_table(before, type)
    table.upsert(keys(0, 40, "old"))
    table.upsert(keys(40, 60, "other", p="b"))
    other = {s.file_id for s in load_slices(table.refresh()) if s.partition == "b"}
    resize(table, after)
    expected = {f"k{n}": "old" if n < 40 else "other" for n in range(60)}
    assert rows_of(table) == expected
    assert_buckets(table, {"a": after, "b": before})
    assert {s.file_id for s in load_slices(table.refresh()) if s.partition == "b"} == other
    table.upsert(keys(20, 50, "new", ts=2))
    expected |= {f"k{n}": "new" for n in range(20, 40)}
    found = table.scan(["id", "v"], where="p = 'a'").to_arrow().to_pylist()
    assert {r["id"]: r["v"] for r in found} == {f"k{n}": "old" if n < 20 else "new" for n in range(50)}
    assert_buckets(table, {"a": after, "b": before})


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 4)])
def test_writes_during_a_pending_resize_are_read_before_and_after_it(before: int, after: int) -> None:
    table = numbered_table(before)
    table.upsert(keys(0, 40, "old"))
    planned = to(table, after).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    table.upsert(keys(20, 60, "new", ts=2))
    table.delete([f"k{n}" for n in range(5)])
    expected = {f"k{n}": "old" if n < 20 else "new" for n in range(5, 60)}
    assert rows_of(table) == expected
    done = table.services.clustering.run(instant=planned.requested)
    assert isinstance(done, Committed)
    assert rows_of(table) == expected
    assert_buckets(table, {"a": after})
    table.services.compaction.run(force=True)
    table.upsert(keys(0, 60, "last", ts=9))
    assert rows_of(table) == {f"k{n}": "last" for n in range(60)}


def test_bucket_that_is_created_during_a_resize_is_replaced_by_it() -> None:
    table = numbered_table(4)
    table.upsert(keys(0, 1, "old"))
    planned = to(table, 8).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    table.upsert(keys(0, 40, "new", ts=2))
    assert rows_of(table) == {f"k{n}": "new" for n in range(40)}
    assert isinstance(table.services.clustering.run(instant=planned.requested), Committed)
    assert rows_of(table) == {f"k{n}": "new" for n in range(40)}
    assert_buckets(table, {"a": 8})


def test_write_that_began_before_the_plan_is_tried_again_with_the_new_buckets() -> None:
    table = numbered_table(2, options=LOCKED)
    table.upsert(keys(0, 40, "old"))
    writer = table.with_options({})
    planned = to(table, 4).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    assert isinstance(writer.upsert(keys(0, 50, "new", ts=2)), Committed)
    assert isinstance(table.services.clustering.run(instant=planned.requested), Committed)
    assert rows_of(table) == {f"k{n}": "new" for n in range(50)}
    assert_buckets(table, {"a": 4})


def test_write_to_a_copy_on_write_table_has_priority_over_a_resize_of_its_buckets() -> None:
    table = numbered_table(2, "COPY_ON_WRITE")
    table.upsert(keys(0, 40, "old"))
    planned = to(table, 4).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    table.upsert(keys(0, 10, "new", ts=2))
    outcome = to(table, 4).services.clustering.run(force=True)
    assert isinstance(outcome, Committed) and planned.requested in outcome.dropped[0]
    assert rows_of(table) == {f"k{n}": "new" if n < 10 else "old" for n in range(40)}
    assert_buckets(table, {"a": 4})


def test_write_to_a_copy_on_write_table_is_refused_while_its_buckets_are_resized_with_the_strategy_reject() -> None:
    table = numbered_table(2, "COPY_ON_WRITE", options={"hoodie.clustering.updates.strategy": "reject"})
    table.upsert(keys(0, 40, "old"))
    planned = to(table, 4).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    with pytest.raises(RetryableError, match="is being clustered"):
        table.upsert(keys(0, 10, "new", ts=2))
    assert isinstance(table.services.clustering.run(instant=planned.requested), Committed)
    table.upsert(keys(0, 10, "new", ts=2))
    assert rows_of(table) == {f"k{n}": "new" if n < 10 else "old" for n in range(40)}
    assert_buckets(table, {"a": 4})


def test_rollback_of_a_resize_restores_the_number_of_buckets() -> None:
    table = numbered_table(2)
    table.upsert(keys(0, 40, "old"))
    planned = to(table, 4).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    table.upsert(keys(20, 60, "new", ts=2))
    table.services.clustering.run(instant=planned.requested)
    table.rollback(planned.requested)
    expected = {f"k{n}": "old" if n < 20 else "new" for n in range(60)}
    assert rows_of(table) == expected
    assert_buckets(table, {"a": 2})
    resize(table, 4)
    assert rows_of(table) == expected
    assert_buckets(table, {"a": 4})


def test_clustering_sorts_rows_within_numbered_buckets() -> None:
    table = numbered_table(2)
    table.upsert(batch(row(f"k{number}", amount=float(-number)) for number in range(40)))
    sort = table.with_options({"hoodie.clustering.plan.strategy.sort.columns": "amount"})
    planned = sort.services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    table.upsert(batch(row(f"k{number}", ts=2, amount=float(-number), v="new") for number in range(10)))
    assert isinstance(sort.services.clustering.run(instant=planned.requested), Committed)
    assert_buckets(table, {"a": 2})
    assert sum(value == "new" for value in rows_of(table).values()) == 10
    assert isinstance(sort.services.clustering.run(force=True), Committed), "the slices have logs again"
    by_file: dict[str, list[float]] = {}
    for found in table.scan(["amount", "_hoodie_file_name"]).to_arrow().to_pylist():
        by_file.setdefault(found["_hoodie_file_name"], []).append(found["amount"])
    assert len(by_file) == 2
    assert all(amounts == sorted(amounts) for amounts in by_file.values())
    assert isinstance(sort.services.clustering.run(force=True), NothingToDo)


def test_auto_doubles_and_halves_the_buckets_of_a_partition_by_their_size() -> None:
    table = numbered_table(2)
    table.upsert(keys(0, 40, "old"))
    grow = {"hoodie.bucket.index.split.threshold": "0.05", "hoodie.bucket.index.merge.threshold": "0"}
    assert isinstance(to(table, "auto", **grow).services.clustering.run(force=True), Committed)
    assert_buckets(table, {"a": 4})
    shrink = {"hoodie.bucket.index.split.threshold": "9", "hoodie.bucket.index.merge.threshold": "8"}
    assert isinstance(to(table, "auto", **shrink).services.clustering.run(force=True), Committed)
    assert_buckets(table, {"a": 2})
    assert rows_of(table) == {f"k{n}": "old" for n in range(40)}
    keep = {"hoodie.bucket.index.split.threshold": "9", "hoodie.bucket.index.merge.threshold": "0"}
    assert isinstance(to(table, "auto", **keep).services.clustering.run(force=True), NothingToDo)


def test_number_of_buckets_of_a_table_without_partitions_cannot_change() -> None:
    table = numbered_table(2, keys="non_partition")
    table.upsert(keys(0, 10, "old"))
    with pytest.raises(UserError, match="has no partitions"):
        to(table, 4).services.clustering.run(force=True)


def test_number_of_buckets_is_refused_for_other_indexes_and_for_other_texts() -> None:
    table = make_table()
    table.upsert(keys(0, 10, "old"))
    with pytest.raises(UserError, match="is for the bucket index"):
        to(table, 4).services.clustering.run(force=True)
    with pytest.raises(UserError, match="must be a number from 1 to"):
        to(table, "many")


@given(partition=st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=12))
@examples(200)
def test_pattern_of_a_partition_matches_only_its_path(partition: str) -> None:
    pattern = partition_pattern(partition)
    assert parse_rules(render_rules([(pattern, 7)])) == ((pattern, 7),)
    compiled = compile_pattern(pattern, "a test")
    assert compiled.found_in(partition)
    assert not compiled.found_in(f"{partition}x")
    assert not compiled.found_in(f"x{partition}")
