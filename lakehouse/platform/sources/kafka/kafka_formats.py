"""The formats of Kafka messages: converting values to records, in Spark tasks and in Spark's plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import pyarrow as pa

from lakehouse.core.storage.locate import open_storage
from lakehouse.platform.sources.files.json_values import JsonDecoder
from lakehouse.platform.sources.kafka.kafka_avro import AvroDecoder
from lakehouse.platform.sources.kafka.kafka_source import check_protobuf, kafka_source_of
from lakehouse.spark.debezium import EVENT_ROWS, event_type, row_type
from lakehouse.spark.messages import (
    avro_records,
    debezium_avro_records,
    debezium_records,
    json_records,
    raw_records,
)
from lakehouse.spark.sources import Frame, Schema, to_arrow
from lakehouse.spec.sources.debezium import DEBEZIUM_FORMATS
from lakehouse.spec.sources.kafka_connection import registry_settings
from lakehouse.spec.sources.kafka_source import AVRO_FORMATS, PROTOBUF, KafkaSourceSpec
from lakehouse.spec.table.table_spec import TableSpec

#: Yields message batches for batches of range indexes.
Messages = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFormat:
    """How messages are converted to records.

    Attributes:
        read: Yields messages in a task, with decoded records if the format supports them.
        record: The type of decoded records; None if tasks do not decode.
        records: Returns the rows in a DataFrame of messages.
    """

    read: Messages
    record: Schema | None
    records: Callable[[Frame], Frame]


# parameters: the spec, the columns, the settings of broker and storage, and the messages with their time range
def message_format(
    spec: TableSpec,
    schema: Schema,
    client: Mapping[str, str],
    messages: Messages,
    *,
    storage_options: Mapping[str, str],
    interval_ms: tuple[int, int] | None = None,
) -> MessageFormat:
    """Return a spec's message format.

    Args:
        spec: The spec of the table.
        schema: The columns to read.
        client: The connection settings.
        messages: Yields messages in a task.
        storage_options: Options of the storage that contains a descriptor file.
        interval_ms: The time range of messages to parse; None for all.
    """
    settings = kafka_source_of(spec)
    topic, is_debezium = settings.topic, settings.format in DEBEZIUM_FORMATS
    decoder: Any
    if settings.format == "raw":
        return MessageFormat(read=messages, record=None, records=lambda frame: raw_records(frame, topic))
    if settings.format in AVRO_FORMATS:
        kind = event_type(schema) if is_debezium else schema
        decoder = AvroDecoder(
            messages=messages,
            registry=registry_settings(client),
            target=pa.struct(list(to_arrow(kind))),
            rows=("after", "before") if is_debezium else (),
        )
        rows = debezium_avro_records if is_debezium else avro_records
    elif settings.format == PROTOBUF:
        kind, rows = schema, avro_records
        target = pa.struct(list(to_arrow(kind)))
        decoder = _protobuf_decoder(settings, client, storage_options)(messages=messages, target=target)
    else:
        kind = row_type(schema) if is_debezium else schema
        decoder = JsonDecoder(
            messages=messages,
            target=pa.struct(list(to_arrow(kind))),
            paths=EVENT_ROWS if is_debezium else ((),),
            parses=not is_debezium,
            interval_ms=interval_ms,
        )
        rows = debezium_records if is_debezium else partial(json_records, declared=tuple(spec.schema))
    return MessageFormat(read=decoder, record=kind, records=lambda frame: rows(frame, schema, topic))


def _protobuf_decoder(settings: KafkaSourceSpec, client: Mapping[str, str], storage_options: Mapping[str, str]) -> Any:
    """Return the factory for the Protocol Buffers decoder; its modules need the extra `protobuf`."""
    check_protobuf()
    types = import_module("lakehouse.platform.sources.kafka.protobuf_types")
    decoder = import_module("lakehouse.platform.sources.kafka.kafka_protobuf").ProtobufDecoder
    if not settings.message:
        return partial(decoder, registry=registry_settings(client))
    if settings.descriptors:
        folder, _, name = settings.descriptors.rpartition("/")
        storage = open_storage(folder or ".", storage_options)
        message = types.message_of_file(storage, name, settings.message)
    else:
        message = types.message_of_class(settings.message)
    return partial(decoder, message=message)
