"""Functions of expression indexes: results, refusals, and which of them preserve order."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.rows.index_functions import called_function, function_names, index_function
from lakehouse.core.rows.result_values import NoValuesError
from lakehouse.errors import UserError

TIMES = pa.array(
    [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29, 7, 5, 9), None], pa.timestamp("us", "UTC")
)
#: Arguments of the functions that need some.
ARGUMENTS = {
    "date_add": ("3",),
    "date_sub": ("3",),
    "substring": ("1", "2"),
    "regexp_extract": ("a", "0"),
    "regexp_replace": ("a", "b"),
}
DAYS = pa.array([dt.date(1582, 10, 15), dt.date(2024, 12, 29), None])


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("identity", pa.array([1, None]), [1, None]),
        ("upper", pa.array(["straße", "aé", "x$", None]), ["STRASSE", "AÉ", "X$", None]),
        ("LOWER", pa.array(["ΑΣ", "ÀB", "", None]), ["ας", "àb", "", None]),
        ("trim", pa.array(["  a\t ", None]), ["a\t", None]),
        ("ltrim", pa.array(["  a "]), ["a "]),
        ("rtrim", pa.array(["  a "]), ["  a"]),
        ("length", pa.array(["näme 😀", ""]), [6, 0]),
        ("year", TIMES, [1969, 2024, None]),
        ("month", DAYS, [10, 12, None]),
        ("quarter", DAYS, [4, 4, None]),
        ("day", TIMES, [31, 29, None]),
        ("dayofmonth", DAYS, [15, 29, None]),
        ("dayofyear", TIMES, [365, 60, None]),
        ("dayofweek", DAYS, [6, 1, None]),
        ("weekofyear", DAYS, [41, 52, None]),
        ("hour", TIMES, [23, 7, None]),
        ("minute", TIMES, [59, 5, None]),
        ("second", TIMES, [59, 9, None]),
    ],
)
def test_function_returns_the_values_of_spark(name: str, values: pa.Array, expected: list[object]) -> None:
    function = index_function(name, {})
    assert function.refusal(values.type) is None
    assert function.evaluate(values).to_pylist() == expected
    assert function.evaluate(pa.chunked_array([values, values])).to_pylist() == expected * 2


@pytest.mark.parametrize(
    ("pattern", "expected", "keeps_order"),
    [
        ("yyyy-MM-dd", ["1969-12-31", "2024-02-29"], True),
        ("yyyy-MM-dd'T'HH:mm:ss", ["1969-12-31T23:59:59", "2024-02-29T07:05:09"], True),
        ("yyyyMM", ["196912", "202402"], True),
        ("dd/MM/yyyy", ["31/12/1969", "29/02/2024"], False),
        ("yyyy dd", ["1969 31", "2024 29"], False),
        ("HH", ["23", "07"], False),
    ],
)
def test_date_format_writes_patterns_and_knows_which_ones_sort_by_time(
    pattern: str, expected: list[str], keeps_order: bool
) -> None:
    function = index_function("date_format", {"format": pattern})
    assert function.evaluate(TIMES).to_pylist() == [*expected, None]
    assert function.keeps_order is keeps_order


def test_formats_of_days_and_of_seconds_equal_those_of_timestamps() -> None:
    assert index_function("date_format", {}).evaluate(DAYS)[1].as_py() == "2024-12-29 00:00:00"
    assert index_function("from_unixtime", {}).evaluate(pa.array([-1, 0])).to_pylist() == [
        "1969-12-31 23:59:59",
        "1970-01-01 00:00:00",
    ]
    early = pa.array([dt.date(7, 1, 2)])
    assert index_function("date_format", {"format": "yyyy-MM-dd"}).evaluate(early).to_pylist() == ["0007-01-02"]


@pytest.mark.parametrize("pattern", ["yy", "EEEE", "yyyy-MM-dd HH:mm:ss.SSS", "100%", "''", "[yyyy]"])
def test_format_with_other_letters_is_refused(pattern: str) -> None:
    with pytest.raises(UserError, match="is not supported"):
        index_function("date_format", {"format": pattern})


def test_unknown_function_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"'uper' .*Did you mean 'upper'"):
        index_function("uper", {})


@pytest.mark.parametrize(
    ("name", "kind"),
    [("hour", pa.date32()), ("hour", pa.timestamp("us", "Europe/Paris")), ("upper", pa.int32()), ("year", pa.string())],
)
def test_column_of_another_type_is_refused(name: str, kind: pa.DataType) -> None:
    assert str(kind) in (index_function(name, {}).refusal(kind) or "")


def test_years_without_four_digits_have_no_formatted_value() -> None:
    late = pa.array([253_402_300_800])
    with pytest.raises(NoValuesError, match="10000"):
        index_function("from_unixtime", {}).evaluate(late)
    with pytest.raises(NoValuesError):
        index_function("from_unixtime", {}).evaluate(pa.array([2**62]))


@pytest.mark.parametrize("name", ["lower", "upper"])
def test_letters_whose_case_depends_on_the_version_of_unicode_have_no_value(name: str) -> None:
    with pytest.raises(NoValuesError, match="depends on the engine"):
        index_function(name, {}).evaluate(pa.array(["a", "\u019b"]))


def test_functions_that_keep_order_are_monotonic_on_sorted_values() -> None:
    times = pa.array([dt.datetime(1900, 1, 1) + dt.timedelta(hours=997 * n) for n in range(2000)], pa.timestamp("us"))
    checked = 0
    for name in function_names():
        has_format = name in ("date_format", "from_unixtime")
        function = called_function(name, ("yyyy-MM-dd",) if has_format else ARGUMENTS.get(name, ()))
        if function.keeps_order and function.refusal(times.type) is None:
            values = function.evaluate(times)
            assert pc.all(pc.less_equal(values.slice(0, len(values) - 1), values.slice(1))).as_py(), name
            checked += 1
    assert checked == 3
