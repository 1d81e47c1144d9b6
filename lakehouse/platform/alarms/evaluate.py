"""Evaluate alarm rules on the facts about a table; pure."""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.model.texts import error_text
from lakehouse.platform.alarms.facts import TableFacts
from lakehouse.platform.alarms.measures import MEASURES, Measured
from lakehouse.platform.alarms.rules import AlarmRule, AlarmRules, Unit
from lakehouse.spec.contracts.fleet import Problem

_LONGEST_DETAIL = 300


def evaluate(rules: AlarmRules, facts: TableFacts, *, by_time_only: bool = False) -> tuple[Problem, ...]:
    """Return the problems of a table, sorted by severity.

    Args:
        rules: All rules; the table decides which rules and overrides apply.
        facts: Facts about the table.
        by_time_only: Evaluate only rules whose measures change without a commit.
    """
    problems = [
        problem for rule in active(rules, facts, by_time_only=by_time_only) for problem in _problems(rule, facts)
    ]
    return tuple(sorted(problems, key=lambda problem: -problem.severity))


def active(rules: AlarmRules, facts: TableFacts, *, by_time_only: bool = False) -> Sequence[AlarmRule]:
    """Return the rules that `evaluate` evaluates on these facts."""
    return [
        rule
        for rule in rules.of(facts.table)
        if (facts.is_ingested or not rule.ingested_only) and (MEASURES[rule.measure].by_time or not by_time_only)
    ]


def _problems(rule: AlarmRule, facts: TableFacts) -> list[Problem]:
    """Return the problems of one rule. A rule that raises an error is a problem, and does not stop other tables."""
    try:
        return _violations(rule, facts)
    except Exception as error:
        text = f"the rule {rule.name} cannot be evaluated: {error_text(error)}"
        return [Problem(rule=rule.name, severity=rule.severity, text=text)]


def _violations(rule: AlarmRule, facts: TableFacts) -> list[Problem]:
    return [
        _problem(rule, facts, measured)
        for measured in MEASURES[rule.measure].read(facts, rule)
        if measured.value > rule.above
    ]


def _problem(rule: AlarmRule, facts: TableFacts, measured: Measured) -> Problem:
    detail = measured.detail if len(measured.detail) <= _LONGEST_DETAIL else f"{measured.detail[:_LONGEST_DETAIL]}..."
    words = {
        "value": rule.unit.text(measured.value),
        "threshold": rule.unit.text(rule.above),
        "subject": measured.subject,
        "detail": detail,
        "table": facts.table,
        "window": Unit.DURATION.text(rule.window_s),
    }
    return Problem(
        rule=rule.name,
        severity=rule.severity,
        value=measured.value,
        threshold=rule.above,
        text=rule.text.format(**words),
        action=rule.action.format(**words),
        subject=measured.subject,
    )
