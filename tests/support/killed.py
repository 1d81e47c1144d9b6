"""Writers that die: what they were doing, what the table may hold afterwards, and what must not be left of them.

Every verb is told twice: as a call on a table, and as what it does to a dict {(partition, key): value}.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lakehouse.errors import RetryableError
from lakehouse.format.names import parse_base_file
from lakehouse.model.instant import Timeline
from lakehouse.storage.faults import FaultyStorage
from lakehouse.storage.local import LocalStorage
from lakehouse.storage.memory import MemoryStorage
from lakehouse.storage.protocol import Storage, is_temporary
from lakehouse.table import Table
from lakehouse.txn.env import Env, SystemClock

Rows = dict[tuple[str, str], int]

BASE: Rows = {(p, f"{p}{i}"): 1 for p in ("a", "b") for i in range(5)}
INDEXES: dict[str, dict[str, str]] = {
    "SIMPLE": {},
    "BUCKET": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
}
#: Changes that an upsert makes: two stored rows, a new row in a known partition and one in a new partition.
CHANGED: Rows = {("a", "a1"): 2, ("b", "b2"): 2, ("a", "a9"): 2, ("c", "c1"): 2}
DELETED = (("a", "a3"), ("b", "b4"))
ADDED: Rows = {("b", "b8"): 2, ("c", "c1"): 2, ("c", "c2"): 2}
#: What the next writer, the survivor, upserts.
RECOVERY: Rows = {("a", "a2"): 9, ("b", "b9"): 9, ("d", "d1"): 9}


@dataclass(frozen=True, slots=True)
class Host:
    """A process as the table sees it: its own number, and the numbers of processes that are gone."""

    pid: int
    dead: frozenset[int] = field(default_factory=frozenset)

    def me(self) -> tuple[str, int]:
        """Return host and process number."""
        return "one-host", self.pid

    def is_alive(self, pid: int) -> bool:
        """Return whether the process lives."""
        return pid not in self.dead


@dataclass(frozen=True, slots=True)
class Verb:
    """A write, and what it does to the dict."""

    run: Callable[[Table], object]
    after: Callable[[Rows], Rows]


def batch(rows: Mapping[tuple[str, str], int], deleted: Iterable[tuple[str, str]] = ()) -> pa.Table:
    """Return rows, and deletes of keys, as a batch; values serve as ordering values too."""
    gone = list(deleted)
    keys = [*rows, *gone]
    values = [*rows.values(), *[5] * len(gone)]
    return pa.table(
        {
            "id": [key for _, key in keys],
            "p": [partition for partition, _ in keys],
            "v": pa.array(values, pa.int64()),
            "ts": pa.array(values, pa.int64()),
            "_hoodie_is_deleted": [key in gone for key in keys],
        }
    )


def _without(rows: Rows, keys: Iterable[tuple[str, str]]) -> Rows:
    gone = set(keys)
    return {key: value for key, value in rows.items() if key not in gone}


VERBS: dict[str, Verb] = {
    "upsert": Verb(
        lambda table: table.upsert(batch(CHANGED, DELETED)), lambda rows: _without({**rows, **CHANGED}, DELETED)
    ),
    "insert": Verb(lambda table: table.insert(batch(ADDED)), lambda rows: {**rows, **ADDED}),
    "bulk_insert": Verb(lambda table: table.bulk_insert(batch(ADDED)), lambda rows: {**rows, **ADDED}),
    "delete": Verb(
        lambda table: table.delete(batch(dict.fromkeys(DELETED, 9)).select(["id", "p"])),
        lambda rows: _without(rows, DELETED),
    ),
    "insert_overwrite": Verb(
        lambda table: table.insert_overwrite(batch(ADDED)),
        lambda rows: {**{key: value for key, value in rows.items() if key[0] not in ("b", "c")}, **ADDED},
    ),
    "insert_overwrite_table": Verb(lambda table: table.insert_overwrite_table(batch(ADDED)), lambda rows: dict(ADDED)),
    "delete_partitions": Verb(
        lambda table: table.delete_partitions(["a"]),
        lambda rows: {key: value for key, value in rows.items() if key[0] != "a"},
    ),
}


def create(storage: Storage, index: str, pid: int = 1, dead: Iterable[int] = ()) -> Table:
    """Create the table, or open it if it is there."""
    return Table.create(
        storage.root,
        name="mortal",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        options=INDEXES[index],
        exist_ok=True,
        env=Env(storage=storage, processes=Host(pid, frozenset(dead))),
    )


def open_as(storage: Storage, pid: int, dead: Iterable[int] = (), **options: str) -> Table:
    """Open the table as the process `pid`, to whom the processes `dead` are gone."""
    return Table.open(storage.root, options=options, env=Env(storage=storage, processes=Host(pid, frozenset(dead))))


def base_table(storage: Storage, index: str) -> Storage:
    """Fill a store with a table of BASE, some of it updated once."""
    table = create(storage, index)
    table.bulk_insert(batch({**BASE, ("a", "a0"): 0}))
    table.upsert(batch({("a", "a0"): 1}))
    return storage


def copy_of(storage: Storage) -> MemoryStorage:
    """Return a store in memory with the same files."""
    copy = MemoryStorage()
    for file in storage.list(""):
        copy.put(file.path, storage.get(file.path))
    return copy


def rows_of(storage: Storage) -> Rows:
    """Return the rows a reader sees; a key that shows up twice fails."""
    found = open_as(storage, 999).scan(columns=["p", "id", "v"]).to_arrow().to_pydict()
    rows = dict(zip(zip(found["p"], found["id"], strict=True), found["v"], strict=True))
    assert len(rows) == len(found["v"]), f"a key shows up twice: {sorted(found['id'])}"
    return rows


def writes_of(storage: Storage) -> int:
    """Return the number of completed writes."""
    return len(open_as(storage, 999).timeline.writes())


def leftovers(storage: Storage) -> list[str]:
    """Return what lies in the table and belongs to no completed instant."""
    table = open_as(storage, 999)
    timeline: Timeline = table.timeline
    named = {stat.path for _, metadata in table.commits() for stat in metadata.stats}
    left = [f"pending {instant.requested}.{instant.action}" for instant in timeline.where(pending=True)]
    for file in storage.list(""):
        partition, _, name = file.path.rpartition("/")
        is_stray = file.path not in named and parse_base_file(name, partition, file.size_bytes) is not None
        if is_stray or is_temporary(file.path) or file.path.startswith((".hoodie/.", ".hoodie/lock")):
            left.append(file.path)
    return left


def run_and_die(root: str, index: str, verb: str, step: int, mode: str) -> None:
    """Run a verb on a local table and be killed at a step; for a process of its own."""
    storage = FaultyStorage(LocalStorage(root), step, mode)
    table = Table.open(root, options=INDEXES[index], env=Env(storage=storage))
    VERBS[verb].run(table)


def killed(root: str, index: str, verb: str, step: int, mode: str) -> int | None:
    """Run a verb in a process that is killed at a step; return its exit code, negative for a signal."""
    processes = multiprocessing.get_context("forkserver")
    # Children are forked from a server that has imported all of this, so each takes milliseconds to start.
    processes.set_forkserver_preload([__name__])
    child = processes.Process(target=run_and_die, args=(root, index, verb, step, mode))
    child.start()
    child.join()
    return child.exitcode


def share(number: int) -> Rows:
    """Return what one of several racing writers brings: a row of its own in a partition they all write to."""
    return {("a", f"n{number}"): number, ("n", f"n{number}"): number}


def insist(root: str, number: int) -> None:
    """Upsert a share into a local table as often as it takes; whatever is not `try again` is an error."""
    table = Table.open(root)
    for _ in range(500):
        try:
            table.upsert(batch(share(number)))
            return
        except RetryableError as error:
            assert re.search(r"\d{17}|lock", str(error)), f"{error} does not say who is in the way"
            SystemClock().sleep(0.01)
    raise AssertionError("never had a turn")
