"""Prune file slices step by step with the metadata of their files (MDT-14).

A step checks the slices that the steps before it left and returns which of them may have matching rows. To add a step,
write a function of the type `PruneStep` and add it to `STEPS`.

    paths              values in partition paths, where the listing was not limited by them
    column_stats       column ranges in the metadata table
    expression_index   ranges or bloom filters of function results in the metadata table
    bloom_filters      bloom filters of record keys in the metadata table
    commits            column ranges in commits of the active timeline, if the metadata table has none
    archive            column ranges in archived commits, for files whose range is not known yet
    footers            column ranges in Parquet footers, if nothing else is known
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.keys.key_lookup import CandidateKeys
from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.metadata.read.table import BLOOM_FILTERS, MetadataTable
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.expression_ranges import slices_by_expression
from lakehouse.core.operations.read.file_metadata import (
    FileRanges,
    archived_ranges,
    commit_ranges,
    decided_by_path,
    footer_ranges,
)
from lakehouse.core.operations.read.metadata_ranges import file_ranges
from lakehouse.core.operations.read.partitions import keys_of
from lakehouse.core.planning.ranges import ColumnRanges, Flags
from lakehouse.core.planning.scan import PlanStep, files_that_may_match, recorded_ranges, unknown_files
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.display import count_text
from lakehouse.model.predicate import Predicate

#: Maximum number of filters that are read for one condition, and together. A filter takes 150 KB or more. A plan would
#: otherwise read more than 100 MB.
_MOST_FILTERS, _AT_ONCE = 512, 64
#: Maximum number of record keys that are looked up in filters. More keys exclude hardly any file.
_MOST_FILTER_KEYS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneInput:
    """The input of the pruning steps.

    Attributes:
        table: The loaded table.
        where: The condition on rows.
        schema: The data columns of the table.
        known: Column ranges that steps have read so far, by path; a step adds those that it reads.
        is_newest: Whether the read returns the newest version of the table; indexes describe no other version.
        stated: Column ranges from the metadata table; with them no commit and no footer is read.
    """

    table: LoadedTable
    where: Predicate
    schema: pa.Schema
    known: FileRanges = field(default_factory=dict)
    is_newest: bool = True
    stated: dict[str, ColumnRanges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of a step: for each slice whether it may have matching rows, and the reason of the step."""

    keep: Flags
    reason: str


#: Returns None if the step has nothing to check.
PruneStep = Callable[[PruneInput, FileSlices], Pruned | None]


def by_paths(given: PruneInput, slices: FileSlices) -> Pruned | None:
    """Prune by the values in partition paths, where the listing was not limited to the partitions that can match."""
    full = with_meta_fields(given.schema)
    keep = slices.any_file(files_that_may_match(slices.files, {}, given.where, full, given.table.config.path_keys))
    return None if keep.all() else Pruned(keep, f"values in paths exclude {count_text(_excluded(keep), 'slice')}")


def by_column_stats(given: PruneInput, slices: FileSlices) -> Pruned | None:
    """Prune by column ranges in the metadata table."""
    if decided_by_path(given.table, given.where):
        return None
    full = with_meta_fields(given.schema)
    ranges = file_ranges(given.table, slices, given.where, full)
    if ranges is None:
        return None
    given.stated.update(ranges)
    keep = slices.any_file(files_that_may_match(slices.files, ranges, given.where, full, given.table.config.path_keys))
    return Pruned(keep, f"column ranges in the metadata table exclude {count_text(_excluded(keep), 'slice')}")


def by_expression_indexes(given: PruneInput, slices: FileSlices) -> Pruned | None:
    """Prune by the indexes on expressions that the condition uses."""
    matches = slices_by_expression(given.table, slices, given.where, with_meta_fields(given.schema))
    if matches is None:
        return None
    keep, names = matches
    return Pruned(keep, f"{', '.join(names)}: results of functions exclude {count_text(_excluded(keep), 'slice')}")


def by_bloom_filters(given: PruneInput, slices: FileSlices) -> Pruned | None:
    """Prune by the bloom filters of record keys, if the condition can only hold for certain keys."""
    keys = keys_of(given.table, given.where, with_meta_fields(given.schema))
    matches = None if keys is None else slices_by_key(given.table, slices, keys)
    if matches is None:
        return None
    keep, filter_count = matches
    filters, excluded = count_text(filter_count, "bloom filter"), count_text(_excluded(keep), "slice")
    return Pruned(keep, f"{filters} of record keys exclude {excluded}")


def by_commit_ranges(given: PruneInput, slices: FileSlices) -> Pruned | None:
    """Prune by column ranges in commits of the active timeline."""
    if given.stated or decided_by_path(given.table, given.where):
        return None
    given.known.update(commit_ranges(given.table, slices))
    return _by_ranges(given, slices, "commits on the active timeline")


def by_archived_ranges(given: PruneInput, slices: FileSlices) -> Pruned | None:
    """Prune by column ranges in archived commits."""
    if given.stated or decided_by_path(given.table, given.where):
        return None
    ranges = archived_ranges(given.table, slices)
    given.known.update({path: bounds for path, bounds in ranges.items() if path not in given.known})
    return _by_ranges(given, slices, "archived commits") if ranges else None


def by_footers(given: PruneInput, slices: FileSlices) -> Pruned | None:
    """Prune by column ranges in Parquet footers of large files whose ranges are not known otherwise."""
    if given.stated or decided_by_path(given.table, given.where):
        return None
    full = with_meta_fields(given.schema)
    recorded = recorded_ranges(slices.files, given.known, given.where, full)
    rows = slices.files.num_rows
    unknown = unknown_files(recorded, rows) if recorded else unknown_files({}, rows) | True
    ranges = footer_ranges(given.table, slices, unknown)
    if not ranges:
        return None
    given.known.update(ranges)
    return _by_ranges(given, slices, f"footers of {count_text(len(ranges), 'base file')}")


STEPS: tuple[tuple[str, PruneStep], ...] = (
    ("paths", by_paths),
    ("column_stats", by_column_stats),
    ("expression_index", by_expression_indexes),
    ("bloom_filters", by_bloom_filters),
    ("commits", by_commit_ranges),
    ("archive", by_archived_ranges),
    ("footers", by_footers),
)


def prune(
    given: PruneInput, slices: FileSlices, steps: Iterable[tuple[str, PruneStep]] = STEPS
) -> tuple[FileSlices, tuple[PlanStep, ...]]:
    """Return the slices that may have matching rows, and the result of each step."""
    explained: list[PlanStep] = []
    for name, step in steps:
        if not len(slices):
            break
        pruned = step(given, slices)
        if pruned is not None:
            slices = slices.filter(pruned.keep)
            explained.append(PlanStep.of(name, pruned.reason, slices))
    return slices, tuple(explained)


def _by_ranges(given: PruneInput, slices: FileSlices, source: str) -> Pruned:
    full = with_meta_fields(given.schema)
    recorded = recorded_ranges(slices.files, given.known, given.where, full)
    keep = slices.any_file(
        files_that_may_match(slices.files, recorded, given.where, full, given.table.config.path_keys)
    )
    return Pruned(keep, f"column ranges in {source} exclude {count_text(_excluded(keep), 'slice')}")


def _excluded(keep: Flags) -> int:
    return len(keep) - int(keep.sum())


def slices_by_key(table: LoadedTable, slices: FileSlices, keys: pa.Array) -> tuple[Flags, int] | None:
    """Return which slices may contain one of the record keys, and the number of filters; None if there are no filters.

    The filter of a file never changes, so it is valid for every version of the table. A file without a filter excludes
    nothing. A slice with log files stays, because its logs may have keys that its base file lacks. Tables with more
    files need a record index, which finds the file groups of the keys.
    """
    if not len(keys) or len(keys) > _MOST_FILTER_KEYS or len(slices) < 2 or slices.files.num_rows > _MOST_FILTERS:
        return None
    if not pc.all(pc.string_is_ascii(keys)).as_py():
        # Not every writer encodes non-ASCII characters as UTF-8.
        return None
    return from_metadata(table, BLOOM_FILTERS, lambda metadata: _by_filters(metadata, slices, keys))


def _by_filters(metadata: MetadataTable, slices: FileSlices, keys: pa.Array) -> tuple[Flags, int] | None:
    candidates = CandidateKeys(pa.chunked_array([keys]))
    files = slices.files.select(["partition", "name"])
    places = {place: number for number, place in enumerate(zip(*files.to_pydict().values(), strict=True))}
    keep = np.ones(files.num_rows, np.bool_)
    filters = 0
    for start in range(0, files.num_rows, _AT_ONCE):
        rows = metadata.bloom_filters(files.slice(start, _AT_ONCE))
        names = zip(*(rows.column(name).to_pylist() for name in ("partition", "name", "type")), strict=True)
        for number, (partition, name, kind) in enumerate(names):
            text = rows.column("filter")[number].as_py()
            may_have = candidates.of_filter(f"{partition}/{name}", text, kind)
            if may_have is not None:
                keep[places[partition, name]] = bool(may_have.any())
                filters += 1
    return (slices.any_file(keep), filters) if filters else None
