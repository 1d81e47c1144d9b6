"""Jobs of chosen runs: batches, their order and number, and resources within the bounds of a policy."""

from __future__ import annotations

from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.platform.services.assess import Assessment
from lakehouse.platform.services.choose import AssessedService
from lakehouse.platform.services.job_batches import BatchSize, ChosenRun, job_batches, resources_of
from lakehouse.spec.contracts.fleet import RunBounds

GIB = 1 << 30


def run(table: str, service: str = "clean", *, size: int = 1, seconds: float = 10.0, **more: object) -> ChosenRun:
    assessment = Assessment(due=True, reason="due", cost=ServiceCost(files=1, bytes=size, benefit=1))
    requested, bounds = bool(more.get("requested", False)), more.get("bounds", RunBounds())
    assert isinstance(bounds, RunBounds)
    assessed = AssessedService(
        table=table, service=service, assessment=assessment, seconds=seconds, requested=requested
    )
    return ChosenRun(assessed=assessed, bounds=bounds)


def tables(*runs: ChosenRun, size: BatchSize | None = None) -> list[tuple[str, ...]]:
    return [job.tables for job in job_batches(runs, size or BatchSize())]


def test_small_tables_of_a_service_share_a_job_and_requested_or_long_ones_do_not() -> None:
    runs = run("a.x"), run("a.y", "ttl"), run("a.asked", requested=True), run("a.long", seconds=400.0), run("a.z")
    assert tables(*runs) == [("a.x",), ("a.y",), ("a.asked",), ("a.long",), ("a.z",)]
    assert tables(run("a.x"), run("a.y", "ttl"), run("a.z")) == [("a.x", "a.z"), ("a.y",)]
    assert tables(run("a.x"), run("a.y"), run("a.z"), size=BatchSize(tables=2)) == [("a.x", "a.y"), ("a.z",)]


def test_most_jobs_leave_out_the_runs_of_the_last_jobs_only() -> None:
    runs = run("a.x"), run("a.y", "ttl"), run("a.v", "archive"), run("a.z")
    assert tables(*runs, size=BatchSize(jobs=2)) == [("a.x", "a.z"), ("a.y",)]


def test_tables_with_different_bounds_do_not_share_a_job() -> None:
    assert tables(run("a.x"), run("a.y", bounds=RunBounds(max_executors=1))) == [("a.x",), ("a.y",)]


def test_resources_follow_the_bytes_of_the_largest_table_within_the_defaults() -> None:
    (job,) = job_batches([run("a.x", "compaction", size=GIB), run("a.y", "compaction", size=20 * GIB)], BatchSize())
    assert (job.bytes, job.resources) == (21 * GIB, resources_of("compaction", 20 * GIB, RunBounds()))
    small, large = resources_of("compaction", 0, RunBounds()), resources_of("compaction", 1000 * GIB, RunBounds())
    assert (small.num_executors, small.executor_cores, small.executor_memory) == (1, 1, "1024m")
    assert (job.resources.num_executors, job.resources.executor_cores) == (3, 4)
    assert (large.num_executors, large.executor_cores, large.executor_memory) == (8, 4, "4096m")


def test_bounds_of_a_policy_limit_executors_and_memory_and_may_exceed_the_defaults() -> None:
    bounded = resources_of("compaction", 1000 * GIB, RunBounds(max_executors=2, max_memory=2 * GIB))
    assert (bounded.num_executors, bounded.executor_memory, bounded.driver_memory) == (2, "2048m", "2048m")
    raised = resources_of("compaction", 1000 * GIB, RunBounds(max_executors=50, max_memory=16 * GIB))
    assert (raised.num_executors, raised.executor_memory) == (50, "16384m")
    # Cores follow from the bytes, and no policy raises them.
    assert bounded.executor_cores == raised.executor_cores == 4
    # A job without Spark has no executors to size, but its process has a bound.
    plain = resources_of("archive", 1000 * GIB, RunBounds(max_memory=2 * GIB))
    assert (plain.num_executors, plain.executor_cores, plain.driver_memory) == (1, 1, "2048m")
