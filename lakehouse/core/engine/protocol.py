"""What operations ask of the place where work runs. Two implementations: threads here, Spark in lakehouse.spark."""

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
    """Where tasks run. A frame is the engine's own kind of incoming rows; results of tasks are small and picklable.

    A task may run more than once; every try has its own Attempt, and the results of one try per task are returned.
    """

    @property
    def parallelism(self) -> int:
        """Tasks that run at the same time."""
        ...

    def repeats(self, frame: Any) -> bool:
        """Whether the frame gives the same rows each time it is asked for them."""
        ...

    def schema(self, frame: Any) -> pa.Schema:
        """Return the Arrow schema of a frame."""
        ...

    def exchange(self, frame: Any, function: ShardFunction[R], *, by: Sequence[str], hint: str) -> list[R]:
        """Bring rows with equal values of the columns `by` together and run `function` on every shard.

        hint "exact" keeps all rows of one value in one shard; "balanced" may split large values and join small ones;
        "none" moves nothing.
        """
        ...

    def run(self, function: TaskFunction[T, R], tasks: Sequence[T], *, light: bool = False) -> list[R]:
        """Run `function` once per task and return the results in the order of the tasks.

        The attempt tells the number of the task, and whether it is the first: no other try of the task says so.

        `light` says that a task takes no longer than an engine may take to start one, so some may share a start.
        """
        ...
