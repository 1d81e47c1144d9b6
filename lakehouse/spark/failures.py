"""Translates failures of Spark to the exceptions of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from lakehouse import errors
from lakehouse.errors import LakehouseError, RetryableError, UserError

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*)(?:\.[A-Z0-9_.]+)?\]\s*([^\n]*)")
_LAKEHOUSE_ERROR = re.compile(r"^lakehouse\.[\w.]+\.(\w+): (.*?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\.?\s*$")
#: Error conditions of Spark that a user can correct in the files or in the spec.
_USER_CONDITIONS = frozenset(
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
#: What Spark says about a process that ended: a worker in its task or at its start, or an executor.
_ENDED = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|ExecutorLostFailure|SocketAuthHelper\.authToServer"
)
_MISSING_FILE_CONDITIONS = frozenset({"FILE_NOT_EXIST", "PATH_NOT_FOUND"})


@contextmanager
def spark_failures(doing: str) -> Iterator[None]:
    """Raise an exception of this package for known failures of Spark; others pass unchanged.

    An exception of this package that a worker raised is raised again with its class and message. Conditions that Spark
    attributes to the query or the files become UserError; missing files and processes that ended become RetryableError.
    `doing` describes the current step in the message.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = _java_text(error) if isinstance(error, Py4JJavaError) else str(error)
        if (raised := _raised_in_worker(text)) is not None:
            raise raised from error
        if _ENDED.search(text):
            raise RetryableError(
                f"{doing}: a Python worker or an executor of Spark ended before its task was done. Often its host has "
                "too little memory: raise spark.executor.memoryOverhead, or lower lakehouse.write.memory.budget"
            ) from error
        found = _CONDITION.search(text)
        condition, sentence = (found[1], found[2]) if found else ("", text.partition("\n")[0])
        sentence = _SQLSTATE.sub("", sentence)
        cause = _root_cause(error)
        because = f" ({cause})" if cause and cause not in sentence else ""
        if condition == "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" or "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in text[:4000]:
            raise RetryableError(f"{doing}: an executor that kept rows of the run was lost: {sentence}") from error
        if condition in _MISSING_FILE_CONDITIONS or "FILE_NOT_EXIST" in text[:2000]:
            raise RetryableError(f"{doing}: a file was deleted after it was listed: {sentence}{because}") from error
        if condition in _USER_CONDITIONS or isinstance(error, AnalysisException | ParseException):
            raise UserError(f"{doing}: {sentence}{because}", condition=condition) from error
        raise


def _raised_in_worker(trace: str) -> LakehouseError | None:
    """Return the last exception of this package in the text of a worker's traceback."""
    for name, message in reversed(_LAKEHOUSE_ERROR.findall(trace)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, LakehouseError):
            return kind(message.strip())
    return None


def _java_text(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception)


def _root_cause(error: BaseException) -> str:
    """Return the message of the deepest Java cause, or an empty string."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    deepest = ""
    while java is not None and hasattr(java, "getCause"):
        java = java.getCause()
        if java is not None:
            deepest = str(java.getMessage() or "").partition("\n")[0]
    return deepest[:300]
