"""Read alarm rules from YAML. An error message contains file, line, key, and a similar valid name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

from lakehouse.errors import SettingError, nearest
from lakehouse.platform.alarms.measures import MEASURES
from lakehouse.platform.alarms.rules import AlarmRule, AlarmRules, RuleOverride, Unit
from lakehouse.spec.contracts.fleet import Severity
from lakehouse.spec.quantities import parse_duration, parse_size
from lakehouse.spec.table.alarm_file import SECTIONS, alarm_file, text_of_alarm_file
from lakehouse.spec.yaml_section import Section, read_section

_SHIPPED = Path(__file__).with_name("rules.yaml")
_KEYS = ("measure", "above", "severity", "text", "action", "window", "least", "enabled", "ingested_only")
_SEVERITIES = tuple(severity.name.lower() for severity in Severity)
_TEXT_FIELDS = ("value", "threshold", "subject", "window", "detail", "table")
_REQUIRED = ("measure", "above", "text")


def load_rules(environ: Mapping[str, str] = os.environ) -> AlarmRules:
    """Return the shipped rules, changed by the user's file if there is one.

    Raises UserError with file and line for an invalid rule, or if the file in LAKEHOUSE_ALARMS does not exist.
    """
    shipped = parse_rules(_SHIPPED.read_text("utf-8"), source=_SHIPPED.name)
    path = alarm_file(environ)
    return shipped if path is None else parse_rules(text_of_alarm_file(path), source=str(path), base=shipped)


def parse_rules(text: str, *, source: str, base: AlarmRules | None = None) -> AlarmRules:
    """Parse rules from the YAML document `text`.

    Args:
        source: Name of the file for errors.
        base: Rules that the document changes and extends.
    """
    page = read_section(text, source=source, title="a file of alarm rules")
    page.only(SECTIONS)
    rules = {rule.name: rule for rule in (base.rules if base is not None else ())}
    section = page.section("rules", "rules")
    for name in section.lines if section is not None else ():
        assert section is not None
        given = section.section(name, f"the rule {name}")
        if given is None:
            raise section.error(f"the rule {name!r} is empty; give at least {', '.join(_REQUIRED)}.", name)
        if name not in rules and "measure" not in given.nodes:
            raise section.error(
                f"no rule {name!r}.{nearest(name, rules)} A new rule needs 'measure': one of {', '.join(MEASURES)}.",
                name,
            )
        rules[name] = _rule(name, given, rules.get(name))
    overrides = base.overrides if base is not None else ()
    return AlarmRules(rules=tuple(rules.values()), overrides=(*overrides, *_overrides(page, rules)))


def _rule(name: str, given: Section, before: AlarmRule | None) -> AlarmRule:
    given.only(_KEYS)
    measure = given.text("measure", before.measure if before is not None else "")
    if measure not in MEASURES:
        raise given.error(
            f"measure: {measure!r} is unknown.{nearest(measure, MEASURES)} Known: {', '.join(MEASURES)}.", "measure"
        )
    unit = MEASURES[measure].unit
    changes = _changes(given, measure)
    if before is not None and measure == before.measure:
        inherited = {key: getattr(before, key) for key in AlarmRule.__slots__ if key not in ("name", "measure", "unit")}
        changes = {**inherited, **changes}
    changes.setdefault("above", 0.0 if unit is Unit.FLAG else None)
    for key in _REQUIRED[1:]:
        if changes.get(key) is None:
            raise given.error(f"the rule {name!r} needs {key!r}.")
    return AlarmRule(name=name, measure=measure, unit=unit, **changes)


def _changes(given: Section, measure: str) -> dict[str, Any]:
    """Return the rule fields that a section sets; `measure` determines the unit of the limit."""
    declared = MEASURES[measure]
    readers: dict[str, Callable[[], tuple[str, Any]]] = {
        "above": lambda: ("above", _quantity(given, "above", declared.unit)),
        "severity": lambda: ("severity", Severity[given.choice("severity", _SEVERITIES, "").upper()]),
        "text": lambda: ("text", _template(given, "text", flag=declared.unit is Unit.FLAG)),
        "action": lambda: ("action", _template(given, "action", flag=True)),
        "window": lambda: ("window_s", _quantity(given, "window", Unit.DURATION)),
        "least": lambda: ("least", _quantity(given, "least", Unit.SIZE if "bytes" in declared.least else Unit.COUNT)),
        "enabled": lambda: ("enabled", given.boolean("enabled", True)),
        "ingested_only": lambda: ("ingested_only", given.boolean("ingested_only", False)),
    }
    unused = {"window": declared.uses_window, "least": bool(declared.least), "above": declared.unit is not Unit.FLAG}
    for key, used in unused.items():
        if key in given.nodes and not used:
            raise given.error(f"{key}: the measure {measure!r} has no {key!r}; remove this line.", key)
    return dict(read() for key, read in readers.items() if key in given.nodes)


def _overrides(page: Section, rules: Mapping[str, AlarmRule]) -> list[RuleOverride]:
    scopes = page.section("overrides", "overrides")
    overrides = []
    for scope in scopes.nodes if scopes is not None else ():
        assert scopes is not None
        section = scopes.section(scope, f"the overrides of {scope}")
        for name in section.nodes if section is not None else ():
            assert section is not None
            if name not in rules:
                raise section.error(f"no rule {name!r}.{nearest(name, rules)} Known: {', '.join(rules)}.", name)
            given = section.section(name, f"the override of {name}")
            assert given is not None
            given.only(tuple(key for key in _KEYS if key != "measure"))
            overrides.append(RuleOverride(scope=scope, rule=name, changes=_changes(given, rules[name].measure)))
    return overrides


def _quantity(given: Section, key: str, unit: Unit) -> float:
    text = given.text(key).strip()
    try:
        match unit:
            case Unit.DURATION:
                return float(parse_duration(key, text))
            case Unit.SIZE:
                return float(parse_size(key, text))
            case _:
                is_percentage = unit is Unit.RATIO and text.endswith("%")
                value = float(text.removesuffix("%")) / 100 if is_percentage else float(text)
    except SettingError as error:
        raise given.error(error.message, key) from error
    except ValueError:
        example = "50%" if unit is Unit.RATIO else "10"
        raise given.error(f"{key}: {text!r} is not a number, such as {example}.", key) from None
    if not 0 <= value < float("inf"):
        raise given.error(f"{key}: {text!r} is not a number of 0 or more.", key)
    return value


def _template(given: Section, key: str, *, flag: bool) -> str:
    """Return a template; unless `flag`, it must contain the value and the threshold."""
    text = given.text(key)
    try:
        names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise given.error(f"{key}: {error}; write {{{{ and }}}} for braces.", key) from None
    for name in names:
        if name not in _TEXT_FIELDS:
            raise given.error(
                f"{key}: unknown field {{{name}}}.{nearest(name, _TEXT_FIELDS)} Known: {', '.join(_TEXT_FIELDS)}.", key
            )
    missing = [name for name in ("value", "threshold") if name not in names]
    if missing and not flag:
        raise given.error(f"{key}: the text lacks {{{missing[0]}}}, which says why the rule trips.", key)
    return text
