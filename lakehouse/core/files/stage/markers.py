"""Markers record the names of data files before the files are created, so that a rollback can delete them (TL-7.2).

    .hoodie/.temp/<instant>/MARKERS.type   TIMELINE_SERVER_BASED
                            MARKERS0       files of all first attempts; the driver writes it before tasks run
                            MARKERS<n>     files of any other attempt, which writes it: one object per attempt
                            <partition>/<file>.marker.<kind>     with markers of type DIRECT: one object per file

Lines are `<partition>/<file>.marker.<kind>`. A marker without a file is harmless. An attempt that needs more files than
it has marked therefore doubles the number, so requests grow with the logarithm of the file count. An object is
extended by compare-and-swap only, so a delayed request cannot remove a marker.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.file_names import (
    LARGEST_BATCH,
    MARKERS_TYPE,
    decode_markers,
    encode_markers,
    is_marker_batch,
    marker_batch_name,
    marker_name,
    parse_marker,
)
from lakehouse.core.format.log.cdc import CDC_SUFFIX
from lakehouse.core.index.write_tasks import GroupTask
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CommitStateUnknownError, RetryableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.compaction import CompactionOperation
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import instant_moment

#: The parent of the marker directories; each write creates one.
MARKERS_ROOT = ".hoodie/.temp"
_READERS = 8


def marker_directory(instant: str) -> str:
    """Return the marker directory of a write."""
    return f"{MARKERS_ROOT}/{instant}"


class TaskMarkers:
    """The markers of one task attempt.

    `mark` each file before it is created. The driver has already written the markers `announced`.
    """

    def __init__(self, context: WriteContext, attempt: Attempt, announced: Iterable[str] = ()) -> None:
        self.context, self.attempt = context, attempt
        self._named = dict.fromkeys(announced if attempt.announced else ())
        self._own: dict[str, None] = {}
        # With one marker object per file the task marks its files again. A second marker of one file is harmless.
        if context.policy.marks_each_file:
            self._named.clear()
        self._batch = MarkerBatch(context.storage, context.instant, _number_of(attempt.token))

    def mark(self, *names: str, ahead: Iterable[str] = ()) -> None:
        """Write markers for files that are about to be created, and for files `ahead` that may follow.

        Raises RetryableError if it is unknown whether the markers exist.
        """
        missing = [name for name in names if name not in self._named]
        if not missing:
            return
        if self.context.policy.marks_each_file:
            for name in missing:
                create_marker(self.context.storage, self.context.instant, name)
            self._named |= dict.fromkeys(missing)
            return
        more = dict.fromkeys((*missing, *ahead))
        self._own |= {name: None for name in more if name not in self._named}
        self._named |= more
        self._batch.write(self._own)


class MarkerBatch:
    """One object with many markers. `number` is the first object number that is tried; it differs for each attempt."""

    def __init__(self, storage: Storage, instant: str, number: int) -> None:
        self.path: str | None = None
        self._storage, self._instant = storage, instant
        self._number, self._tag = number & LARGEST_BATCH, ""

    def write(self, names: Iterable[str]) -> None:
        """Write the markers `names`, which include all markers written before."""
        data = encode_markers(names)
        try:
            if self.path is not None:
                tag = self._storage.replace_if(self.path, data, self._tag)
                if tag is not None:
                    self._tag = tag
                    return
                # Another writer considered this write as failed and deleted the object. New files still need markers.
            self._create(data)
        except CommitStateUnknownError as error:
            # Only the markers are uncertain. No file was created without a marker, so the task can simply run again.
            raise RetryableError(f"{self._storage.root}: markers of {self._instant}: {error}") from error

    def _create(self, data: bytes) -> None:
        number = self._number
        while True:
            path = f"{marker_directory(self._instant)}/{marker_batch_name(number)}"
            tag = self._storage.replace_if(path, data, None)
            if tag is not None:
                self.path, self._tag = path, tag
                return
            number = (number + 1) & LARGEST_BATCH


def attempt_markers(instant: str, token: str) -> str:
    """Return the path of an attempt's marker object, unless another attempt already took the name."""
    return f"{marker_directory(instant)}/{marker_batch_name(_number_of(token))}"


def _number_of(token: str) -> int:
    return zlib.crc32(token.encode()) & LARGEST_BATCH


def create_marker(storage: Storage, instant: str, name: str) -> None:
    """Create the marker of one file; it may exist already."""
    try:
        storage.create(f"{marker_directory(instant)}/{name}", b"")
    except CommitStateUnknownError as error:
        raise RetryableError(f"{storage.root}: marker {name} of {instant}: {error}") from error


def read_markers(
    storage: Storage, instant: str, created: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the objects in the marker directory of a write by any engine, and the markers in each of them.

    Markers are paths relative to the directory. The object with the type has none. Objects in `known` are not read
    again.
    """
    listed = [file.path for file in storage.list(marker_directory(instant))]
    return read_listed_markers(storage, instant, listed, created)


def read_listed_markers(
    storage: Storage, instant: str, listed: Iterable[str], created: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the result of `read_markers` for objects that are listed already."""
    prefix = f"{marker_directory(instant)}/"
    objects = {path: (created or {}).get(path) for path in listed}
    unread = [path for path, names in objects.items() if names is None and is_marker_batch(path.removeprefix(prefix))]

    def read(path: str) -> tuple[str, ...]:
        try:
            return decode_markers(storage.get(path))
        except NotFoundError:
            return ()  # another process has already cleaned up this write

    if len(unread) > 1:
        with ThreadPoolExecutor(_READERS) as pool:
            batches = dict(zip(unread, pool.map(read, unread), strict=True))
    else:
        batches = {path: read(path) for path in unread}
    plain = {path: (name,) if parse_marker(name := path.removeprefix(prefix)) else () for path in objects}
    return {path: plain[path] if names is None else names for path, names in (objects | batches).items()}


def group_markers(context: WriteContext, attempt: Attempt, task: GroupTask) -> list[str]:
    """Return the markers of the files that an attempt of this task creates first; it may create more."""
    if task.appends:
        return [marker_name(first_log(context, attempt, task).path, context.table_layout.log_marker)]
    base = base_marker(context, attempt, task.partition, task.file_id, is_new=task.base is None)
    if context.cdc is None or task.base is None:
        return [base]
    return [base, log_marker(context, attempt, (task.partition, task.file_id), suffix=CDC_SUFFIX)]


def first_log(context: WriteContext, attempt: Attempt, task: GroupTask) -> LogFile:
    """Return the first log file that an attempt of this task appends.

    Copies for a resize are named after it. Because all writers use this name, the version distinguishes their files. It
    is the number of milliseconds since the resize was requested, so the files are also in the order of the writes.
    """
    instant, version = task.log_slice or context.instant, task.log_version
    attempt = log_attempt(context, attempt)
    if task.resize is not None:
        instant, version = task.resize, max(_milliseconds(context.instant) - _milliseconds(task.resize), 1)
    return LogFile(
        partition=task.partition,
        file_id=task.file_id,
        instant=instant,
        version=version,
        write_token=attempt.token,
    )


def log_attempt(context: WriteContext, attempt: Attempt) -> Attempt:
    """Return the attempt whose token a log file gets; it is unique in the slice if all writes use one name."""
    if not context.table_layout.names_logs_by_slice or attempt.instant:
        return attempt
    return replace(attempt, instant=context.instant)


def _milliseconds(instant: str) -> int:
    """Return an instant time, in the zone of the table, as milliseconds."""
    at = instant_moment(instant).replace(tzinfo=dt.UTC)
    return int(at.timestamp()) * 1000 + int(instant[14:17] or 0)


def compaction_markers(
    context: WriteContext, attempt: Attempt, operation: CompactionOperation, *, logs: bool
) -> list[str]:
    """Return the marker of the file that an attempt creates: a log if `logs`, otherwise a base file."""
    partition, file_id = operation.partition, operation.file_id
    if logs:
        return [log_marker(context, attempt, (partition, file_id))]
    return [base_marker(context, attempt, partition, file_id, is_new=operation.data_file is None)]


def base_marker(context: WriteContext, attempt: Attempt, partition: str, file_id: str, *, is_new: bool) -> str:
    """Return the marker of the base file that an attempt creates in a group."""
    file = BaseFile(partition=partition, file_id=file_id, write_token=attempt.token, instant=context.instant)
    return marker_name(file.path, "CREATE" if is_new else "MERGE")


def log_marker(
    context: WriteContext, attempt: Attempt, group: tuple[str, str], *, version: int = 1, suffix: str = ""
) -> str:
    """Return the marker of a log file that an attempt creates in `group`, a (partition path, file id)."""
    partition, file_id = group
    log = LogFile(
        partition=partition,
        file_id=file_id,
        instant=context.instant,
        version=version,
        write_token=attempt.token,
        suffix=suffix,
    )
    return marker_name(log.path, context.table_layout.log_marker)


def mark_log(markers: TaskMarkers, log: LogFile, first: int = 1) -> None:
    """Mark a log file, and in advance as many later versions as there were since version `first`."""
    later = range(log.version + 1, 2 * log.version - first + 1)
    kind = markers.context.table_layout.log_marker
    ahead = [marker_name(replace(log, version=version).path, kind) for version in later]
    markers.mark(marker_name(log.path, kind), ahead=ahead)


def is_marker_type(path: str) -> bool:
    """Return whether this object contains the type of the markers in its folder."""
    return path.rpartition("/")[2] == MARKERS_TYPE
