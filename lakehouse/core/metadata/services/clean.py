"""Clean of the metadata table: deletes the files of all slices except the newest two per file group (MDT-10.3).

    <t>.clean.requested   <t>.clean.inflight   files are deleted   <t>_<c>.clean

A crash leaves a pending clean; the next commit deletes its files again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from lakehouse.core.format.timeline.clean import decode_clean_plan, encode_clean_metadata, encode_clean_plan
from lakehouse.core.metadata.place import CLEAN_SUFFIX, TIME_DIGITS
from lakehouse.core.metadata.services.state import CLEAN, ServiceState
from lakehouse.core.planning.clean import CleanState, horizon_of, plan_clean
from lakehouse.core.state.file_system_view import DataFile, first_write
from lakehouse.core.timeline.file_deletions import check_data_files
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.clean import CleanPlan
from lakehouse.model.instant import Action, Instant, State

logger = logging.getLogger(__name__)


def clean(state: ServiceState, lock: TableLock) -> Instant | None:
    """Plan and execute a clean; return None if all files are needed."""
    plan = _plan(state)
    if plan is None:
        return None
    data = encode_clean_plan(plan, base_path=state.store.inner.storage.root)
    time = _time(state)
    if time is not None and any(instant.requested == time for instant in state.timeline):
        return None
    timelines = state.store.timeline_store
    lock.check()
    if time is None:
        return _execute(state, timelines.request(state.timeline, Action.CLEAN, data), plan, lock)
    return _execute(state, timelines.begin(time, Action.CLEAN, data), plan, lock)


def _time(state: ServiceState) -> str | None:
    """Return the time of a clean in version 6: the newest delta commit, and a suffix; None for other versions."""
    if state.store.config.layout.has_completion_times:
        return None
    deltas = state.timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    return f"{max(delta.requested for delta in deltas)[:TIME_DIGITS]}{CLEAN_SUFFIX}"


def finish_clean(state: ServiceState, pending: Instant, lock: TableLock) -> Instant | None:
    """Execute the plan of a crashed clean; return None if it has no plan."""
    data = state.store.timeline_store.read(pending, State.REQUESTED)
    if not data:
        state.remove_plan(pending, lock)
        return None
    return _execute(state, pending, decode_clean_plan(data, base_path=state.store.inner.storage.root), lock)


def _plan(state: ServiceState) -> CleanPlan | None:
    horizon = horizon_of(state.timeline, CLEAN, since="")
    if horizon is None:
        return None
    files = state.files()
    archived = _archived_completions(state, files.values())
    visible = state.visible(archived)
    planned = CleanState(
        timeline=state.timeline,
        visible=visible,
        groups=state.slices(files.values(), visible),
        listed_paths=files.keys(),
    )
    return plan_clean(planned, CLEAN, horizon)


def _archived_completions(state: ServiceState, files: Collection[DataFile]) -> Mapping[str, str]:
    """Return the completion times, by requested time, of archived instants whose files exist."""
    oldest = first_write(state.timeline)
    wanted = {file.instant for file in files if file.instant < oldest}
    history = state.store.timeline_store.archived_timeline
    if not wanted:
        return {}
    archived = history.instants(requested_from=min(wanted), requested_up_to=max(wanted))
    return {instant.requested: instant.completion for instant in archived if instant.requested in wanted}


def _execute(state: ServiceState, instant: Instant, plan: CleanPlan, lock: TableLock) -> Instant:
    store = state.store
    started_ms = store.env.clock.now_ms()
    check_data_files(store.inner.storage, plan.paths, f"the clean {instant.requested} of the metadata table")
    if instant.state is State.REQUESTED:
        instant = store.timeline_store.start(instant, b"")
    lock.check()
    store.remove_files(plan.paths)
    seconds = (store.env.clock.now_ms() - started_ms) / 1000
    done = state.complete(instant, encode_clean_metadata(plan.metadata(instant.requested, seconds)), lock)
    store.keep_files(state.names, state.timeline, done)
    logger.info("%s: deleted %d files of old slices", store.inner.storage.root, len(plan.paths))
    return done
