"""Read and write the archived timeline on storage (TL-5.2). It is read on demand and written under the table lock.

Order of effects: create <first>_<last>_0.parquet, create manifest_<n+1>, write _version_ = n+1; from then on readers
see the new files.

An archive run that crashes leaves a file or a manifest that nothing refers to. The next run continues from the newest
manifest whose files all exist. Files that no manifest names are deleted together with manifests that are no longer
read.
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
#: Maximum number of digits of a manifest number, because int() refuses thousands of digits.
_VERSION_DIGITS = 18
#: Maximum number of restarts of a read because files were deleted during the read.
_TRIES = 5
#: Number of manifests that are kept for active readers, in addition to the manifests of one run.
_MANIFESTS_KEPT = 3
_MERGED_BYTES = 1024 * 1024 * 1024


class ArchivedTimeline:
    """The archived timeline of one table. Its files never change, so the instants in each are read once."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage, self._directory = storage, directory
        #: The folder of the archive, relative to the table.
        self.directory = directory
        self._instants: dict[HistoryFile, list[Instant]] = {}
        # The bounds of files whose names do not contain them, by name.
        self._bounds: dict[str, tuple[str, str]] = {}

    def instants(
        self, *, requested_from: str = "", requested_up_to: str | None = None, completed_after: str = ""
    ) -> list[Instant]:
        """Return the archived instants within these bounds, by requested time; only files with such instants are read.

        The bounds of requested times are inclusive. An instant completes after its request, so `requested_from` also
        limits the result of `completed_after`.
        """

        def read(files: list[HistoryFile]) -> list[Instant]:
            with ThreadPoolExecutor(_READERS) as pool:
                held = [instant for archived in pool.map(self._read, files) for instant in archived]
            # An instant that was reverted and completed again is in the archive twice. The last completion is valid.
            last = {instant.key: instant for instant in sorted(held, key=lambda instant: instant.completion)}
            return [last[key] for key in sorted(last)]

        def within(file: HistoryFile) -> bool:
            return file.last >= requested_from and (requested_up_to is None or file.first <= requested_up_to)

        candidates = self._reading(lambda files: read([file for file in files if within(file)]))
        return [
            instant
            for instant in candidates
            if instant.requested >= requested_from
            and (requested_up_to is None or instant.requested <= requested_up_to)
            and instant.completion > completed_after
        ]

    def actions(self, requested: Iterable[str], containing: bytes = b"") -> dict[str, ArchivedAction]:
        """Return the archived actions in `requested`, with metadata and plan, by requested time.

        Actions whose metadata does not contain the bytes `containing` are skipped.
        """
        wanted = frozenset(requested)

        def read(files: list[HistoryFile]) -> dict[str, ArchivedAction]:
            result: dict[str, ArchivedAction] = {}
            for file in files:
                here = frozenset(time for time in wanted if file.first <= time <= file.last and time not in result)
                if here:
                    result.update(
                        (action.instant.requested, action) for action in self._actions(file, here, containing)
                    )
            return result

        return self._reading(read) if wanted else {}

    def each(self, requested: Iterable[str]) -> list[ArchivedAction]:
        """Return all actions with these requested times; an action may be there several times."""
        wanted = frozenset(requested)

        def read(files: list[HistoryFile]) -> list[ArchivedAction]:
            actions: list[ArchivedAction] = []
            for file in files:
                here = frozenset(time for time in wanted if file.first <= time <= file.last)
                actions.extend(self._actions(file, here) if here else ())
            return actions

        return self._reading(read)

    def files(self) -> list[HistoryFile]:
        """Return the files of the current manifest; empty if nothing was archived yet."""
        for _ in range(_TRIES):
            number = self._version()
            if number is None:
                return []
            try:
                return self._bounded(decode_manifest(self._storage.get(self._path(manifest_name(number)))))
            except NotFoundError:
                # The manifest was replaced and deleted after its number was read.
                continue
        raise CorruptTableError(
            f"{self._storage.root}: {self._path(VERSION_FILE)} names a manifest that does not exist; delete it, and "
            "the newest manifest is used",
            path=self._path(VERSION_FILE),
        )

    def append(self, actions: Iterable[ArchivedAction], first: str, last: str, check: Callable[[], None]) -> None:
        """Append actions, ordered by requested time from `first` to `last`; call under the lock.

        `check` raises if the lock was lost. It is called before each step that readers see.
        """
        files = self._settled(check)
        written = self._create(history_file(first, last, 0), actions, check)
        check()
        self._publish([*files, written])

    def settle(self, check: Callable[[], None]) -> None:
        """Publish the files that a crashed archive run wrote; call under the lock."""
        self._settled(check)

    def merge(self, batch: int, check: Callable[[], None]) -> int:
        """Merge each level with `batch` files into one file, and return the number of merges; call under the lock."""
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

    def compact(self, batch: int, check: Callable[[], None]) -> None:
        """Merge the files of full levels and delete the files that readers no longer use; call under the lock."""
        merges = self.merge(batch, check)
        check()
        self.clean(merges)

    def clean(self, merges: int) -> None:
        """Delete manifests that readers no longer use, and files that no other manifest names; call under the lock."""
        listed, _ = self._storage.list_dir(self._directory)
        numbers = sorted((n for f in listed if (n := parse_manifest_name(f.name)) is not None), reverse=True)
        newest = numbers[: _MANIFESTS_KEPT + merges]
        if len(newest) == len(numbers):
            return
        named = {file.name for n in newest for file in decode_manifest(self._storage.get(self._path(manifest_name(n))))}
        self._storage.delete_many([self._path(manifest_name(n)) for n in numbers if n not in newest])
        parquet = [file for file in listed if parse_history_file(file.name, 0) is not None]
        self._storage.delete_many([file.path for file in parquet if file.name not in named])

    def _reading(self, read: Callable[[list[HistoryFile]], _Found]) -> _Found:
        """Read files of the current manifest; read again if they were merged and deleted in between."""
        for _ in range(_TRIES):
            try:
                return read(self.files())
            except NotFoundError as error:
                lost = error
        raise CorruptTableError(
            f"{self._storage.root}: a file of the archive is missing: {lost}", path=lost.path
        ) from lost

    def _bounded(self, files: Iterable[HistoryFile]) -> list[HistoryFile]:
        """Return the files with the times of their actions.

        An upgrade by Hudi copies the newest archive file first, and puts the first and the last action of a batch in
        the name, so these are not the smallest and the largest times (V6-12.2).
        """
        bounded = []
        for file in files:
            if file.first > file.last and file.name not in self._bounds:
                times = [instant.requested for instant in self._read(file)]
                self._bounds[file.name] = (min(times, default=file.last), max(times, default=file.first))
            first, last = self._bounds.get(file.name, (file.first, file.last))
            bounded.append(replace(file, first=first, last=last))
        return bounded

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
        """Raise CorruptTableError for errors of Arrow about invalid bytes; errors of the system, with errno, pass."""
        try:
            yield
        except (CorruptTableError, pa.ArrowException, KeyError, OSError) as error:
            if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
                raise
            path = self._path(file.name)
            raise CorruptTableError(
                f"{self._storage.root}: the archive file {path} is not a valid Parquet file: {error}; restore it "
                "from a backup",
                path=path,
            ) from error

    def _once(self, files: Iterable[HistoryFile]) -> Iterator[ArchivedAction]:
        """Yield the actions of some files. An action that is in several files is yielded once."""
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
        # The file may be missing for a moment, because Hudi deletes it before it creates the new one.
        listed, _ = self._storage.list_dir(self._directory)
        return max((n for f in listed if (n := parse_manifest_name(f.name)) is not None), default=None)

    def _settled(self, check: Callable[[], None]) -> list[HistoryFile]:
        """Return the files of the newest complete manifest, and make it the current one."""
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
                return self._bounded(files)
            if number == current:
                raise CorruptTableError(
                    f"{self._storage.root}: {self._path(manifest_name(number))} is damaged, or files that it lists are "
                    "missing; repair it before archiving again",
                    path=self._path(manifest_name(number)),
                )
            # A manifest of a crashed archive run of Hudi. The next manifest gets the same name.
            check()
            self._storage.delete(self._path(manifest_name(number)))
        return []

    def _write(self, file: HistoryFile, actions: Iterable[ArchivedAction]) -> HistoryFile:
        # Every process creates the same bytes from the same files, so replacing the file is harmless.
        with self._storage.open_output(self._path(file.name)) as sink:
            write_actions(sink, actions)
            size = sink.tell()
        return replace(file, size_bytes=size)

    def _create(self, file: HistoryFile, actions: Iterable[ArchivedAction], check: Callable[[], None]) -> HistoryFile:
        """Create a new file: a process that lost the lock must not replace a file of its successor."""
        buffer = io.BytesIO()
        write_actions(buffer, actions)
        path, data = self._path(file.name), buffer.getvalue()
        if not self._make(path, data):
            # The file is left from a crashed archive run, because no manifest lists it.
            check()
            self._storage.delete(path)
            if not self._make(path, data):
                raise self._rival(path)
        return replace(file, size_bytes=len(data))

    def _make(self, path: str, data: bytes) -> bool:
        """Create a file, and return whether it contains these bytes. Raise the storage's error if it does not exist."""
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
        return RetryableError(f"{self._storage.root}: another archive run is active; run the archive again", path=path)

    def _publish(self, files: list[HistoryFile]) -> None:
        listed, _ = self._storage.list_dir(self._directory)
        number = max((n for f in listed if (n := parse_manifest_name(f.name)) is not None), default=0) + 1
        path = self._path(manifest_name(number))
        if not self._make(path, encode_manifest(files)):
            raise self._rival(path)
        self._storage.put(self._path(VERSION_FILE), str(number).encode())

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
