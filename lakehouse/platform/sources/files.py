"""The source `files`: files of a landing zone, read by checkpoint or by data interval.

    plan      list the path, or one path per step of the data interval; choose the files that no commit has read
    read      read the chosen files with Spark (`lakehouse.platform.sources.file_reader`)
    verify    list the files once more: none of them may have been written again

Writers of files should write under a name that begins with `.` or `_` and rename the file when it is complete.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from lakehouse.core.storage.protocol import Storage
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.file_checkpoint import Checkpoint, SourceFile
from lakehouse.platform.sources.file_columns import file_source_of
from lakehouse.platform.sources.file_listing import FileListing, FileSelection, list_source, refuse_changed
from lakehouse.platform.sources.file_paths import interval_paths
from lakehouse.platform.sources.file_reader import open_batch
from lakehouse.platform.sources.missing_folders import check_missing
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.spec.contracts.job import SourceLag
from lakehouse.spec.file_source import FileSourceSpec
from lakehouse.spec.location import resolve
from lakehouse.spec.table import TableSpec

#: Keys of a commit's extra metadata.
FILES = "lakehouse.ingest.files"
MISSING = "lakehouse.ingest.missing"

#: The number of files, and of missing folders, that a commit lists by name.
NAMES_IN_SUMMARY = 20


class FileReader(Protocol):
    """Opens files as a context manager that yields their rows. `open_batch` implements it with a Spark session."""

    def __call__(
        self, files: FileSelection, spec: TableSpec, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChoice:
    """The files that a run reads.

    Attributes:
        files: The files.
        reason: A text for people.
        checkpoint: The checkpoint that includes the files; None for a run by data interval.
        left: The number of files that a limit leaves for later runs.
    """

    files: tuple[SourceFile, ...]
    reason: str
    checkpoint: Checkpoint | None = None
    left: int = 0

    @property
    def size_bytes(self) -> int:
        """The stored size of all files."""
        return sum(file.size_bytes for file in self.files)

    def summary(self) -> str:
        """Return the number, the size in bytes and the first names of the files, as JSON."""
        names = [file.url for file in self.files[:NAMES_IN_SUMMARY]]
        value = {"count": len(self.files), "bytes": self.size_bytes, "names": names}
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPlan(SourcePlan):
    """The files to read, and the storage that holds them."""

    files: tuple[SourceFile, ...]
    storage: Storage = field(compare=False, repr=False)

    @property
    def selection(self) -> FileSelection:
        """The files with their storage."""
        return FileSelection(storage=self.storage, files=self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSource:
    """Files of a landing zone.

    Attributes:
        spec: The spec of the table.
        settings: The settings of the source, with the path as an absolute path or URL; placeholders stay.
        storage_options: Options of the storage that holds the files.
        reader: Reads chosen files.
    """

    spec: TableSpec
    settings: FileSourceSpec
    storage_options: Mapping[str, str]
    reader: FileReader

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> FilesPlan:
        """List the files and choose those to read (see `Source.plan`)."""
        paths = interval_paths(self.settings.path, interval, once=ingest_of(self.spec).operation != "upsert")
        known = Checkpoint() if checkpoint is None else Checkpoint.from_json(checkpoint)
        listing = list_source(paths, self.storage_options)
        check_missing(listing.folders, self.settings)
        by_checkpoint = not self.settings.is_by_interval
        choice = choose_files(
            listing.files,
            known if by_checkpoint else None,
            full_refresh=full_refresh,
            max_files=self.settings.max_files,
            max_bytes=self.settings.max_bytes,
        )
        return FilesPlan(
            units=len(choice.files),
            reason=f"{choice.reason}, {choice.size_bytes} bytes" if choice.files else choice.reason,
            fingerprint=_fingerprint(choice.files),
            checkpoint=None if choice.checkpoint is None else choice.checkpoint.to_json(),
            metadata={FILES: choice.summary(), **_missing_metadata(listing)},
            names=tuple(folder.path for folder in listing.folders if folder.files),
            missing=tuple(folder.path for folder in listing.missing),
            lag=(SourceLag(source=f"files:{self.settings.path}", unit="files", left=choice.left),)
            if by_checkpoint
            else (),
            files=choice.files,
            storage=listing.storage,
        )

    def read(
        self, plan: FilesPlan, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]:
        """Read the planned files (see `Source.read`)."""
        return self.reader(plan.selection, self.spec, known=known, dead_letters=dead_letters)

    def verify(self, plan: FilesPlan) -> None:
        """Raise an error if a planned file was written again (see `Source.verify`)."""
        refuse_changed(plan.selection)


def open_files_source(context: SourceContext) -> FilesSource:
    """Return the files source of a spec, with `${VAR}` in its path replaced."""
    settings = file_source_of(context.spec)
    return FilesSource(
        spec=context.spec,
        settings=settings.at(resolve(settings.path, context.environ, name="ingest.path")),
        storage_options=context.storage_options,
        reader=partial(open_batch, context.session),
    )


def choose_files(
    files: Sequence[SourceFile],
    checkpoint: Checkpoint | None,
    *,
    full_refresh: bool = False,
    max_files: int = 0,
    max_bytes: int = 0,
) -> FileChoice:
    """Choose the files of a run.

    Args:
        files: All files that the source has.
        checkpoint: The files that commits have read; None for a run by data interval, which reads all files.
        full_refresh: Read all files, also those in the checkpoint; without limits, because a second run of it would
            begin again.
        max_files: The largest number of files; 0 for no limit. Files that were written first are read first.
        max_bytes: The largest stored size of the files, at least one; 0 for no limit.
    """
    ordered = sorted(files, key=lambda file: (file.modified_ms, file.url))
    chosen = tuple(file for file in ordered if checkpoint is None or full_refresh or not checkpoint.has(file))
    if not chosen:
        reason = f"all {len(files)} files are ingested already" if files else "there are no files"
        return FileChoice(files=(), reason=reason)
    waiting = len(chosen)
    if not full_refresh:
        chosen = _limited(chosen, max_files, max_bytes)
    return FileChoice(
        files=chosen,
        reason=f"{len(chosen)} of {len(files)} files will be ingested",
        checkpoint=None if checkpoint is None else checkpoint.after(chosen),
        left=waiting - len(chosen),
    )


def _limited(files: tuple[SourceFile, ...], max_files: int, max_bytes: int) -> tuple[SourceFile, ...]:
    """Return the first files within the limits, at least one."""
    chosen = files[:max_files] if max_files else files
    if not max_bytes:
        return chosen
    sizes = itertools.accumulate(file.size_bytes for file in chosen)
    return chosen[: max(1, sum(size <= max_bytes for size in sizes))]


def _fingerprint(files: Sequence[SourceFile]) -> str:
    entries = b"".join(b"%d:%s" % file.entry for file in files)
    return hashlib.blake2b(entries, digest_size=6).hexdigest()


def _missing_metadata(listing: FileListing) -> dict[str, str]:
    """Return the entry of the commit for missing folders: their number and the first names; empty if there are none."""
    paths = [folder.path for folder in listing.missing]
    value = {"count": len(paths), "names": paths[:NAMES_IN_SUMMARY]}
    return {MISSING: json.dumps(value, ensure_ascii=False)} if paths else {}
