"""Run a service on tables of a catalog in one process, each table under a lease and with a separate report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lakehouse.core.engine.progress import also_observing
from lakehouse.core.system.stop import JobStop
from lakehouse.core.table.table import Table
from lakehouse.errors import (
    CommitStateUnknownError,
    LakehouseError,
    RetryableError,
    TableBusyError,
)
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.run_history import LEASE_EXPIRED, Run, RunState
from lakehouse.platform.catalog.run_leases import RunLease
from lakehouse.platform.catalog.run_progress import RecordedProgress
from lakehouse.platform.catalog.run_records import LEASE_MS, RunKey, lease_key, record_end
from lakehouse.platform.jobs.lineage import named
from lakehouse.platform.services.metrics import Metrics
from lakehouse.platform.services.retry_recovery import EarlierTries, newest_completion, with_earlier_commit
from lakehouse.spec.contracts.job import JobError, JobReason, JobStatus, ServiceReport
from lakehouse.spec.job_command import ServiceCommand

logger = logging.getLogger(__name__)

#: Runs a service on an open table with the parameters of a command, and returns the report.
Runner = Callable[[Table, ServiceCommand], ServiceReport]


def run_tables(
    catalog: Catalog,
    tables: Sequence[str],
    command: ServiceCommand,
    runner: Runner,
    measures: Metrics | None = None,
) -> tuple[ServiceReport, ...]:
    """Run the service `command.verb` on tables of a catalog, one after the other, and return one report per table.

    A failure on one table does not stop the others. A table that another run works on is skipped; if the command
    forces the run or limits it, the report is a retryable failure instead. A retry has the `run_id` of the earlier try
    and takes over its lease immediately; the claim on the timeline decides which of the two commits.

    Raises:
        JobStop: A signal stopped the process.
    """
    reports = []
    for name in tables:
        reports.append(_run_one(catalog, name, command, runner))
        if measures is not None:
            report = replace(reports[-1], table=name)
            measures.run(command.verb, report, predicted_s=_predicted(catalog, name, command.verb))
    return tuple(reports)


def state_of(run: Run, holder: RunLease | None) -> Run:
    """Return a run with its actual state: a running run without the lease of the service has crashed."""
    if run.state is not RunState.RUNNING or (holder is not None and holder.owner == run.run_id):
        return run
    return replace(run, state=RunState.DIED, error=LEASE_EXPIRED)


def _predicted(catalog: Catalog, name: str, service: str) -> float | None:
    try:
        runs = catalog.history.runs(catalog.entry(name).id, service, limit=1) if catalog.table_exists(name) else ()
    except RetryableError as error:
        # The run is complete; only its metric is missing.
        logger.warning("%s: the prediction of the run cannot be read: %s", name, error)
        return None
    seconds = runs[0].predicted.get("seconds") if runs else None
    return None if seconds is None else float(seconds)


def _run_one(catalog: Catalog, name: str, command: ServiceCommand, runner: Runner) -> ServiceReport:
    try:
        entry = catalog.entry(name)
        owner = command.run_id or f"manual-{catalog.clock.now_ms()}"
        key = lease_key(entry.identifier, command.verb)
        with catalog.leases.held(key, owner, LEASE_MS) as lease:
            if lease is not None:
                return _run_and_record(catalog, entry, lease, command, runner)
            holder = catalog.leases.holder(key)
            reason = f"run {holder.owner} is active" if holder is not None else "another run was active"
            if command.force or command.partitions or command.interval is not None:
                # The other run does not do the requested work, for example another day of a backfill.
                raise TableBusyError(f"{entry.identifier}: {reason}; try the requested run again after it")
            return ServiceReport(
                status=JobStatus.NOTHING_TO_DO,
                table=entry.identifier,
                reason=reason,
                code=JobReason.OTHER_RUN_ACTIVE,
            )
    except Exception as error:
        return _failed(name, error)


def _run_and_record(
    catalog: Catalog, entry: TableEntry, lease: RunLease, command: ServiceCommand, runner: Runner
) -> ServiceReport:
    history, service = catalog.history, command.verb
    key = RunKey(run_id=lease.owner, table_id=entry.id, service=service)
    # This run holds the lease, so other running entries in the history have crashed, and their requests are open again.
    history.end_expired_runs(entry.id, service, active_run=key.run_id, before_ms=catalog.clock.now_ms())
    before = history.run(key.run_id, entry.id, service)
    decisions = history.decisions(entry.id, service)
    try_number = history.start(key.run_id, entry.id, service, decisions[0].predicted if decisions else {})
    requests = history.taken_requests(key.run_id, entry.id, service)
    stopped, seen = None, ""
    try:
        table = catalog.load_table(entry.identifier, options=command.options)
        catalog.adopt(entry, table)
        seen = newest_completion(table)
        tried = None if before is None or before.state is RunState.NOTHING_TO_DO else before.after
        after = seen if tried is None else tried
        history.began_after(key.run_id, entry.id, service, after)
        command = _with_requests(command, [dict(request.parameters) for request in requests])
        with also_observing(RecordedProgress(partial(history.progress, key.run_id, entry.id, service), catalog.clock)):
            report = runner(table, command)
        report = named(report, entry.identifier)
        if before is not None:
            others = {run.instant for run in history.runs(entry.id, service, limit=50) if run.run_id != key.run_id}
            earlier = EarlierTries(service=service, run=before, after=after, other_instants=frozenset(others))
            report = with_earlier_commit(report, table, earlier)
    except JobStop as stop:
        stopped, report = stop, _failed(entry.identifier, stop.error)
    except Exception as error:
        report = _failed(entry.identifier, _error_of_lease(catalog, lease, error))
    # A run on some partitions proves nothing about the others.
    is_whole = not command.partitions and command.interval is None
    record_end(catalog, key, report, try_number=try_number, seen=seen if is_whole else None)
    if stopped is not None:
        raise stopped
    return report


def _error_of_lease(catalog: Catalog, lease: RunLease, error: Exception) -> Exception:
    """Return a RetryableError if another try, which deleted files, took the lease over; else the error."""
    if isinstance(error, RetryableError | CommitStateUnknownError):
        return error
    try:
        taken_over = catalog.leases.is_taken_over(lease)
    except RetryableError:
        return error
    if not taken_over:
        return error
    return RetryableError(
        f"{lease.key}: another try took the expired lease over and did the work; this one failed with "
        f"{type(error).__name__}: {error}"
    )


def _with_requests(command: ServiceCommand, requests: Sequence[dict[str, Any]]) -> ServiceCommand:
    """Return the command extended by requests of users: forced, and limited to the partitions of all requests.

    A request without partitions is for the whole table.
    """
    if not requests:
        return command
    if not all(request.get("partitions") for request in requests):
        return replace(command, force=True, partitions=())
    requested = {str(partition) for request in requests for partition in request["partitions"]}
    return replace(command, force=True, partitions=tuple(sorted({*command.partitions, *requested})))


def _failed(table: str, error: Exception) -> ServiceReport:
    if not isinstance(error, LakehouseError):
        logger.exception("%s failed", table)
    return ServiceReport(status=JobStatus.FAILED, table=table, error=JobError.of(error))
