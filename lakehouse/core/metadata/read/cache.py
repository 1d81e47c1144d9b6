"""What readers of one metadata table keep between loads: parts of immutable files, by the name of the file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

import pyarrow as pa

T = TypeVar("T")

#: The largest number of bytes that are kept, by the estimates of the callers.
CACHE_BYTES = 192 << 20
#: The same for the texts of bloom filters, which have a share of their own: those of a look-up would displace the rest.
FILTER_BYTES = 64 << 20


class MetadataCache:
    """Values by key, of which the least recently used are dropped when their sizes exceed a bound; thread-safe.

    Files of a metadata table never change, so a key that names a file stays valid.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit, self._used = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self._filters: MetadataCache | None = None
        #: What the last load of the table found: the loaded table, and the reader or the reason that there is none.
        self.opened: tuple[Any, Any] | None = None

    @property
    def filters(self) -> MetadataCache:
        """The bloom filters of base files, by partition and name of the file. The filter of a file never changes."""
        if self._filters is None:
            self._filters = MetadataCache(FILTER_BYTES)
        return self._filters

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """Return the value of a key; `make` returns it with its size if it is missing. Two threads may both make it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                value: T = self._values[key][0]
                return value
        value, size = make()
        self.put(key, value, size)
        return value

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value, unless it is larger than the bound."""
        if size > self._limit:
            return
        with self._lock:
            self._used += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = (value, size)
            while self._used > self._limit:
                self._used -= self._values.popitem(last=False)[1][1]

    def drop(self, key: Hashable) -> None:
        """Forget the value of a key, if there is one."""
        with self._lock:
            self._used -= self._values.pop(key, (None, 0))[1]

    def peek(self, key: Hashable) -> Any:
        """Return the value of a key, None if it is missing."""
        with self._lock:
            return self._values[key][0] if key in self._values else None


def kept_filters(
    cache: MetadataCache, files: pa.Table, read: Callable[[pa.Table], pa.Table], schema: pa.Schema
) -> pa.Table:
    """Return the rows of the files that have a filter; `read` returns those of files whose filter is not kept.

    Args:
        cache: The kept filters, by partition and name of the file. The filter of a file never changes.
        files: The files, with the columns `partition` and `name`.
        read: Reads filters from the metadata table.
        schema: The columns of rows: partition, name, values, and as the last one the text of the filter.
    """
    places = list(zip(*(files.column(name).to_pylist() for name in ("partition", "name")), strict=True))
    filters = {place: held for place in places if (held := cache.peek(place)) is not None}
    missing = files.filter(pa.array([place not in filters for place in places], pa.bool_()))
    if missing.num_rows:
        columns = (column.to_pylist() for column in read(missing).columns)
        for partition, name, *values in zip(*columns, strict=True):
            filters[partition, name] = values
    for place, held in filters.items():
        # Filters that were kept before become the newest ones.
        cache.put(place, held, len(held[-1] or b""))
    rows = [(*place, *filters[place]) for place in places if place in filters]
    return pa.table([pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)], schema)
