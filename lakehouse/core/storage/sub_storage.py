"""A part of a store: the files below one of its directories, under paths relative to that directory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lakehouse.core.storage.protocol import (
    FileInfo,
    Files,
    InputFile,
    Level,
    Names,
    OutputFile,
    Storage,
    Tagged,
    check_path,
    check_prefix,
)


class SubStorage:
    """The files of `inner` below `directory`.

    All requests go to `inner`, so counting and fault injection include them.
    """

    def __init__(self, inner: Storage, directory: str) -> None:
        self._inner, self._directory = inner, check_prefix(directory)

    def __reduce__(self) -> tuple[type[SubStorage], tuple[Storage, str]]:
        return SubStorage, (self._inner, self._directory)

    @property
    def root(self) -> str:
        """The location of the directory."""
        return f"{self._inner.root}/{self._directory}"

    def above(self) -> Storage:
        """Return the store that contains the directory."""
        return self._inner

    def get(self, path: str) -> bytes:
        return self._inner.get(self._full(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._inner.get_range(self._full(path), start, length)

    def put(self, path: str, data: bytes) -> None:
        self._inner.put(self._full(path), data)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        return self._inner.create(self._full(path), data, unique=unique)

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Create a file; `guard` is a path of this directory, too."""
        return self._inner.create_guarded(self._full(path), data, self._full(guard), tag)

    def get_tagged(self, path: str) -> Tagged:
        return self._inner.get_tagged(self._full(path))

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        return self._inner.replace_if(self._full(path), data, tag)

    def delete_if(self, path: str, tag: str) -> bool:
        return self._inner.delete_if(self._full(path), tag)

    def list(self, prefix: str) -> Files:
        return [self._own(file) for file in self._inner.list(self._below(prefix))]

    def list_after(self, after: str) -> Files:
        return [self._own(file) for file in self._inner.list(self._below("")) if self._own(file).path > after]

    def find(self, path: str) -> FileInfo | None:
        file = self._inner.find(self._full(path))
        return None if file is None else self._own(file)

    def list_dir(self, prefix: str) -> Level:
        files, directories = self._inner.list_dir(self._below(prefix))
        return [self._own(file) for file in files], directories

    def list_names(self, prefix: str) -> Names:
        return self._inner.list_names(self._below(prefix))

    def delete(self, path: str) -> bool:
        return self._inner.delete(self._full(path))

    def delete_many(self, paths: Iterable[str]) -> int:
        return self._inner.delete_many([self._full(path) for path in paths])

    def open_input(self, path: str) -> InputFile:
        return self._inner.open_input(self._full(path))

    def open_output(self, path: str) -> OutputFile:
        return self._inner.open_output(self._full(path))

    def native(self, path: str) -> str:
        return self._inner.native(self._full(path))

    def _full(self, path: str) -> str:
        return f"{self._directory}/{check_path(path)}"

    def _below(self, prefix: str) -> str:
        below = check_prefix(prefix)
        return f"{self._directory}/{below}" if below else self._directory

    def _own(self, file: FileInfo) -> FileInfo:
        return replace(file, path=file.path[len(self._directory) + 1 :])
