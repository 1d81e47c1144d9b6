"""The page Fleet: tables with their health, filtered, sorted and paged by the database.

A page takes five queries for any number of tables: the number of matches, the rows of the page, their
newest runs, their history, and the namespaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import NamespaceRow, RunRow, SpecRow, TablePointRow, TableRow, TableStateRow
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.spec.contracts.document import mirror
from lakehouse.spec.contracts.pages import FleetHealth, FleetOrder, FleetPage, FleetRow, RunSummary, TableProblem

_DAY_MS = 86_400_000
#: The history of a row: one point per six hours.
_HISTORY_MS, _STEP_MS = 7 * _DAY_MS, 6 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuery:
    """Filter, order and page of the tables. `search` is a part of a table's full name; an empty string matches all."""

    search: str = ""
    namespace: str = ""
    health: FleetHealth | None = None
    order: FleetOrder = FleetOrder.ATTENTION
    ascending: bool = False
    paging: Paging = field(default_factory=Paging)


def fleet_page(session: Session, query: FleetQuery, now_ms: int) -> FleetPage:
    """Return one page of the tables."""
    of_version = (SpecRow.table_id == TableRow.id) & (SpecRow.version == TableRow.spec_version)
    columns = select(TableRow, TableStateRow, SpecRow.author, SpecRow.document["type"].as_string())
    matching = _filtered(columns.outerjoin(TableStateRow).outerjoin(SpecRow, of_version), query)
    total = session.scalar(select(func.count()).select_from(matching.with_only_columns(TableRow.id).subquery()))
    paged = matching.order_by(*_order(query)).offset(query.paging.offset).limit(query.paging.limit)
    page_rows = session.execute(paged).all()
    ids = [table.id for table, *_ in page_rows]
    runs, history = _newest_runs(session, ids), _history(session, ids, now_ms)
    rows = tuple(
        replace(
            fleet_row(table, state),
            type=kind or "",
            author=author or "",
            last_run=runs.get(table.id),
            history=history.get(table.id, ()),
        )
        for table, state, author, kind in page_rows
    )
    namespaces = tuple(session.scalars(select(NamespaceRow.name).order_by(NamespaceRow.name)))
    return FleetPage(now_ms=now_ms, total=total or 0, offset=query.paging.offset, rows=rows, namespaces=namespaces)


def fleet_row(table: TableRow, state: TableStateRow | None) -> FleetRow:
    """Return the row of a table with the state that the scheduler recorded (None before the first examination)."""
    looked = state is not None and state.looked_ms > 0
    return FleetRow(
        table=f"{table.namespace}.{table.name}",
        location=table.location,
        health=_health(state),
        severity=state.severity if state else 0,
        problems=problems_of(state),
        error=state.error if state else None,
        looked_ms=state.looked_ms if state and looked else None,
        numbers=dict(state.numbers or {}) if state else {},
        spec_version=table.spec_version,
    )


def problems_of(state: TableStateRow | None) -> tuple[TableProblem, ...]:
    """Return the problems that rules found in a table, worst first."""
    problems = [problem_of(stored) for stored in (state.problems or ()) if isinstance(stored, Mapping)] if state else []
    return tuple(sorted(problems, key=lambda problem: -problem.severity))


def problem_of(stored: Mapping[str, Any]) -> TableProblem:
    """Return a problem from its stored form."""
    return TableProblem(
        rule=str(stored.get("rule", "")),
        severity=int(stored.get("severity", 0)),
        text=str(stored.get("text", "")),
        action=str(stored.get("action", "")),
        value=stored.get("value"),
        threshold=stored.get("threshold"),
    )


def full_name_column() -> ColumnElement[str]:
    """Return the SQL expression of a table's full name."""
    return TableRow.namespace + "." + TableRow.name


def total_bytes() -> ColumnElement[float]:
    """Return the SQL expression for the bytes in a table's base and log files."""
    base, logs = TableStateRow.numbers["base_bytes"].as_float(), TableStateRow.numbers["log_bytes"].as_float()
    return func.coalesce(base, 0.0) + func.coalesce(logs, 0.0)


def bytes_of(numbers: Mapping[str, Any]) -> int | None:
    """Return the bytes of base and log files from the numbers of a table; None if unknown."""
    base, logs = numbers.get("base_bytes"), numbers.get("log_bytes")
    return None if base is None and logs is None else int(base or 0) + int(logs or 0)


def _filtered(query: Any, wanted: FleetQuery) -> Any:
    if wanted.namespace:
        query = query.where(TableRow.namespace == wanted.namespace)
    if wanted.search:
        query = query.where(func.lower(full_name_column()).contains(wanted.search.lower(), autoescape=True))
    looked = func.coalesce(TableStateRow.looked_ms, 0) > 0
    attention = (TableStateRow.severity > 0) | TableStateRow.error.is_not(None)
    conditions = {
        FleetHealth.ATTENTION: attention,
        FleetHealth.UNREADABLE: TableStateRow.error.is_not(None),
        FleetHealth.HEALTHY: looked & (TableStateRow.severity == 0) & TableStateRow.error.is_(None),
        FleetHealth.UNKNOWN: ~looked & TableStateRow.error.is_(None),
    }
    return query if wanted.health is None else query.where(conditions[wanted.health])


def _order(query: FleetQuery) -> tuple[Any, ...]:
    """Return the order of the rows: unknown values last, ties by name."""
    names = (TableRow.namespace, TableRow.name)
    if query.order is FleetOrder.TABLE:
        return tuple(name.asc() if query.ascending else name.desc() for name in names)
    numbers = TableStateRow.numbers
    keys: dict[FleetOrder, ColumnElement[Any]] = {
        FleetOrder.ATTENTION: case(
            (TableStateRow.error.is_not(None), func.coalesce(TableStateRow.severity, 0) + 0.5),
            else_=func.coalesce(TableStateRow.severity, 0),
        ),
        FleetOrder.FRESHNESS: -numbers["last_commit_ms"].as_float(),
        FleetOrder.SMALL_FILES: numbers["small_files"].as_float(),
        FleetOrder.LOG_BYTES: numbers["log_bytes"].as_float(),
        FleetOrder.BASE_BYTES: total_bytes(),
    }
    key = keys[query.order]
    return (key.is_(None), key.asc() if query.ascending else key.desc(), *names)


def _health(state: TableStateRow | None) -> FleetHealth:
    if state is not None and state.error is not None:
        return FleetHealth.UNREADABLE
    if state is None or not state.looked_ms:
        return FleetHealth.UNKNOWN
    return FleetHealth.ATTENTION if state.severity > 0 else FleetHealth.HEALTHY


def _newest_runs(session: Session, ids: Sequence[int]) -> dict[int, RunSummary]:
    """Return the newest run of each table."""
    age = func.row_number().over(partition_by=RunRow.table_id, order_by=(RunRow.started_ms.desc(), RunRow.id.desc()))
    aged = select(RunRow.id, age.label("age")).where(RunRow.table_id.in_(ids)).subquery()
    query = select(RunRow).join(aged, aged.c.id == RunRow.id).where(aged.c.age == 1)
    return {row.table_id: mirror(RunSummary, row, run=row.run_id) for row in session.scalars(query)}


def _history(session: Session, ids: Sequence[int], now_ms: int) -> dict[int, tuple[int, ...]]:
    """Return the bytes of tables in the last days, oldest first: the last point of each step."""
    query = select(TablePointRow).where(TablePointRow.table_id.in_(ids), TablePointRow.hour_ms >= now_ms - _HISTORY_MS)
    steps: dict[int, dict[int, int]] = {}
    for point in session.scalars(query.order_by(TablePointRow.hour_ms)):
        size = bytes_of(point.numbers or {})
        if size is not None:
            steps.setdefault(point.table_id, {})[point.hour_ms // _STEP_MS] = size
    return {table: tuple(sizes.values()) for table, sizes in steps.items()}
