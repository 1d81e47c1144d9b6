"""Test Bloom filters over record keys."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest

from lakehouse.core.format.parquet.bloom_filter import DYNAMIC, BloomBuilder, BloomFilter
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError

KEYS = pa.array([f"id:{i},region:{'x' * (i % 9)}" for i in range(3000)])
STRANGERS = pa.array([f"no:{i}" for i in range(20_000)])


def test_default_parameters_give_the_sizes_of_hudi() -> None:
    built = BloomFilter.build(KEYS.slice(0, 1), entries=60_000, fpp=1e-9)
    assert (built.num_bits, built.num_hashes, len(built.to_text())) == (2_587_966, 30, 431_380)
    smaller = BloomFilter.build(KEYS.slice(0, 1), entries=10_000, fpp=1e-9)
    assert smaller.num_bits == 431_328


def test_added_keys_are_found_and_other_keys_are_mostly_not() -> None:
    built = BloomFilter.build(KEYS, entries=3000, fpp=1e-6)
    assert built.might_contain(KEYS).all()
    assert built.might_contain(STRANGERS).sum() <= 1


def test_results_have_the_order_of_the_keys() -> None:
    built = BloomFilter.build(KEYS, entries=3000, fpp=1e-9)
    mixed = pa.chunked_array([STRANGERS.slice(0, 5), KEYS.slice(10, 40_000), STRANGERS.slice(5, 9)])
    assert built.might_contain(mixed).tolist() == [False] * 5 + [True] * 2990 + [False] * 9
    interleaved = pa.array([key for pair in zip(STRANGERS.to_pylist(), KEYS.to_pylist(), strict=False) for key in pair])
    assert built.might_contain(interleaved).tolist() == [False, True] * 3000


def test_adding_batches_builds_the_same_filter_as_one_array() -> None:
    for entries in (3000, 700):
        builder = BloomBuilder(entries, 1e-6, 2500)
        for at in range(0, 3000, 450):
            builder.add(KEYS.slice(at, 450))
        whole = BloomFilter.build(KEYS, entries=entries, fpp=1e-6, dynamic_max=2500)
        assert builder.finish().to_text() == whole.to_text()


def test_a_full_row_adds_a_row_up_to_the_maximum() -> None:
    built = BloomFilter.build(KEYS.slice(0, 1500), entries=700, fpp=1e-6, dynamic_max=2500)
    assert (len(built.rows), built.count, built.remaining) == (3, 1500, 1300)
    full = built.add(KEYS.slice(1500))
    assert (len(full.rows), full.count, full.remaining) == (4, 3000, 0)
    assert full.might_contain(KEYS).all()
    assert full.might_contain(STRANGERS).sum() < 20  # the first row has 900 keys instead of 700


def test_adding_keys_does_not_change_the_original_filter() -> None:
    for few in (3, 2000):
        before = BloomFilter.build(KEYS.slice(0, 900), entries=3000, fpp=1e-6)
        text = before.to_text()
        after = BloomFilter.from_text(text, DYNAMIC).add(KEYS.slice(900, few))
        assert before.to_text() == text
        assert after.to_text() == BloomFilter.build(KEYS.slice(0, 900 + few), entries=3000, fpp=1e-6).to_text()


def test_an_empty_filter_has_one_empty_row() -> None:
    empty = BloomBuilder(100, 1e-3).finish()
    assert (len(empty.rows), empty.count) == (1, 0)
    assert not empty.might_contain(KEYS).any()
    assert empty.might_contain(pa.array([], pa.string())).tolist() == []
    assert empty.add(KEYS.slice(0, 5)).might_contain(KEYS.slice(0, 5)).all()


def test_keys_of_each_string_type_are_equal() -> None:
    built = BloomFilter.build(KEYS, entries=3000, fpp=1e-9)
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert BloomFilter.build(KEYS.cast(kind), entries=3000, fpp=1e-9).to_text() == built.to_text()


def test_null_keys_are_refused() -> None:
    with pytest.raises(CorruptTableError, match="1 record keys are null"):
        BloomFilter.build(pa.array(["a", None]), entries=10, fpp=0.1)


@pytest.mark.parametrize(("entries", "fpp"), [(0, 0.1), (10, 0.0), (10, 1.0), (2**31, 1e-9)])
def test_impossible_filter_sizes_are_refused(entries: int, fpp: float) -> None:
    with pytest.raises(UserError, match="bloom filter"):
        BloomBuilder(entries, fpp)


def test_other_types_and_hashes_are_refused() -> None:
    text = BloomFilter.build(KEYS, entries=10, fpp=0.1).to_text()
    with pytest.raises(UnsupportedError, match="'DYNAMIC_V1' is not supported"):
        BloomFilter.from_text(text, "DYNAMIC_V1")


def test_broken_text_is_corrupt() -> None:
    data = base64.b64decode(BloomFilter.build(KEYS, entries=1000, fpp=0.1).to_text())
    row = (len(data) - 25) // 3
    other_shape = bytearray(data)
    other_shape[-row + 7] += 1
    for broken in (data[:5], data[:20], data[:-1], b"\0" * 40, bytes(other_shape)):
        with pytest.raises(CorruptTableError, match="bloom filter"):
            BloomFilter.from_text(base64.b64encode(broken).decode(), DYNAMIC)
    with pytest.raises(CorruptTableError, match="too short"):
        BloomFilter.from_text(base64.b64encode(data[:20]).decode(), None)
    with pytest.raises(CorruptTableError, match="not Base64"):
        BloomFilter.from_text("%", None)
