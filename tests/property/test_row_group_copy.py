"""Copies of row groups without decoding: rows stay the same, footers round-trip, damaged footers are refused."""

from __future__ import annotations

import io
import struct
import zipfile
from collections import Counter
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.base import row_group_copy
from lakehouse.core.format.parquet.bloom_filter import BloomFilter, joined
from lakehouse.core.format.parquet.thrift_compact import decode_struct, encode_struct
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.errors import CorruptTableError
from tests.property.test_clustering import batches, clustered_shapes, filled, kept
from tests.support.model import Row
from tests.support.shared import fixtures
from tests.support.tables import Shape, batch, check_storage, data_rows, examples, make_table, row


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count files with copied row groups; see `copied_always`."""
    return copied_always(monkeypatch)


def copied_always(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Allow copies of row groups of any size; return a counter of the files written by copies."""
    count: Counter[str] = Counter()
    join = row_group_copy.join_groups

    def counted(*args: object) -> object:
        count["files"] += 1
        return join(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(row_group_copy, "MIN_GROUP_BYTES", 0)
    monkeypatch.setattr("lakehouse.core.files.base.clustering_writer.join_groups", counted)
    return count


@cache
def footers() -> list[bytes]:
    """Return Parquet footers of Hudi's Java writer and of Arrow's writer."""
    found = []
    for path in sorted(fixtures("hudi_tables").glob("*_v[689]_*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".parquet") and "/._" not in name and not name.startswith("__MACOSX"):
                    found.append(footer_of(archive.read(name)))
                    break
    table = pa.table({"a": [1.5, None], "b": [["x"], []], "c": [True, False]})
    for version in ("1.0", "2.6"):
        sink = io.BytesIO()
        pq.write_table(table, sink, version=version, write_page_index=True, sorting_columns=[pq.SortingColumn(0)])
        found.append(footer_of(sink.getvalue()))
    return found


def footer_of(data: bytes) -> bytes:
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[-8 - length : -8]


def test_decoded_footers_of_all_writers_encode_to_the_same_bytes() -> None:
    seen = footers()
    assert len(seen) > 10
    for footer in seen:
        assert encode_struct(decode_struct(footer)) == footer


@examples(60)
@given(data=st.data())
def test_decode_refuses_damaged_footers(data: st.DataObject) -> None:
    footer = bytearray(data.draw(st.sampled_from(footers()[-2:])))
    for _ in range(data.draw(st.integers(1, 4))):
        footer[data.draw(st.integers(0, len(footer) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_struct(bytes(footer[: data.draw(st.integers(0, len(footer)))]))
    except CorruptTableError as error:
        assert "compact protocol" in str(error)


@examples(12)
@given(shape=clustered_shapes, rows=batches, outputs=st.integers(1, 3))
def test_clustering_by_copies_keeps_the_rows(shape: Shape, rows: list[list[Row]], outputs: int) -> None:
    target = {"hoodie.clustering.plan.strategy.target.file.max.bytes": str(30_000 // outputs)}
    table = filled(shape, rows, target)
    before = kept(table)
    with pytest.MonkeyPatch.context() as patch:
        copied_always(patch)
        outcome = table.services.clustering.run(force=True)
    assert kept(table) == before
    check_storage(table, unique=False)
    assert isinstance(outcome, NothingToDo) or outcome.metadata.replaced


def small_files(**shape: object) -> Shape:
    return Shape(fills_small_files=False, **shape)  # type: ignore[arg-type]


def test_file_with_copied_row_groups_has_exact_statistics_and_accepts_updates(copies: Counter[str]) -> None:
    table = make_table(small_files())
    for number in range(4):
        table.insert(batch([row(f"k{number}{i}", v=f"{number}{i}") for i in range(3)]))
    before = data_rows(table)
    outcome = table.services.clustering.run(force=True)
    assert isinstance(outcome, Committed) and copies["files"] == 1
    (stat,) = outcome.metadata.stats
    storage = table.refresh().env.storage
    stored = pq.ParquetFile(storage.open_input(stat.path))
    assert stored.metadata.num_row_groups == 4 and stat.num_writes == stat.num_inserts == 12
    assert set(stored.read(["_hoodie_file_name"]).column(0).to_pylist()) == {stat.path.rpartition("/")[2]}
    assert stat.bounds is not None and stat.bounds["v"][:3] == (b"00", b"32", 0)
    assert data_rows(table) == before
    table.upsert(batch([row("k12", v="new", ts=2), row("n", v="new")]))
    assert {r["id"]: r["v"] for r in data_rows(table)}.items() >= {"k12": "new", "n": "new", "k00": "00"}.items()
    check_storage(table)


def test_clustering_rewrites_files_with_different_columns_or_small_row_groups(
    copies: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(small_files())
    table.insert(batch([row("a")]))
    table.insert(batch([row("b")]).append_column("extra", pa.array(["x"])))
    assert isinstance(table.services.clustering.run(force=True), Committed)
    assert copies["files"] == 0
    for number in range(2):
        table.insert(batch([row(f"k{number}", p="b")]).append_column("extra", pa.array(["x"])))
    monkeypatch.setattr(row_group_copy, "MIN_GROUP_BYTES", 1 << 20)
    assert isinstance(table.services.clustering.run(force=True), Committed)
    assert copies["files"] == 0
    assert sorted((r["id"], r["extra"]) for r in data_rows(table)) == [
        ("a", None),
        ("b", "x"),
        ("k0", "x"),
        ("k1", "x"),
    ]


def test_clustering_names_a_file_that_was_truncated_after_the_plan() -> None:
    table = make_table(small_files())
    for number in range(2):
        table.insert(batch([row(f"k{number}")]))
    table.services.clustering.schedule(force=True)
    storage = table.refresh().env.storage
    broken = table.scan().plan().plan.files[0].path
    storage.put(broken, storage.get(broken)[:-6])
    with pytest.raises(CorruptTableError, match=broken.rpartition("/")[2]):
        table.services.clustering.run(force=True)
    assert [str(i.action) for i in table.timeline.where(pending=True)] == ["clustering"], "the plan must stay pending"


@examples(30)
@given(parts=st.lists(st.lists(st.integers(0, 10**6), max_size=40), min_size=1, max_size=5), entries=st.integers(5, 20))
def test_joined_bloom_filter_contains_the_keys_of_all_filters_of_one_kind(parts: list[list[int]], entries: int) -> None:
    filters = [BloomFilter.build(pa.array(map(str, part), pa.string()), entries=entries, fpp=1e-4) for part in parts]
    rows = sum(len(found.rows) for found in filters)
    assert joined(filters, rows - 1) is None
    both = joined(filters, rows)
    assert both is not None
    again = BloomFilter.from_text(both.to_text(), both.type_code)
    keys = pa.array([str(number) for part in parts for number in part], pa.string())
    for found in (both, again, again.add(pa.array(["more"]))):
        assert found.might_contain(keys).all()
    assert again.add(pa.array(["more"])).might_contain(pa.array(["more"])).all()
    other = BloomFilter.build(keys, entries=entries + 1, fpp=1e-4)
    assert joined([*filters, other], 100) is None
