"""Table states for the scheduler, pages and alarms: numbers, due services, problems, and the hourly history.

    mark_changed   a run, a request, a policy, a spec or an event changed a table
    to_look        the tables that a pass of the scheduler examines
    record         the states that the pass has seen; a change after the start of the examination stays marked

The number of queries per method does not depend on the number of tables.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, delete, func, or_, select, true, update

from lakehouse.core.system.clock import Clock
from lakehouse.errors import UserError, nearest
from lakehouse.model.display import Readable
from lakehouse.model.texts import error_text
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import TablePointRow, TableRow, TableStateRow
from lakehouse.platform.catalog.state_rows import (
    batches,
    first_change,
    locked_tables,
    mark_changed,
    number_of,
    state_of,
    state_row,
    write_points,
    write_states,
)
from lakehouse.spec.contracts.document import decode, encode
from lakehouse.spec.contracts.fleet import DueService, Problem, TableNumbers, TableState

logger = logging.getLogger(__name__)
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
#: Time for which the hourly numbers are kept.
KEPT_MS = 35 * _DAY_MS
_NUMBERS = tuple(TableNumbers.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLimits:
    """Numbers of tables that one pass examines.

    Attributes:
        changed: Tables that changed, are scheduled, or were never examined; earliest changes first.
        rotation: Further tables, which were not examined for `rotation_ms`. A writer outside of the platform marks no
            change.
        rotation_ms: Time after which a table without changes is examined again.
        measured: Tables per pass whose metadata table is listed to measure it; each table once per `rotation_ms`.
    """

    changed: int = 1000
    rotation: int = 20
    rotation_ms: int = _DAY_MS
    measured: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilter:
    """Conditions of tables to list: a namespace, a part of the full name, the minimum severity, with due services."""

    namespace: str = ""
    text: str = ""
    severity: int = 0
    due: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePage:
    """One page in a list of tables: the order and the position.

    Attributes:
        sort: `severity` (worst first), `table`, `due` (by number of due services, descending), `looked` (latest
            examination first), or a field of TableNumbers (descending, unknown last). A minus sign before it reverses
            the order.
        offset: Number of tables before the page.
        limit: Maximum number of tables on the page.
    """

    sort: str = "severity"
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTable(Readable):
    """A table of the catalog with its state; `state` is None if the scheduler never examined the table."""

    id: int
    namespace: str
    name: str
    location: str
    state: TableState | None

    @property
    def identifier(self) -> str:
        """Return the full name, `namespace.table`."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTables(Readable):
    """One page of tables, and the number of tables on all pages."""

    total: int
    tables: tuple[FleetTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePoint(Readable):
    """The numbers of a table in the hour that begins at `hour_ms` (UTC milliseconds)."""

    hour_ms: int
    numbers: TableNumbers


class TableStates:
    """The states of the tables in one catalog."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    def mark_changed(self, table_ids: Collection[int]) -> None:
        """Mark tables, so that the next pass of the scheduler examines them; tables that were dropped are ignored."""
        with self._database.session() as session:
            mark_changed(session, table_ids, self._clock.now_ms())

    def to_look(self, now_ms: int, limits: LookLimits | None = None) -> dict[int, int]:
        """Return the tables that a pass examines, with the marks of their changes, which `record` needs."""
        limits, state = limits or LookLimits(), TableStateRow
        query = select(TableRow.id, func.coalesce(state.changed_ms, 0)).outerjoin(state, state.table_id == TableRow.id)
        never = state.table_id.is_(None) | (state.looked_ms == 0)
        changed = never | (state.changed_ms != 0) | func.coalesce(state.look_at_ms <= now_ms, False)
        old = (state.changed_ms == 0) & state.looked_ms.between(1, now_ms - limits.rotation_ms)
        not_timed = or_(state.look_at_ms.is_(None), state.look_at_ms > now_ms)
        with self._database.session() as session:
            first = query.where(changed).order_by(first_change(), TableRow.id).limit(limits.changed)
            rest = query.where(old & not_timed).order_by(state.looked_ms, TableRow.id).limit(limits.rotation)
            chosen = [*session.execute(first), *session.execute(rest)]
        return {int(table): int(mark) for table, mark in chosen}

    def marks(self, table_ids: Collection[int]) -> dict[int, int]:
        """Return the change marks of some tables, 0 for a table without a change."""
        counts = dict.fromkeys(table_ids, 0)
        query = select(TableStateRow.table_id, TableStateRow.changed_ms)
        with self._database.session() as session:
            for some in batches(table_ids):
                counts.update(
                    (table, mark) for table, mark in session.execute(query.where(TableStateRow.table_id.in_(some)))
                )
        return counts

    def record(self, states: Mapping[int, TableState], seen: Mapping[int, int] | None = None) -> None:
        """Store the states of tables, and their numbers for the current hour; dropped tables are ignored.

        Args:
            states: The states by table id. A state with an error keeps the numbers that were stored before.
            seen: Change marks from before the examination, by table id. A later change stays marked.
        """
        now, seen = self._clock.now_ms(), seen or {}
        with self._database.session() as session:
            rows = [state_row(table, states[table], seen.get(table, 0)) for table in locked_tables(session, states)]
            write_states(session, rows)
            write_points(session, rows, now - now % _HOUR_MS)
            session.execute(delete(TablePointRow).where(TablePointRow.hour_ms < now - KEPT_MS))

    def record_due(self, due: Mapping[int, Mapping[str, DueService]]) -> None:
        """Store the due services of tables that were not examined."""
        table: Any = TableStateRow.__table__
        mine = update(table).where(table.c.table_id == bindparam("id"))
        change = mine.values(due=bindparam("services"), due_services=bindparam("number"))
        rows = [
            {"id": one, "services": encode(dict(services)), "number": len(services)} for one, services in due.items()
        ]
        if rows:
            with self._database.session() as session:
                session.connection().execute(change, rows)

    def record_problems(self, problems: Mapping[int, Sequence[Problem]]) -> None:
        """Store the problems of tables that were not examined; tables without a state are ignored."""
        table: Any = TableStateRow.__table__
        change = update(table).where(table.c.table_id == bindparam("id"))
        change = change.values(problems=bindparam("found"), severity=bindparam("worst"))
        rows = [
            {
                "id": one,
                "found": encode(tuple(table_problems)),
                "worst": max((int(p.severity) for p in table_problems), default=0),
            }
            for one, table_problems in problems.items()
        ]
        if rows:
            with self._database.session() as session:
                session.connection().execute(change, rows)

    def due(self) -> dict[int, TableState]:
        """Return the states of all tables with due services, by table id."""
        return self._states([TableStateRow.due_services > 0])

    def of(self, table_ids: Collection[int]) -> dict[int, TableState]:
        """Return the states of some tables by table id; a table that was never examined may be missing."""
        return self._states([TableStateRow.table_id.in_(some) for some in batches(table_ids)])

    def names(self, ids: Collection[int]) -> dict[int, str]:
        """Return the full names of tables by their ids, without their specs; a table that was dropped is missing."""
        query = select(TableRow.id, TableRow.namespace, TableRow.name)
        with self._database.session() as session:
            rows = [row for some in batches(ids) for row in session.execute(query.where(TableRow.id.in_(some)))]
        return {table: f"{namespace}.{name}" for table, namespace, name in rows}

    def ids(self, names: Collection[str]) -> dict[str, int]:
        """Return the ids of tables by their full names; a name that is not registered is missing."""
        full = TableRow.namespace + "." + TableRow.name
        with self._database.session() as session:
            queries = [select(full, TableRow.id).where(full.in_(some)) for some in batches(names)]
            sampled = [row for query in queries for row in session.execute(query)]
        return {str(name): int(table) for name, table in sampled}

    def states(self, wanted: StateFilter | None = None, page: StatePage | None = None) -> FleetTables:
        """Return one page of the tables in the catalog, with their states.

        Raises UserError for an unknown order.
        """
        page, condition = page or StatePage(), _condition(wanted or StateFilter())
        joined = TableStateRow.table_id == TableRow.id
        query = select(TableRow, TableStateRow).outerjoin(TableStateRow, joined).where(condition)
        number = select(func.count(TableRow.id)).outerjoin(TableStateRow, joined).where(condition)
        with self._database.session() as session:
            total = session.scalar(number) or 0
            rows = session.execute(_ordered(query, page.sort).offset(page.offset).limit(page.limit))
            return FleetTables(total=total, tables=tuple(_fleet_table(table, state) for table, state in rows))

    def points(self, table_ids: Collection[int], since_ms: int) -> dict[int, tuple[TablePoint, ...]]:
        """Return the hourly numbers of some tables since a time, by table id, oldest first."""
        points_of: dict[int, list[TablePoint]] = {table: [] for table in table_ids}
        query = select(TablePointRow).where(TablePointRow.hour_ms >= since_ms).order_by(TablePointRow.hour_ms)
        with self._database.session() as session:
            for some in batches(table_ids):
                for row in session.scalars(query.where(TablePointRow.table_id.in_(some))):
                    numbers = decode(TableNumbers, row.numbers)
                    points_of[row.table_id].append(TablePoint(hour_ms=row.hour_ms, numbers=numbers))
        return {table: tuple(points) for table, points in points_of.items()}

    def _states(self, conditions: list[ColumnElement[bool]]) -> dict[int, TableState]:
        states: dict[int, TableState] = {}
        with self._database.session() as session:
            for condition in conditions:
                rows = session.scalars(select(TableStateRow).where(condition).order_by(TableStateRow.table_id))
                states.update((row.table_id, _readable_state(row)) for row in rows)
        return states


def _readable_state(row: TableStateRow) -> TableState:
    """Return the state of a row.

    Services that another version stored are left out, so that other tables can be read.
    """
    try:
        return state_of(row)
    except UserError as error:
        logger.warning("the stored state of table %s is ignored until its next examination: %s", row.table_id, error)
        return TableState(error=error_text(error), looked_ms=row.looked_ms, changed_ms=row.changed_ms)


def _condition(wanted: StateFilter) -> ColumnElement[bool]:
    name = TableRow.namespace + "." + TableRow.name
    parts = {
        "namespace": TableRow.namespace == wanted.namespace,
        "text": func.lower(name).contains(wanted.text.lower(), autoescape=True),
        "severity": TableStateRow.severity >= wanted.severity,
        "due": TableStateRow.due_services > 0,
    }
    return and_(true(), *(condition for part, condition in parts.items() if getattr(wanted, part)))


def _ordered(query: Select[TableRow, TableStateRow], sort: str) -> Select[TableRow, TableStateRow]:
    name, reverse = sort.removeprefix("-"), sort.startswith("-")
    by_table = (TableRow.namespace, TableRow.name, TableRow.id)
    if name == "table":
        return query.order_by(*(column.desc() if reverse else column for column in by_table))
    columns: dict[str, ColumnElement[Any]] = {
        "severity": func.coalesce(TableStateRow.severity, 0),
        "due": func.coalesce(TableStateRow.due_services, 0),
        "looked": func.coalesce(TableStateRow.looked_ms, 0),
    }
    if name not in columns and name not in _NUMBERS:
        fields_of_row = ("table", *columns, *_NUMBERS)
        raise UserError(
            f"tables cannot be sorted by {name!r}.{nearest(name, fields_of_row)} Known: {', '.join(fields_of_row)}."
        )
    column = columns[name] if name in columns else number_of(name)
    return query.order_by((column.asc() if reverse else column.desc()).nulls_last(), *by_table)


def _fleet_table(table: TableRow, state: TableStateRow | None) -> FleetTable:
    stored = None if state is None or not state.looked_ms else state_of(state)
    return FleetTable(id=table.id, namespace=table.namespace, name=table.name, location=table.location, state=stored)
