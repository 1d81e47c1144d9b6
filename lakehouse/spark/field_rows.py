"""Converts DataFrames of parsed strings into rows with typed columns, and finds the first bad value of each record."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.errors import UserError
from lakehouse.spark.field_values import PATTERN_OPTIONS, FieldRules, quoted

_TEXT = "_lakehouse_text_"


def typed_rows(frame: DataFrame, layout: StructType, rules: FieldRules, *, problem: str) -> DataFrame:
    """Return the rows of a DataFrame whose columns `layout` are parsed strings, with the types in `layout`.

    Args:
        frame: The strings, and further columns that stay as they are.
        layout: The string columns, with the types of their values.
        rules: How strings become values.
        problem: The name of a new column: the message about the first bad value of a record, else null.

    Returns: The rows, with the strings of all columns as `_lakehouse_text_<position>`.
    """
    names = set(layout.names)
    others = [quoted(name) for name in frame.columns if name not in names]
    texts, values = [], []
    for number, column in enumerate(layout):
        text = quoted(column.name)
        texts.append(f"{text} AS {_TEXT}{number}")
        values.append(text if rules.is_plain(column.dataType) else f"{rules.value(text, column.dataType)} AS {text}")
    message = rules.problem(
        [(column.name, column.dataType) for column in layout],
        lambda number: f"{_TEXT}{number}",
        lambda number: quoted(layout.names[number]),
    )
    return frame.selectExpr(*others, *texts, *values).withColumn(problem, F.expr(message))


def csv_text(layout: StructType, options: Mapping[str, str]) -> Column:
    """Return the CSV record for the strings in a row of `typed_rows`."""
    keeps_space = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
    texts = (F.col(f"{_TEXT}{number}") for number in range(len(layout)))
    return F.to_csv(F.struct(*texts), {**options, **keeps_space})


def check_patterns(options: Mapping[str, str]) -> None:
    """Raise UserError for a pattern without a year, a month and a day: the reader would invent them."""
    for name, text in options.items():
        letters = set(re.sub("'[^']*'", "", text))
        has_day = letters & set("yu") and (letters & set("D") or (letters & set("ML") and letters & set("d")))
        if name.lower() in PATTERN_OPTIONS and not has_day:
            raise UserError(
                f"ingest.options: {name}: {text!r} has no year, month and day, so the reader would fill in what the "
                "values do not state. Declare the columns as string in 'schema', and convert them in 'select'",
                option=name,
            )


def separators_of(session: SparkSession, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the grouping and the decimal separator of the option `locale`; empty without it."""
    locale = next((text for name, text in options.items() if name.lower() == "locale"), "")
    if not locale:
        return ()
    jvm = session.sparkContext._jvm
    assert jvm is not None, "a classic session has a JVM"
    symbols = jvm.java.text.DecimalFormatSymbols.getInstance(jvm.java.util.Locale.forLanguageTag(locale))
    return str(symbols.getGroupingSeparator()), str(symbols.getDecimalSeparator())
