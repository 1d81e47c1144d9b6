"""The checkpoint of the Kafka source: the next offset per partition, and the topic id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.document import parse_json

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCheckpoint:
    """A table's committed position in a topic.

    Attributes:
        topic: The topic.
        topic_id: The id of the topic, which changes if the topic is created again.
        next: The offset of the first message that no commit contains, by partition.
    """

    topic: str
    topic_id: str
    next: Mapping[int, int]

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""
        offsets = {str(partition): self.next[partition] for partition in sorted(self.next)}
        return json.dumps({"version": VERSION, "topic": self.topic, "topic_id": self.topic_id, "next": offsets})

    @classmethod
    def from_json(cls, text: str) -> KafkaCheckpoint:
        """Parse a checkpoint.

        Raises UnsupportedError for a newer version, CorruptTableError for a string that `to_json` did not write.
        """
        try:
            value = parse_json(text)
            version = value["version"]
            if version != VERSION:
                raise UnsupportedError(
                    f"the ingest checkpoint has version {version!r}, this package reads {VERSION}: update the package",
                    version=version,
                )
            offsets = {int(partition): int(offset) for partition, offset in value["next"].items()}
            if any(offset < 0 for offset in offsets.values()):
                raise ValueError("an offset is negative")
            return cls(topic=str(value["topic"]), topic_id=str(value["topic_id"]), next=offsets)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptTableError(
                f"the ingest checkpoint in the last commit is not one of a Kafka topic ({error}): {text[:120]!r}"
            ) from error
