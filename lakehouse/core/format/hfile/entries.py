"""Entries of an HFile in memory, and the orders of their keys (MDT-1).

Entries are a table, or a mapping of key to value if they are few: a call of an Arrow kernel costs some microseconds for
any number of rows, so a mapping is faster for a few entries.

Hudi sorts the records of a log block as Java strings, and its readers compare bytes of UTF-8. The orders differ only
if, at the same position, one key has a character from U+10000 and the other has one from U+E000 to U+FFFF. So a reader
searches such keys in both orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: First UTF-8 byte of U+E000 and higher: below it, both orders are equal.
_FIRST = 0xEE
#: Bytes that compare as the UTF-16 code units do: four-byte characters precede U+E000 to U+FFFF.
_JAVA_RANK = np.arange(256, dtype=np.uint8)
_JAVA_RANK[0xF0:0xF5] = np.arange(0xEE, 0xF3)
_JAVA_RANK[0xEE:0xF0] = np.arange(0xF3, 0xF5)
#: The columns of an entries table.
ENTRIES = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
#: A table with the columns of `ENTRIES`, or a mapping of key to value.
Entries: TypeAlias = pa.Table | Mapping[bytes, bytes]


def entry_count(entries: Entries) -> int:
    """Return the number of entries."""
    return entries.num_rows if isinstance(entries, pa.Table) else len(entries)


def entry_bytes(entries: Entries) -> int:
    """Return the bytes of keys and values; objects of a mapping are not counted."""
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


def is_ascending(keys: Any) -> bool:
    """Return whether each key of a binary array is greater than the one before it, by bytes."""
    return len(keys) < 2 or bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py())


def has_two_orders(keys: Any) -> bool:
    """Return whether a binary array contains keys whose order in Java may differ from the order of their bytes."""
    return bool((_content(keys) >= _FIRST).any())


def java_ranks(keys: Any) -> Any:
    """Convert keys so that their order by bytes equals the order of the original keys as Java strings."""
    keys = pa.array([], pa.binary()) if len(keys) == 0 else pa.concat_arrays([keys])
    if len(keys) == 0:
        return keys
    _, offsets, content = keys.buffers()
    if content is None:
        return keys
    ranks = _JAVA_RANK[np.frombuffer(content, np.uint8)]
    return pa.Array.from_buffers(pa.binary(), len(keys), [None, offsets, pa.py_buffer(ranks)], offset=keys.offset)


def _content(keys: Any) -> Any:
    buffers: Any = keys.buffers() if len(keys) else [None, None, None]
    _, offsets, content = buffers
    if content is None:
        return np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)
    return np.frombuffer(content, np.uint8)[bounds[keys.offset] : bounds[keys.offset + len(keys)]]
