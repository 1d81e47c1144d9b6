"""Partial updates in logs: rows that other readers could not complete are written with all columns."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.format.log.blocks import BlockType, scan_blocks
from lakehouse.core.table.table import Table
from tests.support.tables import DELETED, SCHEMA, batch, data_rows, make_env, row

PARTIAL = {"lakehouse.write.partial.update": "true"}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
WITHOUT_FLAG = pa.schema([field for field in SCHEMA if field.name != DELETED])
BROUGHT = ["id", "p", "ts", "v"]


def create(schema: pa.Schema, **options: str) -> Table:
    env = make_env()
    return Table.create(
        env.storage.root,
        name="t",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        schema=schema,
        table_type="MERGE_ON_READ",
        options=options,
        env=env,
    )


def newest_blocks(table: Table) -> dict[bool, list[dict[str, Any]]]:
    """Return the data columns of the rows that the last commit logged: those of partial blocks under True."""
    instant, metadata = table.commits()[-1]
    found: dict[bool, list[dict[str, Any]]] = {}
    for stat in metadata.stats:
        if ".log." not in stat.path:
            continue
        with table.refresh().env.storage.open_input(stat.path) as source:
            for block in scan_blocks(source):
                assert block.kind is BlockType.PARQUET_DATA and block.instant == instant.requested
                source.seek(block.offset)
                rows = pq.read_table(io.BytesIO(source.read(block.length))).to_pylist()
                plain = [{k: v for k, v in r.items() if not k.startswith("_hoodie") or k == DELETED} for r in rows]
                found.setdefault(block.is_partial, []).extend(plain)
    return found


def part(*rows: dict[str, Any]) -> pa.Table:
    return batch(rows).select(BROUGHT)


def test_partial_row_changes_a_stored_row() -> None:
    table = create(WITHOUT_FLAG)
    table.upsert(batch([row("a", ts=1, amount=1.5)], WITHOUT_FLAG))
    table.upsert(part(row("a", ts=2, v="new")), options=PARTIAL)
    assert newest_blocks(table) == {True: [{"id": "a", "p": "a", "ts": 2, "v": "new"}]}


@pytest.mark.parametrize("begin", ["base", "log"])
def test_bucket_logs_new_rows_completely_and_stored_rows_partially(begin: str) -> None:
    table = create(WITHOUT_FLAG, **BUCKETS, **{"lakehouse.bucket.inserts": begin})
    table.upsert(batch([row("a", ts=1, amount=1.5), row("b", ts=1, amount=2.5)], WITHOUT_FLAG))
    table.delete(["b"])
    table.upsert(part(row("a", ts=2, v="new"), row("b", ts=2, v="back"), row("c", ts=2, v="first")), options=PARTIAL)
    others = dict.fromkeys(("region", "at", "amount"))
    assert newest_blocks(table) == {
        True: [{"id": "a", "p": "a", "ts": 2, "v": "new"}],
        False: [
            {"id": "b", "p": "a", "ts": 2, "v": "back", **others},
            {"id": "c", "p": "a", "ts": 2, "v": "first", **others},
        ],
    }
    assert [(r["id"], r["v"], r["amount"]) for r in data_rows(table)] == [
        ("a", "new", 1.5),
        ("b", "back", None),
        ("c", "first", None),
    ]


@pytest.mark.parametrize("index", [{}, BUCKETS])
def test_rows_are_completed_if_a_column_marks_deletes(index: dict[str, str]) -> None:
    table = create(SCHEMA, **index)
    table.upsert(batch([row("a", ts=1, amount=1.5), row("b", ts=5, amount=2.5)]))
    table.upsert(batch([row("a", ts=2, amount=3.5, v="logged")]))
    table.upsert(part(row("a", ts=3, v="new"), row("b", ts=4, v="late")), options=PARTIAL)
    # The batch says nothing about deletes, so its rows are not deleted.
    completed = [row("a", ts=3, v="new", amount=3.5), row("b", ts=4, v="late", amount=2.5)]
    assert newest_blocks(table) == {False: [{**values, DELETED: False} for values in completed]}
    assert [(r["id"], r["ts"], r["v"], r["amount"]) for r in data_rows(table)] == [
        ("a", 3, "new", 3.5),
        ("b", 5, None, 2.5),
    ]
