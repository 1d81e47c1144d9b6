"""Change the version of a registered table as a run that the catalog records.

    plan          the steps, stored as the prediction of the run; a blocker ends the run
    fence         the leases of all services and of both version changes on the table: a service that starts meanwhile
                  finds an active run, and a version change waits for active services
    change        as `Table.upgrade` and `downgrade`; the leases are compared again before the mark and the switch
    report        the outcome of the run, with its numbers

A retry has the run id of the earlier try, takes its leases over and continues the change. It uses the precondition of
the first try. The leases avoid useless work only: the lock, the pending mark and the comparison of the properties
protect the table from processes that use no catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from lakehouse.core.engine.adapters import session_engine
from lakehouse.core.engine.progress import also_observing
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.version.change_version import change_version
from lakehouse.core.operations.version.version_plan import VersionPlan, VersionRequest
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, TableBusyError, UnsupportedError
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.run_history import Run, RunState
from lakehouse.platform.catalog.run_leases import RunLease
from lakehouse.platform.catalog.run_progress import RecordedProgress
from lakehouse.platform.catalog.run_records import LEASE_MS, RunCatalog, RunKey, lease_key, record_end
from lakehouse.spec.contracts.job import JobError, JobReason, JobStatus, ServiceReport
from lakehouse.spec.table.services import SERVICES, VERSION_CHANGES

_SOURCE, _TARGET, _VERSION = "source", "target", "hoodie.write.table.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChange:
    """The outcome of a recorded run, and its id; `outcome` is NothingToDo if the table had the version already."""

    run_id: str
    outcome: VersionPlan | NothingToDo


# parameters: the request, and the run id, the options and the session with which it runs
def run_version_change(
    catalog: RunCatalog,
    name: str,
    request: VersionRequest,
    *,
    run_id: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    spark: Any = None,
) -> RecordedChange:
    """Change the version of a registered table, and record the run under the verb `upgrade` or `downgrade`.

    Args:
        catalog: The catalog of the table.
        name: Name of the table, namespace.table.
        request: The change; a dry run is not recorded.
        run_id: Id of the run, which its retries share; None for a new run.
        options: Options for opening the table, added to the options of its spec and policies.
        spark: Session whose executors compact; None means threads of this process.

    Raises:
        TableBusyError: A service or another change of the version is active on the table.
        UserError: The precondition does not hold, or an action is pending that has to be finished first.
        UnsupportedError: A feature of the table prevents the change.
        RetryableError: A writer is active, or another try took the leases over.
    """
    entry, verb = catalog.entry(name), VERSION_CHANGES[not request.upgrade]
    owner = run_id or f"manual-{catalog.clock.now_ms()}"
    if request.dry_run:
        planned = changed(catalog.load_table(entry.identifier, options=options), request, spark)
        return RecordedChange(run_id="", outcome=_with_spec(entry, planned))
    earlier = None if run_id is None else catalog.history.run(run_id, entry.id, verb)
    if earlier is not None and str(earlier.predicted.get(_TARGET)) != str(request.to):
        # Another change of the same job.
        earlier = None
    if earlier is not None and earlier.state is RunState.COMMITTED:
        # The table may have been changed again since.
        reason = f"the run {owner} changed the version earlier"
        return RecordedChange(run_id=owner, outcome=NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason))
    with _fence(catalog, entry, owner) as leases:
        run = _Run(catalog=catalog, entry=entry, leases=leases, earlier=earlier, options=options)
        outcome = _recorded(run, _continued(request, earlier), spark)
    return RecordedChange(run_id=owner, outcome=_with_spec(entry, outcome))


def _with_spec(entry: TableEntry, outcome: VersionPlan | NothingToDo) -> VersionPlan | NothingToDo:
    """Add a warning if the spec of the table declares another version than the new one."""
    declared = entry.spec.write_options().get(_VERSION, "")
    if isinstance(outcome, NothingToDo) or declared in ("", str(outcome.target)):
        return outcome
    warning = f"the spec of {entry.identifier} declares {_VERSION}={declared}; change it to {outcome.target}"
    return replace(outcome, warnings=(*outcome.warnings, warning))


def changed(table: Table, request: VersionRequest, spark: Any = None) -> VersionPlan | NothingToDo:
    """Change the version of an open table without a record; raises the errors of `Table.upgrade`."""
    policies = table.services.policies
    return change_version(table.refresh(), session_engine(spark, policies.write.memory_budget_bytes), policies, request)


def _continued(request: VersionRequest, earlier: Run | None) -> VersionRequest:
    """Return the request with the precondition of the first try of the run."""
    source = None if earlier is None else earlier.predicted.get(_SOURCE)
    return request if source is None or request.source is not None else replace(request, source=source)


@contextmanager
def _fence(catalog: RunCatalog, entry: TableEntry, owner: str) -> Iterator[tuple[RunLease, ...]]:
    """Hold the leases of all services on the table; raise TableBusyError if another run holds one."""
    with ExitStack() as stack:
        leases = []
        for service in (*VERSION_CHANGES, *SERVICES):
            key = lease_key(entry.identifier, service)
            lease = stack.enter_context(catalog.leases.held(key, owner, LEASE_MS))
            if lease is None:
                holder = catalog.leases.holder(key)
                run = "another run" if holder is None else f"the run {holder.owner}"
                raise TableBusyError(
                    f"{entry.identifier}: {run} of {service} is active; change the table version after it"
                )
            leases.append(lease)
        yield tuple(leases)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run: its catalog and table, its leases, its earlier try, if there is one, and the options of the table."""

    catalog: RunCatalog
    entry: TableEntry
    leases: tuple[RunLease, ...]
    earlier: Run | None
    options: Mapping[str, str]


def _recorded(run: _Run, request: VersionRequest, spark: Any) -> VersionPlan | NothingToDo:
    catalog, entry = run.catalog, run.entry
    history, verb = catalog.history, VERSION_CHANGES[not request.upgrade]
    key = RunKey(run_id=run.leases[0].owner, table_id=entry.id, service=verb)
    for service in VERSION_CHANGES:
        active = key.run_id if service == verb else None
        history.end_expired_runs(entry.id, service, active_run=active, before_ms=catalog.clock.now_ms())
    predicted = {} if run.earlier is None else run.earlier.predicted
    try_number = history.start(key.run_id, entry.id, verb, predicted)
    started = catalog.clock.monotonic_s()
    try:
        table = catalog.load_table(entry.identifier, options=run.options)
        plan = _predicted(table, request)
        if not predicted:
            predicted = plan
            history.predict(key.run_id, entry.id, verb, predicted)
        confirmed = replace(request, confirm=partial(_confirm, catalog, run.leases))
        with also_observing(RecordedProgress(partial(history.progress, key.run_id, entry.id, verb), catalog.clock)):
            outcome = _with_earlier(changed(table, confirmed, spark), predicted)
    except Exception as error:
        record_end(catalog, key, _failed(entry.identifier, error), try_number=try_number)
        raise
    seconds = catalog.clock.monotonic_s() - started
    record_end(catalog, key, _report(entry.identifier, outcome, seconds), try_number=try_number)
    catalog.states.mark_changed([entry.id])
    return outcome


def _with_earlier(outcome: VersionPlan | NothingToDo, predicted: Mapping[str, Any]) -> VersionPlan | NothingToDo:
    """Return the plan of the first try if this try found its version: an earlier try switched it, and was killed."""
    if not isinstance(outcome, NothingToDo) or not predicted:
        return outcome
    return VersionPlan(
        source=predicted[_SOURCE],
        target=predicted[_TARGET],
        steps=tuple(predicted.get("steps", ())),
        timeline_files=predicted.get("files", 0),
        compacted_groups=predicted.get("groups", 0),
        is_done=True,
    )


def _predicted(table: Table, request: VersionRequest) -> Mapping[str, Any]:
    """Return the numbers of the plan; raise UnsupportedError if a feature or a pending action prevents the change."""
    plan = changed(table, replace(request, dry_run=True))
    if isinstance(plan, NothingToDo):
        return {}
    if plan.blockers:
        raise UnsupportedError(f"{table.location}: {plan.blockers[0]}", blockers=list(plan.blockers))
    return {
        _SOURCE: plan.source,
        _TARGET: plan.target,
        "files": plan.timeline_files,
        "groups": plan.compacted_groups,
        "steps": list(plan.steps),
    }


def _confirm(catalog: RunCatalog, leases: tuple[RunLease, ...]) -> None:
    for lease in leases:
        if catalog.leases.is_taken_over(lease):
            raise RetryableError(
                f"{lease.key}: another run took over the lease of {lease.owner} during the change of the version, "
                "which did not take place; run the command again",
                lease=lease.key,
            )


def _report(table: str, outcome: VersionPlan | NothingToDo, seconds: float) -> ServiceReport:
    if isinstance(outcome, NothingToDo):
        return ServiceReport(
            status=JobStatus.NOTHING_TO_DO,
            table=table,
            reason=outcome.reason,
            code=JobReason(outcome.code.value),
            seconds=seconds,
        )
    warning = "; ".join(outcome.warnings)
    return ServiceReport(
        status=JobStatus.COMMITTED, table=table, seconds=seconds, files=outcome.timeline_files, warning=warning
    )


def _failed(table: str, error: Exception) -> ServiceReport:
    return ServiceReport(status=JobStatus.FAILED, table=table, error=JobError.of(error))
