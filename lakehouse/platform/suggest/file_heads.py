"""Copy the beginnings of JSON and CSV files, cut after a record, to read them like the files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.platform.sources.files.file_checkpoint import SourceFile
from lakehouse.platform.suggest.csv_guess import CsvGuess, values_of
from lakehouse.spark.csv_dialect import CsvDialect, encoding_of, flag, is_utf8, option
from lakehouse.spark.lines import utf8_blocks

_PACKED = (".gz", ".bz2", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """The copied beginning of a file.

    Attributes:
        url: The address of the file.
        copy: The copy.
        records: The number of copied records, without the header.
        is_all: Whether the copy contains all records.
        lines: Per record, the number of its first line, and its content.
    """

    url: str
    copy: Path
    records: int
    is_all: bool
    lines: Sequence[tuple[int, str]] = field(repr=False)

    def place(self, record: str, dialect: CsvDialect | None) -> str:
        """Return the file and the line of a record, as `a.csv, line 3`; only the file if the record is not in it."""
        line = self._line(record, dialect)
        return self.url if line is None else f"{self.url}, line {line:,}"

    def _line(self, record: str, dialect: CsvDialect | None) -> int | None:
        same = next((line for line, text in self.lines if text.strip() == record.strip()), None)
        if same is not None:
            return same
        if dialect is None or len(dialect.separator) != 1:
            return next((line for line, text in self.lines if record.strip() in text), None)
        # Spark's reader rewrote the record: its values are the same, but its quotes may differ.
        guess = CsvGuess(separator=dialect.separator, quote=dialect.quote, escape=dialect.escape)
        values = _plain(values_of(record, guess))
        return next((line for line, text in self.lines if values and _plain(values_of(text, guess)) == values), None)


def copy_head(storage: Storage, file: SourceFile, folder: Path, reading: HeadReading) -> FileHead:
    """Copy the beginning of a JSON or CSV file into a folder.

    Raises UserError for a single JSON document above the size limit, because its beginning is not valid JSON.
    """
    options, encoding = reading.options, encoding_of(reading.options)
    text = b""
    is_all = True
    for block in utf8_blocks(storage, file.path, encoding):
        text += block
        if len(text) > reading.bytes:
            is_all = False
            break
    if reading.is_whole:
        if not is_all:
            raise UserError(
                f"{file.url} is one text of more than {reading.bytes:,} bytes (multiLine), so a sample of it cannot be "
                "read. Check a smaller file with the same settings",
                path=file.url,
            )
        lines, end = [(1, text.decode("utf-8", "replace"))], len(text)
    else:
        lines, end = _records(text, reading, is_all=is_all)
    copy = folder / f"{reading.number:04d}-{_unpacked(Path(file.path).name)}"
    head = text[:end]
    if not is_utf8(encoding):
        head = head.decode("utf-8", "surrogatepass").encode(encoding, "surrogateescape")
    copy.write_bytes(head)
    header = 1 if reading.dialect is not None and flag(options, "header", default=True) else 0
    return FileHead(
        url=file.url,
        copy=copy,
        records=max(0, len(lines) - header),
        is_all=is_all and end == len(text),
        lines=lines[header:],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReading:
    """Settings for copying the beginning of a file.

    Attributes:
        format: The file format.
        options: The reader options.
        number: The file number, for the name of the copy.
        rows: The maximum number of records.
        bytes: The maximum number of bytes.
    """

    format: str
    options: Mapping[str, str]
    number: int
    rows: int
    bytes: int

    @property
    def dialect(self) -> CsvDialect | None:
        """The CSV dialect; None for other formats."""
        return CsvDialect.of(self.options) if self.format == "csv" else None

    @property
    def is_whole(self) -> bool:
        """Whether a file is a single document."""
        return self.format == "json" and flag(self.options, "multiLine", default=False)


def _records(text: bytes, reading: HeadReading, *, is_all: bool) -> tuple[list[tuple[int, str]], int]:
    """Return the line numbers and contents of the first non-blank records, and the end of the last one."""
    dialect = reading.dialect
    has_header = dialect is not None and flag(reading.options, "header", default=True)
    most = reading.rows + has_header
    records: list[tuple[int, str]] = []
    line, end = 1, 0
    for match in _pattern(reading).finditer(text):
        if len(records) >= most or (match.end() == len(text) and not is_all):
            break
        record = match[0]
        if record.strip() and not (dialect and dialect.comment and record.startswith(dialect.comment.encode())):
            records.append((line, record.decode("utf-8", "replace").rstrip("\r\n")))
        line += record.count(b"\n") or record.count(b"\r")
        end = match.end()
    return records, end


def _pattern(reading: HeadReading) -> re.Pattern[bytes]:
    dialect = reading.dialect
    if dialect is not None and dialect.quote and dialect.spans_lines:
        return dialect.records
    separator = option(reading.options, "", "lineSep").encode()
    if separator:
        return re.compile(rb"(?s).*?" + re.escape(separator) + rb"|.+")
    return re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")


def _plain(values: Sequence[str] | None) -> list[str]:
    return [value.strip() for value in values or ()]


def _unpacked(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _PACKED if name.endswith(suffix)), name)
