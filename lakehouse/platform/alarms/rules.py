"""Alarm rules as values: a measure, a limit, a severity, and messages about the problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from lakehouse.model.display import number_text
from lakehouse.spec.contracts.fleet import Severity
from lakehouse.spec.quantities import duration_text, size_text

_DAY_S = 86_400.0


class Unit(StrEnum):
    """Unit of a measure; it determines the notation of limits."""

    #: Seconds, written as a duration: `6h`.
    DURATION = "duration"
    #: Bytes, written as a size: `5GB`.
    SIZE = "size"
    #: A fraction, written as a percentage: `50%`.
    RATIO = "ratio"
    #: A number.
    COUNT = "count"
    #: True or false; the rule has no limit.
    FLAG = "flag"

    def text(self, value: float) -> str:
        """Return a value in readable form."""
        match self:
            case Unit.DURATION:
                return duration_text(value)
            case Unit.SIZE:
                return size_text(value)
            case Unit.RATIO:
                return f"{value * 100:.3g}%"
            case Unit.COUNT | Unit.FLAG:
                return number_text(value)


# parameters: the keys of a rule in YAML
@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRule:
    """A rule: a table has a problem while the measure is above the limit.

    `text` is the message, with the fields `{value}` and `{threshold}`, also `{subject}`, `{window}` and `{detail}`.
    Below `least` files, bytes or records the measure is ignored.

    Attributes:
        name: Name of the rule.
        measure: Name of the measure.
        unit: Unit of the measure.
        above: The limit; a value that equals it is no problem.
        severity: Severity of the problem.
        action: The advice, with the fields `{table}` and `{subject}`.
        window_s: Seconds over which a growth or a rate is measured.
        enabled: Whether the rule is evaluated.
        ingested_only: Whether the rule applies only to tables whose spec declares an ingestion.
    """

    name: str
    measure: str
    unit: Unit
    above: float
    text: str
    severity: Severity = Severity.WARNING
    action: str = ""
    window_s: float = _DAY_S
    least: float = 0
    enabled: bool = True
    ingested_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOverride:
    """Changes of one rule for a namespace or a table (`scope`)."""

    scope: str
    rule: str
    changes: Mapping[str, Any]

    def covers(self, table: str) -> bool:
        """Return whether the scope contains a table, `namespace.table`."""
        return self.scope in (table, table.partition(".")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRules:
    """All rules, and their overrides: a table's override wins over its namespace's."""

    rules: tuple[AlarmRule, ...]
    overrides: tuple[RuleOverride, ...] = ()

    def of(self, table: str) -> tuple[AlarmRule, ...]:
        """Return the enabled rules of a table, `namespace.table`, with its overrides."""
        changes: dict[str, dict[str, Any]] = {}
        # A name with a dot is a table, which is narrower than a namespace.
        for override in sorted(self.overrides, key=lambda one: "." in one.scope):
            if override.covers(table):
                changes[override.rule] = {**changes.get(override.rule, {}), **override.changes}
        changed_rules = [replace(rule, **changes.get(rule.name, {})) for rule in self.rules]
        return tuple(rule for rule in changed_rules if rule.enabled)

    def window_s(self, measures: Collection[str]) -> float:
        """Return the maximum window of the rules for some measures, with overrides; at least a day."""
        names = {rule.name: rule.window_s for rule in self.rules if rule.measure in measures}
        changed = [float(o.changes["window_s"]) for o in self.overrides if o.rule in names and "window_s" in o.changes]
        return max(_DAY_S, *names.values(), *changed)


def names_of(rules: Iterable[AlarmRule]) -> tuple[str, ...]:
    """Return the names of rules in their order."""
    return tuple(rule.name for rule in rules)
