"""Numbers of storage requests of writes and reads of a table with metadata table, counted on a local disk.

No directory of data files is listed. The timeline of the table and that of the metadata table are listed, because
nothing else names the newest instant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table

#: Requests of a commit besides LIST, one for each file group that it touches and the reads of `partition_stats`:
#:
#:     properties 2   index definitions 1   heartbeat 1   markers 2   data timeline 3   metadata timeline 3   cleanup 1
COMMIT_REQUESTS = 13
#: A commit touches one file group of `files`, two of `column_stats` and one of `partition_stats`.
METADATA_GROUPS = 4
PARTITIONS = ("a", "b", "c", "d")
#: The lock of a process needs no requests. Those of other lock providers are pinned by their own tests.
LOCK = {"hoodie.write.lock.provider": "InProcessLockProvider"}


def batch(partitions: tuple[str, ...], value: int, start: int = 0) -> pa.Table:
    """Return ten rows for each partition."""
    keys = [f"{p}{i}" for p in partitions for i in range(start, start + 10)]
    return pa.table({"id": keys, "p": [key[0] for key in keys], "v": [value] * len(keys), "ts": [value] * len(keys)})


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Table, CountingStorage]:
    """Return a table with rows in all partitions, and its counting storage."""
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    table = Table.create(
        storage.root, name="t", record_key="id", partition_by="p", ordering="ts", env=Env(storage=storage)
    ).with_options(LOCK)
    table.bulk_insert(batch(PARTITIONS, 1))
    table.upsert(batch(PARTITIONS[:1], 2))
    assert set(table.config.metadata_partitions) == {"files", "column_stats", "partition_stats"}
    storage.reset()
    return table, storage


WRITES: dict[str, Callable[[Table], object]] = {
    "bulk_insert": lambda table: table.bulk_insert(batch(("a",), 3, start=20)),
    "insert": lambda table: table.insert(batch(("a",), 3, start=20)),
    "upsert": lambda table: table.upsert(batch(("a",), 3, start=5)),
    "delete": lambda table: table.delete(batch(("a",), 3)),
    "insert_overwrite": lambda table: table.insert_overwrite(batch(("a",), 3)),
    "delete_partitions": lambda table: table.delete_partitions(["a"]),
}


@pytest.mark.parametrize("verb", WRITES)
def test_commit_lists_no_data_directory_with_a_metadata_table(stored: tuple[Table, CountingStorage], verb: str) -> None:
    table, storage = stored
    assert isinstance(WRITES[verb](table), Committed)
    assert storage.listed_data() == ()


@pytest.mark.parametrize("partitions", [1, 3])
def test_bulk_insert_sends_a_fixed_number_of_requests_besides_those_of_file_groups(
    stored: tuple[Table, CountingStorage], partitions: int
) -> None:
    table, storage = stored
    # A task cannot know whether the metadata file of a partition exists, so it creates the file if it is absent.
    file_groups, partition_metadata = partitions + METADATA_GROUPS, partitions
    # New files widen the bounds in `partition_stats`. Its log files of the two earlier commits are read once; later
    # commits of the process read only the newest one.
    for number, statistics_files in enumerate((2, 1, 1)):
        storage.reset()
        table.bulk_insert(batch(PARTITIONS[:partitions], 3, start=20 + 10 * number))
        counts = storage.counts()
        requests = COMMIT_REQUESTS + file_groups + partition_metadata + statistics_files
        assert sum(counts.values()) - counts["LIST"] == requests
        assert counts["HEAD"] == 0


def test_look_up_of_a_record_key_by_the_record_index_sends_at_most_four_requests(tmp_path: Path) -> None:
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    options = {"hoodie.metadata.global.record.level.index.enable": "true", **LOCK}
    table = Table.create(
        storage.root,
        name="t",
        record_key="id",
        partition_by="p",
        ordering="ts",
        env=Env(storage=storage),
        options=options,
    )
    table.bulk_insert(batch(PARTITIONS, 1))
    table.upsert(batch(PARTITIONS[:1], 2))
    table = Table.open(storage.root, env=Env(storage=storage))
    for key in ("b3", "c3", "a7"):
        # The first look-up in a file group of the index reads its files, which stay in memory.
        table.scan(where=f"id = '{key}'").plan()
        storage.reset()
        plan = table.scan(where=f"id = '{key}'").plan()
        # The properties, and LIST of both timelines.
        assert sum(storage.counts().values()) == 3
        assert storage.listed_data() == ()
        assert [s.partition for s in plan.plan.slices] == [key[0]]
        assert "record_index" in {step.name for step in plan.plan.steps}


READS: dict[str, Callable[[Table], object]] = {
    "snapshot": lambda table: table.scan().plan(),
    "partition": lambda table: table.scan(where="p = 'b'").plan(),
    "range": lambda table: table.scan(where="v > 1").plan(),
    "record key": lambda table: table.scan(where="id = 'b3'").plan(),
    "as of": lambda table: table.scan(as_of=table.timeline.latest_time()).plan(),
    "incremental": lambda table: table.incremental("earliest").plan(),
}


@pytest.mark.parametrize("query", READS)
def test_planned_read_lists_no_data_directory_with_a_metadata_table(
    stored: tuple[Table, CountingStorage], query: str
) -> None:
    table, storage = stored
    READS[query](table)
    assert storage.listed_data() == ()
    assert {verb: count for verb, count in storage.counts().items() if verb in ("PUT", "HEAD", "DELETE")} == {
        "PUT": 0,
        "HEAD": 0,
        "DELETE": 0,
    }
