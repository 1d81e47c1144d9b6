"""Merge the files of a small file group from the records that readers keep in memory (MDT-10.1).

A compaction of a small metadata table merges some dozens of records, usually written by this process. The result
equals the result of `slice_merge`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.core.metadata.read.layers import FileLayer
from lakehouse.core.metadata.record_kinds import FILES, STATISTICS, RecordKind
from lakehouse.core.metadata.small.look_up import in_memory
from lakehouse.core.metadata.small.records import door, merged_file_maps, merged_statistics, refuse

#: Maximum numbers of log entries, and of all entries, that are merged as plain values.
_FEW_LOGGED, _FEW_STORED = 512, 2_000


@door
def small_merge(layers: Sequence[FileLayer], kind: RecordKind) -> dict[bytes, bytes]:
    """Return the merged records of a file group, ascending by key.

    It is None if the file group is large, or if its records must be merged as tables.

    Args:
        layers: The base file, if there is one, and the blocks of the log files, oldest first.
        kind: The kind of the records.
    """
    counts = [layer.count if layer.has_entries else len(layer.deletes or ()) for layer in layers]
    is_few = sum(counts[1:]) <= _FEW_LOGGED and sum(counts) <= _FEW_STORED
    if not is_few or (kind is not FILES and kind is not STATISTICS):
        refuse()
    merge = merged_file_maps if kind is FILES else merged_statistics
    versions: dict[bytes, list[bytes]] = {}
    for layer in layers:
        if not layer.has_entries:
            for key in layer.deleted():
                versions.pop(key, None)
        elif layer.count:
            for key, value in in_memory(layer, layer.all_stored(), statistics=kind is STATISTICS).items():
                versions.setdefault(key, []).append(value)
    merged = ((key, merge(key, versions[key])) for key in sorted(versions))
    return {key: value for key, value in merged if value is not None}
