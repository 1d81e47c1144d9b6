"""Find new files in a large landing zone without listing all files: by ascending names, or by notifications."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.files.file_checkpoint import LIMIT, Checkpoint, SourceFile
from lakehouse.platform.sources.files.file_choice import NAMES_IN_SUMMARY, FileChoice, limited
from lakehouse.platform.sources.files.file_events import ObjectEvent, events_of_file
from lakehouse.platform.sources.files.file_listing import (
    FileListing,
    FolderListing,
    is_hidden,
    is_unfinished,
    list_source,
    matches,
    source_file,
)
from lakehouse.platform.sources.files.file_names import VERSION, name_checkpoint
from lakehouse.platform.sources.files.file_notices import Notice, Notices
from lakehouse.platform.sources.files.file_paths import split_path
from lakehouse.platform.sources.files.missing_folders import check_missing
from lakehouse.spec.sources.file_source import FileSourceSpec

#: Keys in a commit's extra metadata: files whose names were passed before they arrived; counts of notifications.
LATE_FILES = "lakehouse.ingest.late_files"
NOTIFICATIONS = "lakehouse.ingest.notifications"
_AT_ONCE = 16


# parameters: the settings, the storage options, the checkpoint, the mode and the time of a run
def ascending_files(
    settings: FileSourceSpec,
    options: Mapping[str, str],
    checkpoint: str | None,
    *,
    full_refresh: bool,
    now_ms: int,
) -> tuple[FileListing, FileChoice]:
    """List the names after the passed names, and choose the files that no commit has read.

    The first run, a full refresh, and a run at least `check_names` after the newest file of the last full listing list
    all names. The plan is deterministic, so its checkpoint contains file times and no run times.
    """
    root, pattern = split_path(settings.path)
    storage = open_storage(root, options, follow_links=True)
    names, earlier = name_checkpoint(None if full_refresh else checkpoint, storage.root)
    is_due = not names.after or now_ms - names.checked_ms >= 1000 * settings.check_names_s
    if is_due:
        # The check for a missing folder needs a full listing.
        whole = list_source((settings.path,), options)
        check_missing(whole.folders, settings)
        storage, files, folders = whole.storage, list(whole.files), whole.folders
    else:
        infos = [info for info in storage.list_after(names.after) if not _is_no_data(info.path, pattern)]
        files = [source_file(storage, info) for info in infos if matches(info.path, pattern)]
        folders = (FolderListing(path=settings.path, files=len(files), exists=True),)
    files.sort(key=lambda file: file.path)
    new = tuple(file for file in files if not names.has(file) and not earlier.has(file))
    late = [file for file in files if names.is_late(file)]
    chosen = new if full_refresh else limited(new, settings.max_files, settings.max_bytes)
    read = [*chosen, *(file for file in files if earlier.has(file))]
    after = names.next(files, read, lists_all=is_due)
    if chosen:
        reason = f"{len(chosen)} of {len(files)} listed files will be ingested"
    else:
        reason = f"all {len(files)} listed files are ingested already" if files else "there are no new files"
    choice = FileChoice(
        files=chosen,
        reason=reason,
        checkpoint=after if chosen else None,
        left=len(new) - len(chosen),
        warning=_late_warning(late),
        metadata={LATE_FILES: _summary(late)} if late else {},
    )
    return FileListing(storage=storage, files=tuple(files), folders=folders), choice


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCheckpoint:
    """The notifications that commits have consumed (see `Notices.after`), and the files that they have read."""

    events: str | None = None
    files: Checkpoint = field(default_factory=Checkpoint)

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""
        events = None if self.events is None else parse_json(self.events)
        return json.dumps({"version": VERSION + 1, "events": events, "files": parse_json(self.files.to_json())})

    @classmethod
    def from_json(cls, text: str | None) -> EventCheckpoint:
        """Parse a checkpoint; a listing checkpoint provides the files that were read."""
        if text is None:
            return cls()
        try:
            value = parse_json(text)
            if value["version"] == VERSION + 1:
                return cls(events=json.dumps(value["events"]), files=Checkpoint.from_json(json.dumps(value["files"])))
            if value["version"] == VERSION:
                return cls(files=Checkpoint.from_json(json.dumps(value["taken"])))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptTableError(
                f"the ingest checkpoint in the last commit is unreadable ({error!r}): {text[:120]!r}"
            ) from error
        return cls(files=Checkpoint.from_json(text))


def notified_files(
    settings: FileSourceSpec,
    options: Mapping[str, str],
    previous: EventCheckpoint,
    notices: Notices,
    *,
    full_refresh: bool,
) -> tuple[FileListing, FileChoice]:
    """Consume new notifications, and choose their files that no commit has read.

    Each file is looked up by name, so events for deleted or rewritten files are harmless. The limits in the spec
    determine the number of notices per run, at least one.
    """
    root, pattern = split_path(settings.path)
    storage = open_storage(root, options, follow_links=True)
    counts: dict[str, int] = {}
    unknown: list[str] = []
    old: list[SourceFile] = []
    new_files: dict[str, SourceFile] = {}
    taken: list[Notice] = []
    for notice in notices:
        if not full_refresh and taken and _is_full(new_files.values(), settings):
            break
        taken.append(notice)
        wanted = list(_wanted(_own_events(notice, counts, unknown), root, pattern, counts))
        for file in _present(storage, wanted, counts):
            if file.entry in previous.files.taken or file.path in new_files:
                counts["repeated"] = counts.get("repeated", 0) + 1
            elif previous.files.has(file):
                old.append(file)
            else:
                new_files[file.path] = file
    chosen = tuple(sorted(new_files.values(), key=lambda file: (file.modified_ms, file.url)))
    after = EventCheckpoint(events=notices.after(taken), files=previous.files.after(chosen))
    listed = f"new notifications in {len(taken)} of {notices.waiting} {notices.unit}"
    choice = FileChoice(
        files=chosen,
        reason=f"{len(chosen)} files of {listed} will be ingested" if chosen else f"{listed} name no new file",
        checkpoint=after if chosen else None,
        left=max(0, notices.waiting - len(taken)) if notices.unit == "files" else 0,
        warning="; ".join(_event_warnings(notices.warning, unknown, old)),
        metadata={NOTIFICATIONS: json.dumps({"taken": len(taken), **counts, "old": len(old)})} if taken else {},
    )
    return FileListing(storage=storage, files=chosen, folders=notices.folders), choice


def _is_full(files: Iterable[SourceFile], settings: FileSourceSpec) -> bool:
    listed = list(files)
    size = sum(file.size_bytes for file in listed)
    return bool(
        (settings.max_files and len(listed) >= settings.max_files)
        or (settings.max_bytes and size >= settings.max_bytes)
    )


def _own_events(notice: Notice, counts: dict[str, int], unknown: list[str]) -> Iterator[ObjectEvent]:
    """Yield the events of a notice, and count strings that are not notifications."""
    for one in (event for text in notice.texts for event in events_of_file(text)):
        if isinstance(one, str):
            unknown.append(f"{one!r} in {notice.place}")
            counts["unknown"] = counts.get("unknown", 0) + 1
        else:
            counts["events"] = counts.get("events", 0) + 1
            yield one


def _wanted(
    events: Iterable[ObjectEvent], root: str, pattern: tuple[str, ...], counts: dict[str, int]
) -> Iterator[str]:
    """Yield each created object's path below the root once; count deleted objects and objects outside of the root."""
    bucket, _, prefix = root.partition("://")[2].partition("/")
    lead = f"{prefix.rstrip('/')}/" if prefix else ""
    seen: set[str] = set()
    for event in events:
        path = event.key.removeprefix(lead)
        is_own = event.bucket == bucket.partition("@")[0] and event.key.startswith(lead) and path != ""
        if not is_own or path.endswith("/") or _is_no_data(path, pattern) or not matches(path, pattern):
            counts["elsewhere"] = counts.get("elsewhere", 0) + 1
        elif event.is_deleted:
            counts["deleted"] = counts.get("deleted", 0) + 1
        elif path in seen:
            counts["repeated"] = counts.get("repeated", 0) + 1
        else:
            seen.add(path)
            yield path


def _is_no_data(path: str, pattern: tuple[str, ...]) -> bool:
    return is_hidden(path) or (is_unfinished(path) and not (pattern and is_unfinished(pattern[-1])))


def _present(storage: Storage, paths: Sequence[str], counts: dict[str, int]) -> Iterator[SourceFile]:
    """Yield the files that exist, and count deleted files."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for info in pool.map(partial(storage.find), paths):
            if info is None:
                counts["gone"] = counts.get("gone", 0) + 1
            else:
                yield source_file(storage, info)


def _event_warnings(changes: str, unknown: Sequence[str], old: Sequence[SourceFile]) -> Iterator[str]:
    if changes:
        yield changes
    if unknown:
        yield f"{len(unknown)} notifications are of an unknown kind, such as {unknown[0]}"
    if old:
        yield (
            f"{len(old)} files, such as {old[0].url}, are older than the {LIMIT} newest files that were read, so it is "
            "unknown whether they were read; they are not read. --full-refresh reads all files again"
        )


def _late_warning(late: Sequence[SourceFile]) -> str:
    if not late:
        return ""
    return (
        f"{len(late)} files arrived after their names were passed and are not read, such as {late[0].url}: write them "
        "again under names after the newest one, or run once with --full-refresh, which reads all files again"
    )


def _summary(files: Sequence[SourceFile]) -> str:
    value = {"count": len(files), "names": [file.url for file in files[:NAMES_IN_SUMMARY]]}
    return json.dumps(value, ensure_ascii=False)
