"""The staged batch: keyed, combined, grouped, readable by position, and the same with little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.files.staging import KEY, StagedReader, stage_shard
from lakehouse.core.files.write_context import WriteContext
from lakehouse.core.index.write_tasks import StagedRun
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.errors import UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from lakehouse.model.merge import MergeMode, MergeRule
from lakehouse.spec.bucket_rules import BucketRules
from lakehouse.spec.options.write import WritePolicy

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("_hoodie_is_deleted", pa.bool_())])
KEYS = KeyConfig(
    generator=KeyGeneratorType.SIMPLE,
    record_key_fields=("id",),
    partition_fields=("p",),
    partition_types=("SIMPLE",),
)
ATTEMPT = Attempt(partition=3, stage=4, number=5)


def context(**changes: Any) -> WriteContext:
    """What a task is told."""
    values = {
        "storage": MemoryStorage(),
        "instant": "20260101000000000",
        "table": "t",
        "schema": SCHEMA,
        "avro_schema": "{}",
        "keys": KEYS,
        "rule": MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",)),
        "policy": WritePolicy(),
        "bytes_per_row": 100.0,
    }
    return WriteContext(**{**values, **changes})


def batches(rows: Sequence[tuple], size: int = 1_000) -> list[pa.RecordBatch]:
    """Rows of SCHEMA."""
    columns = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    return table.to_batches(max_chunksize=size)


def staged(told: WriteContext, rows: Sequence[tuple], size: int = 1_000) -> list[StagedRun]:
    """Stage one shard."""
    return list(stage_shard(told, ATTEMPT, iter(batches(rows, size))))


def contents(told: WriteContext, runs: list[StagedRun]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Rows by partition and bucket, as their entries tell."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in runs:
        with StagedReader(told, run.path) as reader:
            for entry in run.entries:
                rows = reader.slice(entry.offset, entry.rows).to_pylist()
                deletes = [bool(row.get("_hoodie_is_deleted")) for row in rows]
                assert deletes == [False] * entry.upserts + [True] * entry.deletes
                found.setdefault((entry.partition, entry.bucket), []).extend(rows)
    return found


ROWS = [("a", "x", 1, None), ("b", "y", 1, True), ("a", "x", 3, None), ("a", "x", 2, True), ("c", None, 1, False)]


def test_a_run_holds_partitions_one_after_the_other_deletes_last() -> None:
    told = context()
    (run,) = staged(told, ROWS)
    found = contents(told, [run])
    assert {where: [row["id"] for row in rows] for where, rows in found.items()} == {
        ("x", -1): ["a"],
        ("y", -1): ["b"],
        ("__HIVE_DEFAULT_PARTITION__", -1): ["c"],
    }
    assert found[("x", -1)][0] == {KEY: "a", "id": "a", "p": "x", "ts": 3, "_hoodie_is_deleted": None}
    assert run.rows == 3 and run.path == ".hoodie/.staging/20260101000000000/3-4-5-0.arrow"


def test_an_insert_keeps_its_duplicates() -> None:
    told = context(combine=False)
    found = contents(told, staged(told, ROWS))
    assert sorted(row["ts"] for row in found[("x", -1)]) == [1, 2, 3]


def test_no_rows_make_no_run() -> None:
    told = context()
    assert staged(told, []) == []
    assert told.storage.list("") == []


@pytest.mark.parametrize("budget", [200, 5_000, 1 << 30])
def test_little_memory_changes_runs_but_not_rows(budget: int) -> None:
    rng = np.random.default_rng(1)
    rows = [(f"k{k}", "xy"[k % 2], int(ts), None) for k, ts in zip(rng.integers(0, 50, 400), range(400), strict=True)]
    told = context(policy=WritePolicy(memory_budget_bytes=budget))
    runs = staged(told, rows, size=16)
    assert (len(runs) > 1) == (budget < 1 << 30)
    found = [row for part in contents(told, runs).values() for row in part]
    newest = {key: ts for key, _, ts, _ in rows}
    assert {row[KEY]: row["ts"] for row in found} == newest
    assert len(found) == len(newest)


def test_rows_go_to_the_bucket_of_their_key_whatever_run_they_are_in() -> None:
    rows = [(f"k{n}", "x", n, None) for n in range(60)]
    homes = []
    for budget in (200, 1 << 30):
        told = context(buckets=BucketRules(4), policy=WritePolicy(memory_budget_bytes=budget))
        found = contents(told, staged(told, rows, size=7))
        homes.append({row[KEY]: bucket for (_, bucket), part in found.items() for row in part})
    assert homes[0] == homes[1]
    assert set(homes[0].values()) == {0, 1, 2, 3}


def test_rows_are_taken_by_position_over_batches() -> None:
    told = context(combine=False)
    count = 65_536 * 2 + 10
    rows = pa.table(
        {"id": pa.array(np.arange(count)).cast(pa.string()), "p": ["x"] * count, "ts": np.arange(count)}
    ).append_column("_hoodie_is_deleted", pa.nulls(count, pa.bool_()))
    (run,) = list(stage_shard(told, ATTEMPT, iter(rows.to_batches(max_chunksize=50_000))))
    with StagedReader(told, run.path) as reader:
        wanted = np.array([131_075, 0, 65_536, 65_535, 0])
        assert reader.take(wanted, ["ts"]).column(0).to_pylist() == wanted.tolist()
        assert reader.slice(65_530, 12, ["ts"]).column(0).to_pylist() == list(range(65_530, 65_542))
        assert reader.slice(5, 0).num_rows == 0


def test_a_delete_is_staged_as_keys_alone() -> None:
    told = context(deletes_only=True)
    found = contents(told, [replace(run, entries=()) for run in staged(told, ROWS)])
    assert found == {}
    (run,) = staged(told, ROWS)
    assert all(entry.deletes == entry.rows for entry in run.entries)
    with StagedReader(told, run.path) as reader:
        assert reader.slice(0, run.rows).column_names == [KEY]


def test_a_delete_by_key_alone_is_staged_without_partition() -> None:
    told = context(deletes_only=True, global_keys=True)
    keys = pa.record_batch({KEY: ["a", "b", "a"]})
    (run,) = list(stage_shard(told, ATTEMPT, iter([keys])))
    assert [(entry.partition, entry.rows) for entry in run.entries] == [("", 2)]


@pytest.mark.parametrize("bad", [(None, "x", 1, None), ("", "x", 1, None), ("a", "..", 1, None)])
def test_rows_without_usable_key_or_partition_stop_before_anything_is_staged(bad: tuple) -> None:
    told = context()
    with pytest.raises(UserError, match="1 of 6 rows"):
        staged(told, [*ROWS, bad])
    assert told.storage.list("") == []


def test_a_part_that_is_still_too_large_is_split_again_and_no_key_is_staged_twice() -> None:
    count = 400_000
    number = np.arange(count) % (count * 3 // 4)
    rows = pa.table(
        {
            "id": pa.array(number).cast(pa.string()),
            "p": pa.repeat("x", count),
            "ts": np.arange(count),
            "_hoodie_is_deleted": pa.nulls(count, pa.bool_()),
        }
    )
    # A 32nd of these rows is more than the megabyte below which nothing is split again.
    padded = rows.set_column(1, "p", pa.repeat("x" * 100, count))
    told = context(policy=WritePolicy(memory_budget_bytes=1 << 20))
    runs = list(stage_shard(told, ATTEMPT, iter(padded.to_batches(max_chunksize=20_000))))
    assert len(runs) > 32
    keys, newest = [], []
    for run in runs:
        with StagedReader(told, run.path) as reader:
            staged = reader.slice(0, run.rows, [KEY, "ts"])
        keys.append(staged.column(KEY))
        newest.append(staged.column("ts"))
    found = pa.concat_tables([pa.table({"k": k, "ts": t}) for k, t in zip(keys, newest, strict=True)])
    assert found.num_rows == count * 3 // 4
    assert found.group_by("k").aggregate([]).num_rows == found.num_rows
    assert sum(found.column("ts").to_pylist()) == sum(range(count // 4, count))


def test_an_insert_is_staged_in_runs_without_being_set_aside() -> None:
    told = context(combine=False, policy=WritePolicy(memory_budget_bytes=5_000))
    rows = [(f"k{n % 7}", "xy"[n % 2], n, None) for n in range(500)]
    runs = staged(told, rows, size=16)
    assert len(runs) > 1
    assert sorted(row["ts"] for part in contents(told, runs).values() for row in part) == list(range(500))
