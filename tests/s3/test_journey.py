"""The same operations on a table on a local disk, on S3 and on HDFS give the same results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from tests.support.killed import Host, batch, leftovers
from tests.support.s3 import S3Server

T = TypeVar("T")
_numbers = itertools.count(1)
CRASHED, SURVIVOR = 101, 102


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3), "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Return an empty location and its storage options."""
    if request.param == "local":
        return str(tmp_path / "table"), {}
    if request.param == "hdfs":
        return f"{request.getfixturevalue('hdfs').place()}/table", {}
    server: S3Server = request.getfixturevalue("s3_server")
    return f"s3://{server.bucket}/journey-{next(_numbers)}/table", server.options


def made(place: tuple[str, dict[str, str]], **declared: Any) -> Table:
    location, reach = place
    return Table.create(
        location, name="j", record_key=["id"], partition_by=["p"], ordering="ts", storage_options=reach, **declared
    )


def content(rows: pa.Table) -> dict[str, int]:
    found = rows.select(["id", "v"]).to_pydict()
    assert len(set(found["id"])) == len(found["id"])
    return dict(zip(found["id"], found["v"], strict=True))


def test_table_is_written_changed_and_read_at_each_instant(place: tuple[str, dict[str, str]]) -> None:
    table = made(place)
    table.bulk_insert(batch({("a", "a1"): 1, ("a", "a2"): 1, ("b", "b 1%/ü"): 1}))
    first = table.timeline.latest_time()
    table.upsert(batch({("a", "a1"): 2, ("a b", "c1"): 2}, deleted=[("b", "b 1%/ü")]))
    second = table.timeline.latest_time()
    table.insert(batch({("a", "a3"): 3}))
    table.delete(["a2"])
    third = table.timeline.latest_time()
    table.insert_overwrite(batch({("a", "a9"): 9}))

    location, reach = place
    table = Table.open(location, storage_options=reach)
    assert content(table.scan().to_arrow()) == {"a9": 9, "c1": 2}
    assert content(table.scan(["id", "v"], "v = 2").to_arrow()) == {"c1": 2}
    assert content(table.scan(as_of=first).to_arrow()) == {"a1": 1, "a2": 1, "b 1%/ü": 1}
    assert content(table.scan(as_of=second).to_arrow()) == {"a1": 2, "a2": 1, "c1": 2}
    assert content(table.incremental(first, second).to_arrow()) == {"a1": 2, "c1": 2}
    assert content(table.incremental(third).to_arrow()) == {"a9": 9}
    assert table.partitions() == ("a", "a b", "b")
    table.delete_partitions(["a b"])
    assert content(table.scan().to_arrow()) == {"a9": 9}
    table.insert_overwrite_table(batch({("z", "z1"): 1}))
    assert content(table.scan().to_arrow()) == {"z1": 1}
    assert leftovers(open_storage(location, reach)) == []


def test_table_with_bucket_index_updates_stored_rows(place: tuple[str, dict[str, str]]) -> None:
    table = made(place, options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"})
    table.upsert(batch({("a", f"a{i}"): 1 for i in range(20)}))
    table.upsert(batch({("a", f"a{i}"): 2 for i in range(10, 25)}))
    assert content(table.scan().to_arrow()) == {f"a{i}": 1 + (i >= 10) for i in range(25)}
    assert {stat.num_updates + stat.num_inserts > 0 for stat in table.commits()[-1][1].stats} == {True}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 0.97])
def test_next_write_rolls_back_a_failed_write(place: tuple[str, dict[str, str]], share: float) -> None:
    location, reach = place
    made(place).bulk_insert(batch({("a", "a1"): 1, ("b", "b1"): 1}))
    storage = open_storage(location, reach)
    rehearsal = FaultyStorage(storage)
    opened(rehearsal, CRASHED).upsert(batch({("a", "a1"): 2, ("c", "c1"): 2}))
    before = {"a1": 2, "b1": 1, "c1": 2}
    change = batch({("a", "a1"): 3, ("c", "c1"): 3})
    with pytest.raises(SimulatedCrash):
        opened(FaultyStorage(storage, int(rehearsal.steps * share), FaultMode.CRASH_BEFORE), CRASHED).upsert(change)
    committed = len(opened(storage, SURVIVOR).timeline.writes()) == 3
    rows = {**before, "a1": 3, "c1": 3} if committed else before
    assert content(opened(storage, SURVIVOR).scan().to_arrow()) == rows
    opened(storage, SURVIVOR).upsert(batch({("b", "b1"): 7}))
    assert content(opened(storage, SURVIVOR).scan().to_arrow()) == {**rows, "b1": 7}
    assert leftovers(storage) == []


class CrashBeforeData(FaultyStorage):
    """A storage that crashes its user before the first data file: the lock is free and the write is pending."""

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Run a storage step; crash before the step that opens a data file."""
        if name.startswith("open_output") and name.endswith(".parquet"):
            self.fail_at, self.mode = self.steps + 1, FaultMode.CRASH_BEFORE
        return super().step(name, call)


def test_active_write_blocks_other_writers(place: tuple[str, dict[str, str]]) -> None:
    location, reach = place
    made(place).bulk_insert(batch({("a", "a1"): 1}))
    storage = open_storage(location, reach)
    with pytest.raises(SimulatedCrash):
        opened(CrashBeforeData(storage), CRASHED).upsert(batch({("a", "a1"): 3}))
    with pytest.raises(RetryableError, match=r"the write \d+ is active"):
        Table.open(location, env=Env(storage=storage, processes=Host(SURVIVOR))).upsert(batch({("a", "a1"): 4}))
    assert content(opened(storage, SURVIVOR).scan().to_arrow()) == {"a1": 1}


def opened(storage: Storage, pid: int) -> Table:
    host = Host(pid, frozenset({CRASHED} - {pid}))
    return Table.open(storage.root, env=Env(storage=storage, processes=host, process_state=ProcessState()))


def test_merge_on_read_table_is_written_read_and_compacted(place: tuple[str, dict[str, str]]) -> None:
    table = made(place, table_type="MERGE_ON_READ")
    table.upsert(batch({("a", f"a{i}"): 1 for i in range(10)} | {("b", "b1"): 1}))
    table.upsert(batch({("a", "a1"): 2, ("a", "a2"): 2}, deleted=[("b", "b1")]))
    planned = table.services.compaction.schedule(force=True)
    table.upsert(batch({("a", "a3"): 3}))
    expected = {f"a{i}": 1 for i in range(10)} | {"a1": 2, "a2": 2, "a3": 3}
    assert content(table.scan().to_arrow()) == expected
    outcome = table.services.compaction.run()
    assert isinstance(outcome, Committed) and outcome.instant.requested == planned.requested
    location, reach = place
    table = Table.open(location, storage_options=reach)
    assert content(table.scan().to_arrow()) == expected
    assert content(table.scan(read_optimized=True).to_arrow()) == expected | {"a3": 1}
    assert content(table.incremental(planned.requested).to_arrow()) == {"a3": 3}
    table.delete(["a0"])
    table.services.compaction.run(force=True)
    del expected["a0"]
    assert content(table.scan(read_optimized=True).to_arrow()) == expected
    assert leftovers(open_storage(location, reach)) == []
