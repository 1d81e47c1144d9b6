"""One pass of the fleet scheduler: examine changed tables, decide on all due services, and store both.

    1. marks     the tables that changed, are scheduled, or were not examined for long; or the named tables
    2. looks     each of these tables is loaded once; storage requests are proportional to their number
    3. choice    all due services, including stored ones of tables that were not examined, within budgets and slots
    4. record    numbers, due services and decisions; a crash before this step repeats the looks
    5. batches   the jobs to start

Steps 3 and 4 are under a lease, so two passes do not start one run twice. The number of catalog queries does not
depend on the number of tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from lakehouse.model.texts import error_text
from lakehouse.platform.alarms.rules import AlarmRules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.table_names import full_name
from lakehouse.platform.catalog.table_states import LookLimits
from lakehouse.platform.services.assess import log_fault
from lakehouse.platform.services.budgets import Limits
from lakehouse.platform.services.candidates import (
    Candidate,
    Past,
    candidate,
    released,
    stored_candidate,
    unreadable_candidate,
)
from lakehouse.platform.services.choose import Choice, Rules, RunStage, choose_runs
from lakehouse.platform.services.claims import choice_lease
from lakehouse.platform.services.job_batches import BatchSize, ChosenRun, job_batches
from lakehouse.platform.services.look import Look, LookRequest, look
from lakehouse.platform.services.metrics import Metrics
from lakehouse.platform.services.pass_record import Decided, Key, record_pass
from lakehouse.platform.services.pass_rules import RuleInputs, end_crashed_runs, rules_of
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.fleet import DueService, RunBounds, ServiceBatch, TableState
from lakehouse.spec.table.services import SERVICES

_READERS = 8
_RUNS_OF_FORECAST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """Settings of a pass.

    Attributes:
        services: Names of the services to decide on.
        tables: Names of the tables to examine; empty means changed tables.
        skip_unknown: Ignore names of tables that are not in the catalog.
        looks: How many tables a pass without named tables examines.
        limits: Limits of a service on all tables, by service.
        slots: Slots of the pool that executes the runs; None means unlimited.
        horizon_s: Seconds until the next pass; runs that would start later are not started now.
        batch: Size of the jobs.
        rules: Rules of alarms that are evaluated on the tables of the looks; None: their problems stay.
        claim: Name of the pass, such as its DAG run. A retry of the pass chooses the same runs again.
    """

    services: tuple[str, ...] = SERVICES
    tables: tuple[str, ...] = ()
    skip_unknown: bool = False
    looks: LookLimits = field(default_factory=LookLimits)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    slots: int | None = None
    horizon_s: float = 300.0
    batch: BatchSize = field(default_factory=BatchSize)
    rules: AlarmRules | None = None
    claim: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """Looks, decisions and jobs of a pass; `claims` are earlier passes with chosen runs that have not started."""

    looks: tuple[Look, ...]
    choices: tuple[Choice, ...]
    batches: tuple[ServiceBatch, ...]
    claims: tuple[str, ...] = ()


def run_pass(catalog: Catalog, settings: PassSettings, measures: Metrics | None = None) -> PassResult:
    """Run one pass: examine tables, decide, record the decisions, and return the jobs to start; change no table.

    Raises RetryableError if another pass holds the choice for minutes, and UserError for an unknown table.
    """
    end_crashed_runs(catalog, settings.services)
    named = _named(catalog, settings)
    # If a pass crashes after an event, the mark stays for the next pass.
    catalog.states.mark_changed(named)
    now_ms = catalog.clock.now_ms()
    seen = catalog.states.marks(named) if settings.tables else catalog.states.to_look(now_ms, settings.looks)
    requested = catalog.history.requested_services(settings.services)
    looks = _look_at(catalog, settings, seen, requested)
    with choice_lease(catalog):
        stored = {**catalog.states.due(), **catalog.states.of(looks)}
        candidates = _candidates(catalog, settings, _Tables(looks=looks, stored=stored), requested)
        rules = rules_of(catalog, _rule_inputs(settings, candidates))
        choices = choose_runs([one.assessed for one in candidates.values()], rules, now_ms=now_ms)
        jobs = _jobs(candidates, choices, settings.batch)
        choices = _within(jobs, choices, settings.batch.jobs)
        decided = Decided(
            services=settings.services,
            looks=looks,
            seen=seen,
            stored=stored,
            candidates=candidates,
            choices=choices,
            now_ms=now_ms,
            claim=settings.claim,
        )
        record_pass(catalog, decided, settings.rules)
    if measures is not None:
        for seen_table in looks.values():
            if seen_table.health is not None:
                measures.table(seen_table.entry.identifier, seen_table.health)
        measures.decisions(choices)
    claims = _claims(candidates, rules) - {settings.claim}
    return PassResult(looks=tuple(looks.values()), choices=choices, batches=jobs, claims=tuple(sorted(claims)))


def _named(catalog: Catalog, settings: PassSettings) -> set[int]:
    """Return the ids of the named tables; raise UserError for an unknown name unless unknown names are skipped."""
    ids = catalog.states.ids([full_name(table) for table in settings.tables])
    if len(ids) < len(settings.tables) and not settings.skip_unknown:
        # The error suggests a similar name.
        catalog.entries(settings.tables)
    return set(ids.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """The looks, and the previous states of their tables and all tables with due services, by table id."""

    looks: Mapping[int, Look]
    stored: Mapping[int, TableState]


def _look_at(
    catalog: Catalog, settings: PassSettings, tables: Collection[int], requested: Collection[tuple[int, str]]
) -> dict[int, Look]:
    entries, policies = catalog.registered(tables), catalog.policies()
    wanted: dict[int, list[str]] = {}
    for table, service in requested:
        wanted.setdefault(table, []).append(service)
    now_ms = catalog.clock.now_ms()
    measured = _to_measure(catalog, entries, now_ms, settings.looks)
    with ThreadPoolExecutor(_READERS) as pool:
        started = [
            pool.submit(
                look,
                entry,
                policies,
                LookRequest(
                    services=settings.services,
                    requested=wanted.get(entry.id, ()),
                    now_ms=now_ms,
                    measure_metadata=entry.id in measured,
                ),
            )
            for entry in entries.values()
        ]
        return {seen.entry.id: seen for seen in (one.result() for one in started)}


def _to_measure(catalog: Catalog, tables: Collection[int], now_ms: int, limits: LookLimits) -> set[int]:
    """Return the few tables whose metadata table is listed to measure it; each table once a day."""
    states = catalog.states.of(tables)
    measured = {table: states[table].numbers.metadata_ms or 0 if table in states else 0 for table in tables}
    old = [table for table, at in measured.items() if at <= now_ms - limits.rotation_ms]
    return set(sorted(old, key=lambda table: (measured[table], table))[: limits.measured])


def _candidates(
    catalog: Catalog, settings: PassSettings, tables: _Tables, requested: Collection[tuple[int, str]]
) -> dict[Key, Candidate]:
    """Return the candidates from the looks, and for other tables from their stored due services."""
    now_ms, looks, stored = catalog.clock.now_ms(), tables.looks, tables.stored
    due = [table for table, seen in looks.items() if any(one.assessment.due for one in seen.services.values())]
    requested_tables = {table for table, _ in requested}
    runs = catalog.history.newest_runs({*due, *(looks.keys() & requested_tables)}, limit=_RUNS_OF_FORECAST)
    candidates: dict[Key, Candidate] = {}
    for table, seen in looks.items():
        before = stored[table].due if table in stored else {}
        for service in seen.services:
            stored_due = before.get(service)
            past = Past(
                stored=None if stored_due is None else released(stored_due, {settings.claim}),
                runs=runs.get((table, service), ()),
                requested=(table, service) in requested,
            )
            candidates[(seen.entry.identifier, service)] = _candidate(seen, service, past, now_ms)
    names = catalog.states.names(stored.keys() - looks.keys())
    for table, name in names.items():
        for service, stored_due in stored[table].due.items():
            if service in settings.services:
                stored_due = released(stored_due, {settings.claim})
                candidates[(name, service)] = _stored(table, name, service, stored_due, now_ms)
    return candidates


def _candidate(seen: Look, service: str, past: Past, now_ms: int) -> Candidate:
    """Return a candidate; an unreadable one if its numbers cannot be computed, so that the pass continues."""
    try:
        return candidate(seen, service, past, now_ms)
    except Exception as error:
        log_fault(f"{seen.entry.identifier}: {service}", error)
        return unreadable_candidate(seen.entry.id, seen.entry.identifier, service, error_text(error))


# parameters: a stored due service of a table
def _stored(table: int, name: str, service: str, due: DueService, now_ms: int) -> Candidate:
    """Return a candidate from a stored state; an unreadable one if an earlier version stored invalid values."""
    try:
        return stored_candidate(table, name, service, due, now_ms)
    except Exception as error:
        log_fault(f"{name}: {service}", error)
        return unreadable_candidate(table, name, service, error_text(error), due)


def _claims(candidates: Mapping[Key, Candidate], rules: Rules) -> set[str]:
    """Return the names of the passes whose chosen runs have not started."""
    submitted = [(run.table, run.service) for run in rules.running if run.stage is RunStage.SUBMITTED]
    chosen = [candidates[key].due for key in submitted if key in candidates]
    return {due.claim for due in chosen if due is not None and due.claim}


def _rule_inputs(settings: PassSettings, candidates: Mapping[Key, Candidate]) -> RuleInputs:
    return RuleInputs(
        limits=settings.limits,
        slots=settings.slots,
        horizon_s=settings.horizon_s,
        candidates=tuple(candidates.values()),
    )


def _jobs(candidates: Mapping[Key, Candidate], choices: Sequence[Choice], size: BatchSize) -> tuple[ServiceBatch, ...]:
    chosen = [choice for choice in choices if choice.chosen]
    return job_batches([ChosenRun(assessed=one.assessed, bounds=_bounds(candidates, one)) for one in chosen], size)


def _within(jobs: Sequence[ServiceBatch], choices: Sequence[Choice], most: int) -> tuple[Choice, ...]:
    """Return the choices; a chosen run without a job waits, because the pass has reached its limit of jobs."""
    runs = {(table, job.service) for job in jobs for table in job.tables}
    text = f"the pass starts {most:,} jobs, which is its limit; the next pass decides again"
    return tuple(
        choice
        if not choice.chosen or (choice.assessed.table, choice.assessed.service) in runs
        else replace(choice, chosen=False, code=DecisionReason.JOB_LIMIT, reason=text)
        for choice in choices
    )


def _bounds(candidates: Mapping[Key, Candidate], choice: Choice) -> RunBounds:
    due = candidates[(choice.assessed.table, choice.assessed.service)].due
    return RunBounds() if due is None else due.bounds
