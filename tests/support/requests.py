"""Record the requests of operations on an object store, by purpose; see "Requests of one commit" in performance.md."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Files, InputFile, Level, Names, OutputFile, Tagged
from lakehouse.errors import UnsupportedError

#: The purpose of a request by its path; the first pattern that matches counts.
PURPOSES = {
    "table properties": r"\.hoodie/hoodie\.properties.*",
    "table lock": r"\.hoodie/(holder\.json|lock|shared_lock\.json|\.locks/.*)",
    "heartbeat": r"\.hoodie/\.heartbeat(/.*)?",
    "markers": r"\.hoodie/\.temp(/.*)?",
    "staged rows and claims": r"\.hoodie/\.staging(/.*)?",
    "timeline": r"\.hoodie/timeline(/.*)?",
    "index definitions": r"\.hoodie/\.index_defs/.*",
    "timeline of the metadata table": r"\.hoodie/metadata/\.hoodie/timeline(/.*)?",
    "files of the metadata table": r"\.hoodie/metadata/[^.].*",
    "search for leftover files": r"\.hoodie",
    "partition metadata": r".*/\.hoodie_partition_metadata",
    "data files": r".*\.(parquet|log\.[^/]*)",
}


def purpose_of(path: str) -> str:
    """Return the purpose of a request for a path."""
    for purpose, pattern in PURPOSES.items():
        if re.fullmatch(pattern, path):
            return purpose
    raise AssertionError(f"the request for {path!r} has no purpose")


class ObjectStore(MemoryStorage):
    """A store in memory with the location and the abilities of an object store."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.root = location

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> NoReturn:
        raise UnsupportedError("object stores compare one object per request")

    def delete_if(self, path: str, tag: str) -> NoReturn:
        raise UnsupportedError("object stores have no conditional delete")


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """One request."""

    verb: str
    path: str

    @property
    def purpose(self) -> str:
        """The purpose of the request. One request deletes the files of several purposes."""
        return "cleanup" if self.verb == "DELETE" else purpose_of(self.path)


class RequestLog(CountingStorage):
    """A counting store that also records the path of each request. All files of a test are smaller than a tail."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self._paths = threading.local()
        self.requests: list[Request] = []
        # One letter for each request, in order: of the thread of the operation, or of a thread that it waits for.
        self._threads = ""

    def reset(self) -> None:
        """Forget all requests."""
        super().reset()
        self.requests.clear()
        self._threads = ""

    def purposes(self) -> Counter[tuple[str, str]]:
        """Return the number of requests since the last reset, by purpose and verb."""
        return Counter((request.purpose, request.verb) for request in self.requests)

    def steps(self) -> int:
        """Return the number of times that the operation waited for the store.

        Requests of concurrent threads count once, even if a thread sends several.
        """
        with self._lock:
            return len(re.findall("m|t+", self._threads))

    def of(self, purpose: str) -> Counter[str]:
        """Return the number of requests with one purpose, by verb."""
        return Counter(request.verb for request in self.requests if request.purpose == purpose)

    def _count(self, verb: str, requests: int = 1) -> None:
        super()._count(verb, requests)
        with self._lock:
            self.requests += [Request(verb, self._paths.current)] * requests
            self._threads += "m" if threading.current_thread() is threading.main_thread() else "t"

    def get(self, path: str) -> bytes:
        self._paths.current = path
        return super().get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self._paths.current = path
        return super().get_range(path, start, length)

    def put(self, path: str, data: bytes) -> None:
        self._paths.current = path
        super().put(path, data)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        self._paths.current = path
        return super().create(path, data, unique=unique)

    def get_tagged(self, path: str) -> Tagged:
        self._paths.current = path
        return super().get_tagged(path)

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        self._paths.current = path
        return super().replace_if(path, data, tag)

    def list(self, prefix: str) -> Files:
        self._paths.current = prefix.rstrip("/")
        return super().list(prefix)

    def list_dir(self, prefix: str) -> Level:
        self._paths.current = prefix.rstrip("/")
        return super().list_dir(prefix)

    def list_names(self, prefix: str) -> Names:
        self._paths.current = prefix.rstrip("/")
        return super().list_names(prefix)

    def delete(self, path: str) -> bool:
        self._paths.current = path
        return super().delete(path)

    def delete_many(self, paths: Iterable[str]) -> int:
        listed = [*paths]
        self._paths.current = " ".join(listed)
        return super().delete_many(listed)

    def open_input(self, path: str) -> InputFile:
        self._paths.current = path
        return super().open_input(path)

    def open_output(self, path: str) -> OutputFile:
        output = super().open_output(path)
        close = output.close

        def close_as_path() -> None:
            self._paths.current = path
            close()

        output.close = close_as_path  # type: ignore[method-assign]
        return output
