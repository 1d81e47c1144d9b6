"""The source `kafka`: a topic's messages, read by offset from the checkpoint, or by time for a data interval.

    plan      look up the partitions and their offsets; choose an offset range per partition
    read      read the ranges in Spark tasks and turn the messages into rows (`kafka_reader`)
    verify    look up the topic's id once more: the topic must not have been created again

No consumer group is joined. The offsets are stored in the commit that adds the rows.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from lakehouse.errors import SourceChangedError, UserError
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.kafka.kafka_checkpoint import KafkaCheckpoint
from lakehouse.platform.sources.kafka.kafka_plan import (
    TopicChanges,
    check_changes,
    check_ordering,
    limited,
    ranges_from,
    starts,
)
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange, TopicLog, TopicState
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.spec.contracts.job import SourceLag
from lakehouse.spec.sources.debezium import DEBEZIUM_FORMATS, check_debezium
from lakehouse.spec.sources.kafka_connection import kafka_settings, registry_settings
from lakehouse.spec.sources.kafka_source import AVRO_FORMATS, PROTOBUF, KafkaSourceSpec
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)

#: Keys in a commit's extra metadata. `OFFSETS` contains the first offset and the offset after the last by partition.
OFFSETS = "lakehouse.ingest.offsets"
CHANGES = "lakehouse.ingest.topic_changes"
LAG = "lakehouse.ingest.lag"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPlan(SourcePlan):
    """The offsets to read.

    Attributes:
        topic_id: The id of the topic.
        ranges: At most one offset range per partition.
        ends: The end offset per partition when the run was planned.
        next: The next offset per partition after the run.
        interval_ms: The time range of messages that a run by interval keeps.
    """

    topic_id: str
    ranges: tuple[OffsetRange, ...]
    ends: Mapping[int, int]
    next: Mapping[int, int]
    interval_ms: tuple[int, int] | None = None


class MessageReader(Protocol):
    """Opens offset ranges as a context manager that yields their rows. `kafka_reader` implements it with Spark."""

    def __call__(
        self, plan: KafkaPlan, spec: TableSpec, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A Kafka topic.

    Attributes:
        spec: The spec of the table.
        settings: The settings of the source.
        log: Looks up the topic's offsets.
        reader: Reads offset ranges.
    """

    spec: TableSpec
    settings: KafkaSourceSpec
    log: TopicLog
    reader: MessageReader

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> KafkaPlan:
        """Look up the topic and choose the offsets to read (see `Source.plan`)."""
        if self.settings.by_time:
            return self._by_time(interval)
        previous = None if checkpoint is None else KafkaCheckpoint.from_json(checkpoint)
        state = self.log.describe()
        first_at = None
        if self.settings.start is not None and previous is None and not full_refresh:
            first_at = self.log.offsets_at(_numbers(state), _ms(self.settings.start))
        offsets, changes = starts(state, previous, first_at)
        if previous is not None:
            check_ordering(changes, state, previous, self.spec.ordering)
            if full_refresh:
                offsets, changes = starts(state, None, None)
            check_changes(changes, state, previous, self.settings.reset)
        chosen = limited(ranges_from(state, offsets), self.settings.max_messages)
        following = offsets | {one.partition: one.end for one in chosen}
        return self._plan(state, chosen, following, changes)

    def read(
        self, plan: KafkaPlan, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]:
        """Read the planned messages (see `Source.read`)."""
        return self.reader(plan, self.spec, known=known, dead_letters=dead_letters)

    def verify(self, plan: KafkaPlan) -> None:
        """Raise an error if the topic was created again after the plan (see `Source.verify`)."""
        topic_id = self.log.describe().topic_id
        if topic_id != plan.topic_id:
            raise SourceChangedError(
                f"topic {self.settings.topic!r} was deleted and created again while it was read",
                path=self.settings.topic,
            )

    def _by_time(self, interval: Interval | None) -> KafkaPlan:
        """Choose offsets whose messages may lie in the interval.

        The first offset is exact. Messages of the interval may lie behind the first message after it, because times are
        not ordered; they are found if they arrived before the first message that is `arrival` later.
        """
        if interval is None:
            raise UserError(
                f"topic {self.settings.topic!r} of table {self.spec.table} is read by data interval, and this run has "
                "none. Give --interval-start and --interval-end, or remove by_time",
                topic=self.settings.topic,
            )
        state = self.log.describe()
        bounds = _ms(interval[0]), _ms(interval[1])
        first = self.log.offsets_at(_numbers(state), bounds[0])
        last = self.log.offsets_at(_numbers(state), bounds[1] + 1000 * self.settings.arrival_s)
        ranges = []
        for one in state.partitions:
            start, end = first[one.partition], last[one.partition]
            low = one.end if start is None else max(start, one.first)
            high = one.end if end is None else min(end, one.end)
            ranges.append(OffsetRange(partition=one.partition, first=low, end=high))
        return self._plan(state, limited(ranges, 0), None, TopicChanges(), bounds)

    def _plan(
        self,
        state: TopicState,
        ranges: tuple[OffsetRange, ...],
        following: Mapping[int, int] | None,
        changes: TopicChanges,
        bounds: tuple[int, int] | None = None,
    ) -> KafkaPlan:
        ends = {one.partition: one.end for one in state.partitions}
        messages = sum(one.size for one in ranges)
        position = dict(following or {})
        checkpoint = KafkaCheckpoint(topic=state.topic, topic_id=state.topic_id, next=position)
        sentences = changes.sentences(state.topic)
        return KafkaPlan(
            units=len(ranges),
            reason=f"{messages} offsets of {len(ranges)} partitions of topic {state.topic!r} will be ingested"
            if ranges
            else f"topic {state.topic!r} has no messages {'of the interval' if bounds else 'after the last commit'}",
            fingerprint=_fingerprint(state, ranges) if ranges else "",
            checkpoint=checkpoint.to_json() if ranges and following is not None else None,
            metadata=offsets_metadata(state.topic, state.topic_id, ranges)
            | ({LAG: lag_text(left(ends, position))} if following is not None else {})
            | ({CHANGES: json.dumps(sentences)} if sentences else {}),
            names=(f"topic {state.topic}",) if ranges else (),
            warning="; ".join(sentences),
            lag=() if following is None else (source_lag(state.topic, left(ends, position)),),
            topic_id=state.topic_id,
            ranges=ranges,
            ends=ends,
            next=position,
            interval_ms=bounds,
        )


def offsets_metadata(topic: str, topic_id: str, ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """Return the commit's entry for the offsets that were read."""
    by_partition = {str(one.partition): [one.first, one.end] for one in ranges}
    return {OFFSETS: json.dumps({"topic": topic, "topic_id": topic_id, "partitions": by_partition})}


def left(ends: Mapping[int, int], following: Mapping[int, int]) -> dict[int, int]:
    """Return the number of offsets behind a position, by partition; partitions without any are left out."""
    lags = {partition: ends[partition] - following[partition] for partition in sorted(ends)}
    return {partition: lag for partition, lag in lags.items() if lag}


def lag_text(lags: Mapping[int, int]) -> str:
    """Return offset counts by partition, and their sum, as JSON."""
    by_name = {str(partition): lag for partition, lag in lags.items()}
    return json.dumps({"offsets": sum(lags.values()), "partitions": by_name})


def source_lag(topic: str, lags: Mapping[int, int], seconds: float | None = None) -> SourceLag:
    """Return the remaining offsets; `seconds` is the age of the newest message that was read, if known."""
    total = sum(lags.values())
    return SourceLag(source=f"kafka:{topic}", unit="offsets", left=total, seconds=seconds if total else 0.0)


def kafka_source_of(spec: TableSpec) -> KafkaSourceSpec:
    """Return the Kafka source settings of a spec."""
    source = ingest_of(spec).source
    assert isinstance(source, KafkaSourceSpec), f"the source of table {spec.table} is {source.KIND}"
    return source


def open_kafka_source(context: SourceContext) -> KafkaSource:
    """Return a spec's Kafka source."""
    settings = kafka_source_of(context.spec)
    client = kafka_settings(settings.connection, settings.options, context.environ)
    check_format(context.spec, client)
    open_reader = _module("lakehouse.platform.sources.kafka.kafka_reader").spark_reader
    reader: MessageReader = open_reader(context.session, client, context.storage_options)
    return KafkaSource(spec=context.spec, settings=settings, log=_open_log(settings, client), reader=reader)


def check_kafka_source(
    spec: TableSpec, interval: Interval | None, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> None:
    """Check that the connection is complete and that the topic exists.

    Raises:
        UserError: A setting is wrong, or the topic does not exist.
        RetryableError: No broker answers.
    """
    settings = kafka_source_of(spec)
    check_format(spec, kafka_settings(settings.connection, settings.options, environ))
    _open_log(settings, kafka_settings(settings.connection, settings.options, environ)).describe()


def check_format(spec: TableSpec, client: Mapping[str, str]) -> None:
    """Raise UserError if the message format needs a setting that the spec or the connection lacks."""
    settings, place = kafka_source_of(spec), spec.source or "the spec"
    if settings.format != "raw" and not spec.schema:
        raise UserError(
            f"table {spec.table}: which columns of {settings.format} messages are read is not declared: "
            f"add 'schema' to {place}",
            table=spec.table,
        )
    if settings.format == PROTOBUF:
        check_protobuf()
    needs_registry = settings.format in AVRO_FORMATS or (settings.format == PROTOBUF and not settings.message)
    if needs_registry and not registry_settings(client).get("url"):
        raise UserError(
            f"table {spec.table}: {settings.format} messages need a schema registry: add schema.registry.url to the "
            f"extra of the connection {settings.connection!r}",
            table=spec.table,
        )
    if settings.format in DEBEZIUM_FORMATS:
        check_debezium(spec.table, place, spec.schema, (spec.delete_field, spec.delete_marker))


def check_protobuf() -> None:
    """Raise UserError if the package protobuf is not installed."""
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        raise UserError(
            "the format protobuf needs the package protobuf: install lakehouse-tables[protobuf] in Spark's environment"
        )


def _open_log(settings: KafkaSourceSpec, client: Mapping[str, str]) -> TopicLog:
    log: TopicLog = _module("lakehouse.platform.sources.kafka.kafka_client").KafkaLog(settings.topic, client)
    return log


def _module(name: str) -> Any:
    """Import a module that needs the extra `kafka`."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise UserError(
            "the source kafka needs the package confluent-kafka: install lakehouse-tables[kafka] in Spark's environment"
        ) from error


def _numbers(state: TopicState) -> tuple[int, ...]:
    return tuple(one.partition for one in state.partitions)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _fingerprint(state: TopicState, ranges: Sequence[OffsetRange]) -> str:
    text = json.dumps([state.topic, state.topic_id, [[one.partition, one.first, one.end] for one in ranges]])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
