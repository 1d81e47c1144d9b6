"""Decide which services run now on the tables in a catalog, and record each decision with its reason."""

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
from lakehouse.platform.catalog.run_records import lease_key
from lakehouse.platform.services.assess import Assessment, assess, log_fault, unreadable
from lakehouse.platform.services.choose import AssessedService, Choice, Limits, Load, choose
from lakehouse.spec.table.service_settings import ServiceSettings
from lakehouse.spec.table.services import VERSION_CHANGES

_HOUR_MS = 3_600_000
_READERS = 8
#: Prediction for a service without runs: start time of a process, and disk throughput.
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
        drift: Warnings by table about spec files that are not the current spec; they are added to the reasons.
    """
    named = [catalog.registered_entry(name) for name in text_list(tables, "tables")]
    entries = {entry.id: entry for entry in named} if tables else catalog.registered()
    _end_crashed_runs(catalog, services)
    policies, open_requests = catalog.policies(), catalog.history.requested_services(services)

    def look(entry: TableEntry | InvalidEntry) -> dict[str, _SeenService]:
        requested = [service for service in services if force or (entry.id, service) in open_requests]
        return _look(entry, policies, services, requested)

    with ThreadPoolExecutor(_READERS) as pool:
        seen = dict(zip(entries, pool.map(look, entries.values()), strict=True))
    memory = _remember(catalog, seen)
    services_assessed = [
        _candidate(
            entry, service, seen[entry.id][service], memory, requested=force or (entry.id, service) in open_requests
        )
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
class _SeenService:
    """The assessment of a table's service, and the settings; None if the settings cannot be read."""

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
) -> dict[str, _SeenService]:
    """Load a table once, and assess all services; an error is not raised, because it would stop the other tables."""
    seen: dict[str, _SeenService] = {}
    if isinstance(entry, InvalidEntry):
        return dict.fromkeys(services, _SeenService(assessment=unreadable(entry.error)))
    try:
        table = open_table(entry, policies).services_as_loaded
    except Exception as error:
        return dict.fromkeys(services, _SeenService(assessment=_unseen(entry, "services", error)))
    for service in services:
        try:
            settings = policies.scheduling_settings(entry.namespace, entry.name, entry.spec.services, service)
            seen[service] = _SeenService(
                assessment=assess(table, service, force=service in requested), settings=settings
            )
        except Exception as error:
            seen[service] = _SeenService(assessment=_unseen(entry, service, error))
    return seen


def _unseen(entry: TableEntry, what: str, error: Exception) -> Assessment:
    log_fault(f"{entry.identifier}: {what}", error)
    return unreadable(error_text(error))


def _remember(catalog: Catalog, seen: Mapping[int, Mapping[str, _SeenService]]) -> _Memory:
    due = {
        table: [one for one in services.values() if one.assessment.cost.files or one.assessment.due]
        for table, services in seen.items()
    }
    timed = [
        table
        for table, services in due.items()
        if any(one.settings and one.settings.deadline_s is not None for one in services)
    ]
    return _Memory(
        runs=catalog.history.newest_runs(
            [table for table, services in due.items() if services], limit=_RUNS_OF_FORECAST
        ),
        due_since=catalog.history.due_since(timed),
        now_ms=catalog.clock.now_ms(),
    )


# parameters: a service of a table, with its assessment and its history
def _candidate(
    entry: TableEntry | InvalidEntry, service: str, seen: _SeenService, memory: _Memory, *, requested: bool
) -> AssessedService:
    if seen.settings is None:
        return AssessedService(table=entry.identifier, service=service, assessment=seen.assessment)
    runs = memory.runs.get((entry.id, service), ())
    deadline_s = seen.settings.deadline_s if seen.assessment.due else None
    since = due_since(runs, memory.due_since.get((entry.id, service), ()), memory.now_ms)
    return AssessedService(
        table=entry.identifier,
        service=service,
        assessment=seen.assessment,
        seconds=predicted_seconds(seen.assessment, runs),
        priority=seen.settings.priority,
        deadline_ms=None if deadline_s is None else since + round(deadline_s * 1000),
        enabled=seen.settings.enabled,
        requested=requested,
    )


def predicted_seconds(assessment: Assessment, runs: Sequence[Run]) -> float:
    """Predict the seconds of a run from the rate of the last runs, else from the disk throughput."""
    work = assessment.cost.bytes / _BYTES_PER_S + assessment.cost.files / _FILES_PER_S
    ratios = [
        float(run.actual["seconds"]) / float(run.predicted["seconds"])
        for run in runs
        if run.state is RunState.COMMITTED and run.actual.get("seconds") and run.predicted.get("seconds")
    ]
    factor = statistics.median(ratios) if ratios else 1.0
    return (_START_S + work) * factor


def due_since(runs: Sequence[Run], decided: Sequence[int], now_ms: int) -> int:
    """Return since when the service is due without a successful run; `decided` is newest first."""
    done = max((run.ended_ms or 0 for run in runs if run.state in _DONE), default=0)
    return next((time for time in reversed(decided) if time > done), now_ms)


def _end_crashed_runs(catalog: Catalog, services: Sequence[str]) -> None:
    """Record crashed runs, so that their requests are open again."""
    # Runs that begin after this moment are ignored, because their leases may not be listed below.
    before_ms = catalog.clock.now_ms()
    ended = {*services, *VERSION_CHANGES}
    running = [pair for pair in catalog.history.running() if pair[1] in ended]
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
    assessment = assessed.assessment
    return Decision(
        due=assessment.due,
        chosen=choice.chosen,
        reason=choice.reason,
        code=choice.code,
        priority=assessed.score,
        deadline_ms=assessed.deadline_ms,
        inputs={**assessment.inputs, "spec_version": spec_version},
        predicted={**assessment.cost.numbers, "seconds": round(assessed.seconds, 1)} if assessment.cost.files else {},
    )
