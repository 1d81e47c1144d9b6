"""Rows with the view types of Arrow, which Polars and DuckDB pass on, in all supported versions of pyarrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table

ROWS = pa.table(
    {
        "id": pa.array(["a", "b"], pa.string_view()),
        "text": pa.array(["x", None], pa.string_view()),
        "data": pa.array([b"1", None], pa.binary_view()),
    }
)


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("verb", ["bulk_insert", "insert", "upsert", "insert_overwrite"])
def test_each_verb_writes_rows_with_view_types(tmp_path: Path, verb: str, table_type: str) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", schema=ROWS.schema, record_key="id", table_type=table_type)
    table.upsert(ROWS.slice(0, 1))
    getattr(table, verb)(pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.slice(1).to_batches()))
    rows = table.scan().to_arrow().sort_by("id").select(["id", "text", "data"]).to_pylist()
    assert rows[-1] == {"id": "b", "text": None, "data": None}
    assert len(rows) == (1 if verb == "insert_overwrite" else 2)
