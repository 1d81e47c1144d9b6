"""Selects the module of the installed version of Spark."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from typing import Any, cast

import pyspark

from lakehouse.errors import UserError
from lakehouse.spark.versions.protocol import SparkVersion

#: The module by the minor version of Spark.
_MODULES = {
    "3.5": "lakehouse.spark.versions.v35",
    "4.0": "lakehouse.spark.versions.v40",
    "4.1": "lakehouse.spark.versions.v41",
}
#: Major and minor version; vendors add a suffix such as `3.5.6-amzn-0` or `3.5.0.cloudera`.
_MINOR = re.compile(r"(\d+\.\d+)(?:\D|\Z)")

_CONNECT = "pyspark.sql.connect"
_NO_CONNECT = (
    "this is an object of Spark Connect, which has no access to the JVM and the workers of its server. Use a session "
    "in the driver's process: run the code by spark-submit, or SparkSession.builder.master(...) without .remote(...) "
    "and SPARK_REMOTE. Without Spark, to_arrow() and to_batches() read the table in this process"
)


@cache
def spark_version() -> SparkVersion:
    """Return the module of the installed pyspark; raise UserError if this version is not supported."""
    return version_module(pyspark.__version__)


def version_module(version: str) -> SparkVersion:
    """Return the module of a version of Spark, which may be a vendor's build; raise UserError if there is none."""
    module = _MODULES.get(minor_of(version))
    if module is None:
        supported = ", ".join(_MODULES)
        raise UserError(
            f"Spark {version} is not supported: this release runs on Spark {supported}. Install one of them in "
            f"{sys.prefix}: pip install 'pyspark=={next(reversed(_MODULES))}.*'"
        )
    return cast(SparkVersion, import_module(module))


def require_classic(value: Any) -> None:
    """Raise UserError for a session or frame of Spark Connect, and if this version of Spark is not supported."""
    if type(value).__module__.startswith(_CONNECT):
        raise UserError(_NO_CONNECT)
    spark_version()


def minor_of(version: str) -> str:
    """Return major and minor version, such as `3.5`; a version of another form is returned unchanged."""
    match = _MINOR.match(version)
    return match[1] if match else version


def require_same_minor(jvm: str) -> None:
    """Raise UserError if the Spark of the JVM and pyspark have different minor versions.

    Python functions would then fail with unclear errors. The last digit and a vendor's suffix may differ.
    """
    if minor_of(jvm) != minor_of(pyspark.__version__):
        minor = minor_of(jvm)
        raise UserError(
            f"Spark's JVM has version {jvm} and Python's pyspark {pyspark.__version__}: install pyspark {minor} in "
            f"{sys.prefix} (pip install 'pyspark=={minor}.*'), without pyspark-client, or set SPARK_HOME to a Spark "
            f"{minor_of(pyspark.__version__)}"
        )
