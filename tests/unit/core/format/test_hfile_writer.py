"""Test the bytes of HFiles, and what the writer refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.format.hfile import writer
from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.hfile.layout import TRAILER_BYTES
from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.hfile.writer import HFileWriter, Layout, write_hfile
from lakehouse.errors import UnsupportedError

RAW = Layout(compression="none", checksums=False)
#: The example of the specification: a -> 1, b -> 22.
EXAMPLE = bytes.fromhex(
    "44415441424c4b2a 00000033 0000002f ffffffffffffffff 00 00004000 00000050"
    "0000000d 00000001 0001 61 00 7fffffffffffffff 04 31 00"
    "0000000d 00000002 0001 62 00 7fffffffffffffff 04 3232 00"
    "00000000"
    "494458524f4f5432 00000014 00000010 ffffffffffffffff 00 00004000 00000031"
    "0000000000000000 00000054 03 0001 61 00000000"
    "494458524f4f5432 00000004 00000000 ffffffffffffffff 00 00004000 00000021 00000000"
    "46494c45494e4632"
)


def table_of(keys: list[bytes], values: list[bytes] | None = None) -> pa.Table:
    columns = [pa.array(keys, pa.binary()), pa.array(values or [b""] * len(keys), pa.binary())]
    return pa.Table.from_arrays(columns, schema=ENTRIES)


def written(entries: pa.Table, layout: Layout = RAW) -> bytes:
    return write_hfile(entries, schema='"bytes"', created_ms=0, layout=layout)


def test_hfile_of_two_entries_has_the_bytes_of_the_example() -> None:
    data = written(table_of([b"a", b"b"], [b"1", b"22"]))
    assert data[: len(EXAMPLE)] == EXAMPLE
    assert data.index(b"FILEINF2") == 0xAE
    assert data[-TRAILER_BYTES:].startswith(b'TRABLK"$') and data.endswith(b"\0\0\0\x03")


@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"], [b"a", b"ab", b"a\xff", b"b\0", b"b"]])
def test_writer_refuses_keys_that_do_not_ascend(keys: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"key b'.*' does not follow b'.*' in ascending order"):
        written(table_of(keys))


def test_writer_refuses_a_batch_that_precedes_the_one_before_it() -> None:
    file = HFileWriter(lambda data: None, schema="", created_ms=0, layout=RAW, bounds=False)
    file.add(table_of([b"b"]))
    with pytest.raises(ValueError, match="key b'b' does not follow b'b'"):
        file.add(table_of([b"b", b"c"]))


def test_writer_refuses_blocks_that_hudi_cannot_read_completely() -> None:
    with pytest.raises(ValueError, match="block_bytes is 65537"):
        written(table_of([]), Layout(block_bytes=65537))


def test_writer_refuses_keys_longer_than_the_format_allows() -> None:
    longest = written(table_of([b"k" * 32767]))
    assert read_hfile(longest).entries()["key"].to_pylist() == [b"k" * 32767]
    with pytest.raises(UnsupportedError, match="a key has 32768 bytes"):
        written(table_of([b"k" * 32768]))


def test_writer_refuses_a_file_that_hudi_cannot_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_FILE_BYTES", 75_000)
    written(table_of([b"a"], [bytes(70_000)]))
    with pytest.raises(UnsupportedError, match="use more file groups"):
        written(table_of([b"a"], [bytes(75_000)]))


def test_value_larger_than_a_block_has_a_block_of_its_own() -> None:
    data = written(table_of([b"a", b"b", b"c"], [b"1", bytes(70_000), b"3"]))
    file = read_hfile(data)
    assert file.trailer.blocks == 3
    assert file.entries().equals(table_of([b"a", b"b", b"c"], [b"1", bytes(70_000), b"3"]))
