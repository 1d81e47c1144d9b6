"""Creates the Spark session of a job and checks the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import pyspark
from pyspark.sql import SparkSession

from lakehouse.core.system.stop import before_stop
from lakehouse.errors import UserError
from lakehouse.spark.sockets import unix_sockets
from lakehouse.spark.source import register
from lakehouse.spark.stop import end_spark_call
from lakehouse.spark.submitted import submitted_settings

_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    # The JVM interprets methods of more than 8,000 bytes of bytecode and never compiles them. Spark's default of 65,535
    # generates such methods for the checks of many columns of JSON and CSV.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
#: Settings of a session that spark-submit did not start.
_ALONE = {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}


def job_session(name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, on the master of spark-submit or, without it, on all local cores.

    Raises UserError if pyspark and the JVM's Spark have different versions, because Python functions would fail with
    unclear errors.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    settings = {**_CONF, **(conf or {})}
    if "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings = {**_ALONE, **settings}
    settings |= unix_sockets({**submitted_settings(os.environ), **settings}, os.environ)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if spark.version != pyspark.__version__:
        raise UserError(
            f"Spark's JVM has version {spark.version} and Python's pyspark {pyspark.__version__}: install pyspark "
            f"{spark.version} in {sys.prefix}, without pyspark-client"
        )
    register(spark)
    before_stop(end_spark_call)
    return spark
