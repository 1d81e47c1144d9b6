"""Reads of planned slices: row groups that are skipped, columns that are not decoded, threads, and their memory."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.operations.read import row_reader
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.ranged_input import TAIL_BYTES, RangeReader
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UserError
from tests.support.tables import make_env

ROWS, GROUP_ROWS = 8_000, 1_000
Decoded = list[tuple[tuple[str, ...], tuple[int, ...]]]


def rows_of(numbers: range, ts: int = 1) -> pa.Table:
    """Return rows whose key and number ascend; `half` is null in every second row."""
    count = len(numbers)
    return pa.table(
        {
            "id": [f"k{number:06d}" for number in numbers],
            "n": pa.array(numbers, pa.int64()),
            "half": pa.array([None if number % 2 else number for number in numbers], pa.int64()),
            "text": [f"text {number}" for number in numbers],
            "ts": pa.array([ts] * count, pa.int64()),
        }
    )


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Return the location of a table with one base file of eight row groups."""
    write = pq.ParquetWriter.write_table

    def divided(writer: pq.ParquetWriter, rows: pa.Table, row_group_size: int | None = None) -> None:
        write(writer, rows, row_group_size=GROUP_ROWS)

    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", ordering="ts", table_type="MERGE_ON_READ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", divided)
        table.bulk_insert(rows_of(range(ROWS)))
    (path,) = (tmp_path / "t").glob("*.parquet")
    assert pq.read_metadata(path).num_row_groups == ROWS // GROUP_ROWS
    return str(tmp_path / "t")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    """Return a list that gets the columns and the row groups of each read of a base file."""
    reads: Decoded = []
    batches = BaseFileReader._batches

    def recorded(reader: BaseFileReader, columns: list[str], rows: int, groups: Any = None) -> Any:
        every = range(reader.statistics.num_row_groups)
        reads.append((tuple(columns), tuple(every if groups is None else groups)))
        return batches(reader, columns, rows, groups)

    monkeypatch.setattr(BaseFileReader, "_batches", recorded)
    return reads


def test_condition_skips_row_groups_by_their_statistics(location: str, decoded: Decoded) -> None:
    rows = Table.open(location).scan(["text"], where="n >= 2500 and n < 2502").to_arrow()
    assert rows.to_pydict() == {"text": ["text 2500", "text 2501"]}
    assert decoded == [(("n",), (2,)), (("text",), (2,))]


def test_other_columns_are_read_only_of_row_groups_with_a_match(location: str, decoded: Decoded) -> None:
    # The statistics exclude no row group: all have values on both sides of each.
    rows = Table.open(location).scan(["id", "half"], where="half = 3 or half = 7000").to_arrow()
    assert rows.to_pydict() == {"id": ["k007000"], "half": [7000]}
    assert [groups for columns, groups in decoded if columns == ("id",)] == [(7,)]


def test_nested_condition_and_its_columns_alone_are_right(location: str) -> None:
    table = Table.open(location)
    assert table.scan(["n"], where="n = 17").to_arrow().to_pydict() == {"n": [17]}
    assert table.scan(["n"], where="half is null and n < 4").to_arrow().to_pydict() == {"n": [1, 3]}
    assert table.scan(["n"], where="not (n >= 1 or text = 'x')").to_arrow().to_pydict() == {"n": [0]}


def test_keys_of_row_groups_without_a_changed_key_are_not_read(location: str, decoded: Decoded) -> None:
    table = Table.open(location)
    table.upsert(rows_of(range(5_200, 5_204), ts=2).set_column(3, "text", [["new"] * 4]))
    decoded.clear()
    rows = Table.open(location).scan(["text"]).to_arrow()
    assert rows.num_rows == ROWS
    assert rows.column("text").to_pylist().count("new") == 4
    assert [groups for columns, groups in decoded if columns == ("_hoodie_record_key",)] == [(5,)]


def test_large_file_is_divided_among_threads(location: str, decoded: Decoded, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Table.open(location).scan(["n", "text"]).to_arrow()
    decoded.clear()
    monkeypatch.setattr(row_reader, "_LEAST_PART_BYTES", 1)
    rows = Table.open(location).scan(["n", "text"]).to_arrow(threads=4)
    assert rows.equals(expected)
    assert sorted(group for _, groups in decoded for group in groups) == list(range(8))
    assert len(decoded) == 4, "each thread has a part"


def test_number_of_threads_is_checked(location: str) -> None:
    with pytest.raises(UserError, match="threads=0 must be at least 1"):
        Table.open(location).scan().to_arrow(threads=0)


def test_damaged_file_is_reported_from_a_thread(location: str) -> None:
    (path,) = Path(location).glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[4:4000] = bytes(3996)
    path.write_bytes(data)
    with pytest.raises(CorruptTableError, match=path.name):
        Table.open(location).scan().to_arrow(threads=3)


_PEAK = """
import json, sys
import pyarrow as pa
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.ranged_input import TAIL_BYTES, RangeReader
from lakehouse.core.table.table import Table
table = Table.open(sys.argv[1], options={"lakehouse.write.memory.budget": sys.argv[2]})
pool = pa.default_memory_pool()
rows = 0
for batch in table.scan().to_batches(threads=4):
    rows += batch.num_rows
print(json.dumps({"rows": rows, "arrow": pool.max_memory()}))
"""


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_threads_together_stay_within_the_memory_budget(tmp_path: Path, table_type: str) -> None:
    budget, count = 128 << 20, 200_000
    table = Table.create(
        str(tmp_path / "t"), name="t", record_key="id", ordering="ts", partition_by=["p"], table_type=table_type
    )
    numbers = np.arange(count)
    rows = pa.table(
        {
            "id": pa.array([f"{number:012d}" for number in numbers]),
            "p": pa.array((numbers % 8).astype(str)),
            # A long value that many rows have: it is small in the file.
            "wide": pa.DictionaryArray.from_arrays(pa.array(numbers % 3), ["a" * 1_600, "b" * 1_700, "c" * 1_800]).cast(
                pa.string()
            ),
            "ts": pa.array(np.ones(count, np.int64)),
        }
    )
    assert rows.nbytes > 1.5 * budget
    table.bulk_insert(rows)
    if table_type == "MERGE_ON_READ":
        changed = rows.slice(0, 40_000)
        table.upsert(changed.set_column(3, "ts", pa.array(np.full(40_000, 2))))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path / "t"), str(budget)], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)
    assert measured["rows"] == count
    assert measured["arrow"] <= budget, measured


def test_few_large_requests_fetch_the_columns_of_a_remote_file(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env()
    table = Table.create(env.storage.root, name="t", record_key="id", ordering="ts", env=env)
    noise = np.random.default_rng(1)
    columns = {f"c{number}": noise.integers(0, 1 << 62, 200_000) for number in range(6)}
    keys = [f"k{number:07d}" for number in range(200_000)]
    table.bulk_insert(pa.table({"id": keys, **columns, "ts": np.ones(200_000, np.int64)}))
    expected = table.scan(["c0", "c1", "c2", "c4", "c5"]).to_arrow()
    requests: list[int] = []

    def fetched(path: str, start: int, length: int) -> bytes:
        requests.append(length)
        return env.storage.get_range(path, start, length)

    def open_input(_: MemoryStorage, path: str) -> RangeReader:
        data = env.storage.get(path)
        return RangeReader(partial(fetched, path), len(data), data[-TAIL_BYTES:])

    monkeypatch.setattr(MemoryStorage, "open_input", open_input)
    alone = Table.open(table.location, env=env).scan(["c0", "c1", "c2", "c4", "c5"]).to_arrow()
    before, requests[:] = len(requests), []
    monkeypatch.setattr(row_reader, "_is_remote", lambda storage: True)
    rows = Table.open(table.location, env=env).scan(["c0", "c1", "c2", "c4", "c5"]).to_arrow(threads=2)
    assert rows.equals(expected) and alone.equals(expected)
    # Besides the footer: one request per column, or one for the adjacent c0 to c2 and one for c4 and c5.
    assert (before, len(requests)) == (1 + 5, 1 + 2)


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_threads_do_not_change_the_order_of_merged_rows(tmp_path: Path, threads: int) -> None:
    count = 120_000
    table = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key="id",
        ordering="ts",
        partition_by=["p"],
        table_type="MERGE_ON_READ",
        options={"lakehouse.write.memory.budget": str(512 << 20)},
    )
    rows = rows_of(range(count))
    rows = rows.append_column("p", pa.array((np.arange(count) % 3).astype(str)))
    table.bulk_insert(rows)
    changed = rows.take(pa.array(np.arange(0, count, 7)))
    table.upsert(changed.set_column(4, "ts", pa.array(np.full(changed.num_rows, 2))))
    scan = Table.open(table.location).scan(["id", "ts"])
    one = scan.to_arrow(threads=1)
    assert sorted(one.column("ts").to_pylist()).count(2) == changed.num_rows
    assert scan.to_arrow(threads=threads).equals(one)
