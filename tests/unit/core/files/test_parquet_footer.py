"""A footer value that is written in pieces is read as if Arrow had written it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.files.parquet_footer import TOKEN, FooterSink
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
