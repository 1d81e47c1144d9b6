"""The files of the file groups of the metadata table, and the newest slice of each (MDT-5).

base b1 (t1)   logs of delta commits that completed after t1 ...   base b2 (t2)   logs completed after t2
               `------- slice of b1 --------------------------'    `---------- newest slice ----------'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakehouse.core.metadata.read.slices import metadata_file
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import FileInfo, Storage
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiles:
    """All files of one file group: base files by instant, logs by instant, version and token."""

    partition: str
    file_id: str
    bases: tuple[BaseFile, ...] = ()
    logs: tuple[LogFile, ...] = ()

    def paths(self) -> set[str]:
        """Return the paths of the files, relative to the metadata table."""
        names = {base.name for base in self.bases} | {log.name for log in self.logs}
        return {f"{self.partition}/{name}" for name in names}

    def instants(self) -> set[str]:
        """Return the instants in the names of the files."""
        return {base.instant for base in self.bases} | {log.instant for log in self.logs}

    def base_at(self, committed: frozenset[str], before: str) -> BaseFile | None:
        """Return the newest base file of a completed instant before a time."""
        found = [base for base in self.bases if base.instant in committed and base.instant < before]
        return found[-1] if found else None


def list_groups(storage: Storage, partitions: Iterable[str]) -> list[GroupFiles]:
    """Return the file groups of index partitions; one listing for each partition."""
    names = list(partitions)
    listed = send_all(storage, lambda name: storage.list_dir(name)[0], names)
    return groups_of(zip(names, listed, strict=True))


def groups_of(listings: Iterable[tuple[str, Iterable[FileInfo]]]) -> list[GroupFiles]:
    """Return the file groups of index partitions with their files."""
    return [group for name, files in listings for group in _groups(name, files)]


def _groups(partition: str, files: Iterable[FileInfo]) -> list[GroupFiles]:
    bases: dict[str, list[BaseFile]] = {}
    logs: dict[str, list[LogFile]] = {}
    for file in files:
        parsed = metadata_file(file.name, partition, file.size_bytes)
        if isinstance(parsed, BaseFile):
            bases.setdefault(parsed.file_id, []).append(parsed)
        elif parsed is not None:
            logs.setdefault(parsed.file_id, []).append(parsed)
    return [
        GroupFiles(
            partition=partition,
            file_id=file_id,
            bases=tuple(sorted(bases.get(file_id, ()), key=lambda base: (base.instant, base.write_token))),
            logs=tuple(sorted(logs.get(file_id, ()), key=lambda log: (log.instant, log.version, log.write_token))),
        )
        for file_id in sorted({*bases, *logs})
    ]


def completed_writes(timeline: Timeline) -> Mapping[str, Instant]:
    """Return requested time -> completed delta commit or compaction of the metadata timeline."""
    actions = (Action.DELTACOMMIT, Action.COMMIT)
    return {instant.requested: instant for instant in timeline.where(action=actions, state=State.COMPLETED)}


def last_compaction(timeline: Timeline) -> Instant | None:
    """Return the completed compaction with the greatest requested time."""
    compactions = timeline.where(action=Action.COMMIT, state=State.COMPLETED)
    return max(compactions, key=lambda instant: instant.requested, default=None)


def delta_commits_since(timeline: Timeline, compaction: Instant | None) -> list[Instant]:
    """Return the completed delta commits whose logs the compaction does not contain."""
    deltas = timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    return [delta for delta in deltas if compaction is None or delta.completion >= compaction.requested]
