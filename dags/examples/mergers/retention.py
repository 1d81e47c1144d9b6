"""Retention bitmaps: one bit per day after a day on which a user was active, maintained by appends only.

    day         user   active          bit n: active n days after `day`
    2026-01-01  ada    1011            active on the 1st, 2nd and 4th
    2026-01-04  ada    1               activity on the 4th sets bit 3 of the 1st, bit 2 of the 2nd, bit 0 of the 4th

The activity of a user today is one row in each of the last N partitions. Its bitmap has the one bit of today in that
partition. Writes read no stored rows: the table is merge-on-read with a bucket index, so the rows go to log files.
Readers and compactions combine them with the stored bitmap by OR. OR is commutative and idempotent, so late and
repeated days have no effect.

    SELECT day, count_if(active & 1 > 0) AS users,
           count_if(active & 1 > 0 AND active & 2 > 0) / users AS back_after_1_day
    FROM retention GROUP BY day

retention.yaml declares such a table. A merger is a function with this signature: two tables with the older and newer
rows of the same keys, and a table of merged rows as the result. It works on columns, never row by row. See
lakehouse.core.rows.custom_merger for the rules.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BITMAP = "active"


def merge(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Return the newer rows with the bits of both; column `active` is an integer, or binary of any length."""
    position = newer.schema.get_field_index(BITMAP)
    kind = newer.schema.field(position).type
    unite = _or_bytes if pa.types.is_binary(kind) else _or_integers
    return newer.set_column(position, newer.schema.field(position), unite(older.column(BITMAP), newer.column(BITMAP)))


def _or_integers(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.bit_wise_or(pc.fill_null(first, 0), pc.fill_null(second, 0))


def _or_bytes(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.Array:
    """Return the OR of binary bitmaps. Bit n is bit n % 8 of byte n // 8; a shorter bitmap is padded with zeros."""
    sides = [_bytes_of(first), _bytes_of(second)]
    sizes = np.maximum(*(lengths for _, lengths in sides))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    united = np.zeros(offsets[-1], np.uint8)
    for data, lengths in sides:
        # The offset of a byte in the result, minus its offset in the input.
        shift = np.repeat(offsets[:-1] - (np.cumsum(lengths) - lengths), lengths)
        united[np.arange(len(data)) + shift] |= data
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(united)])


def _bytes_of(bitmaps: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated bytes of all bitmaps and the length of each; null is an empty bitmap."""
    whole = pa.concat_arrays([*pc.fill_null(bitmaps, b"").chunks, pa.array([], pa.binary())])
    lengths = pc.binary_length(whole).to_numpy().astype(np.int64)
    offsets = np.frombuffer(whole.buffers()[1], np.int32)[whole.offset : whole.offset + len(whole) + 1]
    if whole.buffers()[2] is None:
        return np.array([], np.uint8), lengths
    return np.frombuffer(whole.buffers()[2], np.uint8)[offsets[0] : offsets[-1]], lengths
