"""Insert policies for duplicates: none, drop and fail, in a batch, against the table and between writers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import make_env

POLICY = "hoodie.datasource.insert.dup.policy"
DROP, FAIL, NONE = ({POLICY: policy} for policy in ("drop", "fail", "none"))
FIRST = [{"id": 1, "v": 1, "day": "a"}, {"id": 2, "v": 2, "day": "a"}]
SECOND = [{"id": 2, "v": 9, "day": "a"}, {"id": 3, "v": 3, "day": "a"}, {"id": 2, "v": 4, "day": "b"}]
INDEXES = {
    "simple": {},
    "bloom": {"hoodie.index.type": "BLOOM"},
    "bucket": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
    "record index": {"hoodie.index.type": "RECORD_INDEX"},
    "global": {"hoodie.index.type": "GLOBAL_SIMPLE"},
}
#: Each insert makes file groups of its own, so that only the keys of two writers conflict.
SHARED = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.parquet.small.file.limit": "0",
}


def created(index: str = "simple", kind: str = "COPY_ON_WRITE", **options: Any) -> Table:
    env = make_env()
    settings = {**INDEXES[index], **options.pop("options", {})}
    return Table.create(
        env.storage.root,
        name="orders",
        record_key="id",
        partition_by="day",
        table_type=kind,
        env=env,
        options=settings,
        **options,
    )


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.scan(columns=["id", "day", "v"]).to_arrow().to_pylist())


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("index", INDEXES)
def test_drop_inserts_only_keys_that_the_table_lacks(index: str, kind: str) -> None:
    table = created(index, kind)
    table.insert(FIRST)
    outcome = table.insert(SECOND, options=DROP)
    is_global = index in ("global", "record index")
    others = [] if is_global else [(2, "b", 4)]
    assert rows_of(table) == sorted([(1, "a", 1), (2, "a", 2), (3, "a", 3), *others])
    assert isinstance(outcome, Committed)
    assert outcome.duplicates_dropped == 3 - len(rows_of(table)) + 2
    assert "dropped" in repr(outcome)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_drop_sees_updates_and_deletes_in_logs(kind: str) -> None:
    table = created(kind=kind)
    table.insert(FIRST)
    table.upsert([{"id": 1, "v": 7, "day": "a"}])
    table.delete(["2"])
    outcome = table.insert([{"id": 1, "v": 8, "day": "a"}, {"id": 2, "v": 8, "day": "a"}], options=DROP)
    assert rows_of(table) == [(1, "a", 7), (2, "a", 8)]
    assert isinstance(outcome, Committed) and outcome.duplicates_dropped == 1


def test_drop_combines_the_rows_of_a_batch_by_the_merge_rule() -> None:
    table = created(ordering="v")
    outcome = table.insert(
        [{"id": 1, "v": 1, "day": "a"}, {"id": 1, "v": 5, "day": "a"}, {"id": 1, "v": 3, "day": "a"}], options=DROP
    )
    assert rows_of(table) == [(1, "a", 5)]
    assert isinstance(outcome, Committed) and outcome.duplicates_dropped == 2


def test_batch_of_stored_keys_is_nothing_to_do_and_counts_them() -> None:
    table = created()
    table.insert(FIRST)
    outcome = table.insert(FIRST, options=DROP)
    assert isinstance(outcome, NothingToDo) and outcome.duplicates_dropped == 2
    assert len(table.commits()) == 1
    committed = table.insert(FIRST, options=DROP, allow_empty=True)
    assert isinstance(committed, Committed) and committed.duplicates_dropped == 2


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (SECOND, "the table contains 1 key of the batch, such as '2' in partition 'a'"),
        ([{"id": 7, "v": 1, "day": "a"}, {"id": 7, "v": 2, "day": "a"}], "the batch has 1 row too many for its keys"),
    ],
)
def test_fail_refuses_the_whole_batch(rows: list[dict[str, Any]], text: str) -> None:
    table = created(options=FAIL)
    table.insert(FIRST)
    before = rows_of(table)
    with pytest.raises(UserError, match=text):
        Table.open(table.location, env=table._env).insert(rows)
    assert rows_of(table) == before and len(table.timeline) == 1
    table.insert(rows, options=NONE)
    assert len(rows_of(table)) == len(before) + len(rows)


def test_none_keeps_all_rows() -> None:
    table = created()
    table.insert(FIRST)
    outcome = table.insert(FIRST)
    assert len(rows_of(table)) == 4
    assert isinstance(outcome, Committed) and outcome.duplicates_dropped == 0


def test_older_option_of_hudi_is_drop() -> None:
    table = created()
    table.insert(FIRST)
    table.insert(FIRST, options={"hoodie.datasource.write.insert.drop.duplicates": "true"})
    assert len(rows_of(table)) == 2


def test_bulk_insert_refuses_a_policy_that_it_cannot_apply() -> None:
    table = created(options=DROP)
    with pytest.raises(UserError, match="bulk_insert looks up no keys; use insert"):
        table.bulk_insert(FIRST)
    table.bulk_insert(FIRST, options=NONE)
    table.upsert(FIRST)
    assert len(rows_of(table)) == 2


def test_policy_refuses_writers_without_conflict_checks() -> None:
    table = created(
        "bucket", "MERGE_ON_READ", options={"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    )
    with pytest.raises(UserError, match="needs conflict checks between writers"):
        table.insert(FIRST, options=DROP)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_two_writers_insert_one_key_once(index: str, kind: str) -> None:
    table = created(index, kind, options=SHARED)
    table.insert([{"id": 0, "v": 0, "day": "a"}])
    other = Table.open(table.location, env=table._env, options={**INDEXES[index], **SHARED})

    def rows() -> Iterator[pa.RecordBatch]:
        # The other writer commits after this write has its instant.
        other.insert(pa.table({"id": [5, 6], "v": [1, 1], "day": ["a", "a"]}), options=DROP)
        yield from pa.table({"id": [5, 7], "v": [2, 2], "day": ["a", "a"]}).to_batches()

    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("day", pa.string())])
    outcome = table.insert(pa.RecordBatchReader.from_batches(schema, rows()), options=DROP)
    assert rows_of(table) == [(0, "a", 0), (5, "a", 1), (6, "a", 1), (7, "a", 2)]
    assert isinstance(outcome, Committed) and outcome.duplicates_dropped == 1


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_many_writers_of_the_same_keys_leave_each_key_once(kind: str) -> None:
    table = created(kind=kind, options={**SHARED, "hoodie.write.num.retries.on.conflict.failures": "20"})
    batch = [{"id": number, "v": number, "day": "a"} for number in range(50)]
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda _: table.with_options(DROP).insert(batch), range(3)))
    assert rows_of(table) == [(number, "a", number) for number in range(50)]
    assert sum(outcome.duplicates_dropped for outcome in outcomes) == 100
