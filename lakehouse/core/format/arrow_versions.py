"""Functions of Arrow that differ between the supported versions of pyarrow, with the same results for all of them.

pyarrow 25 added `search_sorted`, and the place of nulls per sort key. Older versions get a binary search that compares
all keys of a step together, and the place of nulls as one option. pyarrow before 22 cannot hash a schema with metadata.
pyarrow before 24 cannot measure a slice of `string_view`, which Polars and DuckDB pass on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, Literal, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

OfSchema = TypeVar("OfSchema", bound=Callable[..., Any])
Side = Literal["left", "right"]
_NATIVE = getattr(pc, "search_sorted", None)
_HAS_NULL_PLACEMENT_PER_KEY = int(pa.__version__.partition(".")[0]) >= 25


def order_nulls_first(keys: pa.Table) -> pa.Array:
    """Return the row positions in ascending order of all columns, the first column first. Nulls are smallest."""
    if _HAS_NULL_PLACEMENT_PER_KEY:
        return pc.sort_indices(keys, sort_keys=[(name, "ascending", "at_start") for name in keys.column_names])
    by = [(name, "ascending") for name in keys.column_names]
    return pc.sort_indices(keys, sort_keys=by, null_placement="at_start")


def search_sorted(values: Any, keys: Any, side: Side) -> NDArray[np.int64]:
    """Return for each key the position in ascending `values` at which it would be inserted.

    Args:
        values: An ascending array of strings, bytes or numbers, without nulls.
        keys: An array of the same kind, in any order, without nulls.
        side: `left` for the position before equal values, `right` for the position after them.
    """
    if _NATIVE is not None:
        return np.asarray(_NATIVE(values, keys, side=side)).astype(np.int64)
    return bisect_sorted(values, keys, side)


def position_of(values: Any, key: Any, side: Side) -> int:
    """Return the position of one key, a scalar of Arrow, in ascending `values`."""
    return int(search_sorted(values, pa.array([key.as_py()], key.type), side)[0])


def bisect_sorted(values: Any, keys: Any, side: Side) -> NDArray[np.int64]:
    """Return what `search_sorted` returns, with comparisons only: one step per bit of the number of values."""
    low = np.zeros(len(keys), np.int64)
    high = np.full(len(keys), len(values), np.int64)
    is_before = pc.less if side == "left" else pc.less_equal
    for _ in range(len(values).bit_length()):
        middle = (low + high) >> 1
        is_open = low < high
        # The search of a key that is greater than all values has ended with `middle` behind the last one.
        candidates = values.take(pa.array(np.minimum(middle, len(values) - 1)))
        after = np.asarray(is_before(candidates, keys), np.bool_) & is_open
        low = np.where(after, middle + 1, low)
        high = np.where(is_open & ~after, middle, high)
    return low


def size_bytes(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the bytes of the rows; before pyarrow 24, rows with a view type have the size of their whole buffers."""
    try:
        return int(rows.nbytes)
    except pa.ArrowTypeError:
        return int(rows.get_total_buffer_size())


def cached_by_columns(maxsize: int) -> Callable[[OfSchema], OfSchema]:
    """Return a decorator that caches the results of a function of a schema, or None, and other hashable arguments.

    The function gets the schema without its metadata: before pyarrow 22, a schema with metadata cannot be hashed.
    """

    def decorate(function: OfSchema) -> OfSchema:
        cached = lru_cache(maxsize=maxsize)(function)

        @wraps(function)
        def call(schema: pa.Schema | None, *arguments: Hashable, **options: Hashable) -> Any:
            plain = schema if schema is None else schema.remove_metadata()
            return cached(plain, *arguments, **options)

        return cast(OfSchema, call)

    return decorate
