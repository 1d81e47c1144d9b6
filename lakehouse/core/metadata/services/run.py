"""Run the services of the metadata table that are due, inside a commit of the data table (MDT-10).

They run under the lock of the data table, before the commit writes its records: pending plans are finished, then clean,
compaction and archive. Whether a service is due follows from the two timelines, which the commit has loaded; a commit
without a due service sends no request for them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.metadata.services.archive import archive, instants_to_archive
from lakehouse.core.metadata.services.clean import clean, clean_is_due, finish_clean
from lakehouse.core.metadata.services.compaction import ServiceState, compact, compaction_time, finish_compaction
from lakehouse.core.metadata.services.log_compaction import compact_logs, finish_log_compaction, log_compaction_is_due
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import LakehouseError
from lakehouse.model.instant import Action, Instant, Timeline

logger = logging.getLogger(__name__)

_SERVICES = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLEAN)


def run_services(
    store: MetadataStore, definitions: Mapping[str, Definition], timeline: Timeline, data: Timeline, lock: TableLock
) -> Timeline:
    """Run the due services; return the timeline of the metadata table afterwards.

    Args:
        store: The metadata table.
        definitions: The index definitions.
        timeline: The timeline of the metadata table, loaded under the lock.
        data: The timeline of the data table, loaded under the lock.
        lock: The lock of the data table.

    Raises:
        CorruptTableError: A file of the metadata table is damaged, unless the policy lets the write continue.
    """
    state = ServiceState(store=store, names=(), definitions=definitions, timeline=timeline, data=data)
    if not _is_any_due(state, lock):
        return timeline
    usable, building = listed_partitions(read_properties(store.env.storage) or {})
    state = replace(state, names=usable)
    try:
        return _run(state, lock, is_building=bool(building)).timeline
    except LakehouseError as error:
        if error.retryable or lock.policy.metadata.fail_on_service_failure:
            raise
        logger.warning("%s: a service of the metadata table failed: %s", store.env.storage.root, error)
        return store.timeline_store.load()


def _is_any_due(state: ServiceState, lock: TableLock) -> bool:
    policy = lock.policy.metadata
    return bool(
        _pending(state.timeline)
        or clean_is_due(state.timeline)
        or compaction_time(state, policy.compaction_delta_commits) is not None
        or (policy.log_compaction and log_compaction_is_due(state, policy.log_compaction_blocks))
        or instants_to_archive(state.timeline, state.data)
    )


def _run(state: ServiceState, lock: TableLock, *, is_building: bool) -> ServiceState:
    policy = lock.policy.metadata
    for pending in _pending(state.timeline):
        _FINISH[pending.action](state, pending, lock)
        state = state.reloaded()
    if clean_is_due(state.timeline) and clean(state, lock) is not None:
        state = state.reloaded()
    time = compaction_time(state, policy.compaction_delta_commits)
    if time is not None:
        compact(state, time, lock)
        state = state.reloaded()
    if policy.log_compaction and log_compaction_is_due(state, policy.log_compaction_blocks):
        compact_logs(state, policy.log_compaction_blocks, lock)
        state = state.reloaded()
    archivable = [] if is_building else instants_to_archive(state.timeline, state.data)
    if archivable:
        archive(state, archivable, lock)
        state = state.reloaded()
    return state


_FINISH = {
    Action.COMPACTION: finish_compaction,
    Action.LOGCOMPACTION: finish_log_compaction,
    Action.CLEAN: finish_clean,
}


def _pending(timeline: Timeline) -> list[Instant]:
    return list(timeline.where(action=_SERVICES, pending=True))
