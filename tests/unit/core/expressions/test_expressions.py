"""Expressions: parsed with Spark's grammar, evaluated on Arrow data, divided for pruning."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.expressions.conditions import parse_predicate
from lakehouse.core.expressions.evaluate import evaluate, matches
from lakehouse.core.expressions.functions import FUNCTIONS, LAZY
from lakehouse.core.expressions.parse import parse_expression
from lakehouse.core.planning.predicate import matching
from lakehouse.errors import UserError
from lakehouse.model.predicate import (
    And,
    Applied,
    Call,
    Comparison,
    Evaluated,
    IsNull,
    Or,
    Predicate,
    StartsWith,
    statistics_condition,
)

ROWS = pa.table(
    {
        "id": ["a", "b", "c"],
        "price": pa.array([Decimal("1.50"), Decimal("20.00"), None], pa.decimal128(10, 2)),
        "qty": pa.array([2, 3, 4], pa.int32()),
        "city": ["Aachen", "bonn", None],
        "place": pa.array([{"x": 1}, {"x": 2}, None]),
        "ratio": [1.5, float("nan"), -0.0],
        "day": [dt.date(2026, 1, 31)] * 3,
        "at": pa.array([dt.datetime(2026, 1, 31, 12)] * 3, pa.timestamp("us", "UTC")),
        "odd name": [1, 2, 3],
    }
)


def values(text: str) -> list[Any]:
    """Return the value of an expression for each row."""
    result: list[Any] = evaluate(parse_expression(text), ROWS).to_pylist()
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price * qty", [Decimal("3.00"), Decimal("60.00"), None]),
        ("price / 3", [Decimal("0.500000"), Decimal("6.666667"), None]),
        ("price % 3", [Decimal("1.50"), Decimal("2.00"), None]),
        ("qty / 2", [1.0, 1.5, 2.0]),
        ("qty div 2", [1, 1, 2]),
        ("-qty % 3", [-2, 0, -1]),
        ("qty + 1L", [3, 4, 5]),
        ("qty & 1", [0, 1, 0]),
        ("place.x + 1", [2, 3, None]),
        ("`odd name` * 2", [2, 4, 6]),
        ("ratio = ratio", [True, True, True]),
        ("ratio > 5", [False, True, False]),
        ("ratio = 0", [False, False, True]),
        ("price <=> NULL", [False, False, True]),
        ("price IS NOT DISTINCT FROM 1.5", [True, False, False]),
        ("qty IN (2, NULL)", [True, None, None]),
        ("qty NOT IN (price, 3)", [True, False, None]),
        ("qty > price", [True, False, None]),
        ("city RLIKE '^A'", [True, False, None]),
        ("city LIKE '%a_hen'", [True, False, None]),
        ("city ILIKE 'B%'", [False, True, None]),
        ("'50%' LIKE '50/%' ESCAPE '/'", [True] * 3),
        ("CASE WHEN qty > 2 THEN 10 / (qty - 2) END", [None, 10.0, 5.0]),
        ("CASE qty WHEN 2 THEN 'two' WHEN 3 THEN 'three' ELSE 'more' END", ["two", "three", "more"]),
        ("IF(qty = 3, NULL, city)", ["Aachen", None, None]),
        ("COALESCE(city, id)", ["Aachen", "bonn", "c"]),
        ("qty = 2 OR 1 / (qty - 2) > 0", [True, True, True]),
        ("qty <> 2 AND 1 / (qty - 2) > 0", [False, True, True]),
        ("day + INTERVAL 1 MONTH", [dt.date(2026, 2, 28)] * 3),
        ("date_add(day, qty)", [dt.date(2026, 2, 2), dt.date(2026, 2, 3), dt.date(2026, 2, 4)]),
        ("at >= day AND hour(at - INTERVAL 2 HOURS) = 10", [True] * 3),
        ("CAST(price AS INT)", [1, 20, None]),
        ("CAST(at AS STRING)", ["2026-01-31 12:00:00"] * 3),
        ("TRY_CAST(city AS INT)", [None, None, None]),
        ("CAST('2026-01-31' AS DATE) = day", [True] * 3),
        ("concat_ws('-', id, city)", ["a-Aachen", "b-bonn", "c"]),
        ("'it''s' || \"\" || 'a\\'b'", ["it'sa'b"] * 3),
        ("NULL AND qty = 2", [None, False, False]),
        ("NOT (NULL OR qty = 2)", [False, None, None]),
        ("instr(city, 'n')", [6, 3, None]),
        ("price = '1.50'", [True, False, None]),
    ],
)
def test_expression_has_the_value_of_spark(text: str, expected: list[Any]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize("example", sorted({*(f.example for f in FUNCTIONS.values()), *LAZY.values()}))
def test_example_of_each_function_is_true(example: str) -> None:
    assert matches(parse_expression(example), ROWS).to_pylist() == [True] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qty / (qty - 2)", "division by zero"),
        ("qty + 2147483647", r"\+ overflows int32 for values such as 4 and 2147483647"),
        ("CAST(city AS INT)", "CAST to int32: .*'bonn'"),
        ("CAST(city AS DATE)", "'Aachen' is not a value of type date32"),
        ("CAST(qty * 100 AS TINYINT)", "200 not in range"),
        ("city + 1", "needs numbers, and an operand is a string"),
        ("CASE WHEN qty = 2 THEN city ELSE qty END", "CASE has values of the types string and int32"),
        ("NOT qty", "the operand of NOT must be true or false"),
        ("nope * 2", "column 'nope' is not in the table"),
        ("repeat(city, qty)", "must be a whole number in the text"),
        ("day + INTERVAL 1 EON", "the unit 'eon' of an interval is unknown"),
    ],
)
def test_value_that_cannot_be_computed_is_an_error_that_names_it(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        values(text)


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        ("id = (SELECT max(id) FROM t)", "a subquery"),
        ("tags[0] = 1", "an element in brackets"),
        ("id = ?", "a placeholder"),
        ("count(*) > 1", r"\*"),
        ("qty + INTERVAL '1-2' YEAR TO MONTH = 1", "an INTERVAL with another form"),
        ("__import__('os').system('true') = 1", "a field of an expression"),
    ],
)
def test_construct_that_is_no_expression_of_a_row_is_refused_by_name(text: str, construct: str) -> None:
    with pytest.raises(UserError, match=construct):
        parse_predicate(text)


PRODUCT = parse_expression("price * qty > 10")


@pytest.mark.parametrize(
    ("text", "pruning"),
    [
        ("price * qty > 10", None),
        ("price * qty > 10 AND day = '2026-01-31'", Comparison("day", "=", "2026-01-31")),
        ("price * qty > 10 OR day = '2026-01-31'", None),
        (
            "(price * qty > 10 AND qty > 1) OR id = 'a'",
            Or((Comparison("qty", ">", 1), Comparison("id", "=", "a"))),
        ),
        ("1 < qty AND price * qty > 10", Comparison("qty", ">", 1)),
        ("city LIKE 'Aa%en'", StartsWith("city", "Aa")),
        ("startswith(city, 'Aa')", StartsWith("city", "Aa")),
        ("city <=> 'x'", Comparison("city", "=", "x")),
        ("city <=> NULL", IsNull("city")),
        ("flag", Comparison("flag", "=", True)),
        ("NOT (price * qty > 10 OR qty = 1)", None),
        (
            "upper(city) LIKE 'A%' AND qty * 2 > 1",
            Applied(Call("upper", "city"), StartsWith("upper(city)", "A")),
        ),
        ("true", And(())),
    ],
)
def test_statistics_answer_the_part_of_a_condition_that_they_can(text: str, pruning: Predicate | None) -> None:
    answered = statistics_condition(parse_predicate(text))
    if text.startswith("NOT"):
        assert "Not(" in repr(answered)
        return
    assert answered == pruning


def test_condition_without_expressions_needs_no_evaluation() -> None:
    assert parse_predicate("price * qty > 10") == Evaluated(PRODUCT)
    rows = matching(ROWS, parse_predicate("qty > 2 AND (price * qty > 10 OR id = 'c')"), ROWS.schema)
    assert rows.column("id").to_pylist() == ["b", "c"]


def test_conjunct_on_a_column_is_applied_before_an_expression_that_it_protects() -> None:
    rows = matching(ROWS, parse_predicate("10 / (qty - 2) > 6 AND qty > 2"), ROWS.schema)
    assert rows.column("id").to_pylist() == ["b"]


def test_long_chain_of_conditions_is_parsed_without_recursion() -> None:
    predicate = parse_predicate(" OR ".join(f"qty * 2 = {number}" for number in range(2_000)))
    assert matching(ROWS, predicate, ROWS.schema).num_rows == 3


def test_table_without_condition_is_read_without_sqlglot() -> None:
    program = (
        "import sys, pyarrow as pa\nfrom lakehouse import Table\n"
        "t = Table.create('memory://lazy/t', name='t', record_key='id')\n"
        "t.upsert(pa.table({'id': ['a']}))\nassert t.scan().count() == 1\n"
        "assert 'sqlglot' not in sys.modules\n"
        "assert t.scan(where=\"length(id) = 1\").count() == 1\nassert 'sqlglot' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("name", ["on", "using", "union", "values", "Create"])
def test_reserved_word_is_the_name_of_a_column(name: str) -> None:
    rows = pa.table({name: [1, 2]})
    assert matches(parse_expression(f"abs({name}) = 2 OR {name} IN (7)"), rows).tolist() == [False, True]


@pytest.mark.parametrize("text", [r"w rlike '\d+'", r"w = 'C:\dir'", r"w = 'a' or w like '\w'"])
def test_backslash_that_spark_drops_is_refused_with_both_ways_to_write_it(text: str) -> None:
    with pytest.raises(
        UserError, match=r"in a string means [dw], as in Spark SQL\. Write .* or prefix the string with r"
    ):
        parse_expression(text)


def test_both_ways_to_write_a_backslash_match_digits() -> None:
    rows = pa.table({"w": ["d", "7"]})
    for text in (r"w rlike '\\d'", r"w rlike r'\d'"):
        assert matches(parse_expression(text), rows).tolist() == [False, True]
