"""The state of one write attempt after its instant was created; starts its inflight file, and abandons it.

After repeated conflicts a writer gets priority for its next attempt, so that it does not starve.

    first lost conflict    pause, plan again, try again
    later lost conflicts   create .hoodie/next_writer.json; other writers wait for its deletion before an attempt

A waiting writer that also has repeated conflicts gets the priority next. Otherwise all waiting writers would start at
the same time.

Priority is a request, not a lock. It expires after about twice the duration of the last attempt, at most after 30
seconds. So it helps little if a batch is large, but other writers never wait long. A file with unexpected content is
ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lakehouse.core.env import Env
from lakehouse.core.files.stage.markers import read_markers
from lakehouse.core.index.write_tasks import GroupTask, StagedRun
from lakehouse.core.operations.commit.cleanup import (
    WriteMarkers,
    clean_up,
    delete_files,
    find_rollback,
    marked_files,
    without_recorded_logs,
)
from lakehouse.core.operations.commit.completion import withdraw_record
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.named_logs import deletable_strays, is_own_log
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import PreparedWrite
from lakehouse.core.operations.undo.rollback import roll_back
from lakehouse.core.operations.write.ended_writes import EndedWrites
from lakehouse.core.operations.write.prepare import profile_stats
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.expiry import is_active, lease_record, owner_of
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import LakehouseError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Instant
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)


class AbandonReason(StrEnum):
    """Why an attempt ends without a commit."""

    CONFLICT = "another commit won a conflict"
    NOTHING_TO_DO = "there is nothing to write"
    FAILED = "an error was raised"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAttempt:
    """One attempt of a write, with a pending instant on the timeline.

    Attributes:
        write: The checked write, with the table as it was loaded for this attempt.
        instant: The pending instant.
        heartbeat: The heartbeat of the instant.
        markers: The markers of the instant.
        staged: The staged rows. All attempts share this list: the first one fills it, later ones reuse it.
        lost: Number of earlier attempts, which ended with a conflict.
        ended: The searches of the write for files of ended writes.
    """

    write: PreparedWrite
    instant: Instant
    heartbeat: Heartbeat
    markers: WriteMarkers
    staged: list[StagedRun]
    lost: int = 0
    ended: EndedWrites | None = None

    @property
    def table(self) -> LoadedTable:
        """The table as it was loaded for this attempt."""
        return self.write.table


def start_writing(
    attempt: WriteAttempt, tasks: Sequence[GroupTask], markers: Sequence[Callable[[], None]] = ()
) -> None:
    """Create the inflight file, which lists the file groups that the tasks will change, and markers at the same time.

    The order does not matter, because no data file is created before all of them exist.
    """
    layout = attempt.table.config.layout
    stats = profile_stats(tasks, inserts=not layout.has_completion_times)
    data = layout.encode_inflight(CommitMetadata(operation=attempt.write.request.operation.value, stats=stats))
    requests = [*markers, lambda: _start(attempt, data)]
    send_all(attempt.table.env.storage, _call, requests)


def _start(attempt: WriteAttempt, data: bytes) -> None:
    attempt.table.store.start(attempt.instant, data)


def _call(request: Callable[[], None]) -> None:
    request()


def abandon(attempt: WriteAttempt, reason: AbandonReason) -> bool:
    """End an attempt without a commit: roll it back, and delete its files, markers and heartbeat.

    Returns whether another process had rolled the attempt back already. Storage errors are logged, not raised: the
    heartbeat is removed, so the next write finds an expired instant and rolls it back.
    """
    table, requested = attempt.table, attempt.instant.requested
    root = table.env.storage.root
    logger.debug("%s: %s is abandoned: %s", root, requested, reason)
    attempt.heartbeat.stop()
    rolled_back, is_clean = False, False
    markers: Mapping[str, Sequence[str]] = {}
    try:
        table = table.reload()
        current = table.timeline.find(requested)
        rolled_back = current is None or find_rollback(table, table.timeline, requested) is not None
        is_pending = not rolled_back and current is not None and not current.is_completed
        if is_pending:
            markers = read_markers(table.env.storage, requested)
        # Another program may have deleted the markers. Without them the rollback finds the files by a listing.
        if is_pending and (any(markers.values()) or any(attempt.markers.known.values())):
            if roll_back(table, attempt.write.policies.transaction, requested, is_own=True) is not None:
                is_clean = True
                return False
            # Another process rolled the write back. It may have listed our files before the last ones were written.
            table = table.reload()
            current = table.timeline.find(requested)
            rolled_back = current is None or not current.is_completed
        if current is None or (rolled_back and not current.is_completed):
            _delete_after_rollback(attempt, table, current)
        elif not current.is_completed:
            _remove_empty(attempt, table, current, markers)
        is_clean = True
    except LakehouseError as error:
        logger.warning("%s: %s was not rolled back yet: %s", root, requested, error)
    finally:
        if is_clean or not rolled_back:
            attempt.heartbeat.discard()
    return rolled_back


def _delete_after_rollback(attempt: WriteAttempt, table: LoadedTable, current: Instant | None) -> None:
    """Delete files, and an instant, that this attempt created after another process had rolled it back."""
    requested = attempt.instant.requested
    # The rollback deleted our heartbeat and markers. Recreate the heartbeat so that a crash here is detected.
    attempt.heartbeat.renew()
    written = list_data_files(table, change_logs=True)
    # In version 6 log files are named after their slice. The rollback deleted their markers.
    files = [file.path for file in written if file.instant == requested or is_own_log(file.path, requested)]
    marked = deletable_strays(table, requested, marked_files(table, requested).values())
    delete_files(table, requested, without_recorded_logs(table, requested, [*files, *marked]))
    clean_up(table, requested)
    _remove_pending(attempt, table, current)


def _remove_empty(
    attempt: WriteAttempt, table: LoadedTable, current: Instant, markers: Mapping[str, Sequence[str]]
) -> None:
    """Remove an attempt that wrote no file, so it needs no rollback instant.

    Once the instant is removed, another write may get the same requested time. So all files that carry the time are
    deleted first.
    """
    attempt.heartbeat.discard()
    clean_up(table, current.requested, markers=markers)
    _remove_pending(attempt, table, current)


def _remove_pending(attempt: WriteAttempt, table: LoadedTable, current: Instant | None) -> None:
    """Delete the instant of an attempt, and its record in the metadata table before it.

    The attempt may have lost the lock after it wrote the record. This can also happen without data files, when
    partitions are deleted.
    """
    with table_lock(table.env, attempt.write.policies.transaction) as lock:
        lock.check()
        withdraw_record(table, attempt.instant.requested, lock)
        if current is not None:
            table.store.remove_pending(current)


PATH = ".hoodie/next_writer.json"
_LOST = 2
_POLL_S = 0.05
_LONGEST_MS = 30_000


class WriterPriority:
    """The priority of one write. Only writers with optimistic concurrency control use it; others have no conflicts."""

    def __init__(self, env: Env, policy: TransactionPolicy) -> None:
        self._env = env
        self._is_used = policy.many_writers and not policy.non_blocking
        self._owner = ""

    def wait(self, lost: int, try_ms: int) -> None:
        """Wait while another writer has priority; request it next after repeated conflicts.

        `lost` is the number of lost attempts, `try_ms` the duration of the last one in milliseconds.
        """
        if not self._is_used or self._owner:
            return
        deadline = self._env.clock.now_ms() + _LONGEST_MS
        while self._env.clock.now_ms() < deadline:
            now_ms = self._env.clock.now_ms()
            try:
                data = self._env.storage.get(PATH)
            except NotFoundError:
                data = None
            if data is None or not is_active(self._env, data, now_ms=now_ms, expires_ms=0):
                if lost < _LOST:
                    return
                self.request(lost, try_ms)
                if self._owner:
                    return
            self._env.clock.sleep(_POLL_S)

    def request(self, lost: int, try_ms: int) -> None:
        """Request priority after `lost` lost attempts, unless another writer has it; see `wait` for the arguments."""
        if not self._is_used or self._owner or lost < _LOST:
            return
        owner = self._env.ids.uuid()
        data = lease_record(self._env, owner, min(2 * try_ms + 1000, _LONGEST_MS))
        try:
            if self._env.storage.create(PATH, data):
                self._owner = owner
                return
            now_ms = self._env.clock.now_ms()
            stored, tag = self._env.storage.get_tagged(PATH)
            if (
                not is_active(self._env, stored, now_ms=now_ms, expires_ms=0)
                and self._env.storage.replace_if(PATH, data, tag) is not None
            ):
                self._owner = owner
        except LakehouseError as error:
            logger.info("%s: writer priority was not requested: %s", self._env.storage.root, error)

    def release(self) -> None:
        """Give up the priority; waiting writers continue."""
        if not self._owner:
            return
        try:
            if owner_of(self._env.storage.get(PATH)) == self._owner:
                delete_leftovers(self._env.storage, [PATH])
        except LakehouseError as error:
            logger.info("%s: the writer priority was not released and will expire: %s", self._env.storage.root, error)
        self._owner = ""
