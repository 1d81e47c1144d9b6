"""Read planned messages of a Kafka topic with Spark, and store messages that cannot be parsed as dead letters.

The messages are read and parsed once and cached, because the number of bad messages must be known before the write.
Byte and time limits can end the tasks before the planned offsets; the batch then contains the checkpoint of the
messages that were read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.dead_letters import DeadLetterBox, set_aside
from lakehouse.platform.sources.kafka.kafka_checkpoint import KafkaCheckpoint
from lakehouse.platform.sources.kafka.kafka_client import RangeReader
from lakehouse.platform.sources.kafka.kafka_formats import message_format
from lakehouse.platform.sources.kafka.kafka_plan import split
from lakehouse.platform.sources.kafka.kafka_source import (
    LAG,
    KafkaPlan,
    kafka_source_of,
    lag_text,
    left,
    offsets_metadata,
    source_lag,
)
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange
from lakehouse.platform.sources.new_fields import unread_drift, value_columns, with_new_columns
from lakehouse.platform.sources.source import SCHEMA, Batch, KnownColumns
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.platform.sources.unread_fields import merged
from lakehouse.spark.bad_records import good_rows, mark_bad_records, select_columns
from lakehouse.spark.messages import (
    PartitionFacts,
    TimeBounds,
    facts_of,
    keep_bytes_of_bad,
    kept_messages,
    kept_rows,
    materialised,
    read_messages,
    release,
    without_metadata,
)
from lakehouse.spark.sources import Schema, Session, describe, schema_to_json
from lakehouse.spec.contracts.job import SourceLag
from lakehouse.spec.sources.debezium import DEBEZIUM_FORMATS
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)

#: Keys in a commit's extra metadata: by partition, the time of the newest message in milliseconds since 1970; and the
#: number of late messages. A message is late if it is older than the watermark of earlier commits or than the interval.
WATERMARKS = "lakehouse.ingest.watermarks"
LATE = "lakehouse.ingest.late"
#: Offsets per task: about a second of work. Several tasks may read one partition.
_TASK_OFFSETS = 250_000


@dataclass(frozen=True, slots=True)
class SparkMessages:
    """A run's access to its messages: a Spark session, the Kafka client settings, and storage options."""

    session: Session
    client: Mapping[str, str] = field(repr=False)
    storage_options: Mapping[str, str] = field(repr=False)


def spark_reader(
    session: Session, client: Mapping[str, str], storage_options: Mapping[str, str]
) -> Callable[..., AbstractContextManager[Batch | None]]:
    """Return a `MessageReader` that uses a Spark session and these Kafka client settings."""
    return partial(_open_messages, SparkMessages(session, client, storage_options))


@contextmanager
def _open_messages(
    access: SparkMessages,
    plan: KafkaPlan,
    spec: TableSpec,
    *,
    known: KnownColumns,
    dead_letters: DeadLetterBox,
) -> Iterator[Batch | None]:
    settings = kafka_source_of(spec)
    schema, bounds = value_columns(spec, known), _bounds(plan, known)
    reading = _Reading(access, plan, spec, schema, bounds)
    try:
        ends = reading.ends
        has_types = settings.format not in DEBEZIUM_FORMATS
        wider = with_new_columns(schema, reading.unread, spec, known, has_types=has_types)
        if wider != schema:
            log.info("table %s: reading the messages again with new columns: %s", spec.table, describe(wider))
            reading.close()
            reading = _Reading(access, plan, spec, wider, bounds, ends)
        selected = kept_messages(reading.marked, bounds)
        bad = sum(one.bad for one in reading.facts.values())
        rows = sum(one.records for one in reading.facts.values()) - bad
        set_aside(selected, bad, spec.table, dead_letters, allowed=ingest_of(spec).max_bad_records)
        frame = good_rows(selected)
        metadata = _metadata(plan, reading.facts, ends, known, settings)
        if set(wider.names) - set(spec.schema):
            metadata[SCHEMA] = schema_to_json(wider)
        yield Batch(
            frame=frame,
            rows=rows,
            bad_records=bad,
            schema=frame.schema,
            columns=unread_drift(reading.unread, rows),
            commits_empty=plan.checkpoint is not None,
            checkpoint=_checkpoint(plan, ends, settings) if _is_limited(settings) else None,
            metadata=metadata,
            lag=_lag(plan, reading.facts, ends, settings),
            selected_from=reading.records,
        )
    finally:
        reading.close()


class _Reading:
    """The messages of a plan, parsed with some columns and cached until `close`.

    `ends` contains the offset after the last message that was read, by partition. If it is given, messages up to it are
    read; otherwise messages within the limits in the spec.
    """

    def __init__(
        self,
        access: SparkMessages,
        plan: KafkaPlan,
        spec: TableSpec,
        schema: Schema,
        bounds: TimeBounds,
        ends: Mapping[int, int] | None = None,
    ) -> None:  # parameters: a reading has five inputs, and the ends of an earlier reading
        settings = kafka_source_of(spec)
        is_limited = _is_limited(settings) and ends is None
        ranges = plan.ranges if ends is None else tuple(replace(one, end=ends[one.partition]) for one in plan.ranges)
        parts = ranges if is_limited else split(ranges, _TASK_OFFSETS)
        reader = RangeReader(
            topic=settings.topic,
            settings=access.client,
            parts=parts,
            max_bytes=-(-settings.max_bytes // len(parts)) if is_limited else 0,
            deadline_ms=_deadline(settings) if is_limited else 0,
        )
        given = message_format(
            spec,
            schema,
            access.client,
            reader,
            storage_options=access.storage_options,
            interval_ms=bounds.interval,
        )
        most = sum(one.end - one.first for one in parts)
        messages = read_messages(access.session, given.read, len(parts), most=most, record=given.record)
        records = given.records(messages)
        self.records = records.schema
        selected = without_metadata(select_columns(records, ingest_of(spec).select), settings.metadata)
        # A transform may compute the key, so it is checked after the transform.
        key = spec.record_key if ingest_of(spec).transform is None else ()
        marked = keep_bytes_of_bad(mark_bad_records(selected, key))
        self.marked = marked = materialised(marked) if is_limited else kept_rows(marked)
        try:
            self.facts = facts_of(marked, bounds)
            self.ends = _read_ends(ranges, parts, self.facts, is_limited)
            self.unread = merged(text for one in self.facts.values() for text in one.unread)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the messages."""
        release(self.marked)


def _is_limited(settings: KafkaSourceSpec) -> bool:
    """Return whether a limit may end the tasks before the planned offsets."""
    return bool(settings.max_bytes or settings.max_seconds)


def _deadline(settings: KafkaSourceSpec) -> int:
    return SystemClock().now_ms() + 1000 * settings.max_seconds if settings.max_seconds else 0


def _bounds(plan: KafkaPlan, known_columns: KnownColumns) -> TimeBounds:
    if plan.interval_ms is not None:
        return TimeBounds(interval=plan.interval_ms)
    return TimeBounds(watermarks=_watermarks(known_columns))


def _watermarks(known_columns: KnownColumns) -> dict[int, int]:
    """Return the newest message time in earlier commits by partition."""
    text = known_columns.previous.get(WATERMARKS)
    if text is None:
        return {}
    try:
        return {int(partition): int(newest) for partition, newest in parse_json(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptTableError(f"{WATERMARKS} of the last commit is unreadable ({error}): {text[:120]!r}") from error


def _read_ends(
    ranges: tuple[OffsetRange, ...],
    parts: tuple[OffsetRange, ...],
    facts: Mapping[int, PartitionFacts],
    is_limited: bool,
) -> dict[int, int]:
    """Return the offset after the last message that was read, by partition.

    Raises RetryableError if a range was not read to its end and no limit explains it.
    """
    ends: dict[int, int] = {}
    for one in ranges:
        wanted = tuple(sorted(part.end for part in parts if part.partition == one.partition))
        read = facts[one.partition].ends if one.partition in facts else ()
        if is_limited and len(read) == 1 and one.first < read[0] <= one.end:
            ends[one.partition] = read[0]
        elif read == wanted:
            ends[one.partition] = one.end
        else:
            raise RetryableError(
                f"partition {one.partition} was to be read up to the offsets {wanted}, and was read up to {read}"
            )
    return ends


def _checkpoint(plan: KafkaPlan, ends: Mapping[int, int], settings: KafkaSourceSpec) -> str:
    position = {**plan.next, **ends}
    return KafkaCheckpoint(topic=settings.topic, topic_id=plan.topic_id, next=position).to_json()


def _lag(
    plan: KafkaPlan, facts: Mapping[int, PartitionFacts], ends: Mapping[int, int], settings: KafkaSourceSpec
) -> tuple[SourceLag, ...] | None:
    """Return the offsets after the messages that were read, with the age of the oldest partition end."""
    if plan.interval_ms is not None:
        return None
    lags = left(plan.ends, {**plan.next, **ends})
    newest = [facts[one].newest_ms for one in lags if one in facts]
    moments = [moment for moment in newest if moment is not None]
    seconds = max(0.0, (SystemClock().now_ms() - min(moments)) / 1000) if moments else None
    return (source_lag(settings.topic, lags, seconds),)


def _metadata(
    plan: KafkaPlan,
    facts: Mapping[int, PartitionFacts],
    ends: Mapping[int, int],
    known_columns: KnownColumns,
    settings: KafkaSourceSpec,
) -> dict[str, str]:
    """Return the entries for the commit that depend on the messages."""
    read = [OffsetRange(partition=one.partition, first=one.first, end=ends[one.partition]) for one in plan.ranges]
    metadata: dict[str, str] = offsets_metadata(settings.topic, plan.topic_id, read)
    late = {str(partition): one.late for partition, one in sorted(facts.items()) if one.late}
    if late:
        total: dict[str, Any] = {"messages": sum(late.values()), "partitions": late}
        metadata[LATE] = json.dumps(total)
        log.warning("topic %s: %s late messages", settings.topic, total["messages"])
    if plan.interval_ms is None:
        newest = _watermarks(known_columns)
        for partition, one in facts.items():
            if one.newest_ms is not None:
                newest[partition] = max(one.newest_ms, newest.get(partition, one.newest_ms))
        metadata[WATERMARKS] = json.dumps({str(partition): newest[partition] for partition in sorted(newest)})
        metadata[LAG] = lag_text(left(plan.ends, {**plan.next, **ends}))
    return metadata
