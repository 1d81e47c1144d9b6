"""Reads the records of source files through lakehouse.core.storage; it runs in Spark workers without pyspark.

All content becomes UTF-8. Bytes that are invalid in the declared encoding are kept: a record that contains such bytes
is not valid UTF-8 either, so Spark can find it. A byte that another encoding than UTF-8 does not define becomes a lone
surrogate, as in Python's error handler `surrogateescape`.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.spark.csv_dialect import CsvDialect, is_utf8

BLOCK_BYTES = 8 << 20
#: The maximum size of a CSV record that spans lines. Without a limit, a quote that is never closed would load the rest
#: of the file into memory.
MOST_RECORD_BYTES = 64 << 20
_MOST_BYTES = (1 << 31) - 1
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLayout:
    """How files are divided into records.

    Attributes:
        encoding: The encoding of the files.
        skip: The number of header records of every file.
        separator: The separator between two lines; empty for all usual line breaks.
        dialect: The dialect of CSV files; None for other formats, whose records are lines.
        is_whole: Whether each file is one record.
        object: The pattern for a JSON object; empty for other formats. A line that is longer than a block is divided
            between two objects.
    """

    encoding: str = "UTF-8"
    skip: int = 0
    separator: str = ""
    dialect: CsvDialect | None = None
    is_whole: bool = False
    object: str = ""


def line_batches(
    storage: Storage, paths: tuple[str, ...], layout: TextLayout, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of `(value, file)` with the non-blank records in files; only one block of a file is in memory.

    Args:
        storage: Where the files are.
        paths: All files.
        layout: How the files are divided.
        batches: The positions in `paths` of the files to read.

    Raises:
        UserError: A file is damaged, cannot be decoded at all, or has a quote that is not closed.
    """
    for batch in batches:
        for index in batch.column(0).to_pylist():
            path = paths[index]
            url = f"{storage.root}/{path}"
            to_skip = layout.skip
            for records in _records(utf8_blocks(storage, path, layout.encoding), layout, url):
                if to_skip:
                    records, to_skip = records.slice(to_skip), max(0, to_skip - len(records))
                yield pa.RecordBatch.from_arrays([records, pa.repeat(url, len(records))], names=["value", "file"])


def decoded(value: bytes, encoding: str) -> bytes:
    """Return bytes that are not UTF-8, decoded from an encoding, as UTF-8; unchanged if they are invalid in it, too."""
    try:
        # Surrogates replace bytes that could not be decoded from another encoding.
        value.decode("utf-8", "surrogatepass")
        return value
    except UnicodeDecodeError:
        pass
    try:
        return value.decode(encoding).encode()
    except UnicodeDecodeError:
        return value


def _records(blocks: Iterator[bytes], layout: TextLayout, url: str) -> Iterator[pa.Array]:
    """Yield arrays of the records in a file's blocks, without blank ones and comments."""
    if layout.is_whole:
        yield _texts([b"".join(blocks)], layout)
        return
    dialect = layout.dialect
    divide = _lines if dialect is None or not dialect.quote or not dialect.spans_lines else _quoted_records
    objects = re.compile(rf"(?:\s*+{layout.object})++".encode()) if layout.object else None
    rest, most = b"", BLOCK_BYTES
    for block in blocks:
        records, rest = divide(rest + block, layout)
        if len(rest) > MOST_RECORD_BYTES and divide is _quoted_records:
            raise UserError(
                f"{url}: a record is larger than {MOST_RECORD_BYTES >> 20} MB, so its quote is probably not closed: it "
                f"begins with {rest[:80]!r}. Correct the file, or set options: {{quote: ''}} if its values are not "
                "quoted, or {multiLine: 'false'} if no value contains a line break",
                path=url,
            )
        yield records
        if objects is not None and len(rest) > most:
            head = objects.match(rest)
            if head is not None:
                yield _texts([head[0]], layout)
                rest = rest[head.end() :]
            # A line without objects is searched again when it is twice as long.
            most = max(BLOCK_BYTES, 2 * len(rest))
    if rest:
        # The last record may lack a line break. A record with an open quote contains the whole rest, and is bad.
        records, rest = divide(rest + (layout.separator.encode() or b"\n"), layout)
        yield _texts([rest], layout) if rest else records


def _lines(text: bytes, layout: TextLayout) -> tuple[pa.Array, bytes]:
    """Return the complete lines of a string, and the rest after them."""
    separator = layout.separator.encode()
    if not separator:
        separator = b"\n"
        if b"\r" in text:
            # A last carriage return may belong to a line feed in the next block.
            text = text[:-1].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + text[-1:]
    head, newline, tail = text.rpartition(separator)
    if not newline:
        return _texts([], layout), text
    lines = pc.split_pattern(pa.array([head], pa.large_binary()), separator).flatten()
    return _filtered(lines, layout), tail


def _quoted_records(text: bytes, layout: TextLayout) -> tuple[pa.Array, bytes]:
    """Return the complete CSV records in a string, and the rest after them."""
    dialect = layout.dialect
    assert dialect is not None, "only CSV has quotes"
    if dialect.quote.encode() not in text:
        return _lines(text, layout)
    records = dialect.records.findall(text)
    rest = b""
    if records and dialect.record.fullmatch(records[-1]) is None:
        rest = records.pop()
    return _texts(records, layout), rest


def _texts(records: list[bytes], layout: TextLayout) -> pa.Array:
    return _filtered(pa.array(records, pa.large_binary()), layout)


def _filtered(records: pa.Array, layout: TextLayout) -> pa.Array:
    """Return records as strings without line breaks; blank records and comments are dropped."""
    # Arrow would refuse to cast bytes that are not UTF-8; Spark has to find them.
    texts = records.cast(pa.binary()).view(pa.string())
    if layout.is_whole:
        return texts
    if layout.separator:
        cut = pc.binary_replace_slice(texts.view(pa.binary()), -len(layout.separator.encode()), _MOST_BYTES, b"")
        texts = pc.if_else(pc.ends_with(texts, layout.separator), cut.view(pa.string()), texts)
    else:
        texts = pc.ascii_rtrim(texts, characters="\r\n")
    texts = texts.filter(pc.not_equal(pc.binary_length(pc.ascii_trim_whitespace(texts)), 0))
    comment = "" if layout.dialect is None else layout.dialect.comment
    return texts.filter(pc.invert(pc.starts_with(texts, comment))) if comment else texts


def utf8_blocks(storage: Storage, path: str, encoding: str) -> Iterator[bytes]:
    """Yield the content of a file in UTF-8, without a byte order mark."""
    blocks = _blocks(storage, path)
    if not is_utf8(encoding):
        blocks = _transcoded(blocks, encoding, f"{storage.root}/{path}")
    is_first = True
    for block in blocks:
        yield block.removeprefix(_BOM) if is_first else block
        is_first = False


def _transcoded(blocks: Iterator[bytes], encoding: str, url: str) -> Iterator[bytes]:
    try:
        decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        for block in blocks:
            yield decoder.decode(block).encode("utf-8", "surrogatepass")
        yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
    except LookupError as error:
        raise UserError(f"ingest.options: encoding {encoding!r} is unknown", option="encoding") from error
    except UnicodeError as error:
        raise UserError(
            f"{url} is not text in the encoding {encoding!r}: {error}. Correct the option 'encoding' in ingest.options",
            path=url,
        ) from error


def _blocks(storage: Storage, path: str) -> Iterator[bytes]:
    """Yield blocks of a plain, gzip, bzip2 or zstd file."""
    try:
        with storage.open_input(path) as raw, _decompressed(cast(Any, raw), path) as file:
            while block := file.read(BLOCK_BYTES):
                yield block
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise UserError(f"cannot read {storage.root}/{path}: {error}", path=path) from error


def _decompressed(raw: IO[bytes], path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if path.endswith(".bz2"):
        return cast(IO[bytes], bz2.BZ2File(raw))
    if path.endswith(".zst"):
        return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
    return raw
