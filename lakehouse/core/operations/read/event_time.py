"""Event time of a table: the extra metadata of a write, the watermark, and the version at an event time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.commit_range import last_settled
from lakehouse.core.planning.event_time import (
    PAST_KEY,
    EventCommit,
    EventTimeVersion,
    Past,
    Watermark,
    decode_past,
    event_commit,
    event_time_metadata,
    find_version,
    known_past,
    milliseconds,
    moved,
    parse_event_time,
    spares_older,
    time_of,
    watermark_of,
)
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Instant
from lakehouse.model.publication import EventSpan
from lakehouse.spec.options.event_time import EVENT_TIME_FIELD, EventTimePolicy

logger = logging.getLogger(__name__)

_ARCHIVED_AT_ONCE = 64
_FIRST_AT_ONCE = 8
_NOTHING = "0"


def event_time_extra(table: LoadedTable, policy: EventTimePolicy, stats: Sequence[WriteStat]) -> dict[str, str]:
    """Return the event-time metadata for a commit with these write stats; empty if event times are not tracked.

    The metadata continues from the commits that `table` contains. Concurrent writes each advance the watermark of their
    own source; readers combine them. The first write that tracks event time reads all earlier commits, archived ones
    included. Later writes read the newest commits only.
    """
    if not policy.column:
        return {}
    past = _past(table)
    greatest = max((stat.event_time[1] for stat in stats if stat.event_time is not None), default=None)
    # Readers skip all commits up to this time, so none may complete there later.
    newest = last_settled(table) or ""
    watermarks = moved(past, policy.source.strip(), greatest, policy.lateness_ms)
    return event_time_metadata(replace(past, up_to=newest), watermarks)


def watermark(table: LoadedTable, policy: EventTimePolicy) -> Watermark:
    """Return the watermarks of the sources and the table."""
    return watermark_of(_past(table, containing=PAST_KEY).watermarks, policy.awaited)


def version_at(
    table: LoadedTable, event_time: str | datetime, policy: EventTimePolicy | None = None
) -> EventTimeVersion:
    """Return the version of the table at an event time (see `find_version`); a time without a zone is UTC.

    The archive is read only if the active timeline is not sufficient: the version is older, or an archived write may
    contain events at or after the time. Raises UserError if no commit contains event times.
    """
    at = milliseconds(parse_event_time(event_time))
    active = _event_commits(table.store.commits(table.timeline.writes().by_completion()))
    older = _past_of_older(table)
    if older is not None and spares_older(active, at, older[0], older[1]):
        version = find_version(active, at, older[1])
    else:
        commits = sorted([*_archived(table), *active], key=lambda c: (c.instant.completion, c.instant.requested))
        if not any(commit.times for commit in commits):
            raise _untimed(table, event_time)
        version = find_version(commits, at)
    return replace(version, watermark=watermark(table, policy or EventTimePolicy()).value)


class EventVersions:
    """Find versions of a table at event times, from the newest commit backwards (see `find_version`).

    The metadata of archived commits is read in batches, newest first, and only back to the oldest version that a caller
    requests. It is read once for all versions.
    """

    def __init__(self, table: LoadedTable) -> None:
        archived = archived_writes(table)
        self._table = table
        self._archived = frozenset(instant.requested for instant in archived)
        instants = (*archived, *table.timeline.writes())
        self._unread = sorted(instants, key=lambda i: (i.completion, i.requested), reverse=True)
        self._commits: list[EventCommit] = []
        self._at_once = _FIRST_AT_ONCE

    def at(self, event_time_ms: int) -> Instant | None:
        """Return the last write of the version at an event time (UTC milliseconds), or None before the first version.

        Raises UserError if no commit contains event times.
        """
        position, version, is_timed = 0, 0, False
        while position < len(self._commits) or self._read_more():
            times = self._commits[position].times
            if times is not None:
                is_timed = True
                if times[0] < event_time_ms:
                    break
                # If an older commit contains an event before the time, this commit is newer than the version.
                version = position + 1
            position += 1
        if not is_timed:
            raise _untimed(self._table, time_of(event_time_ms))
        return self._commits[version].instant if version < len(self._commits) else None

    def _read_more(self) -> bool:
        """Read the next batch of commits; False if all are read."""
        read_before = len(self._commits)
        while self._unread and len(self._commits) == read_before:
            batch, self._unread = self._unread[: self._at_once], self._unread[self._at_once :]
            self._at_once = min(2 * self._at_once, _ARCHIVED_AT_ONCE)
            active = [instant for instant in batch if instant.requested not in self._archived]
            archived_times = [
                *self._table.store.commits(active),
                *self._table.store.archived_commits([i for i in batch if i.requested in self._archived]),
            ]
            newest_first = sorted(
                archived_times, key=lambda held: (held[0].completion, held[0].requested), reverse=True
            )
            self._commits += _event_commits(newest_first)
        return len(self._commits) > read_before


def event_span(table: LoadedTable, span: EventSpan) -> EventSpan:
    """Return the event-time range of all writes; archived writes that `span` covers are not read.

    Commits of services that rewrite files are ignored, like in `event_commit`.
    """
    active = table.timeline.writes()
    older = archived_writes(table, completed_after=span.up_to).by_completion()
    commits = [*_event_commits(table.store.commits(active)), *_event_commits(_read_archived(table, older))]
    times = [commit.times for commit in commits if commit.times is not None]
    lows = [low for low, _ in times] + ([] if span.first_ms is None else [span.first_ms])
    highs = [high for _, high in times] + ([] if span.last_ms is None else [span.last_ms])
    return EventSpan(
        up_to=max((span.up_to, *(instant.completion for instant in active))),
        first_ms=min(lows, default=None),
        last_ms=max(highs, default=None),
    )


def _untimed(table: LoadedTable, event_time: object) -> UserError:
    return UserError(
        f"{table.env.storage.root}: no write states the event times of its rows, so there is no version at "
        f"{event_time}; set {EVENT_TIME_FIELD} to the column that contains them before the first write",
        option=EVENT_TIME_FIELD,
    )


def event_time_bound(table: LoadedTable, event_time: str | datetime) -> str:
    """Return the completion time of the last write that a read at an event time contains; "0" if there is none."""
    version = version_at(table, event_time)
    if not version.is_clean:
        logger.warning(
            "%s: the version of event time %s also contains rows of that time or later, or of unknown times",
            table.env.storage.root,
            event_time,
        )
    return _NOTHING if version.instant is None else version.instant.completion


def _past(table: LoadedTable, containing: str = "") -> Past:
    """Return the event times of all completed writes; usually only the newest commits are read.

    Archived commits that do not contain the string `containing` are skipped.
    """
    active = reversed(table.timeline.writes().by_completion())
    past = known_past((instant, table.store.commit(instant)) for instant in active)
    older = archived_writes(table, completed_after=past.up_to).by_completion()
    return known_past(_read_archived(table, older, containing), past) if older else past


def _past_of_older(table: LoadedTable) -> tuple[str, Past] | None:
    """Return the summary of all archived commits, and the completion time of the commit that contains it, or None."""
    for instant, metadata in table.store.commits(table.timeline.writes().by_completion()):
        past = decode_past(metadata)
        if past is not None:
            return None if archived_writes(table, completed_after=past.up_to) else (instant.completion, past)
    return None


def _archived(table: LoadedTable) -> list[EventCommit]:
    return _event_commits(_read_archived(table, archived_writes(table).by_completion()))


def _read_archived(
    table: LoadedTable, instants: Sequence[Instant], containing: str = ""
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Yield archived writes, last completed first; they are read in batches."""
    newest_first = tuple(reversed(instants))
    for start in range(0, len(newest_first), _ARCHIVED_AT_ONCE):
        yield from table.store.archived_commits(newest_first[start : start + _ARCHIVED_AT_ONCE], containing)


def _event_commits(commits: Iterable[tuple[Instant, CommitMetadata]]) -> list[EventCommit]:
    return [event_commit(instant, metadata) for instant, metadata in commits]
