"""Run a service on an open table as a job, and return its report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.service import ServiceOutcome
from lakehouse.core.table.table import Table
from lakehouse.platform.jobs.lineage import service_lineage, with_lineage
from lakehouse.platform.services.partition_filter import NoPartition, selected_partitions
from lakehouse.platform.services.registry import table_service
from lakehouse.platform.services.run import Runner
from lakehouse.spec.contracts.job import JobReason, JobStatus, ServiceReport
from lakehouse.spec.job_command import ServiceCommand


def run_service(service: str, table: Table, command: ServiceCommand, spark: Any = None) -> ServiceReport:
    """Run a service on a table and return its report; raises the errors of the service."""
    clock = table.clock
    started = clock.monotonic_s()
    selected = selected_partitions(service, table, command)
    if isinstance(selected, NoPartition):
        return ServiceReport(
            status=JobStatus.NOTHING_TO_DO,
            table=table.name,
            reason=selected.reason,
            code=JobReason.NO_MATCHING_PARTITION,
            seconds=clock.monotonic_s() - started,
        )
    outcome = table_service(table.services, service).run(
        instant=command.instant, force=command.force, partitions=selected, spark=spark
    )
    report = _report(table.name, outcome, clock.monotonic_s() - started)
    return with_lineage(report, lambda: service_lineage(table, table.name))


def runner(service: str, spark: Any = None) -> Runner:
    """Return `run_service` for one service, on a Spark session or on threads of this process."""
    return lambda table, command: run_service(service, table, command, spark)


def _report(table: str, outcome: ServiceOutcome | NothingToDo, seconds: float) -> ServiceReport:
    if isinstance(outcome, NothingToDo):
        return ServiceReport(
            status=JobStatus.NOTHING_TO_DO,
            table=table,
            reason=outcome.reason,
            code=JobReason(outcome.code.value),
            seconds=seconds,
            plans_dropped=len(outcome.dropped),
        )
    dropped = getattr(outcome, "dropped", ())
    return ServiceReport(
        status=JobStatus.COMMITTED,
        table=table,
        instant=None if outcome.instant is None else outcome.instant.requested,
        seconds=seconds,
        plans_dropped=len(dropped),
        tables=getattr(outcome, "tables", ()),
        warning="; ".join((*dropped, *getattr(outcome, "left_out", ()), *getattr(outcome, "warnings", ()))),
        **asdict(outcome.totals),
    )
