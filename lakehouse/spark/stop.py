"""Ends the Spark call that a signal interrupts."""

from __future__ import annotations

from pyspark import SparkContext


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
