"""A probe of a stored filter never excludes a key of the filter; it excludes the keys that the first hashes exclude."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.parquet.bloom_filter import SIMPLE, BloomFilter
from lakehouse.core.format.parquet.bloom_probe import ROUNDS, BloomProbe
from lakehouse.core.format.parquet.murmur_hash import key_blocks
from lakehouse.errors import CorruptTableError
from tests.support.tables import examples

KEYS = st.lists(st.text(max_size=9), min_size=1, max_size=40, unique=True)


def probe(keys: list[str]) -> BloomProbe:
    """Return a probe of keys."""
    return BloomProbe(list(key_blocks(pa.array(keys, pa.string()))))


@examples(150)
@given(
    stored=KEYS, others=KEYS, entries=st.integers(40, 90), fpp=st.sampled_from([0.3, 1e-3, 1e-9]), simple=st.booleans()
)
def test_probe_agrees_with_the_decoded_filter_in_its_rounds(
    stored: list[str], others: list[str], entries: int, fpp: float, simple: bool
) -> None:
    bloom = BloomFilter.build(pa.array(stored, pa.string()), entries=entries, fpp=fpp)
    text, type_code = bloom.to_text().encode(), bloom.type_code
    if simple:
        plain = BloomFilter(
            type_code=SIMPLE,
            num_hashes=bloom.num_hashes,
            num_bits=bloom.num_bits,
            rows=bloom.rows,
            entries=entries,
            count=len(stored),
        )
        text, type_code = plain.to_text().encode(), plain.type_code
    keys = [*stored, *others]
    found = probe(keys).candidates(text, type_code)
    assert found is not None and found[: len(stored)].all()
    decoded = bloom.might_contain(pa.array(keys, pa.string()))
    assert (found | ~decoded).all()
    if bloom.num_hashes <= ROUNDS:
        assert (found == decoded).all()


def test_probe_excludes_other_keys_of_filters_of_different_sizes() -> None:
    others = probe([f"other-{number}" for number in range(5_000)])
    for count in (500, 700):
        bloom = BloomFilter.build(pa.array([f"k{n}" for n in range(count)]), entries=count, fpp=1e-9)
        found = others.candidates(bloom.to_text().encode(), bloom.type_code)
        assert found is not None and np.count_nonzero(found) <= 3


def test_probe_does_not_decide_for_a_filter_of_several_rows() -> None:
    bloom = BloomFilter.build(pa.array([f"k{n}" for n in range(30)]), entries=10, fpp=1e-3)
    assert len(bloom.rows) == 3
    assert probe(["k1"]).candidates(bloom.to_text().encode(), bloom.type_code) is None


@pytest.mark.parametrize("change", [lambda text: text[:-40], lambda text: b"?" + text[1:], lambda text: b""])
def test_probe_refuses_the_text_of_no_filter(change) -> None:
    bloom = BloomFilter.build(pa.array(["a"]), entries=100, fpp=1e-3)
    with pytest.raises(CorruptTableError, match="bloom filter"):
        probe(["a"]).candidates(change(bloom.to_text().encode()), bloom.type_code)
