"""Call a function with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Return the result of a function; raise TimeoutError if it takes longer.

    The function runs in a daemon thread. Python cannot end a thread, so a late function continues in the background
    until the process ends.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="time-limit", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no result within {seconds:g} seconds")
    return results[0]
