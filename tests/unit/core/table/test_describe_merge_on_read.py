"""The values that `describe` returns for a merge-on-read table."""

from __future__ import annotations

from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.table.table import Table
from lakehouse.spec.contracts.tables import ColumnInfo, PartitionInfo, PendingPlan
from tests.support.tables import Shape, base_files, batch, log_files, make_table, row


def logged() -> Table:
    table = make_table(Shape(type="MERGE_ON_READ", rows_per_file=1_000))
    table.bulk_insert(batch([*(row(f"k{n}") for n in range(5)), row("k9", p="b")]))
    table.upsert(batch([row("k1", v="new"), row("k2", v="new")]))
    table.delete(batch([row("k3")]).select(["id", "p"]))
    return table


def test_describe_partitions_have_groups_bytes_logs_and_plans() -> None:
    table = logged()
    storage = table.refresh().env.storage
    base = {file.partition: file.size_bytes for file in base_files(storage)}
    logs = sum(file.size_bytes for file in log_files(storage))
    first, second = table.describe().partitions
    loaded, _, deleted = [instant_ms(write.requested, "UTC") for write in table.timeline.writes()]
    assert first == PartitionInfo(
        partition="a",
        file_groups=1,
        base_bytes=base["a"],
        log_bytes=logs,
        log_files=2,
        planned_groups=0,
        log_ratio=round(logs / base["a"], 3),
        base_files=1,
        small_files=1,
        written_ms=deleted,
    )
    assert second == PartitionInfo(
        partition="b",
        file_groups=1,
        base_bytes=base["b"],
        log_bytes=0,
        log_files=0,
        planned_groups=0,
        log_ratio=0.0,
        base_files=1,
        small_files=1,
        written_ms=loaded,
    )


def test_describe_lists_pending_plans_until_they_are_executed() -> None:
    table = logged()
    assert table.describe().pending_plans == ()
    planned = table.services.compaction.schedule(force=True)
    summary = table.describe()
    assert summary.pending_plans == (
        PendingPlan(instant=planned.requested, action="compaction", state="requested", file_groups=1),
    )
    assert [partition.planned_groups for partition in summary.partitions] == [1, 0]
    table.services.compaction.run(instant=planned.requested)
    summary = table.describe()
    assert summary.pending_plans == ()
    assert [(p.log_files, p.planned_groups) for p in summary.partitions] == [(0, 0), (0, 0)]


def test_describe_has_configuration_and_latest_commits() -> None:
    table = logged()
    table.services.compaction.run(force=True)
    summary = table.describe()
    assert summary.table == "events"
    assert summary.type == "MERGE_ON_READ, version 9, EVENT_TIME_ORDERING"
    assert (summary.record_key, summary.partitioned_by, summary.ordering) == (("id",), ("p",), ("ts",))
    assert summary.schema[0] == ColumnInfo(column="id", type="string")
    counts = [(c.operation, c.files, c.inserts, c.updates, c.deletes) for c in summary.commits]
    assert counts == [
        ("BULK_INSERT", 2, 6, 0, 0),
        ("UPSERT", 1, 0, 2, 0),
        ("DELETE", 1, 0, 0, 1),
        ("COMPACT", 1, 0, 2, 1),
    ]
    assert all(commit.completed and commit.completed > commit.instant for commit in summary.commits)


def test_describe_has_no_log_ratio_for_groups_without_base_file() -> None:
    table = make_table(Shape(type="MERGE_ON_READ", index="BUCKET", buckets=1, new_buckets="log"))
    table.upsert(batch([row("k1")]))
    (partition,) = table.describe().partitions
    assert (partition.base_bytes, partition.log_files, partition.log_ratio) == (0, 1, None)
