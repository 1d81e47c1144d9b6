"""Recover the result of an earlier try that crashed or could not record its result.

<after>  try 1: plan 3, commit 4, killed     try 2: nothing is due             4 is the result of the run
<after>  try 1: plan 3, suspended            try 2: 3 has an active executor   the result is unknown: retry
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from lakehouse.core.operations.services.completed_totals import completed_totals
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import RetryableError
from lakehouse.model.instant import Instant
from lakehouse.platform.catalog.run_history import Run, RunState
from lakehouse.spec.contracts.job import JobReason, JobStatus, ServiceReport
from lakehouse.spec.table.services import service_spec


def newest_completion(table: Table) -> str:
    """Return the newest completion time on the timeline; empty if nothing was completed."""
    return max((instant.completion for instant in table.timeline if instant.is_completed), default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTries:
    """The earlier tries of a service run.

    Attributes:
        service: Name of the service.
        run: The run as recorded before this try.
        after: The newest completion time on the timeline before the first try.
        other_instants: Instants that other runs of the service committed.
    """

    service: str
    run: Run
    after: str
    other_instants: frozenset[str | None]


def with_earlier_commit(report: ServiceReport, table: Table, earlier: EarlierTries) -> ServiceReport:
    """Return the report of a retry without work, with the commit of an earlier try if there is one.

    Raises RetryableError while the executor of an earlier try may still be active.
    """
    if report.status is not JobStatus.NOTHING_TO_DO or earlier.run.state is RunState.NOTHING_TO_DO:
        return report
    # The instant of a committed try stays in the run even if a later try fails.
    instant = earlier.run.instant or _committed_since(table, earlier)
    if instant is not None:
        reason = f"an earlier try of this run committed it; now {report.reason}"
        whole = replace(report, instant=instant, reason=reason, code=JobReason.COMMITTED_BY_EARLIER_TRY)
        totals = completed_totals(table.refresh(), instant)
        return whole if totals is None else replace(whole, **asdict(totals))
    plan = _active_plan(table, earlier.service)
    if plan is not None:
        raise RetryableError(
            f"{table.name}: an active executor, which may be an earlier try of this run, works on the {plan.action} "
            f"{plan.requested}",
            instant=plan.requested,
        )
    return report


def _committed_since(table: Table, earlier: EarlierTries) -> str | None:
    """Return the requested time of the newest instant that the service completed since the first try began."""
    spec, loaded = service_spec(earlier.service), table.refresh()
    since = [
        instant
        for instant in loaded.timeline.by_completion()
        if instant.completion > earlier.after and instant.requested not in earlier.other_instants
    ]
    if spec.operation is None:
        # A clean completes an instant with the action `clean`; an archive completes none.
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
