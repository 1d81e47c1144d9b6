"""Files of staged chunks: their rows, the codec of each column, and files of chunks without rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.storage.local import LocalStorage
from lakehouse.platform.sources.databases.server import Chunk, SourceColumn, SourceTable
from lakehouse.platform.sources.databases.staging import ChunkRead, StagingTask, parse_reports

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("city", pa.string()),
        ("hash", pa.string()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)


class Batches:
    """Reads that yield given batches, and fail after them if there is an error."""

    omits_unchanged = False

    def __init__(self, batches: Iterable[pa.RecordBatch], error: Exception | None = None) -> None:
        self.batches, self.error = tuple(batches), error

    def connected(self) -> AbstractContextManager[Batches]:
        return nullcontext(self)

    def chunk(self, table: SourceTable, key: Any, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        yield from self.batches
        if self.error is not None:
            raise self.error


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    hashes = [hashlib.sha256(str(number).encode()) for number in numbers]
    columns = [
        [*numbers],
        [f"city {number % 5}" for number in numbers],
        [one.hexdigest() for one in hashes],
        [one.digest() for one in hashes],
        [["a", "b"] for _ in numbers],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def staged(place: Path, reads: Any) -> list[dict[str, Any]]:
    columns = tuple(SourceColumn(name=field.name, kind="", type=field.type) for field in SCHEMA)
    table = SourceTable(name="shop.t", columns=columns, key=("id",))
    task = StagingTask(
        reads=reads,
        storage=LocalStorage(str(place)),
        folder="0",
        work=(ChunkRead(table=table, key=("id",), chunk=Chunk()),),
    )
    (found,) = task([pa.record_batch({"id": [0]})])
    return [*found.column("report").to_pylist()]


def codecs(file: pq.ParquetFile) -> dict[str, str]:
    group = file.metadata.row_group(0)
    parts = [group.column(number) for number in range(group.num_columns)]
    return {part.path_in_schema.split(".")[0]: part.compression for part in parts}


def test_texts_that_do_not_get_smaller_are_not_compressed(tmp_path: Path) -> None:
    (file,), _, _ = parse_reports(staged(tmp_path, Batches([rows(0, 3000), rows(3000, 2000)])))
    found = pq.ParquetFile(tmp_path / file.path)
    assert codecs(found) == {"id": "LZ4", "city": "LZ4", "hash": "UNCOMPRESSED", "raw": "UNCOMPRESSED", "tags": "LZ4"}
    assert file.rows == 5000
    assert found.read().equals(pa.Table.from_batches([rows(0, 3000), rows(3000, 2000)]))


def test_chunk_without_rows_is_a_file_without_rows(tmp_path: Path) -> None:
    (file,), _, _ = parse_reports(staged(tmp_path, Batches([])))
    assert file.rows == 0
    assert pq.read_table(tmp_path / file.path).schema.equals(SCHEMA)


@pytest.mark.parametrize("count", [0, 10])
def test_failed_read_leaves_no_file(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="lost"):
        staged(tmp_path, Batches([rows(0, count)] if count else [], ValueError("lost")))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
