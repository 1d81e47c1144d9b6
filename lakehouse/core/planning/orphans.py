"""Find orphan files: files of failed writes that neither a rollback nor a clean deletes (TL-6.2).

A file is an orphan if its write does not exist (it was rolled back before the file was created), or if its completed
write does not list it (a task ran twice). Files of pending writes and of later times are not orphans. Files of archived
writes are kept, because the timeline does not show whether they are orphans.

An orphan is deleted only if it is old enough and no reader of any retained instant needs it. Since version 8 a log file
is named after its own instant; before, it was named after the instant of its slice. So a log file is kept if it belongs
to a slice under either interpretation, see `needed_paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from lakehouse.core.planning.restore import UNDOABLE_ACTIONS
from lakehouse.core.state.file_system_view import DataFile, Group
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.display import Readable, Shown, size_text
from lakehouse.model.files import LogFile
from lakehouse.model.instant import Action, Instant, Timeline

_UNFINISHED = "its writer ended before it named the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan(Readable):
    """An orphan file and the reason; `modified_ms` is UTC."""

    path: str
    size_bytes: int
    modified_ms: int
    reason: str

    def _shown(self) -> Shown:
        size = size_text(self.size_bytes)
        facts = {"path": self.path, "size": size, "reason": self.reason}
        return Shown(f"orphan {self.path}: {size}, {self.reason}", facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanPlan(Readable):
    """The orphan files that a run would delete, or only report if other programs write the table."""

    orphans: tuple[Orphan, ...]

    def _shown(self) -> Shown:
        size = size_text(sum(orphan.size_bytes for orphan in self.orphans))
        rows = [{"path": orphan.path, "reason": orphan.reason} for orphan in self.orphans]
        return Shown(f"orphan plan: {len(self.orphans)} files, {size}", {}, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A listed file; `data` is None for an unfinished file, which has a temporary name."""

    path: str
    size_bytes: int
    modified_ms: int
    data: DataFile | None


# parameters: a planner takes each independent part of the table state
def plan_orphans(
    listing: Iterable[Found],
    timeline: Timeline,
    metadata: Callable[[Instant], CommitMetadata],
    *,
    archived_before: str,
    protected: Collection[str],
    older_than_ms: int,
) -> tuple[Orphan, ...]:
    """Return the orphans that were modified before `older_than_ms` (UTC); `protected` are paths in savepoints.

    `metadata` is called only for completed writes with a file older than that.
    """
    pending = [i.requested for i in timeline if i.action in UNDOABLE_ACTIONS and not i.is_completed]
    first_pending = min(pending, default="")
    writes = {write.requested: write for write in timeline.writes()}
    committed: dict[str, Collection[str]] = {}
    orphans = []
    for file in sorted(listing, key=lambda file: file.path):
        if file.modified_ms >= older_than_ms or file.path in protected:
            continue
        reason = _UNFINISHED
        if file.data is not None:
            instant = file.data.instant
            if instant < archived_before or (first_pending and instant >= first_pending):
                continue
            write = writes.get(instant)
            if write is not None and write.action is Action.REPLACECOMMIT and isinstance(file.data, LogFile):
                # The file contains rows that writes copied for a bucket resize. Their commits list the file.
                continue
            if write is not None and instant not in committed:
                committed[instant] = committed_paths(metadata(write))
            if write is not None and file.path in committed[instant]:
                continue
            reason = f"the write {instant} does not name it" if write is not None else f"there is no write {instant}"
        orphans.append(Orphan(path=file.path, size_bytes=file.size_bytes, modified_ms=file.modified_ms, reason=reason))
    return tuple(orphans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needed files in file groups with orphans.

    Attributes:
        sliced: The paths of the log files in all slices of all retained instants.
        committed: The paths that commits on the timeline list.
        planned: The file groups of pending plans.
        bases: (partition, file id, instant) of all base files, committed or not.
        services: The instants of compactions and clusterings, pending and completed.
    """

    sliced: Collection[str]
    committed: Collection[str]
    planned: Collection[Group]
    bases: Collection[tuple[str, str, str]]
    services: Collection[str]


def needed_paths(files: Iterable[DataFile], needs: Needs) -> frozenset[str]:
    """Return the paths of the files that a reader or a pending plan may need, so that they are no orphans.

    For a base file, the commit of the instant in its name decides; the planner of orphans has checked it before.
    """
    return frozenset(
        file.path
        for file in files
        if file.path in needs.committed
        or (file.partition, file.file_id) in needs.planned
        or (isinstance(file, LogFile) and (file.path in needs.sliced or _is_named_after_slice(file, needs)))
    )


def _is_named_after_slice(log: LogFile, needs: Needs) -> bool:
    group = (log.partition, log.file_id, log.instant)
    return not log.suffix and (group in needs.bases or log.instant in needs.services)


def committed_paths(metadata: CommitMetadata) -> frozenset[str]:
    """Return the paths of the files that a commit lists."""
    paths = set()
    for stat in metadata.stats:
        folder = f"{stat.partition}/" if stat.partition else ""
        paths |= {stat.path, *stat.cdc_files, *(f"{folder}{name}" for name in stat.log_files)}
    return frozenset(paths)
