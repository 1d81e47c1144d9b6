"""Runs the transform of an ingestion: a SQL query or a Python function that makes rows of views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lakehouse.errors import LakehouseError, UserError
from lakehouse.spark.bad_records import mark_bad_records
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import CORRUPT, FILE_SET, INTERNAL, SOURCE_FILE, Frame
from lakehouse.spec.function import named_function


def selected_columns(frame: Frame, select: Sequence[str]) -> Frame:
    """Return the SQL expressions of a spec over a view; the view itself without expressions."""
    with spark_failures("ingest.select"):
        return frame.selectExpr(*select) if select else frame


def run_query(sql: str, views: Mapping[str, Frame]) -> Frame:
    """Return the result of a query over the views; raise UserError for a query that Spark cannot parse or resolve."""
    session = next(iter(views.values())).sparkSession
    with ExitStack() as stack, spark_failures("ingest.transform.sql"):
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
            # The plan of the result no longer needs the names.
            stack.callback(session.catalog.dropTempView, name)
        return session.sql(sql)


def run_function(name: str, views: Mapping[str, Frame]) -> Frame:
    """Return the DataFrame that a user's function makes of the views.

    Raises UserError if the function cannot be loaded, fails, or returns something else.
    """
    function = named_function(
        name,
        what="ingest.transform.function",
        hint="Install its package, or add its folder to PYTHONPATH or LAKEHOUSE_MODULES",
    )
    try:
        result = function(dict(views))
    except (LakehouseError, PySparkException):
        raise
    except Exception as error:
        raise UserError(
            f"ingest.transform.function {name!r} failed: {type(error).__name__}: {error}", function=name
        ) from error
    if not isinstance(result, Frame):
        raise UserError(
            f"ingest.transform.function {name!r} returned {type(result).__name__}; it must return a DataFrame",
            function=name,
        )
    return result


def marked_rows(frame: Frame, key_fields: tuple[str, ...], origin: str) -> Frame:
    """Return the rows with the columns that bad records have, as `mark_bad_records` does for files.

    Args:
        frame: The rows that a transform made.
        key_fields: The key columns; a row without a value in any of them is a bad record.
        origin: What stands for the file of a bad record.
    """
    reserved = next((name for name in frame.columns if name in INTERNAL), None)
    if reserved is not None:
        raise UserError(f"column {reserved!r} is a name of this package; rename it in the transform", column=reserved)
    # One call: Spark analyzes the whole query again at each.
    whole = frame.withColumns(
        {CORRUPT: F.lit(None).cast("string"), SOURCE_FILE: F.lit(origin), FILE_SET: F.lit(0)},
    )
    return mark_bad_records(whole, key_fields)
