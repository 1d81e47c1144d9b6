"""Bloom filters of base files that a process keeps between look-ups: to decompress them takes most of a look-up."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lakehouse.core.metadata.read.cache import MetadataCache


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
    found = {place: held for place in places if (held := cache.peek(place)) is not None}
    missing = files.filter(pa.array([place not in found for place in places], pa.bool_()))
    if missing.num_rows:
        columns = (column.to_pylist() for column in read(missing).columns)
        for partition, name, *values in zip(*columns, strict=True):
            found[partition, name] = values
    for place, held in found.items():
        # Filters that were kept before become the newest ones.
        cache.put(place, held, len(held[-1] or b""))
    rows = [(*place, *found[place]) for place in places if place in found]
    return pa.table([pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)], schema)
