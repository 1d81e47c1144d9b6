"""What commits tell of event times: watermarks of sources, and which version of a table is that of an event time.

A commit's write stats hold the least and the greatest event time of the rows that came in, in milliseconds. A commit
that tracks event time carries two more things in its extra metadata, as they were known at its own load:

    lakehouse.watermarks         JSON {source: time in ISO 8601, UTC}: events before it are there, lateness allowed for
    lakehouse.event_time.past    JSON {up_to, greatest, untimed}: of all writes completed up to `up_to`, the greatest
                                 event time, and whether one of them brought rows of which no time is known

So who reads needs the newest commits only, back to the `up_to` of one of them.

Hudi tells the times of all rows of a file that it rewrites, not of those alone that came in. Where it writes, too, a
version may then be a later one than it need be, and not clean; it never lacks an event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.commit import REWRITES, CommitMetadata
from lakehouse.model.document import parse_json
from lakehouse.model.instant import Instant

WATERMARKS_KEY = "lakehouse.watermarks"
PAST_KEY = "lakehouse.event_time.past"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How far event time has come: `value` is the least of the sources' that count, None if there is none yet."""

    value: datetime | None
    sources: Mapping[str, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCommit:
    """A completed write as event time sees it: `times` it brought (milliseconds), `untimed` rows it brought besides.

    Neither: a table service, a delete, an empty commit.
    """

    instant: Instant
    times: tuple[int, int] | None = None
    untimed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of all writes completed up to a time: greatest event time, watermarks, rows without known times."""

    up_to: str = ""
    greatest: int | None = None
    untimed: bool = False
    watermarks: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeVersion:
    """The version of a table at an event time, see `find_version`; `instant` is None before the first write."""

    instant: Instant | None
    is_clean: bool
    first_later: Instant | None
    watermark: datetime | None = None


def find_version(commits: Sequence[EventCommit], event_time: int, past: Past | None = None) -> EventTimeVersion:
    """Return the version of `event_time`, E: the one with the last commit that carries an event before E.

    `commits` are in order of completion. Late events are in it, however late they came, and so is what was committed
    before them. Commits without times (services, deletes, empty ones, untimed rows) belong to the version before them:

        commit        1       2       3       4         5      6       7
        events      20-22   22-23   (none)  24:01-24:05  23    (none)  25
        E = 24:00                                        ^      *               version 6, not clean: 4 is in it
        E = 22:00     ^                                                         version 1, not clean: carries 22 too
        E = 20:00 is before the first commit: no version

    If no commit carries an event at or after E, the newest commit is the version. `first_later` is the first commit of
    all with an event at or after E. `is_clean` says that no commit up to the version has one, and none brought rows of
    unknown times: then the version holds exactly the events before E that have come. Otherwise rows that came at or
    after E are in it, and rows updated after E are seen in their newer state. The answer may change as long as events
    before E can come: once the watermark has reached E it stays.

    `past` stands for commits before the first of `commits`, all of them earlier than the version.
    """
    last = max((n for n, commit in enumerate(commits) if commit.times and commit.times[0] < event_time), default=-1)
    following = (n for n in range(last + 1, len(commits)) if commits[n].times)
    end = next(following, len(commits))
    past = past or Past()
    later = (commit for commit in commits if commit.times and commit.times[1] >= event_time)
    held = any(commit.untimed or (commit.times and commit.times[1] >= event_time) for commit in commits[:end])
    held_before = past.untimed or (past.greatest is not None and past.greatest >= event_time)
    return EventTimeVersion(
        instant=commits[end - 1].instant if end else None,
        is_clean=not held and not held_before,
        first_later=next((commit.instant for commit in later), None),
    )


def spares_older(commits: Sequence[EventCommit], event_time: int, since: str, past: Past) -> bool:
    """Whether `past` is enough of older commits: the version completed at `since` or later, and none has later events.

    `commits` are those that are known, in order of completion.
    """
    if past.greatest is not None and past.greatest >= event_time:
        return False
    before = [commit for commit in commits if commit.times and commit.times[0] < event_time]
    return bool(before) and before[-1].instant.completion >= since


def event_commit(instant: Instant, metadata: CommitMetadata) -> EventCommit:
    """Return what a commit's metadata tells of event times; a service brings no events, whatever its stats say."""
    if metadata.operation in REWRITES:
        return EventCommit(instant=instant)
    ranges = [stat.event_time for stat in metadata.stats if stat.event_time is not None]
    if ranges:
        return EventCommit(instant=instant, times=(min(low for low, _ in ranges), max(high for _, high in ranges)))
    # A commit that tracks and has no times brought nulls, which do not count.
    rows = any(stat.num_inserts or stat.num_updates for stat in metadata.stats)
    return EventCommit(instant=instant, untimed=rows and PAST_KEY not in metadata.extra)


def known_past(newest_first: Iterable[tuple[Instant, CommitMetadata]], past: Past | None = None) -> Past:
    """Return `past` with these writes in it, the newest first; it ends where what they tell of others covers the rest.

    `up_to` of the answer is what they tell of: older writes are all in it.
    """
    found = past or Past()
    for instant, metadata in newest_first:
        if found.up_to and instant.completion <= found.up_to:
            break
        commit = event_commit(instant, metadata)
        times = () if commit.times is None else commit.times[1:]
        found = _with(found, *times, untimed=commit.untimed, watermarks=decode_watermarks(metadata))
        told = decode_past(metadata)
        if told is not None:
            greatest = () if told.greatest is None else (told.greatest,)
            found = _with(found, *greatest, untimed=told.untimed, up_to=told.up_to)
    return found


def moved(past: Past, source: str, greatest: int | None, lateness_ms: int) -> Mapping[str, datetime]:
    """Return the watermarks after a commit of a source with this greatest event time; none ever goes back."""
    if greatest is None:
        return past.watermarks
    return _furthest(past.watermarks, {source: time_of(greatest - lateness_ms)})


def watermark_of(sources: Mapping[str, datetime], awaited: Sequence[str] = ()) -> Watermark:
    """Return the table's watermark: the least of the `awaited` sources once all are there, by default of all."""
    counted = awaited or tuple(sources)
    values = [sources[name] for name in counted if name in sources]
    return Watermark(value=min(values) if values and len(values) == len(counted) else None, sources=sources)


def event_time_metadata(past: Past, watermarks: Mapping[str, datetime]) -> dict[str, str]:
    """Return what a commit carries that was made when `past` was known."""
    texts = {name: value.isoformat(timespec="milliseconds") for name, value in sorted(watermarks.items())}
    told = {"up_to": past.up_to, "greatest": past.greatest, "untimed": past.untimed}
    return {WATERMARKS_KEY: json.dumps(texts), PAST_KEY: json.dumps(told)}


def decode_watermarks(metadata: CommitMetadata) -> dict[str, datetime]:
    """Return the watermarks that a commit carries, by source."""
    text = metadata.extra.get(WATERMARKS_KEY) or "{}"
    try:
        return {name: parse_event_time(value) for name, value in parse_json(text).items()}
    except (ValueError, TypeError, AttributeError, UserError) as error:
        raise CorruptTableError(f"{WATERMARKS_KEY} of a commit is unreadable ({error!r}): {text[:120]!r}") from error


def decode_past(metadata: CommitMetadata) -> Past | None:
    """Return what a commit tells of those before it, None if it tells nothing."""
    text = metadata.extra.get(PAST_KEY)
    if not text:
        return None
    try:
        told = parse_json(text)
        return Past(up_to=told["up_to"], greatest=told["greatest"], untimed=told["untimed"])
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTableError(f"{PAST_KEY} of a commit is unreadable ({error!r}): {text[:120]!r}") from error


def parse_event_time(value: str | datetime) -> datetime:
    """Return an ISO 8601 text or a datetime in UTC; where no zone is named it is UTC. Raises UserError for others."""
    try:
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(f"event time {str(value)!r} is no time; write ISO 8601, such as 2025-03-01T00:00") from None


def milliseconds(moment: datetime) -> int:
    """Return a moment as the milliseconds of event times; what is finer is cut off."""
    return (moment - _EPOCH) // _MILLISECOND


def time_of(number: int) -> datetime:
    """Return milliseconds since 1970 as a time in UTC; before year 1 is the beginning of it."""
    return _EPOCH + max(timedelta(milliseconds=number), datetime.min.replace(tzinfo=UTC) - _EPOCH)


def _with(
    past: Past, *greatest: int, untimed: bool, watermarks: Mapping[str, datetime] | None = None, up_to: str = ""
) -> Past:
    known = () if past.greatest is None else (past.greatest,)
    return replace(
        past,
        up_to=max(past.up_to, up_to),
        greatest=max((*known, *greatest), default=None),
        untimed=past.untimed or untimed,
        watermarks=_furthest(past.watermarks, watermarks or {}),
    )


def _furthest(some: Mapping[str, datetime], others: Mapping[str, datetime]) -> dict[str, datetime]:
    found = dict(some)
    for name, value in others.items():
        found[name] = max(value, found.get(name, value))
    return found
