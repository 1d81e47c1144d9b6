"""The functions of expressions: one table with the number of arguments, an example and the evaluation of each.

The reference page of expressions is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions import date_functions as dates
from lakehouse.core.expressions import number_functions as numbers
from lakehouse.core.expressions import string_functions as strings
from lakehouse.core.expressions.arithmetic import arithmetic, negative
from lakehouse.core.expressions.values import Datum
from lakehouse.core.rows.index_functions import function_names
from lakehouse.errors import UserError, nearest
from lakehouse.model.expression import Expression, Operation

Arguments = Sequence[Datum]
_MANY = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that is evaluated row by row.

    Attributes:
        evaluate: Returns the results for columns of arguments, or for single values.
        at_least, at_most: The bounds for the number of arguments.
        group: The heading in the reference.
        example: A call and its result.
        sees_null: Whether a result may be other than null if an argument is null.
    """

    evaluate: Callable[[Arguments], Datum]
    at_least: int
    at_most: int
    group: str
    example: str
    sees_null: bool = False


#: Operators that are written between or before their operands.
OPERATORS = (
    "+", "-", "*", "/", "%", "div", "||", "&", "|", "^", "~", "=", "!=", "<", "<=", ">", ">=", "<=>", "and", "or",
    "not", "in", "like", "ilike", "rlike", "isnull", "cast", "try_cast", "interval", "case", "negative",
)  # fmt: skip
#: Forms that evaluate an argument only for the rows that need it, with examples for the reference.
LAZY = {
    "coalesce": "coalesce(null, 1) = 1",
    "nvl": "nvl(null, 1) = 1",
    "ifnull": "ifnull(null, 1) = 1",
    "nvl2": "nvl2(null, 1, 2) = 2",
    "nullif": "nullif(1, 1) IS NULL",
    "if": "if(1 > 2, 'a', 'b') = 'b'",
    "isnotnull": "isnotnull(1)",
    "rlike": "rlike('abc', 'b+')",
    "regexp_like": "regexp_like('abc', 'b+')",
}


def _number(least: int, most: int, example: str, evaluate: Callable[[Arguments], Datum]) -> Function:
    return Function(evaluate=evaluate, at_least=least, at_most=most, group="Numbers", example=example)


def _string(least: int, most: int, example: str, evaluate: Callable[[Arguments], Datum]) -> Function:
    return Function(evaluate=evaluate, at_least=least, at_most=most, group="Strings", example=example)


def _date(least: int, most: int, example: str, evaluate: Callable[[Arguments], Datum]) -> Function:
    return Function(evaluate=evaluate, at_least=least, at_most=most, group="Dates and times", example=example)


def _indexed(name: str) -> Callable[[Arguments], Datum]:
    return lambda arguments: dates.indexed(name, arguments)


_ROUND = _number(1, 2, "round(2.5) = 3", lambda a: numbers.rounded_to(a, "half_towards_infinity"))
_CEIL = _number(1, 1, "ceil(1.2) = 2", lambda a: numbers.whole(a[0], pc.ceil))
_POWER = _number(2, 2, "power(2, 3) = 8", lambda a: pc.power(numbers.double(a[0]), numbers.double(a[1])))
_LN = _number(1, 1, "ln(1) = 0", lambda a: numbers.positive("ln", pc.ln, a[0]))
_SIGN = _number(1, 1, "sign(-5) = -1", lambda a: pc.sign(numbers.double(a[0])))
_LENGTH = _string(1, 1, "length('añb') = 3", strings.length)
_SUBSTRING = _string(2, 3, "substring('abcd', 2, 2) = 'bc'", strings.part)
_UPPER = _string(1, 1, "upper('a') = 'A'", _indexed("upper"))
_LOWER = _string(1, 1, "lower('A') = 'a'", _indexed("lower"))
_DAY = _date(1, 1, "day(DATE '2026-01-31') = 31", _indexed("day"))

FUNCTIONS: Mapping[str, Function] = {
    "abs": _number(1, 1, "abs(-1) = 1", lambda a: numbers.absolute(a[0])),
    "round": _ROUND,
    "bround": _number(1, 2, "bround(2.5) = 2", lambda a: numbers.rounded_to(a, "half_to_even")),
    "ceil": _CEIL,
    "ceiling": _CEIL,
    "floor": _number(1, 1, "floor(1.8) = 1", lambda a: numbers.whole(a[0], pc.floor)),
    "sqrt": _number(1, 1, "sqrt(9) = 3", lambda a: pc.sqrt(numbers.double(a[0]))),
    "exp": _number(1, 1, "exp(0) = 1", lambda a: pc.exp(numbers.double(a[0]))),
    "ln": _LN,
    "log10": _number(1, 1, "log10(100) = 2", lambda a: numbers.positive("log10", pc.log10, a[0])),
    "log2": _number(1, 1, "log2(8) = 3", lambda a: numbers.positive("log2", pc.log2, a[0])),
    "power": _POWER,
    "pow": _POWER,
    "sign": _SIGN,
    "signum": _SIGN,
    "mod": _number(2, 2, "mod(7, 3) = 1", lambda a: arithmetic("%", a[0], a[1])),
    "pmod": _number(2, 2, "pmod(-7, 3) = 2", lambda a: numbers.positive_mod(a[0], a[1])),
    "negative": _number(1, 1, "negative(1) = -1", lambda a: negative(a[0])),
    "isnan": Function(
        evaluate=lambda a: pc.fill_null(pc.is_nan(numbers.double(a[0])), False),
        at_least=1,
        at_most=1,
        group="Numbers",
        example="isnan(CAST('NaN' AS DOUBLE))",
        sees_null=True,
    ),
    "greatest": Function(
        evaluate=lambda a: numbers.extreme(a, greatest=True),
        at_least=2,
        at_most=_MANY,
        group="Numbers",
        example="greatest(1, null, 3) = 3",
        sees_null=True,
    ),
    "least": Function(
        evaluate=lambda a: numbers.extreme(a, greatest=False),
        at_least=2,
        at_most=_MANY,
        group="Numbers",
        example="least(2, null, 3) = 2",
        sees_null=True,
    ),
    "upper": _UPPER,
    "ucase": _UPPER,
    "lower": _LOWER,
    "lcase": _LOWER,
    "length": _LENGTH,
    "char_length": _LENGTH,
    "character_length": _LENGTH,
    "trim": _string(1, 1, "trim(' a ') = 'a'", _indexed("trim")),
    "ltrim": _string(1, 1, "ltrim(' a') = 'a'", _indexed("ltrim")),
    "rtrim": _string(1, 1, "rtrim('a ') = 'a'", _indexed("rtrim")),
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "left": _string(2, 2, "left('abc', 2) = 'ab'", strings.left),
    "right": _string(2, 2, "right('abc', 2) = 'bc'", strings.right),
    "concat": _string(1, _MANY, "concat('a', 'b') = 'ab'", lambda a: reduce(strings.joined, a)),
    "concat_ws": Function(
        evaluate=strings.joined_with,
        at_least=2,
        at_most=_MANY,
        group="Strings",
        example="concat_ws('-', 'a', null, 'b') = 'a-b'",
        sees_null=True,
    ),
    "replace": _string(3, 3, "replace('aba', 'a', 'c') = 'cbc'", strings.replaced_text),
    "reverse": _string(1, 1, "reverse('abc') = 'cba'", lambda a: pc.utf8_reverse(strings.text(a[0]))),
    "repeat": _string(2, 2, "repeat('ab', 2) = 'abab'", strings.repeated),
    "lpad": _string(2, 3, "lpad('7', 3, '0') = '007'", lambda a: strings.padded(a, pc.utf8_lpad)),
    "rpad": _string(2, 3, "rpad('7', 3, '0') = '700'", lambda a: strings.padded(a, pc.utf8_rpad)),
    "instr": _string(2, 2, "instr('abc', 'b') = 2", lambda a: strings.place(a[0], a[1])),
    "locate": _string(2, 2, "locate('b', 'abc') = 2", lambda a: strings.place(a[1], a[0])),
    "startswith": _string(2, 2, "startswith('abc', 'a')", lambda a: strings.tested(pc.starts_with, "startswith", a)),
    "endswith": _string(2, 2, "endswith('abc', 'c')", lambda a: strings.tested(pc.ends_with, "endswith", a)),
    "contains": _string(2, 2, "contains('abc', 'b')", lambda a: strings.tested(pc.match_substring, "contains", a)),
    "regexp_extract": _string(2, 3, r"regexp_extract('a12', '[0-9]+', 0) = '12'", strings.extracted_group),
    "regexp_replace": _string(3, 3, "regexp_replace('a12', '[0-9]', 'x') = 'axx'", _indexed("regexp_replace")),
    "year": _date(1, 1, "year(DATE '2026-01-31') = 2026", _indexed("year")),
    "quarter": _date(1, 1, "quarter(DATE '2026-05-31') = 2", _indexed("quarter")),
    "month": _date(1, 1, "month(DATE '2026-01-31') = 1", _indexed("month")),
    "day": _DAY,
    "dayofmonth": _DAY,
    "dayofyear": _date(1, 1, "dayofyear(DATE '2026-02-01') = 32", _indexed("dayofyear")),
    "dayofweek": _date(1, 1, "dayofweek(DATE '2026-02-01') = 1", _indexed("dayofweek")),
    "weekofyear": _date(1, 1, "weekofyear(DATE '2026-01-31') = 5", _indexed("weekofyear")),
    "hour": _date(1, 1, "hour(TIMESTAMP '2026-01-31 12:30:00') = 12", _indexed("hour")),
    "minute": _date(1, 1, "minute(TIMESTAMP '2026-01-31 12:30:00') = 30", _indexed("minute")),
    "second": _date(1, 1, "second(TIMESTAMP '2026-01-31 12:30:59') = 59", _indexed("second")),
    "date_add": _date(2, 2, "date_add(DATE '2026-01-31', 1) = DATE '2026-02-01'", lambda a: dates.shifted(a, "+")),
    "date_sub": _date(2, 2, "date_sub(DATE '2026-02-01', 1) = DATE '2026-01-31'", lambda a: dates.shifted(a, "-")),
    "datediff": _date(2, 2, "datediff(DATE '2026-02-01', DATE '2026-01-30') = 2", dates.difference),
    "add_months": _date(2, 2, "add_months(DATE '2026-01-31', 1) = DATE '2026-02-28'", dates.shifted_months),
    "last_day": _date(1, 1, "last_day(DATE '2026-02-01') = DATE '2026-02-28'", dates.last_day),
    "trunc": _date(2, 2, "trunc(DATE '2026-02-17', 'month') = DATE '2026-02-01'", dates.truncated_date),
    "date_trunc": _date(
        2,
        2,
        "date_trunc('hour', TIMESTAMP '2026-01-01 12:34:00') = TIMESTAMP '2026-01-01 12:00:00'",
        dates.truncated_time,
    ),
    "to_date": _date(1, 2, "to_date('2026-01-31') = DATE '2026-01-31'", _indexed("to_date")),
    "to_timestamp": _date(
        1, 2, "to_timestamp('2026-01-31 12:00:00') = TIMESTAMP '2026-01-31 12:00:00'", _indexed("to_timestamp")
    ),
    "date_format": _date(2, 2, "date_format(DATE '2026-01-31', 'yyyy/MM') = '2026/01'", _indexed("date_format")),
    "unix_timestamp": _date(
        1, 2, "unix_timestamp(TIMESTAMP '1970-01-02 00:00:00') = 86400", _indexed("unix_timestamp")
    ),
    "from_unixtime": _date(1, 2, "from_unixtime(0) = '1970-01-01 00:00:00'", _indexed("from_unixtime")),
    "identity": Function(
        evaluate=lambda a: a[0], at_least=1, at_most=1, group="Numbers", example="identity(1) = 1", sees_null=True
    ),
}


def function_named(name: str, count: int) -> Function:
    """Return a function; raise UserError for an unknown name or a wrong number of arguments."""
    function = FUNCTIONS.get(name)
    if function is None:
        raise UserError(
            f"the function {name!r} is unknown.{nearest(name, (*FUNCTIONS, *LAZY))} The page Expressions lists all of "
            "them",
            function=name,
        )
    if not function.at_least <= count <= function.at_most:
        expected = (
            str(function.at_least)
            if function.at_least == function.at_most
            else f"{function.at_least} to {function.at_most}"
        )
        raise UserError(
            f"the function {name!r} takes {expected} arguments, and {count} are given. Example: {function.example}",
            function=name,
        )
    return function


def check_functions(expression: Expression) -> None:
    """Raise UserError for a function that is unknown, or that has a wrong number of arguments."""
    if not isinstance(expression, Operation):
        return
    is_special = expression.name in OPERATORS or expression.name in LAZY
    # A function of an index has more forms, such as trim(name, 'x').
    if not is_special and expression.name not in function_names():
        function_named(expression.name, len(expression.arguments))
    for argument in expression.arguments:
        check_functions(argument)


def is_null(value: Datum) -> bool:
    """Return whether an argument is the literal NULL."""
    return isinstance(value, pa.Scalar) and not value.is_valid
