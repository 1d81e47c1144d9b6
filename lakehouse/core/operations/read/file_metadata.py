"""Reads the facts about files in commits and footers: the schema of the files and their column ranges."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.base_writer import column_ranges
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.key_ranges import RANGES_KEY, stored_ranges
from lakehouse.core.planning.predicate import Range
from lakehouse.core.planning.ranges import Flags
from lakehouse.core.state.data_files import file_paths, one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.predicate import Predicate, columns_of

_MAX_ARCHIVED_COMMITS = 2_048
#: Limits on reading footers: minimum file size, below which reading the rows costs less, and maximum number of files.
_FOOTER_WORTH_BYTES = 1024 * 1024
_MAX_FOOTERS = 256
_READERS = 8
#: Number of files after which no further commit is read for comparison.
_MAX_COMPARED_FILES = 20_000

#: Column ranges by path of the file, with the values that commits store (see `key_ranges`).
FileRanges = dict[str, Mapping[str, Range]]


def compared_commits(table: LoadedTable, slices: FileSlices) -> dict[str, str]:
    """Read commits that wrote files of the slices, and return the Avro schemas that they declare, by instant.

    A read without a metadata table compares them with the listing (see `damage`). The newest commits are read first, up
    to a maximum number of files.
    """
    instants = instants_of(slices)
    writes = [instant for instant in table.timeline.writes() if instant.requested in instants]
    commits = table.store.known_commits(writes)
    loaded = {instant.requested for instant, _ in commits}
    stats = sum(len(metadata.stats) for _, metadata in commits)
    missing = [instant for instant in reversed(writes) if instant.requested not in loaded]
    while missing and stats < _MAX_COMPARED_FILES:
        # Number of commits that probably contain no more files than the limit.
        expected = max(stats // max(len(commits), 1), 1)
        count = min(max((_MAX_COMPARED_FILES - stats) // expected, 1), _READERS) if commits else 1
        newest, missing = table.store.commits(missing[:count]), missing[count:]
        commits += newest
        stats += sum(len(metadata.stats) for _, metadata in newest)
    return {instant.requested: text for instant, metadata in commits if (text := metadata.extra.get("schema"))}


def commit_ranges(table: LoadedTable, slices: FileSlices) -> FileRanges:
    """Return the column ranges of these slices' files from commits of the active timeline, by path."""
    paths = _paths(table, slices)
    writes = [instant for instant in table.timeline.writes() if instant.requested in paths]
    ranges: FileRanges = {}
    for instant, metadata in table.store.commits(writes):
        ranges.update(stored_ranges(metadata.extra.get(RANGES_KEY), paths[instant.requested]))
    return ranges


def archived_ranges(table: LoadedTable, slices: FileSlices) -> FileRanges:
    """Return the column ranges of these slices' files from archived commits, by path.

    Of more than 2,048 commits only the newest are read.
    """
    paths = _paths(table, slices)
    active = {instant.requested for instant in table.timeline.writes()}
    archived = sorted(paths.keys() - active, reverse=True)[:_MAX_ARCHIVED_COMMITS]
    ranges: FileRanges = {}
    for requested, text in table.store.archived_extras(archived, RANGES_KEY).items():
        ranges.update(stored_ranges(text, paths[requested]))
    return ranges


def _paths(table: LoadedTable, slices: FileSlices) -> dict[str, list[str]]:
    """Return the file paths of slices by the instant in the file name."""
    files = slices.files
    if table.config.layout.appends_to_logs:
        # A later commit may have appended to a log file of this version.
        files = files.filter(pc.invert(files.column("is_log")))
    instants = one_array(files.column("instant"))
    paths = file_paths(files)
    return {
        requested: paths.filter(pc.equal(instants, requested)).to_pylist()
        for requested in pc.unique(instants).to_pylist()
    }


def footer_ranges(table: LoadedTable, slices: FileSlices, unknown: Flags) -> FileRanges:
    """Return the column ranges in the footers of base files, by path.

    Args:
        table: The loaded table.
        slices: The slices that other information has not excluded.
        unknown: For each file of the slices, whether a range that the condition needs is unknown.

    Returns:
        The ranges; empty if many files would have to be opened. Small files are not opened, because reading their rows
        costs as much, and neither is a base file whose log file has no ranges, because its slice is read anyway.
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
            ranges = column_ranges(reader.statistics)
            # Some writers store 0 as the bounds of a float column that contains NaN.
            return {name: bounds for name, bounds in ranges.items() if not _is_zero(bounds)}
        finally:
            reader.close()

    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(paths, pool.map(ranges_of, paths), strict=True))


def _is_zero(bounds: Range) -> bool:
    return isinstance(bounds[0], float) and bounds[0] == bounds[1] == 0


def decided_by_path(table: LoadedTable, where: Predicate) -> bool:
    """Return whether partition paths decide the condition, so that ranges of columns cannot exclude more files.

    With a global index only conditions on the path itself are decided, see `TableConfig.path_keys`.
    """
    keys = table.config.path_keys
    decided = {f for f, kind in zip(keys.partition_fields, keys.partition_types, strict=False) if kind == "SIMPLE"}
    return set(columns_of(where)) <= decided | {META_COLUMNS[3]}


def instants_of(slices: FileSlices) -> set[str]:
    """Return the instants in the file names of slices."""
    return set(pc.unique(slices.files.column("instant")).to_pylist())
