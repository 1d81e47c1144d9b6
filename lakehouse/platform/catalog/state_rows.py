"""Rows of table states: change marks, upserts, and conversion between rows and values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import Base, TablePointRow, TableRow, TableStateRow
from lakehouse.spec.contracts.document import decode, encode
from lakehouse.spec.contracts.fleet import DueService, Problem, TableNumbers, TableState
from lakehouse.spec.secrets import redact_text

_BATCH = 5000
ValueT = TypeVar("ValueT")


def mark_changed(session: Session, table_ids: Collection[int], now_ms: int) -> None:
    """Mark tables as changed in a transaction; dropped tables are ignored. The scheduler examines marked tables."""
    rows = [{**_EMPTY, "table_id": table, "changed_ms": now_ms} for table in locked_tables(session, table_ids)]
    # A second mark has a greater value than the first, so that an examination between the two does not reset it.
    later = case(
        (TableStateRow.changed_ms >= now_ms, TableStateRow.changed_ms + 1),
        else_=now_ms,
    )
    upsert(session, TableStateRow, rows, {"changed_ms": later})


def locked_tables(session: Session, table_ids: Collection[int]) -> list[int]:
    """Lock tables against a drop, in a fixed order so that two writers do not deadlock; return existing tables."""
    ids: list[int] = []
    for some in batches(sorted(table_ids)):
        query = select(TableRow.id).where(TableRow.id.in_(some)).order_by(TableRow.id)
        ids += session.scalars(query.with_for_update(read=True, key_share=True))
    return ids


def upsert(
    session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]], changes: Mapping[str, Any] | None = None
) -> None:
    """Insert rows; update existing keys with `changes`, or with the new row if `changes` is None."""
    if not rows:
        return
    insert: Any = (sqlite if session.get_bind().dialect.name == "sqlite" else postgresql).insert(table)
    keys = [column.name for column in table.__table__.primary_key]
    new = {name: insert.excluded[name] for name in rows[0] if name not in keys}
    session.execute(
        insert.on_conflict_do_update(index_elements=keys, set_=dict(new if changes is None else changes)),
        [dict(row) for row in rows],
    )


def write_states(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert or replace states. `changed_ms` of a row is the mark before its examination; a later mark stays.

    A state with an error keeps the stored numbers.
    """
    excluded = sqlite.insert(TableStateRow).excluded
    seen = case((TableStateRow.changed_ms == excluded.changed_ms, 0), else_=TableStateRow.changed_ms)
    names = ("looked_ms", "look_at_ms", "severity", "problems", "due", "due_services", "error")
    changes = {"changed_ms": seen, **{name: excluded[name] for name in names}}
    upsert(session, TableStateRow, [r for r in rows if r["error"] is None], {**changes, "numbers": excluded.numbers})
    upsert(session, TableStateRow, [row for row in rows if row["error"] is not None], changes)


def write_points(session: Session, rows: Sequence[Mapping[str, Any]], hour_ms: int) -> None:
    """Insert or replace the hourly numbers from the rows of readable states."""
    numbers = [{"table_id": row["table_id"], "numbers": row["numbers"]} for row in rows if row["error"] is None]
    upsert(session, TablePointRow, [{**row, "hour_ms": hour_ms} for row in numbers])


def state_row(table_id: int, state: TableState, seen_ms: int) -> dict[str, Any]:
    """Return the row of a state; `seen_ms` is the mark that its examination has seen."""
    return {
        "table_id": table_id,
        "changed_ms": seen_ms,
        "looked_ms": state.looked_ms,
        "look_at_ms": state.look_at_ms,
        "severity": state.severity,
        "numbers": encode(state.numbers),
        "problems": encode(state.problems),
        "due": encode(dict(state.due)),
        "due_services": len(state.due),
        "error": None if state.error is None else redact_text(state.error),
    }


def state_of(row: TableStateRow) -> TableState:
    """Return the state of a row."""
    return TableState(
        numbers=decode(TableNumbers, row.numbers),
        problems=tuple(decode(Problem, problem) for problem in row.problems),
        due={name: decode(DueService, service) for name, service in row.due.items()},
        error=row.error,
        looked_ms=row.looked_ms,
        look_at_ms=row.look_at_ms,
        changed_ms=row.changed_ms,
    )


def number_of(name: str) -> ColumnElement[Any]:
    """Return the SQL expression for a number in a state."""
    number: ColumnElement[Any] = TableStateRow.numbers[name].as_float()
    return number


def batches(ids: Collection[ValueT]) -> Iterator[list[ValueT]]:
    """Yield ids or names in batches that fit in one statement."""
    ordered = list(ids)
    for start in range(0, len(ordered), _BATCH):
        yield ordered[start : start + _BATCH]


def first_change() -> ColumnElement[Any]:
    """Return the SQL expression for the time since which a table waits for its examination; 0 before the first one."""
    return func.coalesce(func.nullif(TableStateRow.changed_ms, 0), TableStateRow.look_at_ms, 0)


#: The other columns of a state that a mark inserts before the first examination.
_EMPTY: Mapping[str, Any] = {**state_row(0, TableState(), 0)}
