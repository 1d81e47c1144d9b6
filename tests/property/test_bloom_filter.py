"""Property tests of Bloom filters, compared with a byte-by-byte implementation of the murmur hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.parquet.bloom_filter import BloomFilter

KEYS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=14), min_size=1, max_size=30)
MASK = 0xFFFFFFFF


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


def murmur(key: bytes, seed: int) -> int:
    """Return the hash of Hadoop's implementation, which uses Java's signed bytes in the tail."""
    m, length = 0x5BD1E995, len(key)
    h = (seed ^ length) & MASK
    for at in range(0, length - 3, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & MASK
        k = (k ^ k >> 24) * m & MASK
        h = h * m & MASK ^ k
    remainder = length % 4
    if remainder:
        for back in range(remainder, 0, -1):
            h ^= (signed(key[length - back], 8) << 8 * (back - 1)) & MASK
        h = h * m & MASK
    h = (h ^ h >> 13) * m & MASK
    return h ^ h >> 15


def bits_of(key: str, rounds: int, size: int) -> set[int]:
    value, bits = 0, set()
    for _ in range(rounds):
        value = murmur(key.encode(), value)
        bits.add(abs(signed(value, 32)) % size)
    return bits


@given(KEYS, st.integers(1, 40), st.sampled_from([0.5, 1e-3, 1e-9]))
def test_a_bloom_filter_row_has_exactly_the_bits_of_its_keys(keys: list[str], entries: int, fpp: float) -> None:
    built = BloomFilter.build(pa.array(keys, pa.string()), entries=max(entries, len(keys)), fpp=fpp)
    expected = set().union(*(bits_of(key, built.num_hashes, built.num_bits) for key in keys))
    (row,) = built.rows
    assert set(np.flatnonzero(np.unpackbits(row, bitorder="little")).tolist()) == expected


@given(KEYS, KEYS, st.integers(1, 40), st.integers(1, 100))
def test_a_bloom_filter_finds_all_its_keys_and_its_text_round_trips(
    keys: list[str], more: list[str], entries: int, dynamic_max: int
) -> None:
    first, second = pa.array(keys, pa.string()), pa.array(more, pa.string())
    built = BloomFilter.build(first, entries=entries, fpp=1e-3, dynamic_max=dynamic_max)
    read = BloomFilter.from_text(built.to_text(), built.type_code)
    assert (read.to_text(), read.count, read.entries) == (built.to_text(), len(keys), entries)
    grown = read.add(second)
    assert grown.might_contain(pa.concat_arrays([first, second])).all()
    assert read.to_text() == built.to_text()


@given(KEYS, KEYS)
def test_a_key_that_is_not_found_was_not_added(keys: list[str], others: list[str]) -> None:
    built = BloomFilter.build(pa.array(keys, pa.string()), entries=len(keys), fpp=0.1)
    answers = built.might_contain(pa.array(others, pa.string()))
    expected = [
        bits_of(key, built.num_hashes, built.num_bits)
        <= set(np.flatnonzero(np.unpackbits(built.rows[0], bitorder="little")).tolist())
        for key in others
    ]
    assert answers.tolist() == expected
