"""Serve requests to Apache Hudi on Spark: the process behind `tests.support.hudi`.

It runs in `.venv-hudi`, which has only pyspark, so it imports neither this project nor pyarrow. Each line of stdin is a
request in JSON, each line of stdout its answer. Rows are exchanged as Parquet files. The process ends when stdin ends.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession

EXTENSIONS = "org.apache.spark.sql.hudi.HoodieSparkSessionExtension"
CATALOG = "org.apache.spark.sql.hudi.catalog.HoodieCatalog"


def start(jar: str, home: str, *extra_settings: str) -> SparkSession:
    """Return a Spark session with two threads and Hudi's bundle; each extra setting has the form key=value."""
    settings = {
        "spark.jars": jar,
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.catalog.spark_catalog": CATALOG,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={home} -XX:TieredStopAtLevel=1",
        "spark.local.dir": f"{home}/local",
        "spark.sql.warehouse.dir": f"{home}/warehouse",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **dict(setting.split("=", 1) for setting in extra_settings),
    }
    builder = SparkSession.builder.master("local[2]").appName("hudi")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class Worker:
    """Runs requests on one Spark session; registers a table for SQL once per location."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._names: dict[str, str] = {}
        self._lock: Any = None

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one request and return its answer; result rows are written to the request's path `output`."""
        if request["verb"] == "lock":
            return {"held": self._lock_table(request)}
        if request["verb"] == "call":
            return {"result": self._call(request["function"], request["argument"])}
        if request["verb"] == "classes":
            self._loader().addURL(self._spark._jvm.java.net.URI(request["directory"]).toURL())
        elif request["verb"] == "unlock":
            self._lock.unlock()
            self._lock.close()
        elif request["verb"] == "read":
            reader = self._spark.read.format("hudi").options(**request["options"])
            _write_output(reader.load(request["location"]), request["output"])
        elif request["verb"] == "collect":
            rows = self._spark.read.format("hudi").options(**request["options"]).load(request["location"])
            return {"rows": [row.asDict() for row in rows.select(*request["columns"]).collect()]}
        elif request["verb"] == "write":
            rows = self._spark.read.parquet(request["input"])
            rows.write.format("hudi").options(**request["options"]).mode(request["mode"]).save(request["location"])
        else:
            self._sql(request)
        return {}

    def _loader(self) -> Any:
        return self._spark._jvm.org.apache.hudi.common.config.TypedProperties().getClass().getClassLoader()

    def _call(self, function: str, argument: str) -> str:
        no_types = self._spark.sparkContext._gateway.new_array(self._spark._jvm.java.lang.Class, 0)
        no_values = self._spark.sparkContext._gateway.new_array(self._spark._jvm.java.lang.Object, 0)
        made = self._loader().loadClass(function).getDeclaredConstructor(no_types).newInstance(no_values)
        return str(made.apply(argument))

    def _lock_table(self, request: dict[str, Any]) -> bool:
        jvm = self._spark._jvm
        properties = jvm.org.apache.hudi.common.config.TypedProperties()
        for key, value in request["options"].items():
            properties.setProperty(key, value)
        hadoop = self._spark._jsc.hadoopConfiguration()
        provider = jvm
        for part in request["provider"].split("."):
            provider = getattr(provider, part)
        self._lock = provider(
            jvm.org.apache.hudi.common.config.LockConfiguration(properties),
            jvm.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(hadoop),
        )
        return bool(self._lock.tryLock(request["wait_ms"], jvm.java.util.concurrent.TimeUnit.MILLISECONDS))

    def _sql(self, request: dict[str, Any]) -> None:
        for key, value in request["settings"].items():
            self._spark.conf.set(key, value)
        try:
            text = request["text"]
            if request["rows"]:
                self._spark.read.parquet(request["rows"]).createOrReplaceTempView("incoming")
            if request["location"]:
                text = text.replace("{table}", self._registered(request["location"]))
            _write_output(self._spark.sql(text), request["output"])
        finally:
            for key in request["settings"]:
                self._spark.conf.unset(key)

    def _registered(self, location: str) -> str:
        if location not in self._names:
            name = f"table_{len(self._names)}"
            self._spark.sql(f"CREATE TABLE {name} USING hudi LOCATION '{location}'")
            self._names[location] = name
        self._spark.sql(f"REFRESH TABLE {self._names[location]}")
        return self._names[location]


def _write_output(rows: DataFrame, output: str) -> None:
    if output:
        rows.coalesce(1).write.parquet(output)


def serve(worker: Worker, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until the input ends."""
    for line in requests:
        try:
            answer = worker.run(json.loads(line))
        except Exception as error:  # the client raises it as a HudiError
            traceback.print_exc()
            java = getattr(error, "java_exception", None)
            # Hudi raises some errors without a message.
            text = f"{type(error).__name__}: {error}"
            answer = {"error": f"{text}\n{stack_of(java)}" if java is not None else text}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def stack_of(error: Any) -> str:
    """Return the messages of a Java exception and its causes, one per line."""
    messages = []
    while error is not None:
        messages.append(f"Caused by: {error.toString()}")
        error = error.getCause()
    return "\n".join(messages)


def main() -> None:
    """Write answers to the original stdout; redirect all other output to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = start(*sys.argv[1:])
    answers.write(json.dumps({"spark": spark.version}) + "\n")
    answers.flush()
    serve(Worker(spark), sys.stdin, answers)
    spark.stop()


if __name__ == "__main__":
    main()
