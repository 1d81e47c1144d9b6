"""Merge the files of a small file group as plain values, from what readers keep (MDT-10.1).

A compaction of a small metadata table merges some dozens of records, most of which this process wrote. The result is
that of `slice_merge`, which a property test compares.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.core.format.metadata.few_records import UnusualRecordError
from lakehouse.core.format.metadata.schema import is_current
from lakehouse.core.metadata.read.layers import FileLayer
from lakehouse.core.metadata.record_kinds import RecordKind

#: Entries of logs, and of the base file, up to which plain values are used.
FEW_LOGGED, FEW_STORED = 512, 2_000


def few_merged(layers: Sequence[FileLayer], kind: RecordKind) -> dict[bytes, bytes]:
    """Return the merged records of a file group, ascending by key.

    Args:
        layers: The base file, if there is one, and the blocks of the log files, oldest first.
        kind: The kind of the records.

    Raises:
        UnusualRecordError: The file group is large, or its records have to be merged on tables.
    """
    merge = kind.merge_few
    counts = [layer.count if layer.has_entries else len(layer.deletes or ()) for layer in layers]
    if merge is None or sum(counts[1:]) > FEW_LOGGED or sum(counts) > FEW_STORED:
        raise UnusualRecordError
    versions: dict[bytes, list[bytes]] = {}
    for layer in layers:
        if not layer.has_entries:
            for key in layer.deleted():
                versions.pop(key, None)
        elif layer.count:
            schema = layer.schema
            if schema is None or not is_current(schema):
                raise UnusualRecordError
            for key, value in layer.all_stored().items():
                versions.setdefault(key, []).append(value)
    merged = ((key, merge(key, versions[key])) for key in sorted(versions))
    return {key: value for key, value in merged if value is not None}
