"""Creates the Spark session of a job and checks the environment."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Mapping
from functools import cache
from tempfile import TemporaryDirectory

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse.core.system.stop import before_stop
from lakehouse.errors import UserError
from lakehouse.spark.source import register
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
ENABLED, FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"
#: Spark's own switch, an environment variable.
SWITCH = "PYSPARK_UDS_MODE"
#: Spark refuses a longer path of the folder, because paths of sockets are short.
_MOST_CHARACTERS = 61


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


def unix_sockets(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return settings that turn Unix sockets on for a session on this machine; empty where they cannot be used.

    Over TCP a short task takes 40 to 50 ms more, about the time for which Linux delays the acknowledgement of a packet.
    The sockets are in a new folder that only this user can open, because Spark then asks for no secret. It is removed
    when the process ends. Other machines do not have the folder, so sessions on a cluster keep their settings.

    Args:
        settings: The settings that the session will have. A value of the user for `ENABLED` is kept.
        environ: The environment of the process.
    """
    if not settings.get("spark.master", "").startswith("local") or ENABLED in settings or SWITCH in environ:
        return {}
    if not hasattr(socket, "AF_UNIX"):
        return {}
    place = _folder()
    return {ENABLED: "true", FOLDER: place} if len(place) <= _MOST_CHARACTERS else {}


@cache
def _folder() -> str:
    # The JVM may still create a socket when the process ends.
    created = TemporaryDirectory(prefix="lakehouse-", ignore_cleanup_errors=True)
    atexit.register(created.cleanup)
    return created.name


def end_spark_call() -> None:
    """Close this thread's connection to the JVM and cancel the running Spark jobs.

    An interrupted call leaves its result on the connection, where the next call would read it. py4j opens a new
    connection for the next call. The tasks of the cancelled jobs end without a result.
    """
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is None or gateway is None:
        return
    connection = gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close(reset=True)
    context.cancelAllJobs()
