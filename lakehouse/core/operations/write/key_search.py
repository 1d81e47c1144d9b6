"""Plan the search for staged keys: the index, the file slices that it searches, and the logs that it has to read.

A record index locates the keys first, in tasks near the data, so only the partitions of these locations are listed.
Without a usable record index the keys are searched by the simple index of the same scope, as in Hudi.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.base.hash_ranges import divide_run
from lakehouse.core.files.keys.located_keys import locate, plan_locating
from lakehouse.core.files.log.log_reader import OPERATION
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.index.hash.resizes import PendingResize, RingResize
from lakehouse.core.index.protocol import Groups, Index, IndexSetup
from lakehouse.core.index.registry import create_index
from lakehouse.core.index.write_tasks import LocatedRows, Sizing, StagedEntry, StagedRun
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.operations.load.hashing import require_rings
from lakehouse.core.operations.load.record_locations import with_record_locations
from lakehouse.core.operations.load.resizes import ring_resizes
from lakehouse.core.operations.load.slices import Listing, load_listing, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.write.attempt import WriteAttempt
from lakehouse.core.operations.write.key_filters import ROWS_HERE, THREADS, with_excluded_files
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.model.files import FileSlice
from lakehouse.model.index_type import BLOOM, GLOBAL_BLOOM, GLOBAL_SIMPLE, SIMPLE, IndexType

logger = logging.getLogger(__name__)

#: Keys that a record index locates in any case, and keys that a look-up reads from files in the time of one location.
_FEW_KEYS, _KEYS_READ_FOR_ONE = 10_000, 50

Located = Mapping[Group, tuple[LocatedRows, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """How the keys of a batch are found.

    Attributes:
        index: The index of the write.
        runs: The staged rows as the index needs them.
        listing: The listed slices; None for an overwrite, which reads no stored row.
        read_logs_of: File groups whose logs have to be read, too.
        resizes: The pending resizes of buckets for which the index copies rows.
    """

    index: Index
    runs: Sequence[StagedRun]
    listing: Listing | None
    read_logs_of: Groups
    resizes: Sequence[PendingResize] = ()

    @property
    def slices(self) -> Sequence[FileSlice]:
        """The slices that the index searches, and that may get inserts."""
        return () if self.listing is None else self.listing.slices


def plan_search(attempt: WriteAttempt, runs: Sequence[StagedRun]) -> KeySearch:
    """Return how the keys of the staged rows are found."""
    table, context, index_type = attempt.table, attempt.context, attempt.prepared.index_type
    looks_up = attempt.request.looks_up_keys
    if index_type.stores_locations:
        search = _search_locations(attempt, runs) if looks_up and not _reads_all_keys(attempt, runs) else None
        if search is not None:
            return search
        index_type = GLOBAL_SIMPLE if index_type.is_global else SIMPLE
    setup, runs = _setup(attempt, index_type, runs)
    if attempt.request.replaces:
        index = create_index(index_type, setup)
        return KeySearch(index=index, runs=runs, listing=None, read_logs_of=frozenset())
    batch = {e.partition for run in runs for e in run.entries}
    partitions = context.layout.searched(batch) if looks_up else sorted(batch)
    # The metadata table also names files that were lost, whose rows are to be skipped.
    listing = load_listing(table, partitions, on_storage=attempt.policies.write.skips_damage)
    changed = _groups_with_changed_keys(table, context, listing.slices)
    if looks_up and index_type.name in (BLOOM.name, GLOBAL_BLOOM.name):
        setup = with_excluded_files(attempt, setup, [e for run in runs for e in run.entries], listing.slices)
    index = create_index(index_type, setup)
    return KeySearch(index=index, runs=runs, listing=listing, read_logs_of=changed, resizes=setup.resizes)


def _reads_all_keys(attempt: WriteAttempt, runs: Sequence[StagedRun]) -> bool:
    """Return whether it costs less to read the keys of all files than to locate the keys of the batch.

    That is so on a local disk if the batch has a large part of the table's keys, and no log has to be merged.
    """
    table, context = attempt.table, attempt.context
    entries = [entry for run in runs for entry in run.entries]
    count = sum(entry.rows for entry in entries)
    if count < _FEW_KEYS or not attempt.is_local:
        return False
    partitions = None if attempt.prepared.index_type.is_global else sorted({entry.partition for entry in entries})
    slices = load_listing(table, partitions, on_storage=attempt.policies.write.skips_damage).slices
    if count * _KEYS_READ_FOR_ONE <= _rows_of(table, slices):
        return False
    return not _groups_with_changed_keys(table, context, slices)


def _rows_of(table: LoadedTable, slices: FileSlices) -> float:
    """Return about how many rows the base files have, by the footer of the largest one."""
    sizes = slices.base_sizes
    if not sizes.any():
        return 0.0
    largest = slices[int(sizes.argmax())].base
    assert largest is not None, "a slice with a size has a base file"
    with table.env.storage.open_input(largest.path) as source:
        rows = int(pq.read_metadata(source).num_rows)
    return float(sizes.sum()) * rows / largest.size_bytes


def _search_locations(attempt: WriteAttempt, runs: Sequence[StagedRun]) -> KeySearch | None:
    """Return the search by the record index; None, with a warning, if the table has no usable one."""
    table, context, index_type = attempt.table, attempt.context, attempt.prepared.index_type
    entries = [entry for run in runs for entry in run.entries]
    by_partition = not index_type.is_global
    located = with_record_locations(
        table,
        lambda metadata: _located(attempt, metadata, entries, by_partition=by_partition),
        by_partition=by_partition,
    )
    if located is None:
        logger.warning(
            "%s: %s has no record index to use; the keys are searched in the files, as %s does",
            table.env.storage.root,
            index_type.name,
            GLOBAL_SIMPLE.name if index_type.is_global else SIMPLE.name,
        )
        return None
    partitions = sorted({e.partition for e in entries} | {partition for partition, _ in located})
    listing = load_listing(table, partitions, on_storage=attempt.policies.write.skips_damage)
    found = listing.slices.in_groups(located)
    if len(found) < len(located):
        missing = located.keys() - {(s.partition, s.file_id) for s in found}
        logger.warning(
            "%s: the record index locates keys in file group %s of %r, which the table does not have; the keys are "
            "searched in the files. Run `lakehouse metadata rebuild`",
            table.env.storage.root,
            *reversed(min(missing)),
        )
        return None
    # Stored values are read where they decide whether a row moves, or complete the incoming row.
    trusts = table.config.is_merge_on_read and not context.move_partitions and not context.incoming.keeps
    changed: Groups = frozenset()
    if not trusts:
        changed = _groups_with_changed_keys(table, context, found)
    setup, runs = _setup(attempt, index_type, runs)
    index = create_index(index_type, replace(setup, located=located, trusts_locations=trusts))
    return KeySearch(index=index, runs=runs, listing=listing, read_logs_of=changed)


def _located(
    attempt: WriteAttempt, metadata: MetadataTable, entries: Sequence[StagedEntry], *, by_partition: bool
) -> Located:
    """Return the staged rows with a stored location, by file group."""
    tasks = plan_locating(entries, by_partition=by_partition)
    if sum(entry.rows for entry in entries) <= ROWS_HERE:
        found = LocalEngine(THREADS).run(partial(locate, attempt.context, metadata), tasks)
    else:
        found = attempt.engine.run(partial(locate, attempt.context, metadata.task_locations()), tasks, light=True)
    groups: dict[Group, tuple[LocatedRows, ...]] = {}
    for keys in found:
        for group, rows in keys.groups.items():
            groups[group] = (*groups.get(group, ()), rows)
    return groups


def _groups_with_changed_keys(table: LoadedTable, context: WriteContext, slices: FileSlices) -> frozenset[Group]:
    """Return the groups whose logs may add or remove keys, or change the values that choose between partitions."""
    logged = list(slices.filter(slices.log_counts > 0))
    if not logged:
        return frozenset()
    require_mergeable(table.config)
    marks = {DELETED_COLUMN, OPERATION, table.config.merge_rule.delete_field}
    if context.layout.global_keys or marks & set(context.schema.names):
        return frozenset((s.partition, s.file_id) for s in logged)
    instants = {log.instant for s in logged for log in s.logs}
    written = table.store.files(i for i in table.timeline.writes() if i.requested in instants)
    # A log that only updates records keeps the set of keys of its base file.
    same_keys = pc.and_(pc.equal(written["num_deletes"], 0), pc.equal(written["num_inserts"], 0))
    updates_only = frozenset(written["path"].filter(same_keys).to_pylist())
    return frozenset((s.partition, s.file_id) for s in logged if any(log.path not in updates_only for log in s.logs))


def _setup(
    attempt: WriteAttempt, index_type: IndexType, runs: Sequence[StagedRun]
) -> tuple[IndexSetup, Sequence[StagedRun]]:
    """Return the setup of the index that finds the keys of this write, and the runs as the index needs them."""
    context, prepared = attempt.context, attempt.prepared
    fixed_ids = prepared.non_blocking and index_type.hashes_keys
    rings = dict[str, Ring]()
    resizes: Sequence[PendingResize] = prepared.resizes if index_type.hashes_keys else ()
    if context.layout.hash_order:
        partitions = {entry.partition for run in runs for entry in run.entries}
        rings = require_rings(attempt.table, partitions, attempt.policies.index.buckets)
        future: tuple[RingResize, ...] = ()
        if attempt.request.replaces:
            rings = {partition: ring.renewed(context.instant) for partition, ring in rings.items()}
        else:
            future = ring_resizes(attempt.table, rings)
        cuts = _cuts([rings, *(resize.rings for resize in future)])
        resizes = future
        runs = attempt.engine.run(partial(divide_run, context, cuts), runs, light=True)
    setup = IndexSetup(
        sizing=Sizing(
            rows_per_file=context.rows_per_file,
            bytes_per_row=context.bytes_per_row,
            max_file_bytes=context.policy.max_file_bytes,
            small_file_bytes=context.policy.small_file_bytes,
            tasks=attempt.engine.parallelism if attempt.policies.spread.min_bytes else 1,
            least_rows=max(int(attempt.policies.spread.min_bytes / context.bytes_per_row), 1),
        ),
        looks_up=attempt.request.looks_up_keys,
        appends=prepared.table.config.is_merge_on_read and not attempt.request.replaces,
        buckets=context.layout.buckets,
        new_in_logs=prepared.new_buckets_in_logs,
        fixed_ids=fixed_ids,
        rings=rings,
        resizes=tuple(resizes),
        replaced=frozenset(load_visible(attempt.table).replaced) if fixed_ids else frozenset(),
        owners={} if prepared.spread is None else prepared.spread.groups,
    )
    return setup, runs


def _cuts(states: Iterable[Mapping[str, Ring]]) -> dict[str, tuple[int, ...]]:
    """Return the hash values at which the rows of each partition are divided, for all rings of the partition."""
    cuts: dict[str, tuple[int, ...]] = {}
    for rings in states:
        for partition, ring in rings.items():
            cuts[partition] = (*cuts.get(partition, ()), *(node.value for node in ring.metadata.nodes))
    return cuts
