"""Reads text files by lines through lakehouse.core.storage; it runs in Spark workers and does not import pyspark."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterator
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError

BLOCK_BYTES = 8 << 20


def line_batches(
    storage: Storage, paths: tuple[str, ...], encoding: str, skip: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of `(value, file)` with the lines of files, without blank lines; memory holds one block of a file.

    Args:
        storage: Where the files are.
        paths: All files.
        encoding: Encoding of the text.
        skip: Number of header lines of every file.
        batches: The positions in `paths` of the files to read.
    """
    for batch in batches:
        for index in batch.column(0).to_pylist():
            path = paths[index]
            url = f"{storage.root}/{path}"
            to_skip = skip
            for block in _blocks(storage, path):
                lines = _split(block, encoding)
                if to_skip:
                    lines, to_skip = lines.slice(to_skip), max(0, to_skip - len(lines))
                yield pa.RecordBatch.from_arrays([lines, pa.repeat(url, len(lines))], names=["value", "file"])


def _blocks(storage: Storage, path: str) -> Iterator[bytes]:
    """Yield blocks of complete lines of a plain, gzip, bzip2 or zstd file."""
    rest = b""
    try:
        with storage.open_input(path) as raw, _decompressed(cast(Any, raw), path) as file:
            while block := file.read(BLOCK_BYTES):
                head, newline, tail = block.rpartition(b"\n")
                if newline:
                    yield rest + head
                    rest = tail
                else:
                    rest += block
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise UserError(f"cannot read {storage.root}/{path}: {error}", path=path) from error
    if rest:
        yield rest


def _decompressed(raw: IO[bytes], path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if path.endswith(".bz2"):
        return cast(IO[bytes], bz2.BZ2File(raw))
    if path.endswith(".zst"):
        return cast(IO[bytes], pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
    return raw


def _split(block: bytes, encoding: str) -> pa.Array:
    text = block.decode(encoding, errors="replace")
    lines = pc.split_pattern(pa.array([text], pa.large_string()), "\n").flatten()
    lines = pc.utf8_rtrim(lines, characters="\r").cast(pa.string())
    return lines.filter(pc.not_equal(pc.binary_length(pc.utf8_trim_whitespace(lines)), 0))
