"""What verbs cost on an object store, where every listing is paid for and slow: requests, counted on a local disk.

A write asks for six listings, and one more for every partition it touches:

    timeline (load)   .hoodie (traces of dead writers)   timeline (request)   markers   staged rows   timeline (commit)

With the bucket index it asks for one more: rules of buckets that Hudi may have changed.
A read asks for two, timeline and root, and one for every directory in the root. Nobody asks whether a file exists.
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
#: A write takes the lock for its instant and for its commit; each time it is taken, shown to Hudi, and given back.
LOCKS, LOCK_PUTS = 2, 3
PARTITIONS = ("a", "b", "c", "d")
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}


def batch(partitions: tuple[str, ...], value: int, start: int = 0) -> pa.Table:
    """Return ten rows for each partition."""
    keys = [f"{p}{i}" for p in partitions for i in range(start, start + 10)]
    return pa.table({"id": keys, "p": [key[0] for key in keys], "v": [value] * len(keys), "ts": [value] * len(keys)})


def made(tmp_path: Path, options: Mapping[str, str]) -> tuple[Table, CountingStorage]:
    """Return a table with rows in every partition, and the counter of its storage."""
    storage = CountingStorage(LocalStorage(str(tmp_path / "table")))
    env = Env(storage=storage)
    table = Table.create(
        storage.root, name="t", record_key=["id"], partition_by=["p"], ordering="ts", options=options, env=env
    )
    table.bulk_insert(batch(PARTITIONS, 1))
    table.upsert(batch(PARTITIONS[:1], 2))
    storage.reset()
    return table, storage


def price(storage: CountingStorage, verb: Callable[[], object]) -> dict[str, int]:
    """Return the requests of a verb."""
    storage.reset()
    verb()
    return storage.counts()


@pytest.mark.parametrize("options", [{}, BUCKET], ids=["SIMPLE", "BUCKET"])
@pytest.mark.parametrize("touched", [1, 3])
@pytest.mark.parametrize("verb", ["upsert", "insert", "delete"])
def test_a_write_lists_the_partitions_it_touches_and_six_more(
    tmp_path: Path, verb: str, options: Mapping[str, str], touched: int
) -> None:
    table, storage = made(tmp_path, options)
    rows = batch(PARTITIONS[:touched], 3, start=20 if verb == "insert" else 5)
    counts = price(storage, lambda: getattr(table, verb)(rows))
    assert counts["LIST"] <= touched + WRITE_LISTS + (options is BUCKET)
    assert counts["HEAD"] == 0


@pytest.mark.parametrize("touched", [1, 4])
def test_a_bulk_insert_lists_no_partition_and_stages_nothing(tmp_path: Path, touched: int) -> None:
    table, storage = made(tmp_path, {})
    counts = price(storage, lambda: table.bulk_insert(batch(PARTITIONS[:touched], 3, start=20)))
    assert counts["LIST"] <= WRITE_LISTS - 1
    assert counts["HEAD"] == 0
    # Heartbeat, requested, inflight, commit; markers and their type; for each file itself and partition metadata.
    assert counts["PUT"] == 4 + LOCKS * LOCK_PUTS + 2 + 2 * touched


def test_overwriting_or_deleting_partitions_lists_those_only(tmp_path: Path) -> None:
    table, storage = made(tmp_path, {})
    counts = price(storage, lambda: table.insert_overwrite(batch(("a", "b"), 3)))
    assert (counts["LIST"] <= 2 + WRITE_LISTS, counts["HEAD"]) == (True, 0)
    counts = price(storage, lambda: table.delete_partitions(["a"]))
    assert (counts["LIST"] <= 1 + WRITE_LISTS, counts["HEAD"]) == (True, 0)


def test_a_read_lists_the_timeline_the_root_and_each_directory_in_it(tmp_path: Path) -> None:
    table, storage = made(tmp_path, {})
    latest = table.timeline.latest_time()
    reads: dict[str, Callable[[], object]] = {
        "snapshot": lambda: table.scan().to_arrow(),
        "pruned": lambda: table.scan(["id"], "p = 'b' AND v > 0").to_arrow(),
        "as of": lambda: table.scan(as_of=latest).to_arrow(),
        "incremental": lambda: table.incremental("earliest").to_arrow(),
    }
    for name, read in reads.items():
        counts = price(storage, read)
        assert counts["LIST"] <= READ_LISTS + len(PARTITIONS), name
        assert (counts["HEAD"], counts["PUT"], counts["DELETE"]) == (0, 0, 0), name


def test_the_price_of_a_write_and_of_a_read_does_not_grow_with_the_history(tmp_path: Path) -> None:
    _, storage = made(tmp_path, {})

    def upsert_and_read(value: int) -> list[dict[str, int]]:
        table = Table.open(storage.root, env=Env(storage=storage))
        return [
            price(storage, lambda: table.upsert(batch(("a",), value))),
            price(storage, lambda: table.scan().to_arrow()),
        ]

    prices = [upsert_and_read(value) for value in range(3, 15)]
    assert prices[3:] == [prices[3]] * len(prices[3:])


@pytest.mark.parametrize("options", [{}, BUCKET], ids=["SIMPLE", "BUCKET"])
def test_logs_cost_no_listing_more_and_a_compaction_lists_each_partition_once_to_plan(
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
    for touched in (1, 3):
        counts = price(storage, lambda count=touched: table.upsert(batch(PARTITIONS[:count], 2)))
        assert (counts["LIST"] <= touched + WRITE_LISTS + (options is BUCKET), counts["HEAD"]) == (True, 0)
    assert price(storage, lambda: table.scan().to_arrow())["LIST"] <= READ_LISTS + len(PARTITIONS)
    counts = price(storage, lambda: table.services.compaction.schedule(force=True))
    assert counts["LIST"] <= len(PARTITIONS) + 4
    counts = price(storage, table.services.compaction.run)
    assert (counts["LIST"] <= 12, counts["HEAD"]) == (True, 0)
    assert table.services.compaction.due().delta_commits == 0
