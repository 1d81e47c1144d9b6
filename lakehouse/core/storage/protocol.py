"""What the rest of the house may ask of storage: bytes under relative paths, and one strong verb.

Paths are relative POSIX paths below a root. A store holds files only: a directory is nothing but a prefix that some
file has, so nobody makes one and the last file takes it along. `create` (create-if-absent) is the verb on which the
timeline's truth rests, and `replace_if` (compare and swap) the one on which locks rest; everything else may be repeated
freely.

Every store is picklable and travels to workers as root and options; clients are opened where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from lakehouse.errors import LakehouseError, UserError

TEMPORARY_SUFFIX = ".tmp"


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
    """A file as a listing shows it; `path` is relative to the root of the store, times are UTC milliseconds."""

    path: str
    size_bytes: int
    modified_ms: int

    @property
    def name(self) -> str:
        """Return the last segment of the path."""
        return self.path.rpartition("/")[2]


# Classes whose verb is called `list` need another word for the type.
Files = list[FileInfo]
Names = list[str]
Level = tuple[Files, Names]
Tagged = tuple[bytes, str]


class InputFile(Protocol):
    """A random-access file to read, as Arrow wants it."""

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
    """A file being written: it gets its name when `close` succeeds, never if `abort` or an exception comes first."""

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

    All verbs raise UserError for a path that is not relative and plain or that may not be accessed, and
    RetryableError when a passing fault outlived the bounded retries inside the verb.
    """

    @property
    def root(self) -> str:
        """The place as a person types it: an absolute local path without scheme, or `s3://bucket/prefix`."""
        ...

    def above(self) -> Storage | None:
        """Return the store of the directory that holds the root; None where the root is a bucket or a file system."""
        ...

    def get(self, path: str) -> bytes:
        """Return the whole file; raise NotFoundError when there is none."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`; fewer, or none, when the file ends before."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write the file, replacing what has the name; no reader ever sees a part of it."""
        ...

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Write the file if nothing has its name; True: we made it, False: it was there.

        A lost reply is not a failure. When the outcome is open (timeout, 5xx after sending), the store reads back:

            absent, and the store answered the request      RetryableError: call again
            other bytes                                     False: somebody else has the name
            our bytes, `unique`                             True: nobody else can have written them
            our bytes, not `unique`                         CommitStateUnknownError: a rival may have written the same
            anything else (no answer, or no reading back)   CommitStateUnknownError: it may land yet

        Say `unique=True` only for bytes that no other caller can write (they hold a fresh id). Callers to whom
        True and False are alike (markers, repeated plans) catch CommitStateUnknownError and read back.
        """
        ...

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Write the file if nothing has its name, while the version of the file `guard` is `tag`, in one atomic act.

        None: another version of `guard` is there, or none, and nothing was written. No `replace_if` or `delete_if` of
        `guard` takes effect between the comparison and the write. Otherwise as `create` with unique bytes.
        Raises UnsupportedError where the store cannot (object stores compare one object at a time).
        """
        ...

    def get_tagged(self, path: str) -> Tagged:
        """Return the whole file and the tag of this version of it; raise NotFoundError when there is none.

        Versions that hold the same bytes may have the same tag.
        """
        ...

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the file if its version is still `tag` (None: if there is none) and return the tag of the new version.

        None: another version is there, or none at all, and nothing was written, or what was written unanswered has been
        replaced since: what is there is what counts. The bytes must be such that no other
        caller can write them (they hold a fresh id): a lost reply is settled by reading back, and raises RetryableError
        or CommitStateUnknownError as `create` does. Writers of such a file use no other verb to change it.
        """
        ...

    def delete_if(self, path: str, tag: str) -> bool:
        """Remove the file if its version is still `tag`; False when it was not.

        Raises UnsupportedError where the store cannot (object stores): say "over" by `replace_if` there.
        """
        ...

    def list(self, prefix: str) -> Files:
        """Return all files below the directory `prefix` (`""` is the root), sorted by path; empty when it is absent."""
        ...

    def list_dir(self, prefix: str) -> Level:
        """Return one level below `prefix`, sorted: its files, and the bare names of its sub-directories."""
        ...

    def list_names(self, prefix: str) -> Names:
        """Return the bare names of the files one level below `prefix`, sorted; on disks cheaper than `list_dir`."""
        ...

    def delete(self, path: str) -> bool:
        """Remove the file; False when it was missing, which is a success too."""
        ...

    def delete_many(self, paths: Iterable[str]) -> int:
        """Remove files, missing ones included, and return how many went (all asked, where a store does not tell)."""
        ...

    def open_input(self, path: str) -> InputFile:
        """Open a file for random access by Arrow; raise NotFoundError when there is none."""
        ...

    def open_output(self, path: str) -> OutputFile:
        """Open a file for writing by Arrow, replacing what has the name once `close` succeeded.

        Use it in a `with` block around the writer: an exception inside leaves nothing under the name.
        """
        ...

    def native(self, path: str) -> str:
        """Return what Spark or Arrow can open themselves: an absolute local path, or `s3a://bucket/key`."""
        ...


def is_temporary(name: str) -> bool:
    """Tell whether a file name (or path) is that of an unfinished local write, left behind by a killed process."""
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
    # One scan over the usual path; the split is paid for suspects only.
    if ("/." in path or "//" in path or path[0] in "./" or "\0" in path) and (
        "\0" in path or any(segment in ("", ".", "..") for segment in path.split("/"))
    ):
        raise UserError(f"storage path {path!r} must be relative, without empty segments, '.', '..' or NUL", path=path)
