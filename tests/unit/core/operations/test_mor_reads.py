"""Reads of merge-on-read tables by example: what logs hide, add and bring back."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from tests.support.tables import Shape, batch, data_rows, log_files, make_table, row

LOGGED = Shape(type="MERGE_ON_READ", keys="non_partition", rows_per_file=1_000)


def ids(table: Table, **scan: object) -> list[tuple[str, str]]:
    return [(found["id"], found["v"]) for found in data_rows(table, ["id", "v"], **scan)]


def test_changes_are_read_over_a_base_file_of_several_row_groups() -> None:
    shape = Shape(type="MERGE_ON_READ", keys="non_partition", rows_per_file=1_000, budget=500)
    table = make_table(shape)
    rows = batch(row(f"k{n}", v="old") for n in range(50))
    first = table.bulk_insert(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=7)))
    table.upsert(batch(row(f"k{n}", v="mid") for n in range(10)))
    last = table.upsert(batch(row(f"k{n}", v="new") for n in range(5)))
    (base,) = table.scan(read_optimized=True).plan().plan.files
    assert _row_groups(table, base.path) > 1
    changes = table.incremental(first.instant.completion, last.instant.completion).to_arrow()
    assert sorted(changes.column("v").to_pylist()) == ["mid"] * 5 + ["new"] * 5


def _row_groups(table: Table, path: str) -> int:
    with table.refresh().env.storage.open_input(path) as source:
        return int(pq.ParquetFile(source).num_row_groups)


BUCKETED = Shape(type="MERGE_ON_READ", keys="non_partition", index="BUCKET", buckets=1)


def test_an_insert_after_a_delete_loses_to_the_base_row_until_a_compaction_removed_it() -> None:
    table = make_table(BUCKETED)
    table.insert(batch([row("k", v="base", ts=100)]))
    table.delete(["k"])
    assert ids(table) == []
    table.insert(batch([row("k", v="late", ts=5)]))
    # The insert took the delete's place, and what is left of the logs is older than the base row.
    assert ids(table) == [("k", "base")]
    table.delete(["k"])
    table.services.compaction.run(force=True)
    table.insert(batch([row("k", v="late", ts=5)]))
    assert ids(table) == [("k", "late")]


def test_of_base_rows_with_one_key_only_the_first_meets_the_logs() -> None:
    table = make_table(BUCKETED)
    table.insert(batch([row("k", v="first"), row("k", v="second"), row("m", v="other")]))
    table.upsert(batch([row("k", v="new")]))
    assert ids(table) == [("k", "new"), ("k", "second"), ("m", "other")]
    table.delete(["k"])
    assert ids(table) == [("k", "second"), ("m", "other")]
    table.services.compaction.run(force=True)
    assert ids(table) == ids(table, read_optimized=True) == [("k", "second"), ("m", "other")]


def test_a_group_of_logs_alone_is_read_and_its_first_compaction_gives_it_a_base_file() -> None:
    shape = Shape(type="MERGE_ON_READ", keys="non_partition", index="BUCKET", buckets=1, new_buckets="log")
    table = make_table(shape)
    table.insert(batch([row("k", v="old"), row("m", v="old")]))
    table.upsert(batch([row("k", v="new", ts=2), row("n", v="new")]))
    assert ids(table) == [("k", "new"), ("m", "old"), ("n", "new")]
    assert ids(table, read_optimized=True) == []
    table.services.compaction.run(force=True)
    assert ids(table) == ids(table, read_optimized=True) == [("k", "new"), ("m", "old"), ("n", "new")]


def test_logs_that_complete_after_a_plan_stay_over_the_base_file_it_makes() -> None:
    table = make_table(LOGGED)
    table.insert(batch([row("k", v="old"), row("m", v="old")]))
    table.upsert(batch([row("k", v="mid", ts=2)]))
    planned = table.services.compaction.schedule(force=True)
    table.upsert(batch([row("k", v="new", ts=3)]))
    table.services.compaction.run(instant=planned.requested)
    assert ids(table, read_optimized=True) == [("k", "mid"), ("m", "old")]
    assert ids(table) == [("k", "new"), ("m", "old")]
    assert ids(table, as_of=planned.requested) == [("k", "mid"), ("m", "old")]


def test_log_compaction_of_damaged_logs_writes_nothing_where_damage_is_skipped() -> None:
    table = make_table(replace(LOGGED, options={"lakehouse.damaged.files": "skip"}))
    table.insert(batch([row("k", v="old")]))
    table.upsert(batch([row("k", v="mid", ts=2)]))
    table.upsert(batch([row("k", v="new", ts=3)]))
    storage = table.refresh().env.storage
    for log in log_files(storage):
        storage.put(log.path, storage.get(log.path)[:-1])
    assert ids(table) == [("k", "old")]
    outcome = table.services.log_compaction.run()
    assert isinstance(outcome, Committed) and outcome.metadata.stats == ()
    assert ids(table) == [("k", "old")]


def test_a_record_size_of_zero_bytes_is_taken_for_one() -> None:
    table = make_table(Shape(options={"hoodie.copyonwrite.record.size.estimate": "0"}))
    table.insert(batch([row("k", v="old")]))
    assert ids(table) == [("k", "old")]
