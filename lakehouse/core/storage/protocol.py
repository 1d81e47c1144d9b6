"""The storage protocol: bytes under relative paths, with create-if-absent and compare-and-swap.

Paths are relative POSIX paths below a root. A store holds files only. A directory is a prefix of file paths: it exists
while it has a file. The timeline depends on `create` (create-if-absent), locks depend on `replace_if`
(compare-and-swap). All other methods may be repeated.

A store is pickled as root and options. Clients are opened in the process that uses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from lakehouse.errors import LakehouseError, UserError

TEMPORARY_SUFFIX = ".tmp"
#: Tags of stores without conditional puts begin with this: they compare and write in two requests.
UNCONDITIONAL = "unconditional "


class NotFoundError(LakehouseError):
    """No file has this name; `path` is relative to the root of the store."""

    exit_code = 65

    def __init__(self, message: str, *, path: str, **facts: Any) -> None:
        super().__init__(message, path=path, **facts)
        self.path = path


class RequestRefusedError(UserError):
    """The store refused a request; `status` is its HTTP status, None if the client library refused it."""

    def __init__(self, message: str, *, status: int | None, **facts: Any) -> None:
        super().__init__(message, status=status, **facts)
        self.status = status


@dataclass(frozen=True, slots=True)
class FileInfo:
    """An entry of a listing; `path` is relative to the root of the store, times are UTC milliseconds."""

    path: str
    size_bytes: int
    modified_ms: int

    @property
    def name(self) -> str:
        """Return the last segment of the path."""
        return self.path.rpartition("/")[2]


# Classes with a method `list` need an alias for the type.
Files = list[FileInfo]
Names = list[str]
Level = tuple[Files, Names]
Tagged = tuple[bytes, str]


class InputFile(Protocol):
    """A random-access input file in the form that Arrow reads."""

    @property
    def closed(self) -> bool: ...
    def read(self, nbytes: int = -1, /) -> bytes: ...
    def seek(self, position: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...
    def size(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...


class OutputFile(Protocol):
    """An output file: it gets its name when `close` succeeds, and never after `abort` or an exception."""

    @property
    def closed(self) -> bool: ...
    def write(self, data: Any, /) -> int: ...
    def tell(self) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...


class Storage(Protocol):
    """Files below one root.

    All methods raise UserError for a path that is not relative and plain or that the user may not access. For reads and
    deletes, a path that is longer than the store allows is absent, because no file can have it. They raise
    RetryableError if a transient fault persists after the bounded retries of the method.
    """

    @property
    def root(self) -> str:
        """The location: an absolute local path without scheme, or a URL such as `s3://bucket/prefix`."""
        ...

    def above(self) -> Storage | None:
        """Return the store of the parent directory; None if the root is a bucket or a file system."""
        ...

    def get(self, path: str) -> bytes:
        """Return the whole file; raise NotFoundError if it does not exist."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`; fewer or none at the end of the file."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write the file and replace an existing one; readers never get a partial file."""
        ...

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Create the file if it does not exist; return whether this call created it.

        A lost reply is not a failure. If the outcome is unknown (timeout, 5xx after sending), the store reads back:

            absent, and the store answered the request      RetryableError: call again
            other bytes                                     False: another process created the file
            the same bytes, `unique`                        True: no other process can have written them
            the same bytes, not `unique`                    CommitStateUnknownError: possibly of another process
            otherwise (no reply, or the read failed)        CommitStateUnknownError: the request may still take effect

        Pass `unique=True` only for bytes that no other caller can write (they contain a new id). Callers that need not
        know which process created the file (markers, repeated plans) catch CommitStateUnknownError and read back.
        """
        ...

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Create the file if it does not exist and the version of the file `guard` is `tag`, atomically.

        Returns None without writing if `guard` has another version or does not exist. No `replace_if` or `delete_if` of
        `guard` takes effect between the comparison and the write. Otherwise the same as `create` with unique bytes.
        Raises UnsupportedError if the store cannot do it (object stores compare one object per request).
        """
        ...

    def get_tagged(self, path: str) -> Tagged:
        """Return the whole file and the tag of its version; raise NotFoundError if it does not exist.

        Versions with the same bytes may have the same tag.
        """
        ...

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the file if its version is `tag` (None: if it does not exist) and return the tag of the new version.

        Returns None if the file has another version or does not exist. Then nothing was written, or the reply was lost
        and another process has replaced the new version since. The bytes must contain a new id, so that no other caller
        can write them: after a lost reply the file is read back. Raises RetryableError and CommitStateUnknownError as
        `create` does. All writers of such a file use this method.
        """
        ...

    def delete_if(self, path: str, tag: str) -> bool:
        """Delete the file if its version is `tag`; return whether it was deleted.

        Raises UnsupportedError if the store cannot do it (object stores): write an end mark with `replace_if` there.
        """
        ...

    def list(self, prefix: str) -> Files:
        """Return all files below the directory `prefix` (`""` is the root), sorted by path; none if it is absent."""
        ...

    def list_after(self, after: str) -> Files:
        """Return all files whose paths are greater than `after`, sorted by path.

        An object store does not list the paths before it.
        """
        ...

    def find(self, path: str) -> FileInfo | None:
        """Return size and time of a file; None if it does not exist."""
        ...

    def list_dir(self, prefix: str) -> Level:
        """Return one level below `prefix`, sorted: its files, and the names of its sub-directories."""
        ...

    def list_names(self, prefix: str) -> Names:
        """Return the names of the files one level below `prefix`, sorted; faster than `list_dir` on local disks."""
        ...

    def delete(self, path: str) -> bool:
        """Delete the file. Return False if it did not exist; that is not an error."""
        ...

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete files, which may be missing.

        Return the number that existed, or the number of all files if the store does not report it.
        """
        ...

    def open_input(self, path: str) -> InputFile:
        """Open a file for random access by Arrow; raise NotFoundError if it does not exist."""
        ...

    def open_output(self, path: str) -> OutputFile:
        """Open a file for writing by Arrow; `close` gives it its name and replaces an existing file.

        Use it in a `with` block around the writer: after an exception inside the block no file is written.
        """
        ...

    def native(self, path: str) -> str:
        """Return the path that Spark or Arrow can open: an absolute local path, or `s3a://bucket/key`."""
        ...


def is_temporary(name: str) -> bool:
    """Return whether a file name or path is a temporary file of a local write; killed processes leave such files."""
    last = name.rpartition("/")[2]
    return last.startswith(".") and last.endswith(TEMPORARY_SUFFIX)


def check_path(path: str) -> str:
    """Return the path of a file; raise UserError unless it is relative, plain POSIX (no `..`, `.`, `//`)."""
    if not path or path[0] == "/" or path[-1] == "/":
        raise UserError(f"storage path {path!r} must be relative and name a file", path=path)
    _check_segments(path)
    return path


def check_prefix(prefix: str) -> str:
    """Return a directory prefix without its trailing slash, `""` for the root; raise UserError if it is not plain."""
    plain = prefix[:-1] if prefix.endswith("/") else prefix
    if plain:
        _check_segments(plain)
    return plain


def _check_segments(path: str) -> None:
    # A fast scan decides for usual paths; only suspicious paths are split.
    if ("/." in path or "//" in path or path[0] in "./" or "\0" in path) and (
        "\0" in path or any(segment in ("", ".", "..") for segment in path.split("/"))
    ):
        raise UserError(f"storage path {path!r} must be relative, without empty segments, '.', '..' or NUL", path=path)
