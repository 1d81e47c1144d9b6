"""Event time: watermarks of sources, and the version of a table at an event time.

The write stats of a commit contain the minimum and maximum event time of the incoming rows, in milliseconds. A commit
with event-time tracking has two additional entries in its extra metadata. They contain the values at the time when its
write loaded the table:

    lakehouse.watermarks         JSON {source: time in ISO 8601, UTC}: all events before it have arrived, within the
                                 allowed lateness
    lakehouse.event_time.past    JSON {up_to, greatest, untimed}: for all writes completed up to `up_to`, the maximum
                                 event time, and whether one of them wrote rows without a known time

Therefore a reader needs only the newest commits, back to the `up_to` of one of them.

Hudi stores the times of all rows in a rewritten file, not only of the incoming rows. If Hudi writes to the table, too,
the version may be later than necessary, and it may contain later events. It never lacks an event before the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.commit import REWRITES, CommitMetadata
from lakehouse.model.display import Readable
from lakehouse.model.document import parse_json
from lakehouse.model.instant import Instant

WATERMARKS_KEY = "lakehouse.watermarks"
PAST_KEY = "lakehouse.event_time.past"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark(Readable):
    """The watermark of a table: `value` is the minimum over the relevant sources, None if one is missing."""

    value: datetime | None
    sources: Mapping[str, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCommit:
    """The event times of a completed write.

    Attributes:
        instant: The write.
        times: Minimum and maximum event time in milliseconds; None for table services, deletes and empty commits.
        untimed: Whether the write has rows without a known event time.
    """

    instant: Instant
    times: tuple[int, int] | None = None
    untimed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Summary of all writes completed up to a time: maximum event time, watermarks, rows without a known time."""

    up_to: str = ""
    greatest: int | None = None
    untimed: bool = False
    watermarks: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeVersion(Readable):
    """The version of a table at an event time, see `find_version`; `instant` is None before the first write."""

    instant: Instant | None
    is_clean: bool
    first_later: Instant | None
    watermark: datetime | None = None


def find_version(commits: Sequence[EventCommit], event_time: int, past: Past | None = None) -> EventTimeVersion:
    """Return the version at `event_time` E: it ends with the last commit that contains an event before E.

    The version contains all late events and all commits before them. Commits without times (services, deletes, empty
    commits, rows without times) belong to the version before them:

        commit        1       2       3       4         5      6       7
        events      20-22   22-23   (none)  24:01-24:05  23    (none)  25
        E = 24:00                                        ^      *               version 6, not clean: it contains 4
        E = 22:00     ^                                                         version 1, not clean: 1 has 22, too
        E = 20:00 is before the first commit: no version

    If no commit has an event at or after E, the version is the newest commit. The version may change while events
    before E can arrive; it is final when the watermark has reached E.

    Args:
        commits: Writes by completion time.
        event_time: E in milliseconds.
        past: Summary of the writes before `commits`, all of them older than the version.

    Returns:
        The version. `first_later` is the first commit with an event at or after E. `is_clean` means that no commit of
        the version contains such an event or rows without known times, so the version contains exactly the events
        before E that have arrived. Otherwise it also contains events at or after E, and rows updated after E are in
        their newer state.
    """
    last = max((n for n, commit in enumerate(commits) if commit.times and commit.times[0] < event_time), default=-1)
    following = (n for n in range(last + 1, len(commits)) if commits[n].times)
    end = next(following, len(commits))
    past = past or Past()
    later = (commit for commit in commits if commit.times and commit.times[1] >= event_time)
    has_later = any(commit.untimed or (commit.times and commit.times[1] >= event_time) for commit in commits[:end])
    past_has_later = past.untimed or (past.greatest is not None and past.greatest >= event_time)
    return EventTimeVersion(
        instant=commits[end - 1].instant if end else None,
        is_clean=not has_later and not past_has_later,
        first_later=next((commit.instant for commit in later), None),
    )


def spares_older(commits: Sequence[EventCommit], event_time: int, since: str, past: Past) -> bool:
    """Return whether older commits need not be read: the version completed at `since` or later and `past` is clean.

    `commits` are the commits read so far, by completion time.
    """
    if past.greatest is not None and past.greatest >= event_time:
        return False
    before = [commit for commit in commits if commit.times and commit.times[0] < event_time]
    return bool(before) and before[-1].instant.completion >= since


def event_commit(instant: Instant, metadata: CommitMetadata) -> EventCommit:
    """Return the event times of a commit; a table service has none, regardless of its stats."""
    if metadata.operation in REWRITES:
        return EventCommit(instant=instant)
    ranges = [stat.event_time for stat in metadata.stats if stat.event_time is not None]
    if ranges:
        return EventCommit(instant=instant, times=(min(low for low, _ in ranges), max(high for _, high in ranges)))
    # A commit with event-time tracking but without times wrote null event times, which are ignored.
    rows = any(stat.num_inserts or stat.num_updates for stat in metadata.stats)
    return EventCommit(instant=instant, untimed=rows and PAST_KEY not in metadata.extra)


def known_past(newest_first: Iterable[tuple[Instant, CommitMetadata]], past: Past | None = None) -> Past:
    """Extend `past` by writes, newest first, until the summary in a write covers all older writes.

    All writes up to `up_to` of the result are included.
    """
    total = past or Past()
    for instant, metadata in newest_first:
        if total.up_to and instant.completion <= total.up_to:
            break
        commit = event_commit(instant, metadata)
        times = () if commit.times is None else commit.times[1:]
        total = _with(total, *times, untimed=commit.untimed, watermarks=decode_watermarks(metadata))
        summary = decode_past(metadata)
        if summary is not None:
            greatest = () if summary.greatest is None else (summary.greatest,)
            total = _with(total, *greatest, untimed=summary.untimed, up_to=summary.up_to)
    return total


def moved(past: Past, source: str, greatest: int | None, lateness_ms: int) -> Mapping[str, datetime]:
    """Return the watermarks after a commit of `source` with this maximum event time. Watermarks never decrease."""
    if greatest is None:
        return past.watermarks
    return _furthest(past.watermarks, {source: time_of(greatest - lateness_ms)})


def watermark_of(sources: Mapping[str, datetime], awaited: Sequence[str] = ()) -> Watermark:
    """Return the table's watermark: the minimum over the `awaited` sources (default: all), None if one is missing."""
    counted = awaited or tuple(sources)
    values = [sources[name] for name in counted if name in sources]
    return Watermark(value=min(values) if values and len(values) == len(counted) else None, sources=sources)


def event_time_metadata(past: Past, watermarks: Mapping[str, datetime]) -> dict[str, str]:
    """Return the extra metadata of a commit whose write was loaded with `past`."""
    texts = {name: value.isoformat(timespec="milliseconds") for name, value in sorted(watermarks.items())}
    summary = {"up_to": past.up_to, "greatest": past.greatest, "untimed": past.untimed}
    return {WATERMARKS_KEY: json.dumps(texts), PAST_KEY: json.dumps(summary)}


def decode_watermarks(metadata: CommitMetadata) -> dict[str, datetime]:
    """Return the watermarks in the extra metadata of a commit, by source."""
    text = metadata.extra.get(WATERMARKS_KEY) or "{}"
    try:
        return {name: parse_event_time(value) for name, value in parse_json(text).items()}
    except (ValueError, TypeError, AttributeError, UserError) as error:
        raise CorruptTableError(f"{WATERMARKS_KEY} of a commit is unreadable ({error!r}): {text[:120]!r}") from error


def decode_past(metadata: CommitMetadata) -> Past | None:
    """Return the summary of earlier writes in the extra metadata of a commit, or None."""
    text = metadata.extra.get(PAST_KEY)
    if not text:
        return None
    try:
        summary = parse_json(text)
        return Past(up_to=summary["up_to"], greatest=summary["greatest"], untimed=summary["untimed"])
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTableError(f"{PAST_KEY} of a commit is unreadable ({error!r}): {text[:120]!r}") from error


def parse_event_time(value: str | datetime) -> datetime:
    """Return an ISO 8601 string or a datetime in UTC (the default zone); raise UserError for any other value."""
    try:
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(f"event time {str(value)!r} is invalid; write ISO 8601, such as 2025-03-01T00:00") from None


def milliseconds(moment: datetime) -> int:
    """Return a datetime as milliseconds since 1970, truncated."""
    return (moment - _EPOCH) // _MILLISECOND


def time_of(number: int) -> datetime:
    """Return milliseconds since 1970 as a UTC datetime, at least the first moment of year 1."""
    return _EPOCH + max(timedelta(milliseconds=number), datetime.min.replace(tzinfo=UTC) - _EPOCH)


def _with(
    past: Past, *greatest: int, untimed: bool, watermarks: Mapping[str, datetime] | None = None, up_to: str = ""
) -> Past:
    past_greatest = () if past.greatest is None else (past.greatest,)
    return replace(
        past,
        up_to=max(past.up_to, up_to),
        greatest=max((*past_greatest, *greatest), default=None),
        untimed=past.untimed or untimed,
        watermarks=_furthest(past.watermarks, watermarks or {}),
    )


def _furthest(some: Mapping[str, datetime], others: Mapping[str, datetime]) -> dict[str, datetime]:
    watermarks = dict(some)
    for name, value in others.items():
        watermarks[name] = max(value, watermarks.get(name, value))
    return watermarks
