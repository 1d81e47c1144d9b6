"""The newest file slices in a metadata partition, one per file group (MDT-5.2).

version 8 and 9   a log belongs to the newest base whose instant is not greater than the log's completion time
version 6         the time in a log's name is the instant of its base
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.metadata.groups import data_partition_of
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.metadata.place import INIT_PREFIX
from lakehouse.core.metadata.read.unusable import MetadataUnusableError
from lakehouse.core.metadata.read.validity import Validity
from lakehouse.core.storage.protocol import FileInfo
from lakehouse.model.commit import WriteStat
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.partition_kind import PartitionKind


@dataclass(frozen=True, slots=True)
class MetadataSlice:
    """The files of a file group that a reader merges: the newest base file and the logs above it, oldest first."""

    file_id: str
    base: BaseFile | None
    logs: tuple[LogFile, ...]


def metadata_slices(
    files: Iterable[FileInfo],
    partition: str,
    validity: Validity,
    *,
    layout: TableLayout,
    archived: Callable[[list[str]], dict[str, str]],
) -> tuple[MetadataSlice, ...]:
    """Return the newest visible slice of each file group, sorted by file id; the position is the shard.

    Args:
        files: The listing of the partition.
        partition: The name of the partition.
        validity: The visible instants.
        layout: The layout of the metadata table.
        archived: Returns the completion times of instants that are older than the active timeline, for those that
            completed.
    """
    parsed = [metadata_file(file.name, partition, file.size_bytes) for file in files]
    return slices_of([file for file in parsed if file is not None], validity, layout=layout, archived=archived)


def slices_of(
    parsed: Iterable[BaseFile | LogFile],
    validity: Validity,
    *,
    layout: TableLayout,
    archived: Callable[[list[str]], dict[str, str]],
) -> tuple[MetadataSlice, ...]:
    """Return the same as `metadata_slices` for files of one partition whose names are parsed."""
    parsed = tuple(parsed)
    bases = [file for file in parsed if isinstance(file, BaseFile)]
    held = [file for file in parsed if isinstance(file, LogFile)]
    instants = {base.instant for base in bases} | {log.instant for log in held}
    old = sorted(instant for instant in instants if validity.is_archived(instant))
    completions = {**(archived(old) if old and layout.has_completion_times else {}), **validity.completions}
    limit = validity.first_invisible()
    groups: dict[str, tuple[list[BaseFile], list[LogFile]]] = {}
    for base in bases:
        is_complete = base.instant in completions or (
            not layout.has_completion_times and validity.is_archived(base.instant)
        )
        entry = groups.setdefault(base.file_id, ([], []))
        # A later base file contains records of an instant that is not visible.
        if is_complete and base.instant < limit:
            entry[0].append(base)
    for log in held:
        groups.setdefault(log.file_id, ([], []))[1].append(log)
    return tuple(_slice(file_id, *files_of, completions, layout) for file_id, files_of in sorted(groups.items()))


@lru_cache(maxsize=4096)
def metadata_file(name: str, partition: str, size_bytes: int) -> BaseFile | LogFile | None:
    """Parse a file name of the metadata table; return None for other names.

    Cached, because each commit repeats names.
    """
    base = parse_base_file(name, partition, size_bytes)
    if base is not None:
        return base if base.extension == "hfile" else None
    return parse_log_file(name, partition, size_bytes)


def _slice(
    file_id: str, bases: list[BaseFile], logs: list[LogFile], completions: dict[str, str], layout: TableLayout
) -> MetadataSlice:
    base = max(bases, key=lambda file: (file.instant, file.write_token), default=None)
    since = base.instant if base is not None else ""
    if layout.has_completion_times:
        above = [log for log in logs if completions.get(log.instant, "") >= since and log.instant in completions]
    else:
        above = [log for log in logs if log.instant >= since]
    ordered = sorted(above, key=lambda log: (log.instant, log.version, log.write_token))
    return MetadataSlice(file_id, base, tuple(ordered))


def slices_by_partition(groups: Sequence[MetadataSlice]) -> dict[str, list[MetadataSlice]]:
    """Return the file groups of each data partition in a partitioned record index; {} for a global record index."""
    by_partition: dict[str, list[MetadataSlice]] = {}
    for slice_ in groups:
        path = data_partition_of(PartitionKind.RECORD_INDEX, slice_.file_id)
        if path is not None:
            by_partition.setdefault(path, []).append(slice_)
    return by_partition


def require_bases(
    place: str, slices: Sequence[MetadataSlice], validity: Validity, stats_of: Callable[[Instant], Sequence[WriteStat]]
) -> None:
    """Raise MetadataUnusableError if a file group lacks the base file from the newest compaction or from its build.

    A compaction by this package or by Hudi 1.1 writes a base file for each file group. Older releases skip groups
    without new records, so the commit of the compaction lists the file groups that got one. A file group that was
    created later begins with a log file. A build writes base files, except for a new table.

    Args:
        place: The folder of the partition, for messages.
        slices: The newest visible slice of each file group.
        validity: The visible instants.
        stats_of: Returns the statistics of a completed instant in the metadata table.
    """
    limit, completions = validity.first_invisible(), validity.completions
    newest = max((time for time in validity.compactions if time < limit), default="")

    def wrote_base(requested: str, action: Action, file_id: str) -> bool:
        completed = completions[requested]
        instant = Instant(requested=requested, action=action, state=State.COMPLETED, completed=completed)
        return any(stat.path.rpartition("/")[2].startswith(f"{file_id}_") for stat in stats_of(instant))

    for slice_ in slices:
        if slice_.base is not None and slice_.base.instant >= newest:
            continue
        created = min((log.instant for log in slice_.logs), default="")
        is_newer = completions.get(created, "") > newest
        origin = ""
        if newest and (not is_newer or not slice_.logs) and wrote_base(newest, Action.COMMIT, slice_.file_id):
            origin = f"the compaction {newest}"
        is_built = slice_.base is None and created.startswith(INIT_PREFIX) and created in completions
        if not origin and is_built and wrote_base(created, Action.DELTACOMMIT, slice_.file_id):
            origin = f"its build {created}"
        if origin:
            raise MetadataUnusableError(f"{place}: file group {slice_.file_id} has no base file of {origin}")


def require_logs(place: str, slices: Sequence[MetadataSlice], validity: Validity) -> None:
    """Raise MetadataUnusableError if a delta commit above the base files has no log file in `files`.

    Every action that writes data has one. A log compaction replaces the logs of older delta commits, which a clean
    deletes later.
    """
    completions, written = validity.completions, validity.written
    logs = {log.instant for slice_ in slices for log in slice_.logs}
    base = max((slice_.base.instant for slice_ in slices if slice_.base), default="")
    compacted = max((time for time in logs - written if not time.startswith(INIT_PREFIX)), default="")
    for instant in sorted(written & completions.keys()):
        if completions[instant] >= base and instant not in logs and instant > compacted:
            raise MetadataUnusableError(f"{place} has no log file of the delta commit {instant}", instant=instant)
