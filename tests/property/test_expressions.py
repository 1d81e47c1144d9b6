"""Random expressions over random Arrow data have the values that DuckDB computes.

Where Spark differs from DuckDB, `in_duckdb` writes the expression of DuckDB with Spark's result: a quotient of integers
is a double, and a decimal quotient is not compared.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.expressions.conditions import parse_predicate
from lakehouse.core.expressions.evaluate import evaluate
from lakehouse.core.expressions.parse import parse_expression
from lakehouse.core.planning.predicate import matching
from tests.support.tables import examples


@dataclass(frozen=True)
class Text:
    """An expression in Spark's and in DuckDB's SQL."""

    spark: str
    duckdb: str

    @classmethod
    def same(cls, text: str) -> Text:
        return cls(text, text)


def joined(template: str, *parts: Text, duck: str | None = None) -> Text:
    return Text(
        template.format(*(part.spark for part in parts)), (duck or template).format(*(part.duckdb for part in parts))
    )


INTEGERS, DECIMALS, STRINGS, DATES, FLAGS = ("i", "j"), ("d", "e"), ("s", "t"), ("x", "y"), ("f", "g")
KINDS = {"i": pa.int32(), "d": pa.decimal128(8, 2), "s": pa.string(), "x": pa.date32(), "f": pa.bool_()}
integers = st.sampled_from([*INTEGERS, "0", "1", "-3", "7", "1000"]).map(Text.same)
decimals = st.sampled_from([*DECIMALS, "0.5", "12.25", "-1.10"]).map(Text.same)
strings = st.sampled_from([*STRINGS, "'a'", "'Ab'", "''", "'b_%'"]).map(Text.same)
dates = st.sampled_from([*DATES, "DATE '2026-01-31'", "DATE '1999-12-31'"]).map(Text.same)


@st.composite
def number(draw: st.DrawFn, depth: int = 2) -> Text:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(integers | decimals)
    one, two = draw(number(depth - 1)), draw(number(depth - 1))
    flag = draw(condition(depth - 1))
    return draw(
        st.sampled_from(
            [
                joined("({0} + {1})", one, two),
                joined("({0} - {1})", one, two),
                joined("(- {0})", one),
                joined("abs({0})", one),
                joined("coalesce({0}, {1})", one, two),
                joined("CASE WHEN {2} THEN {0} ELSE {1} END", one, two, flag),
                joined("greatest({0}, {1})", one, two),
                joined("least({0}, {1})", one, two),
                joined("nullif({0}, {1})", one, two),
                joined("if({2}, {0}, {1})", one, two, flag),
                Text("(i * j)", "(i * j)"),
                Text("(d * e)", "(d * e)"),
                Text("(i % nullif(j, 0))", "(i % nullif(j, 0))"),
                Text("length(s)", "length(s)"),
                Text("year(x)", "year(x)"),
                Text("month(y)", "month(y)"),
                Text("datediff(x, y)", "date_diff('day', y, x)"),
                Text("instr(s, 'b')", "instr(s, 'b')"),
            ]
        )
    )


@st.composite
def text(draw: st.DrawFn, depth: int = 2) -> Text:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(strings)
    one, two = draw(text(depth - 1)), draw(text(depth - 1))
    return draw(
        st.sampled_from(
            [
                joined("upper({0})", one),
                joined("lower({0})", one),
                joined("({0} || {1})", one, two),
                joined("reverse({0})", one),
                joined("trim({0})", one),
                joined("coalesce({0}, {1})", one, two),
                joined("substring({0}, 2, 1)", one),
                joined("left({0}, 1)", one),
                joined("replace({0}, 'b', 'xy')", one),
                joined("concat_ws('-', {0}, {1})", one, two),
            ]
        )
    )


@st.composite
def condition(draw: st.DrawFn, depth: int = 2) -> Text:
    if depth == 0:
        return draw(st.sampled_from([*FLAGS, "true", "i IS NULL", "s IS NOT NULL"]).map(Text.same))
    kind = draw(st.sampled_from(["number", "text", "date", "logic", "logic"]))
    if kind == "logic":
        one, two = draw(condition(depth - 1)), draw(condition(depth - 1))
        forms = ["({0} AND {1})", "({0} OR {1})", "(NOT {0})", "({0} IS NULL)"]
        return joined(draw(st.sampled_from(forms)), one, two)
    terms = {"number": number, "text": text}
    one, two = (draw(dates if kind == "date" else terms[kind](depth - 1)) for _ in range(2))
    if kind == "text" and draw(st.booleans()):
        pattern = draw(st.sampled_from(["'a%'", "'%b%'", "'_'", "'%'", "'A_'"]))
        return joined("({0} LIKE " + pattern + ")", one)
    compared = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    forms = [
        Text(f"({{0}} {compared} {{1}})", f"({{0}} {compared} {{1}})"),
        Text("({0} <=> {1})", "({0} IS NOT DISTINCT FROM {1})"),
        Text("({0} IN ({1}, {0}))", "({0} IN ({1}, {0}))"),
        Text("({0} BETWEEN {1} AND {0})", "({0} BETWEEN {1} AND {0})"),
    ]
    form = draw(st.sampled_from(forms))
    return joined(form.spark, one, two, duck=form.duckdb)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 6))
    values = {
        "i": st.integers(-9, 9),
        "d": st.decimals(-99, 99, places=2),
        "s": st.text("aAb _%é", max_size=4),
        "x": st.dates(dt.date(1990, 1, 1), dt.date(2030, 1, 1)),
        "f": st.booleans(),
    }
    columns = {}
    for names in (INTEGERS, DECIMALS, STRINGS, DATES, FLAGS):
        for name in names:
            drawn = draw(st.lists(st.none() | values[names[0]], min_size=rows, max_size=rows))
            columns[name] = pa.array(drawn, KINDS[names[0]])
    return pa.table(columns)


def in_duckdb(expression: Text, rows: pa.Table) -> list[Any]:
    """Return the value of an expression for each row, as DuckDB computes it."""
    connection = duckdb.connect()
    connection.register("rows", rows.append_column("row", pa.array(range(rows.num_rows), pa.int64())))
    return [value for (value,) in connection.execute(f"SELECT {expression.duckdb} FROM rows ORDER BY row").fetchall()]


def plain(value: Any) -> Any:
    """Return a value with one representation for equal numbers."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return Decimal(str(value)).normalize() + 0
    return value


@given(rows=tables(), expression=number() | text() | condition())
@examples(400)
def test_expression_has_the_value_of_duckdb(rows: pa.Table, expression: Text) -> None:
    computed = [plain(value) for value in evaluate(parse_expression(expression.spark), rows).to_pylist()]
    assert computed == [plain(value) for value in in_duckdb(expression, rows)], expression.spark


@given(rows=tables(), where=condition(3))
@examples(200)
def test_condition_selects_the_rows_of_duckdb(rows: pa.Table, where: Text) -> None:
    numbered = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    matches = matching(numbered, parse_predicate(where.spark), numbered.schema).column("row").to_pylist()
    expected = [row for row, value in enumerate(in_duckdb(where, rows)) if value is True]
    assert matches == expected, where.spark
