"""A model of a day of service runs on many tables: the pool of jobs, and two ways to decide.

    each DAG for itself     a DAG per service: its decision looks at all tables, waits for a slot of the jobs, and the
                            next one waits until all jobs of the DAG have ended
    one fleet scheduler     a pass every five minutes with slots of its own; the code of the product chooses and batches

Jobs start in the order of their submission when a slot of the pool is free. Times are seconds of the day.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.platform.services.assess import Assessment
from lakehouse.platform.services.budgets import Slots
from lakehouse.platform.services.choose import AssessedService, Rules, RunningService, choose_runs
from lakehouse.platform.services.job_batches import BatchSize, ChosenRun, job_batches
from lakehouse.spec.contracts.fleet import RunBounds
from lakehouse.spec.table.services import service_spec

DAY_S = 86_400
#: Start of a Spark job, and time of a look at one table by one of eight readers.
START_S, LOOK_S = 10.0, 0.05
PASS_S = 300
#: Minutes between two decisions of a DAG of one service, and share of the runs of a day.
INTERVAL_MIN: Mapping[str, int] = {"compaction": 15, "clean": 60, "archive": 60, "clustering": 1440}
SHARES: Mapping[str, float] = {"compaction": 0.5, "clean": 0.3, "archive": 0.17, "clustering": 0.03}
_IMPORTANT, _USUAL = 100.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A service that becomes due on a table at a time, and the work of its run in seconds."""

    at: float
    table: str
    service: str
    work_s: float
    priority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """The time from when a need is due to the start of its job."""

    need: Need
    seconds: float


def needs_of_a_day(runs: int, tables: int, seed: int = 7) -> list[Need]:
    """Return the needs of a day in order of time; one table in twenty is important, a clustering takes long."""
    draw = random.Random(seed)
    services, weights = list(SHARES), list(SHARES.values())
    found = []
    for _ in range(runs):
        number, service = draw.randrange(tables), draw.choices(services, weights)[0]
        long = service == "clustering"
        work = draw.uniform(300, 1500) if long else min(draw.expovariate(1 / 4), 60)
        priority = _IMPORTANT if number % 20 == 0 else _USUAL
        found.append(
            Need(at=draw.uniform(0, DAY_S), table=f"n.t{number}", service=service, work_s=work, priority=priority)
        )
    return sorted(found, key=lambda need: need.at)


class Pool:
    """Slots that take jobs in the order of their submission."""

    def __init__(self, slots: int) -> None:
        self._free = [0.0] * slots

    def start(self, submitted: float, seconds: float) -> float:
        """Run a job, and return the time at which it starts."""
        begin = max(submitted, self._free[0])
        heapq.heapreplace(self._free, begin + seconds)
        return begin


def each_dag_for_itself(needs: Sequence[Need], slots: int, tables: int) -> list[Delay]:
    """Return the delays if a DAG per service decides in the pool of the jobs."""
    pool, delays = Pool(slots), list[Delay]()
    waiting: dict[str, list[Need]] = {service: [] for service in SHARES}
    for need in needs:
        waiting[need.service].append(need)
    order = itertools.count()
    events: list[tuple[float, int, str]] = [(0.0, next(order), service) for service in SHARES]
    heapq.heapify(events)
    while events:
        submitted, _, service = heapq.heappop(events)
        decided = pool.start(submitted, LOOK_S * tables / 8) + LOOK_S * tables / 8
        due = [need for need in waiting[service] if need.at <= decided]
        waiting[service] = waiting[service][len(due) :]
        ended = decided
        for job in _packed(due):
            seconds = START_S + sum(need.work_s for need in job)
            begin = pool.start(decided, seconds)
            ended = max(ended, begin + seconds)
            delays += [Delay(need=need, seconds=begin - need.at) for need in job]
        interval = INTERVAL_MIN[service] * 60
        if waiting[service] or submitted < DAY_S:
            heapq.heappush(events, (max(submitted + interval, ended), next(order), service))
    return delays


def one_fleet_scheduler(needs: Sequence[Need], slots: int) -> list[Delay]:
    """Return the delays if a pass every five minutes decides with the code of the product."""
    pool, delays, arriving = Pool(slots), list[Delay](), iter(needs)
    due: dict[tuple[str, str], list[Need]] = {}
    running: list[tuple[float, str, str, float]] = []
    following = next(arriving, None)
    for now in itertools.count(PASS_S, PASS_S):
        while following is not None and following.at <= now:
            due.setdefault((following.table, following.service), []).append(following)
            following = next(arriving, None)
        running = [run for run in running if run[0] > now]
        if following is None and not due:
            return delays
        for job in _chosen(due, running, slots, now):
            needs_of_job = [due.pop((table, job[0])) for table in job[1]]
            seconds = START_S + sum(need.work_s for group in needs_of_job for need in group[:1])
            begin = pool.start(now, seconds)
            running += [(begin + seconds, table, job[0], seconds / len(job[1])) for table in job[1]]
            delays += [Delay(need=need, seconds=begin - need.at) for group in needs_of_job for need in group]
    raise AssertionError("the needs are finite")


def _chosen(
    due: Mapping[tuple[str, str], Sequence[Need]],
    running: Sequence[tuple[float, str, str, float]],
    slots: int,
    now: float,
) -> Iterator[tuple[str, tuple[str, ...]]]:
    now_ms = round(now * 1000)
    candidates = [_assessed(group[0]) for group in due.values()]
    ends = {end for end, *_ in running}
    active = [RunningService(table=table, service=service) for _, table, service, _ in running]
    rules = Rules(running=active, slots=Slots(slots, [end - now for end in ends], PASS_S))
    choices = choose_runs(candidates, rules, now_ms=now_ms)
    runs = [ChosenRun(assessed=choice.assessed, bounds=RunBounds()) for choice in choices if choice.chosen]
    for batch in job_batches(runs, BatchSize()):
        yield batch.service, batch.tables


def _assessed(need: Need) -> AssessedService:
    return AssessedService(
        table=need.table,
        service=need.service,
        assessment=Assessment(due=True, reason="due", cost=ServiceCost(files=10, bytes=1, benefit=10)),
        seconds=need.work_s,
        priority=need.priority,
        deadline_ms=round((need.at + service_spec(need.service).deadline_s) * 1000),
    )


def _packed(due: Sequence[Need]) -> Iterator[list[Need]]:
    job: list[Need] = []
    for need in due:
        if job and (len(job) == 20 or sum(one.work_s for one in job) + need.work_s > 300):
            yield job
            job = []
        job.append(need)
    if job:
        yield job


def table_of_delays(delays: Mapping[str, Sequence[Delay]]) -> list[tuple[str, ...]]:
    """Return rows with the median, the 95th percentile and the largest delay in minutes by service and priority."""
    lines = [("service", "priority", "scheduler", "runs", "median min", "p95 min", "largest min")]
    for service in SHARES:
        for priority in (_IMPORTANT, _USUAL):
            for name, found in delays.items():
                mine = [d.seconds / 60 for d in found if (d.need.service, d.need.priority) == (service, priority)]
                cuts = statistics.quantiles(mine, n=20) if len(mine) > 1 else mine * 19
                numbers = (statistics.median(mine), cuts[-1], max(mine)) if mine else (0.0, 0.0, 0.0)
                lines.append((service, f"{priority:g}", name, str(len(mine)), *(f"{n:.1f}" for n in numbers)))
    return lines
