"""Read numbers and fixed-size records at any positions in a buffer, for all positions together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def load(data: NDArray[np.uint8], positions: NDArray[np.int64], dtype: str | np.dtype[Any]) -> NDArray[Any]:
    """Return the item of a NumPy dtype at each position; positions need no alignment."""
    kind = np.dtype(dtype)
    if len(positions) == 0:
        return np.empty(0, kind)
    # NumPy gathers void items of the same width without regard to their alignment.
    shape = (len(data) - kind.itemsize + 1,)
    items: NDArray[Any] = np.ndarray(shape, f"V{kind.itemsize}", buffer=data, strides=(1,))
    return items[positions].view(kind)
