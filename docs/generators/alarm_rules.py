"""The page of the rules of alarms."""

from __future__ import annotations

from docs.generators.markdown import code, page, table
from lakehouse.platform.alarms.measures import MEASURES
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.alarms.rules import Unit

_INTRO = """\
The shipped rules, and what a rule can measure. [Add an alarm rule](../how-to/add-an-alarm-rule.md) shows how to change
them. A rule has the keys `measure`, `above`, `severity` (info, warning, critical), `text`, `action`, `window`, `least`
(the rule is ignored below this number), `enabled` and `ingested_only` (only tables whose spec has an ingestion)."""


def alarm_rules_page() -> str:
    """Return the page with all shipped rules and all measures."""
    rules = [
        (
            code(rule.name),
            code(rule.measure),
            "" if rule.unit is Unit.FLAG else rule.unit.text(rule.above),
            Unit.DURATION.text(rule.window_s) if MEASURES[rule.measure].uses_window else "",
            rule.severity.name.lower(),
            code(rule.text),
        )
        for rule in load_rules({}).rules
    ]
    measures = [
        (code(name), str(measure.unit), "yes" if measure.by_time else "", measure.least, measure.text)
        for name, measure in MEASURES.items()
    ]
    parts = (
        _INTRO,
        "## Rules",
        table(("rule", "measure", "above", "window", "severity", "text"), rules),
        "## Measures",
        table(("measure", "unit", "on all tables by time", "`least` counts", "meaning"), measures),
    )
    return page("Rules of alarms", "lakehouse/platform/alarms", *parts)
