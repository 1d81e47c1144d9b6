"""Timers: functions that are called periodically in the background, such as the renewal of a heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A periodic call that was started."""

    def stop(self) -> None:
        """End the calls; when this returns, no call is under way. May be called again."""
        ...


class Timers(Protocol):
    """Starts periodic calls."""

    def every(self, seconds: float, function: Callable[[], None], name: str) -> Timer:
        """Call `function` in the background, for the first time after `seconds`, until the timer is stopped.

        The function handles its own errors: an exception ends the calls. `name` identifies the timer to a debugger.
        """
        ...


class SystemTimers:
    """Timers on daemon threads, one for each timer."""

    def every(self, seconds: float, function: Callable[[], None], name: str) -> Timer:
        """Start a thread that calls `function` periodically; see `Timers`."""
        return _ThreadTimer(seconds, function, name)


class _ThreadTimer:
    def __init__(self, seconds: float, function: Callable[[], None], name: str) -> None:
        self._seconds, self._function = seconds, function
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._function()
