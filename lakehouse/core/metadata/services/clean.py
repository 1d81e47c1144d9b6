"""Clean of the metadata table: files of slices before the newest two of each group are deleted (MDT-10.3).

    <t>.clean.requested   <t>.clean.inflight   files are deleted   <t>_<c>.clean

A reader that loaded the timeline before a compaction reads the slice before the newest one. A clean therefore waits for
some commits after a compaction. A crash leaves a pending clean; the next commit deletes its files again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from lakehouse.core.format.timeline.clean import decode_clean_plan, encode_clean_metadata, encode_clean_plan
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.metadata.services.compaction import ServiceState
from lakehouse.core.metadata.services.group_files import (
    GroupFiles,
    completed_writes,
    delta_commits_since,
    last_compaction,
)
from lakehouse.core.planning.clean import FILE_VERSIONS
from lakehouse.core.timeline.file_deletions import check_data_files
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.clean import CleanedPartition, CleanMetadata, CleanPlan
from lakehouse.model.instant import Action, Instant, State, Timeline

logger = logging.getLogger(__name__)

#: Slices of a group that stay, and delta commits after a compaction before a clean.
_KEPT_SLICES, _COMMITS_BEFORE = 2, 3


def clean_is_due(timeline: Timeline) -> bool:
    """Return whether a clean is due: there were two compactions, and no clean since the last one.

    A clean that found nothing leaves no instant, so a commit asks again only after some more commits.
    """
    compactions = timeline.where(action=Action.COMMIT, state=State.COMPLETED)
    compaction = last_compaction(timeline)
    if compaction is None or len(compactions) < _KEPT_SLICES:
        return False
    commits = len(delta_commits_since(timeline, compaction))
    if commits == 0 or commits % _COMMITS_BEFORE:
        return False
    cleans = timeline.where(action=Action.CLEAN, state=State.COMPLETED)
    return all(clean.requested < compaction.completion for clean in cleans)


def clean(state: ServiceState, lock: TableLock) -> Instant | None:
    """Plan and execute a clean; return None if all files are needed."""
    store = state.store
    files = _unneeded(state, state.groups())
    if not files:
        return None
    last = max((write.requested for write in completed_writes(state.timeline).values()), default="")
    plan = CleanPlan(policy=FILE_VERSIONS, earliest=None, last_completed=last, files=files)
    data = encode_clean_plan(plan, base_path=store.inner.storage.root)
    lock.check()
    return _execute(state, store.timeline_store.request(state.timeline, Action.CLEAN, data), plan, lock)


def finish_clean(state: ServiceState, pending: Instant, lock: TableLock) -> Instant | None:
    """Execute the plan of a clean that a crash left; return None if it has no plan."""
    store = state.store
    data = store.timeline_store.read(pending, State.REQUESTED)
    if not data:
        store.timeline_store.remove_pending(replace(pending, state=State.INFLIGHT))
        return None
    return _execute(state, pending, decode_clean_plan(data, base_path=store.inner.storage.root), lock)


def _execute(state: ServiceState, instant: Instant, plan: CleanPlan, lock: TableLock) -> Instant:
    store = state.store
    timelines = store.timeline_store
    started_ms = store.env.clock.now_ms()
    check_data_files(store.inner.storage, plan.paths, f"the clean {instant.requested} of the metadata table")
    if instant.state is State.REQUESTED:
        instant = timelines.start(instant, b"")
    lock.check()
    store.remove_files(plan.paths)
    metadata = CleanMetadata(
        start_time=instant.requested,
        seconds=(store.env.clock.now_ms() - started_ms) / 1000,
        earliest="",
        last_completed=plan.last_completed,
        partitions={
            name: CleanedPartition(policy=plan.policy, deleted=tuple(path.rpartition("/")[2] for path in paths))
            for name, paths in plan.files.items()
        },
    )
    timeline = Timeline((*(known for known in state.timeline if known.key != instant.key), instant))
    lock.check()
    done = timelines.complete(instant, timeline, encode_clean_metadata(metadata), lock.below(METADATA))
    store.keep_files(state.names, state.timeline, done)
    logger.info("%s: deleted %d files of old slices", store.inner.storage.root, len(plan.paths))
    return done


def _unneeded(state: ServiceState, groups: list[GroupFiles]) -> dict[str, tuple[str, ...]]:
    """Return the files of slices before the newest two of each group, by partition."""
    completions = _completions(state, groups)
    first = min((instant.requested for instant in state.timeline), default="")
    found: dict[str, list[str]] = {}
    for group in groups:
        instants = {base.instant for base in group.bases}
        committed = sorted(instant for instant in instants if instant in completions or instant < first)
        if len(committed) < _KEPT_SLICES:
            continue
        oldest = committed[-_KEPT_SLICES]
        old: list[str] = [base.name for base in group.bases if base.instant < oldest]
        # A log belongs to the slice that begins before the completion of its delta commit.
        old += [log.name for log in group.logs if completions.get(log.instant, oldest) < oldest]
        if old:
            found.setdefault(group.partition, []).extend(f"{group.partition}/{name}" for name in old)
    return {name: tuple(sorted(paths)) for name, paths in sorted(found.items())}


def _completions(state: ServiceState, groups: list[GroupFiles]) -> Mapping[str, str]:
    """Return requested time -> completion time of the completed writes of which files exist, archived ones included."""
    found = {requested: write.completion for requested, write in completed_writes(state.timeline).items()}
    unknown = {instant for group in groups for instant in group.instants()} - found.keys()
    pending = {instant.requested for instant in state.timeline.where(pending=True)}
    history = state.store.timeline_store.archived_timeline
    if unknown - pending and history is not None:
        archived = history.instants(requested_from=min(unknown), requested_up_to=max(unknown))
        found |= {instant.requested: instant.completion for instant in archived if instant.requested in unknown}
    return found
