"""Decide which services of the tables of a catalog run now, and record each decision with its reason."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lakehouse.model.texts import error_text, text_list
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.entries import InvalidEntry, TableEntry
from lakehouse.platform.catalog.open_table import open_table
from lakehouse.platform.catalog.policies import ServicePolicies
from lakehouse.platform.catalog.run_history import Decision, Run, RunState
from lakehouse.platform.services.assess import Assessment, assess, log_fault, unreadable
from lakehouse.platform.services.choose import AssessedService, Choice, Limits, Load, choose
from lakehouse.platform.services.run import lease_key
from lakehouse.spec.table.service_settings import ServiceSettings

_HOUR_MS = 3_600_000
_READERS = 8
#: The prediction for a service without runs: the start of a process, and the throughput of a disk.
_START_S, _BYTES_PER_S, _FILES_PER_S = 10.0, 40_000_000, 200
_RUNS_OF_FORECAST = 5
_DONE = (RunState.COMMITTED, RunState.NOTHING_TO_DO)


# parameters: the flags of `lakehouse services due`
def decide(
    catalog: Catalog,
    services: Sequence[str],
    *,
    tables: Sequence[str] = (),
    limits: Mapping[str, Limits] | None = None,
    force: bool = False,
    drift: Mapping[str, str] | None = None,
) -> tuple[Choice, ...]:
    """Decide which services run now, record every decision, and change no table.

    A table whose state cannot be read is not due; it does not affect the other tables.

    Args:
        catalog: The catalog of the tables.
        services: Names of the services to decide on.
        tables: Names of the tables; empty: all tables of the catalog.
        limits: Limits by service.
        force: Choose services whether they are due or not.
        drift: Warnings by table about a spec file that is not in force; they are added to the reasons.
    """
    named = [catalog.registered_entry(name) for name in text_list(tables, "tables")]
    entries = {entry.id: entry for entry in named} if tables else catalog.registered()
    _end_crashed_runs(catalog, services)
    policies, asked = catalog.policies(), catalog.history.requested_services(services)

    def look(entry: TableEntry | InvalidEntry) -> dict[str, _Found]:
        requested = [service for service in services if force or (entry.id, service) in asked]
        return _look(entry, policies, services, requested)

    with ThreadPoolExecutor(_READERS) as pool:
        seen = dict(zip(entries, pool.map(look, entries.values()), strict=True))
    memory = _remember(catalog, seen)
    services_assessed = [
        _candidate(entry, service, seen[entry.id][service], memory, requested=force or (entry.id, service) in asked)
        for entry in entries.values()
        for service in services
    ]
    choices = choose(services_assessed, limits or {}, _load(catalog, services), now_ms=memory.now_ms)
    choices = tuple(_with_drift(choice, drift or {}) for choice in choices)
    by_name = {entry.identifier: entry for entry in entries.values()}
    catalog.history.decide(
        {
            (by_name[c.assessed.table].id, c.assessed.service): _decision(c, by_name[c.assessed.table].spec_version)
            for c in choices
        }
    )
    return choices


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The assessment of one service of a table, and its settings; None if these cannot be read."""

    assessment: Assessment
    settings: ServiceSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """The past runs and decisions of tables with due services, by (table id, service)."""

    now_ms: int
    runs: Mapping[tuple[int, str], Sequence[Run]]
    due_since: Mapping[tuple[int, str], Sequence[int]]


def _look(
    entry: TableEntry | InvalidEntry, policies: ServicePolicies, services: Sequence[str], requested: Collection[str]
) -> dict[str, _Found]:
    """Load a table once, and assess all services; no fault of one table is raised, because it would stop the others."""
    found: dict[str, _Found] = {}
    if isinstance(entry, InvalidEntry):
        return dict.fromkeys(services, _Found(assessment=unreadable(entry.error)))
    try:
        table = open_table(entry, policies).services_as_loaded
    except Exception as error:
        return dict.fromkeys(services, _Found(assessment=_unseen(entry, "services", error)))
    for service in services:
        try:
            settings = policies.scheduling_settings(entry.namespace, entry.name, entry.spec.services, service)
            found[service] = _Found(assessment=assess(table, service, force=service in requested), settings=settings)
        except Exception as error:
            found[service] = _Found(assessment=_unseen(entry, service, error))
    return found


def _unseen(entry: TableEntry, what: str, error: Exception) -> Assessment:
    log_fault(f"{entry.identifier}: {what}", error)
    return unreadable(error_text(error))


def _remember(catalog: Catalog, seen: Mapping[int, Mapping[str, _Found]]) -> _Memory:
    due = {
        table: [f for f in found.values() if f.assessment.cost.files or f.assessment.due]
        for table, found in seen.items()
    }
    timed = [t for t, found in due.items() if any(f.settings and f.settings.deadline_s is not None for f in found)]
    return _Memory(
        runs=catalog.history.newest_runs([table for table, found in due.items() if found], limit=_RUNS_OF_FORECAST),
        due_since=catalog.history.due_since(timed),
        now_ms=catalog.clock.now_ms(),
    )


# parameters: a service of a table, and what is known of it
def _candidate(
    entry: TableEntry | InvalidEntry, service: str, found: _Found, memory: _Memory, *, requested: bool
) -> AssessedService:
    if found.settings is None:
        return AssessedService(table=entry.identifier, service=service, assessment=found.assessment)
    runs = memory.runs.get((entry.id, service), ())
    deadline_s = found.settings.deadline_s if found.assessment.due else None
    since = due_since(runs, memory.due_since.get((entry.id, service), ()), memory.now_ms)
    return AssessedService(
        table=entry.identifier,
        service=service,
        assessment=found.assessment,
        seconds=predicted_seconds(found.assessment, runs),
        priority=found.settings.priority,
        deadline_ms=None if deadline_s is None else since + round(deadline_s * 1000),
        enabled=found.settings.enabled,
        requested=requested,
    )


def predicted_seconds(found: Assessment, runs: Sequence[Run]) -> float:
    """Predict the seconds of a run from the rate of the last runs, else from the throughput of a disk."""
    work = found.cost.bytes / _BYTES_PER_S + found.cost.files / _FILES_PER_S
    ratios = [
        float(run.actual["seconds"]) / float(run.predicted["seconds"])
        for run in runs
        if run.state is RunState.COMMITTED and run.actual.get("seconds") and run.predicted.get("seconds")
    ]
    factor = statistics.median(ratios) if ratios else 1.0
    return (_START_S + work) * factor


def due_since(runs: Sequence[Run], decided: Sequence[int], now_ms: int) -> int:
    """Return the time since which the service has been due without a successful run; `decided` is newest first."""
    done = max((run.ended_ms or 0 for run in runs if run.state in _DONE), default=0)
    return next((time for time in reversed(decided) if time > done), now_ms)


def _end_crashed_runs(catalog: Catalog, services: Sequence[str]) -> None:
    """Record crashed runs, so that the requests that they took are open again."""
    # Runs that begin after this moment are ignored, because their leases may not be listed below.
    before_ms = catalog.clock.now_ms()
    running = [pair for pair in catalog.history.running() if pair[1] in services]
    names = catalog.states.names({table for table, _ in running})
    keys = {lease_key(names[table], service): (table, service) for table, service in running if table in names}
    for key in sorted(keys.keys() - set(catalog.leases.held_keys(keys))):
        catalog.history.end_expired_runs(*keys[key], active_run=None, before_ms=before_ms)


def _load(catalog: Catalog, services: Sequence[str]) -> Load:
    """Return the active runs and the used bytes; a run without a valid lease has crashed and does not count."""
    running = catalog.history.running()
    names = catalog.states.names({table for table, _ in running})
    keys = {lease_key(names[table], service): (names[table], service) for table, service in running if table in names}
    return Load(
        running=[keys[key] for key in sorted(catalog.leases.held_keys(keys))],
        bytes_last_hour=catalog.history.bytes_since(services, catalog.clock.now_ms() - _HOUR_MS),
    )


def _with_drift(choice: Choice, drift: Mapping[str, str]) -> Choice:
    warning = drift.get(choice.assessed.table)
    return replace(choice, reason=f"{choice.reason}; {warning}") if warning else choice


def _decision(choice: Choice, spec_version: int) -> Decision:
    assessed = choice.assessed
    found = assessed.assessment
    return Decision(
        due=found.due,
        chosen=choice.chosen,
        reason=choice.reason,
        code=choice.code,
        priority=assessed.score,
        deadline_ms=assessed.deadline_ms,
        inputs={**found.inputs, "spec_version": spec_version},
        predicted={**found.cost.numbers, "seconds": round(assessed.seconds, 1)} if found.cost.files else {},
    )
