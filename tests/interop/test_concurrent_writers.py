"""One of our writers and one of Apache Hudi's write one table at the same time, under one lock.

Each commits a number of batches as fast as it can: rows of its own partitions, and now and then rows that the other
changes too. Whoever loses tries again. What must come out follows from the order of the commits on the timeline alone:

    hudi   h0 .............. h1 ........ lost ......... h2 ....
    we     o0 .. o1 .. o2 .. lost .. o3 .. o4 .. o5 .. o6 ..        every snapshot in between is that of some commit
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError
from lakehouse.model.commit import COMPACTIONS
from lakehouse.model.instant import Instant
from lakehouse.spec.options.parser import parse_options
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support import hudi_rs
from tests.support.hudi import Hudi, HudiError
from tests.support.lock_bridge import PROVIDER, compiled, serving
from tests.support.tables import Shape, base_files, batch, log_files, make_table, row

pytestmark = pytest.mark.jvm

Row = dict[str, Any]
#: Batches of Hudi's writer; ours goes on until that one is done.
BATCHES = 2 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1"))
_LOCKS = "org.apache.hudi.client.transaction.lock"
SHAPES = {
    "copy-on-write": Shape(merge="commit", url_encode=False),
    "merge-on-read": Shape(type="MERGE_ON_READ", merge="commit", url_encode=False, index="BUCKET", buckets=2),
}
OURS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "50",
}
#: What both sides are told of the lock; Hudi's storage-based one gets another client, see BridgedStorageLockProvider.
LOCKS = {
    "filesystem": ("FileSystemBasedLockProvider", {"hoodie.write.lock.filesystem.expire": "0"}),
    "storage": ("StorageBasedLockProvider", {}),
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
    "hoodie.write.lock.client.wait_time_ms_between_retry": "50",
    "hoodie.archive.automatic": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.datasource.write.commitmeta.key.prefix": "who",
}


class Interrupted(FaultyStorage):
    """Lets a rival act once, just before the step whose name ends with `before`."""

    def __init__(self, inner: Storage, before: str, rival: Callable[[], None]) -> None:
        super().__init__(inner)
        self._before, self._rival = before, rival
        self.was_interrupted = False

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        """Let the rival act before the first step of the kind."""
        if name.endswith(self._before) and not self.was_interrupted:
            self.was_interrupted = True
            self._rival()
        return super().step(name, call)


@dataclass
class Course:
    """What both sides did: batches by name, those that were reported as committed, and how often each side lost."""

    batches: dict[str, list[Row]] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    lost: dict[str, int] = field(default_factory=lambda: {"hudi": 0, "we": 0})
    snapshots: list[frozenset[tuple[str, str]]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    #: Set once Hudi has lost: the next time we stay out of its way, since it takes twenty times as long as we do.
    yielding: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def batch(self, who: str, number: int, *, shared: bool) -> list[Row]:
        """Return the rows of a batch: updates and a new key in the writer's own partition, and in that of both."""
        name = f"{who}{number}"
        rows = [row(f"{who}-{n}", p=who, v=name) for n in (*range(3), 100 + number)]
        if shared:
            rows += [row(f"both-{n}", p="both", v=name) for n in range(number % 3, 6)]
            rows += [row(f"both-{name}", p="both", v=name)]
        self.batches[name] = rows
        return rows


def hudi_writes(course: Course, hudi: Hudi, table: Table, options: Mapping[str, str]) -> None:
    """Commit BATCHES batches through Hudi's data source, each as often as it takes."""
    try:
        for number in range(BATCHES):
            rows = course.batch("hudi", number, shared=number % 4 != 3)
            for attempt in itertools.count(1):
                try:
                    hudi.write(table.location, batch(rows), {**options, "who": f"hudi{number}"})
                    break
                except HudiError as error:
                    if "HoodieWriteConflictException" not in str(error) or attempt == 20:
                        raise
                course.lost["hudi"] += 1
                course.yielding.set()
            course.yielding.clear()
            course.reported.add(f"hudi{number}")
    except BaseException as error:
        course.error = error
    finally:
        course.done.set()


def we_write(course: Course, table: Table) -> None:
    """Commit batches until Hudi is done, and read between them."""
    for number in itertools.count():
        if course.done.is_set() and number >= BATCHES:
            return
        rows = course.batch("we", number, shared=number % 3 == 0 and not course.yielding.is_set())
        while True:
            try:
                outcome = table.upsert(batch(rows), commit_metadata={"who": f"we{number}"}, options=OURS)
                break
            except RetryableError:
                course.lost["we"] += 1
        assert isinstance(outcome, Committed)
        course.reported.add(f"we{number}")
        course.snapshots.append(snapshot(table))
        time.sleep(0.4)


def snapshot(table: Table) -> frozenset[tuple[str, str]]:
    """Return id and v of all rows; no key may stand there twice."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert len({r["id"] for r in rows}) == len(rows)
    return frozenset((r["id"], r["v"]) for r in rows)


def states(course: Course, commits: list[tuple[str, Instant]]) -> Iterator[frozenset[tuple[str, str]]]:
    """Yield what a reader may see: the table after each commit, in the order in which they completed."""
    stored: dict[str, str] = {}
    for name, _ in commits:
        stored |= {r["id"]: r["v"] for r in course.batches[name]}
        yield frozenset(stored.items())


def named_commits(table: Table) -> list[tuple[str, Instant]]:
    """Return batches and instants in the order of completion; compactions, which Hudi runs as it likes, are none."""
    writes = [(i, metadata) for i, metadata in table.commits() if metadata.operation not in COMPACTIONS]
    found = [(metadata.extra["who"], instant) for instant, metadata in writes]
    return sorted(found, key=lambda pair: pair[1].completion)


@dataclass(frozen=True, kw_only=True)
class Together:
    """A table, what we are told to write to it, and what Hudi is."""

    table: Table
    ours: Mapping[str, str]
    hudis: Mapping[str, str]

    @property
    def hudis_class(self) -> str:
        """The bare name of Hudi's lock provider."""
        return self.hudis["hoodie.write.lock.provider"].rpartition(".")[2]


@pytest.fixture(scope="module")
def bridge(hudi: Hudi, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give Hudi the provider that reaches our local lock file."""
    hudi.load_classes(compiled(tmp_path_factory.mktemp("classes")))


@contextmanager
def together(name: str, lock: str, directory: Path) -> Iterator[Together]:
    """Give a table of this shape, with this lock for both sides."""
    shape, (provider, options) = SHAPES[name], LOCKS[lock]
    ours = {"hoodie.write.lock.provider": f"{_LOCKS}.{provider}", **options}
    storage = open_storage(str(directory / "table"))
    table = make_table(replace(shape, options=ours), env=Env(storage=storage))
    kind = {"hoodie.datasource.write.table.type": shape.type, "hoodie.index.type": shape.index}
    with serving(storage) as url:
        hudis = {**HUDIS, **ours, **kind, "hoodie.base.path": table.location}
        if lock == "storage":
            # Beside the other lock Hudi cleans and compacts as it likes, too.
            hudis |= {"hoodie.clean.automatic": "false", "hoodie.compact.inline": "false"}
            hudis |= {"hoodie.write.lock.provider": f"{_LOCKS}.{PROVIDER}", "hoodie.test.lock.url": url}
        yield Together(table=Table.open(table.location, options=ours), ours=ours, hudis=hudis)


def run(both: Together, hudi: Hudi) -> Course:
    """Let both write, and return what they did."""
    course, table = Course(), both.table
    course.batches["seed"] = [row(f"both-{n}", p="both", v="seed") for n in range(6)]
    table.upsert(batch(course.batches["seed"]), commit_metadata={"who": "seed"}, options=OURS)
    course.reported.add("seed")
    thread = threading.Thread(target=hudi_writes, args=(course, hudi, table, both.hudis))
    thread.start()
    try:
        we_write(course, table)
    finally:
        thread.join(120)
    if course.error is not None:
        raise course.error
    return course


def assert_serial(table: Table, course: Course, hudi: Hudi) -> None:
    """Assert that the history is that of one commit after the other, for every reader and at every moment."""
    commits = named_commits(table)
    assert sorted(name for name, _ in commits) == sorted(course.reported), "reported and committed differ"
    known = list(states(course, commits))
    assert snapshot(table) == known[-1]
    assert all(seen in known for seen in course.snapshots), "a snapshot that no commit made"
    assert_hudi_reads_the_same(hudi, table)
    theirs = hudi_rs.read(table.location)
    assert frozenset(zip(theirs["id"].to_pylist(), theirs["v"].to_pylist(), strict=True)) == known[-1]
    assert theirs.num_rows == len(known[-1])


def assert_interleaved(commits: list[tuple[str, Instant]]) -> None:
    """Assert that each writer committed between the other's commits, and that some were at work at the same time."""
    sides = [name.rstrip("0123456789") for name, _ in commits]
    assert sum(one != other for one, other in itertools.pairwise(sides)) > 3, sides
    spans = [(name[0], instant.requested, instant.completion) for name, instant in commits]
    overlaps = [
        (one, other)
        for one, other in itertools.combinations(spans, 2)
        if one[0] != other[0] and max(one[1], other[1]) < min(one[2], other[2])
    ]
    assert overlaps, "nobody was at work while the other was"


def assert_tidy(table: Table, course: Course) -> None:
    """Assert that what losers left is found and deleted by us, whoever they were, and nothing else."""
    table.rollback_failed()
    storage = open_storage(table.location)
    named = {stat.path for _, metadata in table.commits() for stat in metadata.stats}
    assert {file.path for file in (*base_files(storage), *log_files(storage))} <= named
    assert not table.timeline.where(pending=True)
    assert snapshot(table) == list(states(course, named_commits(table)))[-1]


@pytest.mark.usefixtures("bridge")
@pytest.mark.parametrize(
    ("name", "lock"), [("copy-on-write", "filesystem"), ("merge-on-read", "filesystem"), ("merge-on-read", "storage")]
)
def test_what_both_commit_is_there_once_and_in_order(name: str, lock: str, hudi: Hudi, tmp_path: Path) -> None:
    with together(name, lock, tmp_path) as both:
        course = run(both, hudi)
        assert_serial(both.table, course, hudi)
        assert_interleaved(named_commits(both.table))
        assert_tidy(both.table, course)


@pytest.mark.parametrize("name", SHAPES)
def test_who_loses_to_hudi_plans_again_with_its_rows(name: str, hudi: Hudi, tmp_path: Path) -> None:
    with together(name, "filesystem", tmp_path) as both:
        rows = [row(f"k{n}", p="both", v="seed") for n in range(4)]
        both.table.upsert(batch(rows), options=OURS)
        theirs = batch([*(r | {"v": "hudi"} for r in rows[1:]), row("h1", p="both", v="hudi")])
        location = both.table.location
        lost = Interrupted(open_storage(location), ".inflight", lambda: hudi.write(location, theirs, both.hudis))
        ours = Table.open(location, options=both.ours, env=Env(storage=lost))
        assert isinstance(ours.upsert(batch(r | {"v": "we"} for r in rows[:2]), options=OURS), Committed)
        assert lost.was_interrupted
        expected = {("k0", "we"), ("k1", "we"), ("k2", "hudi"), ("k3", "hudi"), ("h1", "hudi")}
        assert snapshot(both.table) == expected
        assert len(both.table.commits()) == 3
        assert_hudi_reads_the_same(hudi, both.table)


@pytest.mark.usefixtures("bridge")
@pytest.mark.parametrize("lock", LOCKS)
def test_who_holds_the_lock_keeps_the_other_out(lock: str, hudi: Hudi, tmp_path: Path) -> None:
    with together("copy-on-write", lock, tmp_path) as both:
        policy = parse_options({**OURS, **both.ours, "hoodie.write.lock.wait_time_ms": "700"}).transaction
        env = Env(storage=open_storage(both.table.location))
        for _ in range(2):
            with table_lock(env, policy):
                assert not hudi.lock(both.hudis_class, both.hudis, wait_ms=1500)
            assert hudi.lock(both.hudis_class, both.hudis, wait_ms=5000)
            with pytest.raises(RetryableError, match="lock"), table_lock(env, policy):
                pass
            hudi.unlock()
