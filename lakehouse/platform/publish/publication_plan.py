"""Decide which partitions to publish, at which version, and which to archive; pure.

    partition      condition                                  action
    ─────────      ───────────────────────────────────        ─────────────────────────────────────────────
    new            watermark >= its end, a signal, or its     publish the version at its end by event time
                   end within the data interval of the run    (the newest version if there are no event times)
    published      a later signal, or a forced request        publish again, at the newest version for its time
                   published for `archive_after`              archive
    withdrawn      a later signal, or a forced request        publish
    lost           the same, or a request for the newest      publish; clean deleted files of the earlier version
    unfinished                                                continue the started change

A published partition does not change: late events appear only when it is published again. An unpublished partition
stays due, even if archive moved its commits, because the event range covers archived commits. `missed` partitions are
no longer due: their version was cleaned, or they are older than `max_age`.
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
from lakehouse.spec.contracts.publication import PartitionState, PublishReason
from lakehouse.spec.table.publish import PublishSpec
from lakehouse.spec.table.publish_keys import GRANULARITIES

_STEPS = {"day": timedelta(days=1), "hour": timedelta(hours=1)}
_UNFINISHED = frozenset({Stage.PUBLISHING, Stage.ARCHIVING, Stage.WITHDRAWING})
#: Maximum number of periods that one plan considers: a century of days, a decade of hours.
_MAX_PERIODS = 100_000
_UNREADABLE = (
    "the table had events before its end, but no readable commit has them: their commits were rolled back, or their "
    "archive was removed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationCandidate:
    """A partition that a publication has or could have.

    `paths` are the table's partitions that it shows; None means all. `start_ms` and `end_ms` bound its period in UTC
    milliseconds, if the name has a time.
    """

    name: str
    paths: tuple[str, ...] | None = None
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationFacts:
    """State of the table that a plan needs: newest version, watermark, event range of all commits, partitions."""

    now_ms: int
    newest: Version | None
    watermark_ms: int | None = None
    span: EventSpan = NO_EVENTS
    partitions: tuple[PublicationCandidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """Parameters of a run: partitions by name, an interval [start, end), and how to treat them.

    `force` publishes again. `archive` archives at any age. `ended` marks the interval's data as complete, so its
    partitions are ready. `newest` chooses the newest version instead of the version by event time.
    """

    names: tuple[str, ...] = ()
    interval_ms: tuple[int, int] | None = None
    force: bool = False
    archive: bool = False
    ended: bool = False
    newest: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", text_list(self.names, "names"))

    def selects(self, candidate: PublicationCandidate) -> bool:
        """Return whether the run may act on a partition."""
        if self.names:
            return candidate.name in self.names
        if self.interval_ms is None or candidate.end_ms is None:
            return self.interval_ms is None
        start = candidate.end_ms - 1 if candidate.start_ms is None else candidate.start_ms
        return self.interval_ms[0] <= start and candidate.end_ms <= self.interval_ms[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """A partition to publish, the version that it will show, and the reason."""

    name: str
    version: Version
    paths: tuple[str, ...] | None
    event_time_ms: int | None
    ready_ms: int
    reason: str
    code: PublishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPartition:
    """A partition that is not ready; `lag_ms` is the distance from the watermark to its end, if both are known."""

    name: str
    end_ms: int | None
    lag_ms: int | None
    reason: str
    code: PublishReason = PublishReason.WAITS_FOR_CONDITION


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedPartition:
    """An unpublished partition that is no longer due: `state` is LOST or EXPIRED."""

    name: str
    end_ms: int | None
    state: PartitionState
    reason: str
    code: PublishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """The actions of a run in their order (continue `begun`, `publish`, `archive`), and the partitions it skips.

    `span` is the event range that the plan is based on.
    """

    begun: tuple[str, ...] = ()
    publish: tuple[PlannedPartition, ...] = ()
    archive: tuple[str, ...] = ()
    waiting: tuple[WaitingPartition, ...] = ()
    missed: tuple[MissedPartition, ...] = ()
    span: EventSpan = NO_EVENTS

    @property
    def lost(self) -> tuple[str, ...]:
        """Return the names of the partitions whose versions can no longer be read."""
        return tuple(missed.name for missed in self.missed if missed.state is PartitionState.LOST)

    @property
    def is_empty(self) -> bool:
        """Return whether a run has nothing to do."""
        return not (self.begun or self.publish or self.archive)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanInput:
    """The inputs of a plan."""

    spec: PublishSpec
    publication: Publication
    facts: PublicationFacts
    request: PublishRequest
    version_at: Callable[[int], Version | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A partition that is ready since `since_ms`; `requested` is true if a signal or a user requested it."""

    since_ms: int
    reason: str
    code: PublishReason
    requested: bool


def plan_publication(
    spec: PublishSpec,
    publication: Publication,
    facts: PublicationFacts,
    request: PublishRequest,
    version_at: Callable[[int], Version | None],
) -> PublishPlan:
    """Return the plan of a run.

    Args:
        spec: the declaration of the publication.
        publication: the stored state of the publication.
        facts: the state of the table.
        request: the parameters of the run.
        version_at: returns the version at an event time in UTC milliseconds, None if no commit has one.

    Raises:
        UserError: the request contains a partition that this publication cannot have.
    """
    given = _PlanInput(spec=spec, publication=publication, facts=facts, request=request, version_at=version_at)
    candidates = {candidate.name: candidate for candidate in _candidates(given)}
    for name in request.names:
        if name not in candidates:
            raise UserError(
                f"{spec.target} has no partition {name!r}, and the table has no partition of this name", name=name
            )
    planned, waiting, archive = list[PlannedPartition](), list[WaitingPartition](), list[str]()
    missed = list[MissedPartition]()
    for candidate in candidates.values():
        stored = publication.partitions.get(candidate.name)
        if not request.selects(candidate) or (stored is not None and stored.stage in _UNFINISHED):
            continue
        readiness = _readiness(given, candidate, stored)
        if isinstance(readiness, _Ready):
            match _version_to_publish(given, candidate, readiness, is_new=stored is None):
                case PlannedPartition() as version:
                    planned.append(version)
                case WaitingPartition() as partition:
                    waiting.append(partition)
                case MissedPartition() as lost:
                    missed.append(lost)
        elif stored is None:
            waiting.append(readiness)
        elif stored.stage is Stage.LOST:
            missed.append(_missed(candidate, PartitionState.LOST, PublishReason.VERSION_CLEANED, stored.reason))
        elif _is_archivable(given, stored):
            archive.append(candidate.name)
    return PublishPlan(
        begun=tuple(sorted(n for n, p in publication.partitions.items() if p.stage in _UNFINISHED)),
        publish=tuple(planned),
        archive=tuple(archive),
        waiting=tuple(waiting),
        missed=tuple(missed),
        span=facts.span,
    )


def _version_to_publish(
    given: _PlanInput, candidate: PublicationCandidate, ready: _Ready, *, is_new: bool
) -> PlannedPartition | WaitingPartition | MissedPartition:
    """Return a ready partition with its version, or the reason why it has no version."""
    facts = given.facts
    if not ready.requested and is_new and _is_expired(given, candidate):
        max_age = f"services.publish.max_age ({given.spec.max_age_s} s)"
        reason = f"it ended more than {max_age} ago, and was not published"
        return _missed(candidate, PartitionState.EXPIRED, PublishReason.TOO_OLD, reason)
    version = facts.newest
    by_time = candidate.paths is None and facts.watermark_ms is not None and not given.request.newest
    if by_time and candidate.end_ms is not None:
        version = given.version_at(candidate.end_ms)
    if version is None and _had_events(facts, candidate):
        return _missed(candidate, PartitionState.LOST, PublishReason.VERSION_UNREADABLE, _UNREADABLE)
    if version is None:
        return WaitingPartition(
            name=candidate.name,
            end_ms=candidate.end_ms,
            lag_ms=None,
            reason="the table has no data yet",
            code=PublishReason.NO_DATA,
        )
    return PlannedPartition(
        name=candidate.name,
        version=version,
        paths=candidate.paths,
        event_time_ms=candidate.end_ms,
        ready_ms=ready.since_ms,
        reason=ready.reason,
        code=ready.code,
    )


def _missed(
    candidate: PublicationCandidate, state: PartitionState, code: PublishReason, reason: str
) -> MissedPartition:
    return MissedPartition(name=candidate.name, end_ms=candidate.end_ms, state=state, reason=reason, code=code)


def _candidates(given: _PlanInput) -> Iterable[PublicationCandidate]:
    """Return the partitions in the publication, the table and its event range, sorted by name."""
    spec, candidates = given.spec, dict[str, PublicationCandidate]()
    for name, partition in given.publication.partitions.items():
        candidates[name] = PublicationCandidate(name=name, paths=partition.paths, end_ms=partition.event_time_ms)
    if spec.partitions == "table":
        candidates |= {candidate.name: candidate for candidate in given.facts.partitions}
    else:
        for candidate in _periods(spec, given.facts, given.request):
            candidates[candidate.name] = candidate
        for name in {*given.publication.signals, *given.request.names} - candidates.keys():
            candidates[name] = period(spec, name)
    return [candidates[name] for name in sorted(candidates)]


def period(spec: PublishSpec, name: str) -> PublicationCandidate:
    """Return the day or hour that a partition's name, or its value alone, denotes; raise UserError if it has none."""
    value = partition_values(name)[0] if "=" in name else name
    start = None
    with suppress(ValueError):
        start = datetime.strptime(value, GRANULARITIES[spec.granularity])
    expected = partition_name([spec.column], [value])
    if start is None or start.strftime(GRANULARITIES[spec.granularity]) != value or name not in (value, expected):
        example = partition_name([spec.column], [datetime(2025, 3, 1, 7).strftime(GRANULARITIES[spec.granularity])])
        raise UserError(f"{name!r} names no {spec.granularity} of {spec.target}; write one like {example}", name=name)
    return _of(spec, start)


def _of(spec: PublishSpec, start: datetime) -> PublicationCandidate:
    zone = ZoneInfo(spec.timezone)
    end = start + _STEPS[spec.granularity]
    return PublicationCandidate(
        name=partition_name([spec.column], [start.strftime(GRANULARITIES[spec.granularity])]),
        start_ms=_ms(start, zone),
        end_ms=_ms(end, zone),
    )


def _periods(spec: PublishSpec, facts: PublicationFacts, request: PublishRequest) -> Iterable[PublicationCandidate]:
    """Yield the periods from the first event (or `since`) to the last event, and in the requested interval."""
    zone, step = ZoneInfo(spec.timezone), _STEPS[spec.granularity]
    spans: list[tuple[datetime, int]] = []
    since = datetime.strptime(spec.since, GRANULARITIES[spec.granularity]) if spec.since else None
    span = facts.span
    if span.first_ms is not None and span.last_ms is not None:
        start = since if since is not None else _floor(spec, span.first_ms)
        spans.append((start, max(span.last_ms, facts.watermark_ms or 0)))
    if request.interval_ms is not None:
        spans.append((_floor(spec, request.interval_ms[0]), request.interval_ms[1] - 1))
    for start, last_ms in spans:
        for _ in range(_MAX_PERIODS):
            if _ms(start, zone) > last_ms:
                break
            if since is None or start >= since:
                yield _of(spec, start)
            start += step
        else:
            raise UserError(
                f"{spec.target} would have more than {_MAX_PERIODS} periods up to {iso(last_ms)}, beginning with "
                f"{start - _MAX_PERIODS * step}: an event time of the table is wrong, or very old; set "
                "services.publish.since to the first period to publish",
                setting="since",
            )


def _floor(spec: PublishSpec, at_ms: int) -> datetime:
    local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(spec.timezone)).replace(tzinfo=None)
    return local.replace(hour=local.hour if spec.granularity == "hour" else 0, minute=0, second=0, microsecond=0)


def _ms(local: datetime, zone: ZoneInfo) -> int:
    return (local.replace(tzinfo=zone).astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _readiness(
    given: _PlanInput, candidate: PublicationCandidate, stored: PublishedPartition | None
) -> _Ready | WaitingPartition:
    """Return why a partition is ready to be published (again), or the condition that it waits for."""
    ready = _requested(given, candidate, stored)
    if ready is not None:
        return ready
    if stored is not None:
        return WaitingPartition(name=candidate.name, end_ms=candidate.end_ms, lag_ms=None, reason=str(stored.stage))
    return _interval_ended(given, candidate) or _watermark_passed(given, candidate) or _waiting(given, candidate)


def _requested(given: _PlanInput, candidate: PublicationCandidate, stored: PublishedPartition | None) -> _Ready | None:
    """Return the user request or signal, if any, that makes a partition ready, even if it is already published."""
    facts, request = given.facts, given.request
    signal = given.publication.signals.get(candidate.name)
    if request.force and (request.names or request.interval_ms is not None):
        return _Ready(since_ms=facts.now_ms, reason="requested", code=PublishReason.REQUESTED, requested=True)
    if request.newest and stored is not None and stored.stage is Stage.LOST:
        reason = "requested at the newest version"
        return _Ready(since_ms=facts.now_ms, reason=reason, code=PublishReason.REQUESTED, requested=True)
    if "signal" in given.spec.ready and signal is not None and (stored is None or signal > stored.ready_ms):
        reason = "a signal said that it is ready"
        return _Ready(since_ms=signal, reason=reason, code=PublishReason.SIGNAL, requested=True)
    return None


def _interval_ended(given: _PlanInput, candidate: PublicationCandidate) -> _Ready | None:
    request, end = given.request, candidate.end_ms
    if "interval" not in given.spec.ready or not request.ended or request.interval_ms is None:
        return None
    if end is None or end > request.interval_ms[1]:
        return None
    reason = "the data interval of the run has ended"
    return _Ready(since_ms=given.facts.now_ms, reason=reason, code=PublishReason.INTERVAL_ENDED, requested=True)


def _watermark_passed(given: _PlanInput, candidate: PublicationCandidate) -> _Ready | None:
    watermark, end = given.facts.watermark_ms, candidate.end_ms
    if "event_time" not in given.spec.ready or end is None or watermark is None or watermark < end:
        return None
    reason = f"the watermark {iso(watermark)} has passed its end"
    return _Ready(since_ms=given.facts.now_ms, reason=reason, code=PublishReason.WATERMARK, requested=False)


def _waiting(given: _PlanInput, candidate: PublicationCandidate) -> WaitingPartition:
    """Return the conditions that a new partition waits for."""
    ready, end, watermark = given.spec.ready, candidate.end_ms, given.facts.watermark_ms
    by_watermark = "event_time" in ready and end is not None
    reasons = ["the run of its data interval"] if "interval" in ready and end is not None else []
    if by_watermark and watermark is None:
        reasons.append("a watermark: no commit has one (see hoodie.payload.event.time.field)")
    elif by_watermark and watermark is not None:
        reasons.append(f"the watermark, at {iso(watermark)}")
    if "signal" in ready:
        reasons.append("a signal")
    timeless = ": its name has no time" if end is None and ready != ("signal",) else ""
    return WaitingPartition(
        name=candidate.name,
        end_ms=end,
        lag_ms=end - watermark if by_watermark and end is not None and watermark is not None else None,
        reason=f"waits for {' or '.join(reasons) or 'nothing'}{timeless}",
        # Sensors fail on UNREACHABLE, because no later run can publish the partition.
        code=PublishReason.WAITS_FOR_CONDITION if reasons else PublishReason.UNREACHABLE,
    )


def _is_expired(given: _PlanInput, candidate: PublicationCandidate) -> bool:
    spec = given.spec
    if spec.max_age_s is None or candidate.end_ms is None or spec.partitions != "date":
        return False
    return candidate.end_ms < given.facts.now_ms - spec.max_age_s * 1000


def _had_events(facts: PublicationFacts, candidate: PublicationCandidate) -> bool:
    first = facts.span.first_ms
    return first is not None and candidate.end_ms is not None and first < candidate.end_ms


def _is_archivable(given: _PlanInput, stored: PublishedPartition) -> bool:
    if stored.stage is not Stage.PUBLISHED or stored.published_ms is None:
        return False
    after = given.spec.archive_after_s
    return given.request.archive or (after is not None and given.facts.now_ms >= stored.published_ms + after * 1000)


def iso(at_ms: int) -> str:
    """Format UTC milliseconds as ISO 8601 in seconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
