"""The keys that are asked from filters at once fit their share of the memory budget, measured by key length."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pytest

from lakehouse.core.files.keys.key_lookup import FILTERED_KEY_FACTOR, CandidateKeys
from lakehouse.core.files.stage.write_context import Budget
from lakehouse.core.format.parquet.bloom_filter import DYNAMIC, BloomFilter
from lakehouse.core.format.parquet.bloom_probe import ROUNDS


@pytest.mark.parametrize("budget_mb", [16, 64])
@pytest.mark.parametrize("length", [8, 16, 36, 128])
def test_keys_of_a_part_and_their_hashes_fit_the_share_of_hashed_keys(length: int, budget_mb: int) -> None:
    budget = Budget(budget_mb << 20)
    text = BloomFilter.build(pa.array(["other"]), entries=60_000, fpp=1e-9).to_text().encode()
    count = budget.hashed_keys(FILTERED_KEY_FACTOR * (length + 4))
    keys = pa.chunked_array([pa.array([f"{number:0{length}d}" for number in range(count)])])
    assert keys.nbytes == pytest.approx(count * (length + 4), abs=8)
    tracemalloc.start()
    try:
        assert CandidateKeys(keys).of_filter("file", text, DYNAMIC) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # NumPy reports its memory to tracemalloc: at least the hashes of all keys.
    assert peak >= 4 * ROUNDS * count
    assert keys.nbytes + peak <= budget.shared_bytes * 3 / 8
