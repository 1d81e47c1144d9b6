"""Group chosen runs into jobs, and derive the resources of each job from its predicted bytes; pure.

Small tables share a job, because a start of Spark takes longer than their work. A job runs its tables one after the
other, so its memory depends on the biggest table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.platform.services.choose import AssessedService
from lakehouse.spec.contracts.fleet import JobResources, RunBounds, ServiceBatch
from lakehouse.spec.table.services import service_spec

_MIB, _GIB = 1 << 20, 1 << 30
#: Bytes of a run for which one executor is enough, and bytes per core.
_EXECUTOR_BYTES, _CORE_BYTES = 8 * _GIB, 2 * _GIB
_MOST_CORES, _MOST_EXECUTORS = 4, 8
_LEAST_MEMORY, _MOST_MEMORY = _GIB, 4 * _GIB
#: Memory is a share of the bytes per run, within the bounds.
_MEMORY_SHARE = 4
#: Airflow maps a task over 1,024 values at most.
MOST_BATCHES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """Size of the jobs in a pass.

    Attributes:
        tables: Maximum number of tables per job.
        seconds: Maximum predicted duration of a job with several tables.
        jobs: Maximum number of jobs.
    """

    tables: int = 20
    seconds: float = 300.0
    jobs: int = MOST_BATCHES


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRun:
    """A chosen service of a table, and the bounds of its policy."""

    assessed: AssessedService
    bounds: RunBounds


def job_batches(chosen: Sequence[ChosenRun], size: BatchSize) -> tuple[ServiceBatch, ...]:
    """Return the jobs for chosen runs, in the order of their first runs; runs beyond the maximum number are left out.

    A requested run gets a separate job, so that it does not wait for others.
    """
    jobs: list[list[ChosenRun]] = []
    open_jobs: dict[tuple[str, RunBounds], list[ChosenRun]] = {}
    for run in chosen:
        key = run.assessed.service, run.bounds
        job = open_jobs.get(key)
        seconds = run.assessed.seconds + sum(other.assessed.seconds for other in job or ())
        fits = job is not None and len(job) < size.tables and seconds <= size.seconds
        if job is not None and fits and not run.assessed.requested:
            job.append(run)
            continue
        jobs.append([run])
        if not run.assessed.requested:
            open_jobs[key] = jobs[-1]
    return tuple(_batch(job) for job in jobs[: size.jobs])


def resources_of(service: str, run_bytes: int, bounds: RunBounds) -> JobResources:
    """Return the resources of a job from the bytes of its biggest run, within the bounds of the policy."""
    most = max(bounds.max_memory or _MOST_MEMORY, _LEAST_MEMORY)
    memory = _memory(min(max(run_bytes // _MEMORY_SHARE, _LEAST_MEMORY), most))
    if not service_spec(service).needs_spark:
        return JobResources(
            driver_memory=memory, executor_memory=_memory(_LEAST_MEMORY), num_executors=1, executor_cores=1
        )
    executors = math.ceil(run_bytes / _EXECUTOR_BYTES)
    cores = math.ceil(run_bytes / _CORE_BYTES)
    return JobResources(
        driver_memory=memory,
        executor_memory=memory,
        num_executors=min(max(executors, 1), bounds.max_executors or _MOST_EXECUTORS),
        executor_cores=min(max(cores, 1), _MOST_CORES),
    )


def _batch(job: Sequence[ChosenRun]) -> ServiceBatch:
    service = job[0].assessed.service
    sizes = [run.assessed.assessment.cost.bytes for run in job]
    return ServiceBatch(
        service=service,
        tables=tuple(run.assessed.table for run in job),
        seconds=round(sum(run.assessed.seconds for run in job), 1),
        bytes=sum(sizes),
        resources=resources_of(service, max(sizes), job[0].bounds),
    )


def _memory(size: int) -> str:
    """Return a size in Spark notation, in whole MiB."""
    return f"{size // _MIB}m"
