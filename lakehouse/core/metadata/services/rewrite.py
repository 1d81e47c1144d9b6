"""Rewrite file groups of the metadata table: compaction and log compaction, under the lock of the data table.

    <t>.<action>.requested   <t>.<action>.inflight   new files   <t>_<c>.<action>

Readers ignore the new files until the instant is completed. A crash leaves a pending plan. The next commit deletes its
files and executes it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.format.timeline.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.core.metadata.read.slices import MetadataSlice
from lakehouse.core.metadata.read.validity import Validity, validity
from lakehouse.core.metadata.services.state import ServiceState
from lakehouse.core.metadata.write.files import new_token
from lakehouse.core.state.file_system_view import DataFile
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.compaction import CompactionPolicy

logger = logging.getLogger(__name__)

#: A time that sorts after every instant.
_AFTER_ALL = "9" * 17
#: Maximum number of file groups that are rewritten concurrently. Each needs memory for its logs and one batch.
_WRITERS = 4
#: Bytes of logs above which file groups are also rewritten concurrently on a local disk. For small groups the threads
#: would wait for each other, which nearly doubles the CPU time.
_PARALLEL_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The values that all tasks of one plan share.

    Attributes:
        state: The metadata table.
        validity: The instants that the tasks merge.
        instant: The inflight instant of the plan.
        token: The write token of the new files.
        files: The listed files by path.
    """

    state: ServiceState
    validity: Validity
    instant: Instant
    token: str
    files: Mapping[str, DataFile]

    def merges(self, instant: str) -> bool:
        """Return whether the log blocks of an instant are merged: its action is not pending on the data timeline.

        In version 6 a log may have blocks of delta commits that were not completed.
        """
        if self.state.store.config.layout.appends_to_logs:
            return self.validity.is_valid(instant)
        return instant not in self.validity.pending

    def slice_of(self, operation: CompactionOperation) -> MetadataSlice:
        """Return the files that an operation merges, with their sizes."""
        merged = [self.files[path] for path in planned_paths(operation)]
        base = next((file for file in merged if isinstance(file, BaseFile)), None)
        logs = [file for file in merged if isinstance(file, LogFile)]
        logs.sort(key=lambda log: (log.instant, log.version, log.write_token))
        return MetadataSlice(operation.file_id, base, tuple(logs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The new file of one file group, and its records by key if they are few."""

    stat: WriteStat
    records: Mapping[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteKind:
    """The differences between compaction and log compaction.

    `plan` is the planner of data tables. `task` rewrites one file group, and returns None if there is nothing to write.
    """

    action: Action
    operation: Operation
    plan: Callable[[Sequence[FileSlice], CompactionPolicy], CompactionPlan | None]
    task: Callable[[Rewrite, CompactionOperation], Rewritten | None]


# parameters: the table and its policy, the kind and the time of the rewrite, and the lock
def rewrite(
    state: ServiceState, kind: RewriteKind, policy: CompactionPolicy, lock: TableLock, time: str = ""
) -> Instant | None:
    """Plan and execute a rewrite; return None if no file group qualifies.

    `time` is the instant time of the rewrite; "" means a new time. A plan contains the logs that completed before it.
    """
    timelines, files = state.store.timeline_store, state.files()
    # Under the lock no delta commit can complete, so the plan does not depend on the instant time.
    plan = kind.plan(state.newest_slices(files.values(), time or _AFTER_ALL), policy)
    if plan is None:
        return None
    data = encode_compaction_plan(plan, log_compaction=kind.action is Action.LOGCOMPACTION)
    lock.check()
    instant = timelines.begin(time, kind.action, data) if time else timelines.request(state.timeline, kind.action, data)
    return _execute(state, kind, instant, plan, files, lock)


def finish_rewrite(state: ServiceState, kind: RewriteKind, pending: Instant, lock: TableLock) -> Instant | None:
    """Execute the plan of a crashed rewrite; return None if the plan was removed instead.

    A plan whose files were deleted cannot be executed. It is removed, which changes nothing: readers still merge its
    logs, and the next plan contains them.
    """
    store = state.store
    store.remove_unfinished(state.names, pending.requested)
    files = state.stored_files()
    by_slice = store.config.layout.names_logs_by_slice
    # In version 6, logs that are named after the plan are from later delta commits.
    named = {path for path, file in files.items() if by_slice and isinstance(file, LogFile)}
    written = [path for path, file in files.items() if file.instant == pending.requested and path not in named]
    if written:
        lock.check()
        store.remove_files(written)
    data = store.timeline_store.read(pending, State.REQUESTED)
    plan = decode_compaction_plan(data) if data else None
    if plan is None or not all(path in files for operation in plan.operations for path in planned_paths(operation)):
        later = next((path for path in named if files[path].instant == pending.requested), None)
        if later is not None:
            raise CorruptTableError(
                f"{store.inner.storage.root}: files of the compaction {pending.requested} are missing, and {later} was "
                "written after its plan; run `lakehouse metadata rebuild`",
                path=later,
            )
        logger.warning("%s: removed the %s plan %s", store.inner.storage.root, kind.action, pending.requested)
        state.remove_plan(pending, lock)
        return None
    return _execute(state, kind, pending, plan, files, lock)


def planned_paths(operation: CompactionOperation) -> list[str]:
    """Return the paths of the files that an operation merges, the base file first."""
    names = [*([operation.data_file] if operation.data_file else []), *operation.log_files]
    return [f"{operation.partition}/{name}" for name in names]


# parameters: the plan with the listed files of its groups, and the lock
def _execute(
    state: ServiceState,
    kind: RewriteKind,
    instant: Instant,
    plan: CompactionPlan,
    files: Mapping[str, DataFile],
    lock: TableLock,
) -> Instant:
    store = state.store
    if instant.state is State.REQUESTED:
        instant = store.timeline_store.start(instant, b"")
    common = Rewrite(
        state=state,
        validity=validity(state.timeline, state.data),
        instant=instant,
        token=new_token(store.env),
        files=files,
    )
    tasks = [partial(kind.task, common, operation) for operation in plan.operations]
    slices = [common.slice_of(operation) for operation in plan.operations]
    if sum(log.size_bytes for merged in slices for log in merged.logs) > _PARALLEL_BYTES:
        with ThreadPoolExecutor(_WRITERS) as pool:
            results = list(pool.map(lambda task: task(), tasks))
    else:
        results = send_all(store.inner.storage, lambda task: task(), tasks)
    rewritten = [result for result in results if result is not None]
    metadata = CommitMetadata(
        operation=kind.operation,
        stats=tuple(sorted((result.stat for result in rewritten), key=lambda stat: stat.path)),
        extra={"schema": store.records.commits},
        compacted=True,
    )
    done = state.complete(instant, store.config.layout.encode_commit(metadata), lock)
    logger.info("%s: %s of %d file groups at %s", store.inner.storage.root, kind.action, len(tasks), done.requested)
    store.keep_files(state.names, state.timeline, done, metadata.stats)
    for result in rewritten:
        stat = result.stat
        base = parse_base_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes)
        if result.records is not None and base is not None:
            store.keep_base(done, base, result.records)
    return done
