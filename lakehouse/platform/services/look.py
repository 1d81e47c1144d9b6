"""Examine one table (a look): assess all its services, and measure its numbers. The table is loaded once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.event_time import watermark
from lakehouse.core.operations.read.health import TableHealth, table_health
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.services import TableServices
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import UserError
from lakehouse.model.instant import State
from lakehouse.model.texts import error_text
from lakehouse.platform.catalog.entries import InvalidEntry, TableEntry
from lakehouse.platform.catalog.open_table import open_table
from lakehouse.platform.catalog.policies import ServicePolicies
from lakehouse.platform.publish.unpublished import unpublished_since
from lakehouse.platform.services.assess import Assessment, assess, log_fault, unreadable
from lakehouse.platform.services.retry_recovery import newest_completion
from lakehouse.spec.contracts.fleet import TableNumbers
from lakehouse.spec.cron import next_time_ms
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.service_settings import ServiceSettings
from lakehouse.spec.table.services import SERVICE_SPECS, service_spec

_METADATA = ".hoodie/metadata"
_PLANNED = tuple(spec.action for spec in SERVICE_SPECS if spec.action is not None)
#: Pause before the next examination of a table that is unreadable, has an active writer, or has services due by time.
_UNREADABLE_MS, _WRITER_MS, _TIMED_MS = 600_000, 300_000, 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenService:
    """The assessment of a table's service, and the settings; None if the settings cannot be read."""

    assessment: Assessment
    settings: ServiceSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of a table at one look. Times are UTC milliseconds.

    Attributes:
        entry: The table.
        looked_ms: Time before the table was loaded.
        services: The services by name.
        numbers: The numbers of the table; None if it could not be read.
        health: The same numbers for metrics.
        error: Why the table could not be read.
        newest_completion: Newest completion time on the timeline; empty if there is none.
        writer_active: Whether a writer works on the table.
        next_writer_ms: The next start of an ingestion; None if its schedule is unknown.
        writer_gap_ms: Time from this start to the following start.
        look_at_ms: Time of the next examination if nothing changes; None if only the rotation examines the table again.
    """

    entry: TableEntry | InvalidEntry
    looked_ms: int
    services: Mapping[str, SeenService] = field(default_factory=dict)
    numbers: TableNumbers | None = None
    health: TableHealth | None = None
    error: str | None = None
    newest_completion: str = ""
    writer_active: bool = False
    next_writer_ms: int | None = None
    writer_gap_ms: int | None = None
    look_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRequest:
    """The services to assess, the services that users requested, and whether to list the metadata table."""

    services: Sequence[str]
    now_ms: int
    requested: Collection[str] = ()
    measure_metadata: bool = False


def look(entry: TableEntry | InvalidEntry, policies: ServicePolicies, request: LookRequest) -> Look:
    """Load a table once, assess its services, and measure it; an error is part of the result.

    An error of one table is not raised, because it would stop the pass for all other tables.
    """
    if isinstance(entry, InvalidEntry):
        return _unseen(entry, request, entry.error)
    try:
        return _seen(entry, policies, request)
    except Exception as error:
        log_fault(entry.identifier, error)
        return _unseen(entry, request, error_text(error))


def is_not_created(entry: TableEntry) -> bool:
    """Return whether a registered table does not exist, because its first ingested rows will create it."""
    return entry.identity is None and read_properties(open_storage(entry.location)) is None


def _without_table(entry: TableEntry, request: LookRequest) -> Look:
    """Return the state of a registered table that does not exist before its first ingested rows."""
    waiting = SeenService(
        assessment=Assessment(due=False, reason="the table has no rows yet; the first ones create it")
    )
    return Look(
        entry=entry,
        looked_ms=request.now_ms,
        services=dict.fromkeys(request.services, waiting),
        next_writer_ms=next_writer_ms(entry, request.now_ms),
    )


def next_writer_ms(entry: TableEntry, now_ms: int) -> int | None:
    """Return the next start of an ingestion by the schedules of a spec, or None if no schedule can be parsed."""
    sections = [one.ingest for one in entry.spec.ingestions if one.ingest is not None]
    times = [next_time_ms(one.schedule, now_ms, one.timezone) for one in sections if one.schedule]
    return min((time for time in times if time is not None), default=None)


def _unseen(entry: TableEntry | InvalidEntry, request: LookRequest, text: str) -> Look:
    return Look(
        entry=entry,
        looked_ms=request.now_ms,
        services=dict.fromkeys(request.services, SeenService(assessment=unreadable(text))),
        error=text,
        look_at_ms=request.now_ms + _UNREADABLE_MS,
    )


def _seen(entry: TableEntry, policies: ServicePolicies, request: LookRequest) -> Look:
    services, now_ms = request.services, request.now_ms
    try:
        table = open_table(entry, policies)
    except UserError:
        if is_not_created(entry):
            return _without_table(entry, request)
        raise
    table_services = table.services_as_loaded
    seen = {service: _assessed(entry, policies, table_services, service, request.requested) for service in services}
    active = _active(table_services)
    health = table_health(table_services.table, small_file_bytes=table_services.policies.write.small_file_bytes)
    writers = any(instant.requested in active for instant in pending_writes(table_services.table))
    next_ms = next_writer_ms(entry, now_ms)
    after_ms = None if next_ms is None else next_writer_ms(entry, next_ms)
    numbers = replace(
        _numbers(table_services, health, active), unpublished_since_ms=_unpublished_since_ms(entry, table)
    )
    if request.measure_metadata:
        numbers = replace(numbers, metadata_bytes=_metadata_bytes(table_services), metadata_ms=now_ms)
    return Look(
        entry=entry,
        looked_ms=now_ms,
        services=seen,
        numbers=numbers,
        health=health,
        newest_completion=newest_completion(table),
        writer_active=writers,
        next_writer_ms=next_ms,
        writer_gap_ms=None if next_ms is None or after_ms is None else after_ms - next_ms,
        look_at_ms=_next_look_ms(table_services, seen, writers, now_ms),
    )


def _assessed(
    entry: TableEntry,
    policies: ServicePolicies,
    table_services: TableServices,
    service: str,
    requested: Collection[str],
) -> SeenService:
    try:
        settings = policies.scheduling_settings(entry.namespace, entry.name, entry.spec.services, service)
        if not settings.enabled and service not in requested and not service_spec(service).enabled_by_default:
            # No policy enables the service, so it is not assessed.
            return SeenService(assessment=Assessment(due=False, reason="no policy enables it"), settings=settings)
        return SeenService(assessment=assess(table_services, service, force=service in requested), settings=settings)
    except Exception as error:
        log_fault(f"{entry.identifier}: {service}", error)
        return SeenService(assessment=unreadable(error_text(error)))


def _active(table_services: TableServices) -> frozenset[str]:
    """Return the pending instants with a heartbeat; heartbeats are listed only if there are pending instants."""
    pending = any(not instant.is_completed for instant in table_services.table.timeline)
    return active_writes(table_services.table.env, table_services.policies.transaction) if pending else frozenset()


def _numbers(table_services: TableServices, health: TableHealth, active: Collection[str]) -> TableNumbers:
    table = table_services.table
    plans = table.timeline.where(action=_PLANNED, pending=True)
    return TableNumbers(
        last_commit_ms=health.newest_commit_ms,
        file_groups=health.file_groups,
        files=len(health.file_bytes) + health.log_files,
        partitions=health.partitions,
        base_bytes=health.base_bytes,
        log_bytes=health.log_bytes,
        log_files=health.log_files,
        # In a bucket index the bucket count determines the number of files; clustering does not merge them.
        small_files=None if table_services.policies.index.index_type.hashes_keys else health.small_files,
        pending_plans=health.pending_plans,
        pending_writes=health.pending_writes,
        failed_plans=sum(plan.state is State.INFLIGHT and plan.requested not in active for plan in plans),
        instants=health.instants,
        rollbacks=health.rollbacks,
        watermark_ms=_watermark_ms(table, table_services.policies),
    )


def _metadata_bytes(table_services: TableServices) -> int:
    return sum(file.size_bytes for file in table_services.table.env.storage.list(_METADATA))


def _unpublished_since_ms(entry: TableEntry, table: Table) -> int | None:
    """Return since when a ready partition waits for publication, or None if none waits or planning fails."""
    try:
        return unpublished_since(table, entry.spec)
    except Exception as error:
        log_fault(f"{entry.identifier}: the publication", error)
        return None


def _watermark_ms(table: LoadedTable, policies: Policies) -> int | None:
    if not policies.event_time.column:
        return None
    value = watermark(table, policies.event_time).value
    return None if value is None else round(value.timestamp() * 1000)


def _next_look_ms(
    table_services: TableServices, seen: Mapping[str, SeenService], writer_active: bool, now_ms: int
) -> int | None:
    pauses = [_WRITER_MS] if writer_active else []
    by_time = (
        "TIME" in table_services.policies.compaction.trigger
        or table_services.policies.clean.policy == "KEEP_LATEST_BY_HOURS"
    )
    pauses += [_TIMED_MS] if by_time else []
    pauses += [_UNREADABLE_MS] if any(service.assessment.unreadable for service in seen.values()) else []
    return now_ms + min(pauses) if pauses else None
