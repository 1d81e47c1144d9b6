"""The file `.hoodie_partition_metadata`, which marks a directory as a partition (TL-1)."""

from __future__ import annotations

import re

from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.errors import CorruptTableError

PARTITION_METADATA_NAME = ".hoodie_partition_metadata"

_INSTANT = "commitTime"
_DEPTH = "partitionDepth"
_NUMBER = re.compile("[0-9]{1,32}")


def render_partition_metadata(instant: str, depth: int) -> bytes:
    """Return the content for a partition that `instant` created; `depth` is the number of path components."""
    return render_properties({_INSTANT: instant, _DEPTH: str(depth)}, comments=("partition metadata",))


def parse_partition_metadata(data: bytes) -> tuple[str, int]:
    """Return (instant that created the partition, depth); raise CorruptTableError if either is missing or invalid."""
    values = parse_properties(data)
    instant, depth = values.get(_INSTANT, ""), values.get(_DEPTH, "")
    if not _NUMBER.fullmatch(instant) or not _NUMBER.fullmatch(depth):
        raise CorruptTableError(
            f"partition metadata has {_INSTANT} {instant!r} and {_DEPTH} {depth!r}; both must be numbers",
            instant=instant,
            depth=depth,
        )
    return instant, int(depth)
