"""Strings that end with ascending numbers, such as sequence numbers of commits and generated record keys."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

#: Blocks of this number of digits are copied.
_LOW_DIGITS = 4


def numbered_texts(prefix: str, first: int, count: int) -> pa.Array:
    """Return `count` strings: the prefix, which is ASCII, and the numbers from `first` on."""
    # Numbers with equally many digits form a matrix of characters, which is much faster than a cast of each number.
    parts, start, stop = [], first, first + count
    while start < stop:
        digits = len(str(start))
        end = min(stop, 10**digits)
        width, low = len(prefix) + digits, min(digits, _LOW_DIGITS)
        texts = np.empty((end - start, width), np.uint8)
        for begin in range(start - start % 10**low, end, 10**low):
            # Only the last digits differ in this block.
            block = slice(max(begin, start), min(begin + 10**low, end))
            rows = texts[block.start - start : block.stop - start]
            rows[:, :-low] = np.frombuffer(f"{prefix}{begin:0{digits}}"[:-low].encode(), np.uint8)
            rows[:, -low:] = _digits()[block.start - begin : block.stop - begin, -low:]
        offsets = np.arange(0, (end - start + 1) * width, width, dtype=np.int32)
        parts.append(pa.StringArray.from_buffers(end - start, pa.py_buffer(offsets), pa.py_buffer(texts)))
        start = end
    return parts[0] if len(parts) == 1 else pa.concat_arrays([*parts, pa.array([], pa.string())])


@cache
def _digits() -> np.ndarray:
    """Return the last digits of the numbers 0, 1, ... as characters."""
    numbers = np.arange(10**_LOW_DIGITS)[:, None] // 10 ** np.arange(_LOW_DIGITS)[::-1] % 10
    return (numbers + ord("0")).astype(np.uint8)
