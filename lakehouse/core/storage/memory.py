"""A store in the memory of one process, for tests and simulation.

Stores have names: all handles of `memory://name` in one process see the same files, unpickled handles included.
`modified_ms` is a write counter instead of a clock value, so that runs are repeatable.
"""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Iterable
from weakref import WeakValueDictionary

import pyarrow as pa

from lakehouse.core.storage.atomic_output import AtomicOutput
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

SCHEME = "memory://"


class _Files:
    """The files of one store name: (bytes, number of the write) by key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.content: dict[str, tuple[bytes, int]] = {}
        self.writes = 0

    def write(self, key: str, data: bytes, *, replace: bool) -> bool:
        with self.lock:
            if not replace and key in self.content:
                return False
            self._write(key, data)
            return True

    def write_if(self, key: str, data: bytes | None, tag: str | None) -> str | None:
        """Write, or delete if `data` is None, if `tag` is the number of the last write; return the new number."""
        with self.lock:
            entry = self.content.get(key)
            if (None if entry is None else str(entry[1])) != tag:
                return None
            if data is None:
                del self.content[key]
                return tag
            self._write(key, data)
            return str(self.writes)

    def write_guarded(self, key: str, data: bytes, watched: str, tag: str) -> bool | None:
        """Create a file if `tag` is the current write number of `watched`; return None if it is not."""
        with self.lock:
            entry = self.content.get(watched)
            if entry is None or str(entry[1]) != tag:
                return None
            if key in self.content:
                return False
            self._write(key, data)
            return True

    def _write(self, key: str, data: bytes) -> None:
        self.writes += 1
        self.content[key] = (data, self.writes)


_named: dict[str, _Files] = {}
_unnamed: WeakValueDictionary[str, _Files] = WeakValueDictionary()
_numbers = itertools.count(1)
_registry_lock = threading.Lock()


class MemoryStorage:
    """A store in memory; a store without name is released with its last handle."""

    def __init__(self, location: str = "") -> None:
        name, _, prefix = location.removeprefix(SCHEME).partition("/")
        name = name or f"unnamed-{next(_numbers)}"
        prefix = prefix.strip("/")
        self._files = _files(name, keep=bool(location))
        self._lead = f"{prefix}/" if prefix else ""
        self.root = f"{SCHEME}{name}/{prefix}" if prefix else SCHEME + name

    def __reduce__(self) -> tuple[type[MemoryStorage], tuple[str]]:
        return MemoryStorage, (self.root,)

    def __repr__(self) -> str:
        return f"MemoryStorage({self.root!r})"

    def above(self) -> MemoryStorage | None:
        """Return the store of the prefix one level above."""
        if not self._lead:
            return None
        parent = self._lead[:-1].rpartition("/")[0]
        return MemoryStorage(f"{self.root.removesuffix(self._lead[:-1]).rstrip('/')}/{parent}")

    def get(self, path: str) -> bytes:
        """Return the whole file."""
        entry = self._files.content.get(self._lead + check_path(path))
        if entry is None:
            raise NotFoundError(f"no file {path!r} in {self.root}", path=path)
        return entry[0]

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`."""
        return self.get(path)[start : start + length]

    def put(self, path: str, data: bytes) -> None:
        """Write the file and replace an existing one."""
        self._files.write(self._lead + check_path(path), bytes(data), replace=True)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Create the file if it does not exist."""
        return self._files.write(self._lead + check_path(path), bytes(data), replace=False)

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """Create the file if it does not exist and `guard` was not written since `tag`."""
        key, watched = self._lead + check_path(path), self._lead + check_path(guard)
        return self._files.write_guarded(key, bytes(data), watched, tag)

    def get_tagged(self, path: str) -> Tagged:
        """Return the whole file and the number of its last write."""
        entry = self._files.content.get(self._lead + check_path(path))
        if entry is None:
            raise NotFoundError(f"no file {path!r} in {self.root}", path=path)
        return entry[0], str(entry[1])

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write the file if it was not written since `tag`."""
        return self._files.write_if(self._lead + check_path(path), bytes(data), tag)

    def delete_if(self, path: str, tag: str) -> bool:
        """Delete the file if it was not written since `tag`."""
        return self._files.write_if(self._lead + check_path(path), None, tag) is not None

    def list(self, prefix: str) -> Files:
        """Return all files below `prefix`, sorted by path."""
        plain = check_prefix(prefix)
        start = f"{self._lead}{plain}/" if plain else self._lead
        with self._files.lock:
            entries = [(key, value) for key, value in self._files.content.items() if key.startswith(start)]
        cut = len(self._lead)
        return sorted(
            (FileInfo(key[cut:], len(data), written) for key, (data, written) in entries), key=lambda file: file.path
        )

    def list_after(self, after: str) -> Files:
        """Return all files with paths greater than `after`, sorted by path."""
        return [file for file in self.list("") if file.path > after]

    def find(self, path: str) -> FileInfo | None:
        """Return size and time of a file; None if it does not exist."""
        with self._files.lock:
            entry = self._files.content.get(self._lead + check_path(path))
        return None if entry is None else FileInfo(path, len(entry[0]), entry[1])

    def list_dir(self, prefix: str) -> Level:
        """Return files and names of sub-directories, one level below `prefix`."""
        plain = check_prefix(prefix)
        cut = len(plain) + 1 if plain else 0
        files: Files = []
        names: set[str] = set()
        for file in self.list(plain):
            name, slash, _ = file.path[cut:].partition("/")
            if slash:
                names.add(name)
            else:
                files.append(file)
        return files, sorted(names)

    def list_names(self, prefix: str) -> Names:
        """Return the names of the files one level below `prefix`."""
        return [file.name for file in self.list_dir(prefix)[0]]

    def delete(self, path: str) -> bool:
        """Delete the file; return False if it did not exist."""
        with self._files.lock:
            return self._files.content.pop(self._lead + check_path(path), None) is not None

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete files and return how many existed."""
        return sum(self.delete(path) for path in paths)

    def open_input(self, path: str) -> InputFile:
        """Open the current bytes of the file."""
        opened: InputFile = pa.BufferReader(self.get(path))
        return opened

    def open_output(self, path: str) -> OutputFile:
        """Open a buffer that becomes the file on `close`."""
        check_path(path)
        sink = io.BytesIO()
        return AtomicOutput(sink, lambda: self.put(path, sink.getvalue()), sink.close)

    def native(self, path: str) -> str:
        """Return `memory://name/path`, which only this process can open; `""` is the root."""
        return f"{SCHEME}{self.root.removeprefix(SCHEME)}/{check_path(path)}" if path else self.root


def _files(name: str, *, keep: bool) -> _Files:
    with _registry_lock:
        files = _named.get(name) or _unnamed.get(name)
        if files is None:
            files = _Files()
            if keep:
                _named[name] = files
            else:
                _unnamed[name] = files
        return files
