"""The staged batch: keyed, combined, grouped, readable by position, and the same with little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.files.stage.staging import KEY, StagedReader, stage_shard
from lakehouse.core.files.stage.write_context import Incoming, WriteContext
from lakehouse.core.index.write_tasks import StagedRun, StagingLayout
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from lakehouse.model.merge import MergeMode, MergeRule
from lakehouse.spec.options.write import WritePolicy
from lakehouse.spec.table.bucket_rules import BucketRules

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("_hoodie_is_deleted", pa.bool_())])
KEYS = KeyConfig(
    generator=KeyGeneratorType.SIMPLE,
    record_key_fields=("id",),
    partition_fields=("p",),
    partition_types=("SIMPLE",),
)
ATTEMPT = Attempt(partition=3, stage=4, number=5)


def context(**changes: Any) -> WriteContext:
    """Return the settings of a write; fields of `Incoming` and `StagingLayout` are accepted as such."""
    incoming = {key: changes.pop(key) for key in [*changes] if key in Incoming.__dataclass_fields__}
    layout = {key: changes.pop(key) for key in [*changes] if key in StagingLayout.__dataclass_fields__}
    values = {
        "storage": MemoryStorage(),
        "clock": SystemClock(),
        "instant": "20260101000000000",
        "table": "t",
        "schema": SCHEMA,
        "avro_schema": "{}",
        "keys": KEYS,
        "rule": MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",)),
        "policy": WritePolicy(),
        "bytes_per_row": 100.0,
        "incoming": Incoming(**incoming),
        "layout": StagingLayout(**layout),
    }
    return WriteContext(**{**values, **changes})


def batches(rows: Sequence[tuple], size: int = 1_000) -> list[pa.RecordBatch]:
    """Return rows of SCHEMA in batches."""
    columns = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    return table.to_batches(max_chunksize=size)


def staged(settings: WriteContext, rows: Sequence[tuple], size: int = 1_000) -> list[StagedRun]:
    """Stage one shard."""
    return list(stage_shard(settings, ATTEMPT, iter(batches(rows, size))))


def contents(settings: WriteContext, runs: list[StagedRun]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the rows by partition and bucket, according to the entries."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in runs:
        with StagedReader(settings, run.path) as reader:
            for entry in run.entries:
                rows = reader.slice(entry.offset, entry.rows).to_pylist()
                deletes = [bool(row.get("_hoodie_is_deleted")) for row in rows]
                assert deletes == [False] * entry.upserts + [True] * entry.deletes
                found.setdefault((entry.partition, entry.bucket), []).extend(rows)
    return found


ROWS = [("a", "x", 1, None), ("b", "y", 1, True), ("a", "x", 3, None), ("a", "x", 2, True), ("c", None, 1, False)]


def test_run_groups_rows_by_partition_with_deletes_last() -> None:
    settings = context()
    (run,) = staged(settings, ROWS)
    found = contents(settings, [run])
    assert {where: [row["id"] for row in rows] for where, rows in found.items()} == {
        ("x", -1): ["a"],
        ("y", -1): ["b"],
        ("__HIVE_DEFAULT_PARTITION__", -1): ["c"],
    }
    assert found[("x", -1)][0] == {KEY: "a", "id": "a", "p": "x", "ts": 3, "_hoodie_is_deleted": None}
    assert run.rows == 3 and run.path == ".hoodie/.staging/20260101000000000/3-4-5-0.arrow"


def test_insert_keeps_duplicates() -> None:
    settings = context(combine=False)
    found = contents(settings, staged(settings, ROWS))
    assert sorted(row["ts"] for row in found[("x", -1)]) == [1, 2, 3]


def test_empty_batch_makes_no_run() -> None:
    settings = context()
    assert staged(settings, []) == []
    assert settings.storage.list("") == []


@pytest.mark.parametrize("budget", [200, 5_000, 1 << 30])
def test_small_memory_budget_changes_runs_but_not_rows(budget: int) -> None:
    rng = np.random.default_rng(1)
    rows = [(f"k{k}", "xy"[k % 2], int(ts), None) for k, ts in zip(rng.integers(0, 50, 400), range(400), strict=True)]
    settings = context(policy=WritePolicy(memory_budget_bytes=budget))
    runs = staged(settings, rows, size=16)
    assert (len(runs) > 1) == (budget < 1 << 30)
    found = [row for part in contents(settings, runs).values() for row in part]
    newest = {key: ts for key, _, ts, _ in rows}
    assert {row[KEY]: row["ts"] for row in found} == newest
    assert len(found) == len(newest)


def test_rows_go_to_the_bucket_of_their_key_in_each_run() -> None:
    rows = [(f"k{n}", "x", n, None) for n in range(60)]
    homes = []
    for budget in (200, 1 << 30):
        settings = context(buckets=BucketRules(4), policy=WritePolicy(memory_budget_bytes=budget))
        found = contents(settings, staged(settings, rows, size=7))
        homes.append({row[KEY]: bucket for (_, bucket), part in found.items() for row in part})
    assert homes[0] == homes[1]
    assert set(homes[0].values()) == {0, 1, 2, 3}


def test_staged_reader_takes_rows_by_position_across_batches() -> None:
    settings = context(combine=False)
    count = 65_536 * 2 + 10
    rows = pa.table(
        {"id": pa.array(np.arange(count)).cast(pa.string()), "p": ["x"] * count, "ts": np.arange(count)}
    ).append_column("_hoodie_is_deleted", pa.nulls(count, pa.bool_()))
    (run,) = list(stage_shard(settings, ATTEMPT, iter(rows.to_batches(max_chunksize=50_000))))
    with StagedReader(settings, run.path) as reader:
        wanted = np.array([131_075, 0, 65_536, 65_535, 0])
        assert reader.take(wanted, ["ts"]).column(0).to_pylist() == wanted.tolist()
        assert reader.slice(65_530, 12, ["ts"]).column(0).to_pylist() == list(range(65_530, 65_542))
        assert reader.slice(5, 0).num_rows == 0


def test_delete_is_staged_as_keys_only() -> None:
    settings = context(deletes_only=True)
    found = contents(settings, [replace(run, entries=()) for run in staged(settings, ROWS)])
    assert found == {}
    (run,) = staged(settings, ROWS)
    assert all(entry.deletes == entry.rows for entry in run.entries)
    with StagedReader(settings, run.path) as reader:
        assert reader.slice(0, run.rows).column_names == [KEY]


def test_delete_by_key_alone_is_staged_without_partition() -> None:
    settings = replace(context(deletes_only=True), layout=StagingLayout(global_keys=True))
    keys = pa.record_batch({KEY: ["a", "b", "a"]})
    (run,) = list(stage_shard(settings, ATTEMPT, iter([keys])))
    assert [(entry.partition, entry.rows) for entry in run.entries] == [("", 2)]


@pytest.mark.parametrize("bad", [(None, "x", 1, None), ("", "x", 1, None), ("a", "..", 1, None)])
def test_rows_without_valid_key_or_partition_are_refused_before_staging(bad: tuple) -> None:
    settings = context()
    with pytest.raises(UserError, match="1 of 6 rows"):
        staged(settings, [*ROWS, bad])
    assert settings.storage.list("") == []


def test_part_that_is_still_too_large_is_split_again_and_each_key_is_staged_once() -> None:
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
    # A 32nd of these rows exceeds the megabyte below which parts are not split again.
    padded = rows.set_column(1, "p", pa.repeat("x" * 100, count))
    settings = context(policy=WritePolicy(memory_budget_bytes=1 << 20))
    runs = list(stage_shard(settings, ATTEMPT, iter(padded.to_batches(max_chunksize=20_000))))
    assert len(runs) > 32
    keys, newest = [], []
    for run in runs:
        with StagedReader(settings, run.path) as reader:
            staged = reader.slice(0, run.rows, [KEY, "ts"])
        keys.append(staged.column(KEY))
        newest.append(staged.column("ts"))
    found = pa.concat_tables([pa.table({"k": k, "ts": t}) for k, t in zip(keys, newest, strict=True)])
    assert found.num_rows == count * 3 // 4
    assert found.group_by("k").aggregate([]).num_rows == found.num_rows
    assert sum(found.column("ts").to_pylist()) == sum(range(count // 4, count))


def test_insert_is_staged_without_spilling() -> None:
    settings = context(combine=False, policy=WritePolicy(memory_budget_bytes=5_000))
    rows = [(f"k{n % 7}", "xy"[n % 2], n, None) for n in range(500)]
    runs = staged(settings, rows, size=16)
    assert len(runs) > 1
    assert sorted(row["ts"] for part in contents(settings, runs).values() for row in part) == list(range(500))
