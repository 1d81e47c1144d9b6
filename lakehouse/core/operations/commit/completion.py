"""Complete an action on the data timeline: all actions end here, under the table lock (TL-8.2, MDT-8).

The metadata table records the change first. Its readers ignore the record until the data instant is completed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.metadata.write.commit import MetadataBehindError, Recorded, commit_metadata, withdraw
from lakehouse.core.metadata.write.rollback import remove_recorded
from lakehouse.core.operations.commit.metadata_rebuild import drop_for_rebuild
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.file_system_view import replacements
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import LakehouseError, RetryableError
from lakehouse.model.instant import Action, Instant, Timeline

logger = logging.getLogger(__name__)


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
    """Record the change in the metadata table, check the lock, then create the completed file.

    Raises RetryableError if the lock was lost, what `TimelineStore.complete` raises, and UnsupportedError if an index
    partition cannot be maintained.
    """
    if action.change is None:
        lock.check()
        return table.store.complete(action.instant, action.timeline, action.data, lock)
    table.store.refuse_during_restore(action.timeline)
    recorded: Recorded | None = None
    try:
        recorded = _record(table, action, action.change, lock)
        after = "" if recorded is None else recorded.instant.completion
        # Right before the file is created: also reading the properties of a table without metadata table takes time.
        lock.check()
        return table.store.complete(action.instant, action.timeline, action.data, lock, after=after)
    except RetryableError:
        _withdraw(table, action.instant, recorded, lock)
        raise


def _record(table: LoadedTable, action: Completion, change: MetadataChange, lock: TableLock) -> Recorded | None:
    """Record the change in the metadata table; None without one.

    A metadata table that lacks an earlier action would hide its rows from other engines for ever. It is dropped, and
    the next write builds it.
    """
    try:
        return commit_metadata(
            table.metadata,
            action.instant,
            change,
            action.timeline,
            lock,
            previous_schema=lambda: table_schema(replace(table, timeline=action.timeline)),
            replaced=lambda: replacements(
                table.store.summaries(action.timeline.writes().where(action=Action.REPLACECOMMIT))
            ),
        )
    except MetadataBehindError as error:
        logger.error("The metadata table is dropped, and the next write builds it: %s", error.message)
        drop_for_rebuild(table, lock)
        return None


def _withdraw(table: LoadedTable, action: Instant, recorded: Recorded | None, lock: TableLock) -> None:
    """Remove what was recorded of an action that another process has rolled back or completed meanwhile.

    While the action is pending, its record has no effect, and the rollback of the action removes it.
    """
    if not table.config.metadata_partitions and recorded is None:
        return
    try:
        with lock.reacquire() as held:
            current = table.store.load().current(action)
            if current is None:
                held.check()
                remove_recorded(table.metadata, action.requested)
            elif current.is_completed and recorded is not None:
                held.check()
                withdraw(table.metadata, recorded)
    except LakehouseError as error:
        logger.error(
            "%s: the metadata table may have records of %s, which was not committed: %s; run `lakehouse metadata "
            "validate`",
            table.env.storage.root,
            action.requested,
            error,
        )
