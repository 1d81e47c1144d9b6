"""List the files in a run's paths.

A path is a file, a directory with everything below it, or a pattern. Files and directories whose names begin with `.`
or `_` contain no data and are skipped, and so are files with a suffix in `UNFINISHED`, which copy tools remove when the
file is complete. A file given as the path itself is read, and a pattern that ends in such a suffix selects it.
"""

from __future__ import annotations

import fnmatch
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import FileInfo, Storage
from lakehouse.errors import SourceChangedError, UserError
from lakehouse.platform.sources.files.file_checkpoint import SourceFile
from lakehouse.platform.sources.files.file_paths import has_wildcard, split_path

log = logging.getLogger(__name__)

#: Number of paths and directories that are listed in parallel.
_AT_ONCE = 16
#: Suffixes of files that are being written by HDFS, browsers, transfer tools and streaming tools.
UNFINISHED = (
    "._COPYING_",
    ".crdownload",
    ".filepart",
    ".gstmp",
    ".inprogress",
    ".part",
    ".partial",
    ".swp",
    ".temp",
    ".tmp",
    ".uploading",
    "~",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """One path of a run: its number of data files, and whether a file or directory of this path exists.

    `unfinished` contains the paths of files that, by their names, are being written.
    """

    path: str
    files: int
    exists: bool
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSelection:
    """Files and the storage that contains them."""

    storage: Storage
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """The files in a run's paths, ordered by modification time and address, and the storage that contains them.

    `folders` has one entry per path, in the order of the paths.
    """

    storage: Storage
    files: tuple[SourceFile, ...]
    folders: tuple[FolderListing, ...]

    @property
    def missing(self) -> tuple[FolderListing, ...]:
        """The folders without data files."""
        return tuple(folder for folder in self.folders if not folder.files)

    @property
    def warning(self) -> str:
        """A sentence about files that are not read because they are being written; empty if there are none."""
        names = [name for folder in self.folders for name in folder.unfinished]
        if not names:
            return ""
        return (
            f"{len(names)} files are not read because their names are those of unfinished uploads, such as {names[0]}. "
            "Rename them when they are complete, or end 'path' in a pattern with this suffix"
        )


def list_source(paths: Sequence[str], options: Mapping[str, str]) -> FileListing:
    """List the files in `paths`, which are absolute or have a scheme, and contain no placeholders.

    Object stores have no empty directories. A path of an object store that ends in `/` or in a pattern and has no files
    therefore counts as an empty directory; every other path without files counts as not existing.
    """
    storage, listings = _list_one(paths[0], options) if len(paths) == 1 else _list_all(paths, options)
    # Patterns in two paths may match the same file.
    by_url = {file.url: file for _, files in listings for file in files}
    ordered = tuple(sorted(by_url.values(), key=lambda file: (file.modified_ms, file.url)))
    where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    log.info("source %s: %s files, %s bytes", where, len(ordered), sum(file.size_bytes for file in ordered))
    return FileListing(storage=storage, files=ordered, folders=tuple(folder for folder, _ in listings))


def refuse_changed(selection: FileSelection, *, by_name: bool = False) -> None:
    """Raise SourceChangedError if a file was rewritten after it was listed.

    It is then unknown which version was read. The commit would record the listed version, and the next run would read
    the new version and insert its rows a second time. A deleted file is not an error: it was read, and no later run
    reads it. Each directory is listed once, or with `by_name` each file is looked up.
    """
    storage, files = selection.storage, selection.files
    directories = sorted({file.path.rpartition("/")[0] for file in files})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        if by_name:
            infos = [info for info in pool.map(storage.find, [file.path for file in files]) if info is not None]
        else:
            infos = [info for infos, _ in pool.map(storage.list_dir, directories) for info in infos]
        current = {info.path: source_file(storage, info) for info in infos}
    changed = [file.url for file in files if current.get(file.path, file) != file]
    if changed:
        others = f" and {len(changed) - 1} other files" if len(changed) > 1 else ""
        raise SourceChangedError(
            f"{changed[0]}{others} changed while being read; nothing was committed, run again. "
            "Write files under a name that begins with '.' or '_', and rename them when they are complete",
            path=changed[0],
        )


_PathListing = tuple[FolderListing, list[SourceFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The data files of a path, and those that are being written."""

    data: Sequence[FileInfo] = ()
    unfinished: Sequence[FileInfo] = ()


_NO_FILES = _Files()


def _list_one(path: str, options: Mapping[str, str]) -> tuple[Storage, list[_PathListing]]:
    """List one path with a separate storage; the parent directory is listed only if the path has no files."""
    root, pattern = split_path(path)
    storage = open_storage(root, options, follow_links=True)
    files = _files(storage, "", pattern)
    if files is not None or root == "/" or _is_bucket(root):
        return storage, [_path_listing(storage, path, pattern, files or _NO_FILES, exists=True)]
    parent, _, name = root.rpartition("/")
    parent_storage = open_storage(parent or "/", options, follow_links=True)
    same, exists = _look_up(parent_storage, name, pattern)
    return parent_storage, [_path_listing(parent_storage, path, pattern, _Files(data=same), exists=exists)]


def _list_all(paths: Sequence[str], options: Mapping[str, str]) -> tuple[Storage, list[_PathListing]]:
    """List several paths in parallel, with the storage of their common directory."""
    roots = [split_path(path) for path in paths]
    base = _shared_root([root for root, _ in roots])
    storage = open_storage(base, options, follow_links=True)

    def list_path(number: int) -> _PathListing:
        root, pattern = roots[number]
        prefix = root.removeprefix(base).strip("/")
        files = _files(storage, prefix, pattern)
        if files is not None or not prefix:
            return _path_listing(storage, paths[number], pattern, files or _NO_FILES, exists=True)
        same, exists = _look_up(storage, prefix, pattern)
        return _path_listing(storage, paths[number], pattern, _Files(data=same), exists=exists)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return storage, list(pool.map(list_path, range(len(paths))))


def _path_listing(
    storage: Storage, path: str, pattern: tuple[str, ...], files: _Files, *, exists: bool
) -> _PathListing:
    may_be_empty = _is_object_store(path) and (bool(pattern) or path.endswith("/"))
    folder = FolderListing(
        path=path,
        files=len(files.data),
        exists=exists or may_be_empty,
        unfinished=tuple(file.path for file in files.unfinished),
    )
    return folder, [source_file(storage, file) for file in files.data]


def _files(storage: Storage, prefix: str, pattern: tuple[str, ...]) -> _Files | None:
    """Return the files below a directory that match the pattern; None if it has no files at all."""
    infos = _matching(storage, prefix, pattern) if pattern else storage.list(prefix)
    lead = f"{prefix}/" if prefix else ""
    data = [file for file in infos if not is_hidden(file.path.removeprefix(lead))]
    unfinished = [] if pattern and is_unfinished(pattern[-1]) else [file for file in data if is_unfinished(file.path)]
    return _Files(data=[file for file in data if file not in unfinished], unfinished=unfinished) if infos else None


def _look_up(storage: Storage, path: str, pattern: tuple[str, ...]) -> tuple[list[FileInfo], bool]:
    """Return the file with exactly this path, if any, and whether a file or directory of this path exists."""
    parent, _, name = path.rpartition("/")
    files, directories = storage.list_dir(parent)
    same = [file for file in files if file.name == name and not pattern]
    return same, bool(same) or name in directories


def _shared_root(roots: Sequence[str]) -> str:
    """Return the deepest directory that contains all roots; raise UserError if they are in several buckets."""
    if len(set(roots)) == 1:
        return roots[0]
    scheme, separator, _ = roots[0].partition("://") if "://" in roots[0] else ("", "", "")
    lead = f"{scheme}{separator}"
    parents = [root.removeprefix(lead).split("/")[:-1] for root in roots]
    equal = itertools.takewhile(lambda segments: len(set(segments)) == 1, zip(*parents, strict=False))
    shared = [segments[0] for segments in equal]
    if separator and not shared:
        raise UserError(
            f"ingest.path: {roots[0]!r} and {roots[-1]!r} are in two buckets, and a run reads from one bucket. Use an "
            "interval of one step, or a path with the placeholder below the bucket",
            path=roots[0],
        )
    return lead + "/".join(shared) if separator else "/".join(shared) or "/"


def _matching(storage: Storage, prefix: str, pattern: tuple[str, ...]) -> list[FileInfo]:
    """Return the matching files; a directory that matches the last segment includes all files below it.

    Each level lists only the directories that match the pattern so far.
    """
    segment, rest = pattern[0], pattern[1:]
    lead = f"{prefix}/" if prefix else ""
    if segment == "**":
        return [file for file in storage.list(prefix) if _matches_below(file.path.removeprefix(lead), rest)]
    if not has_wildcard(segment) and rest:
        return _matching(storage, lead + segment, rest)
    files, directories = storage.list_dir(prefix)
    matches = [] if rest else [file for file in files if fnmatch.fnmatchcase(file.name, segment)]
    for directory in directories:
        if fnmatch.fnmatchcase(directory, segment) and not is_hidden(directory):
            below = lead + directory
            matches += _matching(storage, below, rest) if rest else storage.list(below)
    return matches


def matches(path: str, pattern: tuple[str, ...]) -> bool:
    """Return whether a path below a root matches a pattern, or is in a directory that matches it."""
    if pattern and pattern[0] == "**":
        return _matches_below(path, pattern[1:])
    if "**" in pattern:
        raise UserError("ingest.path: '**' must be the first wildcard of this path", pattern="/".join(pattern))
    segments = path.split("/")
    return len(segments) >= len(pattern) and all(map(fnmatch.fnmatchcase, segments, pattern))


def _matches_below(path: str, pattern: tuple[str, ...]) -> bool:
    """Return whether a path matches after any number of directories."""
    segments = path.split("/")
    if not pattern:
        return True
    if "**" in pattern:
        raise UserError("ingest.path: a pattern may contain '**' only once", pattern="/".join(pattern))
    tail = segments[-len(pattern) :]
    return len(tail) == len(pattern) and all(map(fnmatch.fnmatchcase, tail, pattern))


def _is_object_store(path: str) -> bool:
    return "://" in path and not path.startswith("file:")


def _is_bucket(root: str) -> bool:
    return _is_object_store(root) and "/" not in root.partition("://")[2]


def is_hidden(path: str) -> bool:
    """Return whether a path contains no data, by the name of its file or directory."""
    return any(segment.startswith((".", "_")) for segment in path.split("/"))


def is_unfinished(path: str) -> bool:
    """Return whether a file is being written, by its name."""
    return path.endswith(UNFINISHED)


def source_file(storage: Storage, file: FileInfo) -> SourceFile:
    """Return a listed file with its address; raise UserError for a name that is not UTF-8."""
    try:
        file.path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the name of the file {os.fsencode(file.path)!r} in {storage.root} is not UTF-8, so neither Spark nor the "
            "checkpoint can have it. Rename the file",
            path=ascii(file.path),
        ) from error
    return SourceFile(
        url=f"{storage.root.rstrip('/')}/{file.path}",
        path=file.path,
        size_bytes=file.size_bytes,
        modified_ms=file.modified_ms,
    )
