"""Data files as an Arrow table: one row per base file, log file or change log of a listing (TL-6.1).

A listing has the columns `partition`, `name` and `size_bytes`. `data_files` parses all names with two regular
expressions and adds `file_id`, `instant`, `write_token`, `version`, `is_log`, `suffix` and `extension`. Objects of
`lakehouse.model.files` are made only for the few files that a caller iterates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UnsupportedError
from lakehouse.model.files import BaseFile, LogFile

#: Columns of a listing.
LISTING = pa.schema([("partition", pa.string()), ("name", pa.string()), ("size_bytes", pa.int64())])
#: Columns of parsed files. `version` is 0 for base files, `suffix` is ".cdc" for change logs and otherwise empty,
#: `extension` is empty for logs.
DATA_FILES = pa.schema(
    [
        *LISTING,
        ("file_id", pa.string()),
        ("instant", pa.string()),
        ("write_token", pa.string()),
        ("version", pa.int64()),
        ("is_log", pa.bool_()),
        ("suffix", pa.string()),
        ("extension", pa.string()),
    ]
)
#: Number of file names that are parsed at a time.
_PARSED_AT_ONCE = 16_384
# The expressions of `lakehouse.core.format.file_names` in RE2 syntax; a property test compares them.
_BASE = r"^(?P<file_id>[^._/]+)_(?P<token>[0-9A-Za-z-]+)_(?P<instant>[0-9]+)\.(?P<extension>parquet|orc|hfile|lance)\z"
_LOG = (
    r"^\.(?P<file_id>[^._/]+)_(?P<instant>[0-9]+)\.log\.(?P<version>[0-9]+)"
    r"(?:_(?P<token>[0-9]+-[0-9]+-[0-9]+)(?P<suffix>\.cdc)?)?\z"
)


def listing_of(paths: Iterable[str], sizes: Iterable[int]) -> pa.Table:
    """Return a listing of files with these paths relative to the table."""
    path = pa.array(paths, pa.string())
    size = pa.array(sizes, pa.int64())
    # The last slash separates the partition from the name; a file in the root has no partition.
    parts = pc.extract_regex(path, r"(?s)^(?:(?P<partition>.*)/)?(?P<name>[^/]*)\z")
    return pa.table([pc.struct_field(parts, "partition"), pc.struct_field(parts, "name"), size], schema=LISTING)


def data_files(listing: pa.Table) -> pa.Table:
    """Return the data files of a listing with the parts of their names, in the order of the listing.

    Files with other names are omitted. Raises UnsupportedError for a log file without write token (Hudi before 0.6).
    """
    listing = listing.select(LISTING.names).cast(LISTING)
    if listing.num_rows > _PARSED_AT_ONCE:
        # Parse in batches, because the regular expressions need several times the memory of their input.
        starts = range(0, listing.num_rows, _PARSED_AT_ONCE)
        pieces = [data_files(listing.slice(at, _PARSED_AT_ONCE)) for at in starts]
        if sum(piece.num_rows for piece in pieces) < listing.num_rows:
            return pa.concat_tables(pieces).combine_chunks()
        # Every file is a data file, so the columns of the listing are not copied.
        parts = pa.concat_tables([piece.drop_columns(LISTING.names) for piece in pieces]).combine_chunks()
        listed = listing.combine_chunks()
        return pa.table([*listed.columns, *parts.columns], names=LISTING.names + parts.column_names).cast(DATA_FILES)
    listing = listing.combine_chunks()
    names = _column(listing, "name")
    base = pc.extract_regex(names, _BASE)
    is_base = pc.is_valid(base)
    if not base.null_count:
        # Usual in copy-on-write tables; nothing is copied.
        return _parsed(listing, base, is_log=False)
    bases = _parsed(listing.filter(is_base), base.filter(is_base), is_log=False)
    others = listing.filter(pc.invert(is_base))
    if not others.num_rows:
        return bases
    log = pc.extract_regex(_column(others, "name"), _LOG)
    is_log = pc.is_valid(log)
    logs = _parsed(others.filter(is_log), log.filter(is_log), is_log=True)
    _require_tokens(logs)
    if not bases.num_rows or not logs.num_rows:
        return logs if logs.num_rows else bases
    # Restore the order of the listing.
    rows = pc.indices_nonzero(is_base), pc.indices_nonzero(pc.invert(is_base)).filter(is_log)
    order = pc.array_sort_indices(pa.concat_arrays(rows))
    return pa.concat_tables([bases, logs]).take(order).combine_chunks()


def files_table(files: Iterable[BaseFile | LogFile]) -> pa.Table:
    """Return objects of data files as a table with the columns of `data_files`."""
    rows = [
        (f.partition, f.name, f.size_bytes, f.file_id, f.instant, f.write_token)
        + ((f.version, True, f.suffix, "") if isinstance(f, LogFile) else (0, False, "", f.extension))
        for f in files
    ]
    columns = zip(*rows, strict=True) if rows else ([] for _ in DATA_FILES)
    return pa.table([pa.array(c, field.type) for c, field in zip(columns, DATA_FILES, strict=True)], schema=DATA_FILES)


def file_objects(files: pa.Table) -> Iterator[BaseFile | LogFile]:
    """Yield rows of data files as objects; only for few files."""
    for values in zip(*(files.column(name).to_pylist() for name in DATA_FILES.names), strict=True):
        partition, _, size_bytes, file_id, instant, token, version, is_log, suffix, extension = values
        if is_log:
            yield LogFile(
                partition=partition,
                file_id=file_id,
                instant=instant,
                version=version,
                write_token=token,
                size_bytes=size_bytes,
                suffix=suffix,
            )
        else:
            yield BaseFile(
                partition=partition,
                file_id=file_id,
                write_token=token,
                instant=instant,
                extension=extension,
                size_bytes=size_bytes,
            )


def file_paths(files: pa.Table) -> pa.Array:
    """Return the paths of listed files relative to the table."""
    partition, name = _column(files, "partition"), _column(files, "name")
    joined = pc.binary_join_element_wise(partition, name, "/")
    return pc.if_else(pc.equal(partition, ""), name, joined)


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.ChunkedArray):
        return (
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
        )
    return column


def members(values: pa.Array, of: Sequence[str] | pa.Array) -> pa.Array:
    """Return whether each value is one of the given strings."""
    return pc.is_in(values, value_set=of if isinstance(of, pa.Array) else pa.array(of, values.type))


def _column(table: pa.Table, name: str) -> pa.Array:
    return one_array(table.column(name))


def _parsed(listing: pa.Table, parts: pa.StructArray, *, is_log: bool) -> pa.Table:
    rows = listing.num_rows
    empty = pa.repeat(pa.scalar(""), rows)
    if is_log:
        version = pc.struct_field(parts, "version").cast(pa.int64())
        suffix, extension = pc.struct_field(parts, "suffix"), empty
    else:
        version, suffix, extension = (
            pa.repeat(pa.scalar(0, pa.int64()), rows),
            empty,
            pc.struct_field(parts, "extension"),
        )
    names = ("file_id", "instant", "token")
    columns = [pc.struct_field(parts, name) for name in names]
    flags = pa.repeat(pa.scalar(is_log), rows)
    return pa.table(
        [*(listing.column(name) for name in LISTING.names), *columns, version, flags, suffix, extension],
        schema=DATA_FILES,
    )


def _require_tokens(logs: pa.Table) -> None:
    # An optional group that did not match is an empty string.
    old = pc.indices_nonzero(pc.equal(_column(logs, "write_token"), ""))
    if len(old):
        row = old[0].as_py()
        name, partition = logs.column("name")[row].as_py(), logs.column("partition")[row].as_py()
        raise UnsupportedError(
            f"log file {name!r} in partition {partition!r} has no write token; compact the table with Hudi first",
            name=name,
            partition=partition,
        )
