"""Convert times in nanoseconds to microseconds, the unit of tables.

Digits below the microsecond are cut off towards the past (floor), as in Spark, also before 1970. Then a time that is
later than another one is never earlier after the cut.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PER_MICRO = 1_000


def is_nanos(kind: pa.DataType) -> bool:
    """Return whether a type is a timestamp in nanoseconds."""
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def to_micros(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert timestamps in nanoseconds to `kind`, a timestamp in microseconds. The zone does not change values."""
    numbers = values.view(pa.int64())
    if len(numbers) == numbers.null_count or pc.min(numbers).as_py() >= 0:
        return pc.cast(values, options=pc.CastOptions(kind, allow_time_truncate=True))
    # Arrow's cast and its division round towards zero.
    floored = np.asarray(pc.fill_null(numbers, 0)) // _PER_MICRO
    return pa.array(floored, pa.int64(), mask=np.asarray(numbers.is_null())).view(kind)


def loses_digits(values: pa.Array) -> np.ndarray:
    """Return the mask of timestamps in nanoseconds that `to_micros` changes."""
    mask: np.ndarray = np.asarray(pc.fill_null(values.view(pa.int64()), 0)) % _PER_MICRO != 0
    return mask
