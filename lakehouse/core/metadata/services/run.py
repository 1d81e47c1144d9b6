"""Run the services of the metadata table that are due, inside a commit of the data table (MDT-10).

They run under the lock of the data table, before the commit writes its records: pending plans are finished, then clean,
compaction, log compaction and archive. Whether a service is due follows from the two timelines, which the commit has
loaded; a commit without a due service sends no request for them. A change of columns writes no file and ends within a
second on a table with many files, so it leaves the services to the next write.

Clean and archive keep the files and instants that a reader or a rollback may need:

    reader of an older timeline   It reads the slice before a new compaction, so a clean waits for some commits.
    last compaction and later     A log block counts only if its delta commit is on the active timeline.
    data timeline                 A rollback of an active data instant searches for the delta commit with its time.
    pending instant               It and all later ones stay.
    partition that is being built No instant is archived, because its logs are in no compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import COMPACTION_SUFFIX, INIT_PREFIX, TIME_DIGITS, listed_partitions
from lakehouse.core.metadata.services.clean import clean, finish_clean
from lakehouse.core.metadata.services.compaction import COMPACTION, LOG_COMPACTION
from lakehouse.core.metadata.services.rewrite import finish_rewrite, rewrite
from lakehouse.core.metadata.services.state import ARCHIVE, CLEAN, ServiceState, compaction_policy
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.planning.archive import Bound, plan_archive, too_few
from lakehouse.core.planning.compaction import delta_commits_since, last_compaction
from lakehouse.core.timeline.archived_actions import move_to_archive
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import LakehouseError
from lakehouse.model.instant import Action, Instant, State, Timeline, instant_moment
from lakehouse.spec.options.compaction import CompactionPolicy

logger = logging.getLogger(__name__)

_REWRITES = {Action.COMPACTION: COMPACTION, Action.LOGCOMPACTION: LOG_COMPACTION}
_SERVICES = (*_REWRITES, Action.CLEAN)
#: Commits without files postpone services until this multiple of the usual delta commits waits for them.
_MOST_POSTPONED = 2
#: Number of delta commits between a compaction and the next clean.
_COMMITS_BEFORE_CLEAN = 3


# parameters: the metadata table, the timelines and the lock of a commit
def run_services(
    store: MetadataStore,
    definitions: Mapping[str, Definition],
    timeline: Timeline,
    data: Timeline,
    lock: TableLock,
    *,
    postpones: bool = False,
) -> Timeline:
    """Run the due services; return the timeline of the metadata table afterwards.

    Args:
        store: The metadata table.
        definitions: The index definitions.
        timeline: The timeline of the metadata table, loaded under the lock.
        data: The timeline of the data table, loaded under the lock.
        lock: The lock of the data table.
        postpones: Leave the services to a later commit, unless twice as many delta commits as usual wait for one.

    Raises:
        CorruptTableError: A file of the metadata table is damaged, unless the policy allows the write to continue.
    """
    policy = lock.policy.metadata
    most = _MOST_POSTPONED * compaction_policy(policy).max_delta_commits
    if postpones and len(delta_commits_since(timeline, last_compaction(timeline))) < most:
        return timeline
    state = ServiceState(store=store, names=(), definitions=definitions, timeline=timeline, data=data)
    if not _is_any_due(state, compaction_policy(policy), compacts_logs=_compacts_logs(store, lock)):
        return timeline
    usable, building = listed_partitions(read_properties(store.env.storage) or {})
    state = replace(state, names=usable)
    try:
        return _run(state, lock, is_building=bool(building)).timeline
    except LakehouseError as error:
        if error.retryable or policy.fail_on_service_failure:
            raise
        logger.warning("%s: a service of the metadata table failed: %s", store.env.storage.root, error)
        return store.timeline_store.load()


def _is_any_due(state: ServiceState, policy: CompactionPolicy, *, compacts_logs: bool) -> bool:
    return bool(
        _pending(state.timeline)
        or clean_is_due(state.timeline)
        or compaction_time(state, policy) is not None
        or (compacts_logs and log_compaction_is_due(state, policy))
        or instants_to_archive(state.timeline, state.data)
    )


def _run(state: ServiceState, lock: TableLock, *, is_building: bool) -> ServiceState:
    policy, compacts_logs = compaction_policy(lock.policy.metadata), _compacts_logs(state.store, lock)
    for pending in _pending(state.timeline):
        kind = _REWRITES.get(pending.action)
        if kind is None:
            finish_clean(state, pending, lock)
        elif kind is LOG_COMPACTION and state.store.config.layout.names_logs_by_slice:
            state.remove_plan(pending, lock)
        else:
            finish_rewrite(state, kind, pending, lock)
        state = state.reloaded()
    if clean_is_due(state.timeline) and clean(state, lock) is not None:
        state = state.reloaded()
    time = compaction_time(state, policy)
    if time is not None and rewrite(state, COMPACTION, policy, lock, time) is not None:
        state = state.reloaded()
    if compacts_logs and log_compaction_is_due(state, policy):
        rewrite(state, LOG_COMPACTION, policy, lock)
        state = state.reloaded()
    archivable = () if is_building else instants_to_archive(state.timeline, state.data)
    if archivable:
        _archive(state, archivable, lock)
        state = state.reloaded()
    return state


def _compacts_logs(store: MetadataStore, lock: TableLock) -> bool:
    """Return whether logs are compacted. Hudi 0.15 reads a merged log besides the logs that it replaces (V6-5.9)."""
    return lock.policy.metadata.log_compaction and not store.config.layout.names_logs_by_slice


def _pending(timeline: Timeline) -> list[Instant]:
    return list(timeline.where(action=_SERVICES, pending=True))


def compaction_time(state: ServiceState, policy: CompactionPolicy) -> str | None:
    """Return the instant time of a compaction if it is due now; "" stands for a new time.

    The data instant of a completed delta commit may still be pending, after a crash or between the two steps of another
    process. That delta commit must stay removable, so the compaction gets a time just before it. The result is None if
    that time cannot be used.

    A compaction waits while an index is being built. The base files of the build have the time of the indexing, and a
    compaction writes base files of all usable partitions, so a later one would hide them, or miss the new partition.
    """
    if len(state.data.where(action=Action.INDEXING, pending=True)):
        return None
    compaction = last_compaction(state.timeline)
    since = delta_commits_since(state.timeline, compaction)
    if len(since) < policy.max_delta_commits:
        return None
    if not state.store.config.layout.has_completion_times:
        return _suffixed_compaction_time(state)
    pending = {instant.requested for instant in state.data.where(pending=True)}
    deltas = state.timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    ahead = min((delta.requested for delta in deltas if delta.requested in pending), default=None)
    if ahead is None:
        return ""
    time = _before(ahead)
    is_used = any(instant.requested == time for instant in state.timeline)
    is_older = compaction is not None and time <= compaction.requested
    has_logs = any(delta.completion < time for delta in since)
    return None if is_used or is_older or not has_logs else time


def _suffixed_compaction_time(state: ServiceState) -> str | None:
    """Return the time of a compaction in version 6: the newest delta commit, and a suffix.

    As in Hudi, it waits for all actions of the data table that are older than the delta commit: their records must stay
    removable, and their blocks must be newer than the archived ones.
    """
    deltas = state.timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    newest = max((delta.requested for delta in deltas), default="")
    if len(newest) != TIME_DIGITS or newest.startswith(INIT_PREFIX):
        return None
    if any(instant.requested <= newest for instant in state.data.where(pending=True)):
        return None
    time = f"{newest}{COMPACTION_SUFFIX}"
    return None if any(instant.requested == time for instant in state.timeline) else time


def _before(time: str) -> str:
    """Return the instant time one millisecond before another one."""
    moment = instant_moment(time) + timedelta(milliseconds=int(time[14:17] or 0) - 1)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def log_compaction_is_due(state: ServiceState, policy: CompactionPolicy) -> bool:
    """Return whether enough delta commits completed since the last compaction or log compaction.

    The service waits while the data instant of a completed delta commit is pending: a rollback may have to remove it.
    """
    since = delta_commits_since(state.timeline, last_compaction(state.timeline))
    pending = {instant.requested for instant in state.data.where(pending=True)}
    if any(delta.requested in pending for delta in since):
        return False
    compacted = [delta for delta in since if state.store.is_log_compaction(delta)]
    last = max((delta.requested for delta in compacted), default="")
    return sum(delta.completion > last for delta in since if delta not in compacted) >= policy.log_blocks_threshold


def clean_is_due(timeline: Timeline) -> bool:
    """Return whether a clean is due: there were two compactions, and no clean since the last one.

    A clean that found nothing leaves no instant, so the next check is some commits later.
    """
    compactions = timeline.where(action=Action.COMMIT, state=State.COMPLETED)
    compaction = last_compaction(timeline)
    if compaction is None or len(compactions) < CLEAN.versions_retained:
        return False
    commits = len(delta_commits_since(timeline, compaction))
    if commits == 0 or commits % _COMMITS_BEFORE_CLEAN:
        return False
    cleans = timeline.where(action=Action.CLEAN, state=State.COMPLETED)
    return all(clean.requested < compaction.completion for clean in cleans)


def instants_to_archive(timeline: Timeline, data: Timeline) -> tuple[Instant, ...]:
    """Return the instants of the metadata timeline that can be archived now, oldest first; none if none is due."""
    compaction = last_compaction(timeline)
    if compaction is None or too_few(timeline, ARCHIVE, CLEAN) is not None:
        return ()
    later = [write.requested for write in timeline.writes() if write.completion >= compaction.requested]
    bounds = [
        Bound(requested=min(compaction.requested, *later), reason="its logs are in no compaction"),
        Bound(requested=min((i.requested for i in data), default=""), reason="the data timeline has the instant"),
        *(Bound(requested=i.requested, reason="it is pending") for i in timeline.where(pending=True)),
    ]
    if min(bound.requested for bound in bounds) <= next(iter(timeline)).requested:
        return ()
    others = (Action.ROLLBACK, Action.RESTORE)
    return plan_archive(timeline, ARCHIVE, CLEAN, bounds, other_actions=others).instants


def _archive(state: ServiceState, instants: Sequence[Instant], lock: TableLock) -> None:
    """Move instants to the archived timeline."""
    root = state.store.inner.storage.root
    lock.check()
    move_to_archive(state.store.timeline_store, instants, root, lock.check, merge_batch=ARCHIVE.merge_batch)
    state.store.keep_archived(state.names, state.timeline, instants)
    logger.info("%s: archived %d instants", root, len(instants))
