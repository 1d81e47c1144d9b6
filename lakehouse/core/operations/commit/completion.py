"""Complete an action on the data timeline: all actions end here, under the table lock (TL-8.2, MDT-8).

The metadata table records the change first. Readers of the metadata table ignore the record until the data instant is
completed.

If the metadata table cannot record an action, it is dropped, and rebuilt afterwards (MDT-9):

    drop properties: list no index partitions, only the names to rebuild     files of the metadata table
    rebuild   under the lock: listing of storage   each partition   properties: the partitions, no names to build

In between readers list storage. After a crash the next write or undo operation of the table builds it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.partitions.registry import partition_refusal
from lakehouse.core.metadata.place import INFLIGHT_KEY, PARTITIONS_KEY, listed_partitions
from lakehouse.core.metadata.write.commit import MetadataBehindError, Recorded, commit_metadata, withdraw
from lakehouse.core.metadata.write.drop import drop_metadata
from lakehouse.core.metadata.write.initialise import build_partitions
from lakehouse.core.metadata.write.rollback import remove_recorded
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.table_files import table_files
from lakehouse.core.state.file_system_view import replacements
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.core.timeline.table_properties import read_properties, update_properties
from lakehouse.errors import LakehouseError, RetryableError
from lakehouse.model.indexing import COLUMN_STATS
from lakehouse.model.instant import Action, Instant, Timeline
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An inflight action that is ready to complete.

    Attributes:
        instant: The inflight instant.
        timeline: The timeline as it was loaded under the lock.
        data: The content of the completed file.
        change: The change to record in the metadata table; None for actions without a record, such as a savepoint.
        is_last: Whether no later step needs the lock, so that its release serves as the check after the commit.
    """

    instant: Instant
    timeline: Timeline
    data: bytes
    change: MetadataChange | None = None
    is_last: bool = False


def complete_action(table: LoadedTable, action: Completion, lock: TableLock) -> Instant:
    """Record the change in the metadata table, check the lock, then create the completed file.

    Raises RetryableError if the lock was lost, the errors of `TimelineStore.complete`, and UnsupportedError if an index
    partition cannot be maintained.
    """
    last = lock.for_last_step() if action.is_last else lock
    if action.change is None:
        lock.check_lease()
        return table.store.complete(action.instant, action.timeline, action.data, last)
    table.store.refuse_during_restore(action.timeline)
    recorded: Recorded | None = None
    try:
        recorded = _record(table, action, action.change, lock)
        after = "" if recorded is None else recorded.instant.completion
        # Check right before the file is created, because even reading the properties takes time.
        lock.check_lease()
        return table.store.complete(action.instant, action.timeline, action.data, last, after=after)
    except RetryableError:
        _withdraw(table, action.instant, recorded, lock)
        raise


def _record(table: LoadedTable, action: Completion, change: MetadataChange, lock: TableLock) -> Recorded | None:
    """Record the change in the metadata table. Return the created record, or None if there is no metadata table.

    A metadata table that lacks an earlier action would hide the rows of that action from other engines forever.
    Therefore it is dropped, and the next write rebuilds it.
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
    """Remove the record of an action that was not committed, or that another process has completed meanwhile.

    A rollback by another process may be past the step that removes the record, so it is removed here at any time.
    """
    if not table.config.metadata_partitions and recorded is None:
        return
    try:
        with lock.reacquire() as held:
            current = table.store.load().current(action)
            if current is None or not current.is_completed:
                withdraw_record(table, action.requested, held)
            elif recorded is not None:
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


def withdraw_record(table: LoadedTable, requested: str, lock: TableLock) -> None:
    """Remove the records of an action that will not be committed from the metadata table; call under the table lock.

    Otherwise readers would treat the record like the record of an archived action, once the action is deleted from the
    data timeline.
    """
    if any(listed_partitions(read_properties(table.env.storage) or {})):
        lock.check()
        if not remove_recorded(table.metadata, requested):
            drop_for_rebuild(table, lock)


#: Property of the data table: index partitions that are rebuilt after an undo.
REBUILD_KEY = "lakehouse.metadata.rebuild"


def drop_for_rebuild(table: LoadedTable, lock: TableLock) -> None:
    """Drop the metadata table and note its partitions; call under the table lock."""
    usable, building = listed_partitions(read_properties(table.env.storage) or {})
    names = sorted({*usable, *building})
    if not names:
        return
    lock.check()
    update_properties(table.env, {PARTITIONS_KEY: None, INFLIGHT_KEY: None, REBUILD_KEY: ",".join(names)})
    drop_metadata(table.env)
    table.metadata.forget()


def needs_rebuild(table: LoadedTable) -> bool:
    """Return whether the loaded properties list partitions to rebuild."""
    return REBUILD_KEY in table.config.raw


def rebuild_dropped(table: LoadedTable, policy: TransactionPolicy) -> None:
    """Rebuild the partitions that are listed in the properties, if any. The lock is held during the build.

    Nothing is built while a restore is pending: it records none of its deletions, and builds the partitions at its end.
    """
    if REBUILD_KEY not in (read_properties(table.env.storage) or {}):
        return
    with table_lock(table.env, policy) as lock:
        now = table.refresh()
        noted = now.config.raw.get(REBUILD_KEY, "")
        if not noted or now.timeline.pending_restore() is not None:
            return
        usable, building = listed_partitions(now.config.raw)
        definitions = read_definitions(now.env.storage)
        names = [
            name
            for name in noted.split(",")
            if (name == COLUMN_STATS or partition_refusal(name, now.config, definitions.get(name)) is None)
            and name not in usable
        ]
        lock.check()
        if not usable and not building:
            # A crash may have left files of an earlier build.
            drop_metadata(now.env)
        if names:
            files = table_files(now, Policies(transaction=policy))
            build_partitions(now.metadata, names, files, now.timeline, lock)
        update_properties(now.env, {REBUILD_KEY: None})
    logger.info("%s: built the metadata table again with %s", table.env.storage.root, ", ".join(names))
