"""Send several requests at the same time, if the store is far away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lakehouse.core.storage.protocol import Storage

S = TypeVar("S")
T = TypeVar("T")

_THREADS = 8
_MEMORY = "memory://"


def send_both(storage: Storage, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
    """Return the results of two independent requests. If both fail, the error of the first one is raised."""
    if storage.root.startswith(("/", _MEMORY)):
        return first(), second()
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(first), pool.submit(second)
        return one.result(), two.result()


def send_all(storage: Storage, request: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Return the result of a request for each item, in order.

    Requests to an object store wait for replies, so they are sent by threads. A request for a small file on a local
    disk or in memory takes less time than the start of a thread, so these are sent one after the other.
    """
    inputs = list(items)
    if len(inputs) < 2 or storage.root.startswith(("/", _MEMORY)):
        return [request(item) for item in inputs]
    with ThreadPoolExecutor(min(_THREADS, len(inputs))) as pool:
        return list(pool.map(request, inputs))
