"""Where notifications about new files come from: files in a folder, or messages of a Kafka topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pyarrow as pa

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint, SourceFile
from lakehouse.platform.sources.files.file_listing import FolderListing, list_source
from lakehouse.platform.sources.files.missing_folders import check_missing
from lakehouse.platform.sources.kafka.kafka_checkpoint import KafkaCheckpoint
from lakehouse.platform.sources.kafka.kafka_plan import limited, ranges_from, starts
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange, TopicLog, TopicState
from lakehouse.spec.sources.file_source import FileSourceSpec, topic_of
from lakehouse.spec.sources.kafka_connection import kafka_settings

#: The maximum numbers of messages per request for objects, and per run.
_AT_ONCE, _MOST_MESSAGES = 200, 100_000
#: Yields messages of ranges, as `RangeReader` of `kafka_client` does.
ReadRanges = Callable[[tuple[OffsetRange, ...]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Some notifications: their strings, their location for messages, and the checkpoint entry after them."""

    texts: tuple[bytes, ...]
    place: str
    mark: Any


@dataclass(kw_only=True)
class FileNotices:
    """Notification files in a folder.

    Attributes:
        storage: The storage of the files.
        files: The files that no commit has consumed.
        known: The files that commits have consumed.
        folders: The folders that were listed.
        unit: The unit of `waiting`.
        warning: A warning about a change; empty for none.
    """

    storage: Storage
    files: tuple[SourceFile, ...]
    known: Checkpoint
    folders: tuple[FolderListing, ...]
    unit: str = "files"
    warning: str = ""

    @property
    def waiting(self) -> int:
        """The number of new files."""
        return len(self.files)

    def __iter__(self) -> Iterator[Notice]:
        for file in self.files:
            yield Notice(texts=(self.storage.get(file.path),), place=file.url, mark=file)

    def after(self, taken: Sequence[Notice]) -> str:
        """Return the checkpoint that also includes these files."""
        return self.known.after(one.mark for one in taken).to_json()


@dataclass(kw_only=True)
class TopicNotices:
    """Notification messages in a topic.

    Attributes:
        state: The topic.
        ranges: The offsets that no commit has consumed.
        position: The next offsets before them.
        read: Reads ranges.
        warning: A warning about a change; empty for none.
        unit: The unit of `waiting`.
        folders: None.
    """

    state: TopicState
    ranges: tuple[OffsetRange, ...]
    position: Mapping[int, int]
    read: ReadRanges
    warning: str = ""
    unit: str = "offsets"
    folders: tuple[FolderListing, ...] = field(default=())

    @property
    def waiting(self) -> int:
        """The number of offsets that a run may consume."""
        return sum(one.size for one in self.ranges)

    def __iter__(self) -> Iterator[Notice]:
        for whole in self.read(self.ranges):
            for start in range(0, len(whole), _AT_ONCE):
                batch = whole.slice(start, _AT_ONCE)
                is_end = batch.column("is_end").to_pylist()
                partition, offset = (batch.column(name)[len(batch) - 1].as_py() for name in ("partition", "offset"))
                yield Notice(
                    texts=tuple(one for one in batch.column("value").drop_null().to_pylist()),
                    place=f"{self.state.topic}[{partition}]@{offset}",
                    # The row at the end of a range contains the offset after it.
                    mark=(partition, offset if is_end[-1] else offset + 1),
                )

    def after(self, taken: Sequence[Notice]) -> str:
        """Return the position after these messages."""
        following = dict(self.position)
        for one in taken:
            partition, offset = one.mark
            following[partition] = max(following[partition], offset)
        return KafkaCheckpoint(topic=self.state.topic, topic_id=self.state.topic_id, next=following).to_json()


#: The notifications that no commit has consumed.
Notices = FileNotices | TopicNotices


def open_notices(
    settings: FileSourceSpec, options: Mapping[str, str], environ: Mapping[str, str], previous: str | None
) -> Notices:
    """Return the notifications after a checkpoint from `Notices.after`; without a checkpoint, all notifications.

    Raises:
        UserError: The folder or the topic does not exist, or the connection is incomplete.
        RetryableError: No broker answers.
    """
    place = topic_of(settings.notifications)
    kind = "taken" if place is None else "topic_id"
    # A checkpoint of another discovery mode needs no check here: it identifies the files that were read.
    text = previous if previous is not None and kind in parse_json(previous) else None
    if place is None:
        listing = list_source((settings.notifications,), options)
        check_missing(listing.folders, settings)
        checkpoint = Checkpoint() if text is None else Checkpoint.from_json(text)
        new = tuple(file for file in listing.files if not checkpoint.has(file))
        return FileNotices(storage=listing.storage, files=new, known=checkpoint, folders=listing.folders)
    connection, topic = place
    client = kafka_settings(connection, {}, environ)
    module = _kafka_client()

    def read(ranges: tuple[OffsetRange, ...]) -> Iterable[pa.RecordBatch]:
        numbers: pa.Array = pa.array(range(len(ranges)))
        reader = module.RangeReader(topic=topic, settings=client, parts=ranges)
        return reader([pa.RecordBatch.from_arrays([numbers], names=["id"])]) if ranges else ()

    return topic_notices(module.KafkaLog(topic, client), read, text)


def topic_notices(log: TopicLog, read: ReadRanges, previous: str | None) -> TopicNotices:
    """Return the messages of a topic after a checkpoint; messages that retention deleted are a warning."""
    state = log.describe()
    offsets, changes = starts(state, None if previous is None else KafkaCheckpoint.from_json(previous), None)
    ranges = ranges_from(state, offsets)
    lost = "; files of lost notifications are found by a run with --full-refresh only if the topic has them"
    sentences = changes.sentences(state.topic)
    return TopicNotices(
        state=state,
        ranges=limited(ranges, _MOST_MESSAGES),
        position=offsets,
        read=read,
        warning="; ".join(sentences) + (lost if changes.loses else ""),
    )


def _kafka_client() -> Any:
    try:
        return import_module("lakehouse.platform.sources.kafka.kafka_client")
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise UserError(
            "notifications of a topic need the package confluent-kafka: install lakehouse-tables[kafka] in Spark's "
            "environment"
        ) from error
