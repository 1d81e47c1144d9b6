"""Alarms and silences of a catalog.

    problem of a rule ──► open alarm ──► resolved          one open alarm per rule, table and subject
                              │
                              └──► sent once to each notifier; again when it is resolved

A sender claims alarms, sends them in one message, and confirms. Two senders never hold the same alarm at a time. If a
sender ends before it confirms, another one repeats its message after the lease, once (see `alarm_claims`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from lakehouse.core.system.clock import Clock
from lakehouse.model.display import Readable
from lakehouse.platform.catalog.alarm_claims import (
    MOST_ATTEMPTS,
    RAISED,
    RESOLVED,
    Claim,
    after_release,
    claim_of,
    is_given_up,
    message_id,
    repeated,
    unsent_event,
    without_claim,
)
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import AlarmRow, SilenceRow, SpecRow, TableRow
from lakehouse.platform.catalog.silences import NewSilence, Silence, active_silences, add_silence, end_silence
from lakehouse.spec.contracts.fleet import Problem, Severity
from lakehouse.spec.secrets import redact_text

logger = logging.getLogger(__name__)

#: Maximum number of values in one statement; databases accept some ten thousands.
_BATCH = 5000
_DAY_MS = 86_400_000
#: Maximum age of a resolution that is still sent.
_SENT_RESOLVED_MS = 7 * _DAY_MS
_KEPT_MS = 90 * _DAY_MS
_Key = tuple[int, str, str]


class AlarmState(StrEnum):
    """State of an alarm."""

    #: The rule is violated.
    OPEN = "open"
    #: The rule is no longer violated.
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The problems of one table. `rules` are the evaluated rules; None means all rules, including removed ones."""

    problems: Sequence[Problem] = ()
    rules: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm(Readable):
    """An alarm of a table. Times are UTC milliseconds.

    `subject` is the measured part of the table, such as a service. `silenced_until_ms` is the end of the silence that
    covers the alarm, or None if no silence does. `sent` contains the times of messages by notifier.
    """

    id: int
    rule: str
    table_id: int
    table: str
    subject: str
    severity: Severity
    state: AlarmState
    value: float | None
    threshold: float | None
    text: str
    action: str
    raised_ms: int
    seen_ms: int
    resolved_ms: int | None = None
    silenced_until_ms: int | None = None
    sent: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmChanges:
    """The ids of the alarms that one evaluation raised and resolved."""

    raised: tuple[int, ...] = ()
    resolved: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTable:
    """A table in the catalog: its full name, and whether its spec declares an ingestion."""

    identifier: str
    is_ingested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The alarms that a notifier sends: at least of this severity, and of some namespaces or tables (empty: of all)."""

    notifier: str
    severity: Severity = Severity.INFO
    scopes: tuple[str, ...] = ()

    def takes(self, alarm: Alarm) -> bool:
        """Return whether the notifier sends an alarm. Silenced alarms are not sent."""
        in_scope = not self.scopes or bool({alarm.table, alarm.table.partition(".")[0]} & set(self.scopes))
        return in_scope and alarm.severity >= self.severity and alarm.silenced_until_ms is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedMessage:
    """A message that a sender claimed; without alarms there is nothing to send.

    Attributes:
        id: The id, which is the same in each attempt to send the message.
        attempt: 2 if the sender of the first attempt ended, so that the notifier may already have the message.
        alarms: The alarms at the time of the first claim.
    """

    id: str
    attempt: int = 1
    alarms: tuple[Alarm, ...] = ()


#: The state of an alarm in a repeated message. If the alarm is resolved later, another message reports that.
_AS_OF: Mapping[str, dict[str, Any]] = MappingProxyType(
    {RAISED: {"state": AlarmState.OPEN, "resolved_ms": None}, RESOLVED: {"state": AlarmState.RESOLVED}}
)


class Alarms:
    """The alarms and silences of one catalog."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    def record(self, evaluated: Mapping[int, Evaluated]) -> AlarmChanges:
        """Raise, refresh and resolve the alarms of tables after an evaluation, by table id, in one transaction.

        Schedulers that evaluate the same tables at the same time raise one alarm. Tables that have been dropped since
        are ignored. The number of queries does not depend on the number of tables, except for batches of some
        thousands.
        """
        now = self._clock.now_ms()
        with self._database.session() as session:
            locked_tables = _locked(session, sorted(evaluated))
            before = {_key(row): row for row in _open_rows(session, locked_tables)}
            wanted = {
                (table, problem.rule, problem.subject): problem
                for table, evaluation in evaluated.items()
                if table in locked_tables
                for problem in evaluation.problems
            }
            ended = [row.id for key, row in before.items() if key not in wanted and _was_evaluated(row, evaluated)]
            _refresh(session, before, wanted, now)
            _resolve(session, ended, now)
            new = [_row(key, problem, now) for key, problem in wanted.items() if key not in before]
            raised = list(session.scalars(insert(AlarmRow).returning(AlarmRow.id), new)) if new else []
        return AlarmChanges(raised=tuple(raised), resolved=tuple(ended))

    def find(
        self, *, tables: Collection[str] = (), state: AlarmState | None = AlarmState.OPEN, limit: int = 1000
    ) -> tuple[Alarm, ...]:
        """Return alarms, sorted by severity and then newest first.

        Args:
            tables: Only alarms of these tables, `namespace.table`; empty: all tables.
            state: Only alarms in this state; None: both states.
            limit: Maximum number of alarms.
        """
        name = TableRow.namespace + "." + TableRow.name
        query = select(AlarmRow, name).join(TableRow, TableRow.id == AlarmRow.table_id)
        if state is not None:
            query = query.where(AlarmRow.state == state)
        if tables:
            query = query.where(name.in_(sorted(tables)))
        query = query.order_by(AlarmRow.severity.desc(), AlarmRow.raised_ms.desc(), AlarmRow.id.desc()).limit(limit)
        with self._database.session() as session:
            silences = active_silences(session, self._clock.now_ms())
            return tuple(_alarm(row, table, silences) for row, table in session.execute(query))

    def tables(self) -> dict[int, WatchedTable]:
        """Return all tables in the catalog by id, without their specs."""
        spec = (SpecRow.table_id == TableRow.id) & (SpecRow.version == TableRow.spec_version)
        query = select(TableRow.id, TableRow.namespace, TableRow.name, SpecRow.document).join(SpecRow, spec)
        with self._database.session() as session:
            return {
                table: WatchedTable(identifier=f"{namespace}.{name}", is_ingested="ingest" in document)
                for table, namespace, name, document in session.execute(query)
            }

    def silence(self, *, rule: str = "", scope: str = "", until_ms: int, reason: str, author: str) -> int:
        """Silence the alarms of a rule and a scope until a time, and return the id of the silence.

        Raises UserError if the time has passed or the reason is empty.
        """
        new = NewSilence(rule=rule, scope=scope, until_ms=until_ms, reason=reason, author=author)
        with self._database.session() as session:
            return add_silence(session, new, self._clock.now_ms())

    def silences(self) -> tuple[Silence, ...]:
        """Return the silences that have not ended, sorted by end."""
        with self._database.session() as session:
            return active_silences(session, self._clock.now_ms())

    def unsilence(self, silence_id: int) -> bool:
        """End a silence now; return whether it was active."""
        with self._database.session() as session:
            return end_silence(session, silence_id, self._clock.now_ms())

    def claim(self, route: Route, owner: str, lease_ms: int) -> ClaimedMessage:
        """Claim the next message of a notifier: new alarms, and the resolution of alarms that it had sent.

        The owner sends it and calls `confirm`, or `release` if it sent nothing. Until one of them, or until the lease
        ends, no one can claim these alarms. A message whose sender ended is claimed again separately, once. A silenced
        alarm is not claimed until its silence ends.
        """
        now = self._clock.now_ms()
        with self._database.session() as session:
            silences, rows = active_silences(session, now), _sendable(session, now)
            self._give_up(rows, route.notifier, now)
            claims = [claim_of(row.notified.get(route.notifier, {})) for row, _ in rows]
            message, attempt = repeated(claims, now), MOST_ATTEMPTS
            alarms = list[tuple[AlarmRow, Alarm, str]]()
            for (row, table), claim in zip(rows, claims, strict=True):
                alarm, entry = _alarm(row, table, silences), row.notified.get(route.notifier, {})
                if message is not None and claim is not None:
                    if claim.message == message and claim.until_ms <= now:
                        alarms.append((row, replace(alarm, **_AS_OF[claim.event]), claim.event))
                elif message is None and claim is None:
                    event = unsent_event(entry, is_open=row.state == AlarmState.OPEN)
                    if event is not None and route.takes(alarm):
                        alarms.append((row, alarm, event))
            if message is None:
                message, attempt = message_id(route.notifier, [(row.id, event) for row, _, event in alarms]), 1
            for row, _, event in alarms:
                claim = Claim(owner=owner, until_ms=now + lease_ms, event=event, attempt=attempt, message=message)
                entry = without_claim(row.notified.get(route.notifier, {}))
                row.notified = {**row.notified, route.notifier: {**entry, **claim.stored()}}
        return ClaimedMessage(id=message, attempt=attempt, alarms=tuple(alarm for _, alarm, _ in alarms))

    def confirm(self, notifier: str, owner: str) -> int:
        """Record that a notifier sent the alarms that an owner claimed, and return their number.

        A claim that another owner took over is not changed.
        """
        return self._end_claims(notifier, owner, sent=True)

    def release(self, notifier: str, owner: str) -> int:
        """End the claims of an owner without sending, so that the next sender sends the alarms; return their number."""
        return self._end_claims(notifier, owner, sent=False)

    def prune(self) -> int:
        """Delete alarms resolved and silences ended more than 90 days ago; return the number of alarms."""
        old = self._clock.now_ms() - _KEPT_MS
        with self._database.session() as session:
            session.execute(delete(SilenceRow).where(SilenceRow.until_ms < old))
            gone = session.execute(
                delete(AlarmRow).where(AlarmRow.state == AlarmState.RESOLVED, AlarmRow.resolved_ms < old)
            )
            return int(gone.rowcount)  # type: ignore[attr-defined]

    def counts(self) -> dict[tuple[str, Severity], int]:
        """Return the number of open alarms by rule and severity."""
        query = select(AlarmRow.rule, AlarmRow.severity, func.count()).where(AlarmRow.state == AlarmState.OPEN)
        with self._database.session() as session:
            rows = session.execute(query.group_by(AlarmRow.rule, AlarmRow.severity))
            return {(rule, Severity(severity)): count for rule, severity, count in rows}

    def _give_up(self, rows: Sequence[tuple[AlarmRow, str]], notifier: str, now: int) -> None:
        """Record messages as sent if two senders ended before they recorded the outcome."""
        for row, table in rows:
            entry = row.notified.get(notifier, {})
            claim = claim_of(entry)
            if claim is None or not is_given_up(claim, now):
                continue
            logger.warning(
                "the notifier %s may not have received that the alarm %s of %s was %s: two senders ended before they "
                "recorded it",
                notifier,
                row.rule,
                table,
                claim.event,
            )
            row.notified = {**row.notified, notifier: {**without_claim(entry), claim.event: now}}

    def _end_claims(self, notifier: str, owner: str, *, sent: bool) -> int:
        """Remove the claims of an owner; if the alarms were sent, record the time by the event."""
        now, ended = self._clock.now_ms(), 0
        with self._database.session() as session:
            for row, _ in _sendable(session, now):
                entry = row.notified.get(notifier, {})
                claim = claim_of(entry)
                if claim is not None and claim.owner == owner:
                    outcome = {claim.event: now} if sent else after_release(claim, now)
                    row.notified = {**row.notified, notifier: {**without_claim(entry), **outcome}}
                    ended += 1
        return ended


def _locked(session: Session, tables: Sequence[int]) -> set[int]:
    """Lock tables against another evaluation and a drop, in a fixed order; return the ids of existing tables."""
    ids = set[int]()
    for batch in _batches(tables):
        query = select(TableRow.id).where(TableRow.id.in_(batch)).order_by(TableRow.id)
        ids.update(session.scalars(query.with_for_update(key_share=True)))
    return ids


def _open_rows(session: Session, tables: Collection[int]) -> Iterator[AlarmRow]:
    for batch in _batches(sorted(tables)):
        query = select(AlarmRow).where(AlarmRow.state == AlarmState.OPEN, AlarmRow.table_id.in_(batch))
        yield from session.scalars(query)


def _refresh(session: Session, before: Mapping[_Key, AlarmRow], wanted: Mapping[_Key, Problem], now: int) -> None:
    """Update alarms whose problems persist: the time, and changed values and messages."""
    persisting = {key: row for key, row in before.items() if key in wanted}
    for batch in _batches([row.id for row in persisting.values()]):
        session.execute(update(AlarmRow).where(AlarmRow.id.in_(batch)).values(seen_ms=now))
    changed = [
        {"id": row.id, **_values(wanted[key])}
        for key, row in persisting.items()
        if any(getattr(row, name) != value for name, value in _values(wanted[key]).items())
    ]
    if changed:
        session.execute(update(AlarmRow), changed)


def _resolve(session: Session, ids: Sequence[int], now: int) -> None:
    for batch in _batches(ids):
        changes = {"state": AlarmState.RESOLVED, "resolved_ms": now}
        session.execute(update(AlarmRow).where(AlarmRow.id.in_(batch)).values(changes))


def _was_evaluated(row: AlarmRow, evaluated: Mapping[int, Evaluated]) -> bool:
    assert row.table_id is not None
    rules = evaluated[row.table_id].rules
    return rules is None or row.rule in rules


def _values(problem: Problem) -> dict[str, Any]:
    return {
        "severity": int(problem.severity),
        "value": problem.value,
        "threshold": problem.threshold,
        "text": redact_text(problem.text),
        "action": problem.action,
    }


def _row(key: _Key, problem: Problem, now: int) -> dict[str, Any]:
    table, rule, subject = key
    times = {"raised_ms": now, "seen_ms": now, "resolved_ms": None}
    fixed = {"table_id": table, "rule": rule, "subject": subject, "state": AlarmState.OPEN, "notified": {}}
    return {**fixed, **times, **_values(problem)}


def _key(row: AlarmRow) -> _Key:
    assert row.table_id is not None
    return row.table_id, row.rule, row.subject


def _sendable(session: Session, now: int) -> list[tuple[AlarmRow, str]]:
    """Lock and return the open and recently resolved alarms with their table names."""
    name = TableRow.namespace + "." + TableRow.name
    sendable = (AlarmRow.state == AlarmState.OPEN) | (AlarmRow.resolved_ms >= now - _SENT_RESOLVED_MS)
    query = select(AlarmRow, name).join(TableRow, TableRow.id == AlarmRow.table_id).where(sendable)
    ordered = query.order_by(AlarmRow.id).with_for_update(of=AlarmRow)
    return [(row, table) for row, table in session.execute(ordered)]


def _alarm(row: AlarmRow, table: str, silences: Sequence[Silence]) -> Alarm:
    assert row.table_id is not None
    covering = [silence.until_ms for silence in silences if silence.covers(row.rule, table)]
    return Alarm(
        id=row.id,
        rule=row.rule,
        table_id=row.table_id,
        table=table,
        subject=row.subject,
        severity=Severity(row.severity),
        state=AlarmState(row.state),
        value=row.value,
        threshold=row.threshold,
        text=row.text,
        action=row.action,
        raised_ms=row.raised_ms,
        seen_ms=row.seen_ms,
        resolved_ms=row.resolved_ms,
        silenced_until_ms=max(covering, default=None),
        sent={name: times for name, entry in row.notified.items() if (times := without_claim(entry))},
    )


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), _BATCH):
        yield ids[start : start + _BATCH]
