"""Candidates of a pass: due services of tables that were examined, and of other tables by their stored state; pure.

a look                the assessment of the table now                 -> candidate
a stored due service  the assessment of the last look                 -> candidate
a decision            chosen, or waiting with its reason              -> stored due service
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.platform.catalog.run_history import Run, RunState
from lakehouse.platform.services.assess import Assessment, unreadable
from lakehouse.platform.services.budgets import Refusal, budget_keys, clock_text
from lakehouse.platform.services.choose import AssessedService, Choice
from lakehouse.platform.services.look import Look
from lakehouse.platform.services.schedule import due_since, predicted_seconds
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.fleet import DueService, RunBounds
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.table.quiet_hours import QuietHours, parse_quiet_hours
from lakehouse.spec.table.scheduling import Scheduling
from lakehouse.spec.table.services import service_spec

#: Maximum time between the choice of a run and the start of its job; then a later pass chooses again. A named pass,
#: such as a DAG run, releases its runs earlier, when it ends.
CLAIM_MS, CLAIM_WITHOUT_NAME_MS = 3_600_000, 900_000
_RETRY_MS, _LONGEST_RETRY_MS = 300_000, 6 * 3_600_000
#: Pause after a run that had nothing to do, as long as the table does not change.
_IDLE_MS, _LONGEST_IDLE_MS = 900_000, 3_600_000
#: Number of partitions stored per plan; a plan with more is treated as a plan for all partitions.
_MOST_PARTITIONS = 100
_FAILED = (RunState.FAILED, RunState.DIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A service of one table that may be chosen, and the due service to store.

    `started` is true if an earlier pass chose a run that has not ended; its job may not have started.
    """

    table_id: int
    assessed: AssessedService
    due: DueService | None = None
    started: bool = False
    inputs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The history of a table's service: the stored due service and the newest runs."""

    stored: DueService | None = None
    runs: Sequence[Run] = ()
    requested: bool = False


def candidate(look: Look, service: str, past: Past, now_ms: int) -> Candidate:
    """Return the candidate for a service from the examination of its table."""
    seen, table = look.services[service], look.entry.identifier
    if seen.settings is None:
        return Candidate(
            table_id=look.entry.id, assessed=AssessedService(table=table, service=service, assessment=seen.assessment)
        )
    settings, assessment = seen.settings, _stored_partitions(seen.assessment)
    seconds = predicted_seconds(assessment, past.runs)
    since = due_since(past.runs, [] if past.stored is None else [past.stored.since_ms], now_ms)
    deadline_s = settings.deadline_s if settings.deadline_s is not None else service_spec(service).deadline_s
    block = _block(look, service, seconds, past, now_ms)
    chosen_ms = None if past.stored is None else _pending_start(past.stored, past.runs, now_ms)
    due = DueService(
        since_ms=since,
        code=DecisionReason.DUE,
        reason=assessment.reason,
        files=assessment.cost.files,
        bytes=assessment.cost.bytes,
        benefit=assessment.cost.benefit,
        seconds=round(seconds, 1),
        priority=settings.priority,
        deadline_ms=since + round(deadline_s * 1000),
        requested=past.requested,
        places=assessment.cost.partitions,
        chosen_ms=chosen_ms,
        claim=past.stored.claim if past.stored is not None and chosen_ms is not None else "",
        blocked=None if block is None else block.code,
        blocked_ms=None if block is None else block.until_ms,
        bounds=bounds_of(settings.scheduling),
    )
    made = stored_candidate(look.entry.id, table, service, due, now_ms)
    assessed = replace(
        made.assessed,
        assessment=assessment,
        enabled=settings.enabled,
        wait=block or _quiet(settings.scheduling.quiet_hours, now_ms),
    )
    is_due = past.requested or (assessment.due and settings.enabled)
    return replace(made, assessed=assessed, due=due if is_due else None, inputs=assessment.inputs)


def stored_candidate(table_id: int, table: str, service: str, due: DueService, now_ms: int) -> Candidate:
    """Return the candidate for a stored due service whose table was not examined."""
    for number in (due.seconds, due.priority, due.benefit):
        if not math.isfinite(number):
            raise ValueError(f"the stored state of {service} contains the number {number}")
    cost = ServiceCost(files=due.files, bytes=due.bytes, benefit=due.benefit, partitions=due.places)
    text = due.bounds.quiet_hours
    blocked = due.blocked is not None and due.blocked_ms is not None and now_ms < due.blocked_ms
    block = Refusal(code=due.blocked, text=due.reason, until_ms=due.blocked_ms) if blocked and due.blocked else None
    assessed = AssessedService(
        table=table,
        service=service,
        assessment=Assessment(due=True, reason=due.reason, cost=cost),
        seconds=due.seconds,
        priority=due.priority,
        deadline_ms=due.deadline_ms,
        requested=due.requested,
        budgets=budget_keys(table, service),
        wait=block or (_quiet(parse_quiet_hours("quiet_hours", text), now_ms) if text else None),
    )
    return Candidate(table_id=table_id, assessed=assessed, due=due, started=_is_claimed(due, now_ms))


# parameters: a service of a table, and its stored state
def unreadable_candidate(
    table_id: int, table: str, service: str, error: str, due: DueService | None = None
) -> Candidate:
    """Return the candidate for a service whose numbers cannot be computed; it does not run, and stays due."""
    assessed = AssessedService(table=table, service=service, assessment=unreadable(error))
    return Candidate(table_id=table_id, assessed=assessed, due=due)


def decided(candidate: Candidate, choice: Choice, now_ms: int, claim: str = "") -> DueService | None:
    """Return a due service with the decision of the pass `claim`, or None if the service is not due."""
    if candidate.due is None:
        return None
    before = candidate.due
    if candidate.started and not choice.chosen:
        return replace(before, code=choice.code, starts_ms=None)
    return replace(
        before,
        code=choice.code,
        reason=choice.reason if before.blocked is not None and choice.code is before.blocked else before.reason,
        score=choice.assessed.score,
        starts_ms=choice.starts_ms,
        chosen_ms=now_ms if choice.chosen else None,
        claim=claim if choice.chosen else "",
    )


def released(due: DueService, claims: Collection[str]) -> DueService:
    """Return a due service without the choice of an ended pass; `claims` are the names of the ended passes."""
    return replace(due, chosen_ms=None, claim="") if due.claim and due.claim in claims else due


def bounds_of(scheduling: Scheduling) -> RunBounds:
    """Return the restrictions of a policy in their stored form."""
    return RunBounds(
        quiet_hours="" if scheduling.quiet_hours is None else scheduling.quiet_hours.text,
        max_runs=scheduling.max_runs,
        bytes_per_hour=scheduling.bytes_per_hour,
        max_executors=scheduling.max_executors,
        max_memory=scheduling.max_memory,
    )


def _stored_partitions(assessment: Assessment) -> Assessment:
    if len(assessment.cost.partitions) <= _MOST_PARTITIONS:
        return assessment
    return replace(assessment, cost=replace(assessment.cost, partitions=()))


def _is_claimed(due: DueService, now_ms: int) -> bool:
    claim_ms = CLAIM_MS if due.claim else CLAIM_WITHOUT_NAME_MS
    return due.chosen_ms is not None and now_ms - due.chosen_ms < claim_ms


def _pending_start(due: DueService, runs: Sequence[Run], now_ms: int) -> int | None:
    """Return the time of a choice whose run is not recorded or has not ended; None if there is none."""
    chosen_ms = due.chosen_ms
    if chosen_ms is None or not _is_claimed(due, now_ms):
        return None
    ended = any(run.started_ms >= chosen_ms and run.state is not RunState.RUNNING for run in runs)
    return None if ended else chosen_ms


def _block(look: Look, service: str, seconds: float, past: Past, now_ms: int) -> Refusal | None:
    idle = _idle(look.newest_completion, past.runs, now_ms)
    return _retry(past.runs, now_ms) or idle or _writer(look, service, seconds, now_ms)


def _idle(newest_completion: str, runs: Sequence[Run], now_ms: int) -> Refusal | None:
    """Return the pause after runs without work on the current state of the table; `runs` is newest first."""
    idle = 0
    while idle < len(runs) and _found_nothing(runs[idle], newest_completion):
        idle += 1
    if not idle or runs[0].ended_ms is None:
        return None
    pause = min(_IDLE_MS * 2 ** (idle - 1), _LONGEST_IDLE_MS)
    until = runs[0].ended_ms + pause
    if until <= now_ms:
        return None
    text = f"the last run had nothing to do; next try after a change of the table, or at {clock_text(until)}"
    return Refusal(code=DecisionReason.NOTHING_TO_DO, text=text, until_ms=until)


def _found_nothing(run: Run, newest_completion: str) -> bool:
    return run.state is RunState.NOTHING_TO_DO and run.after is not None and run.after >= newest_completion


def _retry(runs: Sequence[Run], now_ms: int) -> Refusal | None:
    """Return the pause after failed runs, which doubles with each of them; `runs` is newest first."""
    failed = 0
    while failed < len(runs) and runs[failed].state in _FAILED:
        failed += 1
    if not failed or runs[0].ended_ms is None:
        return None
    pause = min(_RETRY_MS * 2 ** (failed - 1), _LONGEST_RETRY_MS)
    until = runs[0].ended_ms + pause
    if until <= now_ms:
        return None
    what = "the last run" if failed == 1 else f"the last {failed} runs"
    text = f"{what} failed; next try after {duration_text(pause // 1000)}: {clock_text(until)}"
    return Refusal(code=DecisionReason.RETRY_LATER, text=text, until_ms=until)


def _writer(look: Look, service: str, seconds: float, now_ms: int) -> Refusal | None:
    """Return why a run that conflicts with writers waits for the next writer.

    A run that is longer than the time between two writers never fits, so it does not wait.
    """
    if not service_spec(service).conflicts_with_writers:
        return None
    if look.writer_active and look.look_at_ms is not None:
        text = f"a writer works on the table; next look: {clock_text(look.look_at_ms)}"
        return Refusal(code=DecisionReason.WRITER, text=text, until_ms=look.look_at_ms)
    begins = look.next_writer_ms
    if begins is None or now_ms + seconds * 1000 <= begins or look.writer_gap_ms is None:
        return None
    if seconds * 1000 > look.writer_gap_ms:
        return None
    text = f"the ingestion starts at {clock_text(begins)}, before a run of {duration_text(round(seconds))} would end"
    return Refusal(code=DecisionReason.WRITER, text=text, until_ms=begins)


def _quiet(quiet: QuietHours | None, now_ms: int) -> Refusal | None:
    until = None if quiet is None else quiet.end_ms(now_ms)
    if quiet is None or until is None:
        return None
    text = f"quiet hours {quiet.text}; after them: {clock_text(until)}"
    return Refusal(code=DecisionReason.QUIET_HOURS, text=text, until_ms=until)
