"""Run Apache Hudi on Spark in a separate environment: read JSON requests, one per line, and print one answer for each.

The process runs in .venv-hudi. That environment has only pyspark, so this module imports neither lakehouse nor Arrow.
"""

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

BASE = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
    "hoodie.datasource.write.recordkey.field": "order_id",
    "hoodie.datasource.write.partitionpath.field": "zone",
    "hoodie.datasource.write.precombine.field": "updated_at",
    "hoodie.datasource.write.row.writer.enable": "true",
    "hoodie.bulkinsert.sort.mode": "PARTITION_SORT",
    "hoodie.parquet.compression.codec": "zstd",
    "hoodie.combine.before.upsert": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.bulkinsert.shuffle.parallelism": "4",
    "hoodie.upsert.shuffle.parallelism": "4",
    "hoodie.simple.index.parallelism": "4",
}


def main() -> None:
    """Answer requests until the input ends."""
    jars, cores = sys.argv[1:]
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
        .config("spark.kryo.registrator", "org.apache.spark.HoodieSparkKryoRegistrar")
        .config("spark.sql.extensions", "org.apache.spark.sql.hudi.HoodieSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.hudi.catalog.HoodieCatalog")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        request = json.loads(line)
        if request["operation"] == "count":
            answer = {"rows": spark.read.format("hudi").load(request["path"]).count()}
        elif request["operation"] == "kafka":
            frame = messages(spark, **json.loads(request["source"]))
            frame.write.format("hudi").options(**request["options"]).mode("append").save(request["path"])
            answer = {"done": "kafka"}
        else:
            frame = spark.read.parquet(request["source"])
            writer = frame.write.format("hudi").options(**BASE).options(**request["options"])
            # "load" adds the rows of a further bulk insert.
            operation = {"load": "bulk_insert"}.get(request["operation"], request["operation"])
            mode = "overwrite" if request["operation"] == "bulk_insert" else "append"
            writer.option("hoodie.datasource.write.operation", operation).mode(mode).save(request["path"])
            answer = {"done": request["operation"]}
        print(json.dumps({"answer": answer}), flush=True)


def messages(spark: SparkSession, broker: str, topic: str, schema: str) -> DataFrame:
    """Return the JSON messages of a topic as rows."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    rows = source.option("startingOffsets", "earliest").load()
    return rows.select(from_json(col("value").cast("string"), schema).alias("row")).select("row.*")


if __name__ == "__main__":
    main()
