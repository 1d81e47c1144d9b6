"""The functions of expression indexes give the values of Spark SQL on generated texts and times."""

from __future__ import annotations

import datetime as dt
import random
import sys
import unicodedata
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.rows.index_functions import CHARACTERS, FORMAT, function_names, index_function

pytestmark = pytest.mark.spark

#: A column that each function accepts, if it is not `at`.
COLUMNS = {name: "text" for name in ("lower", "upper", "trim", "ltrim", "rtrim", "length")} | {
    "identity": "number",
    "from_unixtime": "number",
}
#: Functions with arguments of their own, or whose texts Spark parses: tests/interop/test_index_functions.py.
OTHERS = {"substring", "date_add", "date_sub", "regexp_extract", "regexp_replace"}
OTHERS |= {"to_date", "to_timestamp", "unix_timestamp"}
TRIMS = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}
FORMATS = ("yyyy-MM-dd HH:mm:ss", "dd/MM/yyyy", "yyyyMM", "HH-mm 'h'")
#: Characters whose case mapping does not depend on the version of Unicode.
RANGES = ((1, 0x17F), (0x386, 0x3CE), (0x400, 0x45F), (0x621, 0x64A), (0x3000, 0x30FF), (0x4E00, 0x4EFF))
ASSIGNED = [chr(n) for low, high in RANGES for n in range(low, high + 1) if unicodedata.category(chr(n)) != "Cn"]


def generated_rows(count: int, seed: int) -> pa.Table:
    draw = random.Random(seed)
    texts = ["".join(draw.choices(ASSIGNED, k=draw.randrange(6))) for _ in range(count - 40)]
    texts += [draw.choice(["Ab ", " \tx", "ΑΣ", "ß", "İ", "😀é", ""]) for _ in range(40)]
    start = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    moments = [start + dt.timedelta(microseconds=draw.randrange(9998 * 365 * 86_400_000_000)) for _ in range(count)]
    numbers = [draw.randrange(-(10**10), 2 * 10**11) for _ in range(count)]
    return pa.table(
        {
            "text": pa.array(texts),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "number": pa.array([*numbers[1:], None], pa.int64()),
        }
    )


def test_index_functions_equal_those_of_spark(spark: Any) -> None:
    rows = generated_rows(1500, seed=20)
    spark.createDataFrame(rows).createOrReplaceTempView("generated")
    calls: list[tuple[str, str, dict[str, str]]] = []
    assert set(function_names()) >= OTHERS
    names = [name for name in function_names() if name not in OTHERS]
    for name in names:
        column = COLUMNS.get(name, "at")
        formats = FORMATS if name in ("date_format", "from_unixtime") else ("",)
        calls += [(name, column, {FORMAT: text} if text else {}) for text in formats]
    calls += [(name, "text", {CHARACTERS: "xÄ "}) for name in TRIMS]
    sql = []
    for number, (name, column, options) in enumerate(calls):
        pattern = options.get(FORMAT, "").replace("'", "\\'")
        arguments = f"{column}, '{pattern}'" if pattern else column
        call = column if name == "identity" else f"{name}({arguments})"
        if CHARACTERS in options:
            call = f"trim({TRIMS[name]} '{options[CHARACTERS]}' FROM {column})"
        sql.append(f"{call} AS c{number}")
    result = spark.sql(f"SELECT {', '.join(sql)} FROM generated").toArrow()
    assert result.num_rows == rows.num_rows, sys.version
    for number, (name, column, options) in enumerate(calls):
        ours = index_function(name, options).evaluate(rows.column(column))
        theirs = result.column(f"c{number}")
        different = [
            (value, a, b)
            for value, a, b in zip(rows.column(column).to_pylist(), ours.to_pylist(), theirs.to_pylist(), strict=True)
            if a != b
        ]
        assert not different, (name, options, different[:5])
    assert len(calls) > len(names)
