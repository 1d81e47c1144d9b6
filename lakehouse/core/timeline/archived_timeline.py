"""The archived timeline on storage: read when it is asked for, written under the table lock (TL-5.2).

<first>_<last>_0.parquet   manifest_<n+1> by create-if-absent   _version_ = n+1     from here on readers know of it

An archiver that dies leaves a file or a manifest that nobody points to. The next one goes on from the newest manifest
whose files are all there; whatever no manifest names is removed with the manifests that are too old to be read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from lakehouse.core.format.timeline.archive import (
    VERSION_FILE,
    decode_manifest,
    encode_manifest,
    files_to_merge,
    history_file,
    manifest_name,
    merged_file,
    parse_history_file,
    parse_manifest_name,
    read_actions,
    read_instants,
    write_actions,
)
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CommitStateUnknownError, CorruptTableError, LakehouseError, RetryableError
from lakehouse.model.archive import ArchivedAction, HistoryFile
from lakehouse.model.instant import Instant

_Found = TypeVar("_Found")
_READERS = 8
#: Longer than any number of a manifest; int() refuses thousands of digits.
_VERSION_DIGITS = 18
#: How often a reader begins anew whose files were removed under it.
_TRIES = 5
#: Manifests that stay for readers that are at them, beside those of the merges of one run.
_MANIFESTS_KEPT = 3
_MERGED_BYTES = 1024 * 1024 * 1024


class ArchivedTimeline:
    """The archive of one table. Its files never change, so the instants in them are read once."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage, self._directory = storage, directory
        self._instants: dict[HistoryFile, list[Instant]] = {}

    def instants(
        self, *, requested_from: str = "", requested_up_to: str | None = None, completed_after: str = ""
    ) -> list[Instant]:
        """Return the archived instants in these bounds by requested time; files that hold none of them stay closed.

        A completion is later than its request, so nothing before `requested_from` is returned by `completed_after`.
        """

        def read(files: list[HistoryFile]) -> list[Instant]:
            with ThreadPoolExecutor(_READERS) as pool:
                held = [instant for found in pool.map(self._read, files) for instant in found]
            # In the order of completion: what was undone and done again counts as it was done last.
            last = {instant.key: instant for instant in sorted(held, key=lambda instant: instant.completion)}
            return [last[key] for key in sorted(last)]

        def within(file: HistoryFile) -> bool:
            return file.last >= requested_from and (requested_up_to is None or file.first <= requested_up_to)

        found = self._reading(lambda files: read([file for file in files if within(file)]))
        return [
            instant
            for instant in found
            if instant.requested >= requested_from
            and (requested_up_to is None or instant.requested <= requested_up_to)
            and instant.completion > completed_after
        ]

    def actions(self, requested: Iterable[str], containing: bytes = b"") -> dict[str, ArchivedAction]:
        """Return the actions requested at these times with what they hold; those that are not archived are left out.

        So are those whose metadata does not hold the bytes `containing`.
        """
        wanted = frozenset(requested)

        def read(files: list[HistoryFile]) -> dict[str, ArchivedAction]:
            found: dict[str, ArchivedAction] = {}
            for file in files:
                here = frozenset(time for time in wanted if file.first <= time <= file.last and time not in found)
                if here:
                    found.update((action.instant.requested, action) for action in self._actions(file, here, containing))
            return found

        return self._reading(read) if wanted else {}

    def files(self) -> list[HistoryFile]:
        """Return the files of the manifest that counts; nothing if nothing was archived yet."""
        for _ in range(_TRIES):
            number = self._version()
            if number is None:
                return []
            try:
                return list(decode_manifest(self._storage.get(self._path(manifest_name(number)))))
            except NotFoundError:
                # It was replaced, and removed, since its number was read.
                continue
        raise CorruptTableError(
            f"{self._storage.root}: {self._path(VERSION_FILE)} names a manifest of the archive that is not there; "
            "delete it, and the newest manifest counts",
            path=self._path(VERSION_FILE),
        )

    def append(self, actions: Iterable[ArchivedAction], first: str, last: str, check: Callable[[], None]) -> None:
        """Add actions, ordered by requested time from `first` to `last`; call under the lock, which `check` checks."""
        files = self._settled(check)
        written = self._create(history_file(first, last, 0), actions, check)
        check()
        self._publish([*files, written])

    def settle(self, check: Callable[[], None]) -> None:
        """See to it that readers know of all that an archiver wrote that died; call under the lock."""
        self._settled(check)

    def merge(self, batch: int, check: Callable[[], None]) -> int:
        """Merge levels that have `batch` files, and return how many were; call under the lock."""
        files, level = self._settled(check), 0
        while merged := files_to_merge(files, level, batch=batch, target_bytes=_MERGED_BYTES):
            target = merged_file(merged)
            if any(file.name == target.name for file in files):
                break
            written = self._write(target, self._once(merged))
            check()
            files = [*(file for file in files if file not in merged), written]
            self._publish(files)
            level += 1
        return level

    def clean(self, merges: int) -> None:
        """Remove manifests that no reader is at any more, and what none of the others names; call under the lock."""
        listed, _ = self._storage.list_dir(self._directory)
        numbers = sorted((n for f in listed if (n := parse_manifest_name(f.name)) is not None), reverse=True)
        kept = numbers[: _MANIFESTS_KEPT + merges]
        if len(kept) == len(numbers):
            return
        named = {file.name for n in kept for file in decode_manifest(self._storage.get(self._path(manifest_name(n))))}
        self._storage.delete_many([self._path(manifest_name(n)) for n in numbers if n not in kept])
        parquet = [file for file in listed if parse_history_file(file.name, 0) is not None]
        self._storage.delete_many([file.path for file in parquet if file.name not in named])

    def _reading(self, read: Callable[[list[HistoryFile]], _Found]) -> _Found:
        """Read files of the manifest that counts, again if they were merged and removed meanwhile."""
        for _ in range(_TRIES):
            try:
                return read(self.files())
            except NotFoundError as error:
                lost = error
        raise CorruptTableError(
            f"{self._storage.root}: a file of the archive is missing: {lost}", path=lost.path
        ) from lost

    def _read(self, file: HistoryFile) -> list[Instant]:
        if file not in self._instants:
            with self._readable(file), self._storage.open_input(self._path(file.name)) as source:
                self._instants[file] = read_instants(source)
        return self._instants[file]

    def _actions(
        self, file: HistoryFile, wanted: frozenset[str] | None = None, containing: bytes = b""
    ) -> Iterator[ArchivedAction]:
        with self._readable(file), self._storage.open_input(self._path(file.name)) as source:
            yield from read_actions(source, wanted, containing)

    @contextmanager
    def _readable(self, file: HistoryFile) -> Iterator[None]:
        """Take what Arrow says of broken bytes for what it is; errors of the system pass: they have a number."""
        try:
            yield
        except (CorruptTableError, pa.ArrowException, KeyError, OSError) as error:
            if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
                raise
            path = self._path(file.name)
            raise CorruptTableError(
                f"{self._storage.root}: the archive's file {path} is no readable parquet file: {error}; bring it back "
                "from a backup",
                path=path,
            ) from error

    def _once(self, files: Iterable[HistoryFile]) -> Iterator[ArchivedAction]:
        """Yield the actions of some files, those in several of them once."""
        seen: set[str] = set()
        for file in files:
            for action in self._actions(file):
                if action.instant.requested not in seen:
                    seen.add(action.instant.requested)
                    yield action

    def _version(self) -> int | None:
        try:
            text = self._storage.get(self._path(VERSION_FILE)).decode(errors="replace").strip()
        except NotFoundError:
            text = ""
        if text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS:
            return int(text)
        # Hudi deletes the file before it creates it anew.
        listed, _ = self._storage.list_dir(self._directory)
        return max((n for f in listed if (n := parse_manifest_name(f.name)) is not None), default=None)

    def _settled(self, check: Callable[[], None]) -> list[HistoryFile]:
        """Return the files of the newest manifest that is whole, and make it the one that counts."""
        listed, _ = self._storage.list_dir(self._directory)
        names = {file.name for file in listed}
        numbers = sorted((n for f in listed if (n := parse_manifest_name(f.name)) is not None), reverse=True)
        current = self._version()
        for number in numbers:
            data = self._storage.get(self._path(manifest_name(number)))
            try:
                files = decode_manifest(data)
            except CorruptTableError:
                files = None
            if files is not None and all(file.name in names for file in files):
                if current != number or VERSION_FILE not in names:
                    check()
                    self._storage.put(self._path(VERSION_FILE), str(number).encode())
                return list(files)
            if number == current:
                raise CorruptTableError(
                    f"{self._storage.root}: {self._path(manifest_name(number))} is broken, or files that it lists are "
                    "missing; nothing is archived before a person has looked at it",
                    path=self._path(manifest_name(number)),
                )
            # Of an archiver of Hudi that died while it wrote it: the next manifest takes its name.
            check()
            self._storage.delete(self._path(manifest_name(number)))
        return []

    def _write(self, file: HistoryFile, actions: Iterable[ArchivedAction]) -> HistoryFile:
        # Of the same files everybody makes the same one, so it does no harm to replace it.
        with self._storage.open_output(self._path(file.name)) as sink:
            write_actions(sink, actions)
            size = sink.tell()
        return replace(file, size_bytes=size)

    def _create(self, file: HistoryFile, actions: Iterable[ArchivedAction], check: Callable[[], None]) -> HistoryFile:
        """Write a file that nobody else wrote: who lost the lock must not replace what its successor made."""
        buffer = io.BytesIO()
        write_actions(buffer, actions)
        path, data = self._path(file.name), buffer.getvalue()
        if not self._make(path, data):
            # Of an archiver that died, for no manifest names it.
            check()
            self._storage.delete(path)
            if not self._make(path, data):
                raise self._rival(path)
        return replace(file, size_bytes=len(data))

    def _make(self, path: str, data: bytes) -> bool:
        """Create a file; True also if the very same bytes are there. Raises the storage's error if nothing is there."""
        failure: LakehouseError | None = None
        try:
            if self._storage.create(path, data):
                return True
        except (RetryableError, CommitStateUnknownError) as error:
            failure = error
        try:
            return self._storage.get(path) == data
        except NotFoundError:
            if failure is not None:
                raise failure from None
            return False

    def _rival(self, path: str) -> RetryableError:
        return RetryableError(f"{self._storage.root}: another archiver is at work; run the archive again", path=path)

    def _publish(self, files: list[HistoryFile]) -> None:
        listed, _ = self._storage.list_dir(self._directory)
        number = max((n for f in listed if (n := parse_manifest_name(f.name)) is not None), default=0) + 1
        path = self._path(manifest_name(number))
        if not self._make(path, encode_manifest(files)):
            raise self._rival(path)
        self._storage.put(self._path(VERSION_FILE), str(number).encode())

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
