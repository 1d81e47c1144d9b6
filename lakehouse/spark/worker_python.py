"""Choose the Python of Spark's workers, and check that it can run tasks.

Spark starts `python3` of the PATH for workers, unless PYSPARK_PYTHON or `spark.pyspark.python` names another one. A
script that runs as `.venv/bin/python script.py` without an activated environment would get workers without NumPy,
PyArrow and lakehouse: their tasks fail with `No module named 'numpy'`.

    local master      the workers get the Python of the driver, unless PYSPARK_PYTHON is set
    cluster           the first session of an application runs one small task on each executor, which imports the
                      packages and returns the version of lakehouse

Without the check, a missing package would fail the first task of the write four times, after the job has read its
source, and the message would be in the logs of an executor.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.worker_credentials import give_credentials

_VARIABLE = "PYSPARK_PYTHON"
#: Masters whose workers are processes of this host.
_LOCAL = "local"
#: The packages that tasks import; re2 is compiled, so a zip file of modules does not contain it.
_PACKAGES = ("numpy", "pyarrow", "re2", "lakehouse")
_MOST_TASKS = 100
_DESCRIPTION = "spark.job.description"
_REMEDY = (
    "Give the nodes the environment of the driver: `lakehouse environment pack` writes an archive of it. Set "
    "spark.archives=<archive>#environment and spark.pyspark.python=./environment/bin/python, or install the same "
    "environment on all nodes and set {variable} to its Python"
)
#: Failures of Spark's tasks because of the Python that it starts, each with the part to show.
_NO_PYTHON = (
    re.compile(r"Cannot run program \"[^\"]*\"[^\n]*"),
    re.compile(r"Python in worker has different version[^\n]*"),
    re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*"),
    re.compile(r"(ModuleNotFoundError|ImportError): [^\n)]*"),
    re.compile(r"SyntaxError: [^\n]*"),
    re.compile(r"(?<=Error from python worker:\n)\s*[^\n]*"),
)
#: Applications whose workers are checked.
_checked: set[str] = set()


def set_worker_python(session: SparkSession, environ: Mapping[str, str] = os.environ) -> None:
    """Give the workers of a local session the Python of this process, and check the workers of a cluster.

    The check runs once per application. Raises UserError if the Python of an executor lacks a package, has another
    version of lakehouse, or does not start. The server of Spark Connect starts the workers of its sessions, so nothing
    is done for them.
    """
    # Sessions of Spark Connect raise an AttributeError.
    context: SparkContext | None = getattr(session, "sparkContext", None)
    if context is None:
        return
    if str(context.master).startswith(_LOCAL):
        if not environ.get(_VARIABLE):
            # Spark reads it for each function that it sends to workers.
            context.pythonExec = sys.executable
        return
    if context.applicationId not in _checked:
        give_credentials(session, environ)
        check_workers(context)
        _checked.add(context.applicationId)


def check_workers(context: SparkContext) -> None:
    """Run one task on each registered executor; raise UserError if a Python there cannot run tasks."""
    executors = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1
    tasks = min(max(executors, 1), _MOST_TASKS)
    with _described(context, "check of the Python on executors"), spark_failures("checking the Python of the workers"):
        try:
            answers = context.parallelize(range(tasks), tasks).mapPartitions(_check_of(_PACKAGES)).collect()
        except Py4JJavaError as error:
            reason = _python_failure(str(error.java_exception.getMessage() or ""))
            if reason is None:
                raise
            raise _refused(context, f"does not start: {reason}") from error
    # Modules of this package may not import the public package above it.
    own = str(import_module("lakehouse").__version__)
    for host, program, missing, version in answers:
        if missing:
            raise _refused(context, f"cannot run tasks: {missing}", host, program)
        if version != own:
            raise _refused(context, f"has lakehouse {version}, and the driver has {own}", host, program)


def _check_of(packages: tuple[str, ...]) -> Callable[[Any], Iterator[tuple[str, str, str, str]]]:
    def check(numbers: Any) -> Iterator[tuple[str, str, str, str]]:
        # This function is sent as code, because a worker without lakehouse cannot import it. It uses no name of this
        # module, so it imports by calls.
        socket, system, importlib = map(__import__, ("socket", "sys", "importlib"))
        missing, version = "", ""
        try:
            modules = [importlib.import_module(name) for name in packages]
            version = modules[-1].__version__
        except Exception as error:
            missing = f"{type(error).__name__}: {error}"
        yield socket.gethostname(), system.executable, missing, version

    return check


def _python_failure(message: str) -> str | None:
    """Return the part of Spark's message about a Python that does not start; None for another failure."""
    if not any(
        text in message for text in ("python worker", "Cannot run program", "PYTHON_VERSION", "different version")
    ):
        return None
    matches = (pattern.search(message) for pattern in _NO_PYTHON)
    return next((match[0].strip() for match in matches if match), None)


def _refused(context: SparkContext, reason: str, host: str = "", program: str = "") -> UserError:
    where = f" on {host}" if host else ""
    return UserError(
        f"the Python of the workers{where} ({program or context.pythonExec}) {reason}. "
        f"{_REMEDY.format(variable=_VARIABLE)}",
        host=host,
    )


@contextmanager
def _described(context: SparkContext, text: str) -> Iterator[None]:
    """Show a description of the Spark jobs in this block on Spark's pages."""
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        # None removes the property.
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]
