from __future__ import annotations

import bz2
import gzip
from collections.abc import Mapping

import pyarrow as pa
import pytest

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.sources.files.file_checkpoint import SourceFile
from lakehouse.platform.sources.files.file_probe import Probe, by_names, probe_files


def _probe(files: Mapping[str, bytes], format: str, **options: str) -> tuple[Probe, ...]:
    storage = MemoryStorage()
    for path, data in files.items():
        storage.put(path, data)
    sources = [
        SourceFile(url=f"/landing/{path}", path=path, size_bytes=len(data), modified_ms=0)
        for path, data in files.items()
    ]
    return probe_files(storage, sources, format, options)


def _zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("a.csv", b"a,b c,d\n1,2,3\n", {}),
        ("a.csv", b"\xef\xbb\xbfa,b c,d\r\n1,2,3\r\n", {}),
        ("a.csv", b'\n"a","b c",d\n', {}),
        ("a.csv", b"a\tb c\td\n", {"sep": "\\t"}),
        ("a.csv", b"a||b c||d\n", {"delimiter": "||"}),
        ("a.csv", "a,b c,d\n".encode("utf-16"), {"encoding": "utf-16"}),
        ("a.csv.gz", gzip.compress(b"a,b c,d\n" + b"1,2,3\n" * 100_000, mtime=0), {}),
        ("a.csv.bz2", bz2.compress(b"a,b c,d\n1,2,3\n"), {}),
        # Several members, of which the first is empty, or ends inside of the header.
        ("a.csv.gz", b"".join(gzip.compress(part, mtime=0) for part in (b"", b"a,b ", b"c,d\n1,2,3\n")), {}),
        ("a.csv.gz", gzip.compress(b"", mtime=0) * 10_000 + gzip.compress(b"a,b c,d\n1,2,3\n", mtime=0), {}),
        ("a.csv.bz2", b"".join(map(bz2.compress, (b"", b"a,b ", b"c,d\n1,2,3\n"))), {}),
        ("a.csv.zst", b"".join(map(_zstd, (b"", b"a,b ", b"c,d\n1,2,3\n"))), {}),
        # Blank lines and comments before the header, and a header, that are longer than the part that is read first.
        ("a.csv", b"\n" * 100_000 + b"a,b c,d\n1,2,3\n", {}),
        ("a.csv.gz", gzip.compress(b"#\n" * 100_000 + b"a,b c,d\n1,2,3\n", mtime=0), {"comment": "#"}),
        ("a.csv", b'a,b c,"d' + b" " * 100_000 + b'"\n1,2,3\n', {}),
    ],
)
def test_probe_reads_the_header_of_plain_and_compressed_files(name: str, data: bytes, options: dict[str, str]) -> None:
    assert [probe.names for probe in _probe({name: data}, "csv", **options)] == [("a", "b c", "d")]


def test_by_names_groups_files_with_the_same_header() -> None:
    probes = _probe({"1.csv": b"a,b\n", "2.csv": b"b,a\n", "3.csv": b"a,b\n1,2"}, "csv")
    groups = {names: [file.path for file in files] for names, files in by_names(probes).items()}
    assert groups == {("a", "b"): ["1.csv", "3.csv"], ("b", "a"): ["2.csv"]}


def test_probe_has_no_names_without_a_header() -> None:
    assert [probe.names for probe in _probe({"a.csv": b"1,2\n"}, "csv", header="false")] == [()]


def test_probe_reads_names_of_the_first_json_record_and_skips_empty_files() -> None:
    probes = _probe({"a.json": b'{"x": 1, "y": {"z": 2}}\n{"q": 1}', "b.json": b"", "c.json": b"nonsense\n"}, "json")
    assert [(probe.file.path, probe.names) for probe in probes] == [("a.json", ("x", "y")), ("c.json", ())]


@pytest.mark.parametrize(
    ("format", "name", "data", "message"),
    [
        (
            "csv",
            "a.csv.gz",
            b"a,b\n1,2\n",
            r"/landing/a.csv.gz is named .gz but is not .gz: it begins with b'a,b",
        ),
        ("csv", "a.csv.gz", gzip.compress(b"a,b", mtime=0)[:3] + b"\xff" * 40, "/landing/a.csv.gz is damaged"),
        ("json", "a.json", gzip.compress(b"{}", mtime=0), "/landing/a.json is not text but compressed: add .gz"),
        ("json", "a.json", b"PAR1....", "set ingest.format to parquet"),
        ("json", "a.json.xz", b"....", ".xz files are not supported"),
        ("json", "a.json.zst", b"....", "is named .zst but is not .zst"),
        ("json", "a.json.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 40, "/landing/a.json.zst is damaged"),
        ("parquet", "a.parquet", b'{"a": 1}', "/landing/a.parquet is not a file of parquet: it begins with"),
        ("orc", "a.orc", b"PAR1", "/landing/a.orc is not a file of orc: it begins with"),
        ("csv", "a.csv", b"a,b,A\n", "the header of /landing/a.csv has the column 'a' twice"),
        ("csv", "a.csv", b"a,,c\n", "the header of /landing/a.csv has a column without a name"),
    ],
)
def test_probe_refuses_a_file_of_another_format_and_names_it(format: str, name: str, data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _probe({name: data}, format)


def test_probe_of_a_deleted_file_is_retryable() -> None:
    file = SourceFile(url="/landing/a.json", path="a.json", size_bytes=3, modified_ms=0)
    with pytest.raises(RetryableError, match=r"/landing/a.json was deleted"):
        probe_files(MemoryStorage(), [file], "json", {})
