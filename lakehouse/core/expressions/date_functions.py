"""Functions of dates and times in expressions; times are in UTC.

Functions that exist for expression indexes have one implementation, so a condition and an index agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.arithmetic import added_months, moved
from lakehouse.core.expressions.casts import cast_value
from lakehouse.core.expressions.string_functions import text_literal
from lakehouse.core.expressions.values import Datum, plain
from lakehouse.core.rows.index_functions import called_function
from lakehouse.errors import UserError

_DATE_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month", "mm": "month",
    "week": "week",
}  # fmt: skip
_TIME_UNITS = _DATE_UNITS | {
    "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second", "millisecond": "millisecond",
    "microsecond": "microsecond",
}  # fmt: skip


def indexed(name: str, arguments: Sequence[Datum]) -> Datum:
    """Evaluate a function of `rows.index_functions`, whose arguments after the first are literals."""
    value, *options = arguments
    for option in options:
        if not isinstance(option, pa.Scalar) or not option.is_valid:
            raise UserError(f"the arguments of {name} after the first must be literals in the text of the expression")
    function = called_function(name, [str(option.as_py()) for option in options])
    kind = plain(value.type)
    if pa.types.is_null(kind):
        kind = pa.string()
    why = function.refusal(kind)
    if why is not None:
        raise UserError(why.replace("the column has", "the argument has"), function=name)
    if isinstance(value, pa.Scalar):
        return function.of_rows(pa.array([value.as_py()], kind))[0]
    result = function.of_rows(value if value.type == kind else value.cast(kind))
    return result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result


def day(value: Datum) -> Datum:
    """Return an argument that must be a date; a timestamp becomes its date, a string is parsed."""
    return cast_value(value, pa.date32())


def shifted(arguments: Sequence[Datum], operator: str) -> Datum:
    """Add or subtract days."""
    count = arguments[1]
    if not pa.types.is_integer(count.type):
        raise UserError(f"a number of days is a whole number, and the argument has the type {count.type}")
    return moved(day(arguments[0]), count if operator == "+" else pc.negate(count))


def difference(arguments: Sequence[Datum]) -> Datum:
    """Return the number of days from the second date to the first."""
    end, start = (day(value).cast(pa.int32()) for value in arguments)
    return pc.subtract_checked(end, start)


def shifted_months(arguments: Sequence[Datum]) -> Datum:
    """Add months."""
    return added_months(_array(day(arguments[0])), arguments[1])


def last_day(arguments: Sequence[Datum]) -> Datum:
    """Return the last day of the month."""
    first = pc.floor_temporal(_array(day(arguments[0])), unit="month").cast(pa.date32())
    return moved(added_months(first, pa.scalar(1)), pa.scalar(-1))


def truncated_date(arguments: Sequence[Datum]) -> Datum:
    """Return the first day of the year, quarter, month or week."""
    unit = _unit("trunc", arguments[1], _DATE_UNITS)
    return pc.floor_temporal(day(arguments[0]), unit=unit, week_starts_monday=True).cast(pa.date32())


def truncated_time(arguments: Sequence[Datum]) -> Datum:
    """Return the start of the unit in which a timestamp is."""
    unit = _unit("date_trunc", arguments[0], _TIME_UNITS)
    value = cast_value(arguments[1], pa.timestamp("us", "UTC"))
    return pc.floor_temporal(value, unit=unit, week_starts_monday=True)


def _unit(name: str, value: Datum, units: dict[str, str]) -> str:
    text = text_literal(name, value).lower()
    if text not in units:
        raise UserError(f"the unit {text!r} of {name} is not supported; units: {', '.join(units)}")
    return units[text]


def _array(value: Datum) -> Datum:
    return pa.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else value
