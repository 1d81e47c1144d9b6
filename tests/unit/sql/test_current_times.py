"""The current time in UPDATE, DELETE and MERGE of `lakehouse sql`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakehouse.errors import UserError
from lakehouse.sql.session import SqlSession
from lakehouse.sql.tokens import SHELL, SPARK
from lakehouse.sql.zones import CurrentTimes
from tests.unit.sql.conftest import rows_of


class FixedClock:
    """One second passes between two reads."""

    def __init__(self) -> None:
        self.ms = 1_767_225_599_250

    def now_ms(self) -> int:
        self.ms += 1000
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def sleep(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


def times(*columns: str, is_utc: bool = True, dialect: str = SPARK) -> CurrentTimes:
    return CurrentTimes(dialect=dialect, columns=columns, is_utc=is_utc, clock=FixedClock())


NOW = "TIMESTAMP '2026-01-01 00:00:00.250000Z'"


@pytest.mark.parametrize("dialect", [SPARK, SHELL])
@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("", ""),
        ("at < current_timestamp()", f"at < {NOW}"),
        ("CURRENT_TIMESTAMP", NOW),
        ("coalesce(at, Now( ))", f"coalesce(at, {NOW})"),
        ("localtimestamp", "TIMESTAMP '2026-01-01 00:00:00.250000'"),
        ("d = current_date AND e = curdate()", "d = DATE '2026-01-01' AND e = DATE '2026-01-01'"),
        ("today() > d", "DATE '2026-01-01' > d"),
        ("t.current_date = now", "t.current_date = now"),
        ("name = 'now()' OR `current_date` IS NULL", "name = 'now()' OR `current_date` IS NULL"),
        ("current_date.year = 1", "current_date.year = 1"),
        ("current_timestamp(3)", "current_timestamp(3)"),
    ],
)
def test_functions_of_the_current_time_become_literals(text: str, literal: str, dialect: str) -> None:
    assert times("at", "name", dialect=dialect).literal(text) == literal


def test_expressions_of_a_statement_have_one_moment_and_columns_stay() -> None:
    moment = times("Current_Date")
    assert moment.literal("now()") == moment.literal("current_timestamp") == NOW
    assert moment.literal("current_date = current_date()") == "current_date = DATE '2026-01-01'"


def test_current_time_is_refused_in_another_time_zone() -> None:
    assert times(is_utc=False).literal("a = 1") == "a = 1"
    with pytest.raises(UserError, match=r"'a = now\(\)' depends on .* at 'now'.* MERGE INTO with a source"):
        times(is_utc=False).literal("a = now()")


def test_statements_write_the_current_time(session: SqlSession) -> None:
    session.execute(
        "CREATE TABLE sales.visits (id STRING, at TIMESTAMP, day DATE) USING lakehouse "
        "TBLPROPERTIES (primaryKey = 'id')"
    )
    session.execute("INSERT INTO sales.visits VALUES ('a', NULL, NULL), ('b', NULL, NULL), ('c', NULL, NULL)")
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    session.execute("UPDATE sales.visits SET at = current_timestamp, day = current_date() WHERE id = 'a'")
    session.execute(
        "MERGE INTO sales.visits t USING (SELECT 'b' AS id) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET at = now() WHEN NOT MATCHED BY SOURCE AND t.id = 'c' THEN UPDATE SET at = now()"
    )
    rows = {key: (at.replace(tzinfo=UTC), day) for key, at, day in rows_of(session, "SELECT * FROM sales.visits")}
    after = datetime.now(UTC)
    assert sorted(rows) == ["a", "b", "c"]
    assert all(before <= at <= after for at, _ in rows.values())
    assert rows["b"][0] == rows["c"][0]
    assert rows["a"][1] in (before.date(), after.date())
    session.execute("DELETE FROM sales.visits WHERE at <= now() AND day IS NOT NULL")
    assert rows_of(session, "SELECT id FROM sales.visits ORDER BY id") == [("b",), ("c",)]
