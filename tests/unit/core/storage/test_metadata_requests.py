"""Numbers of storage requests of writes and reads of a table with metadata table, counted on a local disk.

No directory of data files is listed. The timeline of the table and that of the metadata table are listed, because
nothing else names the newest instant.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table

#: Requests of a commit besides LIST and one for each file group that it touches:
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


def test_bulk_insert_lists_no_data_directory_with_a_metadata_table(stored: tuple[Table, CountingStorage]) -> None:
    table, storage = stored
    assert isinstance(table.bulk_insert(batch(("a",), 3, start=20)), Committed)
    assert storage.listed_data() == ()


@pytest.mark.parametrize("partitions", [1, 3])
def test_bulk_insert_sends_a_fixed_number_of_requests_besides_those_of_file_groups(
    stored: tuple[Table, CountingStorage], partitions: int
) -> None:
    table, storage = stored
    table.bulk_insert(batch(PARTITIONS[:partitions], 3, start=20))
    counts = storage.counts()
    # A task cannot know whether the metadata file of a partition exists, so it creates the file if it is absent.
    file_groups, partition_metadata = partitions + METADATA_GROUPS, partitions
    assert sum(counts.values()) - counts["LIST"] == COMMIT_REQUESTS + file_groups + partition_metadata
    assert counts["HEAD"] == 0
