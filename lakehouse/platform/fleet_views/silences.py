"""Silences that users request on the page Alarms: checked, previewed and written, with few queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError, nearest
from lakehouse.model.display import count_text
from lakehouse.platform.catalog.models import AlarmRow, NamespaceRow, TableRow
from lakehouse.platform.catalog.silences import NewSilence, Silence, active_silences, add_silence, end_silence
from lakehouse.platform.fleet_views.fleet import full_name_column
from lakehouse.platform.fleet_views.names import UnknownTableError
from lakehouse.spec.quantities import duration_text, parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceChange:
    """A silence to record or to end: the scope of its action, and sentences about its effects."""

    scope: str
    effects: tuple[str, ...]
    new: NewSilence | None = None
    ended: int = 0


def silence_change(
    session: Session, action: str, parameters: Mapping[str, Any], author: str, now_ms: int
) -> SilenceChange:
    """Return the change that an action on silences requests.

    Raises UserError for an invalid duration, an unknown namespace or a silence that is not active, and
    UnknownTableError for an unknown table.
    """
    if action == "end_silence":
        return _ending(session, parameters, now_ms)
    rule, scope = str(parameters.get("rule") or ""), str(parameters.get("scope") or "")
    seconds = parse_duration("duration", str(parameters["duration"]))
    _check_scope(session, scope)
    new = NewSilence(
        rule=rule, scope=scope, until_ms=now_ms + seconds * 1000, reason=str(parameters["reason"]), author=author
    )
    covered = _open_alarms(session, rule, scope)
    effects = (
        f"Alarms of {rule or 'all rules'} of {scope or 'all tables'} are shown, but not sent, for "
        f"{duration_text(seconds)}.",
        f"{count_text(covered, 'open alarm')} {'is' if covered == 1 else 'are'} covered.",
    )
    return SilenceChange(scope=scope, effects=effects, new=new)


def apply_silence(session: Session, change: SilenceChange, now_ms: int) -> Mapping[str, Any]:
    """Write the change of a silence, and return the result of its action."""
    if change.new is not None:
        return {"silence": add_silence(session, change.new, now_ms), "until_ms": change.new.until_ms}
    return {"silence": change.ended, "ended": end_silence(session, change.ended, now_ms)}


def _ending(session: Session, parameters: Mapping[str, Any], now_ms: int) -> SilenceChange:
    text, active = str(parameters["silence"]), active_silences(session, now_ms)
    matches = [silence for silence in active if str(silence.id) == text]
    if not matches:
        numbers = ", ".join(str(silence.id) for silence in active) or "none"
        raise UserError(f"no silence {text!r} is in force; in force: {numbers}", silence=text)
    (silence,) = matches
    effects = (
        f"Alarms of {silence.rule or 'all rules'} of {silence.scope or 'all tables'} are sent again.",
        f"The silence is by {silence.author}: {silence.reason}",
        *_unsent(session, silence),
    )
    return SilenceChange(scope=silence.scope, effects=effects, ended=silence.id)


def _unsent(session: Session, silence: Silence) -> tuple[str, ...]:
    covered = _open_alarms(session, silence.rule, silence.scope)
    return (f"{count_text(covered, 'open alarm')} can be sent now.",) if covered else ()


def _open_alarms(session: Session, rule: str, scope: str) -> int:
    """Return the number of open alarms for a rule and a scope; an empty string matches all."""
    query = select(func.count()).select_from(AlarmRow).where(AlarmRow.resolved_ms.is_(None))
    if rule:
        query = query.where(AlarmRow.rule == rule)
    if scope:
        query = query.join(TableRow, TableRow.id == AlarmRow.table_id)
        query = query.where((TableRow.namespace == scope) | (full_name_column() == scope))
    return session.scalar(query) or 0


def _check_scope(session: Session, scope: str) -> None:
    """Raise UserError unless a scope is a namespace or a table of the catalog, or empty."""
    if not scope or session.get(NamespaceRow, scope) is not None:
        return
    if session.scalar(select(TableRow.id).where(full_name_column() == scope)) is not None:
        return
    scopes = [*session.scalars(select(NamespaceRow.name)), *session.scalars(select(full_name_column()))]
    raise UnknownTableError(
        f"no table and no namespace {scope!r} in this catalog.{nearest(scope, scopes)}", table=scope
    )
