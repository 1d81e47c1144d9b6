"""The bloom filter of a file being written: bounded memory, all keys found, one row unless there are too many keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.files.base.file_bloom_filter import FileBloom, complete_small
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from tests.support.tables import Shape, batch, make_env, make_table, row

FPP = 1e-6


def keys(start: int, stop: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([f"key-{number:07d}" for number in range(start, stop)], pa.string())])


def finished(bloom: FileBloom) -> BloomFilter:
    written = bloom.finish()
    assert written is not None
    assert written.text_bytes == len(written.to_text())
    return BloomFilter.from_text(written.to_text(), written.type_code)


@pytest.mark.parametrize("hold_bytes", [1 << 30, 20_000])
def test_filter_finds_each_key_with_any_memory_limit(hold_bytes: int) -> None:
    bloom = FileBloom(FPP, hold_bytes)
    for start in range(0, 10_000, 500):
        bloom.add(keys(start, start + 500), is_stored=False)
    written = finished(bloom)
    assert written.might_contain(keys(0, 10_000)).all()
    assert np.count_nonzero(written.might_contain(keys(10_000, 60_000))) <= 5


def test_filter_has_one_row_with_capacity_for_a_quarter_more_if_keys_fit_into_memory() -> None:
    bloom = FileBloom(FPP, 1 << 30)
    bloom.add(keys(0, 4_000), is_stored=False)
    written = finished(bloom)
    assert (len(written.rows), written.entries, written.remaining) == (1, 5_000, 96_000)


def test_filter_has_several_rows_if_keys_exceed_memory() -> None:
    bloom = FileBloom(FPP, 20_000)
    for start in range(0, 10_000, 500):
        bloom.add(keys(start, start + 500), is_stored=False)
    written = finished(bloom)
    assert len(written.rows) == -(-10_000 // written.entries)
    assert len(written.rows) > 1


def test_keys_of_the_previous_version_are_not_hashed_again() -> None:
    first = FileBloom(FPP, 1 << 30)
    first.add(keys(0, 4_000), is_stored=False)
    second = FileBloom(FPP, 1 << 30)
    second.inherit(BloomFilter.from_text(first.finish().to_text(), "DYNAMIC_V0"), 500)
    second.add(keys(0, 4_000), is_stored=True)
    second.add(keys(4_000, 4_500), is_stored=False)
    written = finished(second)
    assert written.count == 4_500
    assert written.might_contain(keys(0, 4_500)).all()


def test_filter_without_capacity_is_built_again_from_all_keys() -> None:
    first = FileBloom(FPP, 20_000)
    for start in range(0, 150_000, 10_000):
        first.add(keys(start, start + 10_000), is_stored=False)
    full = first.finish()
    second = FileBloom(FPP, 1 << 30)
    second.inherit(full, full.remaining + 1)
    second.add(keys(0, 2_000), is_stored=True)
    assert finished(second).count == 2_000


@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE", "BUCKET"])
def test_upsert_finds_keys_in_a_table_without_filters(index: str) -> None:
    """The files have no filter, and each index still finds its keys."""
    env = make_env()
    table = make_table(Shape(index=index, options={"hoodie.parquet.bloom.filter.enabled": "false"}), env=env)
    table.upsert(batch([row("a", v="1"), row("b", v="1")]))
    table.upsert(batch([row("a", ts=2, v="2"), row("c", v="1")]))
    rows = table.scan(columns=["id", "v"]).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": "a", "v": "2"}, {"id": "b", "v": "1"}, {"id": "c", "v": "1"}]
    footers = [
        pq.ParquetFile(pa.BufferReader(env.storage.get(file.path))).metadata.metadata or {}
        for file in env.storage.list("")
        if file.path.endswith(".parquet")
    ]
    assert len(footers) > 1
    assert all(b"org.apache.hudi.bloomfilter" not in footer for footer in footers)
    assert all(b"hoodie_min_record_key" in footer for footer in footers)


def test_filters_of_small_files_that_are_built_together_equal_filters_built_alone() -> None:
    def blooms() -> list[FileBloom]:
        made = [FileBloom(FPP, 1 << 30) for _ in range(4)]
        for bloom, (start, stop) in zip(made, [(0, 1), (1, 800), (800, 801), (801, 2_000)], strict=True):
            bloom.add(keys(start, stop), is_stored=False)
        # Keys of different lengths are hashed in another order than that of the files.
        made.append(FileBloom(FPP, 1 << 30))
        made[-1].add(pa.chunked_array([["", "a", "key-longer-than-others", "bc"]]), is_stored=False)
        return [*made, FileBloom(FPP, 1 << 30)]

    together, alone = blooms(), blooms()
    complete_small(together)
    assert [bloom.is_small for bloom in alone] == [True, True, True, False, True, True]
    assert [bloom.held_bytes > 0 for bloom in together] == [False, False, False, True, False, False]
    assert [finished(bloom).to_text() for bloom in together] == [finished(bloom).to_text() for bloom in alone]


def test_filters_of_small_files_are_none_if_filters_are_disabled() -> None:
    bloom = FileBloom(FPP, 1 << 30, enabled=False)
    bloom.add(keys(0, 5), is_stored=False)
    complete_small([bloom])
    assert bloom.finish() is None
