"""Orders of keys: by bytes, and by UTF-16 code units as Java sorts strings (MDT-1.2).

Hudi sorts the records of a log block as Java strings, and its readers compare bytes of UTF-8. The orders differ only if
one key has a character from U+10000 where the other has one from U+E000 to U+FFFF. So a reader searches such keys in
both orders.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: First byte of the UTF-8 of U+E000 and higher: below it, both orders are equal.
_FIRST = 0xEE
#: Bytes that compare as the UTF-16 code units do: leads of four-byte characters before those of U+E000 to U+FFFF.
_JAVA_RANK = np.arange(256, dtype=np.uint8)
_JAVA_RANK[0xF0:0xF5] = np.arange(0xEE, 0xF3)
_JAVA_RANK[0xEE:0xF0] = np.arange(0xF3, 0xF5)


def is_ascending(keys: Any) -> bool:
    """Return whether each key of a binary array is greater than the one before it, by bytes."""
    return len(keys) < 2 or bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py())


def has_two_orders(keys: Any) -> bool:
    """Return whether a binary array contains keys whose order in Java may differ from the order of their bytes."""
    return bool((_content(keys) >= _FIRST).any())


def java_ranks(keys: Any) -> Any:
    """Return keys whose order by bytes is the order of the given keys as Java strings."""
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
