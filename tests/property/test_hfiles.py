"""Property tests of HFiles: what is written is read, by our reader and by an independent one; damage is detected."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.hfile import cells, reader
from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.hfile.layout import HEADER_BYTES, KEY_SUFFIX
from lakehouse.core.format.hfile.reader import HFile, read_hfile
from lakehouse.core.format.hfile.writer import SCANNED, HFileWriter, Layout, write_hfile
from lakehouse.errors import CorruptTableError, LakehouseError
from tests.support.fuzz import fuzz_decoder
from tests.support.referees import referee
from tests.support.tables import examples

KEYS = st.one_of(
    st.binary(max_size=6), st.text(max_size=4).map(str.encode), st.integers(0, 400).map(lambda n: b"key-%06d" % n)
)
LAYOUTS = st.builds(
    Layout,
    block_bytes=st.sampled_from([21, 40, 100, 1000, 65536]),
    compression=st.sampled_from(["gz", "none"]),
    checksums=st.booleans(),
)
CONTENTS = st.dictionaries(KEYS, st.binary(max_size=40), max_size=60)
RAW = Layout(block_bytes=100, compression="none")


def table_of(contents: dict[bytes, bytes]) -> pa.Table:
    keys = sorted(contents)
    columns = [pa.array(keys, pa.binary()), pa.array([contents[key] for key in keys], pa.binary())]
    return pa.Table.from_arrays(columns, schema=ENTRIES)


def written(contents: dict[bytes, bytes], layout: Layout = SCANNED, **info: Any) -> bytes:
    return write_hfile(table_of(contents), schema='"bytes"', created_ms=7, layout=layout, **info)


@examples(100)
@given(contents=CONTENTS, layout=LAYOUTS, bounds=st.booleans())
def test_written_hfile_is_read_by_both_readers(contents: dict[bytes, bytes], layout: Layout, bounds: bool) -> None:
    data = written(contents, layout, bounds=bounds)
    expected = sorted(contents.items())
    parsed = referee("hfile").parse(data)
    assert parsed.entries == expected and parsed.java_lost == []
    assert all(block.uncompressed_size <= layout.block_bytes or len(parsed.index) == 1 for block in large(parsed))
    file = read_hfile(data)
    assert file.entries().equals(table_of(contents))
    assert file.count == len(contents) and file.schema == '"bytes"'
    if bounds:
        least = (expected[0][0], expected[-1][0]) if expected else (b"", b"")
        assert (file.info["minRecordKey"], file.info["maxRecordKey"]) == least


def large(parsed: Any) -> list[Any]:
    """Return the data blocks with more than one cell."""
    starts = [entry[0] for entry in parsed.index]
    blocks = [block for block in parsed.blocks if block.type == "DATA"]
    assert [block.offset for block in blocks] == starts
    return [block for block in blocks if int.from_bytes(block.data[:4], "big") + 9 < len(block.data) - 40]


@examples(100)
@given(
    contents=CONTENTS,
    layout=LAYOUTS,
    keys=st.lists(KEYS, max_size=20),
    prefixes=st.lists(st.binary(max_size=2) | st.text(max_size=2).map(str.encode), max_size=4),
)
def test_look_ups_return_the_matching_entries(
    contents: dict[bytes, bytes], layout: Layout, keys: list[bytes], prefixes: list[bytes]
) -> None:
    data = written(contents, layout)
    file = HFile(lambda offset, length: data[offset : offset + length], len(data))
    asked = [*keys, *sorted(contents)[::3]]
    expected = {key: contents[key] for key in asked if key in contents}
    assert file.find(pa.array(asked, pa.binary())).equals(table_of(expected))
    matching = {key: value for key, value in contents.items() if key.startswith(tuple(prefixes))}
    assert file.find_prefixes(pa.array(prefixes, pa.binary())).equals(table_of(matching))


@examples(50)
@given(contents=CONTENTS, layout=LAYOUTS, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_entries_in_several_batches_give_the_same_blocks(
    contents: dict[bytes, bytes], layout: Layout, cuts: list[int]
) -> None:
    pieces: list[bytes] = []
    writer = HFileWriter(pieces.append, schema='"bytes"', created_ms=7, layout=layout, bounds=True)
    entries, bounds = table_of(contents), sorted({0, *cuts, 100})
    for start, end in pairwise(bounds):
        writer.add(entries.slice(start, end - start))
    assert writer.close() == sum(map(len, pieces))
    data, expected = b"".join(pieces), written(contents, layout, bounds=True)
    assert blocks_of(data) == blocks_of(expected)
    # The gzip streams of a file with one block may differ, because parts of it were compressed before.
    assert layout.compression == "gz" or data == expected


def blocks_of(data: bytes) -> list[tuple[str, bytes]]:
    return [(block.type, block.data) for block in referee("hfile").parse(data).blocks]


@pytest.mark.parametrize("step", [1, 1000])
def test_blocks_walked_in_lock_step_have_the_cells_of_blocks_walked_one_by_one(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {b"k%05d" % n: b"v" * (n * n % (37 if n % 900 > 400 else 2)) for n in range(3000)}
    data = written(contents, replace(RAW, block_bytes=500))
    monkeypatch.setattr(cells, "LOCK_STEP_BLOCKS", step)
    monkeypatch.setattr(reader, "SCAN_BYTES", 20_000)
    assert read_hfile(data).entries().equals(table_of(contents))


@examples(200)
@given(
    contents=st.dictionaries(
        st.one_of(KEYS, st.just(KEY_SUFFIX), st.binary(max_size=3).map(lambda key: key + KEY_SUFFIX)),
        st.one_of(st.binary(max_size=30), st.just(KEY_SUFFIX), st.just(b"v" + KEY_SUFFIX + KEY_SUFFIX[:9])),
        max_size=40,
    ),
    layout=LAYOUTS,
)
def test_cells_found_by_the_suffixes_of_keys_are_those_of_a_walk(contents: dict[bytes, bytes], layout: Layout) -> None:
    data = written(contents, layout)
    with pytest.MonkeyPatch.context() as patch:
        for bound in (0, 1 << 40):
            patch.setattr(cells, "MARKED_BYTES", bound)
            assert read_hfile(data).entries().equals(table_of(contents))


def test_cells_of_keys_with_few_lengths_are_found_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {b"k%d" % n: b"v" * (n % 7) for n in range(3000)}
    data = written(contents, replace(RAW, block_bytes=5000))
    monkeypatch.setattr(cells, "MARKED_BYTES", 0)
    for walk in ("_walk_in_lock_step", "_walk_one_by_one"):
        monkeypatch.delattr(cells, walk)
    assert read_hfile(data).entries().equals(table_of(contents))


def test_keys_in_the_order_of_java_strings_are_found() -> None:
    """Hudi sorts the records of a log block by UTF-16 code units."""
    texts = sorted(
        (f"{a}{n:02d}" for a in "aé\uff08\U0001f600z\ue000" for n in range(9)), key=lambda t: t.encode("utf-16-be")
    )
    contents = [(text.encode(), b"v") for text in texts]
    assert [key for key, _ in contents] != sorted(key for key, _ in contents)
    data = foreign(contents)
    file = read_hfile(data)
    assert file.entries().equals(table_of(dict(contents)))
    for text in texts:
        assert file.find(pa.array([text])).num_rows == 1
        assert file.find_prefixes(pa.array([text[0]])).num_rows == 9
    with pytest.raises(CorruptTableError, match="keys are not ascending or not distinct"):
        read_hfile(foreign(contents[::-1])).entries()


def foreign(contents: list[tuple[bytes, bytes]]) -> bytes:
    """Return an HFile whose entries keep the given order, written by the referee, which sorts nothing."""
    data: bytes = referee("hfile").write(contents, codec=2, block_size=150, created_ms=1)
    return data


def test_any_changed_bit_of_a_data_block_is_detected_by_its_checksum() -> None:
    contents = {b"key-%04d" % n: b"value-%04d" % n for n in range(100)}
    data = written(contents, RAW)
    end = read_hfile(data).trailer.load_on_open
    assert end > 40 * HEADER_BYTES
    for at in range(0, end, 7):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(LakehouseError):
            read_hfile(bytes(damaged)).entries()


@pytest.mark.parametrize("layout", [SCANNED, RAW, replace(RAW, checksums=False)], ids=["gz", "checksums", "raw"])
def test_damaged_hfile_never_gives_another_error_or_key(layout: Layout) -> None:
    contents = {b"key-%04d" % (3 * n): b"value-%04d" % n * (n % 3) for n in range(100)}

    def use(data: bytes) -> object:
        file = read_hfile(data)
        found = file.find(pa.array(["key-0033", "key-0034", "key-0270"]))
        if layout.compression == "gz" or layout.checksums:
            # Damage of contents is detected, so entries that are returned are true.
            expected = [(key, contents[key]) for key in (b"key-0033", b"key-0270")]
            assert [pair for pair in pairs(found) if pair not in expected] == []
        return file.entries(), file.find_prefixes(pa.array(["key-00"])), file.schema

    assert fuzz_decoder("hfile", [written(contents, layout)], use, range(300)) == []


def pairs(entries: pa.Table) -> list[tuple[bytes, bytes]]:
    return list(zip(entries["key"].to_pylist(), entries["value"].to_pylist(), strict=True))


def test_look_up_reads_the_end_of_the_file_and_the_block_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "TAIL_BYTES", 20_000)
    monkeypatch.setattr(reader, "GAP_BYTES", 1000)
    contents = {b"key-%06d" % n: bytes(100) for n in range(10_000)}
    data = written(contents, replace(RAW, block_bytes=4096))
    reads: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return data[offset : offset + length]

    file = HFile(read, len(data))
    assert len(reads) == 1
    found = file.find(pa.array(["key-000100", "key-000101", "key-005000", "key-zzz", "a"]))
    assert (
        pc.equal(found["key"], pa.chunked_array([[b"key-000100", b"key-000101", b"key-005000"]])).to_pylist()
        == [True] * 3
    )
    assert len(reads) == 3 and sum(length for _, length in reads[1:]) < 3 * 4200


def test_ranges_that_were_read_are_kept_up_to_a_share_of_the_file() -> None:
    data = written({b"key-%06d" % n: bytes(1000) for n in range(10_000)}, replace(RAW, block_bytes=4096))
    reads: list[int] = []

    def read(offset: int, length: int) -> bytes:
        reads.append(length)
        return data[offset : offset + length]

    file = HFile(read, len(data))
    reads.clear()
    keys = [pa.array([f"key-{number:06d}"]) for number in range(0, 9_000, 100)]
    for _ in range(3):
        assert file.find(keys[0]).num_rows == 1
    assert len(reads) == 1
    for key in keys:
        assert file.find(key).num_rows == 1
        assert sum(map(len, file._ranges.values())) <= len(data) // 64
    assert len(reads) == len(keys)


def test_damaged_range_is_read_again() -> None:
    numbers = random.Random(1)
    data = bytearray(written({b"key-%06d" % n: numbers.randbytes(1000) for n in range(1_000)}, SCANNED))
    file = HFile(lambda offset, length: bytes(data[offset : offset + length]), len(data))
    keys = pa.array(["key-000000"])
    position = 100
    data[position] ^= 255
    with pytest.raises(CorruptTableError):
        file.find(keys)
    data[position] ^= 255
    assert file.find(keys).num_rows == 1
