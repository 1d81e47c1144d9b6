"""What an earlier try of a run did, and could not tell: it died, or the catalog was down when it ended.

<after>  try 1: plan 3, commit 4, killed     try 2: nothing is due                 so 4 is what the run did
<after>  try 1: plan 3, suspended            try 2: 3 is held by one who lives     so nobody knows yet: try again
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import RetryableError
from lakehouse.model.instant import Instant
from lakehouse.platform.catalog.run_history import Run, RunState
from lakehouse.spec.contracts.job import JobReason, JobReport, JobStatus
from lakehouse.spec.services import service_spec


def newest_completion(table: Table) -> str:
    """Return the newest completion time on the timeline; empty if nothing was completed."""
    return max((instant.completion for instant in table.timeline if instant.is_completed), default="")


def with_earlier(
    report: JobReport, table: Table, service: str, before: Run, after: str, others: Collection[str | None]
) -> JobReport:
    """Return the report of a retry that found nothing to do, with what the run had done before, if it did something.

    `before` is the run as it was before this try, `after` the newest completion time before its first one, `others` are
    instants of other runs. Raises RetryableError while an earlier try may still be at a plan.
    """
    if report.status is not JobStatus.NOTHING_TO_DO or before.state is RunState.NOTHING_TO_DO:
        return report
    # An instant stands there if some try committed, and stays when a later try fails.
    found = before.instant or _committed_since(table, service, after, others)
    if found is not None:
        reason = f"an earlier try of this run made it; now {report.reason}"
        return replace(report, instant=found, reason=reason, code=JobReason.COMMITTED_BY_EARLIER_TRY)
    held = _active_plan(table, service)
    if held is not None:
        raise RetryableError(
            f"{table.name}: an executor that may be an earlier try of this run is at the {held.action} "
            f"{held.requested}, and is alive",
            instant=held.requested,
        )
    return report


def _committed_since(table: Table, service: str, after: str, others: Collection[str | None]) -> str | None:
    """Return the requested time of the newest instant that a service completed after a completion time."""
    spec, loaded = service_spec(service), table.refresh()
    since = [i for i in loaded.timeline.by_completion() if i.completion > after and i.requested not in others]
    if spec.operation is None:
        # A clean completes an instant of its own action; an archive completes none.
        completed = [instant.requested for instant in since if instant.action is spec.action]
    else:
        writes = [instant for instant in loaded.timeline.writes().by_completion() if instant in since]
        completed = [
            i.requested for i, metadata in loaded.store.commits(writes) if metadata.operation == spec.operation
        ]
    return completed[-1] if completed else None


def _active_plan(table: Table, service: str) -> Instant | None:
    """Return a pending plan of the service whose executor has a valid heartbeat."""
    spec, loaded = service_spec(service), table.refresh()
    active = active_writes(loaded.env, table.services.policies.transaction)
    pending = () if spec.action is None else loaded.timeline.where(action=spec.action, pending=True)
    return next((instant for instant in pending if instant.requested in active), None)
