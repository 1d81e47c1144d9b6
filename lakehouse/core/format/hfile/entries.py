"""Entries of an HFile in memory: a table, or a mapping of key to value if they are few (MDT-1).

A call of an Arrow kernel costs some microseconds for any number of rows, so a mapping is faster for a few entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from lakehouse.core.format.hfile.reader import ENTRIES

#: A table with the columns of `ENTRIES`, or key -> value.
Entries: TypeAlias = pa.Table | Mapping[bytes, bytes]


def entry_count(entries: Entries) -> int:
    """Return the number of entries."""
    return entries.num_rows if isinstance(entries, pa.Table) else len(entries)


def entry_bytes(entries: Entries) -> int:
    """Return the memory of keys and values, without that of the objects of a mapping."""
    if isinstance(entries, pa.Table):
        return int(entries.nbytes)
    return sum(map(len, entries)) + sum(map(len, entries.values()))


def entry_table(entries: Entries) -> pa.Table:
    """Return the entries as a table."""
    return entries if isinstance(entries, pa.Table) else table_of([*entries], [*entries.values()])


def entry_mapping(entries: Entries) -> Mapping[bytes, bytes]:
    """Return the entries as a mapping."""
    if not isinstance(entries, pa.Table):
        return entries
    return dict(zip(entries.column("key").to_pylist(), entries.column("value").to_pylist(), strict=True))


def table_of(keys: Sequence[bytes], values: Sequence[bytes]) -> pa.Table:
    """Return a table of keys and their values."""
    return pa.Table.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=ENTRIES)
