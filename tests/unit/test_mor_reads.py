"""Reads of merge-on-read tables by example: what logs hide, add and bring back."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.table import Table
from tests.support.tables import Shape, batch, data_rows, make_table, row

LOGGED = Shape(type="MERGE_ON_READ", keys="non_partition", rows_per_file=1_000_000)


def ids(table: Table, **scan: object) -> list[tuple[str, str]]:
    return [(found["id"], found["v"]) for found in data_rows(table, ["id", "v"], **scan)]


def test_changes_are_read_over_a_base_file_of_several_row_groups() -> None:
    shape = Shape(type="MERGE_ON_READ", keys="non_partition", rows_per_file=1_000_000, budget=500)
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
