"""What commits state about columns, and how the size of a commit grows with its files."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.timeline import commit_metadata
from lakehouse.core.format.timeline.commit_files import decode_files
from lakehouse.core.format.timeline.commit_metadata import decode_commit, decode_summary
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.planning.key_ranges import RANGES_KEY
from lakehouse.core.table.table import Table
from lakehouse.core.timeline import timeline_store
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from tests.support.tables import make_env

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
COLUMN_STATS = "hoodie.metadata.index.column.stats.enable"


def make(kind: str, **options: str) -> Table:
    env = make_env()
    return Table.create(
        env.storage.root,
        name="t",
        record_key="id",
        ordering="ts",
        env=env,
        table_type=kind,
        options={"hoodie.parquet.small.file.limit": "0", **options},
    )


def rows(first: int, value: int) -> pa.Table:
    return pa.table({"id": [f"k{first + i}" for i in range(4)], "v": [value] * 4, "ts": [value] * 4})


def written(table: Table, kind: str) -> list[str | None]:
    """Write with each kind of writer, and return what the commits state about ranges."""
    table.bulk_insert(rows(0, 1))
    table.bulk_insert(rows(4, 2))
    table.upsert(rows(0, 3))
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    table.services.clustering.run(force=True)
    return [metadata.extra.get(RANGES_KEY) for _, metadata in table.commits()]


@pytest.mark.parametrize("kind", KINDS)
def test_commit_states_no_ranges_if_the_metadata_table_has_them(kind: str) -> None:
    table = make(kind)
    assert set(written(table, kind)) == {None}
    table.bulk_insert(rows(8, 100))
    plan = table.scan(where="v = 100").plan()
    assert len(plan.plan.slices) == 1
    assert "column_stats" in {step.name for step in plan.plan.steps}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["hoodie.metadata.enable", COLUMN_STATS])
def test_commit_states_ranges_if_the_table_has_no_column_stats(kind: str, option: str) -> None:
    table = make(kind, **{option: "false"})
    stated = written(table, kind)
    assert all(text and '"v":' in text for text in stated)
    table.bulk_insert(rows(8, 100))
    plan = table.scan(where="v = 100").plan()
    assert len(plan.plan.slices) == 1
    assert "commits" in {step.name for step in plan.plan.steps}


def test_commits_state_ranges_until_a_metadata_table_is_built() -> None:
    table = make("COPY_ON_WRITE", **{"hoodie.metadata.enable": "false"})
    table.bulk_insert(rows(0, 1))
    table.bulk_insert(rows(4, 2))
    off = table.metadata.rebuild()
    assert not off.partitions and "give the option `true` to build one" in str(off)
    table.with_options({"hoodie.metadata.enable": "true"}).metadata.rebuild()
    table = Table.open(table.location, env=table._env)
    table.bulk_insert(rows(8, 3))
    assert [RANGES_KEY in metadata.extra for _, metadata in table.commits()] == [True, True, False]
    assert len(table.scan(where="v = 2").plan().plan.slices) == 1


def test_commit_of_many_files_has_few_hundred_bytes_for_each_file() -> None:
    sizes, peaks = [], []
    for files in (1_000, 10_000):
        metadata = CommitMetadata(operation=Operation.BULK_INSERT, stats=tuple(map(stat, range(files))))
        tracemalloc.start()
        data = table_layout(9).encode_commit(metadata)
        assert decode_commit(data) == metadata
        peaks.append(tracemalloc.get_traced_memory()[1] / files)
        tracemalloc.stop()
        sizes.append((len(data) - 10_000) / files)
    # Bytes of the file and of memory grow with the files, not faster.
    assert max(sizes) < 300
    assert peaks[1] < 1.2 * peaks[0]


def test_files_of_a_large_commit_are_read_as_columns_in_little_memory() -> None:
    metadata = CommitMetadata(operation=Operation.BULK_INSERT, stats=tuple(map(stat, range(10_000))))
    data = table_layout(9).encode_commit(metadata)
    decode_files(table_layout(9).encode_commit(CommitMetadata(operation=Operation.BULK_INSERT, stats=(stat(1),))))
    kept = []
    for decode in (decode_commit, decode_files, decode_summary):
        tracemalloc.start()
        found = decode(data)
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del found
    # Buffers of Arrow are not traced: the columns take about 200 bytes for each file.
    assert decode_files(data).nbytes < 250 * 10_000
    assert kept[1] < kept[0] / 20 and kept[2] < kept[0] / 20


@pytest.mark.parametrize("kind", KINDS)
def test_plans_and_services_make_no_object_for_each_file_of_large_replacecommits(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(kind)
    table.insert_overwrite(rows(0, 1))
    table.bulk_insert(rows(4, 2))
    table.insert_overwrite(rows(8, 3))
    table.upsert(rows(8, 4))
    # Each commit counts as a large one.
    monkeypatch.setattr(timeline_store, "_REMEMBERED_BYTES", 0)
    made: list[str] = []
    real = commit_metadata._stat_from_record

    def counted(partition: str, record: Any) -> WriteStat:
        made.append(partition)
        return real(partition, record)

    monkeypatch.setattr(commit_metadata, "_stat_from_record", counted)
    fresh = Table.open(table.location, env=table._env)
    assert sorted(fresh.scan(columns=["id"]).to_arrow().column("id").to_pylist()) == ["k10", "k11", "k8", "k9"]
    assert fresh.services.clean.due() is not None and fresh.services.clustering.due() is not None
    assert not made
    assert fresh.commits() and made


def stat(number: int) -> WriteStat:
    group = f"{number:08d}-c8b4-4f43-9a9b-b8a3b0cb7d4e-0"
    partition = f"part-{number:05d}"
    path = f"{partition}/{group}_0-0-0_20260101000000000.parquet"
    return WriteStat(partition=partition, file_id=group, path=path, num_writes=2, num_inserts=2, size_bytes=430_000)
