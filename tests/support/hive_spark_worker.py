"""Serve requests to Spark SQL with Hive's catalog: the process behind `tests.support.hive_spark`.

Each line of stdin is a request in JSON, each line of stdout its answer. The process ends when stdin ends.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.platform.metastore.hive import HiveMetastore
from lakehouse.platform.publish.spark_views import create_view
from lakehouse.spark import register


def start(uri: str, home: str) -> SparkSession:
    """Return a Spark session with two threads whose catalog is the metastore."""
    settings = {
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.catalogImplementation": "hive",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={home}",
        "spark.local.dir": f"{home}/local",
        "spark.sql.warehouse.dir": f"{home}/warehouse",
        "spark.sql.session.timeZone": "UTC",
        # With this setting Spark shares the planned read of a Python data source between queries.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("consumer").enableHiveSupport()
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def answer(spark: SparkSession, uri: str, request: dict[str, Any]) -> Any:
    """Run a query, or list the files that Hive's input format reads.

    If the request names a published table, the query can use a view of it.
    """
    if request["verb"] == "splits":
        return splits(spark, request["location"], request["format"])
    if request["verb"] == "source":
        reader = spark.read.format("lakehouse").option("published", request["view"])
        if request["where"]:
            reader = reader.option("where", request["where"])
        frame = reader.option("hoodie.datasource.hive_sync.metastore.uris", uri).load()
        # The query must not depend on filters of earlier queries of the same relation.
        frame.where(f"`{frame.columns[-1]}` = 'no such value'").count()
        frame.createOrReplaceTempView("source")
    elif request.get("view"):
        metastore = HiveMetastore(uri)
        create_view(spark, metastore, request["view"])
        metastore.close()
    frame = spark.sql(request["text"])
    if request["verb"] == "explain":
        return frame._jdf.queryExecution().optimizedPlan().toString()
    return [list(row) for row in frame.collect()]


def splits(spark: SparkSession, location: str, format: str) -> list[str]:
    """Return the files that Hive's input format lists at a location."""
    jvm: Any = spark._jvm
    conf = jvm.org.apache.hadoop.mapred.JobConf()
    jvm.org.apache.hadoop.mapred.FileInputFormat.setInputPaths(conf, location)
    input_format = jvm
    for part in format.split("."):
        input_format = getattr(input_format, part)
    found = input_format().getSplits(conf, 1)
    targets = set()
    for split in found:
        # Without reflection the split is accessible only in a MapReduce job.
        field = split.getClass().getDeclaredField("split")
        field.setAccessible(True)
        targets.add(field.get(split).getPath().toString())
    return sorted(targets)


def main(uri: str, home: str) -> None:
    """Answer requests until stdin ends."""
    out, sys.stdout = sys.stdout, sys.stderr
    spark = start(uri, home)
    print(json.dumps({"value": spark.version}), file=out, flush=True)
    for line in sys.stdin:
        try:
            result: dict[str, Any] = {"value": answer(spark, uri, json.loads(line))}
        except Exception:
            result = {"error": traceback.format_exc()}
        print(json.dumps(result, default=str), file=out, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
