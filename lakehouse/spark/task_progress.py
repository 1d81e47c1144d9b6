"""Reports finished tasks of a Spark job to the driver while the job runs, without polling.

Each task has a number and adds it to an accumulator when it ends. Spark sends the updates of an accumulator to the
driver when a Spark task ends, and counts a task of a result stage once, also if it ran several times. The driver's copy
of the accumulator calls the observer instead of storing the numbers. A Spark task that runs a group of light tasks
reports all of them when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark import AccumulatorParam, SparkContext

T = TypeVar("T")
R = TypeVar("R")
#: Tasks or results, each with the number of its task.
Group = list[tuple[int, T]]


class _Numbers(AccumulatorParam[tuple[int, ...]]):
    """Adds numbers of tasks on workers; on the driver it passes them on. Workers get a copy without the function."""

    def __init__(self, finished: Callable[[int], None] | None = None) -> None:
        self._finished = finished

    def __reduce__(self) -> tuple[type[_Numbers], tuple[()]]:
        return _Numbers, ()

    def zero(self, value: tuple[int, ...]) -> tuple[int, ...]:
        """Return no numbers."""
        return ()

    def addInPlace(self, value1: tuple[int, ...], value2: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of both on a worker; on the driver report the new ones."""
        if self._finished is None:
            return value1 + value2
        for number in value2:
            self._finished(number)
        return ()


def reported(
    context: SparkContext, run: Callable[[Group[T]], Group[R]], finished: Callable[[int], None]
) -> Callable[[Group[T]], Group[R]]:
    """Return `run`, extended so that the numbers of its tasks reach `finished` when the Spark task of a group ends."""
    numbers = context.accumulator((), _Numbers(finished))

    def run_and_report(group: Group[T]) -> Group[R]:
        results = run(group)
        numbers.add(tuple(number for number, _ in results))
        return results

    return run_and_report
