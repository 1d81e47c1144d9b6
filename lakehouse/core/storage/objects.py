"""Object stores (S3, GCS, Azure) through obstore: one request per method where the store allows it.

obstore retries repeatable requests. It does not retry create-if-absent: a hidden retry would find the object of its own
first request, whose reply was lost, and report that another process created it. A client without retries sends the
request, and `create` decides the outcome.

Clients belong to one process and are not pickled. obstore's threads do not survive `fork`: a process that was forked
after its parent used a store would wait forever, so its calls raise UserError. Spark's Python workers are forked from a
process that uses no store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import AzureStore, GCSStore, S3Store

from lakehouse.core.storage.atomic_output import AtomicOutput
from lakehouse.core.storage.object_errors import (
    RANGE_NOT_SATISFIABLE,
    Fate,
    ObjectStoreErrors,
    fate_of,
    is_passing,
    status_of,
    translate,
    translated,
)
from lakehouse.core.storage.object_options import ObjectLocation, ObjectOptions, object_options
from lakehouse.core.storage.object_swap import FIRST_PAUSE_S, LONGEST_PAUSE_S, Swap, tag_of, unknown, version_of
from lakehouse.core.storage.path_limits import key_limit
from lakehouse.core.storage.protocol import (
    UNCONDITIONAL,
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
from lakehouse.errors import LakehouseError, RetryableError, UnsupportedError, UserError

PART_BYTES = 8 << 20
PARALLEL_PARTS = 4
PAGE = 1000

_STORES: dict[str, Callable[..., Any]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_user_of_threads: int | None = None


class ObjectStorage:
    """Objects below a prefix of a bucket."""

    def __init__(self, location: ObjectLocation, options: Mapping[str, str], *, clock: WaitClock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.root = location.root
        self._location = location
        self._given = dict(options)
        self._options: ObjectOptions = object_options(location, options)
        self._clients: dict[bool, Any] = {}

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[ObjectLocation, dict[str, str]]]:
        return ObjectStorage, (self._location, self._given)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.root!r})"

    @property
    def options(self) -> Mapping[str, str]:
        """The options with which another prefix or bucket can be opened."""
        return self._given

    def above(self) -> ObjectStorage | None:
        """Return the store of the prefix one level above, in the same bucket."""
        prefix = self._location.prefix
        if not prefix:
            return None
        return ObjectStorage(replace(self._location, prefix=prefix.rpartition("/")[0]), self._given, clock=self._clock)

    def get(self, path: str) -> bytes:
        """Return the whole object."""
        self._check_readable(path)
        with translated(path, self.root):
            return bytes(obstore.get(self._client(), path).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`."""
        self._check_readable(path)
        if length <= 0:
            return b""
        try:
            return bytes(obstore.get_range(self._client(), path, start=start, length=length))
        except ObjectStoreErrors as error:
            if status_of(error) == RANGE_NOT_SATISFIABLE:
                return b""
            raise translate(error, path, self.root) from error

    def put(self, path: str, data: bytes) -> None:
        """Write the object and replace an existing one."""
        with translated(path, self.root):
            obstore.put(self._client(), check_path(path), data)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Create the object if it does not exist; `Storage.create` describes the outcomes of a lost reply."""
        client = self._client(retries=False)
        check_path(path)
        mode: Any = "create"
        if not self._options.conditional:
            # The table lock is elsewhere, so no other process creates the object between the two requests.
            if self.find(path) is not None:
                return False
            mode = "overwrite"
        fates: list[Fate] = []
        failure: BaseException | None = None
        for attempt in range(self._options.attempts):
            if attempt:
                self._clock.sleep(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))
            try:
                obstore.put(client, path, data, mode=mode, use_multipart=False)
                return True
            except ObjectStoreErrors as error:
                if not isinstance(error, AlreadyExistsError) and not is_passing(error):
                    raise translate(error, path, self.root) from error
                failure = error
                fates.append(fate_of(error))
            if fates == [Fate.REFUSED]:
                return False
            made = self._read_back(path, data, fates, unique=unique)
            if made is not None:
                return made
        if Fate.LOST in fates:
            raise unknown(path, "the store answered no request, and one may take effect later") from failure
        raise RetryableError(f"{self.root}: {path!r} was not created, the store kept failing", path=path) from failure

    def _read_back(self, path: str, data: bytes, fates: list[Fate], *, unique: bool) -> bool | None:
        """Determine the outcome of `create` from the current object; return None if there is no object."""
        may_be_ours = Fate.LOST in fates or Fate.ANSWERED in fates
        try:
            content = self.get(path)
        except NotFoundError:
            return None
        except LakehouseError as error:
            if may_be_ours:
                raise unknown(path, "the store could not be read back") from error
            raise
        if not may_be_ours or content != data:
            return False
        if not unique:
            raise unknown(path, "it has the expected bytes, which another process may have written")
        return True

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Raise UnsupportedError: object stores compare one object per request."""
        raise UnsupportedError(
            f"{self.root}: no object store creates {path!r} on the condition of {guard!r}", path=path
        )

    def get_tagged(self, path: str) -> Tagged:
        """Return the whole object, and the tag of its version in the store."""
        self._check_readable(path)
        with translated(path, self.root):
            answer = obstore.get(self._client(), path)
            tag = tag_of(answer.meta)
            return bytes(answer.bytes()), tag if self._options.conditional else UNCONDITIONAL + tag

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the object if its version is `tag`."""
        check_path(path)
        if not self._options.conditional:
            return self._replace_unconditionally(path, data, tag)
        mode: Any = "create" if tag is None else version_of(tag)

        def send() -> str:
            return tag_of(obstore.put(self._client(retries=False), path, data, mode=mode, use_multipart=False))

        return Swap(self, path, data, tag, self._clock).carry_out(send, self._options.attempts)

    def _replace_unconditionally(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Compare, then write, in two requests; the callers hold a lock that is elsewhere."""
        if tag is None:
            return self.get_tagged(path)[1] if self.create(path, data, unique=True) else None
        try:
            if self.get_tagged(path)[1] != tag:
                return None
        except NotFoundError:
            return None
        self.put(path, data)
        return self.get_tagged(path)[1]

    def delete_if(self, path: str, tag: str) -> bool:
        """Raise UnsupportedError: obstore has no conditional delete."""
        raise UnsupportedError(f"{self.root}: no object store deletes {path!r} on a condition", path=path)

    def list(self, prefix: str) -> Files:
        """Return all objects below `prefix`, sorted by path."""
        plain = check_prefix(prefix)
        if self._exceeds(plain):
            return []
        with translated(prefix, self.root):
            pages = obstore.list(self._client(), plain or None, chunk_size=PAGE)
            files = [_file_info(meta) for page in pages for meta in page]
        return _without_directory_markers(files, plain)

    def list_after(self, after: str) -> Files:
        """Return all objects with names greater than `after`, sorted by path."""
        with translated(after, self.root):
            pages = obstore.list(self._client(), offset=after or None, chunk_size=PAGE)
            files = [_file_info(meta) for page in pages for meta in page]
        return _without_directory_markers(files, "")

    def find(self, path: str) -> FileInfo | None:
        """Return size and time of an object; None if it does not exist."""
        try:
            self._check_readable(path)
            with translated(path, self.root):
                return _file_info(obstore.head(self._client(), path))
        except NotFoundError:
            return None

    def list_dir(self, prefix: str) -> Level:
        """Return objects and common prefixes, one level below `prefix`."""
        plain = check_prefix(prefix)
        if self._exceeds(plain):
            return [], []
        with translated(prefix, self.root):
            level = obstore.list_with_delimiter(self._client(), plain or None)
        files = _without_directory_markers([_file_info(meta) for meta in level["objects"]], plain)
        return files, sorted(directory.rpartition("/")[2] for directory in level["common_prefixes"])

    def list_names(self, prefix: str) -> Names:
        """Return the names of the objects one level below `prefix`."""
        return [file.name for file in self.list_dir(prefix)[0]]

    def delete(self, path: str) -> bool:
        """Delete the object; a HEAD request before it checks whether the object exists."""
        try:
            self._check_readable(path)
            with translated(path, self.root):
                obstore.head(self._client(), path)
                obstore.delete(self._client(), path)
        except NotFoundError:
            return False
        return True

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete objects, in bulk where the store can, and return the number of paths that can exist."""
        possible = [path for path in paths if not self._exceeds(check_path(path))]
        if not possible:
            return 0
        with translated(possible[0], self.root):
            try:
                obstore.delete(self._client(), possible)
            except FileNotFoundError:
                # GCS and Azure stop at a missing object. Delete the remaining objects one by one.
                for path in possible:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._client(), path)
        return len(possible)

    def open_input(self, path: str) -> InputFile:
        """Open the object and fetch its tail."""
        self._check_readable(path)
        size, tail = self._tail(path)
        return RangeReader(partial(self.get_range, path), size, tail)

    def _tail(self, path: str) -> tuple[int, bytes]:
        try:
            answer = obstore.get(self._client(), path, options={"range": {"suffix": TAIL_BYTES}})
            return answer.meta["size"], bytes(answer.bytes())
        except FileNotFoundError as error:
            raise translate(error, path, self.root) from error
        except ObjectStoreErrors:
            # Azure has no suffix ranges, and no store has a suffix range of an empty object.
            with translated(path, self.root):
                size = obstore.head(self._client(), path)["size"]
            start = max(size - TAIL_BYTES, 0)
            return size, self.get_range(path, start, size - start)

    def open_output(self, path: str) -> OutputFile:
        """Open a multipart upload, or one request for a small object; `close` completes it, an exception aborts it."""
        with translated(path, self.root):
            writer = obstore.open_writer(
                self._client(), check_path(path), buffer_size=PART_BYTES, max_concurrency=PARALLEL_PARTS
            )

        def publish() -> None:
            with translated(path, self.root):
                writer.close()

        def discard() -> None:
            # obstore aborts the upload when its `with` block ends by an exception, and offers no other way.
            with suppress(*ObjectStoreErrors):
                writer.__exit__(RuntimeError, RuntimeError("output was aborted"), None)

        return AtomicOutput(_TranslatedSink(writer, path, self.root), publish, discard)

    def native(self, path: str) -> str:
        """Return `s3a://bucket/key` (`gs://`, `abfss://`); `""` is the root."""
        if self._location.scheme == "az" and not self._location.account:
            raise UserError(
                f"Spark cannot open {self.root}: write abfss://container@account.dfs.core.windows.net/path",
                location=self.root,
            )
        return f"{self._location.native_root}/{check_path(path)}" if path else self._location.native_root

    def _exceeds(self, path: str) -> bool:
        """Return whether a path is too long for an object key. Stores would reply with an error."""
        limit = key_limit(self.root)
        return limit is not None and len(path) * 4 > limit and len(path.encode()) > limit

    def _check_readable(self, path: str) -> None:
        """Raise NotFoundError for a path that is too long, and UserError for a path that is not plain."""
        if self._exceeds(check_path(path)):
            raise NotFoundError(f"no file {path!r} in {self.root}: its name is too long", path=path)

    def _client(self, *, retries: bool = True) -> Any:
        global _user_of_threads  # noqa: PLW0603 (the threads are the process's, too)
        process = os.getpid()
        if _user_of_threads not in (None, process):
            raise UserError(
                f"{self.root} cannot be used in a process forked after its parent used an object store; "
                "start processes with multiprocessing's 'spawn', or use the store only in the children.",
                root=self.root,
            )
        _user_of_threads = process
        client = self._clients.get(retries)
        if client is None:
            client = self._clients[retries] = self._open(self._options.attempts - 1 if retries else 0)
        return client

    def _open(self, retries: int) -> Any:
        options = self._options
        # Only `create` and `replace_if` use the client without retries.
        creates = not retries and options.create_header
        try:
            return _STORES[self._location.scheme](
                self._location.bucket,
                prefix=self._location.prefix or None,
                config=options.config,
                client_options={
                    "allow_http": options.allow_http,
                    "connect_timeout": "5s",
                    "timeout": "60s",
                    **({"default_headers": {options.create_header: "true"}} if creates else {}),
                },
                retry_config={
                    "max_retries": retries,
                    "retry_timeout": timedelta(seconds=120),
                    "backoff": {
                        "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
                        "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
                        "base": 2,
                    },
                },
            )
        except ObjectStoreErrors as error:
            reason = str(error).partition("\n\nDebug source:")[0]
            raise UserError(f"cannot open {self.root}: {reason}. Check the storage options.", root=self.root) from error


class _TranslatedSink:
    """An obstore writer for AtomicOutput, whose errors are translated."""

    def __init__(self, writer: Any, path: str, root: str) -> None:
        self._writer = writer
        self._path = path
        self._root = root

    def write(self, data: Any) -> int:
        with translated(self._path, self._root):
            written: int = self._writer.write(data)
        return written


def _file_info(meta: Mapping[str, Any]) -> FileInfo:
    return FileInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))


def _without_directory_markers(files: Files, prefix: str) -> Files:
    """Sort files and drop Hadoop's directory markers: empty objects `a/b/`, which obstore lists as `a/b`."""
    files = sorted(files, key=lambda file: file.path)
    if all(file.size_bytes for file in files):
        return files
    parents = {prefix}
    for file in files:
        parent = file.path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
    return [file for file in files if file.size_bytes or file.path not in parents]
