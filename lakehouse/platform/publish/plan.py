"""Which partitions are to appear, at which version, and which are to become files of their own; pure.

    partition      ready?                                     then
    ─────────      ───────────────────────────────────        ─────────────────────────────────────────────
    new            watermark >= its end, a signal, or its     publish: at the version of its end by event time
                   end within the interval of the run         (the newest one where there are no event times)
    published      a later signal, or asked for by force      publish again, at the version of now
                   published for `archive_after`              archive
    withdrawn      a later signal, or asked for by force      publish
    lost           the same, or asked for at the newest       publish: its own version was cleaned before
    half-way                                                  go on with what was begun

A partition that is published stays as it is: late events show only in one that is published again. One that is not
is due until it is, whatever left the timeline: the first event is that of all commits, archived ones included. What is
not due any more is `missed`: it was lost, or is older than the policy's `max_age`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from lakehouse.errors import UserError
from lakehouse.model.publication import NO_EVENTS, EventSpan, Publication, PublishedPartition, Stage, Version
from lakehouse.model.texts import text_list
from lakehouse.platform.metastore.names import partition_name, partition_values
from lakehouse.spec.publish import GRANULARITIES, PublishSpec

_STEPS = {"day": timedelta(days=1), "hour": timedelta(hours=1)}
#: States of missed partitions.
LOST, EXPIRED = "lost", "expired"
_BEGUN = frozenset({Stage.PUBLISHING, Stage.ARCHIVING, Stage.WITHDRAWING})
#: Periods that one plan looks at: a century of days, a decade of hours.
_MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A partition that is, or may come to be: the table's `paths` that it shows (None: all), and its span if known."""

    name: str
    paths: tuple[str, ...] | None = None
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the table: newest version, watermark, range of the events of all commits, partitions."""

    now_ms: int
    newest: Version | None
    watermark_ms: int | None = None
    span: EventSpan = NO_EVENTS
    partitions: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is asked for: some partitions only, an interval [start, end), again (`force`), or at once (`archive`).

    `ended` says that the interval is that of data which is there: it makes its partitions ready. With `newest` versions
    are the newest ones, not those of the event time.
    """

    names: tuple[str, ...] = ()
    interval_ms: tuple[int, int] | None = None
    force: bool = False
    archive: bool = False
    ended: bool = False
    newest: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", text_list(self.names, "names"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A partition that is to be published, and why."""

    name: str
    version: Version
    paths: tuple[str, ...] | None
    event_time_ms: int | None
    ready_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A partition that is not ready; `lag_ms` is how far the watermark is from its end, where there is one."""

    name: str
    end_ms: int | None
    lag_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A partition that is not published and not due any more: `state` is "lost" or "expired"."""

    name: str
    end_ms: int | None
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """What a run would do, in this order: go on with `begun`, `publish`, `archive`; and what it leaves.

    `span` is the range of events that the plan is made from.
    """

    begun: tuple[str, ...] = ()
    publish: tuple[Planned, ...] = ()
    archive: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    missed: tuple[Missed, ...] = ()
    span: EventSpan = NO_EVENTS

    @property
    def lost(self) -> tuple[str, ...]:
        """Return the names of the partitions whose versions cannot be built any more."""
        return tuple(missed.name for missed in self.missed if missed.state == LOST)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.begun or self.publish or self.archive)


def plan_publication(
    spec: PublishSpec,
    publication: Publication,
    facts: Facts,
    asked: Asked,
    version_at: Callable[[int], Version | None],
) -> PublishPlan:
    """Return what is to be done. `version_at` tells the version of an event time in UTC milliseconds, None if none.

    Raises UserError for a partition that was asked for and cannot be one of this publication.
    """
    candidates = {candidate.name: candidate for candidate in candidates_of(spec, publication, facts, asked)}
    for name in asked.names:
        if name not in candidates:
            raise UserError(
                f"{spec.target} has no partition {name!r}, and the table none that it could show", name=name
            )
    planned, waiting, archive = list[Planned](), list[Waiting](), list[str]()
    missed = list[Missed]()
    for candidate in candidates.values():
        if not _is_asked(candidate, asked):
            continue
        told = publication.partitions.get(candidate.name)
        if told is not None and told.stage in _BEGUN:
            continue
        ready = _ready(spec, publication, facts, asked, candidate, told)
        if isinstance(ready, Waiting):
            if told is None:
                waiting.append(ready)
            elif told.stage is Stage.LOST:
                missed.append(Missed(name=candidate.name, end_ms=candidate.end_ms, state=LOST, reason=told.reason))
            elif _is_archivable(spec, facts, asked, told):
                archive.append(candidate.name)
            continue
        at_ms, reason, demanded = ready
        if not demanded and told is None and _is_expired(spec, facts, candidate):
            why = f"it ended more than services.publish.max_age ({spec.max_age_s} s) ago, and was not published"
            missed.append(Missed(name=candidate.name, end_ms=candidate.end_ms, state=EXPIRED, reason=why))
            continue
        version = facts.newest
        by_time = candidate.paths is None and facts.watermark_ms is not None and not asked.newest
        if by_time and candidate.end_ms is not None:
            version = version_at(candidate.end_ms)
        if version is None and _held_events(facts, candidate):
            missed.append(Missed(name=candidate.name, end_ms=candidate.end_ms, state=LOST, reason=_UNREADABLE))
            continue
        if version is None:
            waiting.append(
                Waiting(name=candidate.name, end_ms=candidate.end_ms, lag_ms=None, reason="no data is there")
            )
            continue
        planned.append(
            Planned(
                name=candidate.name,
                version=version,
                paths=candidate.paths,
                event_time_ms=candidate.end_ms,
                ready_ms=at_ms,
                reason=reason,
            )
        )
    begun = [n for n, p in publication.partitions.items() if p.stage in _BEGUN]
    return PublishPlan(
        begun=tuple(sorted(begun)),
        publish=tuple(planned),
        archive=tuple(archive),
        waiting=tuple(waiting),
        missed=tuple(missed),
        span=facts.span,
    )


_UNREADABLE = (
    "the table had events before its end, but no commit that can be read has them: the archive of a table of version 6 "
    "is not read, or they were rolled back"
)


def candidates_of(spec: PublishSpec, publication: Publication, facts: Facts, asked: Asked) -> Iterable[Candidate]:
    """Yield the partitions of a publication, in order: those there are, those of the table, those of its events."""
    found: dict[str, Candidate] = {}
    for name, partition in publication.partitions.items():
        found[name] = Candidate(name=name, paths=partition.paths, end_ms=partition.event_time_ms)
    if spec.partitions == "table":
        found |= {candidate.name: candidate for candidate in facts.partitions}
    else:
        for candidate in _periods(spec, facts, asked):
            found[candidate.name] = candidate
        for name in {*publication.signals, *asked.names} - found.keys():
            found[name] = period(spec, name)
    return [found[name] for name in sorted(found)]


def period(spec: PublishSpec, name: str) -> Candidate:
    """Return the day or hour of a partition's name, or of its value alone; raise UserError if it names none."""
    value = partition_values(name)[0] if "=" in name else name
    start = None
    with suppress(ValueError):
        start = datetime.strptime(value, GRANULARITIES[spec.granularity])
    expected = partition_name([spec.column], [value])
    if start is None or start.strftime(GRANULARITIES[spec.granularity]) != value or name not in (value, expected):
        example = partition_name([spec.column], [datetime(2025, 3, 1, 7).strftime(GRANULARITIES[spec.granularity])])
        raise UserError(f"{name!r} names no {spec.granularity} of {spec.target}; write one like {example}", name=name)
    return _of(spec, start)


def _of(spec: PublishSpec, start: datetime) -> Candidate:
    zone = ZoneInfo(spec.timezone)
    end = start + _STEPS[spec.granularity]
    return Candidate(
        name=partition_name([spec.column], [start.strftime(GRANULARITIES[spec.granularity])]),
        start_ms=_ms(start, zone),
        end_ms=_ms(end, zone),
    )


def _periods(spec: PublishSpec, facts: Facts, asked: Asked) -> Iterable[Candidate]:
    """Yield the periods from the first event (or `since`) to the last one, and those of the interval asked for."""
    zone, step = ZoneInfo(spec.timezone), _STEPS[spec.granularity]
    spans: list[tuple[datetime, int]] = []
    since = datetime.strptime(spec.since, GRANULARITIES[spec.granularity]) if spec.since else None
    span = facts.span
    if span.first_ms is not None and span.last_ms is not None:
        start = since if since is not None else _floor(spec, span.first_ms)
        spans.append((start, max(span.last_ms, facts.watermark_ms or 0)))
    if asked.interval_ms is not None:
        spans.append((_floor(spec, asked.interval_ms[0]), asked.interval_ms[1] - 1))
    for start, last_ms in spans:
        for _ in range(_MOST):
            if _ms(start, zone) > last_ms:
                break
            if since is None or start >= since:
                yield _of(spec, start)
            start += step
        else:
            raise UserError(
                f"{spec.target} would have more than {_MOST} periods up to {iso(last_ms)}, beginning with "
                f"{start - _MOST * step}: an event time of the table is wrong, or very old; set services.publish.since "
                "to the first period that is to appear",
                setting="since",
            )


def _floor(spec: PublishSpec, at_ms: int) -> datetime:
    local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(spec.timezone)).replace(tzinfo=None)
    return local.replace(hour=local.hour if spec.granularity == "hour" else 0, minute=0, second=0, microsecond=0)


def _ms(local: datetime, zone: ZoneInfo) -> int:
    return (local.replace(tzinfo=zone).astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _is_asked(candidate: Candidate, asked: Asked) -> bool:
    if asked.names:
        return candidate.name in asked.names
    if asked.interval_ms is None or candidate.end_ms is None:
        return asked.interval_ms is None
    start = candidate.end_ms - 1 if candidate.start_ms is None else candidate.start_ms
    return asked.interval_ms[0] <= start and candidate.end_ms <= asked.interval_ms[1]


def _ready(
    spec: PublishSpec,
    publication: Publication,
    facts: Facts,
    asked: Asked,
    candidate: Candidate,
    told: PublishedPartition | None,
) -> tuple[int, str, bool] | Waiting:
    """Return since when a partition is ready to be published (again), why, and whether a signal or a user asked for it.

    Otherwise return what it waits for.
    """
    signal = publication.signals.get(candidate.name)
    if asked.force and (asked.names or asked.interval_ms is not None):
        return facts.now_ms, "asked for", True
    if asked.newest and told is not None and told.stage is Stage.LOST:
        return facts.now_ms, "asked for at the newest version", True
    if "signal" in spec.ready and signal is not None and (told is None or signal > told.ready_ms):
        return signal, "it was said to be ready", True
    if told is not None:
        return Waiting(name=candidate.name, end_ms=candidate.end_ms, lag_ms=None, reason=str(told.stage))
    end, lag, reasons = candidate.end_ms, None, []
    if "interval" in spec.ready:
        if asked.ended and asked.interval_ms is not None and end is not None and end <= asked.interval_ms[1]:
            return facts.now_ms, "the data interval of the run has ended", True
        if end is not None:
            reasons.append("the run of its data interval")
    if "event_time" in spec.ready and end is not None:
        if facts.watermark_ms is None:
            reasons.append("a watermark: no commit has one (see hoodie.payload.event.time.field)")
        elif facts.watermark_ms >= end:
            return facts.now_ms, f"the watermark {iso(facts.watermark_ms)} has passed its end", False
        else:
            lag = end - facts.watermark_ms
            reasons.append(f"the watermark, at {iso(facts.watermark_ms)}")
    if "signal" in spec.ready:
        reasons.append("a signal")
    timeless = ": its name tells no time" if end is None and spec.ready != ("signal",) else ""
    # Sensors know by "nothing" that it is no use to wait.
    what = " or ".join(reasons) or "nothing"
    return Waiting(name=candidate.name, end_ms=end, lag_ms=lag, reason=f"waits for {what}{timeless}")


def _is_expired(spec: PublishSpec, facts: Facts, candidate: Candidate) -> bool:
    if spec.max_age_s is None or candidate.end_ms is None or spec.partitions != "date":
        return False
    return candidate.end_ms < facts.now_ms - spec.max_age_s * 1000


def _held_events(facts: Facts, candidate: Candidate) -> bool:
    first = facts.span.first_ms
    return first is not None and candidate.end_ms is not None and first < candidate.end_ms


def _is_archivable(spec: PublishSpec, facts: Facts, asked: Asked, told: PublishedPartition) -> bool:
    if told.stage is not Stage.PUBLISHED or told.published_ms is None:
        return False
    after = spec.archive_after_s
    return asked.archive or (after is not None and facts.now_ms >= told.published_ms + after * 1000)


def iso(at_ms: int) -> str:
    """Return UTC milliseconds as a text for people, in seconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
