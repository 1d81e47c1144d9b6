"""Contract of the states of tables on SQLite and PostgreSQL: marks of changes, looks, history, pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.models import NamespaceRow, TableRow
from lakehouse.platform.catalog.table_states import KEPT_MS, LookLimits, StateFilter, StatePage
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.fleet import DueService, Problem, Severity, TableNumbers, TableState
from tests.contract.test_catalog import Clock, catalog, clock, url

__all__ = ["catalog", "clock", "url"]
HOUR_MS = 3_600_000


@contextmanager
def counted_statements(catalog: Catalog) -> Iterator[list[str]]:
    """Collect the statements that the database executes in a block."""
    found: list[str] = []

    def add(connection: object, cursor: object, statement: str, *more: object) -> None:
        found.append(statement)

    event.listen(catalog.database.engine, "before_cursor_execute", add)
    try:
        yield found
    finally:
        event.remove(catalog.database.engine, "before_cursor_execute", add)


def enter_tables(catalog: Catalog, names: list[str]) -> dict[str, int]:
    """Insert rows of tables without files, which these tests do not need; return the ids by name."""
    with catalog.database.session() as session:
        namespaces = sorted({name.partition(".")[0] for name in names})
        session.add_all(NamespaceRow(name=name, properties={}, created_ms=0) for name in namespaces)
        session.flush()
        rows = {name: _table_row(session, name) for name in names}
        session.flush()
        return {name: row.id for name, row in rows.items()}


def _table_row(session: Session, name: str) -> TableRow:
    namespace, _, table = name.partition(".")
    row = TableRow(namespace=namespace, name=table, location=f"/lake/{name}", spec_version=1, created_ms=0)
    session.add(row)
    return row


def state(looked_ms: int, *, look_at_ms: int | None = None, **numbers: int) -> TableState:
    return TableState(numbers=TableNumbers(**numbers), looked_ms=looked_ms, look_at_ms=look_at_ms)


def test_to_look_returns_new_changed_and_timed_tables_only(catalog: Catalog, clock: Clock) -> None:
    ids = enter_tables(catalog, ["s.new", "s.changed", "s.timed", "s.quiet"])
    now = clock.now_ms()
    catalog.states.record({ids["s.changed"]: state(now), ids["s.quiet"]: state(now, look_at_ms=now + 60_000)})
    catalog.states.record({ids["s.timed"]: state(now, look_at_ms=now + 10_000)})
    clock.ms += 10_000
    catalog.states.mark_changed([ids["s.changed"]])
    assert set(catalog.states.to_look(clock.now_ms())) == {ids["s.new"], ids["s.changed"], ids["s.timed"]}


def test_change_during_a_look_stays_marked_and_a_seen_change_does_not(catalog: Catalog, clock: Clock) -> None:
    table = enter_tables(catalog, ["s.t"])["s.t"]
    catalog.states.mark_changed([table])
    seen = catalog.states.to_look(clock.now_ms())
    # The clock of the second host is behind: the mark still counts as later.
    clock.ms -= 5000
    catalog.states.mark_changed([table])
    catalog.states.record({table: state(clock.now_ms() + 5000)}, seen)
    assert list(catalog.states.to_look(clock.now_ms())) == [table]
    catalog.states.record({table: state(clock.now_ms())}, catalog.states.marks([table]))
    assert catalog.states.to_look(clock.now_ms()) == {}


def test_rotation_looks_at_a_bounded_number_of_unchanged_tables_oldest_first(catalog: Catalog, clock: Clock) -> None:
    ids = list(enter_tables(catalog, [f"s.t{number:02}" for number in range(10)]).values())
    start = clock.now_ms()
    catalog.states.record({table: state(start + place) for place, table in enumerate(ids)})
    clock.ms += HOUR_MS
    limits = LookLimits(rotation=3, rotation_ms=HOUR_MS // 2)
    assert list(catalog.states.to_look(clock.now_ms(), limits)) == ids[:3]
    catalog.states.record({table: state(clock.now_ms()) for table in ids[:3]})
    assert list(catalog.states.to_look(clock.now_ms(), limits)) == ids[3:6]
    assert catalog.states.to_look(clock.now_ms()) == {}


def test_changed_tables_beyond_the_limit_wait_for_the_next_pass(catalog: Catalog, clock: Clock) -> None:
    ids = list(enter_tables(catalog, ["s.a", "s.b", "s.c"]).values())
    catalog.states.record({table: state(clock.now_ms()) for table in ids})
    for table in (ids[2], ids[0], ids[1]):
        clock.ms += 1
        catalog.states.mark_changed([table])
    first = catalog.states.to_look(clock.now_ms(), LookLimits(changed=2))
    assert list(first) == [ids[2], ids[0]]
    catalog.states.record({table: state(clock.now_ms()) for table in first}, first)
    assert list(catalog.states.to_look(clock.now_ms(), LookLimits(changed=2))) == [ids[1]]


def test_state_keeps_due_services_problems_and_the_numbers_before_an_error(catalog: Catalog, clock: Clock) -> None:
    table = enter_tables(catalog, ["s.t"])["s.t"]
    found = TableState(
        numbers=TableNumbers(file_groups=4, log_bytes=1 << 40),
        problems=(Problem(rule="lag", severity=Severity.WARNING, text="late", value=3.5, threshold=2.0),),
        due={"clean": DueService(since_ms=5, code=DecisionReason.RUN_LIMIT, bytes=7, places=("day=1",), starts_ms=9)},
        looked_ms=clock.now_ms(),
        look_at_ms=clock.now_ms() + 1,
    )
    catalog.states.record({table: found})
    assert catalog.states.of([table]) == {table: found}
    assert catalog.states.due() == {table: found}
    assert found.severity == 2
    clock.ms += HOUR_MS
    catalog.states.record({table: TableState(error="unreadable", looked_ms=clock.now_ms())})
    after = catalog.states.of([table])[table]
    assert (after.error, after.numbers, after.due) == ("unreadable", found.numbers, {})
    assert len(catalog.states.points([table], 0)[table]) == 1
    catalog.states.record_due({table: found.due})
    assert catalog.states.of([table])[table].due == found.due


def test_points_hold_the_last_numbers_of_each_hour_and_old_hours_are_deleted(catalog: Catalog, clock: Clock) -> None:
    table = enter_tables(catalog, ["s.t"])["s.t"]
    begin = clock.now_ms() - clock.now_ms() % HOUR_MS
    for minutes, files in ((0, 1), (30, 2), (60, 3)):
        clock.ms = begin + minutes * 60_000
        catalog.states.record({table: state(clock.now_ms(), files=files)})
    points = catalog.states.points([table], begin)[table]
    assert [(point.hour_ms, point.numbers.files) for point in points] == [(begin, 2), (begin + HOUR_MS, 3)]
    clock.ms = begin + KEPT_MS + HOUR_MS
    catalog.states.record({table: state(clock.now_ms(), files=4)})
    assert [point.numbers.files for point in catalog.states.points([table], 0)[table]] == [3, 4]


def test_states_are_filtered_sorted_and_paged_by_the_database(catalog: Catalog, clock: Clock) -> None:
    ids = enter_tables(catalog, ["sales.orders", "sales.items", "web.clicks", "web.new"])
    problem = Problem(rule="r", severity=Severity.CRITICAL, text="broken")
    catalog.states.record(
        {
            ids["sales.orders"]: state(clock.now_ms(), log_bytes=900),
            ids["sales.items"]: state(clock.now_ms(), log_bytes=20_000),
            ids["web.clicks"]: TableState(problems=(problem,), looked_ms=clock.now_ms()),
        }
    )

    def names(wanted: StateFilter | None = None, page: StatePage | None = None) -> list[str]:
        return [table.identifier for table in catalog.states.states(wanted, page).tables]

    assert names() == ["web.clicks", "sales.items", "sales.orders", "web.new"]
    assert names(page=StatePage(sort="log_bytes")) == ["sales.items", "sales.orders", "web.clicks", "web.new"]
    assert names(page=StatePage(sort="-table", limit=1)) == ["web.new"]
    assert names(page=StatePage(sort="table", offset=1, limit=2)) == ["sales.orders", "web.clicks"]
    assert names(StateFilter(namespace="sales")) == ["sales.items", "sales.orders"]
    assert names(StateFilter(text="S.OR")) == ["sales.orders"]
    assert names(StateFilter(severity=2)) == ["web.clicks"]
    assert catalog.states.states(StateFilter(namespace="web"), StatePage(limit=1)).total == 2
    assert catalog.states.states(StateFilter(text="new")).tables[0].state is None
    with pytest.raises(UserError, match=r"cannot be sorted by .*log_bytes"):
        catalog.states.states(page=StatePage(sort="log_byte"))


def test_dropped_table_is_ignored_by_marks_and_records(catalog: Catalog, clock: Clock, tmp_path: Path) -> None:
    catalog.states.mark_changed([12345])
    catalog.states.record({12345: state(clock.now_ms())})
    assert catalog.states.of([12345]) == {}


def test_statements_do_not_grow_with_the_number_of_tables(catalog: Catalog, clock: Clock) -> None:
    numbers = {}
    tables = itertools.count()
    for size in (10, 300):
        with catalog.database.session() as session:
            if session.get(NamespaceRow, "s") is None:
                session.add(NamespaceRow(name="s", properties={}, created_ms=0))
                session.flush()
            rows = [_table_row(session, f"s.t{next(tables)}") for _ in range(size)]
            session.flush()
            ids = [row.id for row in rows]
        with counted_statements(catalog) as statements:
            catalog.states.mark_changed(ids)
            seen = catalog.states.to_look(clock.now_ms())
            catalog.states.record({table: state(clock.now_ms(), files=1) for table in seen}, seen)
            catalog.states.points(ids, 0)
            catalog.states.states(page=StatePage(limit=size))
            catalog.states.due()
        assert set(ids) <= set(seen)
        numbers[size] = len(statements)
    assert numbers[10] == numbers[300]
