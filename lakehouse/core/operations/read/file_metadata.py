"""Reads what commits and footers state about files: the schema of the files and ranges of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base_reader import BaseFileReader
from lakehouse.core.files.base_writer import column_ranges
from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.key_ranges import RANGES_KEY, decode_ranges, typed_ranges
from lakehouse.core.planning.predicate import Range
from lakehouse.core.planning.ranges import Flags
from lakehouse.core.state.data_files import file_paths, one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.predicate import Predicate, columns_of

_MAX_ARCHIVED_COMMITS = 2_048
#: A footer is read only for a file so large that reading its rows costs more, and only for few files.
_FOOTER_WORTH_BYTES = 1024 * 1024
_MAX_FOOTERS = 256
_READERS = 8

#: Ranges of the values of columns, by path of the file.
FileRanges = dict[str, Mapping[str, Range]]


def schemas_and_ranges(
    table: LoadedTable, slices: FileSlices, schema: pa.Schema, *, needs_ranges: bool
) -> tuple[dict[str, str], FileRanges]:
    """Return the Avro schemas of the slices' files by instant, and column ranges by path, from the active timeline.

    Args:
        table: The loaded table.
        slices: The slices that the read may need.
        schema: The data columns of the table.
        needs_ranges: Whether to decode column ranges; only a read with a condition uses them.
    """
    instants = instants_of(slices)
    schemas: dict[str, str] = {}
    ranges: FileRanges = {}
    writes = [instant for instant in table.timeline.writes() if instant.requested in instants]
    for instant, metadata in table.store.commits(writes):
        if metadata.extra.get("schema"):
            schemas[instant.requested] = metadata.extra["schema"]
        if needs_ranges:
            ranges.update(decode_ranges(metadata.extra.get(RANGES_KEY), _all_columns(schema)))
    return schemas, ranges


def archived_ranges(table: LoadedTable, slices: FileSlices, schema: pa.Schema) -> FileRanges:
    """Return the column ranges that archived commits state about files of these slices, by path.

    Of more than 2,048 commits only the newest are read.
    """
    active = {instant.requested for instant in table.timeline.writes()}
    archived = sorted(instants_of(slices) - active, reverse=True)[:_MAX_ARCHIVED_COMMITS]
    ranges: FileRanges = {}
    for text in table.store.archived_extras(archived, RANGES_KEY).values():
        ranges.update(decode_ranges(text, _all_columns(schema)))
    return ranges


def footer_ranges(table: LoadedTable, slices: FileSlices, unknown: Flags, schema: pa.Schema) -> FileRanges:
    """Return the column ranges in the footers of base files, by path.

    Args:
        table: The loaded table.
        slices: The slices that other information has not excluded.
        unknown: For each file of the slices, whether a range that the condition needs is unknown.
        schema: The data columns of the table.

    Returns:
        The ranges; empty if many files would have to be opened. Small files are not opened, because reading their rows
        costs as much, and neither is a base file beside a log file without ranges, because its slice is read anyway.
    """
    files = slices.files
    is_log = one_array(files.column("is_log")).to_numpy(zero_copy_only=False).astype(bool)
    size = one_array(files.column("size_bytes")).to_numpy()
    has_unknown_log = slices.any_file(is_log & unknown)[slices.slice_of_file]
    worth = ~is_log & unknown & ~has_unknown_log & (size >= _FOOTER_WORTH_BYTES)
    if not worth.any() or np.count_nonzero(worth) > _MAX_FOOTERS:
        return {}
    paths = file_paths(files.filter(pa.array(worth))).to_pylist()

    def ranges_of(path: str) -> Mapping[str, Range]:
        reader = BaseFileReader(table.env.storage, path)
        try:
            return typed_ranges(column_ranges(reader.statistics), _all_columns(schema))
        finally:
            reader.close()

    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(paths, pool.map(ranges_of, paths), strict=True))


def decided_by_path(table: LoadedTable, where: Predicate) -> bool:
    """Return whether partition paths decide the condition, so that ranges of columns cannot exclude more files."""
    keys = table.config.keys
    decided = {f for f, kind in zip(keys.partition_fields, keys.partition_types, strict=False) if kind == "SIMPLE"}
    return set(columns_of(where)) <= decided | {META_COLUMNS[3]}


def instants_of(slices: FileSlices) -> set[str]:
    """Return the instants in the names of the files of slices."""
    return set(pc.unique(slices.files.column("instant")).to_pylist())


def _all_columns(schema: pa.Schema) -> pa.Schema:
    return with_meta_fields(schema) if META_COLUMNS[0] not in schema.names else schema
