"""Progress of long operations: an observer is called when a task of a stage ends, in the process that started it.

    with observing(observer):                      # by a caller
        table.services.compaction.run()

    with observed_stage(Stage(...)) as running:    # by an operation
        with running.tasks(sizes):
            engine.run(function, tasks)            # the engine calls `finished_task` of the running tasks

The observer belongs to the context of the caller (a context variable), so operations need no parameter for it. Without
an observer nothing is counted. No call is made per row. Engines call from the threads that run or watch the tasks: an
observer must be thread-safe and return immediately. An error of an observer ends its calls, not the operation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """A part of an operation with a known number of units, such as file groups; one object for each run of it.

    `total_bytes` is the size of the data that is read or deleted, 0 if it is not known.
    """

    name: str
    table: str
    unit: str
    total: int
    total_bytes: int = 0


class ProgressObserver(Protocol):
    """Receives the progress of stages. Every unit is reported once; `ended` is the last call of a stage."""

    def started(self, stage: Stage) -> None:
        """Begin a stage."""
        ...

    def advanced(self, stage: Stage, units: int, size: int) -> None:
        """Count units that are done, and their size in bytes."""
        ...

    def ended(self, stage: Stage, *, failed: bool) -> None:
        """End a stage; `failed` means that an error ended it before all units were done."""
        ...


_OBSERVER: ContextVar[ProgressObserver | None] = ContextVar("lakehouse_progress", default=None)
_TASKS: ContextVar[Callable[[int], None] | None] = ContextVar("lakehouse_progress_tasks", default=None)


@contextmanager
def observing(observer: ProgressObserver | None) -> Iterator[None]:
    """Report the progress of the operations in this block to an observer; None reports nothing."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


@contextmanager
def also_observing(observer: ProgressObserver) -> Iterator[None]:
    """Report the progress of the operations in this block to an observer, in addition to the current observer."""
    outer = _OBSERVER.get()
    with observing(observer if outer is None else _Both(first=outer, second=observer)):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """Two observers, called in this order."""

    first: ProgressObserver
    second: ProgressObserver

    def started(self, stage: Stage) -> None:
        self.first.started(stage)
        self.second.started(stage)

    def advanced(self, stage: Stage, units: int, size: int) -> None:
        self.first.advanced(stage, units, size)
        self.second.advanced(stage, units, size)

    def ended(self, stage: Stage, *, failed: bool) -> None:
        self.first.ended(stage, failed=failed)
        self.second.ended(stage, failed=failed)


def finished_task() -> Callable[[int], None] | None:
    """Return the function that an engine calls with the number of each finished task, or None if there is no observer.

    An engine reads it once per run, in the thread of the caller. Numbers may be repeated by a second attempt of a task.
    """
    return _TASKS.get()


class RunningStage:
    """A stage that is observed. Without an observer all methods do nothing."""

    def __init__(self, stage: Stage, observer: ProgressObserver | None) -> None:
        self._stage, self._observer = stage, observer
        self._lock = threading.Lock()

    @contextmanager
    def tasks(self, sizes: Sequence[int], units: Sequence[int] | None = None) -> Iterator[None]:
        """Count the finished tasks of one engine run: `sizes` are their bytes; each has one unit by default."""
        if self._observer is None:
            yield
            return
        remaining = set(range(len(sizes)))

        def finished(number: int) -> None:
            with self._lock:
                if number not in remaining:
                    return
                remaining.discard(number)
            count = 1 if units is None else units[number]
            self.report(lambda observer: observer.advanced(self._stage, count, sizes[number]))

        token = _TASKS.set(finished)
        try:
            yield
        finally:
            _TASKS.reset(token)

    def end(self, *, failed: bool) -> None:
        """Report the end; later calls do nothing."""
        self.report(lambda observer: observer.ended(self._stage, failed=failed))
        self._observer = None

    def report(self, call: Callable[[ProgressObserver], None]) -> None:
        observer = self._observer
        if observer is None:
            return
        try:
            call(observer)
        except Exception:
            # Progress is only for display, so its errors must not end an operation.
            logger.warning("%s: the progress of %s is not shown", self._stage.table, self._stage.name, exc_info=True)
            self._observer = None


@contextmanager
def observed_stage(of: Stage) -> Iterator[RunningStage]:
    """Report the begin and the end of a stage to the observer of the caller's context."""
    running = RunningStage(of, _OBSERVER.get())
    running.report(lambda observer: observer.started(of))
    try:
        yield running
    except BaseException:
        running.end(failed=True)
        raise
    running.end(failed=False)
