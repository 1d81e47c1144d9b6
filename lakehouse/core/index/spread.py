"""Spread values with a skew over tasks: large values get tasks of their own, small ones share tasks.

    value   a a a a a a a a a a | b b b | c c | d        weights 10, 3, 2, 1; four tasks, mean 4
    tasks   a a a a a | a a a a a | b d | c c ...        no task gets more than twice the mean

Proof of the bound for a mean m = W / n. A value of weight w > m gets k = floor(w / m) tasks of its own, each of weight
w / k < 2 m. These are at most n tasks, and the rest of the weight is at most m for each task that is left. Each small
value goes to the task with the least weight, which is at most m before, and adds at most m.

A value that is divided needs a rule for its rows: by the hash of the record key, so that all rows of a key stay in one
task, or by position where the order of rows does not matter.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)
#: Multiples of the mean that are tried as the largest weight of a task, before the one that is always possible.
_TRIED = (1.05, 1.1, 1.2, 1.35, 1.5, 1.75)


@dataclass(frozen=True, slots=True)
class Spread(Generic[V]):
    """Which tasks get the rows of each value.

    Attributes:
        tasks_of: The numbers of the tasks of each value. The rows of a value are divided among them equally.
        weights: The weight of each task.
        shared: The tasks that small values share; values that are not in `tasks_of` belong to them. If large values
            have all tasks, these are all tasks.
    """

    tasks_of: Mapping[V, tuple[int, ...]]
    weights: tuple[float, ...]
    shared: tuple[int, ...]

    @property
    def skew(self) -> float:
        """The largest weight of a task, as a multiple of the mean; 1 without any weight."""
        total = sum(self.weights)
        return max(self.weights) * len(self.weights) / total if total else 1.0


def spread(weights: Mapping[V, float], tasks: int) -> Spread[V]:
    """Assign values to tasks so that no task has more than twice the mean weight.

    The assignment depends only on the weights, not on their order.

    Args:
        weights: The weight of each value, such as its bytes or rows; not negative.
        tasks: The number of tasks, at least 1.
    """
    if tasks < 1:
        raise ValueError(f"values are spread over at least one task, not {tasks}")
    # Texts make an order of all values, so that equal weights have one result.
    ordered = sorted(weights.items(), key=lambda pair: (-pair[1], repr(pair[0])))
    mean = sum(weights.values()) / tasks
    found = _packed(ordered, _floors(ordered, mean, tasks), tasks)
    for most in _TRIED:
        if found.skew <= most:
            break
        pieces = {value: math.ceil(w / (most * mean)) for value, w in ordered if w > most * mean}
        if sum(pieces.values()) <= tasks - (len(pieces) < len(ordered)):
            tried = _packed(ordered, pieces, tasks)
            found = tried if tried.skew < found.skew else found
    return found


def pieces(weights: Mapping[V, float], most: float) -> dict[V, int]:
    """Return into how many equal pieces each value is divided so that no piece weighs more than `most`."""
    return {value: max(math.ceil(weight / most), 1) for value, weight in weights.items()}


def _floors(ordered: list[tuple[V, float]], mean: float, tasks: int) -> dict[V, int]:
    """Return the numbers of own tasks of the large values by the proof."""
    found, left = dict[V, int](), tasks
    for value, weight in ordered:
        if not mean or weight <= mean:
            break
        # A quotient that is rounded up may ask for a task too many.
        found[value] = max(min(math.floor(weight / mean), left), 1)
        left -= found[value]
    return found


def _packed(ordered: list[tuple[V, float]], own: Mapping[V, int], tasks: int) -> Spread[V]:
    """Return the assignment in which the values of `own` have as many tasks of their own, and the others share."""
    loads = [0.0] * tasks
    tasks_of = dict[V, tuple[int, ...]]()
    following = 0
    for value, weight in ordered:
        if value in own:
            tasks_of[value] = tuple(range(following, following + own[value]))
            for number in tasks_of[value]:
                loads[number] = weight / own[value]
            following += own[value]
    shared = tuple(range(following, tasks)) or tuple(range(tasks))
    heap = [(loads[number], number) for number in shared]
    heapq.heapify(heap)
    for value, weight in ordered:
        if value not in own:
            load, number = heapq.heappop(heap)
            tasks_of[value] = (number,)
            loads[number] = load + weight
            heapq.heappush(heap, (loads[number], number))
    return Spread(tasks_of, tuple(loads), shared)
