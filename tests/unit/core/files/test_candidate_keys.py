"""Key ranges and bloom filters of base files exclude keys, and never a key that a file contains (MDT-13)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.base.base_reader import BLOOM_FOOTER, BaseFileReader
from lakehouse.core.files.keys import key_lookup
from lakehouse.core.files.keys.key_lookup import CandidateKeys, key_range, may_hold
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.memory import MemoryStorage
from tests.support.tables import Shape, batch, data_rows, examples, make_table, row

STORED = [f"k{number}" for number in range(100, 200)]
FILTER = BloomFilter.build(pa.array(STORED), entries=1_000, fpp=1e-9)
MIN, MAX = "hoodie_min_record_key", "hoodie_max_record_key"
JENKINS = BloomFilter(
    type_code="SIMPLE", num_hashes=2, num_bits=8, rows=(np.zeros(1, np.uint8),), hash_type=0, entries=1, count=0
)
KEYS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=1, max_size=20, unique=True)


def reader_of(footer: Mapping[str, str]) -> BaseFileReader:
    """Return an open Parquet file with these footer values."""
    storage = MemoryStorage()
    columns = {name: STORED for name in META_COLUMNS}
    table = pa.table(columns).replace_schema_metadata(dict(footer))
    with storage.open_output("f.parquet") as sink:
        pq.write_table(table, sink)
    return BaseFileReader(storage, "f.parquet")


def filter_footer(bloom: BloomFilter) -> dict[str, str]:
    """Return the footer values of a filter."""
    return {BLOOM_FOOTER[0]: bloom.to_text(), BLOOM_FOOTER[1]: bloom.type_code}


def candidates(footer: Mapping[str, str], keys: list[str]) -> list[str]:
    """Return the keys that a file with this footer may contain."""
    positions = CandidateKeys(pa.chunked_array([keys])).of_file(reader_of(footer))
    return [keys[position] for position in positions]


def test_filter_excludes_keys_that_the_file_does_not_contain() -> None:
    assert candidates(filter_footer(FILTER), ["k5", "k150", "x", "k199"]) == ["k150", "k199"]


def test_range_excludes_keys_outside_of_it_without_a_filter() -> None:
    assert candidates({MIN: "k100", MAX: "k199"}, ["a", "k100", "k1505", "k2"]) == ["k100", "k1505"]


@pytest.mark.parametrize("few", [True, False], ids=["few keys in the range", "most keys in the range"])
def test_range_and_filter_exclude_keys_together(few: bool) -> None:
    keys = ["k150", "k1505"] + (["a", "b", "c", "d"] if few else [])
    assert candidates({MIN: "k100", MAX: "k199", **filter_footer(FILTER)}, keys) == ["k150"]


@pytest.mark.parametrize(
    "footer",
    [{}, {MIN: "k100"}, {MAX: "k199"}, {MIN: "k100", MAX: "k\ue000"}, {MIN: "\U00010000", MAX: "\U00010001"}],
    ids=["nothing", "only the least key", "only the greatest key", "private character", "character above the BMP"],
)
def test_file_without_filter_and_usable_range_may_contain_every_key(footer: dict[str, str]) -> None:
    assert key_range(reader_of(footer)) is None
    assert candidates(footer, ["a", "z"]) == ["a", "z"]
    assert may_hold(reader_of(footer), pa.scalar({"min": "a", "max": "b"}))


@pytest.mark.parametrize(
    "footer",
    [{BLOOM_FOOTER[0]: "not base64!"}, {**filter_footer(FILTER), BLOOM_FOOTER[1]: "OTHER"}, filter_footer(JENKINS)],
    ids=["corrupt", "unknown type", "other hash"],
)
def test_file_with_an_unusable_filter_may_contain_every_key_with_a_warning(
    footer: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert candidates(footer, ["a", "k150"]) == ["a", "k150"]
    assert "f.parquet: all keys are looked up" in caplog.text


@examples(60)
@given(stored=KEYS, incoming=KEYS)
def test_no_stored_key_is_ever_excluded(stored: list[str], incoming: list[str]) -> None:
    bloom = BloomFilter.build(pa.array(stored), entries=10, fpp=0.01)
    utf16 = sorted(stored, key=lambda key: key.encode("utf-16-be"))
    for low, high in ((min(stored), max(stored)), (utf16[0], utf16[-1])):
        keys = [*incoming, *stored]
        found = candidates({MIN: low, MAX: high, **filter_footer(bloom)}, keys)
        assert set(stored) <= set(found)


@pytest.mark.parametrize("index", ["BLOOM", "GLOBAL_BLOOM"])
def test_upsert_reads_the_key_columns_only_of_files_that_contain_its_keys(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    stored_keys = key_lookup.stored_keys

    def recorded(context, reader):  # type: ignore[no-untyped-def]
        searched.append(reader.path)
        return stored_keys(context, reader)

    monkeypatch.setattr(key_lookup, "stored_keys", recorded)
    table = make_table(
        Shape(index=index, rows_per_file=4, fills_small_files=False, options={"hoodie.index.bloom.fpp": "0.000000001"})
    )
    table.insert(batch(row(f"k{number}") for number in range(40)))
    outcome = table.upsert(batch([row("k07", ts=2), row("k7", ts=2, v="new"), row("k99")]))
    assert isinstance(outcome, Committed)
    updated = [stat for stat in outcome.metadata.stats if stat.num_updates]
    assert len(updated) == len(searched) == 1
    assert searched[0].startswith(f"a/{updated[0].file_id}") or updated[0].file_id in searched[0]
    assert data_rows(table, ["id"], where="v = 'new'") == [{"id": "k7"}]
