"""The batches of a lazy frame of Polars, with the error of a query that stops early.

`LazyFrame.collect_batches` ends without an error if Polars panics, so a read would return some of the rows, and a
write would commit them. `sink_batches` raises the panic, but passes the batches to a function: a thread runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from queue import Full, Queue
from threading import Event, Thread  # noqa: TID251 - no timer: it ends with the iterator
from typing import Any

_WAIT_S = 0.05
#: Batches are passed on together from this size on: each pass costs a switch of threads and a filter in Python.
_LEAST_BYTES = 8 << 20
_END = object()


def polars_batches(frame: Any, *, filters_rows_itself: bool = False) -> Iterator[Any]:
    """Yield the result of a lazy frame in order. Errors and panics of Polars are raised as they are.

    With `filters_rows_itself` file readers do not get the conditions of the frame.
    """
    options: dict[str, Any] = {}
    if filters_rows_itself:
        options["optimizations"] = import_module("polars").QueryOptFlags(predicate_pushdown=False)
    queue: Queue[Any] = Queue(maxsize=2)
    failures: list[BaseException] = []
    is_over = Event()
    pending = _Pending()

    def put(item: Any) -> bool:
        """Pass an item on; return whether Polars is to stop."""
        while not is_over.is_set():
            try:
                queue.put(item, timeout=_WAIT_S)
                return False
            except Full:
                continue
        return True

    def take(batch: Any) -> bool:
        """Pass batches on if they are large enough together; return whether Polars is to stop."""
        pending.add(batch)
        return put(pending.taken()) if pending.size_bytes >= _LEAST_BYTES else is_over.is_set()

    def run() -> None:
        try:
            frame.sink_batches(take, maintain_order=True, **options)
            if pending.batches:
                put(pending.taken())
        except BaseException as error:  # a panic is not an Exception
            failures.append(error)
        finally:
            put(_END)

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


class _Pending:
    """Batches that were not passed on yet."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.size_bytes = 0

    def add(self, batch: Any) -> None:
        self.batches.append(batch)
        self.size_bytes += batch.estimated_size()

    def taken(self) -> Any:
        """Return the batches as one, and forget them."""
        batches, self.batches, self.size_bytes = self.batches, [], 0
        return batches[0] if len(batches) == 1 else import_module("polars").concat(batches, rechunk=False)
