"""The protocol by which operations run tasks; LocalEngine (threads) and SparkEngine (lakehouse.spark) implement it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lakehouse.model.attempt import Attempt

T = TypeVar("T")
R = TypeVar("R")
ShardFunction = Callable[[Attempt, Iterator[pa.RecordBatch]], Iterator[R]]
TaskFunction = Callable[[Attempt, T], R]


class Engine(Protocol):
    """Runs tasks of an operation.

    A frame is the engine's type of incoming rows, such as a DataFrame. Results of tasks are small and picklable. A task
    may run more than once: every attempt has its own `Attempt`, and the results of one attempt per task are returned.
    """

    @property
    def parallelism(self) -> int:
        """Number of tasks that run at the same time."""
        ...

    def repeats(self, frame: Any) -> bool:
        """Whether the frame returns the same rows each time it is read."""
        ...

    def schema(self, frame: Any) -> pa.Schema:
        """Return the Arrow schema of a frame."""
        ...

    def divides(self, frame: Any) -> bool:
        """Whether several tasks read the rows of a frame in an exchange without a shuffle."""
        ...

    def exchange(
        self, frame: Any, function: ShardFunction[R], *, by: Sequence[str], hint: str, least_bytes: int = 0
    ) -> list[R]:
        """Split the rows of a frame into shards and run `function` on every shard.

        Args:
            frame: The incoming rows.
            function: Takes the attempt and the shard's batches, and yields results.
            by: Columns that decide the shard of a row.
            hint: "exact" puts all rows with equal values into one shard. "balanced" may divide large values and combine
                small ones. "none" leaves rows where they are.
            least_bytes: With "balanced", rows with equal values are also split over tasks if they fill less than a
                file, as long as each shard has at least this many bytes. 0 means that only the file size decides.
        """
        ...

    def run(self, function: TaskFunction[T, R], tasks: Sequence[T], *, light: bool = False) -> list[R]:
        """Run `function` once per task and return the results in the order of the tasks.

        The attempt contains the number of the task and whether it is the first attempt; exactly one attempt of a task
        is the first. The engine reports each finished task to `progress.finished_task`, if it is set.

        Args:
            function: Takes the attempt and the task, and returns the result.
            tasks: Picklable descriptions of the work.
            light: Whether a task takes no longer than its start; the engine may then start several together.
        """
        ...
