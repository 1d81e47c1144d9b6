"""List instants of a timeline in the words of table services, with rows, files, bytes, time and writer of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.timeline.clean import decode_clean_metadata
from lakehouse.core.format.timeline.restore import decode_restore_plan, decode_savepoint
from lakehouse.core.format.timeline.rollback import decode_rollback_metadata
from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.pending import pending_clustering
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.timeline_store import FILES_OF_COMMITS
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.commit import REWRITES, CommitMetadata
from lakehouse.model.display import count_text
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State
from lakehouse.model.timeline_service import TimelineService, commit_writer, timeline_service
from lakehouse.spec.contracts.catalog import TimelineInstant, TimelineInstants

#: Number of instants, newest first, whose service is read from metadata if file names do not contain it.
MOST_READ = 1_000
_BATCH, _READERS = 64, 8
_REWRITTEN = ("num_writes",)
_CHANGED = ("num_inserts", "num_updates", "num_deletes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFilter:
    """Which instants to list; empty tuples and None select all.

    Attributes:
        services: Services, or actions as they are spelled on the timeline.
        states: States.
        since_ms, until_ms: Bounds for the requested time, inclusive.
        partition: Only writes that wrote to this partition.
        limit: The maximum number of instants; the newest ones are returned.
        archived: List the writes of the archive instead of the active timeline.
    """

    services: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    partition: str | None = None
    limit: int | None = None
    archived: bool = False


def timeline_rows(table: LoadedTable, wanted: TimelineFilter) -> TimelineInstants:
    """Return the newest instants that match a filter, oldest first. Only the metadata of these is read."""
    instants = tuple(archived_writes(table) if wanted.archived else table.timeline)
    services = services_of(table, instants, archived=wanted.archived)
    zone = table.config.timezone
    matching = [
        (instant, service)
        for instant, service in zip(instants, services, strict=True)
        if _matches(instant, service, wanted, zone)
    ]
    rows: list[TimelineInstant] = []
    for row, partitions in _read_newest_first(table, matching, wanted):
        if wanted.limit is not None and len(rows) >= wanted.limit:
            break
        if wanted.partition is None or wanted.partition in partitions:
            rows.append(row)
    is_complete = wanted.partition is None or wanted.limit is None or len(rows) < wanted.limit
    total = len(matching) if wanted.partition is None else len(rows)
    return TimelineInstants(instants=tuple(reversed(rows)), total=total if is_complete else None)


def services_of(
    table: LoadedTable, instants: Sequence[Instant], *, archived: bool = False
) -> tuple[TimelineService, ...]:
    """Return the service behind each instant, or `write`.

    The names of their plan files identify compactions, log compactions and clusterings. Metadata is read only for
    ambiguous instants: completed `replacecommit` instants without such a file, and archived ones.
    """
    planned = {} if archived else table.store.planned_actions()
    merges = table.config.is_merge_on_read
    plans = {i.requested for i in instants if i.action is Action.REPLACECOMMIT and not i.is_completed}
    clustering = set(pending_clustering(table).values()) if plans else set[str]()
    unclear = [i for i in instants if i.is_completed and i.key not in planned and _is_unclear(i, archived and merges)]
    commits = {i.key: metadata for i, metadata in _summaries(table, unclear[-MOST_READ:], archived=archived)}

    def service_of(instant: Instant) -> TimelineService:
        if not instant.is_completed and instant.action is Action.REPLACECOMMIT:
            return TimelineService.CLUSTERING if instant.requested in clustering else TimelineService.WRITE
        # A savepoint has the same time as its commit, and a separate key.
        action = planned.get(instant.key, instant.action)
        metadata = commits.get(instant.key)
        if metadata is None:
            return timeline_service(action, merge_on_read=merges)
        return timeline_service(action, metadata.operation, metadata.extra, merge_on_read=merges)

    return tuple(map(service_of, instants))


def _is_unclear(instant: Instant, with_log_compactions: bool) -> bool:
    return instant.action is Action.REPLACECOMMIT or (with_log_compactions and instant.action is Action.DELTACOMMIT)


def _summaries(
    table: LoadedTable, instants: Sequence[Instant], *, archived: bool
) -> Iterator[tuple[Instant, CommitMetadata]]:
    for start in range(0, len(instants), _BATCH):
        batch = instants[start : start + _BATCH]
        yield from table.store.archived_commits(batch) if archived else table.store.summaries(batch)


def _matches(instant: Instant, service: TimelineService, wanted: TimelineFilter, zone: str) -> bool:
    if wanted.services and service not in wanted.services and instant.action not in wanted.services:
        return False
    if wanted.states and instant.state not in wanted.states:
        return False
    if wanted.since_ms is None and wanted.until_ms is None:
        return True
    begin_ms = instant_ms(instant.requested, zone)
    return (wanted.since_ms or 0) <= begin_ms and (wanted.until_ms is None or begin_ms <= wanted.until_ms)


def _read_newest_first(
    table: LoadedTable, matching: Sequence[tuple[Instant, TimelineService]], wanted: TimelineFilter
) -> Iterator[tuple[TimelineInstant, frozenset[str]]]:
    """Yield rows with their partitions, a batch of reads at a time."""
    newest_first = matching[::-1]
    if wanted.partition is None and wanted.limit is not None:
        newest_first = newest_first[: wanted.limit]
    for start in range(0, len(newest_first), _BATCH):
        batch = newest_first[start : start + _BATCH]
        instants = [instant for instant, _ in batch]
        held = dict(table.store.archived_commits(instants)) if wanted.archived else {}
        with ThreadPoolExecutor(_READERS) as pool:
            rows = [pool.submit(_row, table, instant, service, held.get(instant)) for instant, service in batch]
            yield from (row.result() for row in rows)


def _row(
    table: LoadedTable, instant: Instant, service: TimelineService, archived: CommitMetadata | None
) -> tuple[TimelineInstant, frozenset[str]]:
    begin_ms = instant_ms(instant.requested, table.config.timezone)
    # A savepoint has the requested time of its commit, so the difference is not a duration.
    is_timed = instant.is_completed and instant.action is not Action.SAVEPOINT
    end_ms = instant_ms(instant.completion, table.config.timezone) if is_timed else None
    facts: dict[str, Any] = {
        "requested": instant.requested,
        "completed": instant.completed,
        "action": str(instant.action),
        "state": instant.state.name,
        "service": str(service),
        "begin_ms": begin_ms,
        "seconds": None if end_ms is None else max(0.0, (end_ms - begin_ms) / 1000),
    }
    partitions = frozenset[str]()
    try:
        if instant.is_completed and instant.action in WRITE_ACTIONS:
            written, partitions = _write(table, instant, archived)
            facts |= written
        elif instant.is_completed:
            facts |= _other(table, instant)
    except (CorruptTableError, RetryableError) as error:
        facts["note"] = str(error)
    return TimelineInstant(**facts), partitions


def _write(
    table: LoadedTable, instant: Instant, archived: CommitMetadata | None
) -> tuple[dict[str, Any], frozenset[str]]:
    if archived is None:
        # The files are read first, because a large commit then need not be decoded to Python objects.
        files = table.store.files([instant])
        metadata = table.store.summary(instant)
    else:
        metadata = archived
        columns = {name: [getattr(stat, name) for stat in archived.stats] for name in FILES_OF_COMMITS.names[:-1]}
        files = pa.table(columns, pa.schema(list(FILES_OF_COMMITS)[:-1]))
    counted = _REWRITTEN if metadata.operation in REWRITES else _CHANGED
    partitions = frozenset(pc.unique(files["partition"]).to_pylist()) | frozenset(metadata.replaced)
    writer = commit_writer(metadata.extra)
    return {
        "operation": metadata.operation,
        "rows": sum(pc.sum(files[name]).as_py() or 0 for name in counted),
        "files": files.num_rows,
        "bytes": pc.sum(files["size_bytes"]).as_py() or 0,
        "partitions": len(partitions),
        "engine": writer.engine,
        "run": writer.run,
        "note": _replacement(metadata),
    }, partitions


def _replacement(metadata: CommitMetadata) -> str:
    """Return a note about the partitions and file groups that a commit replaced; empty for other commits."""
    if metadata.operation in REWRITES or not metadata.replaced:
        return ""
    groups = sum(map(len, metadata.replaced.values()))
    return f"replaces {count_text(len(metadata.replaced), 'partition')} ({count_text(groups, 'file group')})"


def _other(table: LoadedTable, instant: Instant) -> dict[str, Any]:
    """Return the columns for a completed clean, rollback, restore or savepoint, from its metadata."""
    if instant.action is Action.RESTORE:
        plan = table.store.read(instant, State.REQUESTED)
        return {"note": f"to {decode_restore_plan(plan).target}"} if plan else {}
    data = table.store.read(instant, State.COMPLETED)
    if not data:
        return {}
    if instant.action is Action.CLEAN:
        cleaned = decode_clean_metadata(data)
        return {"files": len(cleaned.deleted), "partitions": len(cleaned.partitions)}
    if instant.action is Action.ROLLBACK:
        rolled_back = decode_rollback_metadata(data, base_path=table.env.storage.root)
        return {
            "files": sum(map(len, rolled_back.deleted.values())),
            "note": f"of {rolled_back.action} {rolled_back.target}",
        }
    if instant.action is Action.SAVEPOINT:
        savepoint = decode_savepoint(data)
        files = sum(map(len, savepoint.files.values()))
        return {"files": files, "author": savepoint.user, "note": savepoint.comment}
    return {}
