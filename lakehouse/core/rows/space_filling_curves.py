"""Space-filling curves: order rows so that rows with similar values in several columns are close to each other.

The values of a column become short codes that keep their order. Bounds are quantiles of the values. The code of a value
is the number of bounds that are not greater than it. Columns of any type and distribution therefore have equal weight.
The codes of all columns are combined to one number, the position of the row on the curve.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Codes = np.ndarray
_WORD = 64
_MAX_BITS = 12


def bits_of(columns: int) -> int:
    """Return the number of bits per column on a curve of this many columns."""
    return min(_MAX_BITS, _WORD // columns)


def bounds_of(sample: pa.Array | pa.ChunkedArray, bits: int) -> pa.Array:
    """Return at most 2^bits - 1 bounds that split the values into parts of about the same size."""
    values = _plain(sample).drop_null()
    ordered = values.take(pc.sort_indices(values))
    count = (1 << bits) - 1
    if len(ordered) > count:
        ordered = ordered.take(pa.array(np.linspace(0, len(ordered) - 1, count).astype(np.int64)))
    return ordered.unique()


def codes_of(values: pa.Array | pa.ChunkedArray, bounds: pa.Array) -> Codes:
    """Return the code of each value: the number of bounds that are not greater than it. Nulls have the code 0."""
    plain = _plain(values)
    if len(bounds) == 0:
        return np.zeros(len(plain), np.uint64)
    encoded = plain.dictionary_encode()
    distinct = encoded.dictionary
    # Bounds precede equal values because the sort is stable.
    order = pc.sort_indices(pa.concat_arrays([bounds, distinct])).to_numpy()
    below = np.cumsum(order < len(bounds))
    codes = np.empty(len(order), np.uint64)
    codes[order] = below
    # One more code at the end, for nulls.
    distinct_codes = np.append(codes[len(bounds) :], np.uint64(0))
    indices: np.ndarray = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    result: Codes = distinct_codes[indices]
    return result


def z_order(codes: Sequence[Codes], bits: int) -> Codes:
    """Return the bits of all codes interleaved, beginning with the first column."""
    place = np.zeros(len(codes[0]), np.uint64)
    for bit in range(bits - 1, -1, -1):
        for code in codes:
            place = (place << np.uint64(1)) | ((code >> np.uint64(bit)) & np.uint64(1))
    return place


def hilbert(codes: Sequence[Codes], bits: int) -> Codes:
    """Return positions on the Hilbert curve; neighbours differ by 1 in one column (Skilling's transform)."""
    axes = [np.asarray(code, np.uint64).copy() for code in codes]
    for bit in range(bits - 1, 0, -1):
        low = np.uint64((1 << bit) - 1)
        for number, axis in enumerate(axes):
            is_set = (axis >> np.uint64(bit)) & np.uint64(1) != 0
            swapped = np.where(is_set, np.uint64(0), (axes[0] ^ axis) & low)
            axes[0] ^= np.where(is_set, low, swapped)
            if number:
                axes[number] ^= swapped
    for number in range(1, len(axes)):
        axes[number] ^= axes[number - 1]
    turned = np.zeros(len(axes[0]), np.uint64)
    for bit in range(bits - 1, 0, -1):
        is_set = (axes[-1] >> np.uint64(bit)) & np.uint64(1) != 0
        turned ^= np.where(is_set, np.uint64((1 << bit) - 1), np.uint64(0))
    return z_order([axis ^ turned for axis in axes], bits)


def is_sortable(kind: pa.DataType) -> bool:
    """Return whether rows can be sorted by a column of this type."""
    return not pa.types.is_nested(kind) and not pa.types.is_null(kind)


def _plain(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values as one array that Arrow can sort and encode."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    return whole.cast(pa.int8()) if pa.types.is_boolean(whole.type) else whole
