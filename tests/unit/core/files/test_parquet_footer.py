"""A footer value that is written in pieces is read as if Arrow had written it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.files.base.parquet_footer import TOKEN, FooterSink
from lakehouse.core.storage.memory import MemoryStorage

ROWS = pa.table({"id": ["a", "b"], "n": [1, 2]})


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 3_000_000])
def test_footer_value_replaces_the_token(size: int) -> None:
    storage, value = MemoryStorage(), b"x" * size
    with storage.open_output("f.parquet") as sink:
        tail = FooterSink(sink)
        writer = pq.ParquetWriter(tail, ROWS.schema)
        writer.write_table(ROWS)
        writer.add_key_value_metadata({"before": "1", "large": TOKEN, "short": "2"})
        tail.hold()
        writer.close()
        tail.release(size, iter([value[:1000], value[1000:]]))
    with storage.open_input("f.parquet") as source:
        read = pq.ParquetFile(source)
        assert read.read().equals(ROWS)
        values = read.metadata.metadata
    assert {name: values[name] for name in (b"before", b"large", b"short")} == {
        b"before": b"1",
        b"large": value,
        b"short": b"2",
    }


def test_footer_omits_the_bounds_of_chosen_columns_and_keeps_other_statistics() -> None:
    rows = pa.table({"n": [1, 2], "f": [1.0, float("nan")], "s": pa.array([{"f": 1.0, "g": 2.0}, None])})
    storage = MemoryStorage()
    with storage.open_output("f.parquet") as sink:
        tail = FooterSink(sink)
        writer = pq.ParquetWriter(tail, rows.schema)
        writer.write_table(rows)
        writer.write_table(rows)
        tail.hold()
        writer.close()
        tail.omit_bounds({"f", "s.f"})
        tail.release()
    with storage.open_input("f.parquet") as source:
        read = pq.ParquetFile(source)
        assert read.read().slice(0, 2).drop_columns("f").equals(rows.drop_columns("f"))
        found = {}
        for group in range(2):
            for number in range(4):
                chunk = read.metadata.row_group(group).column(number)
                found[group, chunk.path_in_schema] = (chunk.statistics.has_min_max, chunk.statistics.null_count)
    expected = {"n": (True, 0), "f": (False, 0), "s.f": (False, 1), "s.g": (True, 1)}
    assert found == {(group, name): value for group in range(2) for name, value in expected.items()}
