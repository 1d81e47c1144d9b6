"""Conditions: parsed from text, applied to rows, and compared with column ranges."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.expressions.literals import ArrowValues, literal, typed_list
from lakehouse.core.planning.predicate import Range, check_columns, parse_predicate, to_arrow
from lakehouse.core.planning.ranges import ColumnRanges
from lakehouse.core.planning.ranges import may_match as items_that_may_match
from lakehouse.errors import UserError
from lakehouse.model.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    TimeLiteral,
    columns_of,
)

ROWS = pa.table(
    {
        "n": pa.array([1, 2, None, 4], pa.int32()),
        "s": ["ab", "b", None, "it's"],
        "day": pa.array([dt.date(2026, 1, d) for d in (1, 2, 3, 4)]),
        "at": pa.array([dt.datetime(2026, 1, d, 12) for d in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
        "ok": [True, False, None, True],
        "money": pa.array([Decimal("1.10"), Decimal("2.00"), None, Decimal("9.99")], pa.decimal128(10, 2)),
    }
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("n = 1", Comparison("n", "=", 1)),
        ("n == -1.5e2", Comparison("n", "=", Decimal("-1.5e2"))),
        ("n = 123456789012345678.91", Comparison("n", "=", Decimal("123456789012345678.91"))),
        ("`n` <> 1", Comparison("n", "!=", 1)),
        ("s = 'it''s'", Comparison("s", "=", "it's")),
        ("ok = TRUE", Comparison("ok", "=", True)),
        ("day >= DATE '2026-01-02'", Comparison("day", ">=", TimeLiteral("DATE", "2026-01-02"))),
        (
            "at < timestamp '2026-01-02 12:00:00Z'",
            Comparison("at", "<", TimeLiteral("TIMESTAMP", "2026-01-02 12:00:00Z")),
        ),
        ("n in (1, 2)", In("n", (1, 2))),
        ("n NOT IN (1)", Not(In("n", (1,)))),
        ("n IS NOT NULL", Not(IsNull("n"))),
        ("s like 'a%'", StartsWith("s", "a")),
        ("n BETWEEN 1 AND 2", And((Comparison("n", ">=", 1), Comparison("n", "<=", 2)))),
        (
            "n = 1 OR n = 2 AND NOT s = 'x'",
            Or((Comparison("n", "=", 1), And((Comparison("n", "=", 2), Not(Comparison("s", "=", "x")))))),
        ),
        ("(n = 1 OR n = 2)", Or((Comparison("n", "=", 1), Comparison("n", "=", 2)))),
    ],
)
def test_condition_is_parsed_with_sql_precedence(text: str, parsed: Predicate) -> None:
    assert parse_predicate(text) == parsed


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("n = ", "ends too early"),
        ("", "ends too early"),
        ("n = 1 n", "did not expect 'n'"),
        ("n ~ 1", "did not expect '~'"),
        ("(n = 1", "its end"),
        ("n = 'open", "from"),
        ("n = 1; m = 2", "did not expect ';'"),
        ("n IN (SELECT 1)", "contains a subquery"),
        ("sum(n) OVER (PARTITION BY s) > 1", "contains a window function"),
        ("upperr(s) = 'A'", r"the function 'upperr' is unknown\. Did you mean 'upper'"),
        ("left(s) = 'A'", "the function 'left' takes 2 arguments"),
        ("n IN ()", r"did not expect '\)'"),
        ("n BETWEEN 1, 2", "did not expect ','"),
        ("n = 1_000", "did not expect '1_000'"),
        ("n = ١", "from"),
        ("n = 1e99999999999999999999", "the exponent"),
        ("day = DATE 20260101", "did not expect '20260101'"),
        ("day = DATE '2026-01-01junk'", "it is not a date"),
        ("day = DATE '2026-02-30'", "this date does not exist"),
        ("day = DATE '2026-01-01 12:00:00'", "Write TIMESTAMP '2026-01-01 12:00:00'"),
        ("at = TIMESTAMP '2026-01-01 24:00:00'", "it is not a time of day"),
        ("at = TIMESTAMP '2026-01-01 12:00:00+19:00'", "its time zone does not exist"),
        ("at = TIME '12:00:00Z'", "it is not a time"),
    ],
)
def test_parse_error_names_the_position(text: str, place: str) -> None:
    with pytest.raises(UserError, match=place):
        parse_predicate(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("n > 1", [1, 3]),
        ("n > 1.0", [1, 3]),
        ("NOT n > 1", [0]),
        ("n NOT IN (1, 2)", [3]),
        ("n IN (1, 4)", [0, 3]),
        ("n IS NULL", [2]),
        ("s LIKE 'a%' OR s = 'b'", [0, 1]),
        ("day < '2026-01-02'", [0]),
        ("at >= TIMESTAMP '2026-01-03 12:00:00'", [2, 3]),
        ("at = '2026-01-01T13:00:00+01:00'", [0]),
        ("ok = true AND n != 4", [0]),
        ("money >= 2", [1, 3]),
        ("money = 1.1", [0]),
        ("money = 1.001", []),
        ("money <= 9.985 AND money != 1.001", [0, 1]),
        ("NOT money < 1e30", []),
        ("n > 1.5", [1, 3]),
        ("n < 99999999999", [0, 1, 3]),
        ("n NOT IN (1, 2.5)", [1, 3]),
        ("n = '4'", [3]),
        ("ok = 'true'", [0, 3]),
        ("day < TIMESTAMP '2026-01-02 00:00:00.000000001'", [0, 1]),
        ("at > DATE '2026-01-03'", [2, 3]),
        ("at = '2026-01-01 12:00:00.0000000001'", []),
        ("s != 'b'", [0, 3]),
    ],
)
def test_condition_filters_rows_like_sql(text: str, kept: list[int]) -> None:
    expression = to_arrow(parse_predicate(text), ROWS.schema)
    assert ROWS.append_column("row", pa.array(range(4))).filter(expression).column("row").to_pylist() == kept


def test_empty_and_is_true_and_empty_or_is_false() -> None:
    assert ROWS.filter(to_arrow(And(()), ROWS.schema)).num_rows == 4
    assert ROWS.filter(to_arrow(Or(()), ROWS.schema)).num_rows == 0


@pytest.mark.parametrize(
    "text",
    [
        "n = 'x'",
        "n = '1.5'",
        "n = true",
        "ok = 1",
        "ok = 'x'",
        "day = 'yesterday'",
        "at = 'x'",
        "day = '2026'",
        "day = '2026-01-01junk'",
        "day = '2026-01-01 12:00:00'",
        "day = '20260101'",
        "day = 20260101",
        "day = TIME '12:00:00'",
        "at = '2026-01-01 12:00:00 junk'",
        "at = '2026-01-01,12:00:00'",
        "at = 1767268800",
        "at = '2026-01-01T12:00:00 Europe/Berlin'",
        "money = 'x'",
        "money = '1_000'",
        "n LIKE '1%'",
        "s = 1",
        "s = true",
        "s = DATE '2026-01-01'",
    ],
)
def test_literal_of_another_type_than_its_column_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        check_columns(parse_predicate(text), ROWS.schema)


def test_unknown_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"'mony' is not in the table\. Did you mean 'money'"):
        check_columns(parse_predicate("mony = 1 OR nope = 2"), ROWS.schema)


def test_columns_of_returns_all_columns_of_a_predicate() -> None:
    assert list(columns_of(parse_predicate("a = 1 AND NOT (b IS NULL OR c LIKE 'x%')"))) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("value", "kind", "typed"),
    [
        ("7", pa.int64(), 7),
        (2.0, pa.int32(), 2),
        ("2026-01-31", pa.date32(), dt.date(2026, 1, 31)),
        ("2026-01-31", pa.timestamp("us"), dt.datetime(2026, 1, 31)),
        ("2026-01-31T01:00:00+02:00", pa.timestamp("us"), dt.datetime(2026, 1, 30, 23)),
        ("2026-01-31", pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 31, tzinfo=dt.UTC)),
        (0.1, pa.float32(), 0.10000000149011612),
        (1, pa.decimal128(10, 2), Decimal("1")),
        ("ab", pa.binary(), b"ab"),
    ],
)
def test_literal_is_converted_to_the_type_of_its_column(value: Any, kind: pa.DataType, typed: Any) -> None:
    assert literal(value, kind) == typed


def may_match(predicate: Predicate, ranges: dict[str, Range], schema: pa.Schema) -> bool:
    """Return whether an item with these ranges may have a matching row."""
    columns = {
        name: ColumnRanges(
            low=pa.array([low], schema.field(name).type),
            high=pa.array([high], schema.field(name).type),
            nulls=pa.array([nulls]),
            values=pa.array([10]),
        )
        for name, (low, high, nulls) in ranges.items()
    }
    (found,) = items_that_may_match(predicate, columns, schema, 1)
    return bool(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 3", True),
        ("n = 1", False),
        ("n != 3", True),
        ("n < 2", False),
        ("n <= 2", True),
        ("n > 5", False),
        ("n >= 5", True),
        ("n IN (0, 9)", False),
        ("n IN (0, 4)", True),
        ("n IS NULL", False),
        ("s IS NULL", True),
        ("NOT n = 3", True),
        ("s LIKE 'b%'", True),
        ("s LIKE 'bad%'", True),
        ("s LIKE 'c%'", True),
        ("s LIKE 'd%'", False),
        ("other = 1", True),
        ("n = 1 OR n = 3", True),
        ("n = 1 AND n = 3", False),
        ("NOT n < 6", False),
        ("NOT (n > 1 AND s IS NOT NULL)", True),
        ("NOT (n > 1 OR s = 'x')", False),
        ("n IS NOT NULL", True),
        ("all_null IS NOT NULL", False),
        ("all_null = 1", False),
        ("all_null IS NULL", True),
        ("unknown = 1", True),
        ("unknown IS NULL", True),
        ("unknown IN (1, 2)", True),
    ],
)
def test_may_match_is_false_only_if_ranges_exclude_the_condition(text: str, expected: bool) -> None:
    schema = pa.schema([("n", pa.int32()), ("s", pa.string()), ("other", pa.int32())])
    schema = schema.append(pa.field("all_null", pa.int32())).append(pa.field("unknown", pa.int32()))
    ranges = {"n": (2, 5, 0), "s": ("b", "cat", 1), "all_null": (None, None, 10), "unknown": (None, None, None)}
    assert may_match(parse_predicate(text), ranges, schema) is expected


def test_range_of_one_value_excludes_not_equal_except_for_floats() -> None:
    schema = pa.schema([("n", pa.int32()), ("f", pa.float64())])
    ranges = {"n": (2, 2, 0), "f": (2.0, 2.0, 0)}
    assert not may_match(parse_predicate("n != 2"), ranges, schema)
    # NaN differs from 2.
    assert may_match(parse_predicate("f != 2"), ranges, schema)


@pytest.mark.parametrize("text", ["(" * 5_000 + "n = 1" + ")" * 5_000, "not " * 5_000 + "n = 1", "n = " + "9" * 5_000])
def test_condition_without_bound_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"more than \d+ (levels of nesting|digits)"):
        parse_predicate(text)
    assert parse_predicate("(" * 50 + "not n = 1" + ")" * 50) == Not(Comparison("n", "=", 1))


@pytest.mark.parametrize(
    ("low", "high", "listed", "expected"),
    [
        ("b", "d", ["a", "c"], True),
        ("b", "d", ["a", "e"], False),
        ("b", "d", [], False),
        # Java orders this character before U+E000, so bounds prove nothing.
        ("b", "d", ["a", "\ue000"], True),
        (1.0, 2.0, [0.5, float("nan")], True),
        (1.0, 2.0, [0.5, 2.5], False),
    ],
)
def test_list_of_arrow_values_is_judged_like_the_list_of_its_values(
    low: Any, high: Any, listed: list[Any], expected: bool
) -> None:
    kind = pa.string() if isinstance(low, str) else pa.float64()
    values = pa.array(listed, kind)
    counts = pa.array([0], pa.int64())
    bounds = ColumnRanges(
        low=pa.array([low], kind), high=pa.array([high], kind), nulls=counts, values=pa.array([9]), java_order=True
    )
    schema = pa.schema([("s", kind)])
    for where in (In("s", ArrowValues(values)), In("s", tuple(values)), Not(Not(In("s", ArrowValues(values))))):
        assert items_that_may_match(where, {"s": bounds}, schema, 1).tolist() == [expected]
    rows = pa.table({"s": pa.concat_arrays([values, pa.array([None, low], kind)])})
    assert rows.filter(to_arrow(In("s", ArrowValues(values)), schema)).num_rows == len(listed)


def test_arrow_values_are_a_sequence_that_is_typed_without_a_copy() -> None:
    values = ArrowValues(pa.array(["b", "a"]))
    where = In("s", values)
    assert typed_list(where, pa.string()) is where
    assert [value.as_py() for value in values] == ["b", "a"]
    assert (values[1].as_py(), len(values[:1]), values.ordered.to_pylist()) == ("a", 1, ["a", "b"])
    assert where == In("s", ArrowValues(pa.array(["b", "a"])))
    assert hash(where) == hash(In("s", ArrowValues(pa.array(["b", "a"]))))
    assert where != In("s", ArrowValues(pa.array(["a", "b"])))
