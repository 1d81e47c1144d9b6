"""Archive of the metadata timeline: the oldest completed instants move to the archived timeline (MDT-10.4).

An instant stays on the active timeline if a reader or a rollback may need it there:

    last compaction and later     A log block counts only if its delta commit is on the active timeline.
    data timeline                 A rollback of an active data instant looks for the delta commit with its time.
    pending instant               It and all later ones stay.
    partition that is being built No instant is archived, because its logs are in no compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lakehouse.core.metadata.services.compaction import ServiceState
from lakehouse.core.metadata.services.group_files import last_compaction
from lakehouse.core.timeline.archived_actions import read_archived_actions
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline

logger = logging.getLogger(__name__)

#: An archive is due above the first number of completed writes, and leaves the second one: Hudi's numbers for the data
#: table and one more.
MAX_COMMITS, MIN_COMMITS = 31, 21
_MERGE_BATCH = 10
_ARCHIVED = WRITE_ACTIONS | {Action.CLEAN, Action.ROLLBACK, Action.RESTORE}


def instants_to_archive(timeline: Timeline, data: Timeline) -> list[Instant]:
    """Return the instants of the metadata timeline that can be archived now, oldest first; none if none is due."""
    writes = timeline.writes().instants
    compaction = last_compaction(timeline)
    if len(writes) <= MAX_COMMITS or compaction is None:
        return []
    bounds = [
        compaction.requested,
        min((instant.requested for instant in data), default=""),
        min((i.requested for i in timeline.where(pending=True)), default=compaction.requested),
        *(write.requested for write in writes if write.completion >= compaction.requested),
        writes[-MIN_COMMITS].requested,
    ]
    first = min(bounds)
    return [instant for instant in timeline if instant.requested < first and instant.action in _ARCHIVED]


def archive(state: ServiceState, instants: Sequence[Instant], lock: TableLock) -> None:
    """Move instants to the archived timeline."""
    timelines = state.store.timeline_store
    history = timelines.archived_timeline
    assert history is not None, "tables of layout 1 are not written"
    lock.check()
    history.settle(lock.check)
    known = {(i.key, i.completed) for i in history.instants(requested_from=instants[0].requested)}
    missing = [instant for instant in instants if (instant.key, instant.completed) not in known]
    if missing:
        actions = read_archived_actions(timelines, missing, state.store.inner.storage.root)
        history.append(actions, missing[0].requested, missing[-1].requested, lock.check)
    timelines.remove_archived(instants, lock.check)
    state.store.keep_archived(state.names, state.timeline, instants)
    merges = history.merge(_MERGE_BATCH, lock.check)
    lock.check()
    history.clean(merges)
    logger.info("%s: archived %d instants", state.store.inner.storage.root, len(instants))
