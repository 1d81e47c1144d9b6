"""Loads the statistics of a table's partitions from one cached object and the commits completed since it was written.

    read the object -> fold the metadata of later commits -> statistics -> replace the object if no other process did

Data files are not listed if all later commits are on the active or archived timeline and no folded commit was undone
(see lakehouse.core.state.partition_statistics). Otherwise the statistics are rebuilt: all commits of both timelines are
folded, and files that no commit describes are found by a listing and opened to count their rows. The object is a cache:
if it cannot be read, it is rebuilt; if it cannot be written, the operation continues without it.

Without completion times (version 6), commits cannot be folded in their order. The statistics are then made from a
listing in each call, and are not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME, parse_partition_metadata
from lakehouse.core.format.partition_statistics import (
    TRACKED_FILES,
    TableStatistics,
    decode_statistics,
    encode_statistics,
)
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.slices import load_all_slices, load_slices, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.data_files import file_paths, members, one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import VisibleTimeline, first_write
from lakehouse.core.state.partition_statistics import commits_to_fold, fold, parsed_files
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.file_deletions import LOG_INFIX
from lakehouse.errors import CorruptTableError, LakehouseError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Instant, Timeline
from lakehouse.model.statistics import PartitionLife

logger = logging.getLogger(__name__)

STATISTICS = ".hoodie/.lakehouse/statistics/partitions.parquet"
_READERS = 8
#: Number of rows in a base file whose commit is not available.
_UNKNOWN = -1


def load_statistics(table: LoadedTable, *, save: bool = True, rebuild: bool = False) -> TableStatistics:
    """Return the partition statistics as of `table`, or as of a later state that another process stored.

    Args:
        table: The loaded table.
        save: Store the statistics, so that the next call folds fewer commits.
        rebuild: Ignore the stored statistics and list the table.

    Raises:
        RetryableError: A commit was rolled back or archived during the call.
    """
    if not table.config.layout.has_completion_times:
        return _listed(table)
    stored, tag = _stored(table)
    if stored.latest > table.timeline.latest_time():
        # Another process stored statistics of a later state. Reload, because its commits would otherwise seem to be
        # rolled back.
        table = table.reload()
    missing = None if rebuild else _missing(table, stored)
    if missing is None:
        statistics = _rebuilt(table)
    elif missing:
        statistics = fold(stored, table.store.commits(missing), table.timeline)
    else:
        return stored
    if save:
        _save(table, statistics, tag)
    return statistics


def _missing(table: LoadedTable, stored: TableStatistics) -> tuple[Instant, ...] | None:
    """Return the commits to fold, including archived ones, or None if a listing is needed."""
    missing = commits_to_fold(stored, table.timeline)
    if missing is not None or not stored.instants:
        return missing
    archived = archived_writes(table, requested_from=min(stored.instants))
    if not archived:
        return None
    return commits_to_fold(stored, Timeline((*archived, *table.timeline)), whole=True)


def _stored(table: LoadedTable) -> tuple[TableStatistics, str | None]:
    try:
        data, tag = table.env.storage.get_tagged(STATISTICS)
    except NotFoundError:
        return TableStatistics(), None
    try:
        statistics = decode_statistics(data)
        parsed_files(statistics.files)
        return statistics, tag
    except CorruptTableError as error:
        logger.warning("%s: %s is rebuilt: %s", table.env.storage.root, STATISTICS, error)
        return TableStatistics(), tag


def _save(table: LoadedTable, statistics: TableStatistics, tag: str | None) -> None:
    data = encode_statistics(statistics, table.env.ids.uuid())
    try:
        if table.env.storage.replace_if(STATISTICS, data, tag) is None:
            logger.info("%s: another process updated the statistics", table.env.storage.root)
    except LakehouseError as error:
        # The stored statistics stay valid for their time; the next call continues from there.
        logger.warning("%s: the statistics were not saved: %s", table.env.storage.root, error)


def _rebuilt(table: LoadedTable) -> TableStatistics:
    logger.info("%s: the statistics of partitions are built from a listing", table.env.storage.root)
    archive = table.store.archived_commits(archived_writes(table).instants)
    whole = Timeline((*(instant for instant, _ in archive), *table.timeline))
    commits = [*archive, *table.store.commits(table.timeline.writes())]
    commits.sort(key=lambda pair: (pair[0].completion, pair[0].requested))
    committed = frozenset(instant.requested for instant, _ in commits)
    visible = load_visible(table)
    # Files of commits that are not available any more are found by the listing.
    old = _files_without_commit(load_all_slices(table, visible).slices, visible, committed)
    before = TableStatistics(files=old, lives=_lives_before(table, old, commits, first_write(whole)))
    statistics = fold(before, commits, table.timeline, complete=False)
    return replace(statistics, files=_counted(table.env.storage, statistics.files))


def _listed(table: LoadedTable) -> TableStatistics:
    """Return the statistics of a table without completion times, from a listing and all commits."""
    archive = table.store.archived_commits(archived_writes(table).instants)
    commits = [*archive, *table.store.commits(table.timeline.writes())]
    commits.sort(key=lambda pair: pair[0].requested)
    stats = [stat for _, metadata in commits for stat in metadata.stats]
    named = pa.array([stat.path for stat in stats], pa.string())
    visible = load_visible(table)
    listed = load_all_slices(table, visible).slices.files
    unnamed = listed.filter(pc.invert(members(file_paths(listed), named)))
    # The instant in a name stands for the completion time, which the lives of partitions do not need.
    old = pa.table(
        [*unnamed.select(TRACKED_FILES.names[:3]).columns, unnamed["instant"], pa.nulls(unnamed.num_rows, pa.int64())],
        schema=TRACKED_FILES,
    )
    first = first_write(Timeline(tuple(instant for instant, _ in commits)))
    before = TableStatistics(files=old, lives=_lives_before(table, old, commits, first))
    lives = fold(before, commits, table.timeline, complete=False).lives
    current = load_slices(table).files
    is_log = one_array(current["is_log"])
    added = [s.num_inserts - s.num_deletes if LOG_INFIX in s.path else s.num_writes for s in stats]
    # Several commits append to one log file on storages that can append.
    sums = pa.table({"path": named, "rows": pa.array(added, pa.int64())}).group_by("path").aggregate([("rows", "sum")])
    rows = one_array(sums["rows_sum"]).take(pc.index_in(file_paths(current), value_set=one_array(sums["path"])))
    rows = pc.coalesce(rows, pc.if_else(is_log, pa.scalar(0, pa.int64()), pa.scalar(_UNKNOWN, pa.int64())))
    columns = [*current.select(TRACKED_FILES.names[:3]).columns, current["instant"], rows]
    files = _counted(table.env.storage, pa.table(columns, schema=TRACKED_FILES))
    return TableStatistics(files=files, lives=lives, latest=table.timeline.latest_time())


def _files_without_commit(slices: FileSlices, visible: VisibleTimeline, committed: frozenset[str]) -> pa.Table:
    """Return the files of slices that no known commit wrote, with completion times that keep them in their slices."""
    files = slices.files
    instants = one_array(files.column("instant")).dictionary_encode()
    completions = pa.array([visible.completion(text) for text in instants.dictionary.to_pylist()], pa.string())
    completed = completions.take(instants.indices)
    base_instant = slices.base_instants.take(pa.array(slices.slice_of_file))
    rows = pc.if_else(files.column("is_log"), pa.scalar(0, pa.int64()), pa.scalar(_UNKNOWN, pa.int64()))
    later = pc.if_else(pc.greater(completed, base_instant), completed, base_instant)
    tracked = pa.table([*files.select(TRACKED_FILES.names[:3]).columns, later, rows], schema=TRACKED_FILES)
    return tracked.filter(pc.invert(members(one_array(files.column("instant")), sorted(committed))))


def _lives_before(
    table: LoadedTable,
    old: pa.Table,
    commits: Iterable[tuple[Instant, CommitMetadata]],
    first: str,
) -> dict[str, PartitionLife]:
    """Return the creation and modification of partitions that existed before `first`, the oldest known commit.

    Such a partition has files of older commits, or a write stat that names an older commit. Its metadata file names the
    commit that created it. The metadata file alone is no evidence, because it stays when all rows are deleted.
    """
    instants: dict[str, list[str]] = {}
    names = ["partition", "instant"]
    pairs = parsed_files(old).group_by(names).aggregate([])
    for partition, instant in zip(*(pairs.column(name).to_pylist() for name in names), strict=True):
        instants.setdefault(partition, []).append(instant)
    for _, metadata in commits:
        for stat in metadata.stats:
            if stat.prev_commit is not None and stat.prev_commit < first:
                instants.setdefault(stat.partition, []).append(stat.prev_commit)
    with ThreadPoolExecutor(_READERS) as pool:
        created = dict(zip(instants, pool.map(lambda p: _creating_commit(table.env.storage, p), instants), strict=True))
    return {
        partition: PartitionLife(created=min([*times, *created[partition]]), modified=max(times))
        for partition, times in instants.items()
    }


def _creating_commit(storage: Storage, partition: str) -> list[str]:
    try:
        data = storage.get(f"{partition}/{PARTITION_METADATA_NAME}".lstrip("/"))
        return [parse_partition_metadata(data)[0]]
    except (NotFoundError, CorruptTableError):
        # Hudi may store it in another format; then the oldest file decides.
        return []


def _counted(storage: Storage, files: pa.Table) -> pa.Table:
    """Return the files with row counts, from their footers where no commit contains them."""
    stated = one_array(files.column("rows"))
    unknown = pc.and_(pc.equal(stated, _UNKNOWN), pc.invert(pc.starts_with(one_array(files.column("name")), ".")))
    paths = file_paths(files.filter(unknown)).to_pylist()
    with ThreadPoolExecutor(_READERS) as pool:
        rows = list(pool.map(lambda path: _rows(storage, path), paths))
    counted = pc.replace_with_mask(stated, unknown, pa.array(rows, pa.int64()))
    return files.set_column(files.schema.get_field_index("rows"), "rows", counted)


def _rows(storage: Storage, path: str) -> int:
    reader = BaseFileReader(storage, path)
    try:
        return reader.rows
    finally:
        reader.close()
