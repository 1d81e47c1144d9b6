"""The settings of the source `kafka` in the `ingest` section of a table spec.

A run continues from the offsets in the newest commit. With `by_time: true` a run reads the messages whose times lie in
its data interval. Servers and passwords are in the connection, see `lakehouse.spec.sources.kafka_connection`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from lakehouse.spec.sources.source import SIZE_KEY, reader_options, size_setting
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

FORMATS = ("json", "avro", "protobuf", "debezium", "debezium_avro", "raw")
PROTOBUF = "protobuf"
#: Formats with schemas in a schema registry.
AVRO_FORMATS = ("avro", "debezium_avro")
RESETS = ("fail", "earliest")
#: Columns that describe a message, in addition to its value, by their names in `metadata`.
METADATA = ("topic", "partition", "offset", "timestamp", "key")
CONNECTION = "kafka_default"
_EARLIEST = "earliest"
KAFKA_KEYS = (
    SpecKey(name="topic", type="text", text="Topic to read.", example="orders", required=True),
    SpecKey(
        name="connection",
        type="text",
        text="Airflow connection whose extra has `bootstrap.servers`, passwords and other settings of the client.",
        example="kafka_eu",
        default=CONNECTION,
    ),
    SpecKey(
        name="format", type="choice", text="Format of the values.", example="avro", default=FORMATS[0], choices=FORMATS
    ),
    SpecKey(
        name="message",
        type="text",
        text="Message type: a full name in `descriptors`, or a generated class; the default is that of the schema "
        "registry.",
        example='"shop.orders_pb2:Order"',
        needs="format: protobuf",
    ),
    SpecKey(
        name="descriptors",
        type="path or URL",
        text="File of descriptors that has `message`, written by `protoc --include_imports --descriptor_set_out`.",
        example="s3://lake/schemas/orders.desc",
        needs="{format: protobuf, message: shop.Order}",
    ),
    SpecKey(
        name="by_time",
        type="boolean",
        text="Whether a run reads the messages of its data interval, by their times, instead of all new ones.",
        example="true",
        default="false",
    ),
    SpecKey(
        name="arrival",
        type="duration",
        text="Time after the end of an interval during which its messages may still arrive; with `by_time`.",
        example="10m",
        default="0s",
        needs="by_time: true",
    ),
    SpecKey(
        name="start",
        type="time",
        text="Where a table without a checkpoint starts: `earliest`, or the first message at or after a time.",
        example='"2026-01-31T00:00:00Z"',
        default=_EARLIEST,
    ),
    SpecKey(
        name="reset",
        type="choice",
        text="What a run does if the topic was created again, or messages were deleted before they were read: fail, or "
        "continue with the earliest message and count the lost ones.",
        example="earliest",
        default=RESETS[0],
        choices=RESETS,
    ),
    SpecKey(name="max_messages", type="integer", text="Maximum number of messages per run.", example="1000000"),
    SpecKey(name=SIZE_KEY, type="size", text="Maximum size of the keys and values per run.", example="2GB"),
    SpecKey(name="max_seconds", type="duration", text="Maximum time that a run reads.", example="5m"),
    SpecKey(
        name="metadata",
        type="list",
        text="Additional columns, named `_kafka_<name>`: topic, partition, offset, timestamp, key.",
        example="[offset, timestamp]",
    ),
    SpecKey(
        name="options",
        type="mapping",
        text="Settings of Kafka's client (librdkafka) that are not secret.",
        example="{fetch.max.bytes: 10485760}",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceSpec:
    """A topic of Kafka.

    Attributes:
        topic: The topic.
        connection: The id of the Airflow connection.
        format: One of `FORMATS`.
        message: The message type of Protocol Buffers, a name in `descriptors` or `package.module:Class`; empty to
            use the schema registry.
        descriptors: The file of descriptors; empty for a class and for a registry.
        by_time: Whether a run reads the messages of its data interval.
        arrival_s: How long after the end of an interval its messages may arrive, in seconds.
        start: The time of the first message for a table without a checkpoint; None for the earliest message.
        reset: One of `RESETS`.
        max_messages: The maximum number of messages per run; 0 for no limit.
        max_bytes: The maximum size of a run's keys and values; 0 for no limit.
        max_seconds: The maximum time that a run reads, in seconds; 0 for no limit.
        metadata: Names of `METADATA` that become columns.
        options: Settings of Kafka's client.
    """

    KIND: ClassVar[str] = "kafka"
    KEYS: ClassVar[tuple[SpecKey, ...]] = KAFKA_KEYS

    topic: str
    connection: str = CONNECTION
    format: str = FORMATS[0]
    message: str = ""
    descriptors: str = ""
    by_time: bool = False
    arrival_s: int = 0
    start: datetime | None = None
    reset: str = RESETS[0]
    max_messages: int = 0
    max_bytes: int = 0
    max_seconds: int = 0
    metadata: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_by_interval(self) -> bool:
        """Whether a run reads the messages of its data interval."""
        return self.by_time

    @property
    def declares_types(self) -> bool:
        """True: the spec or the messages declare the column types, none are inferred."""
        return True

    @property
    def connections(self) -> tuple[str, ...]:
        """The id of the connection."""
        return (self.connection,)

    @property
    def description(self) -> str:
        """Description of the input, such as `json messages of topic orders`."""
        return f"{self.format} messages of topic {self.topic}"

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        spec = cls(
            topic=section.required("topic"),
            connection=section.text("connection", CONNECTION).strip(),
            format=section.choice("format", FORMATS, FORMATS[0]),
            message=section.text("message").strip(),
            descriptors=section.text("descriptors").strip(),
            by_time=section.boolean("by_time", False),
            arrival_s=section.seconds("arrival", 0),
            start=_start(section),
            reset=section.choice("reset", RESETS, RESETS[0]),
            max_messages=section.integer("max_messages", 0),
            max_bytes=size_setting(section),
            max_seconds=section.seconds("max_seconds", 0),
            metadata=_metadata(section),
            options=reader_options(section),
        )
        _check_message(spec, section)
        if spec.arrival_s and not spec.by_time:
            raise section.error("arrival: needs 'by_time: true', which reads data intervals.", "arrival")
        for name in ("max_messages", SIZE_KEY, "max_seconds", "start"):
            if spec.by_time and getattr(spec, name):
                raise section.error(f"{name}: a run with 'by_time: true' reads its whole data interval.", name)
        return spec

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""
        mapping: dict[str, Any] = {}
        for declared in fields(self):
            value = getattr(self, declared.name)
            if declared.default is MISSING and value == {}:
                continue
            if value != declared.default:
                mapping[declared.name.removesuffix("_s")] = _plain(value)
        return mapping


def _check_message(spec: KafkaSourceSpec, section: Section) -> None:
    for name in ("message", "descriptors"):
        if getattr(spec, name) and spec.format != PROTOBUF:
            raise section.error(f"{name}: needs 'format: {PROTOBUF}'.", name)
    if spec.descriptors and not spec.message:
        raise section.error("descriptors: needs 'message', the full name of a message type in the file.", "descriptors")
    if spec.message and bool(spec.descriptors) == (":" in spec.message):
        raise section.error(
            f"message: {spec.message!r} must be a class such as shop.orders_pb2:Order, or a name such as shop.Order "
            "with 'descriptors', the file that has it.",
            "message",
        )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _start(section: Section) -> datetime | None:
    text = section.text("start", _EARLIEST).strip()
    if text == _EARLIEST:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise section.error(
            f"start: {text!r} is neither 'earliest' nor a time such as 2026-01-31T00:00:00Z.", "start"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _metadata(section: Section) -> tuple[str, ...]:
    names = section.names("metadata")
    for name in names:
        if name not in METADATA:
            raise section.error(f"metadata: {name!r} is not one of {', '.join(METADATA)}.", "metadata")
    return names
