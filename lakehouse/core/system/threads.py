"""Run parts of one task on several cores; the results do not depend on the number of threads.

The calling thread takes part in the work, and threads of a pool of the process help if they are free. So a task of a
busy process never waits for a free thread, and nested calls cannot block each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Generic, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def parallel_map(threads: int, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of `function` in the order of the items, which up to `threads` threads process.

    The items start in their order. After an error no further item starts; the error of the first failed item is raised
    when no thread works on an item any more.
    """
    if threads <= 1 or len(items) <= 1:
        return [function(item) for item in items]
    work: _Work[T, R] = _Work(function, items)
    helpers = [_pool().submit(work.run) for _ in range(min(threads, len(items)) - 1)]
    try:
        work.run()
    finally:
        # A helper that did not start yet has nothing to do any more.
        for helper in helpers:
            if not helper.cancel():
                helper.result()
    return work.finished()


def ahead(threads: int, values: Iterator[T]) -> Generator[T]:
    """Yield the values of an iterator; with several threads the next value is computed during the use of the last one.

    Close the result before the resources of the iterator are released: this waits for the value in progress.
    """
    if threads <= 1:
        yield from values
        return
    following: Future[tuple[T, ...]] | None = _pool().submit(_next, values)
    try:
        while following is not None:
            # If the pool is busy, this thread computes the value itself.
            result = _next(values) if following.cancel() else following.result()
            following = _pool().submit(_next, values) if result else None
            yield from result
    finally:
        if following is not None and not following.cancel():
            following.exception()


def _next(values: Iterator[T]) -> tuple[T, ...]:
    """Return the next value, or nothing at the end."""
    for value in values:
        return (value,)
    return ()


class _Work(Generic[T, R]):
    """Items that several threads process, each by one thread."""

    def __init__(self, function: Callable[[T], R], items: Sequence[T]) -> None:
        self._function, self._items = function, items
        self._results: list[R | None] = [None] * len(items)
        self._errors: dict[int, BaseException] = {}
        self._lock, self._next = threading.Lock(), 0

    def run(self) -> None:
        """Process items until none is left or one failed."""
        while True:
            with self._lock:
                number = self._next
                if number >= len(self._items) or self._errors:
                    return
                self._next += 1
            try:
                self._results[number] = self._function(self._items[number])
            except BaseException as error:
                with self._lock:
                    self._errors[number] = error

    def finished(self) -> list[R]:
        """Return the results; raise the error of the first failed item."""
        if self._errors:
            raise self._errors[min(self._errors)]
        return cast(list[R], self._results)


@cache
def _pool() -> ThreadPoolExecutor:
    # One pool for the process, so that concurrent tasks do not start more threads than there are cores.
    return ThreadPoolExecutor(max(available_cores() - 1, 1), thread_name_prefix="lakehouse-encode")
