"""Numbers of storage requests of writes, reads and services without metadata table, counted on a local disk.

A write needs six LIST requests and one for each partition that it changes:

    timeline (load)   .hoodie (expired writes)   timeline (request)   markers   staged rows   timeline (commit)

With the bucket index it needs one more, because Hudi may have changed the bucket rules.
A read needs two LIST requests, for the timeline and the root, and one for each directory in the root.
No operation sends a HEAD request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table

WRITE_LISTS = 6
READ_LISTS = 2
#: A write acquires the lock for its instant and for its commit; each time needs a PUT to acquire the lock, one to
#: announce it to Hudi, and one to release it.
LOCKS, LOCK_PUTS = 2, 3
PARTITIONS = ("a", "b", "c", "d")
SIMPLE = {"hoodie.metadata.enable": "false"}
BUCKET = {**SIMPLE, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}


def batch(partitions: tuple[str, ...], value: int, start: int = 0) -> pa.Table:
    """Return ten rows for each partition."""
    keys = [f"{p}{i}" for p in partitions for i in range(start, start + 10)]
    return pa.table({"id": keys, "p": [key[0] for key in keys], "v": [value] * len(keys), "ts": [value] * len(keys)})


def made(tmp_path: Path, options: Mapping[str, str]) -> tuple[Table, CountingStorage]:
    """Return a table with rows in all partitions, and its counting storage."""
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    env = Env(storage=storage)
    table = Table.create(
        storage.root, name="t", record_key=["id"], partition_by=["p"], ordering="ts", options=options, env=env
    )
    table.bulk_insert(batch(PARTITIONS, 1))
    table.upsert(batch(PARTITIONS[:1], 2))
    storage.reset()
    return table, storage


def requests_of(storage: CountingStorage, verb: Callable[[], object]) -> dict[str, int]:
    """Return the number of requests of a call, by kind."""
    storage.reset()
    verb()
    return storage.counts()


@pytest.mark.parametrize("options", [SIMPLE, BUCKET], ids=["SIMPLE", "BUCKET"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("verb", ["upsert", "insert", "delete"])
def test_write_lists_its_partitions_and_six_directories(
    tmp_path: Path, verb: str, options: Mapping[str, str], partitions: int
) -> None:
    table, storage = made(tmp_path, options)
    rows = batch(PARTITIONS[:partitions], 3, start=20 if verb == "insert" else 5)
    counts = requests_of(storage, lambda: getattr(table, verb)(rows))
    assert counts["LIST"] <= partitions + WRITE_LISTS + (options is BUCKET)
    assert counts["HEAD"] == 0


@pytest.mark.parametrize("partitions", [1, 4])
def test_bulk_insert_lists_no_partition_and_stages_no_rows(tmp_path: Path, partitions: int) -> None:
    table, storage = made(tmp_path, SIMPLE)
    counts = requests_of(storage, lambda: table.bulk_insert(batch(PARTITIONS[:partitions], 3, start=20)))
    assert counts["LIST"] <= WRITE_LISTS - 1
    assert counts["HEAD"] == 0
    # Four for heartbeat, requested, inflight and commit; two for markers; one for each file.
    assert counts["PUT"] == 4 + LOCKS * LOCK_PUTS + 2 + partitions


def test_overwrite_and_delete_partitions_list_only_their_partitions(tmp_path: Path) -> None:
    table, storage = made(tmp_path, SIMPLE)
    counts = requests_of(storage, lambda: table.insert_overwrite(batch(("a", "b"), 3)))
    assert (counts["LIST"] <= 2 + WRITE_LISTS, counts["HEAD"]) == (True, 0)
    counts = requests_of(storage, lambda: table.delete_partitions(["a"]))
    assert (counts["LIST"] <= 1 + WRITE_LISTS, counts["HEAD"]) == (True, 0)


def test_read_lists_the_timeline_the_root_and_its_directories(tmp_path: Path) -> None:
    table, storage = made(tmp_path, SIMPLE)
    latest = table.timeline.latest_time()
    reads: dict[str, Callable[[], object]] = {
        "snapshot": lambda: table.scan().to_arrow(),
        "pruned": lambda: table.scan(["id"], "p = 'b' AND v > 0").to_arrow(),
        "as of": lambda: table.scan(as_of=latest).to_arrow(),
        "incremental": lambda: table.incremental("earliest").to_arrow(),
    }
    for name, read in reads.items():
        counts = requests_of(storage, read)
        assert counts["LIST"] <= READ_LISTS + len(PARTITIONS), name
        assert (counts["HEAD"], counts["PUT"], counts["DELETE"]) == (0, 0, 0), name


def test_requests_of_writes_and_reads_do_not_grow_with_the_timeline(tmp_path: Path) -> None:
    _, storage = made(tmp_path, SIMPLE)

    def upsert_and_read(value: int) -> list[dict[str, int]]:
        table = Table.open(storage.root, env=Env(storage=storage))
        return [
            requests_of(storage, lambda: table.upsert(batch(("a",), value))),
            requests_of(storage, lambda: table.scan().to_arrow()),
        ]

    requests = [upsert_and_read(value) for value in range(3, 15)]
    assert requests[3:] == [requests[3]] * len(requests[3:])


@pytest.mark.parametrize("options", [SIMPLE, BUCKET], ids=["SIMPLE", "BUCKET"])
def test_log_writes_add_no_listing_and_compaction_lists_each_partition_once(
    tmp_path: Path, options: Mapping[str, str]
) -> None:
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    env = Env(storage=storage)
    table = Table.create(
        storage.root,
        name="t",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type="MERGE_ON_READ",
        options=options,
        env=env,
    )
    table.upsert(batch(PARTITIONS, 1))
    for partitions in (1, 3):
        counts = requests_of(storage, lambda count=partitions: table.upsert(batch(PARTITIONS[:count], 2)))
        assert (counts["LIST"] <= partitions + WRITE_LISTS + (options is BUCKET), counts["HEAD"]) == (True, 0)
    assert requests_of(storage, lambda: table.scan().to_arrow())["LIST"] <= READ_LISTS + len(PARTITIONS)
    counts = requests_of(storage, lambda: table.services.compaction.schedule(force=True))
    assert counts["LIST"] <= len(PARTITIONS) + 4
    counts = requests_of(storage, table.services.compaction.run)
    assert (counts["LIST"] <= 12, counts["HEAD"]) == (True, 0)
    assert table.services.compaction.due().delta_commits == 0
