"""Runs of services: some tables in one process, each under its lease, each failure its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lakehouse.core.table.table import Table
from lakehouse.errors import (
    CommitStateUnknownError,
    JobStoppedError,
    LakehouseError,
    RetryableError,
    TableBusyError,
)
from lakehouse.platform.catalog.catalog import Catalog, TableEntry
from lakehouse.platform.catalog.connect import is_outage
from lakehouse.platform.catalog.run_history import LEASE_EXPIRED, Run, RunOutcome, RunState
from lakehouse.platform.catalog.run_leases import RunLease
from lakehouse.platform.services.metrics import Metrics
from lakehouse.platform.services.retry_recovery import newest_completion, with_earlier
from lakehouse.spec.contracts.job import JobCommand, JobError, JobReason, JobReport, JobStatus

logger = logging.getLogger(__name__)

LEASE_MS = 60_000
#: How long the end of a run waits for a catalog that is down: a restart of its server.
_PATIENCE_MS = 30_000
_PAUSE_S = 0.5
_STATES = {
    JobStatus.COMMITTED: RunState.COMMITTED,
    JobStatus.NOTHING_TO_DO: RunState.NOTHING_TO_DO,
    JobStatus.FAILED: RunState.FAILED,
}
#: Runs one service of an open table, as a command says, on a Spark session or without one.
Runner = Callable[[Table, JobCommand, Any], JobReport]


def lease_key(identifier: str, service: str) -> str:
    """Return the name of the lease under which a service runs on a table."""
    return f"{identifier}/{service}"


def run_tables(
    catalog: Catalog,
    service: str,
    tables: Sequence[str],
    command: JobCommand,
    runner: Runner,
    spark: Any = None,
    measures: Metrics | None = None,
) -> tuple[JobReport, ...]:
    """Run a service on tables of a catalog, one after the other; what fails on one does not keep the others waiting.

    A table that another run is at is left to it; what was asked for is to be tried again then. A retry has the `run_id`
    of the try before and takes over its lease at once; of the two, only one can commit (the claim on the timeline
    decides). Raises JobStoppedError when told to stop.
    """
    reports = []
    for name in tables:
        reports.append(_run_one(catalog, service, name, command, runner, spark))
        if measures is not None:
            measures.run(service, replace(reports[-1], table=name), predicted_s=_predicted(catalog, name, service))
    return tuple(reports)


def state_of(run: Run, holder: RunLease | None) -> Run:
    """Return a run as it is: one that is written down as running, but does not hold the lease, has died."""
    if run.state is not RunState.RUNNING or (holder is not None and holder.owner == run.run_id):
        return run
    return replace(run, state=RunState.DIED, error=LEASE_EXPIRED)


def _predicted(catalog: Catalog, name: str, service: str) -> float | None:
    try:
        runs = catalog.history.runs(catalog.entry(name).id, service, limit=1) if catalog.table_exists(name) else ()
    except RetryableError as error:
        # What was done is done, whether it can be measured or not.
        logger.warning("%s: what was predicted is not known: %s", name, error)
        return None
    found = runs[0].predicted.get("seconds") if runs else None
    return None if found is None else float(found)


def _run_one(catalog: Catalog, service: str, name: str, command: JobCommand, runner: Runner, spark: Any) -> JobReport:
    try:
        entry = catalog.entry(name)
        owner = command.run_id or f"manual-{catalog.clock.now_ms()}"
        with catalog.leases.held(lease_key(entry.identifier, service), owner, LEASE_MS) as lease:
            if lease is None:
                holder = catalog.leases.holder(lease_key(entry.identifier, service))
                reason = f"run {holder.owner} is at it" if holder is not None else "another run was at it"
                if command.force or command.partitions or command.interval is not None:
                    # The other run does not do what was asked of this one, such as another day of a backfill.
                    raise TableBusyError(f"{entry.identifier}: {reason}; what was asked for is to be tried again")
                return JobReport(
                    status=JobStatus.NOTHING_TO_DO,
                    table=entry.identifier,
                    reason=reason,
                    code=JobReason.OTHER_RUN_ACTIVE,
                )
            return _recorded(catalog, service, entry, lease, command, runner, spark)
    except JobStoppedError:
        # The other tables are not for this process any more.
        raise
    except Exception as error:
        return _failed(name, error)


def _recorded(
    catalog: Catalog, service: str, entry: TableEntry, lease: RunLease, command: JobCommand, runner: Runner, spark: Any
) -> JobReport:
    history, owner = catalog.history, lease.owner
    # The lease is ours, so whoever else is written down as running has died, and what was asked of it is open again.
    history.end_expired_runs(entry.id, service, active_run=owner, before_ms=catalog.clock.now_ms())
    before = history.run(owner, entry.id, service)
    decisions = history.decisions(entry.id, service)
    number = history.start(owner, entry.id, service, decisions[0].predicted if decisions else {})
    wishes = history.taken_requests(owner, entry.id, service)
    stopped = None
    try:
        table = catalog.load_table(entry.identifier, options=command.options)
        after = before.after if before is not None and before.after is not None else newest_completion(table)
        history.began_after(owner, entry.id, service, after)
        report = runner(table, _as_asked(command, [dict(wish.parameters) for wish in wishes]), spark)
        if before is not None:
            others = {run.instant for run in history.runs(entry.id, service, limit=50) if run.run_id != owner}
            report = with_earlier(report, table, service, before, after, others)
    except JobStoppedError as error:
        stopped, report = error, _failed(entry.identifier, error)
    except Exception as error:
        report = _failed(entry.identifier, _as_overtaken(catalog, lease, error))
    record_end(catalog, owner, entry.id, service, report, tries=number)
    if stopped is not None:
        raise stopped
    return report


def record_end(
    catalog: Catalog, run_id: str, table_id: int, service: str, report: JobReport, *, tries: int | None = None
) -> None:
    """Record how a run ended, as its report says; wait for a catalog that is down for a moment.

    Raises RetryableError if it stays down; the retry finds what was done.
    """
    message = None if report.error is None else f"{report.error.kind}: {report.error.message}"
    state, actual = _STATES[report.status], None
    if report.status is JobStatus.NOTHING_TO_DO and report.instant is not None:
        # An earlier try of this very run committed.
        state = RunState.COMMITTED
    else:
        actual = {"files": report.files, "bytes": report.bytes, "seconds": round(report.seconds, 1)}
    outcome = RunOutcome(state=state, instant=report.instant, actual=actual, error=message)
    until = catalog.clock.now_ms() + _PATIENCE_MS
    while True:
        try:
            return catalog.history.end(run_id, table_id, service, outcome, try_number=tries)
        except RetryableError as error:
            if not is_outage(error) or catalog.clock.now_ms() >= until:
                raise
            logger.warning("the catalog is not there to record how %s ended; trying again: %s", run_id, error)
            catalog.clock.sleep(_PAUSE_S)


def _as_overtaken(catalog: Catalog, lease: RunLease, error: Exception) -> Exception:
    """Return the error of a run; of one that was taken for dead, and whose files are gone, that it was overtaken."""
    if isinstance(error, RetryableError | CommitStateUnknownError):
        return error
    try:
        overtaken = catalog.leases.is_taken_over(lease)
    except RetryableError:
        return error
    if not overtaken:
        return error
    told = f"{type(error).__name__}: {error}"
    return RetryableError(f"{lease.key}: another try took this one for dead and did its work; it met {told}")


def _as_asked(command: JobCommand, wishes: Sequence[dict[str, Any]]) -> JobCommand:
    """Return the command with what people asked for: who asks for a service wants it run, due or not.

    One wish for the whole table is for all partitions.
    """
    if not wishes:
        return command
    narrow = all(wish.get("partitions") for wish in wishes)
    asked = [str(partition) for wish in wishes for partition in wish["partitions"]] if narrow else ()
    return replace(command, force=True, partitions=tuple(sorted({*command.partitions, *asked})) if narrow else ())


def _failed(table: str, error: Exception) -> JobReport:
    if not isinstance(error, LakehouseError):
        logger.exception("%s failed", table)
    return JobReport(status=JobStatus.FAILED, table=table, error=JobError.of(error))
