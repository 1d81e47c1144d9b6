"""Creates the Spark session of a job and checks the environment."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Mapping
from functools import cache
from tempfile import TemporaryDirectory

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakehouse.core.system.stop import before_stop
from lakehouse.spark.submitted import submitted_settings
from lakehouse.spark.versions.choice import require_same_minor, spark_version

_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    # The JVM interprets methods of more than 8,000 bytes of bytecode and never compiles them. Spark's default of 65,535
    # generates such methods for the checks on many columns of JSON and CSV.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
#: Settings of a session that spark-submit did not start.
_ALONE = {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}


def job_session(name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, on the master of spark-submit or, without it, on all local cores.

    The session has `format("lakehouse")`, except on Spark 3.5 (see `lakehouse.spark.read`).

    Raises:
        UserError: The version of Spark is not supported, or pyspark and the JVM's Spark have different minor versions.
    """
    version = spark_version()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    settings = {**_CONF, **(conf or {})}
    if "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings = {**_ALONE, **settings}
    settings |= unix_sockets({**submitted_settings(os.environ), **settings}, os.environ)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    require_same_minor(spark.version)
    version.register(spark)
    before_stop(end_spark_call)
    return spark


def unix_sockets(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return settings that turn Unix sockets on for a session on this machine; empty where they cannot be used.

    Over TCP a short task takes 40 to 50 ms more, about the time for which Linux delays the acknowledgement of a packet.
    The sockets are in a new folder that only this user can open, because Spark then requires no secret. It is removed
    when the process ends. Other machines do not have the folder, so sessions on a cluster keep their settings.

    Args:
        settings: The settings that the session will have. A value of the user for the switch of the sockets is kept.
        environ: The environment of the process.
    """
    sockets = spark_version().SOCKETS
    if sockets is None or not settings.get("spark.master", "").startswith("local"):
        return {}
    if sockets.enabled in settings or sockets.switch in environ or not hasattr(socket, "AF_UNIX"):
        return {}
    place = _folder()
    return {sockets.enabled: "true", sockets.folder: place} if len(place) <= sockets.most_characters else {}


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
