"""Filters of Arrow become predicates that hold for at least the rows for which the filter is true."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.format.arrow_expression import (
    ExpressionCall,
    ExpressionField,
    ExpressionLiteral,
    UnknownExpressionError,
    decode_expression,
)
from lakehouse.core.planning.arrow_filter import filter_columns, pruning_predicate
from lakehouse.model.predicate import And, Comparison, In, IsNull, Not, Or, Predicate, StartsWith

SCHEMA = pa.schema(
    [
        ("a", pa.int32()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(6, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string())])),
        ("x.y", pa.int32()),
        ("x", pa.struct([("y", pa.int32())])),
    ]
)
a, s, f, b, d, at = (pc.field(name) for name in ("a", "s", "f", "b", "d", "at"))
NO_ROW = Or(())
NULL = pa.scalar(None, pa.bool_())


def number(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.int32())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (a > 5, Comparison("a", ">", number(5))),
        (pc.scalar(5) > a, Comparison("a", "<", number(5))),
        (pc.less_equal(pc.scalar(5), a), Comparison("a", ">=", number(5))),
        (a == pa.scalar(5, pa.uint8()), Comparison("a", "=", number(5))),
        (~(a > 5), Comparison("a", "<=", number(5))),
        ((a > 5) & (s == "it's"), And((Comparison("a", ">", number(5)), Comparison("s", "=", pa.scalar("it's"))))),
        ((a == 1) | (a == 2), Or((Comparison("a", "=", number(1)), Comparison("a", "=", number(2))))),
        (~((a == 1) | (a == 2)), And((Comparison("a", "!=", number(1)), Comparison("a", "!=", number(2))))),
        (b, Comparison("b", "=", True)),
        (~b, Comparison("b", "=", False)),
        (a.is_null(), IsNull("a")),
        (~a.is_null(), Not(IsNull("a"))),
        (a.is_valid(), Not(IsNull("a"))),
        (~a.is_valid(), IsNull("a")),
        (a.isin([1, 2]), In("a", (number(1), number(2)))),
        (a.isin([1, None]), Or((In("a", (number(1),)), IsNull("a")))),
        (~a.isin([1]), Or((Not(In("a", (number(1),))), IsNull("a")))),
        (pc.if_else(a.is_valid(), a.isin([1]), NULL), And((Not(IsNull("a")), In("a", (number(1),))))),
        (pc.starts_with(s, "a%"), StartsWith("s", "a%")),
        (~pc.starts_with(s, "a%"), Not(StartsWith("s", "a%"))),
        (pc.field("place", "city") == "x", Comparison("place.city", "=", pa.scalar("x"))),
        (f == 1, Comparison("f", "=", pa.scalar(1.0))),
        (d == Decimal("1.5"), Comparison("d", "=", pa.scalar(Decimal("1.50"), pa.decimal128(6, 2)))),
        (
            at >= pa.scalar(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), pa.timestamp("ms", "UTC")),
            Comparison("at", ">=", pa.scalar(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC"))),
        ),
        (a == pa.scalar(None, pa.int32()), NO_ROW),
        (pc.scalar(False), NO_ROW),
        ((a == 1) & pc.scalar(False), NO_ROW),
    ],
    ids=str,
)
def test_filter_becomes_an_equivalent_predicate(expression: pc.Expression, expected: Predicate) -> None:
    assert pruning_predicate(expression, SCHEMA) == expected


@pytest.mark.parametrize(
    "expression",
    [
        pc.scalar(True),
        pc.is_nan(f),
        ~(f > 1.5),
        ~f.isin([1.5]),
        pc.greater(f, math.nan),
        pc.not_equal(f, math.nan),
        f.isin([1.5, math.nan]),
        f.is_null(nan_is_null=True),
        f == pa.scalar(0.1, pa.float32()),
        a == pa.scalar(2.5),
        a == 2**40,
        d == Decimal("1.555"),
        at > pa.scalar(5, pa.timestamp("ns", "UTC")),
        at > pa.scalar(5, pa.timestamp("us")),
        a.cast(pa.int64()) == 1,
        a == pc.field("x.y"),
        pc.starts_with(s, "a", ignore_case=True),
        pc.match_substring(s, "a"),
        (a == 1) | pc.is_nan(f),
        # The name `x.y` means the column `x.y` in a predicate, not the field `y` of `x`.
        pc.field("x", "y") == 1,
        pc.field("other") == 1,
        pc.field(0) == 1,
    ],
    ids=str,
)
def test_filter_without_an_equivalent_predicate_prunes_nothing(expression: pc.Expression) -> None:
    assert pruning_predicate(expression, SCHEMA) is None


def test_unknown_part_of_a_conjunction_is_omitted() -> None:
    assert pruning_predicate((a == 1) & pc.is_nan(f), SCHEMA) == Comparison("a", "=", number(1))
    assert pruning_predicate(~((a == 1) | pc.is_nan(f)), SCHEMA) == Comparison("a", "!=", number(1))


def test_columns_of_a_filter_include_those_of_unknown_functions() -> None:
    assert filter_columns((a == 1) & pc.is_nan(f) & (pc.field("place", "city") == "x")) == ("a", "f", "place")
    assert filter_columns(pc.field(0) == 1) is None


def test_decoded_tree_has_functions_paths_typed_literals_and_options() -> None:
    tree = decode_expression((pc.field("place", "city") == "x") & pc.starts_with(s, "ü\n'"))
    assert isinstance(tree, ExpressionCall)
    equal, starts = tree.arguments
    assert equal == ExpressionCall("equal", (ExpressionField(("place", "city")), ExpressionLiteral(pa.scalar("x"))))
    assert isinstance(starts, ExpressionCall) and starts.options is not None
    assert starts.options["pattern"].as_py() == "ü\n'"


def test_deep_filter_is_not_decoded() -> None:
    expression = a == 0
    for value in range(300):
        expression = expression | (a == value)
    with pytest.raises(UnknownExpressionError, match="levels"):
        decode_expression(expression)
    assert pruning_predicate(expression, SCHEMA) is None
