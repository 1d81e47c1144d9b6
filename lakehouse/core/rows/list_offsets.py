"""Adds missing offsets to empty list arrays.

An array of n lists has n + 1 offsets. Java's Arrow, and so Spark, writes none for an array without lists, such as the
inner array of nested lists without a value in a batch. Arrow's kernels, even `nbytes`, still read the first offset, and
the process crashes by a segmentation fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

#: The bytes of the single offset of an array without lists; long enough for both offset widths.
_NO_LISTS = b"\0" * 8


def with_offsets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches as they were received from Java, with the offsets of all their lists."""
    for batch in batches:
        if any(_lacks_offsets(column) for column in batch.columns):
            batch = pa.RecordBatch.from_arrays([_completed(column) for column in batch.columns], schema=batch.schema)
        yield batch


def _lacks_offsets(array: pa.Array) -> bool:
    if _is_list(array.type):
        return not array.buffers()[1] or _lacks_offsets(array.values)
    if pa.types.is_struct(array.type):
        return any(_lacks_offsets(array.field(number)) for number in range(array.type.num_fields))
    return False


def _completed(array: pa.Array) -> pa.Array:
    """Return an array that begins with its buffers, as received arrays do, with offsets."""
    if not _lacks_offsets(array):
        return array
    validity, *offsets = array.buffers()[: 2 if _is_list(array.type) else 1]
    if _is_list(array.type):
        offsets, children = [offsets[0] or pa.py_buffer(_NO_LISTS)], [_completed(array.values)]
    else:
        children = [_completed(array.field(number)) for number in range(array.type.num_fields)]
    return pa.Array.from_buffers(array.type, len(array), [validity, *offsets], array.null_count, children=children)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))
