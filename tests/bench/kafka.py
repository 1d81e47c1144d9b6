"""Ingestion of a Kafka topic end to end, beside reading and parsing the same messages with the same reader.

Apache Hudi reads the same topic with Spark's source of Kafka, and writes a table of the same kind with its default
options. Its streamer is not measured: no jar of it is published for this version.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakehouse.platform.ingest.run import run_ingest
from lakehouse.platform.sources.files.json_values import JsonDecoder
from lakehouse.platform.sources.kafka.kafka_client import KafkaLog, RangeReader
from lakehouse.platform.sources.kafka.kafka_plan import split
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange
from lakehouse.spark.messages import json_records, read_messages
from lakehouse.spark.sources import declared_schema, to_arrow
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.table.table_spec import IndexSpec, TableSpec
from tests.bench.hudi import TARGET as HUDI_TARGET
from tests.bench.hudi import Hudi, start
from tests.bench.measure import Comparison, Side, compare, interleave, show_lines
from tests.bench.setting import Setting, spark
from tests.support.kafka import Broker, Message, broker_at

#: The messages do not depend on `--rows` above this number: a broker with one disk holds them.
MOST_MESSAGES = 500_000
PARTITIONS = 4
TARGET = 2.0
_HUDI = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "4",
}
_SCHEMA = {"id": "bigint", "city": "string", "fare": "double", "note": "string", "ts": "bigint"}


def run(setting: Setting) -> list[Comparison]:
    """Compare the run of an ingestion with a read of its messages."""
    count = min(setting.rows, MOST_MESSAGES)
    with broker_at(Path(setting.fresh("kafka"))) as broker:
        topic, size = filled(broker, count)
        spec = TableSpec(
            table="orders",
            location=setting.fresh("kafka-table"),
            record_key=("id",),
            ordering=("ts",),
            type="MERGE_ON_READ",
            index=IndexSpec(type="BUCKET", buckets=4),
            schema=_SCHEMA,
            ingest=IngestSpec(source=KafkaSourceSpec(topic=topic)),
        )

        def ingest(_: int) -> None:
            # The first round creates the table; the others append the same keys to the logs of its buckets.
            wanted = IngestCommand(table="x", full_refresh=True)
            report = run_ingest(spark(), spec, wanted, environ=broker.connection)
            assert report.rows == count, f"{report.rows} of {count} messages"

        def parse(_: int) -> None:
            settings = {"bootstrap.servers": broker.address}
            state = KafkaLog(topic, settings).describe()
            ranges = [OffsetRange(partition=p.partition, first=p.first, end=p.end) for p in state.partitions]
            reader = RangeReader(topic=topic, settings=settings, parts=split(ranges, 250_000))
            schema = declared_schema(_SCHEMA)
            parser = JsonDecoder(messages=reader, target=pa.struct(list(to_arrow(schema))))
            messages = read_messages(spark(), parser, len(reader.parts), most=count, record=schema)
            json_records(messages, schema, topic, schema.names).write.format("noop").mode("overwrite").save()

        sides = [Side(name="ingest", run=ingest), Side(name="read and parse", run=parse)]
        with start("hudi-kafka") or nullcontext() as hudi:
            if hudi is not None:
                sides.append(_hudi_side(hudi, broker, topic, setting.fresh("kafka-hudi")))
            # The JVM compiles the steps of a run for some rounds.
            samples = interleave(sides, setting.rounds, warmup=3)
            if hudi is not None:
                found = hudi.request("count", str(setting.home / "kafka-hudi"))["rows"]
                assert found == count, f"Apache Hudi has {found} of {count} rows"
    lines = [("side", "rows/s of CPU", "MB/s of CPU")]
    for name, found in samples.items():
        cpu = sorted(one.cpu_s for one in found)[len(found) // 2]
        lines.append((name, f"{count / cpu:,.0f}", f"{size / cpu / 1e6:.1f}"))
    show_lines(lines)
    what = f"ingest {count:,} JSON messages into merge-on-read by bucket"
    others = {"read and parse": TARGET, "Hudi": HUDI_TARGET}
    return [compare(what, samples, "ingest", name, others[name]) for name in samples if name in others]


def _hudi_side(hudi: Hudi, broker: Broker, topic: str, path: str) -> Side:
    source = {
        "broker": broker.address,
        "topic": topic,
        "schema": ", ".join(f"{n} {kind}" for n, kind in _SCHEMA.items()),
    }
    return Side(name="Hudi", run=lambda _: hudi.request("kafka", path, json.dumps(source), **_HUDI))


def filled(broker: Broker, count: int) -> tuple[str, int]:
    """Return a topic with messages of about 130 bytes, and their size in bytes."""
    topic, size = broker.topic(PARTITIONS), 0
    fares = np.random.default_rng(1).integers(0, 10_000, count).tolist()
    messages = []
    for number, fare in enumerate(fares):
        row = {"id": number, "city": f"city-{number % 100}", "fare": fare / 100, "note": "x" * 60, "ts": number}
        value = json.dumps(row)
        size += len(value)
        messages.append(Message(value=value, partition=number % PARTITIONS))
    broker.send(topic, messages, **{"linger.ms": "50", "queue.buffering.max.messages": "2000000"})
    return topic, size
