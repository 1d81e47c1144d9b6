"""Files as a source: which there are, and which of them a run takes.

A path names one file, a directory (everything below it) or a pattern; a run reads one path, or one per step of its data
interval. Names that begin with `.` or `_` are never data. Listing touches storage; `plan_ingest` decides on values
alone.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import FileInfo, Storage
from lakehouse.errors import SourceChangedError, UserError
from lakehouse.platform.sources.file_checkpoint import Checkpoint, SourceFile
from lakehouse.platform.sources.file_paths import Interval, has_wildcard, split_path
from lakehouse.spec.contracts.job import JobReason, interval_text

log = logging.getLogger(__name__)

_AT_ONCE = 16
#: Names that the commit's summary of its input spells out.
NAMES_IN_SUMMARY = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFolder:
    """One path of a run: how many data files it names, and whether there is such a file or directory at all."""

    path: str
    files: int
    exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """The files of a run's paths, ordered by modification time and address, and the storage that holds them.

    `folders` are the paths, in the order in which they were given.
    """

    storage: Storage
    files: tuple[SourceFile, ...]
    folders: tuple[SourceFolder, ...]

    @property
    def missing(self) -> tuple[SourceFolder, ...]:
        """The folders in which there is nothing to read."""
        return tuple(folder for folder in self.folders if not folder.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What a run takes, and what its commit will say about it.

    `files` is empty when there is nothing to do; `reason` and `code` say why. `checkpoint` is what the commit must
    carry, None for a run by interval; `interval` is the interval as commits carry it.
    """

    files: tuple[SourceFile, ...]
    reason: str
    code: JobReason = JobReason.NONE
    checkpoint: Checkpoint | None = None
    interval: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the plan, as stored."""
        return sum(file.size_bytes for file in self.files)

    def summary(self) -> str:
        """Return number, bytes and first names of the files as JSON, for the commit."""
        names = [file.url for file in self.files[:NAMES_IN_SUMMARY]]
        value = {"count": len(self.files), "bytes": self.size_bytes, "names": names}
        return json.dumps(value, ensure_ascii=False)


def plan_ingest(
    files: Sequence[SourceFile],
    checkpoint: Checkpoint,
    *,
    interval: Interval | None = None,
    by_interval: bool = False,
    committed_at: str | None = None,
    repeat: bool = False,
    full_refresh: bool = False,
) -> IngestPlan:
    """Choose the files of a run.

    `committed_at` is the instant whose commit carries this interval already: then nothing is done, unless `repeat`.
    `by_interval`: the path was filled with the interval, so the run takes all files it names; otherwise it takes those
    that `checkpoint` does not hold. `full_refresh` takes every file, whatever commits say.
    """
    name = None if interval is None else interval_text(interval)
    if committed_at is not None and not (repeat or full_refresh):
        reason = f"interval {name} is in commit {committed_at} already"
        return IngestPlan(files=(), reason=reason, code=JobReason.INTERVAL_INGESTED, interval=name)
    ordered = sorted(files, key=lambda file: (file.modified_ms, file.url))
    chosen = tuple(file for file in ordered if by_interval or full_refresh or not checkpoint.has(file))
    if not chosen:
        reason = f"all {len(files)} files are ingested already" if files else "there are no files"
        return IngestPlan(files=(), reason=reason, code=JobReason.NO_NEW_DATA, interval=name)
    return IngestPlan(
        files=chosen,
        reason=f"{len(chosen)} of {len(files)} files are to ingest",
        checkpoint=None if by_interval else checkpoint.after(chosen),
        interval=name,
    )


def list_source(paths: Sequence[str], options: Mapping[str, str]) -> SourceListing:
    """List the files that `paths` (absolute or with a scheme; no placeholders) name.

    A path without files is one of `missing`. One that does not exist counts as an empty directory on an object store
    if it ends in `/` or in a pattern, because there are no empty directories there.
    """
    storage, looked = _looked_at_one(paths[0], options) if len(paths) == 1 else _looked_at_all(paths, options)
    # Patterns of two paths may name the same file.
    named = {file.url: file for _, found in looked for file in found}
    files = tuple(sorted(named.values(), key=lambda file: (file.modified_ms, file.url)))
    where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    log.info("source %s: %s files, %s bytes", where, len(files), sum(file.size_bytes for file in files))
    return SourceListing(storage=storage, files=files, folders=tuple(folder for folder, _ in looked))


def refuse_changed(storage: Storage, files: Sequence[SourceFile]) -> None:
    """Raise SourceChangedError if a file was written again since it was listed: which version was read is unknown.

    A commit would say that it holds the listed version, and the next run would bring the rows of the other one again.
    Each directory of the files is listed once. Who vanished is no error: it was read, and will not be read again.
    """
    directories = sorted({file.path.rpartition("/")[0] for file in files})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        levels = pool.map(storage.list_dir, directories)
        now = {info.path: _source_file(storage, info) for found, _ in levels for info in found}
    changed = [file.url for file in files if now.get(file.path, file) != file]
    if changed:
        others = f" and {len(changed) - 1} other files" if len(changed) > 1 else ""
        raise SourceChangedError(
            f"{changed[0]}{others} changed while being read; nothing was committed, run again. "
            "Who lands files should write them under a name that begins with '.' or '_' and rename them when complete",
            path=changed[0],
        )


_Looked = tuple[SourceFolder, list[SourceFile]]


def _looked_at_one(path: str, options: Mapping[str, str]) -> tuple[Storage, list[_Looked]]:
    """Look at one path with a storage of its own: a directory is listed without a look at the one above it."""
    root, pattern = split_path(path)
    storage = open_storage(root, options, follow_links=True)
    found = _files(storage, "", pattern)
    if found is not None or root == "/" or _is_bucket(root):
        return storage, [_looked(storage, path, pattern, found or [], exists=True)]
    parent, _, name = root.rpartition("/")
    beside = open_storage(parent or "/", options, follow_links=True)
    same, exists = _beside(beside, name, pattern)
    return beside, [_looked(beside, path, pattern, same, exists=exists)]


def _looked_at_all(paths: Sequence[str], options: Mapping[str, str]) -> tuple[Storage, list[_Looked]]:
    """Look at several paths, some at a time, with the storage of the directory that they share."""
    roots = [split_path(path) for path in paths]
    base = _shared_root([root for root, _ in roots])
    storage = open_storage(base, options, follow_links=True)

    def look(number: int) -> _Looked:
        root, pattern = roots[number]
        prefix = root.removeprefix(base).strip("/")
        found = _files(storage, prefix, pattern)
        if found is not None or not prefix:
            return _looked(storage, paths[number], pattern, found or [], exists=True)
        same, exists = _beside(storage, prefix, pattern)
        return _looked(storage, paths[number], pattern, same, exists=exists)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return storage, list(pool.map(look, range(len(paths))))


def _looked(
    storage: Storage, path: str, pattern: tuple[str, ...], found: Sequence[FileInfo], *, exists: bool
) -> _Looked:
    may_be_empty = _is_object_store(path) and (bool(pattern) or path.endswith("/"))
    folder = SourceFolder(path=path, files=len(found), exists=exists or may_be_empty)
    return folder, [_source_file(storage, file) for file in found]


def _files(storage: Storage, prefix: str, pattern: tuple[str, ...]) -> list[FileInfo] | None:
    """Return the data files below a directory that match; None if nothing at all is there."""
    found = _matching(storage, prefix, pattern) if pattern else storage.list(prefix)
    lead = f"{prefix}/" if prefix else ""
    return [file for file in found if not _is_hidden(file.path.removeprefix(lead))] if found else None


def _beside(storage: Storage, path: str, pattern: tuple[str, ...]) -> tuple[list[FileInfo], bool]:
    """Return the file of this very path, if it is one, and whether there is a file or directory of this name."""
    parent, _, name = path.rpartition("/")
    files, directories = storage.list_dir(parent)
    same = [file for file in files if file.name == name and not pattern]
    return same, bool(same) or name in directories


def _shared_root(roots: Sequence[str]) -> str:
    """Return the deepest directory that all roots are in; raise UserError if they are in several buckets."""
    if len(set(roots)) == 1:
        return roots[0]
    scheme, separator, _ = roots[0].partition("://") if "://" in roots[0] else ("", "", "")
    lead = f"{scheme}{separator}"
    parents = [root.removeprefix(lead).split("/")[:-1] for root in roots]
    # Only the segments at which all of them agree, from the first on.
    agree = itertools.takewhile(lambda segments: len(set(segments)) == 1, zip(*parents, strict=False))
    shared = [segments[0] for segments in agree]
    if separator and not shared:
        raise UserError(
            f"ingest.path: {roots[0]!r} and {roots[-1]!r} are in two buckets, and a run reads from one. Take an "
            "interval of one step, or a path with the placeholder below the bucket",
            path=roots[0],
        )
    return lead + "/".join(shared) if separator else "/".join(shared) or "/"


def _matching(storage: Storage, prefix: str, pattern: tuple[str, ...]) -> list[FileInfo]:
    """Walk the directories that match, one pattern segment a level; what a last segment names is taken whole."""
    segment, rest = pattern[0], pattern[1:]
    lead = f"{prefix}/" if prefix else ""
    if segment == "**":
        return [file for file in storage.list(prefix) if _matches_below(file.path.removeprefix(lead), rest)]
    if not has_wildcard(segment) and rest:
        return _matching(storage, lead + segment, rest)
    files, directories = storage.list_dir(prefix)
    found = [] if rest else [file for file in files if fnmatch.fnmatchcase(file.name, segment)]
    for directory in directories:
        if fnmatch.fnmatchcase(directory, segment) and not _is_hidden(directory):
            below = lead + directory
            found += _matching(storage, below, rest) if rest else storage.list(below)
    return found


def _matches_below(path: str, pattern: tuple[str, ...]) -> bool:
    """Tell whether a path matches after any number of directories."""
    segments = path.split("/")
    if not pattern:
        return True
    if "**" in pattern:
        raise UserError("a path pattern may hold '**' once", pattern="/".join(pattern))
    tail = segments[-len(pattern) :]
    return len(tail) == len(pattern) and all(map(fnmatch.fnmatchcase, tail, pattern))


def _is_object_store(path: str) -> bool:
    return "://" in path and not path.startswith("file:")


def _is_bucket(root: str) -> bool:
    return _is_object_store(root) and "/" not in root.partition("://")[2]


def _is_hidden(path: str) -> bool:
    return any(segment.startswith((".", "_")) for segment in path.split("/"))


def _source_file(storage: Storage, file: FileInfo) -> SourceFile:
    return SourceFile(
        url=f"{storage.root.rstrip('/')}/{file.path}",
        path=file.path,
        size_bytes=file.size_bytes,
        modified_ms=file.modified_ms,
    )
