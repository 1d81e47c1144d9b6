"""What Spark's failures mean to the caller: the input is wrong, or something else is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from lakehouse.errors import RetryableError, UserError

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*)(?:\.[A-Z0-9_.]+)?\]\s*([^\n]*)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\.?\s*$")
#: Error conditions of Spark that an engineer mends in the files or in the spec.
_USERS = frozenset(
    {
        "CAST_INVALID_INPUT",
        "CAST_OVERFLOW",
        "CANNOT_PARSE_TIMESTAMP",
        "CANNOT_PARSE_DECIMAL",
        "CANNOT_MERGE_SCHEMAS",
        "CANNOT_READ_FILE_FOOTER",
        "DIVIDE_BY_ZERO",
        "FAILED_READ_FILE",
        "INCONSISTENT_BEHAVIOR_CROSS_VERSION",
        "INVALID_ARRAY_INDEX",
        "INVALID_URL",
        "NUMERIC_VALUE_OUT_OF_RANGE",
        "USER_RAISED_EXCEPTION",
        "ARITHMETIC_OVERFLOW",
    }
)
_VANISHED = frozenset({"FILE_NOT_EXIST", "PATH_NOT_FOUND"})


@contextmanager
def spark_failures(doing: str) -> Iterator[None]:
    """Raise UserError or RetryableError for failures that Spark names so; others pass unchanged.

    `doing` tells the reader of the message what was going on.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = _java_text(error) if isinstance(error, Py4JJavaError) else str(error)
        found = _CONDITION.search(text)
        condition, sentence = (found[1], found[2]) if found else ("", text.partition("\n")[0])
        sentence = _SQLSTATE.sub("", sentence)
        cause = _root_cause(error)
        because = f" ({cause})" if cause and cause not in sentence else ""
        if condition in _VANISHED or "FILE_NOT_EXIST" in text[:2000]:
            raise RetryableError(f"{doing}: a file vanished after it was listed: {sentence}{because}") from error
        if condition in _USERS or isinstance(error, AnalysisException | ParseException):
            raise UserError(f"{doing}: {sentence}{because}", condition=condition) from error
        raise


def _java_text(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception)


def _root_cause(error: BaseException) -> str:
    """Return the sentence of the deepest Java cause, or an empty string."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    deepest = ""
    while java is not None and hasattr(java, "getCause"):
        java = java.getCause()
        if java is not None:
            deepest = str(java.getMessage() or "").partition("\n")[0]
    return deepest[:300]
