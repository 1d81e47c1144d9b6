"""Wait for other processes by polling a condition; the time limit matters only for a failing test."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Long enough for a loaded machine; a passing test ends earlier.
LIMIT_S = 60.0
_PAUSE_S = 0.02


def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Poll a condition until it holds or the limit is over; return whether it holds."""
    deadline = time.monotonic() + limit_s
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return holds
