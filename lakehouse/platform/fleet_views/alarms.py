"""The page Alarms: open or resolved alarms, and the active silences; three queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import AlarmRow, SilenceRow, TableRow
from lakehouse.platform.fleet_views.fleet import full_name_column
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.spec.contracts.document import mirror
from lakehouse.spec.contracts.pages import AlarmLine, AlarmsPage, SilenceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmQuery:
    """Filter and page: open or resolved alarms, and a part of the table's name or the rule."""

    resolved: bool = False
    search: str = ""
    paging: Paging = field(default_factory=Paging)


def alarms_page(session: Session, query: AlarmQuery, now_ms: int) -> AlarmsPage:
    """Return one page of alarms: open ones in order of severity, resolved ones newest first."""
    name = func.coalesce(full_name_column(), "")
    statement = select(AlarmRow, name).outerjoin(TableRow, TableRow.id == AlarmRow.table_id)
    statement = statement.where(AlarmRow.resolved_ms.is_not(None) if query.resolved else AlarmRow.resolved_ms.is_(None))
    if query.search:
        statement = statement.where(
            func.lower(name + " " + AlarmRow.rule).contains(query.search.lower(), autoescape=True)
        )
    total = session.scalar(select(func.count()).select_from(statement.with_only_columns(AlarmRow.id).subquery()))
    order = (AlarmRow.resolved_ms.desc(),) if query.resolved else (AlarmRow.severity.desc(), AlarmRow.raised_ms.desc())
    page = statement.order_by(*order, AlarmRow.id).offset(query.paging.offset).limit(query.paging.limit)
    silences = [silence_line(row) for row in session.scalars(select(SilenceRow).where(SilenceRow.until_ms > now_ms))]
    return AlarmsPage(
        now_ms=now_ms,
        total=total or 0,
        offset=query.paging.offset,
        alarms=tuple(_line(row, table, silences) for row, table in session.execute(page)),
        silences=tuple(silences),
    )


def silence_line(row: SilenceRow) -> SilenceLine:
    """Return a silence."""
    return mirror(SilenceLine, row)


def _line(row: AlarmRow, table: str, silences: Sequence[SilenceLine]) -> AlarmLine:
    return mirror(
        AlarmLine,
        row,
        table=table,
        notified=dict(row.notified or {}),
        silenced=any(_covers(silence, row.rule, table) for silence in silences),
    )


def _covers(silence: SilenceLine, rule: str, table: str) -> bool:
    scopes = ("", table, table.partition(".")[0])
    return silence.rule in ("", rule) and silence.scope in scopes
