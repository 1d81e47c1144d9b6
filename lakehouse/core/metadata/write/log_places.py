"""Names and statistics of the log files that a delta commit writes to file groups of the metadata table (MDT-2).

version 8 and 9   .<file id>_<delta commit>.log.1_<token>
version 6         .<file id>_<base instant>.log.<n+1>_<token>     n is the newest version in the slice

In version 6 the base instant is the time of the newest base file, or of a pending compaction, or, without a base file,
of the first log file. The statistics and the profile in the inflight file name it, because Hudi finds the slices that a
rollback changes through them (V6-6.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakehouse.core.metadata.read.slices import metadata_file
from lakehouse.core.metadata.store import MetadataStore, completions_of
from lakehouse.core.metadata.write.files import log_name, log_stat
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Timeline

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSlice:
    """The newest slice of a file group in version 6: its base instant, its base file and its logs, by name."""

    base_instant: str
    base_file: str = ""
    logs: tuple[str, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlaces:
    """The log files of one delta commit.

    Attributes:
        requested: The time of the delta commit.
        token: The write token of its files.
        slices: The newest slices by partition and file id, in version 6; None for other versions.
    """

    requested: str
    token: str
    slices: Mapping[Place, NamedSlice] | None = field(default=None)

    def name(self, place: Place) -> str:
        """Return the name of the log file for a file group (partition, file id)."""
        if self.slices is None:
            return log_name(place[1], self.requested, self.token)
        slice_ = self._slice(place)
        return log_name(place[1], slice_.base_instant, self.token, version=slice_.version + 1)

    def path(self, place: Place) -> str:
        """Return the path of the log file, relative to the metadata table."""
        return f"{place[0]}/{self.name(place)}"

    def stat(self, place: Place, *, size_bytes: int, counts: tuple[int, int]) -> WriteStat:
        """Return the write statistic of the log file. `counts` are its numbers of records and deletes."""
        name, (partition, file_id) = self.name(place), place
        if self.slices is None:
            return log_stat(partition, file_id, name, self.requested, size_bytes=size_bytes, counts=counts)
        slice_ = self._slice(place)
        return log_stat(
            partition,
            file_id,
            name,
            slice_.base_instant,
            size_bytes=size_bytes,
            counts=counts,
            base_file=slice_.base_file,
            log_files=(*slice_.logs, name),
        )

    def profile(self, operation: str, counts: Iterable[tuple[Place, tuple[int, int]]]) -> CommitMetadata | None:
        """Return the profile of the delta commit for its inflight file; None if the version needs none."""
        if self.slices is None:
            return None
        stats: dict[str, list[WriteStat]] = {}
        for place, (records, deletes) in counts:
            partition, file_id = place
            base_instant = self._slice(place).base_instant
            updates = WriteStat(
                partition=partition, file_id=file_id, path="", prev_commit=base_instant, num_updates=records + deletes
            )
            stats.setdefault(partition, [WriteStat(partition=partition, file_id="", path="")]).append(updates)
        return CommitMetadata(operation=operation, stats=tuple(stat for of in stats.values() for stat in of))

    def _slice(self, place: Place) -> NamedSlice:
        assert self.slices is not None, "only version 6 has named slices"
        return self.slices.get(place) or NamedSlice(base_instant=self.requested)


def log_places(store: MetadataStore, names: Sequence[str], timeline: Timeline, requested: str, token: str) -> LogPlaces:
    """Return the log files of a delta commit; in version 6 the folders of the partitions are listed."""
    if not store.config.layout.names_logs_by_slice:
        return LogPlaces(requested=requested, token=token)
    listed = store.folders(names, completions_of(timeline))
    of_group: dict[Place, list[BaseFile | LogFile]] = {}
    for name, files in zip(names, listed, strict=True):
        for info in files:
            file = metadata_file(info.name, name, info.size_bytes)
            if file is not None:
                of_group.setdefault((name, file.file_id), []).append(file)
    completed = {instant.requested for instant in timeline if instant.is_completed}
    oldest = min((instant.requested for instant in timeline), default="")
    pending = max((i.requested for i in timeline.where(action=Action.COMPACTION, pending=True)), default="")
    slices = {}
    for place, files_of in of_group.items():
        bases = [f for f in files_of if isinstance(f, BaseFile) and (f.instant in completed or f.instant < oldest)]
        slices[place] = _newest(bases, [file for file in files_of if isinstance(file, LogFile)], pending)
    return LogPlaces(requested=requested, token=token, slices=slices)


def _newest(bases: Sequence[BaseFile], logs: Sequence[LogFile], pending: str) -> NamedSlice:
    base_instant = max((pending, *(base.instant for base in bases), *(log.instant for log in logs)))
    base = max((file.name for file in bases if file.instant == base_instant), default="")
    of_slice = sorted((log for log in logs if log.instant == base_instant), key=lambda log: log.version)
    return NamedSlice(
        base_instant=base_instant,
        base_file=base,
        logs=tuple(log.name for log in of_slice),
        version=max((log.version for log in of_slice), default=0),
    )
