"""The store of a local (or mounted) disk, on plain system calls.

Files appear atomically. Bytes are written to a temporary file in the same directory. Then `rename` (put) or `link`
(create: the kernel refuses an existing name) gives the file its name. An empty file is created under its own name. A
killed process may leave a temporary file. No Hudi reader reads it (see `temporary_name`), and `is_temporary` recognizes
it.

The local store of obstore was measured for comparison: it reads small files 5 to 10 times slower, lists and writes a
little slower, and also implements create-if-absent by `link`.

With `lakehouse.storage.fsync` a commit survives a crash of the machine, without it only of the process (`local_sync`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from stat import S_ISDIR
from typing import Any, BinaryIO

import pyarrow as pa

from lakehouse.core.storage.atomic_output import AtomicOutput
from lakehouse.core.storage.local_links import open_directory
from lakehouse.core.storage.local_reads import (
    check_name,
    check_place,
    open_directory_to_read,
    open_file,
    read_whole,
    refused_link,
)
from lakehouse.core.storage.local_sync import outlives_write, parse_fsync, sync_bytes, sync_name
from lakehouse.core.storage.os_errors import ABSENT, translate, translated
from lakehouse.core.storage.protocol import (
    TEMPORARY_SUFFIX,
    FileInfo,
    Files,
    InputFile,
    Level,
    Names,
    NotFoundError,
    OutputFile,
    Tagged,
    check_path,
    check_prefix,
)
from lakehouse.core.system.clock import SystemClock, WaitClock
from lakehouse.errors import RetryableError, UnsupportedError

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# Maximum length of the final name inside a temporary name, because file systems allow 255 bytes.
_SHOWN_BYTES = 160
_tokens = itertools.count(1)
# Maximum number of attempts: the temporary name may exist, or another process may remove the directory with its last
# file.
_MOST_NAMES = 100
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Maximum wait for the kernel lock of a file, and the pause between two tries.
_PATIENCE_S = 10.0
_PAUSE_S = 0.002
#: Directories in which all writers of a table create files.
_SHARED = (".hoodie/.temp", ".hoodie/.heartbeat")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class LocalStorage:
    """A local directory as a store; it need not exist before the first write.

    Symbolic links below it are refused unless `follow_links` is set, because they could lead out of it (`local_reads`).
    With `fsync` (default: from the environment) files of the table are on the disk when a call returns (`local_sync`).
    """

    def __init__(
        self, root: str, *, follow_links: bool = False, fsync: bool | None = None, clock: WaitClock | None = None
    ) -> None:
        self.root = os.path.abspath(root)
        self._follow_links = follow_links
        self._fsync = parse_fsync(None) if fsync is None else fsync
        self._clock = clock or SystemClock()
        self._synced: dict[str, int] = {}
        self._base = self.root.rstrip("/") + "/"

    def __repr__(self) -> str:
        return f"LocalStorage({self.root!r})"

    def above(self) -> LocalStorage | None:
        """Return the store of the parent directory."""
        parent = os.path.dirname(self.root)
        return None if parent == self.root else LocalStorage(parent, clock=self._clock)

    def get(self, path: str) -> bytes:
        """Return the whole file."""
        with translated(path), self._opened(path) as (descriptor, size):
            return read_whole(descriptor, size, self.root, path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`."""
        with translated(path), self._opened(path) as (descriptor, _):
            return _pread(descriptor, start, length)

    def put(self, path: str, data: bytes) -> None:
        """Write the file and replace an existing one."""
        target = self._base + check_path(path)
        with translated(path, writing=True):
            _give_name(self._write_temporary(path, data), target)
            self._sync_name(path)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Create the file if it does not exist; `unique` has no effect, because a local reply is never lost."""
        target = self._base + check_path(path)
        with translated(path, writing=True):
            if not data:
                return self._create_empty(path)
            temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise UnsupportedError(
                        f"cannot create {target!r}: its file system has no hard links ({error.strerror}); without "
                        "them two writers could create the same file. Use a disk with hard links, or s3://.",
                        path=path,
                    ) from error
                raise
            finally:
                # The link decides the outcome. A remaining temporary file is cleaned up later.
                with suppress(OSError):
                    _remove(temporary)
            self._sync_name(path)
            return True

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Create the file if it does not exist, under the kernel lock on `guard` that `replace_if` also uses."""
        with translated(guard, writing=True), exclusive(self._base + check_path(guard), self._clock) as content:
            return self.create(path, data) if content is not None and _tag(content) == tag else None

    def get_tagged(self, path: str) -> Tagged:
        """Return the whole file; its tag is the digest of its bytes."""
        data = self.get(path)
        return data, _tag(data)

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the file if its bytes have the digest `tag`, under a kernel lock."""
        if tag is None:
            return _tag(data) if self.create(path, data) else None
        target = self._base + check_path(path)
        with translated(path, writing=True), exclusive(target, self._clock) as content:
            if content is None or _tag(content) != tag:
                return None
            _give_name(self._write_temporary(path, data), target)
            self._sync_name(path)
        return _tag(data)

    def delete_if(self, path: str, tag: str) -> bool:
        """Delete the file if its bytes have the digest `tag`, under a kernel lock."""
        target = self._base + check_path(path)
        with translated(path), exclusive(target, self._clock) as content:
            if content is None or _tag(content) != tag or not _remove(target):
                return False
        self._prune({path.rpartition("/")[0]})
        return True

    def list(self, prefix: str) -> Files:
        """Return all files below `prefix`, sorted by path."""
        listing: Files = []
        pending = [check_prefix(prefix)]
        while pending:
            files, directories = self._scan(pending.pop())
            listing += files
            pending += directories
        return sorted(listing, key=_by_path)

    def list_after(self, after: str) -> Files:
        """Return all files with paths greater than `after`, sorted by path."""
        return [file for file in self.list("") if file.path > after]

    def find(self, path: str) -> FileInfo | None:
        """Return size and time of a file; None if it does not exist."""
        try:
            with translated(path), self._opened(path) as (descriptor, size):
                return FileInfo(path, size, os.fstat(descriptor).st_mtime_ns // 1_000_000)
        except NotFoundError:
            return None

    def list_dir(self, prefix: str) -> Level:
        """Return the files and sub-directory names one level below `prefix`, including empty directories."""
        files, directories = self._scan(check_prefix(prefix))
        return sorted(files, key=_by_path), sorted(directory.rpartition("/")[2] for directory in directories)

    def list_names(self, prefix: str) -> Names:
        """Return the names of the files one level below `prefix`, sorted, without reading their sizes and times."""
        prefix = check_prefix(prefix)
        with translated(prefix), self._entries(prefix, checked=False) as entries:
            return sorted([e.name for e in entries if e.is_file(follow_symlinks=False) or self._is_other(e, prefix)])

    def delete(self, path: str) -> bool:
        """Delete the file and parent directories that become empty; return False if it did not exist.

        Raises CorruptTableError if a directory on the way is a symbolic link; so does `delete_many`.
        """
        return self.delete_many([path]) == 1

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete files and parent directories that become empty; return how many files existed."""
        removed = 0
        parents: set[str] = set()
        # Keep the order: some callers delete last the file that refers to the others.
        for parent, group in groupby(paths, key=_parent):
            parents.add(parent)
            removed += self._delete_in(parent, group)
        self._prune(parents)
        return removed

    def _delete_in(self, parent: str, paths: Iterable[str]) -> int:
        with translated(parent):
            try:
                directory = open_directory(self._base, parent)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                return 0
        removed = 0
        try:
            for path in paths:
                with translated(path):
                    removed += _remove_from(directory, path.rpartition("/")[2])
        finally:
            os.close(directory)
        return removed

    def open_input(self, path: str) -> InputFile:
        """Map the file into memory, so that Arrow reads Parquet without copying."""
        target = self._base + path
        with translated(path), self._opened(path) as (_, size):
            # An empty file cannot be mapped.
            opened: InputFile = pa.memory_map(target, "r") if size else pa.OSFile(target, "r")
        return opened

    def open_output(self, path: str) -> OutputFile:
        """Open a temporary file in the same directory; `close` renames it."""
        target = self._base + check_path(path)
        with translated(path, writing=True):
            temporary, descriptor = self._open_temporary(path)
            sink = os.fdopen(descriptor, "wb")

        def publish() -> None:
            with translated(path, writing=True):
                if self._syncs(path):
                    sync_bytes(sink)
                sink.close()
                _give_name(temporary, target)
                self._sync_name(path)

        def discard() -> None:
            with suppress(OSError):
                sink.close()
            with suppress(OSError):
                _remove(temporary)

        return AtomicOutput(_Sink(sink, path), publish, discard)

    def _syncs(self, path: str) -> bool:
        return self._fsync and outlives_write(path)

    def _sync_name(self, path: str) -> None:
        if self._syncs(path):
            sync_name(self._base, path, self._synced)

    def native(self, path: str) -> str:
        """Return the absolute local path; `""` is the root."""
        return self._base + check_path(path) if path else self.root

    def _scan(self, prefix: str) -> Level:
        lead = prefix + "/" if prefix else ""
        files: Files = []
        directories: list[str] = []
        with translated(prefix), self._entries(prefix) as entries:
            for entry in entries:
                if entry.is_dir():
                    directories.append(lead + entry.name)
                    continue
                # The file may be deleted after its directory was read.
                with suppress(FileNotFoundError):
                    stat = entry.stat()
                    files.append(FileInfo(lead + entry.name, stat.st_size, stat.st_mtime_ns // 1_000_000))
        return files, directories

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, int]]:
        """Open a file for reading; yield its descriptor and size in bytes."""
        opened = open_file(self.root, check_path(path), follow_links=self._follow_links)
        try:
            yield opened
        finally:
            os.close(opened[0])

    def _is_other(self, entry: os.DirEntry[str], prefix: str) -> bool:
        """Return whether an entry is neither a regular file nor a directory; raise CorruptTableError for a link."""
        if not self._follow_links and entry.is_symlink():
            raise refused_link(self.root, f"{prefix}/{entry.name}" if prefix else entry.name)
        return not entry.is_dir()

    @contextmanager
    def _entries(self, prefix: str, *, checked: bool = True) -> Iterator[Iterator[os.DirEntry[str]]]:
        """Open a directory for listing; an absent one has no entries.

        Iteration raises CorruptTableError at a link, unless the caller checks the entries (`checked` is false).
        """
        try:
            descriptor = open_directory_to_read(self.root, prefix, follow_links=self._follow_links)
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            yield iter(())
            return
        try:
            with os.scandir(descriptor) as entries:
                yield entries if self._follow_links or not checked else self._without_links(entries, prefix)
        finally:
            os.close(descriptor)

    def _without_links(self, entries: Iterator[os.DirEntry[str]], prefix: str) -> Iterator[os.DirEntry[str]]:
        for entry in entries:
            if entry.is_symlink():
                raise refused_link(self.root, f"{prefix}/{entry.name}" if prefix else entry.name)
            yield entry

    def _create_empty(self, path: str) -> bool:
        """Create an empty file, such as a pending instant. It is complete immediately and needs no temporary name."""
        try:
            descriptor = self._open_new(path)
        except FileExistsError:
            return False
        try:
            if self._syncs(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._sync_name(path)
        return True

    def _open_temporary(self, path: str) -> tuple[str, int]:
        """Open a temporary file in the directory of `path`; return its name and descriptor."""
        parent, _, name = path.rpartition("/")
        lead = f"{parent}/" if parent else ""
        for _ in range(_MOST_NAMES):
            beside = lead + temporary_name(name, f"{os.getpid()}-{next(_tokens)}")
            # Another host, or an earlier process with the same id, may have created the file.
            with suppress(FileExistsError):
                return self._base + beside, self._open_new(beside)
        raise OSError(errno.EBUSY, f"no temporary file could be made in {_MOST_NAMES} tries", self._base + parent)

    def _open_new(self, path: str) -> int:
        """Create a file and return its descriptor; raise CorruptTableError if a symbolic link leads to it."""
        target, parent = self._base + path, path.rpartition("/")[0]
        for _ in range(_MOST_NAMES):
            try:
                descriptor = os.open(target, _NEW, 0o666)
            except FileNotFoundError:
                if not self._follow_links:
                    check_name(self.root, parent)
                os.makedirs(self._base + parent, exist_ok=True)
                continue
            try:
                if not self._follow_links:
                    check_place(descriptor, self.root, path)
            except BaseException:
                os.close(descriptor)
                _remove(target)
                raise
            return descriptor
        raise OSError(errno.EBUSY, f"the directory was removed {_MOST_NAMES} times", self._base + parent)

    def _write_temporary(self, path: str, data: bytes) -> str:
        temporary, descriptor = self._open_temporary(path)
        try:
            try:
                _write_all(descriptor, data)
                if self._syncs(path):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(OSError):
                _remove(temporary)
            raise
        return temporary

    def _prune(self, directories: set[str]) -> None:
        # A directory is only a prefix and is removed with its last file. Writers create a missing directory again.
        # Hudi creates a directory in two steps, and its write fails if another writer removes the directory in between.
        for directory in sorted(directories, key=len, reverse=True):
            while directory and directory not in _SHARED:
                try:
                    os.rmdir(self._base + directory)
                except OSError:
                    break
                directory = directory.rpartition("/")[0]


class _Sink:
    """An open temporary file whose OSErrors are translated, for example when the disk is full."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise translate(error, self._path, writing=True) from error


def temporary_name(name: str, token: str) -> str:
    """Return the hidden name under which `name` is written.

    Dots of the name become `~`: Hudi's patterns find `.log.` anywhere in a name that begins with a dot, and would read
    `.<log file>.<token>.tmp` as a log file. The name is long enough to identify the write that left it.
    """
    shown = name.replace(".", "~").encode()[:_SHOWN_BYTES].decode(errors="ignore")
    return f".{shown}.{token}{TEMPORARY_SUFFIX}"


def _write_all(descriptor: int, data: bytes) -> None:
    # One call writes at most 2 GB.
    rest = memoryview(data)[os.write(descriptor, data) :]
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _give_name(temporary: str, target: str) -> None:
    try:
        _remove_checksum(target)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            _remove(temporary)
        raise


def _remove(target: str) -> bool:
    try:
        os.unlink(target)
    except OSError as error:
        if error.errno in ABSENT or os.path.isdir(target):
            return False
        raise
    return True


def _remove_from(directory: int, name: str) -> bool:
    """Delete a file of an opened directory and its checksum; return False if the file did not exist."""
    removed = True
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in ABSENT and not _is_directory(directory, name):
            raise
        removed = False
    with suppress(OSError):
        os.unlink(f".{name}.crc", dir_fd=directory)
    return removed


def _is_directory(directory: int, name: str) -> bool:
    with suppress(OSError):
        return S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False


def _remove_checksum(target: str) -> None:
    # Hadoop's local file system writes a checksum `.<name>.crc` for each file and refuses a file that differs from it.
    # Therefore the checksum is deleted when the file is replaced or deleted.
    directory, _, name = target.rpartition("/")
    with suppress(OSError):
        os.unlink(f"{directory}/.{name}.crc")


def _pread(descriptor: int, start: int, length: int) -> bytes:
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    # One read may return fewer bytes than requested before the end of the file (signals, 2 GiB limit of the kernel).
    parts = [data]
    missing = length - len(data)
    while missing and (data := os.pread(descriptor, missing, start + length - missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parent(path: str) -> str:
    return check_path(path).rpartition("/")[0]


def _by_path(file: FileInfo) -> str:
    return file.path


@contextmanager
def exclusive(target: str, clock: WaitClock) -> Iterator[bytes | None]:
    """Lock the file `target` and yield its bytes, or None if it does not exist; raises OSError.

    The lock (`flock`) is on the file itself, so no lock file remains; the kernel releases it when the process ends.
    When a file is replaced, its lock refers to the old file. Therefore a process that gets the lock checks that the
    name still refers to the same file, and otherwise tries again:

        A  open 1   lock 1   read, compare   rename 2 over 1   unlock 1
        B  open 1   ........................................   lock 1   it is old: open 2   lock 2   read, compare

    Raises RetryableError if another process, for example a suspended one, holds the lock for long. Raises
    UnsupportedError if the file system has no locks.
    """
    deadline = clock.monotonic_s() + _PATIENCE_S
    while True:
        try:
            descriptor = os.open(target, os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        try:
            if _lock(descriptor, target) and _is_still(descriptor, target):
                with open(descriptor, "rb", closefd=False) as file:
                    data = file.read()
                try:
                    yield data
                finally:
                    # A forked child process may have the file open, too; then closing it would not release the lock.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                return
        finally:
            os.close(descriptor)
        if clock.monotonic_s() > deadline:
            raise RetryableError(f"another process holds the lock of {target!r} for too long; run again", path=target)
        clock.sleep(_PAUSE_S)


def _lock(descriptor: int, target: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise UnsupportedError(
                f"cannot change {target!r} safely: its file system has no locks ({error.strerror}); without them two "
                "writers could hold the table lock. Use another disk, s3://, or another lock provider "
                "(hoodie.write.lock.provider).",
                path=target,
            ) from error
        raise
    return True


def _is_still(descriptor: int, target: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(target))
    except FileNotFoundError:
        return False
