"""The exchange of a batch between tasks: rows of a key meet in one task, hot keys are combined before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.files.stage.staged_parts import merge_parts, plan_merges, ways_for, write_parts
from lakehouse.core.files.stage.staging import KEY, StagedReader
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import StagedRun
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.model.attempt import Attempt
from lakehouse.model.merge import PartialMode
from lakehouse.spec.options.write import WritePolicy
from lakehouse.spec.table.bucket_rules import BucketRules
from tests.unit.core.files.test_staging import SCHEMA, batches, contents, context, staged

TASKS, PARALLELISM = 8, 16


def zipf_rows(count: int, keys: int, seed: int = 1) -> list[tuple]:
    """Return rows whose keys have Zipf's distribution with the exponent 1.1."""
    share = 1 / np.arange(1, keys + 1) ** 1.1
    chosen = np.random.default_rng(seed).choice(keys, count, p=share / share.sum())
    return [(f"k{key}", "xy"[key % 2], number, number % 97 == 0) for number, key in enumerate(chosen.tolist())]


def exchanged(settings: WriteContext, rows: list[tuple]) -> list[list[StagedRun]]:
    """Exchange rows that some tasks read, and return the runs of each task that merges."""
    parts = []
    for task in range(TASKS):
        attempt = Attempt(partition=task, stage=1, number=task)
        parts += write_parts(settings, ways_for(PARALLELISM), attempt, iter(batches(rows[task::TASKS])))
    tasks = plan_merges(parts, PARALLELISM)
    return [merge_parts(settings, Attempt(partition=n, stage=2, number=n), task) for n, task in enumerate(tasks)]


def rows_of(settings: WriteContext, runs: list[StagedRun]) -> list[dict[str, Any]]:
    return [row for part in contents(settings, runs).values() for row in part]


@pytest.mark.parametrize("budget", [5_000, 1 << 30])
@pytest.mark.parametrize("buckets", [None, BucketRules(4)])
def test_exchange_gives_the_rows_of_one_shard(budget: int, buckets: BucketRules | None) -> None:
    rows = zipf_rows(3_000, 400)
    settings = context(buckets=buckets, policy=WritePolicy(memory_budget_bytes=budget))
    wanted = contents(settings, staged(settings, rows))
    settings = replace(settings, instant="20260101000000001")
    runs = [run for of_task in exchanged(settings, rows) for run in of_task]
    found = contents(settings, runs)
    by_key = {where: sorted(part, key=lambda row: row[KEY]) for where, part in found.items()}
    assert by_key == {where: sorted(part, key=lambda row: row[KEY]) for where, part in wanted.items()}


def test_versions_that_are_mixed_are_not_combined_before_they_are_together() -> None:
    rows = [("a", "x", number, None) for number in range(TASKS * 3)]
    settings = context()
    mixing = replace(settings, rule=replace(settings.rule, partial=PartialMode.IGNORE_DEFAULTS))
    for one, kept in ((settings, 1), (mixing, 3)):
        (part,) = write_parts(one, 16, Attempt(partition=0, stage=0, number=kept), iter(batches(rows[:3])))
        assert (part.incoming, part.rows) == (3, kept)


def test_hot_keys_give_no_task_more_than_twice_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.core.files.stage.staged_parts._LEAST_BYTES", 1)
    rows = zipf_rows(40_000, 5_000)
    by_hash = Counter(hash(key) % PARALLELISM for key, *_ in rows)
    assert max(by_hash.values()) > 2 * len(rows) / PARALLELISM
    settings = context()
    of_tasks = [sum(run.rows for run in runs) for runs in exchanged(settings, rows)]
    assert len(of_tasks) == PARALLELISM
    assert max(of_tasks) <= 2 * sum(of_tasks) / PARALLELISM
    assert sum(of_tasks) == len({key for key, *_ in rows})


def test_task_reads_its_rows_of_a_part_by_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.core.files.stage.staged_parts._LEAST_BYTES", 1)
    reads: list[str] = []

    class Counting(MemoryStorage):
        def get_range(self, path: str, start: int, length: int) -> bytes:
            reads.append(path)
            return super().get_range(path, start, length)

    exchanged(context(storage=Counting()), zipf_rows(8_000, 5_000))
    assert sorted(Counter(reads).values()) == [PARALLELISM] * TASKS


def test_each_key_is_in_one_run_if_rows_exceed_the_budget_of_a_task() -> None:
    settings = context(policy=WritePolicy(memory_budget_bytes=2_000))
    runs = [run for of_task in exchanged(settings, zipf_rows(4_000, 2_000)) for run in of_task]
    keys = []
    for run in runs:
        with StagedReader(settings, run.path) as reader:
            keys += reader.slice(0, run.rows, [KEY]).column(0).to_pylist()
    assert len(keys) == len(set(keys))


def test_batch_without_rows_is_no_part() -> None:
    settings = context()
    assert (
        list(
            write_parts(
                settings, 16, Attempt(partition=0, stage=0, number=0), iter([pa.RecordBatch.from_pylist([], SCHEMA)])
            )
        )
        == []
    )
    assert plan_merges([], PARALLELISM) == []
    assert [ways_for(n) for n in (1, 2, 16, 400, 10_000)] == [16, 16, 64, 1024, 1024]
