"""Numbers of storage requests of writes and reads of a table with metadata table, counted on a local disk.

No directory of data files is listed. The timeline of the table and that of the metadata table are listed, because
nothing else names the newest instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import InputFile, OutputFile
from lakehouse.core.table.table import Table

#: Requests of a commit besides LIST, and besides one for each file group that it touches:
#:
#:     properties 2   heartbeat 1   markers 2   data timeline 3   metadata timeline 3   cleanup 1
#:
#: The first commits of a process also read the index definitions and the newest files of the metadata table.
COMMIT_REQUESTS = 12
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


class Recorded(LocalStorage):
    """A local store that records its requests except LIST: verb and path."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.requests: list[tuple[str, str]] = []

    def get(self, path: str) -> bytes:
        self.requests.append(("GET", path))
        return super().get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.requests.append(("GET", path))
        return super().get_range(path, start, length)

    def put(self, path: str, data: bytes) -> None:
        self.requests.append(("PUT", path))
        super().put(path, data)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        self.requests.append(("PUT", path))
        return super().create(path, data, unique=unique)

    def open_input(self, path: str) -> InputFile:
        self.requests.append(("GET", path))
        return super().open_input(path)

    def open_output(self, path: str) -> OutputFile:
        self.requests.append(("PUT", path))
        return super().open_output(path)

    def delete_many(self, paths: Iterable[str]) -> int:
        asked = list(paths)
        self.requests += [("DELETE", path) for path in asked[:1]]
        return super().delete_many(asked)

    def delete(self, path: str) -> bool:
        self.requests.append(("DELETE", path))
        return super().delete(path)

    def of_commit(self) -> list[tuple[str, str]]:
        """Return the requests besides those that read rows, or store them for other tasks of the write."""
        own = [(verb, path) for verb, path in self.requests if not path.startswith(".hoodie/.staging/")]
        return [(verb, path) for verb, path in own if verb != "GET" or path.startswith(".hoodie/")]


#: Writes that touch one file group of a partition.
ROWS: dict[str, Callable[[Table, int], object]] = {
    "bulk_insert": lambda table, number: table.bulk_insert(batch(("a",), 3, start=20 + 10 * number)),
    "insert": lambda table, number: table.insert(batch(("a",), 3, start=20 + 10 * number)),
    "upsert": lambda table, number: table.upsert(batch(("a",), 3 + number)),
    "delete": lambda table, number: table.delete(batch(("a",), 3 + number).slice(number, 1)),
}


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("verb", ROWS)
def test_commit_sends_a_fixed_number_of_requests_besides_those_of_file_groups(
    tmp_path: Path, verb: str, table_type: str
) -> None:
    storage = Recorded(str(tmp_path / "table"))
    table = Table.create(
        storage.root,
        name="t",
        record_key="id",
        partition_by="p",
        ordering="ts",
        table_type=table_type,
        env=Env(storage=storage),
    ).with_options(LOCK)
    table.bulk_insert(batch(PARTITIONS, 1))
    table.upsert(batch(PARTITIONS[:1], 2))
    # A process reads the first files of `column_stats` when it supersedes a file for the first time.
    for number in range(2):
        ROWS[verb](table, number)
    for number in range(2, 5):
        storage.requests.clear()
        committed = ROWS[verb](table, number)
        assert isinstance(committed, Committed)
        requests = storage.of_commit()
        files = [stat.path for stat in committed.metadata.stats]
        assert len(files) == 1
        assert len(requests) == COMMIT_REQUESTS + len(files) + METADATA_GROUPS, requests


@pytest.mark.parametrize("partitions", [1, 3])
def test_bulk_insert_sends_a_request_for_each_file_group(
    stored: tuple[Table, CountingStorage], partitions: int
) -> None:
    table, storage = stored
    for number in range(3):
        storage.reset()
        table.bulk_insert(batch(PARTITIONS[:partitions], 3, start=20 + 10 * number))
        counts = storage.counts()
        assert sum(counts.values()) - counts["LIST"] == COMMIT_REQUESTS + partitions + METADATA_GROUPS
        assert counts["HEAD"] == 0


def test_metadata_file_of_a_partition_is_created_if_no_recent_commit_wrote_there(tmp_path: Path) -> None:
    storage = Recorded(str(tmp_path / "table"))
    table = Table.create(
        storage.root, name="t", record_key="id", partition_by="p", ordering="ts", env=Env(storage=storage)
    ).with_options(LOCK)

    def created(partition: str, number: int) -> list[str]:
        storage.requests.clear()
        assert isinstance(table.bulk_insert(batch((partition,), 1, start=10 * number)), Committed)
        return [path for _, path in storage.requests if path.endswith(".hoodie_partition_metadata")]

    assert created("a", 0) == ["a/.hoodie_partition_metadata"]
    assert created("a", 1) == []
    assert [created("b", number) for number in range(3)] == [["b/.hoodie_partition_metadata"], [], []]
    assert created("a", 2) == ["a/.hoodie_partition_metadata"]
    # The newest commits wrote to both, but a clean deletes the metadata file of the empty partition.
    table.delete_partitions(["a"])
    assert created("b", 3) == []
    table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
    assert storage.find("a/.hoodie_partition_metadata") is None
    assert created("b", 4) == ["b/.hoodie_partition_metadata"]
    assert created("b", 5) == []
    assert created("a", 3) == ["a/.hoodie_partition_metadata"]
    assert storage.find("a/.hoodie_partition_metadata") is not None


def test_look_up_of_a_record_key_by_the_record_index_sends_at_most_four_requests(tmp_path: Path) -> None:
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    options = {
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.index.type": "GLOBAL_SIMPLE",
        **LOCK,
    }
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
