"""Runs the transform of an ingestion: an SQL query or a Python function that computes rows from views."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.errors import LakehouseError, UserError
from lakehouse.spark.bad_records import mark_bad_records
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import CORRUPT, FILE_SET, INTERNAL, SOURCE_FILE, Frame
from lakehouse.spec.function import named_function
from lakehouse.spec.sql_text import FILES, VARIABLES, allowed_features, require_allowed_sql

#: Session settings that enable SQL features, and settings with which a backslash in quotes is a plain character.
_SETTINGS = {FILES: "spark.sql.runSQLOnFiles", VARIABLES: "spark.sql.variable.substitute"}
_PLAIN_BACKSLASH = ("spark.sql.parser.escapedStringLiterals", "spark.sql.ansi.doubleQuotedIdentifiers")
_analysis = RLock()
#: The name of a step in a line of a plan.
_STEP = re.compile(r"[ :+|-]*(\w+)")
#: Steps of plans whose results depend only on their input rows, not on the order of these rows.
_REPEATABLE = frozenset(
    {
        "Aggregate",
        "Distinct",
        "Filter",
        "Join",
        "LocalRelation",
        "MapInArrow",
        "Project",
        "Range",
        "Relation",
        "Repartition",
    }
    | {"SubqueryAlias", "Union", "View"}
)
#: Steps with expressions, and the mark at the end of a list that Spark prints only in part.
_EXPRESSIONS, _SHORTENED = frozenset({"Aggregate", "Filter", "Join", "Project"}), " more fields"
#: Functions whose result depends on the order of the rows, although Spark calls them deterministic.
_ORDERED = re.compile(
    r"\b(first|last|any)(_value)?\(|\b(collect|approx|percentile)_\w+\(|\b(max|min)_by\("
    r"|\b(array_agg|listagg|string_agg|mode|histogram_numeric)\("
)


def selected_columns(frame: Frame, select: Sequence[str]) -> Frame:
    """Return the SQL expressions of a spec over a view; the view itself if there are no expressions.

    Raises UserError for an expression that Spark cannot resolve, and for a feature that the deployment does not allow.
    """
    if not select:
        return frame
    with spark_failures("ingest.select"), _views_only(frame.sparkSession, select, "ingest.select"):
        return frame.selectExpr(*select)


def run_query(sql: str, views: Mapping[str, Frame]) -> Frame:
    """Return the result of a query over the views.

    Raises UserError for a query that Spark cannot parse or resolve, and for a feature that the deployment does not
    allow (`lakehouse.spec.sql_text`).
    """
    session = next(iter(views.values())).sparkSession
    with ExitStack() as stack, spark_failures("ingest.transform.sql"):
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
            # The plan of the result no longer needs the names.
            stack.callback(session.catalog.dropTempView, name)
        stack.enter_context(_views_only(session, [sql], "ingest.transform.sql"))
        return session.sql(sql)


@contextmanager
def _views_only(session: SparkSession, texts: Sequence[str], what: str) -> Iterator[None]:
    """Check SQL strings, and let Spark neither open files as relations nor replace variables in a block.

    The settings of the session are restored. Blocks in several threads run one after the other, because they share
    these settings.
    """
    allowed = allowed_features(os.environ)
    plain = [session.conf.get(name, "false") == "true" for name in _PLAIN_BACKSLASH]
    for escapes in (True, False) if any(plain) else (True,):
        require_allowed_sql(texts, what, os.environ, escapes=escapes)
    off = [setting for feature, setting in _SETTINGS.items() if feature not in allowed]
    with _analysis:
        before = {name: session.conf.get(name, "true") or "true" for name in off}
        try:
            for name in off:
                session.conf.set(name, "false")
            yield
        finally:
            for name, value in before.items():
                session.conf.set(name, value)


def run_function(name: str, views: Mapping[str, Frame]) -> Frame:
    """Return the DataFrame that a user's function computes from the views.

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


def is_repeatable(frame: Frame) -> bool:
    """Return whether the frame has the same rows each time that it is computed, as its plan shows.

    A plan with unknown steps, such as a limit, a sample or a window, may select other rows each time. If Spark prints a
    step only in part, its functions are unknown.
    """
    plan = frame._jdf.queryExecution().analyzed()
    text = str(plan.toString())
    lines = [(match[1], line) for line in text.splitlines() if (match := _STEP.match(line))]
    if any(step not in _REPEATABLE or (step in _EXPRESSIONS and _SHORTENED in line) for step, line in lines):
        return False
    return bool(plan.deterministic()) and not _ORDERED.search(text)


def marked_rows(frame: Frame, key_fields: tuple[str, ...], origin: str) -> Frame:
    """Return the rows with the columns of bad records, like `mark_bad_records` for files.

    Args:
        frame: The rows that a transform made.
        key_fields: The key columns; a row without a value in any of them is a bad record.
        origin: The placeholder for the file of a bad record.
    """
    reserved = next((name for name in frame.columns if name in INTERNAL), None)
    if reserved is not None:
        raise UserError(f"column {reserved!r} is a name of this package; rename it in the transform", column=reserved)
    # All columns are added in one call, because Spark analyzes the whole query again at each call.
    whole = frame.withColumns(
        {CORRUPT: F.lit(None).cast("string"), SOURCE_FILE: F.lit(origin), FILE_SET: F.lit(0)},
    )
    return mark_bad_records(whole, key_fields)
