"""Plan partition TTL: which partitions expire, from rules (lakehouse.model.ttl) and partition statistics.

    statistics -> the rule that covers the partition -> a limit that is met -> not pinned, not busy -> oldest first

Limits by count and size need an order of the partitions. Partitions whose values contain a time are ordered by that
time, other partitions by their first commit. The two kinds are counted separately, because a date cannot be ordered
among names. An age limit is met by ages above the limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakehouse.core.planning.partition_time import PartitionTime, partition_time
from lakehouse.errors import CorruptTableError
from lakehouse.model.keys import KeyConfig
from lakehouse.model.statistics import PartitionStatistics
from lakehouse.model.ttl import Expiry, TtlPlan, TtlRule
from lakehouse.spec.quantities import duration_text

_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The time of a plan, in UTC milliseconds for partition values and as instant time for commits."""

    utc_ms: int
    instant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A partition that a rule covers; a newer partition has a greater `order_ms`."""

    statistics: PartitionStatistics
    time: PartitionTime | None
    order_ms: int

    @property
    def parent(self) -> str:
        return self.time.parent if self.time is not None else self.statistics.partition.rpartition("/")[0]

    @property
    def order(self) -> tuple[int, str]:
        return self.order_ms, self.statistics.partition


# parameters: a planner takes each independent part of the table state
def plan_ttl(
    partitions: Iterable[PartitionStatistics],
    rules: Sequence[TtlRule],
    keys: KeyConfig,
    now: Now,
    *,
    max_partitions: int,
    selected: Collection[str] = (),
    pinned: Collection[str] = (),
    busy: Mapping[str, str] | None = None,
) -> TtlPlan:
    """Return the partitions that expire.

    Args:
        partitions: Statistics of each partition.
        rules: Rules in the order in which they were set, the table's own rule first.
        keys: Key configuration of the table, for the times in partition values.
        now: The time of the plan.
        max_partitions: Maximum number of partitions to delete, oldest first.
        selected: Partitions to consider; all if empty.
        pinned: Paths to keep, with all partitions below them.
        busy: Partitions to keep, each with the reason.
    """
    covered = _covered(partitions, rules)
    reasons: list[tuple[tuple[int, str], Expiry]] = []
    untimed = 0
    for rule in rules:
        listed, without = _candidates(rule, covered.get(rule.id, []), keys)
        untimed += without
        reasons += [(c.order, _expiry(c, rule, why)) for c, why in _met(rule, listed, now)]
    expired: list[Expiry] = []
    unexpired: list[Expiry] = []
    for _, expiry in sorted(reasons, key=lambda pair: pair[0]):
        if selected and expiry.partition not in selected:
            continue
        why = _in_the_way(expiry.partition, pinned, busy or {})
        if why is None and len(expired) >= max_partitions:
            why = f"a run deletes at most {max_partitions} partitions; the next run continues"
        if why is None:
            expired.append(expiry)
        else:
            unexpired.append(replace(expiry, reason=why))
    return TtlPlan(expired=tuple(expired), kept=tuple(unexpired), untimed=untimed)


def expiry_times(
    partitions: Iterable[PartitionStatistics], rules: Sequence[TtlRule], keys: KeyConfig, now: Now
) -> dict[str, int]:
    """Return the times at which partitions exceed an age limit, in UTC milliseconds.

    Partitions without an age limit are omitted.

    The time may be in the past. A later write moves a limit by modification; limits by count and size have no time.
    """
    covered, by_id, expiries = _covered(partitions, rules), {rule.id: rule for rule in rules}, dict[str, int]()
    # Instants have the time zone of the table.
    offset = now.utc_ms - _instant_ms(now.instant)
    for name, members in covered.items():
        rule = by_id[name]
        for candidate in _candidates(rule, members, keys)[0]:
            created, modified = candidate.statistics.created, candidate.statistics.modified
            ends = (
                (rule.partition_age_s, None if candidate.time is None else candidate.time.end_ms),
                (rule.creation_age_s, _instant_ms(created) + offset),
                (rule.modification_age_s, _instant_ms(modified) + offset),
            )
            times = [begin + limit * 1000 for limit, begin in ends if limit is not None and begin is not None]
            if times:
                expiries[candidate.statistics.partition] = min(times)
    return expiries


def _covered(
    partitions: Iterable[PartitionStatistics], rules: Sequence[TtlRule]
) -> dict[str, list[PartitionStatistics]]:
    """Return the partitions that each rule with limits covers, by rule id."""
    covered: dict[str, list[PartitionStatistics]] = {}
    # Among equally specific rules the latest one comes first; the sort is stable.
    order = sorted(reversed(rules), key=lambda rule: -rule.specificity)
    for statistics in partitions:
        rule = next((rule for rule in order if rule.covers(statistics.partition)), None)
        if rule is not None and rule.limits:
            covered.setdefault(rule.id, []).append(statistics)
    return covered


def _candidates(
    rule: TtlRule, partitions: Sequence[PartitionStatistics], keys: KeyConfig
) -> tuple[list[_Candidate], int]:
    """Return the partitions with their order, and the number of partitions without the time that the rule needs."""
    listed = []
    for statistics in partitions:
        time = partition_time(statistics.partition, keys, pattern=rule.format, zone=rule.timezone)
        order_ms = _instant_ms(statistics.created) if time is None else time.end_ms
        listed.append(_Candidate(statistics=statistics, time=time, order_ms=order_ms))
    untimed = sum(candidate.time is None for candidate in listed)
    return listed, untimed if rule.partition_age_s is not None else 0


def _met(rule: TtlRule, listed: Sequence[_Candidate], now: Now) -> list[tuple[_Candidate, str]]:
    """Return the candidates that reach a limit of the rule, each with the first limit as reason."""
    met: dict[str, tuple[_Candidate, str]] = {}
    for candidate in listed:
        why = _too_old(rule, candidate, now)
        if why is not None:
            met[candidate.statistics.partition] = (candidate, why)
    newest = sorted(listed, key=lambda candidate: candidate.order, reverse=True)
    for kind in ([c for c in newest if c.time is not None], [c for c in newest if c.time is None]):
        for candidate, why in (*_beyond_count(rule, kind), *_beyond_bytes(rule, kind)):
            met.setdefault(candidate.statistics.partition, (candidate, why))
    return list(met.values())


def _too_old(rule: TtlRule, candidate: _Candidate, now: Now) -> str | None:
    statistics, at = candidate.statistics, _instant_ms(now.instant)
    ages = (
        ("partition_age", rule.partition_age_s, None if candidate.time is None else now.utc_ms - candidate.time.end_ms),
        ("creation_age", rule.creation_age_s, at - _instant_ms(statistics.created)),
        ("modification_age", rule.modification_age_s, at - _instant_ms(statistics.modified)),
    )
    for name, limit, age_ms in ages:
        if limit is not None and age_ms is not None and age_ms > limit * 1000:
            return f"{name} is {duration_text(age_ms // 1000)}, above {duration_text(limit)}"
    return None


def _beyond_count(rule: TtlRule, newest: Sequence[_Candidate]) -> list[tuple[_Candidate, str]]:
    if rule.max_partitions is None:
        return []
    count_by_parent: dict[str, int] = {}
    beyond = []
    for candidate in newest:
        count_by_parent[candidate.parent] = count_by_parent.get(candidate.parent, 0) + 1
        if count_by_parent[candidate.parent] > rule.max_partitions:
            beside = f" beside {candidate.parent!r}" if candidate.parent else ""
            beyond.append((candidate, f"not among the newest {rule.max_partitions} partitions{beside}"))
    return beyond


def _beyond_bytes(rule: TtlRule, newest: Sequence[_Candidate]) -> list[tuple[_Candidate, str]]:
    if rule.max_bytes is None:
        return []
    total, beyond = 0, []
    for position, candidate in enumerate(newest):
        total += candidate.statistics.size_bytes
        if position and total > rule.max_bytes:
            beyond.append((candidate, f"not among the newest partitions of {rule.max_bytes} bytes"))
    return beyond


def _expiry(candidate: _Candidate, rule: TtlRule, reason: str) -> Expiry:
    statistics = candidate.statistics
    return Expiry(
        partition=statistics.partition,
        rule=rule.id,
        reason=reason,
        size_bytes=statistics.size_bytes,
        rows=statistics.rows,
        files=statistics.files,
    )


def _in_the_way(partition: str, pinned: Collection[str], busy: Mapping[str, str]) -> str | None:
    levels = partition.split("/")
    if any("/".join(levels[:depth]) in pinned for depth in range(1, len(levels) + 1)):
        return "pinned"
    return busy.get(partition)


def _instant_ms(instant: str) -> int:
    """Return an instant time as milliseconds since 1970 in the time zone of the table."""
    try:
        moment = datetime(
            int(instant[:4]), int(instant[4:6]), int(instant[6:8]), int(instant[8:10]), int(instant[10:12])
        )
        seconds, millis = int(instant[12:14]), int(instant[14:17] or "999")
    except ValueError:
        raise CorruptTableError(f"{instant!r} is not an instant time", instant=instant) from None
    return (moment - _EPOCH) // timedelta(milliseconds=1) + seconds * 1000 + millis
