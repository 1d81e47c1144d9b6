"""Measures of a table that show whether a table service is overdue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC

from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.errors import LakehouseError
from lakehouse.model.display import Readable
from lakehouse.model.instant import Action, Instant, instant_moment
from lakehouse.model.timeline_service import TimelineService, timeline_service

_PLANNED = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.CLEAN, Action.INDEXING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth(Readable):
    """Measures of a table at one time.

    Attributes:
        freshness_lag_s: Seconds since the newest write; None if there is none.
        newest_commit_ms: Completion time of the newest write in UTC milliseconds, without commits of
            services; None if there is none.
        file_groups: Number of file groups.
        partitions: Number of partitions with files.
        base_bytes: Size of the newest base files.
        log_bytes: Size of the log files that a compaction would merge.
        log_files: Number of these log files.
        small_files: Number of base files below the small-file limit.
        file_bytes: Sizes of the newest base files.
        pending_plans: Number of plans that are scheduled and not executed.
        pending_writes: Number of active and failed writes.
        instants: Number of instants on the active timeline.
        rollbacks: Number of rollbacks among them.
    """

    freshness_lag_s: float | None
    newest_commit_ms: int | None
    file_groups: int
    partitions: int
    base_bytes: int
    log_bytes: int
    log_files: int
    small_files: int
    file_bytes: tuple[int, ...]
    pending_plans: int
    pending_writes: int
    instants: int
    rollbacks: int


def table_health(table: LoadedTable, *, small_file_bytes: int) -> TableHealth:
    """Measure a table; the table is listed once."""
    slices = load_slices(table)
    sizes = tuple(slices.base_sizes[slices.has_base].tolist())
    timeline, newest_ms = table.timeline, _newest_commit_ms(table)
    lag_ms = None if newest_ms is None else max(table.env.clock.now_ms() - newest_ms, 0)
    return TableHealth(
        freshness_lag_s=None if lag_ms is None else lag_ms / 1000,
        newest_commit_ms=newest_ms,
        file_groups=len(slices),
        partitions=slices.partition_count,
        base_bytes=sum(sizes),
        log_bytes=slices.bytes - sum(sizes),
        log_files=int(slices.log_counts.sum()),
        small_files=sum(size < small_file_bytes for size in sizes),
        file_bytes=sizes,
        pending_plans=len(timeline.where(action=_PLANNED, pending=True)),
        pending_writes=len(pending_writes(table)),
        instants=len(timeline),
        rollbacks=len(timeline.where(action=Action.ROLLBACK)),
    )


def _newest_commit_ms(table: LoadedTable) -> int | None:
    """Return the completion time of the newest write in UTC milliseconds; services make no table fresh."""
    writes = table.timeline.writes().by_completion()
    if not writes:
        return None
    # If only commits of services are left on the active timeline, the newest write is older than all of them.
    newest = next((instant for instant in reversed(writes) if not _is_of_service(table, instant)), writes[0])
    text = f"{newest.completion:0<17}"
    moment = instant_moment(text)
    zoned = moment.replace(tzinfo=UTC) if table.config.timezone == "UTC" else moment.astimezone()
    return round(zoned.timestamp()) * 1000 + int(text[14:17])


def _is_of_service(table: LoadedTable, instant: Instant) -> bool:
    if table.config.is_merge_on_read and instant.action is Action.COMMIT:
        return True
    try:
        summary = table.store.summary(instant)
    except LakehouseError:
        # The checks of the table report a damaged commit.
        return False
    return timeline_service(instant.action, summary.operation, summary.extra) is not TimelineService.WRITE
