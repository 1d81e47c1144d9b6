"""`lakehouse alarms`: table alarms, their rules and silences, and the notifiers that send them."""

from __future__ import annotations

import os

from lakehouse.cli.group import Given
from lakehouse.cli.output import rows_of, show_document, show_rows
from lakehouse.cli.specs import author
from lakehouse.cli.table import catalog_table, catalog_tables
from lakehouse.errors import UserError, nearest
from lakehouse.model.display import time_text
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.alarms.rules import AlarmRule, Unit, names_of
from lakehouse.platform.catalog.alarms import Alarm, AlarmState, Route
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.silences import Silence
from lakehouse.platform.services.metrics import metrics
from lakehouse.platform.services.table_gauges import watch_tables
from lakehouse.spec.contracts.alarms import (
    AlarmCheck,
    AlarmClaimEnded,
    AlarmEntry,
    AlarmEvent,
    AlarmList,
    AlarmRuleEntry,
    AlarmRuleList,
    SilenceEnded,
    SilenceEntry,
    SilenceList,
)
from lakehouse.spec.contracts.document import mirror
from lakehouse.spec.contracts.fleet import Severity
from lakehouse.spec.quantities import parse_duration
from lakehouse.spec.table.alarm_file import alarm_file

_LISTED = ("severity", "table", "rule", "text", "action", "raised")


def list_alarms(given: Given) -> None:
    """Print the open alarms; with `--all` also the resolved ones."""
    name, tables = catalog_tables(given)
    with load_catalog(name) as catalog:
        alarms = catalog.alarms.find(tables=tables, state=None if given.all else AlarmState.OPEN, limit=given.limit)
    document = AlarmList(alarms=tuple(map(alarm_entry, alarms)))
    if given.output == "json":
        show_document(document, given.output)
        return
    names = (*_LISTED, *(("state", "resolved") if given.all else ()), "silenced_until")
    rows = [{"severity": e.severity.name.lower(), **{n: getattr(e, n) for n in names[1:]}} for e in document.alarms]
    show_rows([{key.replace("_", " "): value for key, value in row.items()} for row in rows])


def rules(given: Given) -> None:
    """Print the rules of a table with its overrides applied; without a table, print the rules without overrides."""
    loaded = load_rules(os.environ)
    rules_of_table = loaded.rules if given.table is None else loaded.of(catalog_table(given)[1])
    path = alarm_file(os.environ)
    document = AlarmRuleList(file="" if path is None else str(path), rules=tuple(map(_rule, rules_of_table)))
    rows = [{key: value for key, value in row.items() if key != "text"} for row in rows_of(document.rules)]
    show_document(document, given.output, rows=rows)


def silence(given: Given) -> None:
    """Silence alarms for a time."""
    if given.table is not None and given.namespace is not None:
        raise UserError("a silence takes --table or --namespace, not both; without them it applies to all tables")
    names = names_of(load_rules(os.environ).rules)
    if given.rule and given.rule not in names:
        raise UserError(f"no rule {given.rule!r}.{nearest(given.rule, names)} Known: {', '.join(names)}.")
    name, scope = (given.catalog, given.namespace or "") if given.table is None else catalog_table(given)
    with load_catalog(name) as catalog:
        if given.table is not None:
            scope = catalog.entry(scope).identifier
        elif scope and scope not in catalog.list_namespaces():
            raise UserError(f"no namespace {scope!r}.{nearest(scope, catalog.list_namespaces())}", namespace=scope)
        until_ms = catalog.clock.now_ms() + parse_duration("--for", given.duration) * 1000
        number = catalog.alarms.silence(
            rule=given.rule, scope=scope, until_ms=until_ms, reason=given.reason, author=author(os.environ)
        )
        (recorded,) = [one for one in catalog.alarms.silences() if one.id == number]
    show_document(silence_entry(recorded), given.output)


def unsilence(given: Given) -> None:
    """End a silence."""
    with load_catalog(given.catalog) as catalog:
        ended = catalog.alarms.unsilence(given.id)
    show_document(SilenceEnded(id=given.id, ended=ended), given.output)


def silences(given: Given) -> None:
    """Print the silences that have not ended."""
    with load_catalog(given.catalog) as catalog:
        document = SilenceList(silences=tuple(map(silence_entry, catalog.alarms.silences())))
    show_document(document, given.output, rows=rows_of(document.silences))


def check(given: Given) -> None:
    """Evaluate, for all tables, the rules that need no read of table storage."""
    with load_catalog(given.catalog) as catalog, metrics() as measures:
        loaded = load_rules(os.environ)
        changes = watch_tables(catalog, loaded, measures).changes
        still_open = sum(catalog.alarms.counts().values())
    result = AlarmCheck(raised=len(changes.raised), resolved=len(changes.resolved), open=still_open)
    show_document(result, given.output)


def claim(given: Given) -> None:
    """Claim the alarms that a notifier has to send, and print them."""
    lease_ms = parse_duration("--lease", given.lease) * 1000
    severity = Severity[given.severity.upper()]
    route = Route(notifier=given.notifier, severity=severity, scopes=tuple(given.scope))
    with load_catalog(given.catalog) as catalog:
        claimed = catalog.alarms.claim(route, given.owner, lease_ms)
    document = AlarmList(alarms=tuple(map(alarm_entry, claimed.alarms)), message=claimed.id, attempt=claimed.attempt)
    show_document(document, given.output, rows=rows_of(document.alarms))


def settle(given: Given) -> None:
    """Record whether a notifier sent the alarms that it claimed."""
    with load_catalog(given.catalog) as catalog:
        end = catalog.alarms.release if given.failed else catalog.alarms.confirm
        number = end(given.notifier, given.owner)
    show_document(AlarmClaimEnded(notifier=given.notifier, alarms=number, sent=not given.failed), given.output)


def alarm_entry(alarm: Alarm) -> AlarmEntry:
    """Convert an alarm to its contract."""
    return mirror(
        AlarmEntry,
        alarm,
        state=AlarmEvent(alarm.state.value),
        raised=_time(alarm.raised_ms),
        resolved=_time(alarm.resolved_ms),
        silenced_until=_time(alarm.silenced_until_ms),
    )


def _rule(rule: AlarmRule) -> AlarmRuleEntry:
    return AlarmRuleEntry(
        rule=rule.name,
        severity=rule.severity.name.lower(),
        measure=rule.measure,
        above=rule.unit.text(rule.above),
        window=Unit.DURATION.text(rule.window_s),
        enabled=rule.enabled,
        text=rule.text,
        action=rule.action,
    )


def silence_entry(silence: Silence) -> SilenceEntry:
    """Convert a silence to its contract."""
    return mirror(SilenceEntry, silence, until=_time(silence.until_ms))


def _time(ms: int | None) -> str:
    return "" if ms is None else time_text(ms, "%Y-%m-%dT%H:%M:%SZ")
