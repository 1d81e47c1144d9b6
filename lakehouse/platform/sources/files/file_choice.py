"""Choose the files for a run: files that no commit has read, within the limits in the spec."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse.platform.sources.files.file_checkpoint import Checkpoint, SourceFile

#: The number of files, and of missing folders, that a commit lists by name.
NAMES_IN_SUMMARY = 20


class FileCheckpoint(Protocol):
    """A checkpoint for one discovery mode."""

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChoice:
    """The files that a run reads.

    Attributes:
        files: The files.
        reason: A reason to show to users.
        checkpoint: The checkpoint that includes the files; None for a run by data interval.
        left: The number of files, or files with notifications, that a limit leaves for later runs.
        warning: A warning for the report; empty for none.
        metadata: Further entries for the commit's extra metadata.
    """

    files: tuple[SourceFile, ...]
    reason: str
    checkpoint: FileCheckpoint | None = None
    left: int = 0
    warning: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The stored size of all files."""
        return sum(file.size_bytes for file in self.files)

    def summary(self) -> str:
        """Return the files' number, size in bytes and first names, as JSON."""
        names = [file.url for file in self.files[:NAMES_IN_SUMMARY]]
        value = {"count": len(self.files), "bytes": self.size_bytes, "names": names}
        return json.dumps(value, ensure_ascii=False)


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
        files: All files in the source.
        checkpoint: The files that commits have read; None for a run by data interval, which reads all files.
        full_refresh: Read all files, even if they are in the checkpoint; without limits, because a second full refresh
            would start again.
        max_files: The maximum number of files; 0 for no limit. The oldest files are read first.
        max_bytes: The maximum total size of the files in bytes; 0 for no limit. At least one file is read.
    """
    ordered = sorted(files, key=lambda file: (file.modified_ms, file.url))
    chosen = tuple(file for file in ordered if checkpoint is None or full_refresh or not checkpoint.has(file))
    if not chosen:
        reason = f"all {len(files)} files are ingested already" if files else "there are no files"
        return FileChoice(files=(), reason=reason)
    waiting = len(chosen)
    if not full_refresh:
        chosen = limited(chosen, max_files, max_bytes)
    return FileChoice(
        files=chosen,
        reason=f"{len(chosen)} of {len(files)} files will be ingested",
        checkpoint=None if checkpoint is None else checkpoint.after(chosen),
        left=waiting - len(chosen),
    )


def limited(files: tuple[SourceFile, ...], max_files: int, max_bytes: int) -> tuple[SourceFile, ...]:
    """Return the first files within the limits, at least one."""
    chosen = files[:max_files] if max_files else files
    if not max_bytes:
        return chosen
    sizes = itertools.accumulate(file.size_bytes for file in chosen)
    return chosen[: max(1, sum(size <= max_bytes for size in sizes))]
