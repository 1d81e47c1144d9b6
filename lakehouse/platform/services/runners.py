"""Each service as a job: an open table, a command, and the report of what was done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.table.table import Table
from lakehouse.platform.services.partition_selection import narrowing
from lakehouse.platform.services.run import Runner
from lakehouse.spec.contracts.job import JobCommand, JobReason, JobReport, JobStatus


def run_service(service: str, table: Table, command: JobCommand, spark: Any = None) -> JobReport:
    """Run one service of one table and report; raise what it raises."""
    started = time.perf_counter()
    narrow = narrowing(service, table, command)
    outcome = (
        NothingToDo(reason=narrow)
        if isinstance(narrow, str)
        else _RUNNERS[service](table.with_options(narrow), command, spark)
    )
    report = _report(table.name, outcome, time.perf_counter() - started)
    return replace(report, code=JobReason.NO_MATCHING_PARTITION) if isinstance(narrow, str) else report


def runner(service: str) -> Runner:
    """Return `run_service` of one service."""
    return lambda table, command, spark: run_service(service, table, command, spark)


def _compaction(table: Table, command: JobCommand, spark: Any) -> object:
    return table.services.compaction(instant=command.instant, force=command.force, spark=spark)


def _log_compaction(table: Table, command: JobCommand, spark: Any) -> object:
    return table.services.log_compaction(instant=command.instant, force=command.force, spark=spark)


def _clean(table: Table, command: JobCommand, spark: Any) -> object:
    return table.services.clean(instant=command.instant, force=command.force, spark=spark)


def _clustering(table: Table, command: JobCommand, spark: Any) -> object:
    return table.services.clustering(instant=command.instant, force=command.force, spark=spark)


def _archive(table: Table, command: JobCommand, spark: Any) -> object:
    del spark  # a few small files: executors would only be waited for
    return table.services.archive(force=command.force)


def _ttl(table: Table, command: JobCommand, spark: Any) -> object:
    del spark  # a commit without data
    return table.services.ttl(force=command.force)


_RUNNERS: dict[str, Callable[[Table, JobCommand, Any], object]] = {
    "compaction": _compaction,
    "logcompaction": _log_compaction,
    "clustering": _clustering,
    "ttl": _ttl,
    "clean": _clean,
    "archive": _archive,
}


def _report(table: str, outcome: object, seconds: float) -> JobReport:
    if isinstance(outcome, NothingToDo):
        return JobReport(
            status=JobStatus.NOTHING_TO_DO,
            table=table,
            reason=outcome.reason,
            code=JobReason.NOT_DUE,
            seconds=seconds,
        )
    if isinstance(outcome, Cleaned):
        return JobReport(
            status=JobStatus.COMMITTED,
            table=table,
            instant=outcome.instant.requested,
            files=outcome.files,
            seconds=seconds,
        )
    if isinstance(outcome, Archived):
        newest = outcome.instants[-1].requested
        return JobReport(
            status=JobStatus.COMMITTED, table=table, instant=newest, files=len(outcome.instants), seconds=seconds
        )
    assert isinstance(outcome, Committed), "only dry runs answer with plans"
    stats = outcome.metadata.stats
    return JobReport(
        status=JobStatus.COMMITTED,
        table=table,
        instant=outcome.instant.requested,
        rows=sum(stat.num_writes for stat in stats),
        inserts=sum(stat.num_inserts for stat in stats),
        updates=sum(stat.num_updates for stat in stats),
        deletes=sum(stat.num_deletes for stat in stats),
        files=len(stats),
        bytes=sum(stat.size_bytes for stat in stats),
        seconds=seconds,
    )
