"""Record a pass: the numbers, due services and problems of tables, and the new decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lakehouse.platform.alarms.judge import judge
from lakehouse.platform.alarms.rules import AlarmRules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import Decision
from lakehouse.platform.services.candidates import Candidate, decided
from lakehouse.platform.services.choose import Choice
from lakehouse.platform.services.look import Look
from lakehouse.spec.contracts.fleet import DueService, TableNumbers, TableState

_DAY_MS = 86_400_000
#: (table name, service)
Key = tuple[str, str]


# parameters: the state of a pass at its end
@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The looks and the decisions of a pass.

    Attributes:
        services: The services that the pass decided on.
        looks: The looks by table id.
        seen: Change marks from before the looks, by table id.
        stored: States from before the pass, for the tables of the looks and other tables with due services.
        candidates: The candidates by table name and service.
        choices: The decisions about the candidates.
        now_ms: Time of the decisions.
        claim: Name of the pass, empty if it has none.
    """

    services: Sequence[str]
    looks: Mapping[int, Look]
    seen: Mapping[int, int]
    stored: Mapping[int, TableState]
    candidates: Mapping[Key, Candidate]
    choices: Sequence[Choice]
    now_ms: int
    claim: str = ""


def record_pass(catalog: Catalog, decided_pass: Decided, rules: AlarmRules | None) -> None:
    """Store the states of the tables with their problems, and the new decisions."""
    # Due services that the pass did not decide on stay.
    due = {
        table: {service: stored for service, stored in state.due.items() if service not in decided_pass.services}
        for table, state in decided_pass.stored.items()
    }
    changed, decisions = set[int](), dict[tuple[int, str], Decision]()
    for choice in decided_pass.choices:
        candidate = decided_pass.candidates[(choice.assessed.table, choice.assessed.service)]
        after = decided(candidate, choice, decided_pass.now_ms, decided_pass.claim)
        if after is not None:
            due.setdefault(candidate.table_id, {})[choice.assessed.service] = after
        is_new = (
            candidate.due is None
            or after is None
            or (after.code, after.chosen_ms) != (candidate.due.code, candidate.due.chosen_ms)
        )
        if candidate.table_id in decided_pass.looks or is_new:
            decisions[(candidate.table_id, choice.assessed.service)] = _decision(
                candidate, choice, decided_pass.looks.get(candidate.table_id)
            )
        if is_new or after != candidate.due:
            changed.add(candidate.table_id)
    states = _states(catalog, decided_pass, due)
    if rules is not None:
        entries = [look.entry for look in decided_pass.looks.values()]
        problems = judge(catalog, rules, entries, states, service_errors=_service_errors(decided_pass.looks)).problems
        states = {table: replace(state, problems=problems.get(table, ())) for table, state in states.items()}
    catalog.states.record(states, decided_pass.seen)
    catalog.states.record_due({table: due.get(table, {}) for table in changed - states.keys()})
    if decisions:
        catalog.history.decide(decisions)


def _states(
    catalog: Catalog, decided_pass: Decided, due: Mapping[int, Mapping[str, DueService]]
) -> dict[int, TableState]:
    """Return the new states of the tables, with their previous problems."""
    if not decided_pass.looks:
        return {}
    conflicts = catalog.history.conflicts_since(decided_pass.now_ms - _DAY_MS, decided_pass.looks)
    states = {}
    for table, look in decided_pass.looks.items():
        before = decided_pass.stored.get(table, TableState())
        states[table] = TableState(
            numbers=_numbers(look, before.numbers, conflicts.get(table, 0)),
            problems=before.problems,
            due=due.get(table, {}),
            error=look.error,
            looked_ms=look.looked_ms,
            look_at_ms=look.look_at_ms,
        )
    return states


def _service_errors(looks: Mapping[int, Look]) -> dict[int, dict[str, str]]:
    """Return the errors of services that could not be assessed, by table id, for tables that could be read."""
    return {
        table: {
            name: service.assessment.reason
            for name, service in look.services.items()
            if service.assessment.unreadable and look.error is None
        }
        for table, look in looks.items()
    }


def _numbers(look: Look, before: TableNumbers, conflicts: int) -> TableNumbers:
    if look.numbers is None:
        return before
    numbers = replace(look.numbers, conflicts=conflicts)
    if numbers.metadata_ms is not None:
        return numbers
    return replace(numbers, metadata_bytes=before.metadata_bytes, metadata_ms=before.metadata_ms)


def _decision(one: Candidate, choice: Choice, look: Look | None) -> Decision:
    assessed = choice.assessed
    cost = assessed.assessment.cost
    version = {} if look is None else {"spec_version": look.entry.spec_version}
    return Decision(
        due=assessed.assessment.due,
        chosen=choice.chosen,
        reason=choice.reason,
        code=choice.code,
        priority=assessed.score,
        deadline_ms=assessed.deadline_ms if assessed.assessment.due else None,
        inputs={**one.inputs, **version},
        predicted={**cost.numbers, "seconds": round(assessed.seconds, 1)} if cost.files else {},
    )
