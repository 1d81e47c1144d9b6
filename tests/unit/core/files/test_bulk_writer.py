"""bulk_insert into many partitions: open files and memory are bounded, and all rows are written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table

OPEN_FILES = 400
BUDGET = "lakehouse.write.memory.budget"


@pytest.fixture
def few_open_files() -> Iterator[None]:
    """Allow fewer open files than the tests write partitions, beside those that are open already."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + OPEN_FILES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def rows_of(partitions: int, rows: int, text: str = "") -> pa.Table:
    """Return `rows` rows for each of the partitions, in turn."""
    numbers = range(partitions * rows)
    return pa.table(
        {
            "id": [f"k{number}" for number in numbers],
            "p": [f"p{number % partitions}" for number in numbers],
            "text": [text] * len(numbers),
            "n": list(numbers),
        }
    )


@pytest.mark.usefixtures("few_open_files")
def test_bulk_insert_writes_more_partitions_than_a_process_may_have_open_files(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", name="t", record_key="id", partition_by="p")
    written = table.bulk_insert(rows_of(2 * OPEN_FILES, 1))
    assert isinstance(written, Committed)
    assert len(written.metadata.stats) == 2 * OPEN_FILES
    assert sorted(table.scan().to_arrow().column("n").to_pylist()) == list(range(2 * OPEN_FILES))


@pytest.mark.usefixtures("few_open_files")
def test_bulk_insert_closes_files_if_memory_is_short_and_many_are_open(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", name="t", record_key="id", partition_by="p", options={BUDGET: str(16 << 20)})
    rows = rows_of(2 * OPEN_FILES, 6, text="x" * 4_000)
    reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=500))
    written = table.bulk_insert(reader)
    assert isinstance(written, Committed)
    assert len(written.metadata.stats) > 2 * OPEN_FILES
    assert sorted(table.scan().to_arrow().column("n").to_pylist()) == list(range(len(rows)))
    assert not list((tmp_path / "t").rglob("*.tmp"))
