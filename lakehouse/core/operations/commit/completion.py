"""Complete an action on the data timeline: all actions end here, under the table lock (TL-8.2, MDT-8).

The metadata table records the change first. Its readers ignore the record until the data instant is completed.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.instant import Instant, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An inflight action that is ready to complete.

    Attributes:
        instant: The inflight instant.
        timeline: The timeline as it was loaded under the lock.
        data: The content of the completed file.
        change: What the metadata table records; None for actions without one, such as a savepoint.
    """

    instant: Instant
    timeline: Timeline
    data: bytes
    change: MetadataChange | None = None


def complete_action(table: LoadedTable, action: Completion, lock: TableLock) -> Instant:
    """Record the change in the metadata table, then create the completed file; call right after `lock.check()`.

    Raises what `TimelineStore.complete` raises.
    """
    return table.store.complete(action.instant, action.timeline, action.data, lock)
