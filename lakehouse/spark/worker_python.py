"""Choose the Python of Spark's workers.

Spark starts `python3` of the PATH for workers, unless PYSPARK_PYTHON names another one. A script that runs as
`.venv/bin/python script.py` without an activated environment would get workers without NumPy, PyArrow and lakehouse:
their tasks fail with `No module named 'numpy'`.

    local master, PYSPARK_PYTHON not set     the workers get the Python of the driver
    cluster, PYSPARK_PYTHON not set          a warning before the first task: the hosts of the cluster may differ
    PYSPARK_PYTHON set                       nothing is changed
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

_VARIABLE = "PYSPARK_PYTHON"
#: Masters whose workers are processes of this host.
_LOCAL = "local"


class WorkerPythonWarning(UserWarning):
    """The workers of a cluster may run a Python without lakehouse."""


def set_worker_python(session: SparkSession, environ: Mapping[str, str] = os.environ) -> None:
    """Set the Python of a session's workers to this process's Python, or warn if the workers are on other hosts.

    A warning is shown once per process. The server of Spark Connect starts the workers of its sessions, so
    nothing is changed for them.
    """
    # Sessions of Spark Connect raise an AttributeError.
    context: SparkContext | None = getattr(session, "sparkContext", None)
    if context is None or environ.get(_VARIABLE):
        return
    if str(context.master).startswith(_LOCAL):
        # Spark reads it for each function that it sends to workers.
        context.pythonExec = sys.executable
        return
    warnings.warn(
        f"{_VARIABLE} is not set, so the workers of {context.master} run {context.pythonExec!r} of their PATH. Without "
        "lakehouse, PyArrow and NumPy there, tasks fail with 'No module named ...'. Before the session is created, set "
        f"{_VARIABLE} to the Python of an environment that all hosts have",
        WorkerPythonWarning,
        stacklevel=3,
    )
