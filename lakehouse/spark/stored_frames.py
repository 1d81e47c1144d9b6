"""DataFrames whose rows are computed once and stored as a shuffle, from which all later queries read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakehouse.spark.versions.choice import spark_version


def stored_frame(spark: SparkSession, shuffled: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of a DataFrame that ends with a shuffle; they are computed once.

    The result reads the RDD of the planned shuffle, so that all jobs share the shuffle. With adaptive execution this
    call computes the rows, otherwise their first use. The result has the size estimate of the frame. Spark removes the
    files when nothing refers to the RDD.

    Args:
        spark: The session of the result.
        shuffled: The rows, whose last operation is a repartition.
        options: Settings of Spark with which the query is planned, in a clone of the session.
    """
    jvm: Any = spark._jvm
    clone = spark._jsparkSession.cloneSession()
    for name, value in options.items():
        clone.conf().set(name, value)
    planned = spark_version().dataset(spark, clone, shuffled._jdf.queryExecution().analyzed())
    logical = getattr(jvm.org.apache.spark.sql.execution, "LogicalRDD$")
    relation = getattr(logical, "MODULE$").fromDataset(planned.queryExecution().toRdd(), planned, False)
    return DataFrame(spark_version().dataset(spark, spark._jsparkSession, relation), spark)
