"""Sample a Kafka topic: the newest messages per partition, as JSON, Avro or Debezium change events."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.avro.decode import decode_avro_values
from lakehouse.core.format.avro.nodes import avro_nodes
from lakehouse.errors import UserError
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange, TopicState
from lakehouse.platform.sources.kafka.schema_registry import HEADER, MAGIC, fetched_schema, schema_ids, without_start
from lakehouse.platform.suggest.arrow_types import sql_type
from lakehouse.platform.suggest.change_events import EventFacts, event_columns, event_facts, is_change_event
from lakehouse.platform.suggest.files import table_name
from lakehouse.platform.suggest.json_columns import JsonRows, json_columns
from lakehouse.platform.suggest.json_types import NotJsonError, json_records
from lakehouse.platform.suggest.sample import Limits, Sample, SampledColumn, shown
from lakehouse.spec.sources.kafka_connection import kafka_settings, registry_settings
from lakehouse.spec.sources.kafka_source import CONNECTION

_OFFSET = "_kafka_offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """The sampled messages with a value, a sentence about their number, and the number of messages without a value."""

    keys: Sequence[bytes | None]
    values: pa.Array
    scope: str
    empty: int = 0


def sample_topic(connection: str, topic: str, limits: Limits, environ: Mapping[str, str]) -> Sample:
    """Return a sample of a topic's newest messages.

    Args:
        connection: The id of an Airflow connection, type `kafka`.
        topic: The topic.
        limits: The sample limits, divided among the partitions.
        environ: Environment variables, which define the connection.

    Raises:
        UserError: The topic does not exist or has no messages with a value, or needs a schema registry.
        RetryableError: No broker answers.
    """
    settings = kafka_settings(connection, {}, environ)
    messages = _read(topic, settings, limits)
    section: dict[str, object] = {"source": "kafka", "topic": topic}
    if connection != CONNECTION:
        section["connection"] = connection
    first = messages.values[0].as_py()
    registry = registry_settings(settings)
    if len(first) > HEADER and first[0] == MAGIC:
        if not registry.get("url"):
            raise UserError(
                f"the messages of topic {topic!r} begin with a schema id, and the connection {connection!r} has no "
                "schema.registry.url: add it to the extra of the connection",
                connection=connection,
            )
        return _avro(topic, section, messages, registry)
    records, problems = _json_records(messages.values)
    if not records:
        return _raw(topic, section, messages)
    return _json(topic, section, (messages, records), problems)


def _read(topic: str, settings: Mapping[str, str], limits: Limits) -> _Messages:
    client = _client()
    state: TopicState = client.KafkaLog(topic, settings).describe()
    share = max(1, limits.rows // max(1, len(state.partitions)))
    ranges = tuple(
        OffsetRange(partition=one.partition, first=max(one.first, one.end - share), end=one.end)
        for one in state.partitions
        if one.end > one.first
    )
    most_bytes = max(1, limits.bytes // max(1, len(ranges)))
    reader = client.RangeReader(topic=topic, settings=settings, parts=ranges, max_bytes=most_bytes)
    position = pa.record_batch([pa.array(range(len(ranges)), pa.int32())], names=["number"])
    batches = [batch for batch in reader(iter((position,))) if batch.num_rows]
    rows = pa.Table.from_batches(batches) if batches else None
    if rows is not None:
        rows = rows.filter(pc.invert(rows.column("is_end")))
    values = None if rows is None else rows.filter(rows.column("value").is_valid())
    if rows is None or values is None or not values.num_rows:
        raise UserError(
            f"topic {topic!r} has no messages with a value, so there is nothing to suggest a spec from", topic=topic
        )
    total = sum(one.end - one.first for one in state.partitions)
    scope = (
        f"Suggested from {values.num_rows:,} messages, the newest ones of {len(state.partitions):,} partitions of "
        f"topic {topic}, which have about {total:,}."
    )
    return _Messages(
        keys=values.column("key").to_pylist(),
        values=values.column("value").combine_chunks(),
        scope=scope,
        empty=rows.num_rows - values.num_rows,
    )


def _client() -> Any:
    try:
        return import_module("lakehouse.platform.sources.kafka.kafka_client")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lakehouse"):
            raise
        raise UserError(f"a topic needs the package {error.name}: install lakehouse-tables[kafka]") from error


def _json_records(values: pa.Array) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the JSON objects in messages, and notes about other messages."""
    records: list[dict[str, Any]] = []
    bad: list[str] = []
    for value in values.to_pylist():
        try:
            (record,) = json_records(value.decode())
            records.append(record)
        except (NotJsonError, ValueError):
            bad.append(shown(value.decode("utf-8", "replace"), 60))
    if not bad:
        return records, ()
    return records, (
        f"{len(bad):,} of {len(values):,} sampled messages are not one JSON object, such as {bad[0]}",
        "set max_bad_records to the number that a run may copy to dead letters; a run fails with more",
    )


def _json(
    topic: str,
    section: Mapping[str, object],
    read: tuple[_Messages, list[dict[str, Any]]],
    problems: tuple[str, ...],
) -> Sample:
    messages, records = read
    if all(is_change_event(record) for record in records):
        columns, rows, facts = event_columns(records)
        return _events(topic, {**section, "format": "debezium"}, (messages, columns, rows), facts)
    columns, notes = json_columns(JsonRows(rows=records))
    if messages.empty:
        notes = (
            *notes,
            f"{messages.empty:,} sampled messages have no value and are bad records: they mean deletes, which only the "
            "formats of Debezium apply. Set max_bad_records to the number that a run may copy to dead letters",
        )
    return _with_offset(topic, section, (messages, columns, len(records)), (*notes, *problems))


def _with_offset(
    topic: str,
    section: Mapping[str, object],
    read: tuple[_Messages, tuple[SampledColumn, ...], int],
    notes: tuple[str, ...],
) -> Sample:
    """Return the sample of rows ordered by offset: messages with the same key are in one partition."""
    messages, columns, rows = read
    return Sample(
        name=table_name(topic),
        columns=columns,
        rows=rows,
        ingest={**section, "metadata": ["offset"]},
        scope=(messages.scope,),
        notes=notes,
        key=_message_key(messages.keys, columns),
        ordering=(_OFFSET,),
        ordering_note="the newer message of a partition wins; producers send messages with one key to one partition",
        facts={_OFFSET: "bigint"},
        changes_rows=True,
    )


def _events(
    topic: str,
    section: Mapping[str, object],
    read: tuple[_Messages, tuple[SampledColumn, ...], int],
    facts: EventFacts,
) -> Sample:
    messages, columns, rows = read
    return Sample(
        name=table_name(topic.rpartition(".")[2]),
        columns=columns,
        rows=rows,
        ingest=section,
        scope=(messages.scope,),
        notes=facts.notes,
        key=_message_key(messages.keys, columns),
        ordering=facts.ordering,
        ordering_note="the place of a change in the log of the source",
        facts=facts.columns,
        settings=facts.settings,
        changes_rows=True,
    )


def _raw(topic: str, section: Mapping[str, object], messages: _Messages) -> Sample:
    example = shown(messages.values[0].as_py(), 60)
    key = ("_kafka_partition", _OFFSET)
    return Sample(
        name=table_name(topic),
        columns=(SampledColumn(name="value", type="binary", values=(), key_type="binary"),),
        rows=len(messages.values),
        ingest={**section, "format": "raw", "metadata": ["partition", "offset"]},
        scope=(messages.scope,),
        notes=(
            f"not sure: the messages are neither JSON objects nor have schema ids, such as {example}, so they are kept "
            "as bytes. For bare Protocol Buffers write format: protobuf and message",
        ),
        key=key,
        facts={"_kafka_partition": "int", _OFFSET: "bigint"},
    )


def _avro(topic: str, section: Mapping[str, object], messages: _Messages, registry: Mapping[str, str]) -> Sample:
    """Return the sample of Avro messages: columns from the newest schema, values from messages with this schema."""
    ids = schema_ids(messages.values)
    newest = int(ids.max())
    answer = fetched_schema(registry, newest, kind="AVRO")
    node = avro_nodes(str(answer["schema"]))
    bodies = without_start(messages.values.filter(pa.array(ids == newest)), HEADER)
    table = decode_avro_values(bodies, node, [column.name for column in node.arrow])
    notes = (f"columns of schema {newest} of the registry; {len(table):,} of the sampled messages have it",)
    names = set(table.column_names)
    if {"op", "source"} <= names and {"before", "after"} & names:
        kind = table.schema.field("after").type
        images = table.column("after").combine_chunks()
        is_row = pc.is_valid(images)
        rows = pa.Table.from_struct_array(images.filter(is_row))
        source = table.column("source").combine_chunks()
        connectors = set(source.field("connector").to_pylist()) if "connector" in _fields(source.type) else set()
        columns = tuple(_avro_column(field, rows, str(answer["schema"])) for field in kind)
        facts = event_facts({str(name) for name in connectors})
        sample = _events(topic, {**section, "format": "debezium_avro"}, (messages, columns, rows.num_rows), facts)
        return sample
    columns = tuple(_avro_column(field, table, "") for field in table.schema)
    return _with_offset(topic, {**section, "format": "avro"}, (messages, columns, table.num_rows), notes)


def _fields(kind: pa.DataType) -> set[str]:
    return {field.name for field in kind} if pa.types.is_struct(kind) else set()


def _avro_column(column: pa.Field, rows: pa.Table, debezium: str) -> SampledColumn:
    kind = sql_type(column.type, has_local_times=True) or f"unsupported ({column.type})"
    values = [value if isinstance(value, Hashable) else str(value) for value in rows.column(column.name).to_pylist()]
    return SampledColumn(name=column.name, type=kind, values=values, key_type=kind)


def _message_key(keys: Sequence[bytes | None], columns: Sequence[SampledColumn]) -> tuple[str, ...]:
    """Return the column names in message keys that are JSON objects; empty if they are not."""
    names = [column.name for column in columns]
    key: tuple[str, ...] = ()
    for text in keys:
        try:
            value = json.loads(text or b"")
        except ValueError:
            return ()
        value = value.get("payload", value) if isinstance(value, dict) else value
        if not isinstance(value, dict) or not value or not set(value) <= set(names):
            return ()
        key = tuple(name for name in names if name in value)
    return key
