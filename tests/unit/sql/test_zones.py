"""UPDATE, DELETE and MERGE in a session whose time zone is not UTC."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.errors import UserError
from lakehouse.spark.attached_catalog import SparkSqlEngine
from lakehouse.sql.engine import Parameters
from lakehouse.sql.session import SqlSession
from lakehouse.sql.tokens import SPARK
from lakehouse.sql.zones import require_no_zone, require_same_kinds, time_columns
from tests.unit.sql.conftest import rows_of

TIMES = time_columns(
    pa.schema([("at", pa.timestamp("us", "UTC")), ("st", pa.struct([("x", pa.timestamp("us", "UTC"))]))]),
    pa.schema([("n", pa.timestamp("us")), ("day", pa.date32())]),
    None,
)


@pytest.mark.parametrize(
    "condition",
    [
        "at = TIMESTAMP '2026-01-31 10:00:00'",
        "at >= '2026-01-31'",
        "`AT` < DATE '2026-01-31'",
        "t.at BETWEEN '2026-01-31T10:00:00' AND s.at",
        "hour(at) = 10",
        "CAST(at AS DATE) = day",
        "year(at) = 2026",
        "at::DATE = day",
        "st.x > '2026-01-31 10:00:00.5'",
        "n = to_timestamp(text)",
        "at IN (TIMESTAMP '2026-01-31 10:00:00Z', '2026-01-31 10:00')",
    ],
)
def test_expression_that_depends_on_the_zone_is_refused(condition: str) -> None:
    with pytest.raises(UserError, match="SET TIME ZONE 'UTC'"):
        require_no_zone((condition,), {}, TIMES, SPARK)


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "at = TIMESTAMP '2026-01-31 10:00:00Z' AND id > 3",
        "at < '2026-01-31T10:00:00+02:00'",
        "t.at > s.at AND name = 'at'",
        "at IS NULL OR at = '2026-01-31 10:00:00 Europe/Berlin'",
        "day = DATE '2026-01-31' AND year(day) = 2026",
        "n = '2026-01-31 10:00:00'",
        "at = s.at AND day > second AND `year` = 1",
    ],
)
def test_expression_with_one_meaning_in_all_zones_is_accepted(condition: str) -> None:
    require_no_zone((condition,), {"at": "s.at", "day": "CAST(s.day AS DATE)"}, TIMES, SPARK)


def test_assigned_times_need_a_zone() -> None:
    require_no_zone((), {"AT": "'2026-01-31 10:00:00Z'"}, TIMES, SPARK)
    for name, value in (("n", "s.at"), ("at", "coalesce(n, t.at)")):
        with pytest.raises(UserError, match="mixes times with and without a zone"):
            require_no_zone((), {name: value}, TIMES, SPARK)
    local, zoned = (pa.schema([("At", pa.timestamp("us", zone)), ("day", pa.date32())]) for zone in (None, "UTC"))
    require_same_kinds(local, local)
    with pytest.raises(UserError, match="column at has a time zone in the table or in the source only"):
        require_same_kinds(local, zoned)
    with pytest.raises(UserError, match="depends on the time zone"):
        require_no_zone((), {"AT": "'2026-01-31 10:00:00'"}, TIMES, SPARK)


def test_statements_of_a_session_in_utc_read_times_in_utc(session: SqlSession) -> None:
    session.execute("CREATE TABLE x.t (id INT, at TIMESTAMP) USING lakehouse TBLPROPERTIES (primaryKey = 'id')")
    session.execute("INSERT INTO x.t VALUES (1, '2026-01-31 10:00:00')")
    assert session.engine.is_utc
    session.execute("UPDATE x.t SET id = 1 WHERE at = '2026-01-31 10:00:00'")
    merge = "MERGE INTO x.t t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED AND hour(t.at) = 10 THEN DELETE"
    session.execute(merge)
    assert rows_of(session, "SELECT count(*) FROM x.t") == [(0,)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE x.t SET at = '2026-01-31 10:00:00'",
        "DELETE FROM x.t WHERE hour(at) = 10",
        "MERGE INTO x.t t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED AND hour(t.at) = 10 THEN DELETE",
        "MERGE INTO x.t t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.at = '2026-01-31'",
    ],
)
def test_statements_of_a_session_in_another_zone_are_refused(
    session: SqlSession, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute("CREATE TABLE x.t (id INT, at TIMESTAMP) USING lakehouse TBLPROPERTIES (primaryKey = 'id')")
    session.execute("INSERT INTO x.t VALUES (1, '2026-01-31 10:00:00')")
    monkeypatch.setattr(type(session.engine), "is_utc", False)
    with pytest.raises(UserError, match="depends on the time zone of the session"):
        session.execute(statement)


class _Settings:
    """Stands for a Spark session with some settings."""

    def __init__(self, **settings: str) -> None:
        self.settings = {f"spark.sql.{name.replace('_', '.')}": value for name, value in settings.items()}
        self.conf = self

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return a setting."""
        return self.settings.get(key, default)


def test_statement_with_quotes_of_another_meaning_is_refused() -> None:
    quotes = SparkSqlEngine(_Settings(ansi_enabled="true", ansi_doubleQuotedIdentifiers="true"), None)  # type: ignore[arg-type]
    assert "makes 'v' an identifier" in quotes.text_problem('UPDATE x.t SET w = "v"')
    assert quotes.text_problem("UPDATE x.t SET w = 'say \"v\"'") == ""
    escapes = SparkSqlEngine(_Settings(parser_escapedStringLiterals="true"), None)  # type: ignore[arg-type]
    assert "escapedStringLiterals=true" in escapes.text_problem(r"DELETE FROM x.t WHERE w = 'a\b'")
    usual = SparkSqlEngine(_Settings(), None)  # type: ignore[arg-type]
    assert usual.text_problem(r'UPDATE x.t SET w = "v" || "\\"') == ""
    zones = ("UTC", "Etc/UTC", "America/New_York")
    assert [SparkSqlEngine(_Settings(session_timeZone=zone), None).is_utc for zone in zones] == [True, True, False]  # type: ignore[arg-type]


def test_parameters_that_are_no_numbers_are_values(session: SqlSession) -> None:
    session.execute("CREATE TABLE x.t (id INT, f DOUBLE) USING lakehouse TBLPROPERTIES (primaryKey = 'id')")
    session.execute("INSERT INTO x.t VALUES (1, 'NaN'::DOUBLE), (2, '-Infinity'::DOUBLE), (3, 1.5)")
    for value, rest in ((float("nan"), [2, 3]), (float("-inf"), [3])):
        session.execute("DELETE FROM x.t WHERE f = :f", Parameters(values={"f": value}))
        assert rows_of(session, "SELECT id FROM x.t ORDER BY id") == [(number,) for number in rest]
