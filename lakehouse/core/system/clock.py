"""Clocks: the time of day, a monotonic time, and waiting."""

from __future__ import annotations

import time
from typing import Protocol


class WaitClock(Protocol):
    """A monotonic time in seconds and a wait, for durations, pauses and deadlines."""

    def monotonic_s(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Clock(WaitClock, Protocol):
    """A clock that also has the time of day in UTC milliseconds."""

    def now_ms(self) -> int: ...


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
