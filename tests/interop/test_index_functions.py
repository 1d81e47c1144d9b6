"""Functions of indexes on expressions give the values of Spark, or state that they cannot tell a value."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.rows.index_functions import called_function
from lakehouse.core.rows.result_values import NoValuesError
from tests.support.hudi import Hudi

pytestmark = pytest.mark.jvm

TEXTS = pa.array(
    [
        "",
        "a",
        "ab",
        "abc",
        "näme 😀x",
        "a1b22c333",
        "k-07_Z",
        "  x\t",
        "x\ny",
        "x\u2028",
        "AbC",
        "...",
        "a.b",
        "\\$",
        None,
    ]
)
TIMES = pa.array(
    [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(1, 1, 1),
        dt.datetime(1582, 10, 14, 5),
        dt.datetime(2024, 2, 29, 7, 5, 9, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59),
        None,
    ],
    pa.timestamp("us", "UTC"),
)
DAYS = pa.array([dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1970, 1, 1), dt.date(2024, 2, 29), None])
_YEARS = ("2024", "0001", "9999", "0000", "10000", "+2024", "-0044", "24")
_REST = (
    "",
    "-2",
    "-02",
    "-13",
    "-02-29",
    "-02-30",
    "-2-9",
    "-02-29 ",
    "-02-29T",
    "-02-29x",
    "-",
    "-00-01",
    "-1-",
    "-001-01",
)
_CLOCKS = (
    " 10:20:30", "T1:2:3", " 10:20:30.1", " 10:20:30.123456789", " 10:20:30Z", " 24:00:00", " 10:20", " 10:20:61",
    " 10:20:30+01:00", "T10", " 10:20:30.", " 10:20:30 UTC",
)  # fmt: skip
TIME_TEXTS = pa.array(
    [
        *(year + rest for year, rest in itertools.product(_YEARS, _REST)),
        *(f"2024-02-29{clock}" for clock in _CLOCKS),
        *(f" \t2024-02-29{clock}\x7f " for clock in _CLOCKS),
        *(
            "",
            " ",
            "n/a",
            "N/A",
            "today",
            "T10:20:30",
            "2024/02/29",
            "20240229",
            "2024-02-29\n",
            "\u00a02024-02-29",
            "é",
        ),
        *("29.02.2024", "2024-02-29'T'10:20:30", "2024-02-29 10:20:30 x", "2024-2-29 1:2:3", "٢٠٢٤-02-29", "epoch"),
        None,
    ]
)
#: Years for which Spark's parser of older releases raises an error.
CAST_TEXTS = pa.array([*TIME_TEXTS.to_pylist(), "1234567", "1234567-01-01", "99999999", "99999999-01-01 10:20:30"])
PATTERNS = (
    "b", "[a-c]+", "[^0-9]", r"\d+", r"(\w)(\d)", r"([a-z])([0-9]+)?", "a|ab", "^a", "c$", ".$", r"\.", "(a|b)c?",
    "x{1,2}", r"[\d.]+", r"\s", "(?:a)(b)", ".", "a+?", r"\$", "é|ä", "^(.)b", r"\W+", "z*",
)  # fmt: skip
CALLS: tuple[tuple[str, tuple[str, ...], pa.Array], ...] = (
    *(
        ("substring", (str(position), str(length)), TEXTS)
        for position in (0, 1, 2, 3, 9, -1, -2, -3, -9, 2**31 - 1, -(2**31))
        for length in (-1, 0, 1, 2, 5, 2**31 - 1)
    ),
    *(
        (name, (str(days),), column)
        for name in ("date_add", "date_sub")
        for days in (0, 1, -400)
        for column in (DAYS, TIMES)
    ),
    *((name, (), column) for name in ("to_date", "to_timestamp") for column in (DAYS, TIMES, CAST_TEXTS)),
    *(("unix_timestamp", (), column) for column in (DAYS, TIMES, TIME_TEXTS)),
    *(
        (name, (pattern,), TIME_TEXTS)
        for name in ("to_date", "to_timestamp", "unix_timestamp")
        for pattern in ("yyyy-MM-dd", "yyyyMMdd", "yyyy-MM", "yyyy-MM-dd HH:mm:ss", "yyyy/MM/dd", "dd.MM.yyyy")
    ),
    *(("regexp_extract", (pattern, "0"), TEXTS) for pattern in PATTERNS),
    *(("regexp_extract", (pattern, "1"), TEXTS) for pattern in PATTERNS if "(" in pattern.replace("(?:", "")),
    *(("regexp_replace", (pattern, replacement), TEXTS) for pattern in PATTERNS[:-1] for replacement in ("", "<é>")),
)
_REBASE = ("datetimeRebaseModeInRead", "datetimeRebaseModeInWrite", "int96RebaseModeInWrite")
#: Least part of the texts for which a cast has a result, so that the comparison means something.
_LEAST_OF_CASTS = {"to_date(x)": 0.5, "to_timestamp(x)": 0.2}


def _sql(name: str, arguments: Sequence[str]) -> str:
    quoted = [
        text if name in ("substring", "date_add", "date_sub") or (name == "regexp_extract" and number == 1)
        else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        for number, text in enumerate(arguments)
    ]  # fmt: skip
    return f"{name}({', '.join(['x', *quoted])})"


def _results(name: str, arguments: Sequence[str], values: pa.Array) -> tuple[list[Any], list[int]]:
    """Return the result of each value for which there is one, and the places of these values."""
    function = called_function(name, arguments)
    found: list[Any] = []
    places: list[int] = []
    for place in range(len(values)):
        try:
            result = function.evaluate(values.slice(place, 1))
        except NoValuesError:
            continue
        assert result.type == function.result_type(values.type)
        found += _plain(result)
        places.append(place)
    return found, places


def _plain(values: Any) -> list[Any]:
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.timestamp("us", "UTC"))
        values = values if pa.types.is_int32(values.type) else values.cast(pa.int64())
    return values.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", ["CORRECTED", "LEGACY"])
def test_results_are_those_of_spark_with_each_parser_of_times(policy: str, hudi: Hudi, tmp_path: Path) -> None:
    queries: dict[pa.DataType, list[tuple[str, tuple[str, ...], pa.Array]]] = {}
    for name, arguments, values in CALLS:
        queries.setdefault(values.type, []).append((name, arguments, values))
    compared = 0
    for number, calls in enumerate(itertools.chain.from_iterable(_by_values(of) for of in queries.values())):
        values = calls[0][2]
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": range(len(values)), "x": values}), path)
        columns = ", ".join(f"{_sql(name, arguments)} as r{at}" for at, (name, arguments, _) in enumerate(calls))
        settings = {"spark__sql__legacy__timeParserPolicy": policy}
        settings |= {f"spark__sql__parquet__{name}": "CORRECTED" for name in _REBASE}
        spark = hudi.query(f"select n, {columns} from parquet.`{path}`", **settings).sort_by("n")
        for at, (name, arguments, _) in enumerate(calls):
            theirs = _plain(spark.column(f"r{at}").combine_chunks())
            ours, places = _results(name, arguments, values)
            wrong = [
                (values[place].as_py(), mine, theirs[place])
                for mine, place in zip(ours, places, strict=True)
                if mine != theirs[place]
            ]
            assert not wrong, (_sql(name, arguments), wrong)
            least = (
                _LEAST_OF_CASTS.get(_sql(name, arguments), 0.02)
                if pa.types.is_string(values.type) and values is not TEXTS
                else 0.8
            )
            assert len(places) >= least * len(values), (_sql(name, arguments), len(places), len(values))
            compared += len(places)
    assert compared > 2_000


def _by_values(
    calls: Sequence[tuple[str, tuple[str, ...], pa.Array]],
) -> list[list[tuple[str, tuple[str, ...], pa.Array]]]:
    """Return the calls on the same values together."""
    found: dict[int, list[tuple[str, tuple[str, ...], pa.Array]]] = {}
    for call in calls:
        found.setdefault(id(call[2]), []).append(call)
    return list(found.values())
