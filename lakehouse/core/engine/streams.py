"""Run several sources of record batches in threads, and yield their batches within a bound of memory.

    sources     ──► worker threads, one source each ──► one channel per source ──► the consumer
    in order        a worker takes the next source      at most `capacity_bytes`   takes from the first channel that is
                    when it has finished one            wait in all of them        not finished, or from any channel

A worker waits while the channels are full. The worker of the first unfinished source may always add a batch to an empty
channel: the consumer waits for it, so the streams cannot block each other.
"""

from __future__ import annotations

import atexit
import contextvars
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

#: Starts to read one source. A worker closes the iterator if the consumer wants no more batches.
Source: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]

_running: weakref.WeakSet[_Streams] = weakref.WeakSet()


def read_in_threads(
    sources: Iterable[Source], *, threads: int, capacity_bytes: int, ordered: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of all sources, which `threads` threads read at the same time.

    Args:
        sources: The sources; the next one is requested when a thread is free.
        threads: The number of sources that are read at the same time. With 1 the caller's thread reads them.
        capacity_bytes: The size of the batches that may wait for the consumer, apart from one batch.
        ordered: Yield all batches of a source before those of the next one. Otherwise a batch is yielded as soon as
            it is read; the batches of one source stay in order.

    Raises:
        Exception: The error of a source, after the batches of the sources before it. No other source is read then.
    """
    if threads <= 1:
        for source in sources:
            yield from source()
        return
    streams = _Streams(iter(sources), capacity_bytes, ordered)
    _running.add(streams)
    workers = [
        # Daemon threads: a consumer that keeps an unfinished iterator does not stop its process from ending.
        threading.Thread(  # noqa: TID251 - no timer: they end with the iterator
            target=contextvars.copy_context().run, args=(streams.work,), name="lakehouse-read", daemon=True
        )
        for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    try:
        yield from streams.batches()
    finally:
        streams.cancel()
        for worker in workers:
            # The garbage collector may close an abandoned iterator in one of the workers.
            if worker is not threading.current_thread():
                worker.join()


class _CancelledError(Exception):
    """The consumer wants no more batches."""


@dataclass(slots=True, eq=False)
class _Channel:
    """The batches of one source that wait for the consumer, and whether its worker has finished."""

    waiting: deque[pa.RecordBatch] = field(default_factory=deque)
    is_finished: bool = False
    error: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the consumer gets a batch or an error."""
        return bool(self.waiting) or self.error is not None

    @property
    def is_done(self) -> bool:
        """Whether the consumer has taken everything."""
        return self.is_finished and not self.is_ready


class _Streams:
    """The state that the workers and the consumer share. All fields are guarded by one condition."""

    def __init__(self, sources: Iterator[Source], capacity_bytes: int, ordered: bool) -> None:
        self._sources, self._capacity, self._ordered = sources, capacity_bytes, ordered
        self._changed = threading.Condition()
        self._taking = threading.Lock()
        self._channels: deque[_Channel] = deque()
        self._waiting_bytes = 0
        self._has_more = True
        self._is_cancelled = False

    def work(self) -> None:
        """Read sources until there are none left, one has failed, or the consumer cancels."""
        while (taken := self._take()) is not None:
            channel, source = taken
            try:
                self._read(channel, source)
            except _CancelledError:
                return
            except BaseException as error:
                self._finish(channel, error)
                return
            self._finish(channel)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches for the consumer."""
        while True:
            with self._changed:
                while (channel := self._ready()) is None:
                    if not self._channels and not self._has_more:
                        return
                    self._changed.wait()
                if not channel.waiting:
                    assert channel.error is not None, "a channel without batches is ready because its source failed"
                    raise channel.error
                batch = channel.waiting.popleft()
                self._waiting_bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch

    def cancel(self) -> None:
        """Make all workers end after their current batch."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def _take(self) -> tuple[_Channel, Source] | None:
        """Return the next source and its channel; channels are in the order of the sources."""
        with self._taking:
            with self._changed:
                if self._is_cancelled or not self._has_more:
                    return None
            channel = _Channel()
            try:
                # Outside of the condition: the iterator may read the footer of a file.
                source = next(self._sources, None)
            except BaseException as error:
                source, channel.error, channel.is_finished = None, error, True
            with self._changed:
                self._has_more = self._has_more and source is not None
                if source is not None or channel.error is not None:
                    self._channels.append(channel)
                self._changed.notify_all()
            return None if source is None else (channel, source)

    def _read(self, channel: _Channel, source: Source) -> None:
        stream = source()
        try:
            for batch in stream:
                self._put(channel, batch)
        finally:
            # A generator has open files.
            close = getattr(stream, "close", None)
            if close is not None:
                close()

    def _put(self, channel: _Channel, batch: pa.RecordBatch) -> None:
        with self._changed:
            while not self._is_cancelled and not self._admits(channel, batch.nbytes):
                self._changed.wait()
            if self._is_cancelled:
                raise _CancelledError
            channel.waiting.append(batch)
            self._waiting_bytes += batch.nbytes
            self._changed.notify_all()

    def _admits(self, channel: _Channel, size_bytes: int) -> bool:
        if self._waiting_bytes + size_bytes <= self._capacity:
            return True
        if not self._ordered:
            return self._waiting_bytes == 0
        return channel is self._channels[0] and not channel.waiting

    def _finish(self, channel: _Channel, error: BaseException | None = None) -> None:
        with self._changed:
            channel.is_finished, channel.error = True, error
            if error is not None:
                # Sources before the failed one are still read; no later one is started.
                self._has_more = False
            self._changed.notify_all()

    def _ready(self) -> _Channel | None:
        """Remove finished channels, and return one with a batch or an error for the consumer."""
        while self._channels and self._channels[0].is_done:
            self._channels.popleft()
            # The worker of the next source may be allowed to add a batch now.
            self._changed.notify_all()
        if self._ordered:
            return self._channels[0] if self._channels and self._channels[0].is_ready else None
        self._channels = deque(channel for channel in self._channels if not channel.is_done)
        return next((channel for channel in self._channels if channel.is_ready), None)


@atexit.register
def _cancel_all() -> None:
    """Let the workers end before the interpreter does."""
    for streams in list(_running):
        streams.cancel()
