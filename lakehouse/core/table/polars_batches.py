"""The batches of a lazy frame of Polars, with the error of a query that stops early.

`LazyFrame.collect_batches` ends without an error if Polars panics, so a read would return some of the rows, and a
write would commit them. `sink_batches` raises the panic, but passes the batches to a function: a thread runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from queue import Full, Queue
from threading import Event, Thread  # noqa: TID251 - no timer: it ends with the iterator
from typing import Any

_WAIT_S = 0.05
_END = object()


def polars_batches(frame: Any) -> Iterator[Any]:
    """Yield the result of a lazy frame in order; raise what Polars raises, also if it panics."""
    queue: Queue[Any] = Queue(maxsize=2)
    failures: list[BaseException] = []
    is_over = Event()

    def take(batch: Any) -> bool:
        """Pass a batch on; return whether Polars is to stop."""
        while not is_over.is_set():
            try:
                queue.put(batch, timeout=_WAIT_S)
                return False
            except Full:
                continue
        return True

    def run() -> None:
        try:
            frame.sink_batches(take, maintain_order=True)
        except BaseException as error:  # a panic is not an Exception
            failures.append(error)
        finally:
            take(_END)

    thread = Thread(target=run, name="polars-batches", daemon=True)
    thread.start()
    try:
        while (batch := queue.get()) is not _END:
            yield batch
    finally:
        is_over.set()
    thread.join()
    if failures:
        raise failures[0]
