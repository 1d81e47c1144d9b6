"""Check the first bytes of every file before Spark reads it.

A file that does not match the format of its name or spec fails the run before anything is parsed or written, and the
error message contains its name. The probe also reads CSV headers, so that one run can read files with different columns
or column orders.
"""

from __future__ import annotations

import bz2
import csv
import io
import itertools
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.files.file_checkpoint import SourceFile
from lakehouse.spark.csv_dialect import CsvDialect, encoding_of, flag, is_utf8, option

log = logging.getLogger(__name__)

HEAD_BYTES = 64 << 10
#: The remedy for a header with a duplicate or unnamed column.
HEADER_REMEDY = (
    "Give each column of the file a name of its own, whose case does not count. Or set options: {header: 'false'} in "
    "'ingest' and declare all columns in order in 'schema': the header is then a record like others"
)
_AT_ONCE = 16
_PART = 4096
_PROGRESS = 1000
_MORE = 16
#: The first bytes of compressed files; a zstd file may begin with a skippable frame, as pzstd writes it.
_MAGIC = {".gz": (b"\x1f\x8b",), ".bz2": (b"BZh",), ".zst": (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")}
_TYPED_MAGIC = {"parquet": b"PAR1", "orc": b"ORC", "avro": b"Obj\x01", "debezium_avro": b"Obj\x01"}
#: The first bytes of archives that are not supported, regardless of their names.
_OTHER_MAGIC = {"zip": b"PK\x03\x04", "xz": b"\xfd7zXZ\x00", "7z": b"7z\xbc\xaf\x27\x1c", "lz4": b"\x04\x22\x4d\x18"}
_UNREADABLE = (".zip", ".xz", ".7z", ".rar", ".tar", ".tgz", ".lz4", ".snappy", ".deflate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A file and its column names, from its CSV header or its first JSON record; empty for other formats."""

    file: SourceFile
    names: tuple[str, ...] = ()


def probe_files(
    storage: Storage, files: Sequence[SourceFile], format: str, options: Mapping[str, str]
) -> tuple[Probe, ...]:
    """Probe the files in parallel, and return the non-empty files in the same order.

    Args:
        storage: The storage of the files.
        files: The files to probe.
        format: One of the spec's `FORMATS`.
        options: Options of Spark's reader.

    Raises:
        UserError: A file cannot be read; the message contains the first one.
        RetryableError: A file was deleted after it was listed.
    """
    probes: list[Probe] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for number, probe in enumerate(pool.map(lambda file: _probe(storage, file, format, options), files), 1):
            if probe is not None:
                probes.append(probe)
            if number % _PROGRESS == 0:
                log.info("probed %s of %s files", number, len(files))
    return tuple(probes)


def by_names(probes: Iterable[Probe]) -> dict[tuple[str, ...], tuple[SourceFile, ...]]:
    """Group the files by their column names, in order."""
    groups: dict[tuple[str, ...], list[SourceFile]] = {}
    for probe in probes:
        groups.setdefault(probe.names, []).append(probe.file)
    return {names: tuple(files) for names, files in groups.items()}


def _probe(storage: Storage, file: SourceFile, format: str, options: Mapping[str, str]) -> Probe | None:
    if file.size_bytes == 0:
        return None
    head = _head(storage, file, HEAD_BYTES)
    magic = _TYPED_MAGIC.get(format)
    if magic is not None:
        if not head.startswith(magic):
            raise UserError(f"{file.url} is not a file of {format}: it begins with {head[:8]!r}", path=file.url)
        return Probe(file=file)
    if flag(options, "multiLine", default=False) and format == "json":
        return Probe(file=file)
    if format == "csv" and flag(options, "header", default=True):
        text = _text_with_header(storage, file, head, options)
        return Probe(file=file, names=_header(file, text, options)) if text.strip() else None
    text = _decoded(_text_head(file, head, HEAD_BYTES), options)
    return Probe(file=file, names=_json_names(_first_line(text)) if format == "json" else ())


def check_text(storage: Storage, file: SourceFile) -> None:
    """Raise UserError for a file that is damaged, has another format or an unsupported compression."""
    _text_head(file, _head(storage, file, HEAD_BYTES), HEAD_BYTES)


def _head(storage: Storage, file: SourceFile, size: int) -> bytes:
    try:
        return storage.get_range(file.path, 0, size)
    except NotFoundError as error:
        raise RetryableError(f"{file.url} was deleted after it was listed; run again", path=file.url) from error


def _text_with_header(storage: Storage, file: SourceFile, head: bytes, options: Mapping[str, str]) -> str:
    """Return a file's beginning with a complete line that is not blank or a comment, or the whole file."""
    size, dialect = HEAD_BYTES, CsvDialect.of(options)
    while True:
        data = _text_head(file, head, size)
        text = _decoded(data, options)
        lines = text.split(dialect.line_break) if dialect.line_break else text.splitlines()
        is_all = len(head) >= file.size_bytes and len(data) < size
        if is_all or any(_is_record(line, dialect) for line in lines[:-1]):
            return text
        size *= _MORE
        if len(head) < file.size_bytes:
            head = _head(storage, file, size)


def _is_record(line: str, dialect: CsvDialect) -> bool:
    return bool(line.strip()) and not (dialect.comment and line.startswith(dialect.comment))


def _text_head(file: SourceFile, head: bytes, most: int) -> bytes:
    """Return at most `most` uncompressed bytes from the first bytes of a file."""
    text = _unpacked_head(file, head, most)
    other = next((kind for kind, start in _OTHER_MAGIC.items() if text.startswith(start)), None)
    if other is not None:
        raise UserError(f"{file.url} is not text but an archive ({other}): unpack it first", path=file.url)
    again = next((kind for kind, start in _MAGIC.items() if text.startswith(start)), None)
    if again is not None:
        raise UserError(f"{file.url} is compressed twice: unpacked, it is {again} again. Unpack it once", path=file.url)
    return text


def _unpacked_head(file: SourceFile, head: bytes, most: int) -> bytes:
    suffix = file.path[file.path.rfind(".") :].lower()
    if suffix in _UNREADABLE:
        raise UserError(
            f"{file.url}: {suffix} files are not supported; use plain text, .gz, .bz2 or .zst", path=file.url
        )
    magic = _MAGIC.get(suffix)
    if magic is None:
        packed = next((kind for kind, start in _MAGIC.items() if head.startswith(start)), None)
        if packed is not None or head.startswith(b"PAR1"):
            kind = f"compressed: add {packed} to its name" if packed else "parquet: set ingest.format to parquet"
            raise UserError(f"{file.url} is not text but {kind}", path=file.url)
        return head
    if not head.startswith(magic):
        raise UserError(f"{file.url} is named {suffix} but is not {suffix}: it begins with {head[:8]!r}", path=file.url)
    try:
        if suffix == ".zst":
            return _unpacked_zstd(head, most)
        return _unpacked(head, most, partial(zlib.decompressobj, wbits=31) if suffix == ".gz" else bz2.BZ2Decompressor)
    except (zlib.error, OSError) as error:
        raise UserError(f"{file.url} is damaged: {error}", path=file.url) from error


def _unpacked(head: bytes, most: int, decompressor: Callable[[], Any]) -> bytes:
    """Decompress the beginning of a gzip or bzip2 file, which may contain several members, some of them empty."""
    text = b""
    while head and len(text) < most:
        member = decompressor()
        try:
            text += member.decompress(head, most - len(text))
        except (zlib.error, OSError):
            if text:
                # Damage later in the file is detected when it is read.
                break
            raise
        if not member.eof:
            break
        head = member.unused_data.lstrip(b"\0")
    return text


def _unpacked_zstd(head: bytes, most: int) -> bytes:
    """Decompress the beginning of a zstd file; its first bytes may end inside of a block."""
    stream = pa.CompressedInputStream(pa.BufferReader(head), "zstd")
    text = b""
    while len(text) < most:
        try:
            part = stream.read(_PART)
        except OSError:
            # The block is truncated; damage later in the file is detected when it is read.
            if text or len(head) >= HEAD_BYTES:
                break
            raise
        if not part:
            break
        text += part
    return text


def _decoded(head: bytes, options: Mapping[str, str]) -> str:
    """Decode a file's first bytes, which may end inside of a character."""
    encoding = encoding_of(options)
    try:
        return head.decode("utf-8-sig" if is_utf8(encoding) else encoding, errors="replace").removeprefix("\ufeff")
    except LookupError as error:
        raise UserError(f"ingest.options: encoding {encoding!r} is unknown", option="encoding") from error


def _first_line(text: str) -> str | None:
    return next((line for line in text.split("\n") if line.strip()), None)


def _header(file: SourceFile, text: str, options: Mapping[str, str]) -> tuple[str, ...]:
    dialect = CsvDialect.of(options)
    lines = text.split(separator) if (separator := option(options, "", "lineSep")) else io.StringIO(text, newline="")
    rows = (line for line in lines if _is_record(line, dialect))
    first = next(rows, "")
    if len(dialect.separator) == 1:
        escape = None if dialect.escape in ("", dialect.quote) else dialect.escape
        reader = csv.reader(
            itertools.chain([first], rows if dialect.spans_lines else ()),
            delimiter=dialect.separator,
            quotechar=dialect.quote or None,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
            doublequote=escape is None,
            escapechar=escape,
        )
        try:
            names = tuple(name.strip() for name in next(reader, []))
        except csv.Error as error:
            raise UserError(f"the header of {file.url} is not CSV: {error}: {first[:200]!r}", path=file.url) from error
    else:
        values = first.rstrip("\r\n").split(dialect.separator)
        names = tuple(name.strip().strip(dialect.quote or None) for name in values)
    lower = [name.lower() for name in names]
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None or "" in names:
        problem = "a column without a name" if twice is None or not twice else f"the column {twice!r} twice"
        raise UserError(
            f"the header of {file.url} has {problem}: {first.strip()[:200]!r}. {HEADER_REMEDY}", path=file.url
        )
    damaged = next((name for name in names if "\ufffd" in name), None)
    if damaged is not None:
        raise UserError(
            f"the header of {file.url} is not text in the encoding {encoding_of(options)!r}: {damaged!r}. Set options: "
            "{encoding: ...} in 'ingest' to the encoding of the file",
            path=file.url,
        )
    return names


def _json_names(line: str | None) -> tuple[str, ...]:
    try:
        record = parse_json(line or "")
    except ValueError:
        return ()
    return tuple(record) if isinstance(record, dict) else ()
