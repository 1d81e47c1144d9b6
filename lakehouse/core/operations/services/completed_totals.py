"""Reads the rows, files and bytes of a completed service action, for an attempt that crashed after its commit."""

from __future__ import annotations

import pyarrow.compute as pc

from lakehouse.core.format.timeline.clean import decode_clean_metadata
from lakehouse.core.operations.commit.results import Totals
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.model.instant import Action, State

#: Totals, each with the column of written files that it sums.
_SUMS = {
    "rows": "num_writes",
    "inserts": "num_inserts",
    "updates": "num_updates",
    "deletes": "num_deletes",
    "bytes": "size_bytes",
}


def completed_totals(table: LoadedTable, requested: str) -> Totals | None:
    """Return the totals of the completed clean or write with this requested time.

    None if it is not on the active timeline, or if its metadata has no totals, such as the metadata of an indexing.
    """
    instant = table.timeline.find(requested)
    if instant is None or not instant.is_completed:
        return None
    if instant.action is Action.CLEAN:
        data = table.store.read(instant, State.COMPLETED)
        return Totals(files=len(decode_clean_metadata(data).deleted)) if data else None
    if instant not in table.timeline.writes():
        return None
    files = table.store.files([instant])
    sums = {name: pc.sum(files[column]).as_py() or 0 for name, column in _SUMS.items()}
    return Totals(files=files.num_rows, **sums)
