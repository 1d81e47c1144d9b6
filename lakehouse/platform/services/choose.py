"""Choose which due services run now; pure.

first    services that a user requested, then services past their deadline, by how long they are overdue
then     services by score: priority x benefit in objects / predicted seconds
never    two services that hold the same file groups of a table, even if the more urgent service waits for a limit
         more runs or bytes than a budget allows; more runs than the slots finish before the next decision
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lakehouse.platform.services.assess import Assessment
from lakehouse.platform.services.budgets import Budget, Limits, Refusal, Slots
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.decision_text import elapsed_text, work_text
from lakehouse.spec.table.services import SERVICES, VERSION_CHANGES, service_spec

__all__ = [
    "AssessedService",
    "Choice",
    "Limits",
    "Load",
    "Rules",
    "RunStage",
    "RunningService",
    "batches",
    "choose",
    "choose_runs",
]


#: A service that is refused for one of these reasons does not block less urgent services on its file groups.
_HOLD_NOTHING = (DecisionReason.ALREADY_RUNNING, DecisionReason.SUBMITTED, DecisionReason.FILE_GROUPS_WANTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedService:
    """A service on one table with its assessment: the input of a decision.

    Attributes:
        seconds: Predicted duration of a run.
        deadline_ms: UTC milliseconds after which the service is overdue; None: it has no deadline.
        requested: Whether a user requested a run, due or not.
        budgets: Keys of the budgets in `Rules` that the run uses.
        wait: Why the service waits regardless of other services: quiet hours, a writer, or a failure. A requested run
            does not wait.
    """

    table: str
    service: str
    assessment: Assessment
    seconds: float = 0.0
    priority: float = 1.0
    deadline_ms: int | None = None
    enabled: bool = True
    requested: bool = False
    budgets: tuple[str, ...] = ()
    wait: Refusal | None = None

    @property
    def score(self) -> float:
        """The benefit in objects per predicted second, times the priority."""
        return self.priority * self.assessment.cost.benefit / max(self.seconds, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision for one service: whether it runs now, the reason code, and the reason as a sentence.

    `starts_ms` is the time at which a wait ends, None if it is not known.
    """

    assessed: AssessedService
    chosen: bool
    reason: str
    code: DecisionReason
    starts_ms: int | None = None


class RunStage(Enum):
    """Why a run excludes others: it is active, an earlier or this pass chose it, or it is more urgent and waits."""

    ACTIVE = "active"
    SUBMITTED = "submitted"
    CHOSEN = "chosen"
    WAITING = "waiting"


#: State of a run that holds file groups.
_HOLDS = {
    RunStage.ACTIVE: "runs on this table",
    RunStage.SUBMITTED: "was chosen for this table by an earlier pass, and its job has not begun",
    RunStage.CHOSEN: "is chosen for this table in this pass",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """A run that excludes others: its table and service, the partitions of its plan (empty: all), its stage."""

    table: str
    service: str
    partitions: Collection[str] = ()
    stage: RunStage = RunStage.ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The current load: (table, service) of active runs, and the bytes that each service wrote in the last hour."""

    running: Collection[tuple[str, str]] = ()
    bytes_last_hour: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits of a decision: active runs, budgets by key, and the slots of the pool (None: unlimited).

    The budgets and slots change while services are chosen.
    """

    running: Sequence[RunningService] = ()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    slots: Slots | None = None


def choose(
    services_assessed: Iterable[AssessedService], limits: Mapping[str, Limits], load: Load, *, now_ms: int
) -> tuple[Choice, ...]:
    """Return a decision for every service under limits by service (see `choose_runs`)."""
    budgets = {}
    for service in SERVICES:
        runs = sum(running == service for _, running in load.running)
        spent = [(now_ms, size)] if (size := load.bytes_last_hour.get(service, 0)) else []
        budgets[service] = Budget(scope=service, limits=limits.get(service, Limits()), runs=runs, spent=spent)
    running = [RunningService(table=table, service=service) for table, service in load.running]
    return choose_runs(services_assessed, Rules(running=running, budgets=budgets), now_ms=now_ms)


def choose_runs(services_assessed: Iterable[AssessedService], rules: Rules, *, now_ms: int) -> tuple[Choice, ...]:
    """Return a decision for every service: first the chosen services in their start order, then the others."""
    ready, waiting = [], []
    for assessed in services_assessed:
        refusal = _not_ready(assessed)
        if refusal is None:
            ready.append(assessed)
        else:
            waiting.append(_waits(assessed, refusal))
    busy: dict[str, list[RunningService]] = {}
    for run in rules.running:
        busy.setdefault(run.table, []).append(run)
    chosen: list[Choice] = []
    for assessed in sorted(ready, key=lambda c: urgency(c, now_ms)):
        table_runs = busy.setdefault(assessed.table, [])
        refusal = _refusal(assessed, table_runs, rules, now_ms)
        if refusal is not None:
            waiting.append(_waits(assessed, refusal))
            if refusal.code not in _HOLD_NOTHING:
                table_runs.append(_run(assessed, RunStage.WAITING))
            continue
        for budget in _budgets(assessed, rules):
            budget.take(assessed.assessment.cost.bytes, now_ms)
        if rules.slots is not None:
            rules.slots.take(assessed.seconds)
        table_runs.append(_run(assessed, RunStage.CHOSEN))
        code = _code(assessed, now_ms)
        chosen.append(Choice(assessed=assessed, chosen=True, code=code, reason=_why(assessed, now_ms)))
    return (*chosen, *waiting)


def batches(chosen: Sequence[AssessedService], *, max_tables: int, max_seconds: float) -> tuple[tuple[str, ...], ...]:
    """Group tables into batches of one process each, because Spark starts more slowly than a small table is processed.

    The order is kept. A table that takes longer than `max_seconds` gets a separate batch.
    """
    groups: list[list[str]] = []
    seconds = 0.0
    for assessed in chosen:
        fits = groups and len(groups[-1]) < max_tables and seconds + assessed.seconds <= max_seconds
        if fits:
            groups[-1].append(assessed.table)
            seconds += assessed.seconds
        else:
            groups.append([assessed.table])
            seconds = assessed.seconds
    return tuple(tuple(batch) for batch in groups)


def urgency(assessed: AssessedService, now_ms: int) -> tuple[bool, bool, float, float, str, int]:
    """Return the sort key of a service: requested services, overdue services, then by score."""
    overdue, place = _overdue_s(assessed, now_ms), SERVICES.index(assessed.service)
    return not assessed.requested, overdue <= 0, -max(overdue, 0.0), -assessed.score, assessed.table, place


def _run(assessed: AssessedService, stage: RunStage) -> RunningService:
    partitions = assessed.assessment.cost.partitions
    return RunningService(table=assessed.table, service=assessed.service, partitions=partitions, stage=stage)


def _refusal(
    assessed: AssessedService, running: Collection[RunningService], rules: Rules, now_ms: int
) -> Refusal | None:
    clash = _clash(assessed, running)
    if clash is not None:
        return clash
    refusals = [budget.refusal(assessed.assessment.cost.bytes, now_ms) for budget in _budgets(assessed, rules)]
    refused = [refusal for refusal in refusals if refusal is not None]
    if refused:
        return refused[0]
    return None if rules.slots is None else rules.slots.refusal(assessed.seconds, now_ms)


def _budgets(assessed: AssessedService, rules: Rules) -> list[Budget]:
    return [rules.budgets[key] for key in (assessed.service, *assessed.budgets) if key in rules.budgets]


def _waits(assessed: AssessedService, refusal: Refusal) -> Choice:
    return Choice(assessed=assessed, chosen=False, code=refusal.code, reason=refusal.text, starts_ms=refusal.until_ms)


def _not_ready(assessed: AssessedService) -> Refusal | None:
    if assessed.requested:
        return None
    if not assessed.enabled:
        text = f"switched off: services.{assessed.service}.enabled is false"
        return Refusal(code=DecisionReason.DISABLED, text=text)
    if assessed.assessment.due:
        return assessed.wait
    return Refusal(code=_code_of_idle(assessed.assessment), text=assessed.assessment.reason)


def _code_of_idle(assessment: Assessment) -> DecisionReason:
    if assessment.unreadable:
        return DecisionReason.UNREADABLE
    return DecisionReason.NOT_DUE if assessment.applies else DecisionReason.NOT_APPLICABLE


def _overdue_s(assessed: AssessedService, now_ms: int) -> float:
    return 0.0 if assessed.deadline_ms is None else (now_ms - assessed.deadline_ms) / 1000


def _clash(assessed: AssessedService, running: Collection[RunningService]) -> Refusal | None:
    mine = assessed.assessment.cost.partitions
    for run in sorted(running, key=lambda run: run.service):
        if run.service == assessed.service:
            return _same_service(run)
        if run.service in VERSION_CHANGES:
            text = f"{run.service} {_HOLDS[run.stage]}, and no service runs beside a change of the table version"
            return Refusal(code=DecisionReason.FILE_GROUPS_HELD, text=text)
        if not (service_spec(run.service).holds_file_groups and service_spec(assessed.service).holds_file_groups):
            continue
        if mine and run.partitions and set(mine).isdisjoint(run.partitions):
            continue
        if run.stage is RunStage.WAITING:
            text = f"{run.service} has priority on these file groups, and waits"
            return Refusal(code=DecisionReason.FILE_GROUPS_WANTED, text=text)
        text = f"{run.service} {_HOLDS[run.stage]}, and both hold file groups"
        return Refusal(code=DecisionReason.FILE_GROUPS_HELD, text=text)
    return None


def _same_service(run: RunningService) -> Refusal:
    if run.stage is RunStage.SUBMITTED:
        text = f"an earlier pass chose {run.service} for this table, and its job has not begun"
        return Refusal(code=DecisionReason.SUBMITTED, text=text)
    text = f"a run of {run.service} is active on this table"
    return Refusal(code=DecisionReason.ALREADY_RUNNING, text=text)


def _code(assessed: AssessedService, now_ms: int) -> DecisionReason:
    if assessed.requested:
        return DecisionReason.REQUESTED
    return DecisionReason.OVERDUE if _overdue_s(assessed, now_ms) > 0 else DecisionReason.DUE


def _why(assessed: AssessedService, now_ms: int) -> str:
    """Return why a chosen service runs, and the work of its run."""
    work = work_text(assessed.service, {**assessed.assessment.cost.numbers, "seconds": assessed.seconds})
    overdue = _overdue_s(assessed, now_ms)
    late = f"{elapsed_text(overdue)} past its deadline" if overdue > 0 else ""
    request = "requested" if assessed.requested else ""
    return "; ".join(part for part in (request, assessed.assessment.reason, late, work) if part)
