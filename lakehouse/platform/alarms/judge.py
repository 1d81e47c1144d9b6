"""Evaluate alarm rules on stored facts, and raise and resolve alarms. Storage is not read.

    judge           all rules, on the tables that a pass of the scheduler has just examined
    judge_by_time   on all tables, the rules whose values change without a commit, such as freshness

In both, the number of queries does not depend on the number of tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from lakehouse.platform.alarms.evaluate import active, evaluate
from lakehouse.platform.alarms.facts import TableFacts
from lakehouse.platform.alarms.measures import MEASURES
from lakehouse.platform.alarms.rules import AlarmRules, names_of
from lakehouse.platform.catalog.alarms import AlarmChanges, Evaluated, WatchedTable
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.entries import InvalidEntry, TableEntry
from lakehouse.platform.catalog.run_history import Run
from lakehouse.platform.catalog.table_states import TablePoint
from lakehouse.spec.contracts.fleet import Problem, TableState

_DAY_MS = 86_400_000
_Runs = Mapping[str, tuple[Run, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The problems of the evaluated tables by table id, and the alarms that were raised and resolved."""

    problems: Mapping[int, tuple[Problem, ...]]
    changes: AlarmChanges


def judge(
    catalog: Catalog,
    rules: AlarmRules,
    entries: Sequence[TableEntry | InvalidEntry],
    states: Mapping[int, TableState],
    *,
    service_errors: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
) -> Judgement:
    """Evaluate all rules on tables with new states from the scheduler, and record the alarms.

    Args:
        catalog: The catalog.
        rules: The rules.
        entries: The tables.
        states: Their new states by table id; the caller stores them with the problems of the result.
        service_errors: Why services cannot be assessed, by table id and service.
    """
    if not entries:
        return Judgement(problems={}, changes=AlarmChanges())
    facts = {
        table: replace(measured, service_errors=service_errors.get(table, {}))
        for table, measured in _facts(catalog, rules, entries, states).items()
    }
    problems = {entry.id: evaluate(rules, facts[entry.id]) for entry in entries}
    # Rules that read numbers cannot be resolved on a table that cannot be read.
    evaluated = {
        entry.id: Evaluated(
            problems=problems[entry.id], rules=None if facts[entry.id].error is None else _names(rules, facts[entry.id])
        )
        for entry in entries
    }
    all_problems = {
        entry.id: _kept(states[entry.id], problems[entry.id], evaluated[entry.id].rules)
        for entry in entries
        if entry.id in states
    }
    return Judgement(problems=all_problems, changes=catalog.alarms.record(evaluated))


def judge_by_time(catalog: Catalog, rules: AlarmRules) -> Judgement:
    """Evaluate the rules whose values change without a commit on all tables, and record alarms and problems."""
    # Parsing the specs of all tables would take longer than the rest.
    tables = catalog.alarms.tables()
    states = catalog.states.of(tables)
    now = catalog.clock.now_ms()
    runs, leases = catalog.history.runs_since(now - _window_ms(rules, of_runs=True)), _leases(catalog)
    by_time = frozenset(names_of(rule for rule in rules.rules if MEASURES[rule.measure].by_time))
    new_problems: dict[int, tuple[Problem, ...]] = {}
    for table, watched in tables.items():
        state = states.get(table, TableState())
        facts = _of(watched, state, now, runs.get(table, {}), leases.get(watched.identifier, {}))
        new_problems[table] = evaluate(rules, facts, by_time_only=True)
    changes = catalog.alarms.record({table: Evaluated(problems=p, rules=by_time) for table, p in new_problems.items()})
    all_problems = {
        table: _kept(states[table], problems, by_time) for table, problems in new_problems.items() if table in states
    }
    catalog.states.record_problems(
        {t: problems for t, problems in all_problems.items() if problems != states[t].problems}
    )
    return Judgement(problems=all_problems, changes=changes)


def _facts(
    catalog: Catalog, rules: AlarmRules, entries: Sequence[TableEntry | InvalidEntry], states: Mapping[int, TableState]
) -> dict[int, TableFacts]:
    ids, now = [entry.id for entry in entries], catalog.clock.now_ms()
    # The last numbers before a window may be a day older than its start.
    points = catalog.states.points(ids, now - _window_ms(rules, of_runs=False) - _DAY_MS)
    runs, leases = catalog.history.runs_since(now - _window_ms(rules, of_runs=True), ids), _leases(catalog)
    return {
        entry.id: _of(
            _watched(entry),
            states.get(entry.id, TableState()),
            now,
            runs.get(entry.id, {}),
            leases.get(entry.identifier, {}),
            points.get(entry.id, ()),
        )
        for entry in entries
    }


# parameters: the facts of one table
def _of(
    watched: WatchedTable,
    state: TableState,
    now_ms: int,
    runs: _Runs,
    leases: Mapping[str, int],
    points: Sequence[TablePoint] = (),
) -> TableFacts:
    return TableFacts(
        table=watched.identifier,
        now_ms=now_ms,
        numbers=state.numbers,
        history=tuple((point.hour_ms, point.numbers) for point in points),
        runs=runs,
        expired_leases=leases,
        error=state.error,
        is_ingested=watched.is_ingested,
    )


def _watched(entry: TableEntry | InvalidEntry) -> WatchedTable:
    is_ingested = "ingest" in entry.document if isinstance(entry, InvalidEntry) else bool(entry.spec.ingestions)
    return WatchedTable(identifier=entry.identifier, is_ingested=is_ingested)


def _leases(catalog: Catalog) -> dict[str, dict[str, int]]:
    """Return the expiry times of unreleased leases by table and service."""
    leases: dict[str, dict[str, int]] = {}
    for key, expired_ms in catalog.leases.expired().items():
        table, _, service = key.partition("/")
        leases.setdefault(table, {})[service] = expired_ms
    return leases


def _names(rules: AlarmRules, facts: TableFacts) -> frozenset[str]:
    """Return the rules that can be evaluated on a table that cannot be read."""
    rules_of_table = active(rules, facts)
    return frozenset(
        names_of(rule for rule in rules_of_table if MEASURES[rule.measure].by_time or rule.measure == "unreadable")
    )


def _kept(state: TableState, problems: Sequence[Problem], rules: frozenset[str] | None) -> tuple[Problem, ...]:
    """Return the problems of a table: new problems, and stored problems of rules that were not evaluated."""
    stored = () if rules is None else tuple(one for one in state.problems if one.rule not in rules)
    return tuple(sorted((*problems, *stored), key=lambda problem: -problem.severity))


def _window_ms(rules: AlarmRules, *, of_runs: bool) -> int:
    """Return the maximum window of the rules that read the run history, or of the rules that read numbers."""
    names = [name for name, measure in MEASURES.items() if measure.uses_window and measure.reads_runs is of_runs]
    return round(rules.window_s(names) * 1000)
