"""The storage of a table that is being built: its properties have another name, so no reader finds a table.

    .hoodie/.aux/unpublished.properties     while the table is built; this storage shows it as hoodie.properties
    .hoodie/hoodie.properties               created if absent, when all files are complete: now there is a table

A build that was killed continues with the files that it has. Two builds at the same location see one table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakehouse.core.storage.protocol import FileInfo, NotFoundError, Storage, Tagged
from lakehouse.errors import UserError

_PROPERTIES = ".hoodie/hoodie.properties"
_HIDDEN = ".hoodie/.aux/unpublished.properties"
_NAMES = {_PROPERTIES: _HIDDEN, f"{_PROPERTIES}.backup": f"{_HIDDEN}.backup"}


class UnpublishedStorage:
    """The storage of a table without published properties; all other files and methods are of the inner storage."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[type[UnpublishedStorage], tuple[Storage]]:
        return UnpublishedStorage, (self._inner,)

    def get(self, path: str) -> bytes:
        """Return the whole file."""
        return self._inner.get(_hidden(path))

    def get_tagged(self, path: str) -> Tagged:
        """Return the whole file and the tag of its version."""
        return self._inner.get_tagged(_hidden(path))

    def find(self, path: str) -> FileInfo | None:
        """Return size and time of a file."""
        return self._inner.find(_hidden(path))

    def put(self, path: str, data: bytes) -> None:
        """Write the file and replace an existing one."""
        self._inner.put(_hidden(path), data)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Create the file if it does not exist."""
        return self._inner.create(_hidden(path), data, unique=unique)

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Create the file if it does not exist and `guard` has a version."""
        return self._inner.create_guarded(_hidden(path), data, _hidden(guard), tag)

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the file if its version is `tag`."""
        return self._inner.replace_if(_hidden(path), data, tag)

    def delete(self, path: str) -> bool:
        """Delete the file."""
        return self._inner.delete(_hidden(path))

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete files, which may be missing."""
        return self._inner.delete_many([_hidden(path) for path in paths])

    def publish(self) -> None:
        """Give the properties their name: from now on there is a table. A repeated call has no effect.

        Raises UserError if another table was created at the location in the meantime.
        """
        data = self._inner.get(_HIDDEN)
        if not self._inner.create(_PROPERTIES, data) and self._inner.get(_PROPERTIES) != data:
            raise UserError(
                f"{self._inner.root}: another program created a table here while this one was built; choose another "
                "location",
                location=self._inner.root,
            )
        self._inner.delete_many([_HIDDEN, _NAMES[f"{_PROPERTIES}.backup"]])


def is_unpublished(storage: Storage) -> bool:
    """Return whether a location has a table that is being built."""
    try:
        storage.get(_HIDDEN)
    except NotFoundError:
        return False
    return True


def _hidden(path: str) -> str:
    return _NAMES.get(path, path)
