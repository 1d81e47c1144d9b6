"""The record index of a loaded table, as writes and point reads use it (MDT-4)."""

from __future__ import annotations

from lakehouse.core.files.located_keys import RecordLocations
from lakehouse.core.operations.load.table import LoadedTable


def record_locations(table: LoadedTable, *, by_partition: bool) -> RecordLocations | None:
    """Return the record index of the table, or of each partition; None if the table has none that can be used.

    A write drops the metadata table before it looks up keys, because this package does not maintain it yet (TL-9.8).
    So there is none.
    """
    return None
