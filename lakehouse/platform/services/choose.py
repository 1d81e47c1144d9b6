"""Choose which due services run now; pure.

first    services past their deadline, the most overdue one first
then     services by score: priority x benefit in objects / predicted seconds
never    two services that hold file groups of one table; more runs or bytes than the limits of a service allow
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakehouse.platform.services.assess import Assessment
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.services import SERVICES, service_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one service over all tables: concurrent runs and bytes per hour. None means unlimited."""

    runs: int | None = None
    bytes_per_hour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedService:
    """One service of one table with its assessment: the input of a decision.

    Attributes:
        seconds: Predicted duration of a run.
        deadline_ms: UTC milliseconds after which the service is overdue; None: it has no deadline.
        requested: Whether a user requested a run, due or not.
    """

    table: str
    service: str
    assessment: Assessment
    seconds: float = 0.0
    priority: float = 1.0
    deadline_ms: int | None = None
    enabled: bool = True
    requested: bool = False

    @property
    def score(self) -> float:
        """The benefit in objects per predicted second, times the priority."""
        return self.priority * self.assessment.cost.benefit / max(self.seconds, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision for one service: whether it runs now, the reason code, and the reason as text."""

    assessed: AssessedService
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

    def refusal(self, assessed: AssessedService) -> _Reason | None:
        requested = assessed.assessment.cost.bytes
        if self.limits.runs is not None and self.runs >= self.limits.runs:
            text = f"{self.runs} runs of {assessed.service} are active, and the limit is {self.limits.runs}"
            return DecisionReason.RUN_LIMIT, text
        allowed = self.limits.bytes_per_hour
        # A run that exceeds the hourly limit alone is allowed if no other run used bytes in this hour.
        if allowed is not None and self.bytes and self.bytes + requested > allowed:
            text = f"{self.bytes} of {allowed} bytes per hour are spent, and this run takes {requested}"
            return DecisionReason.BYTE_LIMIT, text
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The current load: (table, service) of active runs, and the bytes that each service wrote in the last hour."""

    running: Collection[tuple[str, str]] = ()
    bytes_last_hour: Mapping[str, int] = field(default_factory=dict)


def choose(
    services_assessed: Iterable[AssessedService], limits: Mapping[str, Limits], load: Load, *, now_ms: int
) -> tuple[Choice, ...]:
    """Return a decision for every service, the chosen ones first, in the order in which they should start."""
    ready, waiting = [], []
    for assessed in services_assessed:
        refusal = _not_ready(assessed)
        if refusal is None:
            ready.append(assessed)
        else:
            waiting.append(Choice(assessed=assessed, chosen=False, code=refusal[0], reason=refusal[1]))
    pools: dict[str, _Pool] = {}
    for service in {assessed.service for assessed in ready}:
        runs = sum(running == service for _, running in load.running)
        pools[service] = _Pool(limits.get(service, Limits()), runs, load.bytes_last_hour.get(service, 0))
    busy = set(load.running)
    chosen: list[Choice] = []
    for assessed in sorted(ready, key=lambda c: _urgency(c, now_ms)):
        refusal = _clash(assessed, busy) or pools[assessed.service].refusal(assessed)
        if refusal is not None:
            waiting.append(Choice(assessed=assessed, chosen=False, code=refusal[0], reason=refusal[1]))
            continue
        pools[assessed.service].runs += 1
        pools[assessed.service].bytes += assessed.assessment.cost.bytes
        busy.add((assessed.table, assessed.service))
        code = _code(assessed, now_ms)
        chosen.append(Choice(assessed=assessed, chosen=True, code=code, reason=_why(assessed, now_ms)))
    return (*chosen, *waiting)


def batches(chosen: Sequence[AssessedService], *, max_tables: int, max_seconds: float) -> tuple[tuple[str, ...], ...]:
    """Group tables into batches of one process each, because a start of Spark takes longer than a small table.

    The order is kept. A table that takes longer than `max_seconds` gets a separate batch.
    """
    found: list[list[str]] = []
    seconds = 0.0
    for assessed in chosen:
        fits = found and len(found[-1]) < max_tables and seconds + assessed.seconds <= max_seconds
        if fits:
            found[-1].append(assessed.table)
            seconds += assessed.seconds
        else:
            found.append([assessed.table])
            seconds = assessed.seconds
    return tuple(tuple(batch) for batch in found)


def _not_ready(assessed: AssessedService) -> _Reason | None:
    if assessed.requested:
        return None
    if not assessed.enabled:
        return DecisionReason.DISABLED, f"switched off: services.{assessed.service}.enabled is false"
    if assessed.assessment.due:
        return None
    code = DecisionReason.UNREADABLE if assessed.assessment.unreadable else DecisionReason.NOT_DUE
    return code, f"not due: {assessed.assessment.reason}"


def _urgency(assessed: AssessedService, now_ms: int) -> tuple[bool, bool, float, float, str, int]:
    overdue, place = _overdue_s(assessed, now_ms), SERVICES.index(assessed.service)
    return not assessed.requested, overdue <= 0, -max(overdue, 0.0), -assessed.score, assessed.table, place


def _overdue_s(assessed: AssessedService, now_ms: int) -> float:
    return 0.0 if assessed.deadline_ms is None else (now_ms - assessed.deadline_ms) / 1000


def _clash(assessed: AssessedService, busy: Collection[tuple[str, str]]) -> _Reason | None:
    for service in sorted(service for table, service in busy if table == assessed.table):
        if service == assessed.service:
            return DecisionReason.ALREADY_RUNNING, f"a run of {service} is active on this table"
        if service_spec(service).holds_file_groups and service_spec(assessed.service).holds_file_groups:
            return DecisionReason.FILE_GROUPS_HELD, f"{service} runs on this table, and both hold file groups"
    return None


def _code(assessed: AssessedService, now_ms: int) -> DecisionReason:
    if assessed.requested:
        return DecisionReason.REQUESTED
    return DecisionReason.OVERDUE if _overdue_s(assessed, now_ms) > 0 else DecisionReason.DUE


def _why(assessed: AssessedService, now_ms: int) -> str:
    cost = assessed.assessment.cost
    numbers = f"score {assessed.score:.3g}: {cost.benefit:g} objects fewer for {assessed.seconds:.0f} s"
    overdue = _overdue_s(assessed, now_ms)
    late = f"; {overdue:.0f} s past its deadline" if overdue > 0 else ""
    asked = "asked for; " if assessed.requested else ""
    return f"{asked}{assessed.assessment.reason}; {numbers}{late}"
