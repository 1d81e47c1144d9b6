"""Converts Spark's failures to the exceptions of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
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
#: Messages of Spark about a process that ended or a connection that it lost: a worker in its task or at its start
#: (Spark shows either its end or the socket that it closed), an executor, files of a shuffle, or the context of the
#: session.
_ENDED = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|ExecutorLostFailure|SocketAuthHelper\.authToServer"
    r"|java\.net\.(SocketException|SocketTimeoutException|ConnectException)|java\.nio\.channels\.ClosedChannelException"
    r"|java\.io\.IOException: (Connection reset|Broken pipe)|pyspark\.daemon"
    r"|MetadataFetchFailedException|Missing an output location for shuffle|FetchFailed\("
    r"|SparkContext (was|has been) shut ?down|[Ss]topped SparkContext"
)
#: Messages of py4j if the Java process does not answer. If it answers with an exception, the message also contains that
#: exception.
_NO_ANSWER = re.compile(r"^An error occurred while calling [\w.$]+$")
_MISSING_FILE_CONDITIONS = frozenset({"FILE_NOT_EXIST", "PATH_NOT_FOUND"})


@contextmanager
def spark_failures(doing: str) -> Iterator[None]:
    """Raise an exception of this package for known failures of Spark; others pass unchanged.

    An exception of this package that a worker raised is raised again with its class and message. Conditions that Spark
    attributes to the query or the files become UserError; missing files, processes that ended and lost connections
    become RetryableError. `doing` describes the current step in the message.
    """
    try:
        yield
    except Py4JError as error:
        if isinstance(error, Py4JJavaError):
            _translate(error, doing)
        elif isinstance(error, Py4JNetworkError) or _NO_ANSWER.search(str(error)):
            raise RetryableError(
                f"{doing}: the Java process of the Spark session ended or its connection was lost ({error}); its log "
                "has the cause"
            ) from error
        raise
    except PySparkException as error:
        _translate(error, doing)
        raise


def _translate(error: PySparkException | Py4JJavaError, doing: str) -> None:
    """Raise the exception of this package for a known failure; return for others."""
    text = _java_text(error) if isinstance(error, Py4JJavaError) else str(error)
    if (raised := _raised_in_worker(text)) is not None:
        raise raised from error
    causes = _causes(error)
    if any(_ENDED.search(one) for one in (text, *causes)):
        raise RetryableError(
            f"{doing}: a Python worker or an executor of Spark ended before its task was done, or its connection was "
            "lost. Often its host has too little memory: raise spark.executor.memoryOverhead, or lower "
            "lakehouse.write.memory.budget"
        ) from error
    match = _CONDITION.search(text)
    condition, sentence = (match[1], match[2]) if match else ("", text.partition("\n")[0])
    sentence = _SQLSTATE.sub("", sentence)
    cause = _message_of(causes)
    because = f" ({cause})" if cause and cause not in sentence else ""
    if condition == "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" or "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in text[:4000]:
        raise RetryableError(f"{doing}: an executor that kept rows of the run was lost: {sentence}") from error
    if condition in _MISSING_FILE_CONDITIONS or "FILE_NOT_EXIST" in text[:2000]:
        raise RetryableError(f"{doing}: a file was deleted after it was listed: {sentence}{because}") from error
    if condition in _USER_CONDITIONS or isinstance(error, AnalysisException | ParseException):
        raise UserError(f"{doing}: {sentence}{because}", condition=condition) from error


def _raised_in_worker(trace: str) -> LakehouseError | None:
    """Return the last exception of this package in a worker's traceback."""
    for name, message in reversed(_LAKEHOUSE_ERROR.findall(trace)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, LakehouseError):
            return kind(message.strip())
    return None


def _java_text(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception)


def _causes(error: BaseException) -> list[str]:
    """Return the Java causes of an error as strings `class: message`, the deepest one last."""
    java, texts = getattr(error, "java_exception", None) or getattr(error, "_origin", None), list[str]()
    while java is not None and hasattr(java, "getCause"):
        java = java.getCause()
        if java is not None:
            texts.append(str(java.toString()))
    return texts


def _message_of(causes: list[str]) -> str:
    """Return the first line of the deepest cause's message, or an empty string."""
    return causes[-1].partition("\n")[0].partition(": ")[2][:300] if causes else ""
