"""Describe alarm rules in words, for the pages; pure."""

from __future__ import annotations

from dataclasses import replace

from lakehouse.platform.alarms.measures import MEASURES
from lakehouse.platform.alarms.rules import AlarmRule, AlarmRules, Unit
from lakehouse.spec.contracts.pages import RuleLine, RulesPage


def rules_page(rules: AlarmRules, source: str = "") -> RulesPage:
    """Return the rules with their limits, each followed by its overrides for namespaces and tables."""
    lines = []
    for rule in rules.rules:
        lines.append(_line(rule))
        changed = [override for override in rules.overrides if override.rule == rule.name]
        lines += [_line(replace(rule, **override.changes), override.scope) for override in changed]
    return RulesPage(rules=tuple(lines), source=source)


def _line(rule: AlarmRule, scope: str = "") -> RuleLine:
    measure = MEASURES[rule.measure]
    limit = "true" if rule.unit is Unit.FLAG else rule.unit.text(rule.above)
    parts = [measure.text.rstrip(".")]
    if measure.uses_window:
        parts.append(f"window {Unit.DURATION.text(rule.window_s)}")
    if rule.least and measure.least:
        least = (
            Unit.SIZE.text(rule.least) if measure.least.startswith("bytes") else f"{rule.least:,.0f} {measure.least}"
        )
        parts.append(f"at least {least}")
    if rule.ingested_only:
        parts.append("tables with an ingestion only")
    shown = limit if rule.enabled else "switched off"
    return RuleLine(rule=rule.name, severity=int(rule.severity), limit=shown, measures="; ".join(parts), scope=scope)
