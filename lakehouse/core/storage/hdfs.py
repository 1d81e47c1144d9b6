"""HDFS through hdfs-native, without a JVM.

A file of HDFS has its name from its creation on, long before its bytes are complete. So each file is written under a
temporary name, closed, and renamed; the rename is atomic, and without overwriting it is create-if-absent:

    create    temporary file, close, rename without overwriting
    put       temporary file, close, rename with overwriting
    replace   the same under an exclusive claim of the file (`hdfs_swap`)

hdfs-native repeats a request whose reply was lost. Then a rename that took effect finds no source; each source has a
unique name, so a missing source shows that the first request took effect, or that a cleanup deleted the temporary file.
The target decides between the two.

A close waits until the namenode has heard of the blocks of the file, often for 500 ms. A killed process may leave a
temporary file, which `is_temporary` recognizes. Names must not contain `:` and have at most 255 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from lakehouse.core.storage.atomic_output import AtomicOutput
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.hdfs_client import ATTEMPTS, HdfsClient
from lakehouse.core.storage.hdfs_errors import (
    current_user,
    is_absent,
    is_cut,
    is_hdfs_error,
    is_lost,
    is_not_empty,
    is_passing,
    needs_parent,
    translate,
    translated,
)
from lakehouse.core.storage.hdfs_options import HdfsLocation, client_settings, parse_hdfs_location
from lakehouse.core.storage.hdfs_swap import Claims, digest
from lakehouse.core.storage.local import temporary_name
from lakehouse.core.storage.local_sync import outlives_write
from lakehouse.core.storage.object_swap import unknown
from lakehouse.core.storage.path_limits import path_problem
from lakehouse.core.storage.protocol import (
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
from lakehouse.core.storage.ranged_input import TAIL_BYTES, RangeReader
from lakehouse.core.system.clock import SystemClock, WaitClock
from lakehouse.core.system.ids import RandomIds
from lakehouse.errors import LakehouseError, RetryableError, UserError


def open_hdfs(location: str, options: Mapping[str, str], *, fsync: bool = False) -> HdfsStorage:
    """Return the store below a location, with settings from options and the configuration directory."""
    settings = client_settings(options)
    return HdfsStorage(parse_hdfs_location(location, settings), settings, fsync=fsync)


class HdfsStorage:
    """Files below a directory of HDFS.

    With `fsync`, datanodes write the bytes of the table's files to their disks before a call returns. Without it a
    file survives the crash of processes and of single machines, not of all its datanodes at the same time.
    """

    def __init__(
        self,
        location: HdfsLocation,
        settings: Mapping[str, str],
        *,
        user: str = "",
        fsync: bool = False,
        clock: WaitClock | None = None,
    ) -> None:
        self.root = location.root
        self._location, self._settings = location, {**settings}
        self._user, self._fsync = user or current_user(), fsync
        self._clock = clock or SystemClock()
        self._ids = RandomIds()
        self._base = location.path.rstrip("/") + "/"
        self._client = HdfsClient(location, settings, self._user, self._clock)

    def __reduce__(self) -> tuple[Callable[..., HdfsStorage], tuple[Any, ...]]:
        return _unpickled, (self._location, self._settings, self._user, self._fsync)

    def __repr__(self) -> str:
        return f"HdfsStorage({self.root!r})"

    def above(self) -> HdfsStorage | None:
        """Return the store of the parent directory."""
        parent = self._location.above
        if parent is None:
            return None
        return HdfsStorage(parent, self._settings, user=self._user, fsync=self._fsync, clock=self._clock)

    def get(self, path: str) -> bytes:
        """Return the whole file."""
        target = self._readable(path)
        return self._client.call(lambda client: _whole(client.read(target)), path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`."""
        target = self._readable(path)
        return self._client.call(lambda client: _clipped(client.read(target), start, length), path)

    def put(self, path: str, data: bytes) -> None:
        """Write the file and replace an existing one."""
        for _ in range(ATTEMPTS):
            temporary = self._write_temporary(path, data)
            if self._rename(temporary, path, overwrite=True) is not None or self._has(path, data):
                return
        raise RetryableError(f"{self.root}: the temporary files of {path!r} were deleted; run again", path=path)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Create the file if it does not exist; `Storage.create` describes the outcomes of a lost reply."""
        temporary = self._write_temporary(path, data)
        made = self._rename(temporary, path, overwrite=False)
        if made is False:
            self._discard(temporary)
        if made is not None:
            return made
        try:
            content = self.get(path)
        except NotFoundError:
            raise RetryableError(f"{self.root}: {path!r} was not created; run again", path=path) from None
        except LakehouseError as error:
            raise unknown(path, "HDFS could not be read back") from error
        if content == data and not unique:
            raise unknown(path, "it has the expected bytes, which another process may have written")
        return content == data

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Create the file if it does not exist, under the claim of `guard` that `replace_if` also uses."""
        self._writable(guard)
        self._writable(path)
        made = self._claims(guard).create(path, data, tag)
        if made is None:
            self._prune({guard.rpartition("/")[0]})
        return made

    def get_tagged(self, path: str) -> Tagged:
        """Return the whole file; its tag is the digest of its bytes."""
        data = self.get(path)
        return data, digest(data)

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the file if its bytes have the digest `tag`, under an exclusive claim of the file."""
        self._writable(path)
        if tag is None:
            return digest(data) if self.create(path, data, unique=True) else None
        if self._claims(path).replace(data, tag):
            return digest(data)
        self._prune({path.rpartition("/")[0]})
        return None

    def delete_if(self, path: str, tag: str) -> bool:
        """Delete the file if its bytes have the digest `tag`, under an exclusive claim of the file."""
        self._writable(path)
        deleted = self._claims(path).delete(tag)
        self._prune({path.rpartition("/")[0]})
        return deleted

    def list(self, prefix: str) -> Files:
        """Return all files below `prefix`, sorted by path."""
        return self._list(check_prefix(prefix), "")

    def list_after(self, after: str) -> Files:
        """Return all files with paths greater than `after`; directories before it are not listed."""
        return [file for file in self._list("", after) if file.path > after]

    def find(self, path: str) -> FileInfo | None:
        """Return size and time of a file; None if it does not exist."""
        try:
            target = self._readable(path)
            status = self._client.call(lambda client: client.get_file_info(target), path)
        except NotFoundError:
            return None
        return None if status.isdir else FileInfo(path, status.length, status.modification_time)

    def list_dir(self, prefix: str) -> Level:
        """Return the files and sub-directory names one level below `prefix`, including empty directories."""
        files, directories = self._scan(check_prefix(prefix))
        return files, [directory.rpartition("/")[2] for directory in directories]

    def list_names(self, prefix: str) -> Names:
        """Return the names of the files one level below `prefix`."""
        return [file.name for file in self.list_dir(prefix)[0]]

    def delete(self, path: str) -> bool:
        """Delete the file and parent directories that become empty; return False if it did not exist."""
        return self.delete_many([path]) == 1

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete files and parent directories that become empty; return how many files existed.

        The last file is deleted after all others, because callers put the file there that refers to the others.
        """
        listed = [check_path(path) for path in paths]
        deleted = sum(send_all(self, self._remove, listed[:-1])) + sum(map(self._remove, listed[-1:]))
        self._prune({path.rpartition("/")[0] for path in listed})
        return deleted

    def open_input(self, path: str) -> InputFile:
        """Open the file and read its tail."""
        target = self._readable(path)

        def tail(client: Any) -> tuple[Any, int, bytes]:
            reader = client.read(target)
            start = max(len(reader) - TAIL_BYTES, 0)
            return reader, len(reader), _clipped(reader, start, TAIL_BYTES)

        reader, size, data = self._client.call(tail, path)

        def fetch(start: int, length: int) -> bytes:
            return self._client.call(lambda _: _clipped(reader, start, length), path)

        return RangeReader(fetch, size, data)

    def open_output(self, path: str) -> OutputFile:
        """Open a temporary file in the same directory; `close` renames it."""
        temporary, writer = self._open_temporary(path)
        output = AtomicOutput(
            _TranslatedSink(writer, path, self.root),
            lambda: self._publish(writer, temporary, path, output.tell()),
            lambda: self._discard(temporary),
        )
        return output

    def native(self, path: str) -> str:
        """Return `hdfs://authority/path`; `""` is the root."""
        return f"{self.root}/{check_path(path)}" if path else self.root

    def _publish(self, writer: Any, temporary: str, path: str, size_bytes: int) -> None:
        with translated(path, self.root, writing=True):
            if size_bytes and self._fsync and outlives_write(path):
                writer.hsync()
            self._close(writer, temporary, size_bytes)
        if self._rename(temporary, path, overwrite=True) is None:
            file = self.find(path)
            if file is None or file.size_bytes != size_bytes:
                raise RetryableError(f"{self.root}: the temporary file of {path!r} was deleted; run again", path=path)

    def _close(self, writer: Any, temporary: str, size_bytes: int) -> None:
        """Close a file; after a failover close it again, and check that no byte is missing."""
        try:
            writer.close()
            return
        except BaseException as error:
            if not (is_hdfs_error(error) and (is_cut(error) or is_passing(error))):
                raise
        self._client.pause(ATTEMPTS)
        writer.close()
        status = self._client.native().get_file_info(temporary)
        if status.length != size_bytes:
            raise RetryableError(f"{self.root}: {temporary!r} was not closed; run again", path=temporary)

    def _claims(self, path: str) -> Claims:
        return Claims(self, self._client, self._base, path, self._clock, self._ids)

    def _list(self, prefix: str, after: str) -> Files:
        listing: Files = []
        pending = [prefix]
        while pending:
            levels = send_all(self, self._scan, pending)
            listing += [file for files, _ in levels for file in files]
            pending = [
                directory
                for _, directories in levels
                for directory in directories
                if f"{directory}/" > after or after.startswith(f"{directory}/")
            ]
        return sorted(listing, key=lambda file: file.path)

    def _scan(self, prefix: str) -> Level:
        """Return the files and the sub-directories (as paths) one level below `prefix`, sorted."""
        if path_problem(self.root, prefix) is not None:
            return [], []
        place, lead = (self._base + prefix, f"{prefix}/") if prefix else (self._base.rstrip("/") or "/", "")
        try:
            entries = self._client.call(lambda client: list(client.list_status(place)), prefix)
        except NotFoundError:
            return [], []
        if len(entries) == 1 and not entries[0].isdir and entries[0].path.rstrip("/") == place:
            # The prefix is a file.
            return [], []
        named = [(lead + entry.path.rpartition("/")[2], entry) for entry in entries]
        files = [FileInfo(path, entry.length, entry.modification_time) for path, entry in named if not entry.isdir]
        return sorted(files, key=lambda file: file.path), sorted(path for path, entry in named if entry.isdir)

    def _open_temporary(self, path: str) -> tuple[str, Any]:
        """Create a temporary file in the directory of `path`; return its absolute path and writer."""
        target = self._writable(path)
        parent, _, name = target.rpartition("/")

        def opened(client: Any) -> tuple[str, Any] | None:
            temporary = f"{parent}/{temporary_name(name, self._ids.uuid())}"
            # A repeated request finds the file of the first one.
            with suppress(FileExistsError):
                return temporary, client.create(temporary)
            return None

        for _ in range(ATTEMPTS):
            made = self._client.call(opened, path, writing=True)
            if made is not None:
                return made
        raise RetryableError(f"{self.root}: no temporary file of {path!r} could be created; run again", path=path)

    def _write_temporary(self, path: str, data: bytes) -> str:
        """Write a temporary file and return its absolute path; a failover in between needs another file."""
        for attempt in range(ATTEMPTS):
            temporary, writer = self._open_temporary(path)
            try:
                self._write(writer, data, synced=outlives_write(path))
                return temporary
            except BaseException as error:
                self._discard(temporary)
                if not is_hdfs_error(error):
                    raise
                if attempt + 1 == ATTEMPTS or not (is_cut(error) or is_passing(error)):
                    raise translate(error, path, self.root, writing=True) from error
            self._client.pause(attempt)
        raise AssertionError("the loop returns or raises")

    def _write(self, writer: Any, data: bytes, *, synced: bool) -> None:
        if data:
            writer.write(data)
            if self._fsync and synced:
                writer.hsync()
        writer.close()

    def _rename(self, temporary: str, path: str, *, overwrite: bool) -> bool | None:
        """Give a temporary file its name; return False if another file has it, None if the temporary file is missing.

        The request may be repeated, because no other file gets the temporary name.
        """
        target, was_lost, failure = self._base + path, False, None
        for attempt in range(ATTEMPTS):
            if attempt:
                self._client.pause(attempt - 1)
            try:
                self._client.native().rename(temporary, target, overwrite)
                return True
            except FileExistsError:
                return False
            except BaseException as error:
                if not is_hdfs_error(error):
                    raise
                failure = error
            if isinstance(failure, FileNotFoundError) and not needs_parent(failure):
                return None
            was_lost = was_lost or is_lost(failure)
            if not (is_cut(failure) or is_passing(failure)):
                break
        assert failure is not None
        if was_lost:
            raise unknown(path, "HDFS answered no request, and one may take effect later") from failure
        self._discard(temporary)
        raise translate(failure, path, self.root, writing=True) from failure

    def _has(self, path: str, data: bytes) -> bool:
        try:
            return self.get(path) == data
        except NotFoundError:
            return False

    def _discard(self, temporary: str) -> None:
        """Delete a temporary file; cleanup deletes it later if this fails."""
        with suppress(LakehouseError):
            self._client.call(lambda client: client.delete(temporary), temporary)

    def _remove(self, path: str) -> bool:
        if path_problem(self.root, path) is not None:
            return False

        def removed(client: Any) -> bool:
            try:
                return bool(client.delete(self._base + path))
            except BaseException as error:
                if is_absent(error) or is_not_empty(error):
                    return False
                raise

        return self._client.call(removed, path)

    def _prune(self, directories: set[str]) -> None:
        # A directory is only a prefix and is removed with its last file. A writer creates its directories again, and
        # HDFS deletes a directory only if it is empty.
        for directory in sorted(directories, key=len, reverse=True):
            # The `.hoodie` of a table always has files, so that a try would waste a request.
            while directory and directory.rpartition("/")[2] != ".hoodie":
                try:
                    if not self._client.native().delete(self._base + directory):
                        break
                except BaseException as error:
                    if not is_hdfs_error(error):
                        raise
                    break
                directory = directory.rpartition("/")[0]

    def _writable(self, path: str) -> str:
        """Return the absolute path; raise UserError if HDFS accepts no file with this name."""
        problem = path_problem(self.root, check_path(path))
        if problem is not None:
            raise UserError(f"{self.root}: {path!r} cannot be written: {problem}", path=path)
        return self._base + path

    def _readable(self, path: str) -> str:
        """Return the absolute path; raise NotFoundError if HDFS accepts no file with this name."""
        if path_problem(self.root, check_path(path)) is not None:
            raise NotFoundError(f"no file {path!r} in {self.root}: HDFS does not accept its name", path=path)
        return self._base + path


class _TranslatedSink:
    """A writer of hdfs-native for AtomicOutput, whose errors are translated."""

    def __init__(self, writer: Any, path: str, root: str) -> None:
        self._writer, self._path, self._root = writer, path, root

    def write(self, data: Any) -> int:
        with translated(self._path, self._root, writing=True):
            written: int = self._writer.write(data)
        return written


def _unpickled(location: HdfsLocation, settings: Mapping[str, str], user: str, fsync: bool) -> HdfsStorage:
    return HdfsStorage(location, settings, user=user, fsync=fsync)


def _whole(reader: Any) -> bytes:
    return _clipped(reader, 0, len(reader))


def _clipped(reader: Any, start: int, length: int) -> bytes:
    """Read a range that ends with the file; hdfs-native panics if a range exceeds it."""
    length = min(length, len(reader) - start)
    return bytes(reader.read_range(start, length)) if length > 0 else b""
