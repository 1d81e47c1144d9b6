"""The statistics of a table's partitions: one small object, brought up to date by the commits made since.

    one read of the object  +  the metadata of commits completed since  ->  statistics  ->  the object anew, if nobody
                                                                                            else was there before

No listing of data, as long as the commits since are on the timeline or in its archive, and none that is in was undone
(see lakehouse.core.state.partition_statistics). Otherwise, and at first, all commits of timeline and archive are
folded, and what they do not tell comes from a listing: such files are read for their rows. The object is a cache: if it
cannot be read, it is rebuilt; if it cannot be written, the operation continues without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lakehouse.core.files.base_reader import BaseFileReader
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME, parse_partition_metadata
from lakehouse.core.format.partition_statistics import decode_statistics, encode_statistics
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.slices import load_all_slices, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.file_system_view import VisibleTimeline, first_write
from lakehouse.core.state.partition_statistics import commits_to_fold, fold
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError, LakehouseError, UnsupportedError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Instant, Timeline
from lakehouse.model.statistics import Group, PartitionLife, TableStatistics, TrackedFile

logger = logging.getLogger(__name__)

STATISTICS = ".hoodie/.lakehouse/statistics/partitions.parquet"
_READERS = 8
#: Rows of a base file that no commit tells of any more.
_UNKNOWN = -1


def load_statistics(table: LoadedTable, *, save: bool = True, rebuild: bool = False) -> TableStatistics:
    """Return the statistics of partitions as of `table`, or of now; with `save` the next call has less to do.

    With `rebuild` they are built from a listing, whatever is known. Raises UnsupportedError for tables of version 6,
    which do not say when a commit completed, RetryableError if a commit was rolled back or archived meanwhile.
    """
    if table.config.layout == 1:
        raise UnsupportedError(
            f"{table.env.storage.root}: statistics of partitions need completion times, which tables of version "
            f"{table.config.version} lack; upgrade with Hudi"
        )
    known, tag = _stored(table)
    if known.latest > table.timeline.latest_time():
        # Somebody else looked after us: what they saw must not be taken for undone.
        table = table.reload()
    missing = None if rebuild else _missing(table, known)
    if missing is None:
        statistics = _rebuilt(table)
    elif missing:
        statistics = fold(known, table.store.commits(missing), table.timeline)
    else:
        return known
    if save:
        _save(table, statistics, tag)
    return statistics


def _missing(table: LoadedTable, known: TableStatistics) -> tuple[Instant, ...] | None:
    """Return the commits to fold, those that were archived since included; None if a listing is needed."""
    found = commits_to_fold(known, table.timeline)
    if found is not None or not known.instants:
        return found
    archived = archived_writes(table, requested_from=min(known.instants))
    if not archived:
        return None
    return commits_to_fold(known, Timeline((*archived, *table.timeline)), whole=True)


def _stored(table: LoadedTable) -> tuple[TableStatistics, str | None]:
    try:
        data, tag = table.env.storage.get_tagged(STATISTICS)
    except NotFoundError:
        return TableStatistics(), None
    try:
        return decode_statistics(data), tag
    except CorruptTableError as error:
        logger.warning("%s: %s is built anew: %s", table.env.storage.root, STATISTICS, error)
        return TableStatistics(), tag


def _save(table: LoadedTable, statistics: TableStatistics, tag: str | None) -> None:
    data = encode_statistics(statistics, table.env.ids.uuid())
    try:
        if table.env.storage.replace_if(STATISTICS, data, tag) is None:
            logger.info("%s: somebody else brought the statistics up to date", table.env.storage.root)
    except LakehouseError as error:
        # What is stored is right for the time it tells, and the next one goes on from there.
        logger.warning("%s: the statistics were not saved: %s", table.env.storage.root, error)


def _rebuilt(table: LoadedTable) -> TableStatistics:
    logger.info("%s: the statistics of partitions are built from a listing", table.env.storage.root)
    archive = table.store.archived_commits(archived_writes(table).instants)
    whole = Timeline((*(instant for instant, _ in archive), *table.timeline))
    told = [*archive, *table.store.commits(table.timeline.writes())]
    told.sort(key=lambda pair: (pair[0].completion, pair[0].requested))
    known = frozenset(instant.requested for instant, _ in told)
    visible = load_visible(table)
    # Of commits that nobody tells of any more, the files do.
    old: dict[Group, tuple[TrackedFile, ...]] = {}
    for group, slices in load_all_slices(table, visible).items():
        files = [t for file_slice in slices for t in _untold_files(file_slice, visible, known)]
        if files:
            old[group] = tuple(files)
    before = TableStatistics(files=old, lives=_lives_before(table, old, told, first_write(whole)))
    statistics = fold(before, told, table.timeline, complete=False)
    return replace(statistics, files=_counted(table.env.storage, statistics.files))


def _untold_files(file_slice: FileSlice, visible: VisibleTimeline, known: frozenset[str]) -> list[TrackedFile]:
    """Return the files of a slice that no known commit wrote, each with a completion that leaves it in this slice."""
    found: list[BaseFile | LogFile] = [*([file_slice.base] if file_slice.base else []), *file_slice.logs]
    return [
        TrackedFile(
            file=file,
            completed=max(visible.completion(file.instant), file_slice.base_instant),
            rows=_UNKNOWN if isinstance(file, BaseFile) else 0,
        )
        for file in found
        if file.instant not in known
    ]


def _lives_before(
    table: LoadedTable,
    old: Mapping[Group, Sequence[TrackedFile]],
    commits: Iterable[tuple[Instant, CommitMetadata]],
    first: str,
) -> dict[str, PartitionLife]:
    """Return the partitions that commits before `first` left: they have files of those, or were updated since.

    The first commit is the one that made the partition. Its file of metadata outlives the rows, so it alone does not
    tell that the partition was there.
    """
    instants: dict[str, list[str]] = {}
    for (partition, _), files in old.items():
        instants.setdefault(partition, []).extend(t.file.instant for t in files)
    for _, metadata in commits:
        for stat in metadata.stats:
            if stat.prev_commit is not None and stat.prev_commit < first:
                instants.setdefault(stat.partition, []).append(stat.prev_commit)
    with ThreadPoolExecutor(_READERS) as pool:
        made = dict(zip(instants, pool.map(lambda p: _made_by(table.env.storage, p), instants), strict=True))
    return {
        partition: PartitionLife(created=min([*found, *made[partition]]), modified=max(found))
        for partition, found in instants.items()
    }


def _made_by(storage: Storage, partition: str) -> list[str]:
    try:
        data = storage.get(f"{partition}/{PARTITION_METADATA_NAME}".lstrip("/"))
        return [parse_partition_metadata(data)[0]]
    except (NotFoundError, CorruptTableError):
        # Hudi may keep it in another format; then the oldest file tells.
        return []


def _counted(storage: Storage, files: Mapping[Group, tuple[TrackedFile, ...]]) -> dict[Group, tuple[TrackedFile, ...]]:
    """Return the files with the rows of those filled in that no commit tells of any more."""
    bases = [t for tracked in files.values() for t in tracked if isinstance(t.file, BaseFile)]
    unknown = [t.file.path for t in bases if t.rows == _UNKNOWN]
    with ThreadPoolExecutor(_READERS) as pool:
        rows = dict(zip(unknown, pool.map(lambda path: _rows(storage, path), unknown), strict=True))
    return {
        group: tuple(replace(t, rows=rows.get(t.file.path, t.rows)) for t in tracked)
        for group, tracked in files.items()
    }


def _rows(storage: Storage, path: str) -> int:
    reader = BaseFileReader(storage, path)
    try:
        return reader.rows
    finally:
        reader.close()
