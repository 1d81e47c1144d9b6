"""A store that counts the requests that S3 would need, so that tests can assert the cost of an operation."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from lakehouse.core.storage.atomic_output import PassingOutput
from lakehouse.core.storage.protocol import FileInfo, Files, InputFile, Level, Names, OutputFile, Storage, Tagged
from lakehouse.core.storage.ranged_input import TAIL_BYTES, RangeReader

VERBS = ("LIST", "GET", "PUT", "HEAD", "DELETE")

# The number of listing entries, and of bytes per upload part, that S3 handles per request.
_PAGE = 1000
_PART_BYTES = 8 << 20


class CountingStorage:
    """Pass every call to the inner store and count it. An unpickled copy has its own counters, from zero."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(VERBS, 0)
        self._listed: list[str] = []

    def __reduce__(self) -> tuple[type[CountingStorage], tuple[Storage]]:
        return CountingStorage, (self.inner,)

    @property
    def root(self) -> str:
        """The root of the inner store."""
        return self.inner.root

    def counts(self) -> dict[str, int]:
        """Return the number of requests since the last reset for every HTTP verb."""
        with self._lock:
            return dict(self._counts)

    def listed(self) -> tuple[str, ...]:
        """Return the directories that were listed since the last reset, in order; "" is the root."""
        with self._lock:
            return tuple(self._listed)

    def listed_data(self) -> tuple[str, ...]:
        """Return the paths in `listed` that can contain data files of a table at the root."""
        return tuple(path for path in self.listed() if path.partition("/")[0] != ".hoodie")

    def reset(self) -> None:
        """Set all counters to zero, and forget which directories were listed."""
        with self._lock:
            self._counts.update(dict.fromkeys(VERBS, 0))
            self._listed.clear()

    def above(self) -> CountingStorage | None:
        """Return the parent store; its requests are counted here. The call itself costs no request."""
        inner = self.inner.above()
        if inner is None:
            return None
        counted = CountingStorage(inner)
        counted._lock, counted._counts = self._lock, self._counts
        return counted

    def get(self, path: str) -> bytes:
        """Count one GET."""
        self._count("GET")
        return self.inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Count one GET."""
        self._count("GET")
        return self.inner.get_range(path, start, length)

    def put(self, path: str, data: bytes) -> None:
        """Count one PUT."""
        self._count("PUT")
        self.inner.put(path, data)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Count one PUT."""
        self._count("PUT")
        return self.inner.create(path, data, unique=unique)

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Count one PUT."""
        self._count("PUT")
        return self.inner.create_guarded(path, data, guard, tag)

    def get_tagged(self, path: str) -> Tagged:
        """Count one GET."""
        self._count("GET")
        return self.inner.get_tagged(path)

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Count one PUT."""
        self._count("PUT")
        return self.inner.replace_if(path, data, tag)

    def delete_if(self, path: str, tag: str) -> bool:
        """Count one DELETE."""
        self._count("DELETE")
        return self.inner.delete_if(path, tag)

    def list(self, prefix: str) -> Files:
        """Count one LIST for every thousand files."""
        files = self.inner.list(prefix)
        self._count_list(prefix, len(files))
        return files

    def list_after(self, after: str) -> Files:
        """Count one LIST for every thousand files."""
        files = self.inner.list_after(after)
        self._count_list("", len(files))
        return files

    def find(self, path: str) -> FileInfo | None:
        """Count one HEAD."""
        self._count("HEAD")
        return self.inner.find(path)

    def list_dir(self, prefix: str) -> Level:
        """Count one LIST for every thousand files and names."""
        files, names = self.inner.list_dir(prefix)
        self._count_list(prefix, len(files) + len(names))
        return files, names

    def list_names(self, prefix: str) -> Names:
        """Count one LIST for every thousand files."""
        names = self.inner.list_names(prefix)
        self._count_list(prefix, len(names))
        return names

    def delete(self, path: str) -> bool:
        """Count one DELETE, and one HEAD that checks whether the file exists."""
        self._count("HEAD")
        self._count("DELETE")
        return self.inner.delete(path)

    def delete_many(self, paths: Iterable[str]) -> int:
        """Count one DELETE for every thousand paths."""
        listed = [*paths]
        if listed:
            self._count("DELETE", _pages(len(listed)))
        return self.inner.delete_many(listed)

    def open_input(self, path: str) -> InputFile:
        """Count one GET for the tail, and one for every further range that an object store would request."""
        self._count("GET")
        return _CountedInput(self, self.inner.open_input(path))

    def open_output(self, path: str) -> OutputFile:
        """Count one PUT on `close`, or the requests of a multipart upload."""
        return _CountedOutput(self, self.inner.open_output(path))

    def native(self, path: str) -> str:
        """Return the native path; reads through it are not counted."""
        return self.inner.native(path)

    def _count_list(self, prefix: str, entries: int) -> None:
        self._count("LIST", _pages(entries))
        with self._lock:
            self._listed.append(prefix.rstrip("/"))

    def _count(self, verb: str, requests: int = 1) -> None:
        with self._lock:
            self._counts[verb] += requests


class _CountedInput(RangeReader):
    """Read the inner file in the ranges that an object store would request."""

    def __init__(self, owner: CountingStorage, file: InputFile) -> None:
        self._file = file
        size = file.size()
        tail_bytes = min(size, TAIL_BYTES)

        def fetch(start: int, length: int) -> bytes:
            owner._count("GET")
            return _read(file, start, length)

        super().__init__(fetch, size, _read(file, size - tail_bytes, tail_bytes))

    def close(self) -> None:
        """Close the inner file as well."""
        self._file.close()
        super().close()


class _CountedOutput(PassingOutput):
    """Count the requests of an output when it is closed."""

    def __init__(self, owner: CountingStorage, inner: OutputFile) -> None:
        super().__init__(inner)
        self._owner = owner

    def close(self) -> None:
        """Count, then publish."""
        if not self.closed:
            parts = -(-self.tell() // _PART_BYTES)
            self._owner._count("PUT", 1 if parts <= 1 else parts + 2)  # begin and complete the upload
        super().close()


def _pages(entries: int) -> int:
    return max(-(-entries // _PAGE), 1)


def _read(file: InputFile, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)
