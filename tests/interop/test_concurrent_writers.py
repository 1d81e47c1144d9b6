"""A writer of lakehouse and a writer of Apache Hudi write one table concurrently, with the same lock.

Each writer commits several batches: rows of its own partition, and in some batches rows that the other writer changes
as well. After a conflict the writer retries. The expected rows follow from the order of the commits on the timeline,
and each snapshot must equal the state after some commit:

    hudi         h0 .............. h1 ........ conflict ......... h2 ....
    lakehouse    l0 .. l1 .. l2 .. conflict .. l3 .. l4 .. l5 .. l6 ..
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pymetastore.hive_metastore.ttypes import ShowLocksRequest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.locks.metastore_client import MetastoreClient
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError
from lakehouse.model.commit import COMPACTIONS
from lakehouse.model.instant import Instant
from lakehouse.spec.options.parser import parse_options
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support import hudi_rs
from tests.support.hive import metastore_at, spark_jars
from tests.support.hudi import Hudi, HudiError
from tests.support.lock_bridge import PROVIDER, SOURCES, compiled, serving
from tests.support.tables import Shape, base_files, batch, log_files, make_table, row

pytestmark = pytest.mark.jvm

Row = dict[str, Any]
#: Number of batches of Hudi's writer; the writer of lakehouse continues until Hudi's writer has finished.
BATCHES = 2 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1"))
_LOCKS = "org.apache.hudi.client.transaction.lock"
_HIVE = "hoodie.write.lock.hivemetastore"
SHAPES = {
    "copy-on-write": Shape(merge="commit", url_encode=False),
    "merge-on-read": Shape(type="MERGE_ON_READ", merge="commit", url_encode=False, index="BUCKET", buckets=2),
}
OURS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "50",
}
#: Lock provider and options of both writers; Hudi's storage-based provider uses the BridgedStorageLockProvider.
LOCKS = {
    "filesystem": (f"{_LOCKS}.FileSystemBasedLockProvider", {"hoodie.write.lock.filesystem.expire": "0"}),
    "storage": (f"{_LOCKS}.StorageBasedLockProvider", {}),
    "zookeeper": (
        f"{_LOCKS}.ZookeeperBasedLockProvider",
        {"hoodie.write.lock.zookeeper.base_path": "/hudi", "hoodie.write.lock.zookeeper.lock_key": "events"},
    ),
    "hivemetastore": (
        "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
        # The metastore of the tests drops locks whose heartbeat is older than four seconds.
        {f"{_HIVE}.database": "lake", f"{_HIVE}.table": "events", "lakehouse.lock.lease_ms": "3000"},
    ),
}
#: The fixture with the address of a lock's server, and the option that gets it. Hudi does not read the option of
#: ZooKeeper's port.
SERVERS = {
    "zookeeper": ("zookeeper_hosts", "hoodie.write.lock.zookeeper.url"),
    "hivemetastore": ("hive_uri_without_test_mode", f"{_HIVE}.uris"),
}
HUDIS = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.num_retries": "60",
    "hoodie.write.lock.client.num_retries": "60",
    "hoodie.write.lock.wait_time_ms_between_retry": "50",
    "hoodie.write.lock.heartbeat_interval_ms": "1000",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "50",
    "hoodie.archive.automatic": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.datasource.write.commitmeta.key.prefix": "batch",
}


class Interrupted(FaultyStorage):
    """Storage that runs a rival once, before the first step whose name ends with `before`."""

    def __init__(self, inner: Storage, before: str, rival: Callable[[], None]) -> None:
        super().__init__(inner)
        self._before, self._rival = before, rival
        self.was_interrupted = False

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        """Run the rival before the first matching step."""
        if name.endswith(self._before) and not self.was_interrupted:
            self.was_interrupted = True
            self._rival()
        return super().step(name, call)


@dataclass
class RunLog:
    """Record of a run: batches by name, batches reported as committed, and the number of conflicts of each writer."""

    batches: dict[str, list[Row]] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    lost: dict[str, int] = field(default_factory=lambda: {"hudi": 0, "lakehouse": 0})
    snapshots: list[frozenset[tuple[str, str]]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    #: Set after a conflict of Hudi: lakehouse then avoids shared rows, because a write of Hudi takes 20 times as long.
    yielding: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def batch(self, writer: str, number: int, *, shared: bool) -> list[Row]:
        """Return the rows of a batch: updates and a new key in the writer's partition and, with `shared`, in `both`."""
        name = f"{writer}{number}"
        rows = [row(f"{writer}-{n}", p=writer, v=name) for n in (*range(3), 100 + number)]
        if shared:
            rows += [row(f"both-{n}", p="both", v=name) for n in range(number % 3, 6)]
            rows += [row(f"both-{name}", p="both", v=name)]
        self.batches[name] = rows
        return rows


def hudi_writes(run_log: RunLog, hudi: Hudi, table: Table, options: Mapping[str, str]) -> None:
    """Commit BATCHES batches with Hudi's data source; retry each one after conflicts."""
    try:
        for number in range(BATCHES):
            rows = run_log.batch("hudi", number, shared=number % 4 != 3)
            for attempt in itertools.count(1):
                try:
                    hudi.write(table.location, batch(rows), {**options, "batch": f"hudi{number}"})
                    break
                except HudiError as error:
                    if "HoodieWriteConflictException" not in str(error) or attempt == 20:
                        raise
                run_log.lost["hudi"] += 1
                run_log.yielding.set()
            run_log.yielding.clear()
            run_log.reported.add(f"hudi{number}")
    except BaseException as error:
        run_log.error = error
    finally:
        run_log.done.set()


def lakehouse_writes(run_log: RunLog, table: Table) -> None:
    """Commit batches until Hudi's writer has finished, and read a snapshot after each."""
    for number in itertools.count():
        if run_log.done.is_set() and number >= BATCHES:
            return
        rows = run_log.batch("lakehouse", number, shared=number % 3 == 0 and not run_log.yielding.is_set())
        while True:
            try:
                outcome = table.upsert(batch(rows), commit_metadata={"batch": f"lakehouse{number}"}, options=OURS)
                break
            except RetryableError:
                run_log.lost["lakehouse"] += 1
        assert isinstance(outcome, Committed)
        run_log.reported.add(f"lakehouse{number}")
        run_log.snapshots.append(snapshot(table))
        time.sleep(0.4)


def snapshot(table: Table) -> frozenset[tuple[str, str]]:
    """Return id and v of all rows; assert that each id occurs once."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert len({r["id"] for r in rows}) == len(rows)
    return frozenset((r["id"], r["v"]) for r in rows)


def states(run_log: RunLog, commits: list[tuple[str, Instant]]) -> Iterator[frozenset[tuple[str, str]]]:
    """Yield the expected rows after each commit, in the order of completion."""
    stored: dict[str, str] = {}
    for name, _ in commits:
        stored |= {r["id"]: r["v"] for r in run_log.batches[name]}
        yield frozenset(stored.items())


def named_commits(table: Table) -> list[tuple[str, Instant]]:
    """Return batch names and instants in the order of completion, without Hudi's automatic compactions."""
    writes = [(i, metadata) for i, metadata in table.commits() if metadata.operation not in COMPACTIONS]
    found = [(metadata.extra["batch"], instant) for instant, metadata in writes]
    return sorted(found, key=lambda pair: pair[1].completion)


@dataclass(frozen=True, kw_only=True)
class SharedTable:
    """A table, the options of lakehouse's writer and the options of Hudi's writer."""

    table: Table
    options: Mapping[str, str]
    hudi_options: Mapping[str, str]

    @property
    def hudi_lock_class(self) -> str:
        """The class of Hudi's lock provider."""
        return self.hudi_options["hoodie.write.lock.provider"]


@pytest.fixture(scope="module")
def bridge(hudi: Hudi, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load the lock provider into Hudi that uses lakehouse's local lock file."""
    hudi.load_classes(compiled(tmp_path_factory.mktemp("classes"), *SOURCES))


@pytest.fixture(scope="module")
def hive_uri_without_test_mode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a metastore that accepts the lock requests of Hudi, after another one created the tables of locks."""
    java, place = shutil.which("java"), tmp_path_factory.mktemp("hive-locks") / "metastore"
    if java is None or spark_jars() is None:
        pytest.skip("missing: java and pyspark, whose jars hold the Hive Metastore")
    with metastore_at(place, java) as uri:
        client = MetastoreClient(uri, option="test", timeout_s=60)
        client.call(lambda thrift: thrift.show_locks(ShowLocksRequest()))
        client.close()
    with metastore_at(place, java, in_test=False) as uri:
        yield uri


@contextmanager
def shared_table(
    name: str, lock: str, directory: Path, *, version: int = 9, server: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SharedTable]:
    """Create a table of this shape and yield it with options in which both writers use this lock.

    `server` is the option with the address of the lock's server; see `server_of`.
    """
    shape, (provider, options) = replace(SHAPES[name], version=version), LOCKS[lock]
    ours = {"hoodie.write.lock.provider": provider, **options, **server}
    storage = open_storage(str(directory / "table"))
    table = make_table(replace(shape, options=ours), env=Env(storage=storage))
    kind = {"hoodie.datasource.write.table.type": shape.type, "hoodie.index.type": shape.index}
    pinned = {"hoodie.write.table.version": str(version), "hoodie.write.auto.upgrade": "false"}
    with serving(storage) as url:
        hudis = {**HUDIS, **ours, **kind, **pinned, "hoodie.base.path": table.location}
        if lock == "storage":
            # With the other lock Hudi also runs automatic clean and compaction.
            hudis |= {"hoodie.clean.automatic": "false", "hoodie.compact.inline": "false"}
            hudis |= {"hoodie.write.lock.provider": f"{_LOCKS}.{PROVIDER}", "hoodie.test.lock.url": url}
        yield SharedTable(table=Table.open(table.location, options=ours), options=ours, hudi_options=hudis)


def server_of(lock: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Start the server of a lock, and return the option with its address; empty for locks without a server."""
    if lock not in SERVERS:
        return {}
    fixture, option = SERVERS[lock]
    return {option: request.getfixturevalue(fixture)}


def run(both: SharedTable, hudi: Hudi) -> RunLog:
    """Run both writers and return the record of the run."""
    run_log, table = RunLog(), both.table
    run_log.batches["seed"] = [row(f"both-{n}", p="both", v="seed") for n in range(6)]
    table.upsert(batch(run_log.batches["seed"]), commit_metadata={"batch": "seed"}, options=OURS)
    run_log.reported.add("seed")
    thread = threading.Thread(target=hudi_writes, args=(run_log, hudi, table, both.hudi_options))
    thread.start()
    try:
        lakehouse_writes(run_log, table)
    finally:
        thread.join(120)
    if run_log.error is not None:
        raise run_log.error
    return run_log


def assert_serial(table: Table, run_log: RunLog, hudi: Hudi) -> None:
    """Assert that all readers and all snapshots show the result of executing the commits one after the other."""
    commits = named_commits(table)
    assert sorted(name for name, _ in commits) == sorted(run_log.reported), "reported and completed commits differ"
    known = list(states(run_log, commits))
    assert snapshot(table) == known[-1]
    for number, seen in enumerate(run_log.snapshots):
        # The state with the fewest differences shows what the snapshot lacks or has too much.
        nearest = min(known, key=lambda state: len(state ^ seen))
        lacks, more = sorted(nearest - seen), sorted(seen - nearest)
        assert seen == nearest, f"snapshot {number} equals no state after a commit: lacks {lacks}, has {more}"
    assert_hudi_reads_the_same(hudi, table)


def assert_hudi_rs_reads_the_same(table: Table) -> None:
    """Assert that hudi-rs returns the rows of the snapshot, each once."""
    theirs = hudi_rs.read(table.location)
    rows = snapshot(table)
    assert frozenset(zip(theirs["id"].to_pylist(), theirs["v"].to_pylist(), strict=True)) == rows
    assert theirs.num_rows == len(rows)


def assert_interleaved(commits: list[tuple[str, Instant]]) -> None:
    """Assert that commits of both writers alternate, and that some writes overlap in time."""
    sides = [name.rstrip("0123456789") for name, _ in commits]
    assert sum(one != other for one, other in itertools.pairwise(sides)) > 3, sides
    spans = [(name[0], instant.requested, instant.completion) for name, instant in commits]
    overlaps = [
        (one, other)
        for one, other in itertools.combinations(spans, 2)
        if one[0] != other[0] and max(one[1], other[1]) < min(one[2], other[2])
    ]
    assert overlaps, "no two writes overlap in time"


def assert_no_leftovers(table: Table, run_log: RunLog) -> None:
    """Assert that a rollback deletes all leftover files of failed writes of both writers, and no other file."""
    table.rollback_failed()
    storage = table.services_as_loaded.table.env.storage
    named = {stat.path for _, metadata in table.commits() for stat in metadata.stats}
    assert {file.path for file in (*base_files(storage), *log_files(storage))} <= named
    assert not table.timeline.where(pending=True)
    assert snapshot(table) == list(states(run_log, named_commits(table)))[-1]


@pytest.mark.usefixtures("bridge")
@pytest.mark.parametrize(
    ("name", "lock", "version"),
    [
        ("copy-on-write", "filesystem", 9),
        ("merge-on-read", "filesystem", 9),
        ("merge-on-read", "storage", 9),
        ("copy-on-write", "filesystem", 8),
        ("merge-on-read", "zookeeper", 8),
        ("copy-on-write", "zookeeper", 9),
        ("copy-on-write", "hivemetastore", 9),
        ("merge-on-read", "hivemetastore", 8),
    ],
)
def test_concurrent_commits_of_hudi_and_lakehouse_are_serializable(
    name: str, lock: str, version: int, hudi: Hudi, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with shared_table(name, lock, tmp_path, version=version, server=server_of(lock, request)) as both:
        run_log = run(both, hudi)
        assert both.table.refresh().config.version == version
        assert_serial(both.table, run_log, hudi)
        assert_hudi_rs_reads_the_same(both.table)
        assert_interleaved(named_commits(both.table))
        assert_no_leftovers(both.table, run_log)


@pytest.mark.parametrize("name", SHAPES)
def test_lakehouse_retries_after_a_conflict_with_hudi(name: str, hudi: Hudi, tmp_path: Path) -> None:
    with shared_table(name, "filesystem", tmp_path) as both:
        rows = [row(f"k{n}", p="both", v="seed") for n in range(4)]
        both.table.upsert(batch(rows), options=OURS)
        theirs = batch([*(r | {"v": "hudi"} for r in rows[1:]), row("h1", p="both", v="hudi")])
        location = both.table.location
        lost = Interrupted(open_storage(location), ".inflight", lambda: hudi.write(location, theirs, both.hudi_options))
        ours = Table.open(location, options=both.options, env=Env(storage=lost))
        assert isinstance(ours.upsert(batch(r | {"v": "lakehouse"} for r in rows[:2]), options=OURS), Committed)
        assert lost.was_interrupted
        expected = {("k0", "lakehouse"), ("k1", "lakehouse"), ("k2", "hudi"), ("k3", "hudi"), ("h1", "hudi")}
        assert snapshot(both.table) == expected
        assert len(both.table.commits()) == 3
        assert_hudi_reads_the_same(hudi, both.table)


def hudi_locks(hudi: Hudi, both: SharedTable, *, wait_ms: int) -> bool:
    """Try to acquire the lock with Hudi's provider, which for ZooKeeper raises an error if it is held."""
    try:
        return hudi.lock(both.hudi_lock_class, both.hudi_options, wait_ms=wait_ms)
    except HudiError as error:
        if "FAILED_TO_ACQUIRE" not in str(error):
            raise
        return False


@pytest.mark.usefixtures("bridge")
@pytest.mark.parametrize("lock", LOCKS)
def test_lock_excludes_hudi_and_lakehouse_from_each_other(
    lock: str, hudi: Hudi, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with shared_table("copy-on-write", lock, tmp_path, server=server_of(lock, request)) as both:
        options = {**OURS, **both.options}
        patient = parse_options(options).transaction
        hasty = parse_options({**options, "hoodie.write.lock.wait_time_ms": "700"}).transaction
        env = Env(storage=open_storage(both.table.location))
        for _ in range(2):
            with table_lock(env, patient):
                assert not hudi_locks(hudi, both, wait_ms=1500)
            assert hudi_locks(hudi, both, wait_ms=5000)
            with pytest.raises(RetryableError, match="lock"), table_lock(env, hasty):
                pass
            hudi.unlock()
