"""Clocks: the time of day, a monotonic time, and waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time in UTC milliseconds, and waiting."""

    def now_ms(self) -> int: ...
    def sleep(self, seconds: float) -> None: ...


class WaitClock(Protocol):
    """A monotonic time in seconds, and waiting: what a storage needs for its pauses and deadlines."""

    def monotonic_s(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return the time of day in UTC milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return a time in seconds that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
