"""Batches with a skew, with and without spreading: hot record keys in an upsert, and hot partitions in an insert.

Keys and partitions have Zipf's distribution with the exponent 1.1. The benchmark prints the largest of 16 tasks as a
multiple of the mean. The throughput is the rows per second of the slowest tasks, for which a cluster with a core for
every task waits. Without Spark the tasks run one by one, and their CPU time counts. On Spark the time of the slowest
task of each stage counts, with the shuffle; two tasks run at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.engine import adapters
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import R, T, TaskFunction
from lakehouse.core.files.stage import staged_parts
from lakehouse.core.files.stage.staging import stage_shard
from lakehouse.core.index.hash.bucket import bucket_ids
from lakehouse.core.index.write_tasks import StagedRun
from lakehouse.core.operations.placement.protocol import PreparedWrite
from lakehouse.core.operations.write import staged
from lakehouse.core.table.table import Table
from lakehouse.model.attempt import Attempt
from lakehouse.spark.engine import SparkEngine
from tests.bench.data import orders
from tests.bench.measure import Comparison, Sample, compare, show_lines
from tests.bench.setting import Setting, spark

EXPONENT, TASKS, KEYS = 1.1, 16, 100_000
#: The largest task as a multiple of the mean, and the time with spreading as a share of the time without.
MOST_SKEW, TARGET = 2.0, 1 / 1.5


def run(setting: Setting) -> list[Comparison]:
    """Compare writes with and without spreading."""
    return [_hot_keys(setting), _hot_keys_on_spark(setting), _hot_partitions(setting)]


def zipf(count: int, values: int) -> np.ndarray:
    """Return random numbers from 0 to `values - 1` by Zipf's distribution."""
    share = 1 / np.arange(1, values + 1) ** EXPONENT
    return np.random.default_rng(7).choice(values, count, p=share / share.sum())


def skew_of(weights: Sequence[float], tasks: int = TASKS) -> float:
    """Return the largest weight as a multiple of the mean weight of all tasks."""
    return max(weights) * tasks / sum(weights)


def _hot_keys(setting: Setting) -> Comparison:
    """Upsert rows with hot keys: shuffled by key, or combined in each task before they are exchanged.

    Spark's shuffle and conversion are not measured, so there is no target for the times; `_hot_keys_on_spark` has them.
    """
    count = setting.rows
    number, note = np.arange(count), pa.array([f"note-{position:04d}-" + "x" * 40 for position in range(1_000)])
    keys = pa.array(zipf(count, KEYS))
    rows = pa.table({"key": keys, "ts": number, "fare": number / 7, "note": note.take(pa.array(number % 1_000))})
    samples: dict[str, list[Sample]] = {"spread": [], "by key": []}
    counts: dict[str, list[int]] = {}

    def by_key(write: PreparedWrite) -> list[StagedRun]:
        texts = keys.cast(pa.string())
        home = bucket_ids(texts, key_fields=("key",), hash_fields=(), buckets=TASKS)
        shards = [rows.filter(pa.array(home == task)) for task in range(TASKS)]
        counts["by key"] = [shard.num_rows for shard in shards]
        found, seconds = _timed(lambda task: list(stage_shard(write.context, _attempt(task), _batches(shards[task]))))
        samples["by key"].append(Sample(wall_s=max(seconds), cpu_s=sum(seconds)))
        return [run for runs in found for run in runs]

    def spread(write: PreparedWrite) -> list[StagedRun]:
        size, ways = -(-count // TASKS), staged_parts.ways_for(TASKS)
        found, first = _timed(
            lambda task: list(
                staged_parts.write_parts(write.context, ways, _attempt(task), _batches(rows.slice(task * size, size)))
            )
        )
        with patch.object(staged_parts, "_LEAST_BYTES", 1):
            merges = staged_parts.plan_merges([part for parts in found for part in parts], TASKS)
        merged, second = _timed(
            lambda task: staged_parts.merge_parts(write.context, _attempt(TASKS + task), merges[task])
        )
        counts["spread"] = [sum(run.rows for run in runs) for runs in merged]
        samples["spread"].append(Sample(wall_s=max(first) + max(second), cpu_s=sum(first) + sum(second)))
        return [run for runs in merged for run in runs]

    for _ in range(setting.rounds + 1):
        for stage in (spread, by_key):
            table = Table.create(setting.fresh("zipf-keys"), name="events", record_key="key", ordering="ts")
            with patch.object(staged, "_staged", stage):
                table.upsert(rows)
            assert table.scan().count() == len(keys.unique())
    _show_skew("hot keys: rows of a task after the exchange", counts["by key"], counts["spread"])
    assert len(counts["spread"]) == TASKS and skew_of(counts["spread"]) <= MOST_SKEW, counts["spread"]
    what = f"slowest tasks that stage {count:,} rows of {KEYS:,} keys, Zipf {EXPONENT}"
    return compare(what, {name: found[1:] for name, found in samples.items()}, "spread", "by key")


def _hot_keys_on_spark(setting: Setting) -> Comparison:
    """Stage rows with hot keys on Spark: shuffled by key, or combined in each task before they are exchanged."""
    session, count = spark(), setting.rows
    folder = setting.fresh("zipf-input")
    keys = zipf(count, KEYS)
    for task, chosen in enumerate(np.array_split(np.arange(count), TASKS)):
        rows = orders(chosen).set_column(0, "order_id", pa.array(keys[chosen]))
        Path(folder).mkdir(exist_ok=True)
        pq.write_table(rows, f"{folder}/{task}.parquet")
    options = {
        # One task reads one file.
        "spark.sql.files.maxPartitionBytes": str(1 << 30),
        "spark.sql.files.openCostInBytes": str(1 << 30),
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    before = {name: session.conf.get(name, None) for name in options}
    seconds: dict[str, list[float]] = {"spread": [], "by key": []}

    def by_key(write: PreparedWrite) -> list[StagedRun]:
        stage = partial(stage_shard, write.context)
        runs: list[StagedRun] = write.engine.exchange(write.request.frame, stage, by=write.shard_by, hint="exact")
        return runs

    spread = staged._staged
    try:
        for name, value in options.items():
            session.conf.set(name, value)
        for number in range(setting.rounds + 1):
            for side, stage in (("spread", spread), ("by key", by_key)):
                table = Table.create(
                    setting.fresh("zipf-spark"), name="orders", record_key="order_id", ordering="updated_at"
                )
                frame = session.read.parquet(folder)
                group = f"zipf-{side}-{number}"

                def staged_in_group(
                    write: PreparedWrite, stage: Callable[[PreparedWrite], list[StagedRun]] = stage, group: str = group
                ) -> list[StagedRun]:
                    session.sparkContext.setJobGroup(group, group)
                    runs = stage(write)
                    session.sparkContext.setJobGroup("other", "other")
                    return runs

                parallelism = property(lambda self: TASKS)
                with (
                    patch.object(staged, "_staged", staged_in_group),
                    patch.object(SparkEngine, "parallelism", parallelism),
                ):
                    table.upsert(frame)
                seconds[side].append(_slowest_tasks(group))
    finally:
        for name, known in before.items():
            session.conf.unset(name) if known is None else session.conf.set(name, known)
    samples = {side: [Sample(wall_s=took, cpu_s=took) for took in found[1:]] for side, found in seconds.items()}
    what = f"slowest tasks on Spark that stage {count:,} rows of {KEYS:,} keys, Zipf {EXPONENT}"
    return compare(what, samples, "spread", "by key", TARGET)


def _slowest_tasks(group: str) -> float:
    """Return the sum over the stages of a job group of the time of the slowest task, in seconds."""
    context = spark().sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()  # type: ignore[attr-defined]
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    total = 0.0
    for stage in sorted({stage for job in jobs if job is not None for stage in job.stageIds}):
        tasks = store.taskList(stage, 0, 10_000)
        times = [tasks.apply(at).taskMetrics().get().executorRunTime() for at in range(tasks.size())]
        total += max(times, default=0) / 1000
    return total


def _timed(task: Callable[[int], T]) -> tuple[list[T], list[float]]:
    """Run 16 tasks one by one, and return their results and CPU times."""
    results, seconds = list[T](), list[float]()
    for number in range(TASKS):
        began = time.process_time()
        results.append(task(number))
        seconds.append(time.process_time() - began)
    return results, seconds


def _attempt(task: int) -> Attempt:
    return Attempt(partition=task, stage=0, number=task)


def _batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(rows.to_batches(max_chunksize=4_096))


class OneByOne(LocalEngine):
    """Plans for 16 tasks at the same time, runs them one by one, and keeps the CPU time of the last ones."""

    seconds: Sequence[float] = ()

    def __init__(self) -> None:
        super().__init__(1)

    @property
    def parallelism(self) -> int:
        """Number of tasks to plan for."""
        return TASKS

    def run(self, function: TaskFunction[T, R], tasks: Sequence[T], *, light: bool = False) -> list[R]:
        """Run the tasks and measure each."""
        seconds = list[float]()

        def timed(attempt: Any, task: T) -> R:
            began = time.process_time()
            result = function(attempt, task)
            seconds.append(time.process_time() - began)
            return result

        results = super().run(timed, tasks, light=light)
        OneByOne.seconds = seconds
        return results


def _hot_partitions(setting: Setting) -> Comparison:
    """Insert rows into partitions of which some are hot: one task for each full file, or spread over 16 tasks."""
    count = min(setting.rows, 1_000_000)
    partitions = pa.array([f"tenant-{number:02d}" for number in range(TASKS)])
    rows = orders(np.arange(count)).append_column("tenant", partitions.take(pa.array(zipf(count, TASKS))))
    samples: dict[str, list[Sample]] = {"spread": [], "by partition": []}
    found: dict[str, list[int]] = {}
    for number in range(setting.rounds + 1):
        for name, least in (("spread", "1"), ("by partition", "0")):
            table = Table.create(
                setting.fresh(f"zipf-insert-{name}"),
                name="orders",
                record_key="order_id",
                partition_by="tenant",
                options={"lakehouse.write.spread.min.bytes": least},
            )
            with patch.object(adapters, "LocalEngine", OneByOne):
                table.insert(rows)
            found[name] = [stat.num_writes for stat in table.commits()[-1][1].stats]
            if number:
                samples[name].append(Sample(wall_s=max(OneByOne.seconds), cpu_s=sum(OneByOne.seconds)))
    _show_skew("hot partitions: rows of a file group", found["by partition"], found["spread"])
    assert skew_of(found["spread"]) <= MOST_SKEW, found["spread"]
    what = f"slowest task of an insert of {count:,} rows into {TASKS} partitions, Zipf {EXPONENT}"
    return compare(what, samples, "spread", "by partition", TARGET)


def _show_skew(what: str, before: Sequence[int], after: Sequence[int]) -> None:
    """Print the rows of the tasks before and after spreading."""
    lines = [(what, "tasks", "all rows", "largest", f"largest / mean of {TASKS}")]
    for name, rows in (("without", before), ("with spreading", after)):
        lines.append((name, str(len(rows)), f"{sum(rows):,}", f"{max(rows):,}", f"{skew_of(rows):.2f}"))
    show_lines(lines)
