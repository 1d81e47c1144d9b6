"""The source `files`: files of a landing zone, read by checkpoint or by data interval.

    plan      list the path, or one path per step of the data interval; choose the files that no commit has read
    read      read the chosen files with Spark (`lakehouse.platform.sources.files.file_reader`)
    verify    list the files once more: none of them may have been rewritten

Writers of files should write under a name that begins with `.` or `_`, or has a suffix of an unfinished upload (see
`file_listing.UNFINISHED`), and rename the file when it is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint, SourceFile
from lakehouse.platform.sources.files.file_choice import NAMES_IN_SUMMARY, FileChoice, choose_files
from lakehouse.platform.sources.files.file_columns import file_source_of
from lakehouse.platform.sources.files.file_discovery import EventCheckpoint, ascending_files, notified_files
from lakehouse.platform.sources.files.file_listing import FileListing, FileSelection, list_source, refuse_changed
from lakehouse.platform.sources.files.file_names import refuse_names
from lakehouse.platform.sources.files.file_notices import open_notices
from lakehouse.platform.sources.files.file_paths import interval_paths
from lakehouse.platform.sources.files.file_reader import open_batch
from lakehouse.platform.sources.files.missing_folders import check_missing
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.spec.contracts.job import SourceLag
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.table_spec import TableSpec

#: Keys in a commit's extra metadata.
FILES = "lakehouse.ingest.files"
MISSING = "lakehouse.ingest.missing"


class FileReader(Protocol):
    """Opens files as a context manager that yields their rows. `open_batch` implements it with a Spark session."""

    def __call__(
        self, files: FileSelection, spec: TableSpec, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPlan(SourcePlan):
    """The files to read, and the storage that contains them."""

    files: tuple[SourceFile, ...]
    storage: Storage = field(compare=False, repr=False)

    @property
    def selection(self) -> FileSelection:
        """The files with their storage."""
        return FileSelection(storage=self.storage, files=self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSource:
    """Files in a landing zone.

    Attributes:
        spec: The spec of the table.
        settings: The settings of the source, with the path as an absolute path or URL; placeholders stay.
        storage_options: Options of the storage that contains the files.
        reader: Reads chosen files.
        environ: Environment variables, which define the connection for a notification topic.
    """

    spec: TableSpec
    settings: FileSourceSpec
    storage_options: Mapping[str, str]
    reader: FileReader
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> FilesPlan:
        """List the files and choose files to read (see `Source.plan`)."""
        listing, choice = self._found(checkpoint, interval, full_refresh)
        return FilesPlan(
            units=len(choice.files),
            reason=f"{choice.reason}, {choice.size_bytes} bytes" if choice.files else choice.reason,
            fingerprint=_fingerprint(choice.files),
            checkpoint=None if choice.checkpoint is None else choice.checkpoint.to_json(),
            metadata={FILES: choice.summary(), **_missing_metadata(listing), **choice.metadata},
            names=tuple(folder.path for folder in listing.folders if folder.files),
            missing=tuple(folder.path for folder in listing.missing),
            warning="; ".join(sentence for sentence in (choice.warning, listing.warning) if sentence),
            lag=(SourceLag(source=f"files:{self.settings.path}", unit="files", left=choice.left),)
            if not self.settings.is_by_interval
            else (),
            files=choice.files,
            storage=listing.storage,
        )

    def _found(
        self, checkpoint: str | None, interval: Interval | None, full_refresh: bool
    ) -> tuple[FileListing, FileChoice]:
        settings = self.settings
        if settings.notifications:
            known_events = EventCheckpoint.from_json(None if full_refresh else checkpoint)
            notices = open_notices(settings, self.storage_options, self.environ, known_events.events)
            return notified_files(settings, self.storage_options, known_events, notices, full_refresh=full_refresh)
        if settings.ascending_names:
            now_ms = SystemClock().now_ms()
            return ascending_files(settings, self.storage_options, checkpoint, full_refresh=full_refresh, now_ms=now_ms)
        refuse_names(checkpoint if not full_refresh else None, self.spec.table)
        section = ingest_of(self.spec)
        once = section.operation != "upsert"
        paths = interval_paths(settings.path, interval, once=once, timezone=section.timezone)
        previous = Checkpoint() if checkpoint is None or full_refresh else Checkpoint.from_json(checkpoint)
        listing = list_source(paths, self.storage_options)
        check_missing(listing.folders, settings)
        return listing, choose_files(
            listing.files,
            None if settings.is_by_interval else previous,
            full_refresh=full_refresh,
            max_files=settings.max_files,
            max_bytes=settings.max_bytes,
        )

    def read(
        self, plan: FilesPlan, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]:
        """Read the planned files (see `Source.read`)."""
        return self.reader(plan.selection, self.spec, known=known, dead_letters=dead_letters)

    def verify(self, plan: FilesPlan) -> None:
        """Raise an error if a planned file was rewritten (see `Source.verify`)."""
        refuse_changed(plan.selection, by_name=self.settings.ascending_names or bool(self.settings.notifications))


def open_files_source(context: SourceContext) -> FilesSource:
    """Return a spec's files source, with `${VAR}` in its path replaced."""
    settings = file_source_of(context.spec)
    notices = settings.notifications
    return FilesSource(
        spec=context.spec,
        settings=settings.at(
            resolve(settings.path, context.environ, name="ingest.path"),
            resolve(notices, context.environ, name="ingest.notifications") if notices else "",
        ),
        storage_options=context.storage_options,
        reader=partial(open_batch, context.session),
        environ=context.environ,
    )


def _fingerprint(files: Sequence[SourceFile]) -> str:
    entries = b"".join(b"%d:%s" % file.entry for file in files)
    return hashlib.blake2b(entries, digest_size=6).hexdigest()


def _missing_metadata(listing: FileListing) -> dict[str, str]:
    """Return the commit's entry for missing folders: their number and the first names; empty if there are none."""
    paths = [folder.path for folder in listing.missing]
    value = {"count": len(paths), "names": paths[:NAMES_IN_SUMMARY]}
    return {MISSING: json.dumps(value, ensure_ascii=False)} if paths else {}
