"""Reads of merge-on-read tables: effects of log files on rows of base files."""

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


def test_logs_are_merged_with_a_base_file_of_several_row_groups() -> None:
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


def test_older_insert_after_a_delete_shows_the_base_row_until_compaction() -> None:
    table = make_table(BUCKETED)
    table.insert(batch([row("k", v="base", ts=100)]))
    table.delete(["k"])
    assert ids(table) == []
    table.insert(batch([row("k", v="late", ts=5)]))
    # The insert replaced the delete in the logs, and it is older than the base row.
    assert ids(table) == [("k", "base")]
    table.delete(["k"])
    table.services.compaction.run(force=True)
    table.insert(batch([row("k", v="late", ts=5)]))
    assert ids(table) == [("k", "late")]


def test_group_without_base_file_is_read_and_compacted() -> None:
    shape = Shape(type="MERGE_ON_READ", keys="non_partition", index="BUCKET", buckets=1, new_buckets="log")
    table = make_table(shape)
    table.insert(batch([row("k", v="old"), row("m", v="old")]))
    table.upsert(batch([row("k", v="new", ts=2), row("n", v="new")]))
    assert ids(table) == [("k", "new"), ("m", "old"), ("n", "new")]
    assert ids(table, read_optimized=True) == []
    table.services.compaction.run(force=True)
    assert ids(table) == ids(table, read_optimized=True) == [("k", "new"), ("m", "old"), ("n", "new")]


def test_logs_completed_after_a_plan_are_merged_with_its_base_file() -> None:
    table = make_table(LOGGED)
    table.insert(batch([row("k", v="old"), row("m", v="old")]))
    table.upsert(batch([row("k", v="mid", ts=2)]))
    planned = table.services.compaction.schedule(force=True)
    table.upsert(batch([row("k", v="new", ts=3)]))
    table.services.compaction.run(instant=planned.requested)
    assert ids(table, read_optimized=True) == [("k", "mid"), ("m", "old")]
    assert ids(table) == [("k", "new"), ("m", "old")]
    assert ids(table, as_of=planned.requested) == [("k", "mid"), ("m", "old")]


def test_log_compaction_of_damaged_logs_writes_nothing_if_damage_is_skipped() -> None:
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


def test_record_size_of_zero_bytes_counts_as_one() -> None:
    table = make_table(Shape(options={"hoodie.copyonwrite.record.size.estimate": "0"}))
    table.insert(batch([row("k", v="old")]))
    assert ids(table) == [("k", "old")]
