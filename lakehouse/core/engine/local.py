"""Runs tasks in threads of this process on Arrow data, without a JVM.

A frame is one shard, whose task uses all threads for parts of its work. Other tasks run concurrently, and threads that
have no task help them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from lakehouse.core.engine.frames import require_arrow
from lakehouse.core.engine.progress import finished_task
from lakehouse.core.engine.protocol import R, ShardFunction, T, TaskFunction
from lakehouse.core.system.threads import available_cores
from lakehouse.model.attempt import Attempt


class LocalEngine:
    """Runs tasks in threads of this process; frames are pyarrow Tables, RecordBatches or RecordBatchReaders."""

    #: Whether each task runs once. Then the results of the tasks name all files that the tasks created.
    runs_once = True

    def __init__(self, parallelism: int | None = None) -> None:
        self._parallelism = parallelism or available_cores()
        self._concurrent = self._parallelism
        self._stages = itertools.count()

    def limited(self, tasks: int) -> LocalEngine:
        """Return this engine with at most `tasks` concurrent tasks, which use all threads for parts of their work."""
        engine = type(self)(self._parallelism)
        engine._concurrent, engine._stages = min(tasks, self._parallelism), self._stages
        return engine

    @property
    def parallelism(self) -> int:
        """Number of threads."""
        return self._parallelism

    def repeats(self, frame: Any) -> bool:
        """Whether the frame can be read twice: true for rows in memory, false for a RecordBatchReader."""
        return not isinstance(frame, pa.RecordBatchReader)

    def schema(self, frame: Any) -> pa.Schema:
        """Return the schema of a frame; raise UserError if it is not Arrow data."""
        require_arrow(frame)
        arrow_schema: pa.Schema = frame.schema
        return arrow_schema

    def divides(self, frame: Any) -> bool:
        """Return False: the batches of a frame are streamed to one task."""
        return False

    def exchange(
        self, frame: Any, function: ShardFunction[R], *, by: Sequence[str], hint: str, least_bytes: int = 0
    ) -> list[R]:
        """Run `function` on the whole frame as one shard, whose task uses all threads; the batches are streamed."""
        attempt = Attempt(partition=0, stage=next(self._stages), number=0, threads=self._parallelism)
        return list(function(attempt, _batches(frame)))

    def run(self, function: TaskFunction[T, R], tasks: Sequence[T], *, light: bool = False) -> list[R]:
        """Run tasks in threads; `light` has no effect because threads start fast."""
        stage, finished = next(self._stages), finished_task()
        if finished is not None:
            function = _reported(function, finished)
        threads = self._parallelism
        attempts = [Attempt(partition=i, stage=stage, number=0, first=True, threads=threads) for i in range(len(tasks))]
        if len(tasks) <= 1 or self._concurrent == 1:
            return [function(attempt, task) for attempt, task in zip(attempts, tasks, strict=True)]
        with ThreadPoolExecutor(self._concurrent) as pool:
            # After an error no further task starts; those that run are awaited.
            return list(pool.map(function, attempts, tasks))


def _reported(function: TaskFunction[T, R], finished: Callable[[int], None]) -> TaskFunction[T, R]:
    """Return a function that also reports the number of each task that it finished."""

    def run(attempt: Attempt, task: T) -> R:
        result = function(attempt, task)
        finished(attempt.partition)
        return result

    return run


def _batches(frame: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    if isinstance(frame, pa.RecordBatch):
        return iter([frame])
    return iter(frame.to_batches(max_chunksize=131_072)) if isinstance(frame, pa.Table) else iter(frame)
