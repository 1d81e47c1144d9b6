"""Many objects of JSON on one line, as Amazon Data Firehose writes them: all rows, in linear time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.spark import lines, sources
from lakehouse.spark.json_pattern import object_pattern
from lakehouse.spark.lines import TextLayout, line_batches
from tests.support.text_landing import TextLanding

OBJECTS = 50_000


def objects(first: int, end: int, size: int = 80) -> bytes:
    """Return objects without a line break between them, with braces inside of values."""
    return "".join(f'{{"id": "{number}", "n": "}}{{ {"x" * size}"}}' for number in range(first, end)).encode()


@pytest.mark.spark
def test_fifty_thousand_objects_on_one_line_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """vectordotdev/vector#8487: objects without line breaks; the time grew with the square of their number."""
    landing = TextLanding(spark, tmp_path)
    landing.put("a.json", objects(0, OBJECTS))
    packed = objects(OBJECTS, 2 * OBJECTS) + b"\n" + objects(2 * OBJECTS, 2 * OBJECTS + 9)
    landing.put("b.json.gz", gzip.compress(packed))
    assert landing.ingest().rows == 2 * OBJECTS + 9


@pytest.mark.spark
def test_lines_longer_than_a_block_are_read_block_by_block(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vectordotdev/vector#8487: a file of 128 MB is one line."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 1000)
    landing = TextLanding(spark, tmp_path)
    landing.put("a.json", objects(0, 100))
    landing.put("b.json", b'{"id": "b", "n": "x"}{"id": "c"}\n')
    landing.put("c.json", b'{"id": "d", "n": "x"}\n')
    bad = objects(200, 300) + b" and more"
    landing.put("d.json", bad)
    report = landing.ingest(max_bad_records=1)
    assert (report.rows, report.bad_records) == (103, 1)
    assert landing.letters() == [bad.decode()]


@pytest.mark.parametrize("block", [64, 100, 1000])
def test_long_line_is_divided_between_objects(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """vectordotdev/vector#8487: memory has to hold blocks, not the line."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    storage = MemoryStorage()
    text = objects(0, 200, size=10)
    storage.put("a.json", text + b"\n" + b'{"id": "last"}')
    layout = TextLayout(object=object_pattern({}))
    positions = iter([pa.RecordBatch.from_pydict({"number": [0]})])
    found = [
        value for one in line_batches(storage, ("a.json",), layout, positions) for value in one["value"].to_pylist()
    ]
    assert "".join(found).encode() == text + b'{"id": "last"}'
    assert all(len(value) <= 2 * block + 60 for value in found)
    decoder, ids = json.JSONDecoder(), []
    for value in found:
        position = 0
        while position < len(value):
            one, position = decoder.raw_decode(value, position)
            ids.append(one["id"])
    assert ids == [*map(str, range(200)), "last"]
