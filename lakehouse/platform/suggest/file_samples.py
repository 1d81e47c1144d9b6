"""Read a bounded sample of files without Spark: records of JSON and CSV, or rows of typed formats."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.platform.sources.files.file_checkpoint import SourceFile
from lakehouse.platform.sources.files.file_listing import list_source
from lakehouse.platform.suggest.sample import Limits
from lakehouse.spark.lines import TextLayout, line_batches
from lakehouse.spark.typed_files import typed_batches, typed_schema
from lakehouse.spec.table.location import resolve

#: The size of a file's beginning from which its format and dialect are guessed.
HEAD_BYTES = 256 << 10
_MAGIC = {b"PAR1": "parquet", b"ORC": "orc", b"Obj\x01": "avro"}
_PACKED = (".gz", ".bz2", ".zst")
_BOMS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFiles:
    """The files of a path, and the sampled files among them.

    Attributes:
        storage: The storage of the files.
        sampled: The sampled files, spread evenly over all of them.
        files: The number of all files.
        bytes: The stored size of all files.
        warning: A sentence about files that are not read; empty if there are none.
    """

    storage: Storage
    sampled: tuple[SourceFile, ...]
    files: int
    bytes: int
    warning: str = ""


def choose_files(
    path: str, limits: Limits, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> SampledFiles:
    """List a path and choose files with data; raise UserError if there are none."""
    listing = list_source((resolve(path, environ, name="path"),), storage_options)
    files = sorted((file for file in listing.files if file.size_bytes), key=lambda file: file.path)
    if not files:
        state = "has no files with data" if any(folder.exists for folder in listing.folders) else "does not exist"
        pattern = re.search(r"[*?\[]", path)
        hint = (
            f"A path with {pattern[0]!r} is a pattern; the character itself is written [{pattern[0]}]"
            if pattern
            else ""
        )
        raise UserError(
            f"{path} {state}, so there is nothing to suggest a spec from. {hint or listing.warning}".strip(), path=path
        )
    step = max(1, len(files) - 1) / max(1, min(limits.files, len(files)) - 1)
    chosen = {round(number * step) for number in range(min(limits.files, len(files)))}
    return SampledFiles(
        storage=listing.storage,
        sampled=tuple(files[number] for number in sorted(chosen)),
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        warning=listing.warning,
    )


def format_of(files: SampledFiles) -> str:
    """Return the format of files by their first bytes, else by their names; empty if both are inconclusive."""
    first = files.sampled[0]
    head = files.storage.get_range(first.path, 0, 4)
    declared = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
    if declared:
        return declared
    name = first.path.lower()
    name = next((name.removesuffix(suffix) for suffix in _PACKED if name.endswith(suffix)), name)
    if name.endswith((".json", ".jsonl", ".ndjson")):
        return "json"
    return "csv" if name.endswith((".csv", ".tsv", ".psv", ".tab")) else ""


def encoding_of_file(storage: Storage, file: SourceFile) -> str:
    """Return a file's encoding by its first bytes: `US-ASCII` if they contain no other characters.

    A file with more valid multi-byte UTF-8 characters than invalid bytes is UTF-8: records with invalid bytes are bad
    records, while another encoding would change all other records.
    """
    start = storage.get_range(file.path, 0, 2)
    marked = next((name for mark, name in _BOMS.items() if start.startswith(mark)), None)
    if marked is not None:
        return marked
    head = b"\n".join(_lines(storage, file.path, TextLayout(), HEAD_BYTES))
    if head.isascii():
        return "UTF-8" if storage.get_range(file.path, 0, 3) == codecs.BOM_UTF8 else "US-ASCII"
    # The last character may be truncated.
    others = [
        character for character in codecs.getincrementaldecoder("utf-8")("replace").decode(head) if character > "\x7f"
    ]
    wrong = others.count("\ufffd")
    return "UTF-8" if wrong <= len(others) - wrong else "windows-1252"


def text_records(storage: Storage, path: str, layout: TextLayout, most_bytes: int) -> Iterator[str]:
    """Yield records of a JSON or CSV file up to this number of bytes, at least one."""
    for record in _lines(storage, path, layout, most_bytes):
        yield record.decode("utf-8", "replace")


def typed_columns_of(storage: Storage, file: SourceFile, format: str) -> pa.Schema:
    """Return the columns that a file declares."""
    return typed_schema(storage, file.path, format)


def typed_rows(storage: Storage, file: SourceFile, format: str, most_rows: int) -> pa.Table:
    """Return the first rows of a file that declares its types."""
    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch in typed_batches(storage, file.path, format):
        batches.append(batch.slice(0, most_rows - rows))
        rows += batches[-1].num_rows
        if rows >= most_rows:
            break
    return pa.Table.from_batches(batches, typed_schema(storage, file.path, format) if not batches else None)


def _lines(storage: Storage, path: str, layout: TextLayout, most_bytes: int) -> Iterator[bytes]:
    position = pa.record_batch([pa.array([0], pa.int32())], names=["number"])
    size = 0
    for batch in line_batches(storage, (path,), layout, iter((position,))):
        for record in batch.column(0).view(pa.binary()).to_pylist():
            if size >= most_bytes:
                return
            size += len(record)
            yield record


def share(limits: Limits, files: Sequence[SourceFile]) -> Limits:
    """Return the limits per file for a number of files."""
    return Limits(rows=max(1, limits.rows // len(files)), files=1, bytes=max(1, limits.bytes // len(files)))
