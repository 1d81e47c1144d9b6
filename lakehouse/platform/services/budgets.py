"""Budgets of runs: concurrent runs and bytes per hour of a scope, and the slots of a pool; pure.

scope     a service on all tables, all services in a namespace, a service in a namespace, or a service on one table
slots     the runs of a pool in the order of their start; the first free slot takes the next run
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakehouse.model.display import time_text
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.table.scheduling import ALL_SERVICES

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a scope: concurrent runs and bytes per hour. None means unlimited."""

    runs: int | None = None
    bytes_per_hour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a run does not start now: a code, a sentence for users, and the end of the wait if known."""

    code: DecisionReason
    text: str
    until_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class Budget:
    """The limits and the usage of a scope.

    Attributes:
        scope: The subject of the budget in words: `compaction`, or `compaction in namespace sales`.
        limits: The limits.
        runs: Active runs.
        spent: (start in UTC milliseconds, bytes) of the runs in the last hour.
    """

    scope: str
    limits: Limits
    runs: int = 0
    spent: list[tuple[int, int]] = field(default_factory=list)

    def refusal(self, run_bytes: int, now_ms: int) -> Refusal | None:
        """Return why a run exceeds the budget, or None if it does not."""
        if self.limits.runs is not None and self.runs >= self.limits.runs:
            text = f"{self.runs} runs of {self.scope} are active, and the limit is {self.limits.runs}"
            return Refusal(code=DecisionReason.RUN_LIMIT, text=text)
        allowed, used = self.limits.bytes_per_hour, sum(size for _, size in self.spent)
        # A run that exceeds the hourly limit alone is allowed if no other run used bytes in this hour.
        if allowed is None or not used or used + run_bytes <= allowed:
            return None
        until = self._free_ms(allowed - run_bytes)
        text = f"{used} of {allowed} bytes per hour of {self.scope} are spent, and this run takes {run_bytes}"
        after = "" if until <= now_ms else f"; after budget: {clock_text(until)}"
        return Refusal(code=DecisionReason.BYTE_LIMIT, text=f"{text}{after}", until_ms=until)

    def take(self, run_bytes: int, now_ms: int) -> None:
        """Add a run that starts now to the usage."""
        self.runs += 1
        self.spent.append((now_ms, run_bytes))

    def _free_ms(self, most: int) -> int:
        """Return the time at which at most `most` bytes, or none, still count for the last hour."""
        left, until = sum(size for _, size in self.spent), 0
        for started, size in sorted(self.spent):
            if left <= max(most, 0):
                break
            left, until = left - size, started + _HOUR_MS
        return until


class Slots:
    """The slots of a pool, with the time at which each becomes free.

    Args:
        count: Number of slots.
        busy_s: Remaining seconds of the runs that have already started.
        horizon_s: Time until the next decision. A run that would start later waits for that decision.
        long_s: Minimum duration of a long run. One slot is reserved for short runs, so that they are not delayed.
    """

    def __init__(self, count: int, busy_s: Iterable[float], horizon_s: float, long_s: float = 900.0) -> None:
        self._count, self._horizon_s, self._long_s = count, horizon_s, long_s
        self._free = [0.0] * count
        self._long = 0
        for seconds in sorted(busy_s, reverse=True):
            self.take(seconds)

    def refusal(self, seconds: float, now_ms: int) -> Refusal | None:
        """Return why a run of this duration does not start before the next decision, or None if it does."""
        starts_s = self._free[0]
        if starts_s >= self._horizon_s:
            until = now_ms + round(starts_s * 1000)
            text = f"earlier runs occupy all {self._count} slots for {duration_text(round(starts_s))}"
            return Refusal(code=DecisionReason.NO_SLOT, text=text, until_ms=until)
        if seconds >= self._long_s and self._count > 1 and self._long >= self._count - 1:
            text = f"{self._long} long runs are active, and one of {self._count} slots is kept for short ones"
            return Refusal(code=DecisionReason.NO_SLOT, text=text)
        return None

    def take(self, seconds: float) -> None:
        """Put a run into the slot that becomes free first."""
        self._long += seconds >= self._long_s
        heapq.heapreplace(self._free, self._free[0] + seconds)


def budget_keys(table: str, service: str) -> tuple[str, ...]:
    """Return the keys of the namespace and table budgets that a run uses."""
    namespace = table.partition(".")[0]
    return f"{namespace}/{ALL_SERVICES}", f"{namespace}/{service}", f"{table}/{service}"


def clock_text(ms: int) -> str:
    """Return a time as hours and minutes in UTC."""
    return time_text(ms, "%H:%M UTC")
