"""Copies of the beginnings of files, and the lines of their records."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.platform.sources.files.file_checkpoint import SourceFile
from lakehouse.platform.suggest.file_heads import FileHead, HeadReading, copy_head
from lakehouse.spark.csv_dialect import CsvDialect


def head_of(
    folder: Path, name: str, content: bytes, options: Mapping[str, str] | None = None, *, rows: int = 3
) -> FileHead:
    """Return the copied beginning of a file."""
    (folder / name).write_bytes(content)
    storage = open_storage(str(folder), {})
    file = SourceFile(url=f"{folder}/{name}", path=name, size_bytes=len(content), modified_ms=0)
    copies = folder / "copies"
    copies.mkdir(exist_ok=True)
    format = "csv" if ".csv" in name else "json"
    reading = HeadReading(format=format, options=options or {}, number=0, rows=rows, bytes=1000)
    return copy_head(storage, file, copies, reading)


def test_head_of_csv_ends_after_a_record_and_counts_blank_lines_and_line_breaks(tmp_path: Path) -> None:
    head = head_of(tmp_path, "a.csv.gz", gzip.compress(b'id,text\n1,"a\nb"\n\n2,c\n3,d\n4,e\n'))
    assert head.copy.read_bytes() == b'id,text\n1,"a\nb"\n\n2,c\n3,d\n'
    assert head.copy.name == "0000-a.csv"
    assert [line for line, _ in head.lines] == [2, 5, 6]
    assert (head.records, head.is_all) == (3, False)
    dialect = CsvDialect()
    assert head.place("2,c", dialect).endswith("a.csv.gz, line 5")
    # Spark's reader writes the record of a simple file again.
    assert head.place('"2","c"', dialect).endswith("line 5")
    assert head.place("9,z", dialect) == head.url


def test_head_of_json_lines_and_of_a_last_line_without_a_break(tmp_path: Path) -> None:
    head = head_of(tmp_path, "a.json", b'{"id": 1}\r\n{"id": 2}')
    assert (head.records, head.is_all) == (2, True)
    assert head.copy.read_bytes() == b'{"id": 1}\r\n{"id": 2}'
    assert head.place('{"id": 2}', None).endswith("line 2")


def test_head_of_another_encoding_keeps_its_bytes(tmp_path: Path) -> None:
    content = "id;größe\n1;ß\n".encode("windows-1252") + b"2;\x81\n"
    options = {"sep": ";", "encoding": "windows-1252"}
    assert head_of(tmp_path, "a.csv", content, options).copy.read_bytes() == content


def test_head_of_one_large_text_is_refused(tmp_path: Path) -> None:
    content = b"[" + b",".join(b'{"id": %d}' % number for number in range(200)) + b"]"
    with pytest.raises(UserError, match="is one text of more than 1,000 bytes"):
        head_of(tmp_path, "a.json", content, {"multiLine": "true"})
