"""The archived timeline of table version 6 on storage: log files that are only added (TL-5.1).

Order of effects: create .commits_.archive.<N+1>_1-0-1, then the files of the instants are deleted one by one.

A crash in between leaves instants in both places. Hudi may append to a file, and may merge small files into one, so a
file is identified by its name and size, and an instant may be in several files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lakehouse.core.format.timeline.archive_log import (
    DEFAULT_FOLDER,
    StateFile,
    encode_actions,
    encode_log,
    log_name,
    parse_log_name,
    read_actions,
    read_changes,
    read_instants,
)
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, Storage
from lakehouse.errors import CommitStateUnknownError, CorruptTableError, RetryableError
from lakehouse.model.archive import ArchivedAction, HistoryFile
from lakehouse.model.instant import Action, Instant

_Item = TypeVar("_Item")
_READERS = 8
#: How often a read restarts because files were merged during the read.
_TRIES = 5


class ArchivedLog:
    """The archived timeline of a table. The instants in each file are read once."""

    def __init__(self, storage: Storage, timeline: str, folder: str) -> None:
        """Open the archive in `folder` below the folder `timeline`; nothing is read.

        A downgrade by Hudi 1.2 writes the default folder although the properties name another one, so both are read.
        """
        self._storage = storage
        #: The folder to which files are added, relative to the table.
        self.directory = f"{timeline}/{folder}"
        self._directories = tuple(dict.fromkeys((self.directory, f"{timeline}/{DEFAULT_FOLDER}")))
        self._instants: dict[tuple[str, int], list[Instant]] = {}

    def instants(
        self, *, requested_from: str = "", requested_up_to: str | None = None, completed_after: str = ""
    ) -> list[Instant]:
        """Return the archived instants within these bounds, by requested time.

        The bounds of requested times are inclusive. Instants have no completion time, so `completed_after` is compared
        with the requested time.
        """
        held = self._reading(
            lambda files: [instant for of_file in self._each(self._read, files) for instant in of_file]
        )
        of_key = {instant.key: instant for instant in held}
        return [
            of_key[key]
            for key in sorted(of_key)
            if key[0] >= requested_from
            and (requested_up_to is None or key[0] <= requested_up_to)
            and key[0] > completed_after
        ]

    def actions(self, requested: Iterable[str], containing: bytes = b"") -> dict[str, ArchivedAction]:
        """Return the archived actions in `requested`, with metadata and plan, by requested time.

        Actions whose metadata does not contain the bytes `containing` are skipped.
        """
        wanted = frozenset(requested)

        return {action.instant.requested: action for action in self.each(wanted, containing)} if wanted else {}

    def each(self, requested: Iterable[str], containing: bytes = b"") -> list[ArchivedAction]:
        """Return all actions with these requested times; an action may be there several times. See `actions`."""
        wanted = frozenset(requested)

        def of_file(file: FileInfo) -> list[ArchivedAction]:
            here = wanted & {instant.requested for instant in self._read(file)}
            return list(self._actions(file, here, containing)) if here else []

        return self._reading(lambda files: [action for some in self._each(of_file, files) for action in some])

    def changes(self) -> dict[tuple[str, Action], str]:
        """Return the time of the last change of each archived action that has one, by its key."""

        def of_file(file: FileInfo) -> dict[tuple[str, Action], str]:
            try:
                return read_changes(self._storage.get(file.path))
            except CorruptTableError as error:
                raise self._damaged(file, error) from error

        each = self._reading(lambda files: list(self._each(of_file, files)))
        return {key: time for changes in each for key, time in changes.items()}

    def files(self) -> list[HistoryFile]:
        """Return the files of the archive, by the instants in them; empty if nothing was archived yet."""

        def described(file: FileInfo) -> HistoryFile:
            times = [instant.requested for instant in self._read(file)]
            first, last = (min(times), max(times)) if times else ("", "")
            return HistoryFile(name=file.name, first=first, last=last, level=0, size_bytes=file.size_bytes)

        return self._reading(lambda files: list(self._each(described, files)))

    def append(self, files: Iterable[StateFile], check: Callable[[], None]) -> None:
        """Write the files of instants, in the order of instants, as a new file; call under the lock.

        `check` raises if the lock was lost. Raises RetryableError if another archive run creates the same file.
        """
        self._append(b"".join(encode_log(files)), check)

    def append_actions(self, actions: Iterable[ArchivedAction], check: Callable[[], None]) -> None:
        """Write actions with commits in JSON as a new file, one record each; see `append`."""
        self._append(b"".join(encode_actions(actions)), check)

    def _append(self, data: bytes, check: Callable[[], None]) -> None:
        numbers = [number for file in self._list() if (number := parse_log_name(file.name)) is not None]
        path = f"{self.directory}/{log_name(max(numbers, default=0) + 1)}"
        check()
        if not self._make(path, data):
            raise RetryableError(
                f"{self._storage.root}: another archive run is active; run the archive again", path=path
            )

    def _make(self, path: str, data: bytes) -> bool:
        """Create a file, and return whether it contains these bytes."""
        try:
            if self._storage.create(path, data):
                return True
        except (RetryableError, CommitStateUnknownError):
            try:
                return self._storage.get(path) == data
            except NotFoundError:
                pass
            raise
        return self._storage.get(path) == data

    def _list(self) -> list[FileInfo]:
        """Return the files of the archive, the oldest first."""
        listed = [file for directory in self._directories for file in self._storage.list_dir(directory)[0]]
        numbered = [(number, file) for file in listed if (number := parse_log_name(file.name)) is not None]
        return [file for _, file in sorted(numbered, key=lambda pair: (pair[0], pair[1].path))]

    def _reading(self, read: Callable[[Sequence[FileInfo]], list[_Item]]) -> list[_Item]:
        """Read the files of a listing; list again if Hudi merged and deleted some in between."""
        for _ in range(_TRIES):
            try:
                return read(self._list())
            except NotFoundError as error:
                lost = error
        raise CorruptTableError(
            f"{self._storage.root}: a file of the archive is missing: {lost}", path=lost.path
        ) from lost

    def _each(self, read: Callable[[FileInfo], _Item], files: Sequence[FileInfo]) -> Iterator[_Item]:
        with ThreadPoolExecutor(_READERS) as pool:
            yield from pool.map(read, files)

    def _read(self, file: FileInfo) -> list[Instant]:
        key = file.path, file.size_bytes
        if key not in self._instants:
            try:
                self._instants[key] = read_instants(self._storage.get(file.path))
            except CorruptTableError as error:
                raise self._damaged(file, error) from error
        return self._instants[key]

    def _actions(self, file: FileInfo, wanted: frozenset[str], containing: bytes) -> Iterator[ArchivedAction]:
        try:
            yield from read_actions(self._storage.get(file.path), wanted, containing)
        except CorruptTableError as error:
            raise self._damaged(file, error) from error

    def _damaged(self, file: FileInfo, error: CorruptTableError) -> CorruptTableError:
        return CorruptTableError(
            f"{self._storage.root}: the archive file {file.path} cannot be read: {error.message}; restore it from a "
            "backup",
            path=file.path,
        )
