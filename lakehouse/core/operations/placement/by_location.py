"""Placement by stored locations: RECORD_INDEX and RECORD_LEVEL_INDEX (MDT-4).

The record index in the metadata table stores the file group of each key. It locates the keys first, in tasks near the
data, so only the partitions of these locations are listed. Without a usable record index the keys are searched by the
simple index of the same scope, as in Hudi.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow.parquet as pq

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.keys.located_keys import locate, plan_locating
from lakehouse.core.index.protocol import Groups
from lakehouse.core.index.write_tasks import LocatedRows, StagedEntry, StagedRun
from lakehouse.core.metadata.partitions.record_index import RECORD_INDEX, is_partitioned_by
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.operations.load.commits import KeyScope, key_scope
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.by_files import ByFiles, groups_with_changed_keys
from lakehouse.core.operations.placement.protocol import ROWS_HERE, THREADS, KeySearch, PreparedWrite
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group
from lakehouse.model.commit import Operation
from lakehouse.model.index_type import GLOBAL_SIMPLE, SIMPLE

logger = logging.getLogger(__name__)

#: Number of keys up to which the record index is always used, and number of keys that a file look-up reads in the time
#: of one index look-up.
_FEW_KEYS, _KEYS_READ_FOR_ONE = 10_000, 50

T = TypeVar("T")
Located = Mapping[Group, tuple[LocatedRows, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLocation(ByFiles):
    """Searches the keys of a batch in the file groups of their stored locations.

    `files` is the placement by files with the same scope. It is used if there are no locations, or if it is cheaper.
    """

    files: ByFiles

    def search(self, write: PreparedWrite, runs: Sequence[StagedRun]) -> KeySearch:
        """Search the file groups of stored locations if the write looks up keys; otherwise search like `by_files`.

        Deletes search the files if keys may be repeated, because the index would find one of the rows.
        """
        search, request = None, write.request
        is_exact = request.operation is not Operation.DELETE or _has_unique_keys(write, is_global=self.global_keys)
        if request.looks_up_keys and is_exact and not _reads_all_keys(write, runs):
            search = search_locations(self, write, runs)
        return self.files.search(write, runs) if search is None else search


def search_locations(placement: ByLocation, write: PreparedWrite, runs: Sequence[StagedRun]) -> KeySearch | None:
    """Return the search by the record index. If the table has no usable record index, log a warning and return None."""
    table, context = write.table, write.context
    entries = [entry for run in runs for entry in run.entries]
    by_partition = not placement.global_keys

    located = with_record_locations(
        table,
        lambda metadata: _located(write, metadata, entries, by_partition=by_partition),
        by_partition=by_partition,
    )
    if located is None:
        logger.warning(
            "%s: %s has no record index to use; the keys are searched in the files, as %s does",
            table.env.storage.root,
            write.policies.index.index_type.name,
            (SIMPLE if by_partition else GLOBAL_SIMPLE).name,
        )
        return None
    listing = write.listing(sorted({e.partition for e in entries} | {partition for partition, _ in located}))
    slices = listing.slices.in_groups(located)
    if len(slices) < len(located):
        missing = located.keys() - {(s.partition, s.file_id) for s in slices}
        logger.warning(
            "%s: the record index locates keys in file group %s of %r, which the table does not have; the keys are "
            "searched in the files. Run `lakehouse metadata rebuild`",
            table.env.storage.root,
            *reversed(min(missing)),
        )
        return None
    # Stored values are read if they decide whether a row moves, or if they complete the incoming row.
    trusts = table.config.is_merge_on_read and not context.move_partitions and not context.incoming.keeps
    changed: Groups = frozenset() if trusts else groups_with_changed_keys(table, context, slices)
    index = placement.index(replace(write.setup, located=located, trusts_locations=trusts))
    return KeySearch(index=index, runs=runs, listing=listing, read_logs_of=changed)


def with_record_locations(table: LoadedTable, find: Callable[[MetadataTable], T], *, by_partition: bool) -> T | None:
    """Return the result of `find` for the record index of the table, or of each partition.

    Returns None if the table has no usable record index. A damaged one is logged as a warning.
    """

    def of_metadata(metadata: MetadataTable) -> T | None:
        if is_partitioned_by(metadata.definitions.get(RECORD_INDEX)) != by_partition:
            return None
        return find(metadata)

    return from_metadata(table, RECORD_INDEX, of_metadata)


def _has_unique_keys(write: PreparedWrite, *, is_global: bool) -> bool:
    """Return whether each key is in one row, or the options state that it is."""
    scope = KeyScope.TABLE if is_global else KeyScope.PARTITION
    return write.policies.indexing.trusts_keys or key_scope(write.table).covers(scope)


def _reads_all_keys(write: PreparedWrite, runs: Sequence[StagedRun]) -> bool:
    """Return whether reading the keys of all files costs less than locating the keys of the batch.

    Reading costs less on a local disk if the batch contains a large part of the table's keys and no log is merged.
    """
    table, context = write.table, write.context
    entries = [entry for run in runs for entry in run.entries]
    count = sum(entry.rows for entry in entries)
    if count < _FEW_KEYS or not write.is_local:
        return False
    slices = write.listing(context.layout.searched(entry.partition for entry in entries)).slices
    if count * _KEYS_READ_FOR_ONE <= _rows_of(table, slices):
        return False
    return not groups_with_changed_keys(table, context, slices)


def _rows_of(table: LoadedTable, slices: FileSlices) -> float:
    """Estimate the number of rows in base files from the footer of the largest one."""
    sizes = slices.base_sizes
    if not sizes.any():
        return 0.0
    largest = slices[int(sizes.argmax())].base
    assert largest is not None, "only slices with a base file have a known size"
    with table.env.storage.open_input(largest.path) as source:
        rows = int(pq.read_metadata(source).num_rows)
    return float(sizes.sum()) * rows / largest.size_bytes


def _located(
    write: PreparedWrite, metadata: MetadataTable, entries: Sequence[StagedEntry], *, by_partition: bool
) -> Located:
    """Return the staged rows with a stored location, by file group."""
    tasks = plan_locating(entries, by_partition=by_partition)
    if sum(entry.rows for entry in entries) <= ROWS_HERE:
        located = LocalEngine(THREADS).run(partial(locate, write.context, metadata), tasks)
    else:
        located = write.engine.run(partial(locate, write.context, metadata.task_locations()), tasks, light=True)
    groups: dict[Group, tuple[LocatedRows, ...]] = {}
    for keys in located:
        for group, rows in keys.groups.items():
            groups[group] = (*groups.get(group, ()), rows)
    return groups
