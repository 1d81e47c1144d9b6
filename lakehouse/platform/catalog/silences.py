"""Silences of a catalog: times during which alarms are shown but not sent."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.model.display import Readable
from lakehouse.platform.catalog.models import SilenceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence(Readable):
    """A time during which alarms of a rule (empty: all) and a scope (a namespace, a table, empty: all) are not sent."""

    id: int
    rule: str
    scope: str
    until_ms: int
    reason: str
    author: str
    created_ms: int

    def covers(self, rule: str, table: str) -> bool:
        """Return whether the silence covers a rule and a table, `namespace.table`."""
        return self.rule in ("", rule) and self.scope in ("", table, table.partition(".")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSilence:
    """A silence to record: its rule and scope (empty: all), its end, its reason and its author."""

    rule: str = ""
    scope: str = ""
    until_ms: int
    reason: str
    author: str


def add_silence(session: Session, new: NewSilence, now_ms: int) -> int:
    """Record a silence, and return its id; raise UserError if its time has passed or its reason is empty."""
    if new.until_ms <= now_ms:
        raise UserError(f"a silence until {new.until_ms} ends before it begins ({now_ms}); name a later time")
    if not new.reason.strip():
        raise UserError("a silence needs a reason, so that others know why no alarm is sent; add one")
    row = SilenceRow(
        rule=new.rule,
        scope=new.scope,
        until_ms=new.until_ms,
        reason=new.reason.strip(),
        author=new.author,
        created_ms=now_ms,
    )
    session.add(row)
    session.flush()
    return row.id


def active_silences(session: Session, now_ms: int) -> tuple[Silence, ...]:
    """Return the silences that have not ended, sorted by end."""
    query = select(SilenceRow).where(SilenceRow.until_ms > now_ms).order_by(SilenceRow.until_ms, SilenceRow.id)
    return tuple(map(_silence, session.scalars(query)))


def end_silence(session: Session, number: int, now_ms: int) -> bool:
    """End a silence now; return whether it was active."""
    row = session.get(SilenceRow, number)
    if row is None or row.until_ms <= now_ms:
        return False
    row.until_ms = now_ms
    return True


def _silence(row: SilenceRow) -> Silence:
    return Silence(
        id=row.id,
        rule=row.rule,
        scope=row.scope,
        until_ms=row.until_ms,
        reason=row.reason,
        author=row.author,
        created_ms=row.created_ms,
    )
