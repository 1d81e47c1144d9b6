"""Which of the services that are due run now: pure.

first    what is past its deadline, the latest first
then     the greatest score: priority x objects fewer / seconds predicted
never    two services of one table that hold file groups; more runs or bytes than the pool has left
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakehouse.platform.services.assess import Assessment
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.services import SERVICES, service_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the pool of one service may do: runs at the same time, and bytes in an hour; None is without bound."""

    runs: int | None = None
    bytes_per_hour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One service of one table: what was found out, `seconds` that a run is expected to take, and its urgency.

    `wanted` says that somebody asked for it, due or not. Times are UTC milliseconds.
    """

    table: str
    service: str
    assessment: Assessment
    seconds: float = 0.0
    priority: float = 1.0
    deadline_ms: int | None = None
    enabled: bool = True
    wanted: bool = False

    @property
    def score(self) -> float:
        """Objects fewer per second of work, times the priority that people gave it."""
        return self.priority * self.assessment.cost.benefit / max(self.seconds, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to happen with a candidate now, and why."""

    candidate: Candidate
    chosen: bool
    reason: str
    code: DecisionReason


#: A code for programs and its text for people.
_Reason = tuple[DecisionReason, str]


@dataclass(slots=True)
class _Pool:
    limits: Limits
    runs: int = 0
    bytes: int = 0

    def refusal(self, candidate: Candidate) -> _Reason | None:
        wanted = candidate.assessment.cost.bytes
        if self.limits.runs is not None and self.runs >= self.limits.runs:
            text = f"{self.runs} runs of {candidate.service} are under way, and the pool has {self.limits.runs}"
            return DecisionReason.RUN_LIMIT, text
        allowed = self.limits.bytes_per_hour
        # What is larger than the budget of an hour has an hour for itself.
        if allowed is not None and self.bytes and self.bytes + wanted > allowed:
            text = f"{self.bytes} of {allowed} bytes per hour are spent, and this run takes {wanted}"
            return DecisionReason.BYTE_LIMIT, text
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is going on: (table, service) of runs under way, and bytes that each service moved in the last hour."""

    running: Collection[tuple[str, str]] = ()
    bytes_last_hour: Mapping[str, int] = field(default_factory=dict)


def choose(
    candidates: Iterable[Candidate], limits: Mapping[str, Limits], load: Load, *, now_ms: int
) -> tuple[Choice, ...]:
    """Return a choice for every candidate, the chosen ones first and in the order in which they should start."""
    ready, waiting = [], []
    for candidate in candidates:
        refusal = _not_ready(candidate)
        if refusal is None:
            ready.append(candidate)
        else:
            waiting.append(Choice(candidate=candidate, chosen=False, code=refusal[0], reason=refusal[1]))
    pools: dict[str, _Pool] = {}
    for service in {candidate.service for candidate in ready}:
        runs = sum(running == service for _, running in load.running)
        pools[service] = _Pool(limits.get(service, Limits()), runs, load.bytes_last_hour.get(service, 0))
    busy = set(load.running)
    chosen: list[Choice] = []
    for candidate in sorted(ready, key=lambda c: _urgency(c, now_ms)):
        refusal = _clash(candidate, busy) or pools[candidate.service].refusal(candidate)
        if refusal is not None:
            waiting.append(Choice(candidate=candidate, chosen=False, code=refusal[0], reason=refusal[1]))
            continue
        pools[candidate.service].runs += 1
        pools[candidate.service].bytes += candidate.assessment.cost.bytes
        busy.add((candidate.table, candidate.service))
        code = _code(candidate, now_ms)
        chosen.append(Choice(candidate=candidate, chosen=True, code=code, reason=_why(candidate, now_ms)))
    return (*chosen, *waiting)


def batches(chosen: Sequence[Candidate], *, max_tables: int, max_seconds: float) -> tuple[tuple[str, ...], ...]:
    """Return tables to be run by one process each: small ones together, since a start of Spark costs more than they do.

    The order is kept; a table that takes longer than `max_seconds` by itself stands alone.
    """
    found: list[list[str]] = []
    seconds = 0.0
    for candidate in chosen:
        fits = found and len(found[-1]) < max_tables and seconds + candidate.seconds <= max_seconds
        if fits:
            found[-1].append(candidate.table)
            seconds += candidate.seconds
        else:
            found.append([candidate.table])
            seconds = candidate.seconds
    return tuple(tuple(batch) for batch in found)


def _not_ready(candidate: Candidate) -> _Reason | None:
    if candidate.wanted:
        return None
    if not candidate.enabled:
        return DecisionReason.DISABLED, f"switched off: services.{candidate.service}.enabled is false"
    if candidate.assessment.due:
        return None
    code = DecisionReason.UNREADABLE if candidate.assessment.unreadable else DecisionReason.NOT_DUE
    return code, f"not due: {candidate.assessment.reason}"


def _urgency(candidate: Candidate, now_ms: int) -> tuple[bool, bool, float, float, str, int]:
    overdue, place = _overdue_s(candidate, now_ms), SERVICES.index(candidate.service)
    return not candidate.wanted, overdue <= 0, -max(overdue, 0.0), -candidate.score, candidate.table, place


def _overdue_s(candidate: Candidate, now_ms: int) -> float:
    return 0.0 if candidate.deadline_ms is None else (now_ms - candidate.deadline_ms) / 1000


def _clash(candidate: Candidate, busy: Collection[tuple[str, str]]) -> _Reason | None:
    for service in sorted(service for table, service in busy if table == candidate.table):
        if service == candidate.service:
            return DecisionReason.ALREADY_RUNNING, f"a run of {service} is at this table"
        if service_spec(service).holds_file_groups and service_spec(candidate.service).holds_file_groups:
            return DecisionReason.FILE_GROUPS_HELD, f"{service} runs on this table, and both hold file groups"
    return None


def _code(candidate: Candidate, now_ms: int) -> DecisionReason:
    if candidate.wanted:
        return DecisionReason.REQUESTED
    return DecisionReason.OVERDUE if _overdue_s(candidate, now_ms) > 0 else DecisionReason.DUE


def _why(candidate: Candidate, now_ms: int) -> str:
    cost = candidate.assessment.cost
    numbers = f"score {candidate.score:.3g}: {cost.benefit:g} objects fewer for {candidate.seconds:.0f} s"
    overdue = _overdue_s(candidate, now_ms)
    late = f"; {overdue:.0f} s past its deadline" if overdue > 0 else ""
    asked = "asked for; " if candidate.wanted else ""
    return f"{asked}{candidate.assessment.reason}; {numbers}{late}"
