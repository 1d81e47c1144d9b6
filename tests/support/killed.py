"""Run table operations that are killed, and state what the table may contain afterwards.

Each operation is defined twice: as a call on a table, and as its effect on a dict {(partition, key): value}.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pytest

from lakehouse.core.env import Env, process_state
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.log.blocks import BlockType, scan_blocks
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME
from lakehouse.core.metadata.place import DEFINITIONS_PATH, METADATA
from lakehouse.core.operations.write import write
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage, is_temporary
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.system.processes import ProcessId
from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, RetryableError
from lakehouse.model.instant import Timeline
from tests.support.metadata_files import strays_of_metadata
from tests.support.processes import forked

T = TypeVar("T")
Rows = dict[tuple[str, str], int]

#: Crash at each step of each operation, not only at the steps that change storage.
EXHAUSTIVE = "LAKEHOUSE_EXAMPLES" in os.environ
CHANGING = ("create", "put", "replace_if", "delete", "open_output", "close")

BASE: Rows = {(p, f"{p}{i}"): 1 for p in ("a", "b") for i in range(5)}
INDEXES: dict[str, dict[str, str]] = {
    "SIMPLE": {},
    "BUCKET": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
    "SIMPLE_6": {"hoodie.write.table.version": "6"},
}
#: Options of merge-on-read tables, by index. A name that ends in `_6` is that of a table of version 6.
LOGGED: dict[str, dict[str, str]] = {
    **{f"LOGS_{name}": options for name, options in INDEXES.items()},
    "LOGS_BUCKET_6": INDEXES["BUCKET"] | INDEXES["SIMPLE_6"],
}
#: The services that compact each of these tables: version 6 has no log compaction.
COMPACTED: tuple[tuple[str, str], ...] = tuple(
    (index, service)
    for service in ("compaction", "log compaction")
    for index in LOGGED
    if service == "compaction" or not index.endswith("_6")
)
#: Options of tables of version 6, by a name in place of an index; the second one is merge-on-read.
OLDER: dict[str, dict[str, str]] = {name: {"hoodie.write.table.version": "6"} for name in ("V6", "LOGS_V6")}
#: Options of every call: two logs are enough for a log compaction.
CALLS = {"hoodie.log.compaction.blocks.threshold": "2"}
#: Rows of the upsert: two stored rows, a new row in an existing partition and one in a new partition.
CHANGED: Rows = {("a", "a1"): 2, ("b", "b2"): 2, ("a", "a9"): 2, ("c", "c1"): 2}
DELETED = (("a", "a3"), ("b", "b4"))
ADDED: Rows = {("b", "b8"): 2, ("c", "c1"): 2, ("c", "c2"): 2}
#: Rows that the next writer upserts after the crash.
RECOVERY: Rows = {("a", "a2"): 9, ("b", "b9"): 9, ("d", "d1"): 9}


@dataclass(frozen=True, slots=True)
class Host:
    """Simulated process table: the id of the current process, and the ids of processes that do not run any more."""

    pid: int
    dead: frozenset[int] = field(default_factory=frozenset)

    def current(self) -> ProcessId:
        """Return the current process."""
        return ProcessId(host="one-host", pid=self.pid, boot="boot", namespace="pid:[1]", started=str(self.pid))

    def is_running(self, process: ProcessId) -> bool:
        """Return whether the process runs."""
        return process.pid not in self.dead


class Interrupted(FaultyStorage):
    """Storage that pauses its user before a step while another process runs `rival`.

    The step is the one with number `at`, or the first whose name begins with the text `at`.
    """

    def __init__(
        self, inner: Storage, at: int | str, rival: Callable[[Storage], object], patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(inner)
        self.at, self.rival, self.patch = at, rival, patch

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Run the rival before the step with the chosen number."""
        with self._lock:
            if isinstance(self.at, str):
                is_due = name.startswith(self.at)
                self.at = 0 if is_due else self.at
            else:
                self.at -= 1
                is_due = self.at == 0
        if is_due:
            # Another process does not see the locks that this process holds in memory.
            with self.patch.context() as other_process:
                other_process.setattr(process_state(), "_thread_locks", {})
                self.rival(self.inner)
        return super().step(name, call)


class Unanswered(FaultyStorage):
    """Storage whose reply to the commit is lost; it records later deletions.

    With `lands` the completed file is created although the reply is lost.
    """

    def __init__(self, inner: Storage, *, lands: bool) -> None:
        super().__init__(inner)
        self.lands = lands
        self.commit = ""
        self.deleted: list[str] = []

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        if path.endswith((".commit", ".replacecommit")):
            self.commit = path
            if self.lands:
                self.inner.create(path, data)
            raise CommitStateUnknownError("no answer")
        return super().create(path, data, unique=unique)

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        return self.create(path, data, unique=True)

    def get(self, path: str) -> bytes:
        if path == self.commit:
            raise RetryableError("no answer")
        return super().get(path)

    def delete(self, path: str) -> bool:
        if self.commit:
            self.deleted.append(path)
        return super().delete(path)


def points(steps: Sequence[str], *, every: bool = EXHAUSTIVE) -> Iterator[tuple[int, FaultMode]]:
    """Yield the steps at which to crash, with the fault mode.

    A crash before a step equals one after the previous step, and a read changes nothing. Unless `every` is set, both
    are skipped.
    """
    for number, step in enumerate(steps, start=1):
        if every or number == 1:
            yield number, FaultMode.CRASH_BEFORE
        if every or step.startswith(CHANGING):
            yield number, FaultMode.CRASH_AFTER


def share_of(found: Iterable[T], part: object, of: int) -> list[T]:
    """Return every `of`-th item, starting at an offset that depends on `part`.

    Similar tests pass different parts, so together they cover more items. With LAKEHOUSE_EXAMPLES set, all items are
    returned.
    """
    listed = list(found)
    start = sum(map(ord, str(part))) % of
    return listed if EXHAUSTIVE else listed[start::of]


@dataclass(frozen=True, slots=True)
class Verb:
    """A write operation, and its effect on the dict of rows."""

    run: Callable[[Table], object]
    after: Callable[[Rows], Rows]


def batch(rows: Mapping[tuple[str, str], int], deleted: Iterable[tuple[str, str]] = ()) -> pa.Table:
    """Return a batch with rows and with deletes of keys; the values are also the ordering values."""
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


#: Table services of merge-on-read tables; they change no row.
SERVICES: dict[str, Callable[[Table], object]] = {
    "plan compaction": lambda table: table.services.compaction.schedule(force=True),
    "compaction": lambda table: table.services.compaction.run(force=True),
    "log compaction": lambda table: table.services.log_compaction.run(),
}


def run_verb(name: str, table: Table) -> None:
    """Run an operation of VERBS or SERVICES."""
    if name in SERVICES:
        SERVICES[name](table)
    else:
        VERBS[name].run(table)


def create(storage: Storage, index: str, pid: int = 1, dead: Iterable[int] = ()) -> Table:
    """Create the table, or open it if it exists; `dead` are the processes that do not run any more."""
    return Table.create(
        storage.root,
        name="mortal",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type="MERGE_ON_READ" if index.startswith("LOGS_") else "COPY_ON_WRITE",
        options={**INDEXES, **LOGGED, **OLDER}[index] | CALLS,
        exist_ok=True,
        env=Env(storage=storage, processes=Host(pid, frozenset(dead))),
    )


def call_options(index: str) -> dict[str, str]:
    """Return the options of a call; the version is only an option of the creation."""
    options = {**INDEXES, **LOGGED}[index] | CALLS
    return {name: value for name, value in options.items() if name != "hoodie.write.table.version"}


def open_as(storage: Storage, pid: int, dead: Iterable[int] = (), **options: str) -> Table:
    """Open the table as the process `pid`; `dead` are the processes that do not run any more."""
    return Table.open(
        storage.root, options=CALLS | options, env=Env(storage=storage, processes=Host(pid, frozenset(dead)))
    )


def base_table(storage: Storage, index: str) -> Storage:
    """Create a table with the rows of BASE on a store; one row is updated once."""
    table = create(storage, index)
    table.bulk_insert(batch({**BASE, ("a", "a0"): 0}))
    table.upsert(batch({("a", "a0"): 1}))
    return storage


def logged_table(storage: Storage, index: str, plan: str = "") -> Storage:
    """Create a merge-on-read table with the rows of BASE on a store; several logs contain updates and deletes.

    With `plan`, a plan of that service is scheduled. One row is inserted last: unless the index chooses its file group,
    the row is in a file group without logs.
    """
    table = create(storage, index)
    first = _without(BASE, [("b", "b4")])
    table.bulk_insert(batch({**first, ("a", "a0"): 0, ("b", "b7"): 1}))
    table.upsert(batch({**first, ("a", "a1"): 0}, [("b", "b7")]))
    table.upsert(batch(first))
    table.insert(batch({("b", "b4"): 1}))
    if plan:
        table.services.named("logcompaction" if plan == "log compaction" else "compaction").schedule(force=True)
    return storage


def copy_of(storage: Storage) -> MemoryStorage:
    """Return a memory store with the same files."""
    copy = MemoryStorage()
    for file in storage.list(""):
        copy.put(file.path, storage.get(file.path))
    return copy


def rows_of(storage: Storage) -> Rows:
    """Return the rows that a reader sees; fail if a key occurs twice, or if a partition has no metadata file."""
    found = open_as(storage, 999).scan(columns=["p", "id", "v"]).to_arrow().to_pydict()
    rows = dict(zip(zip(found["p"], found["id"], strict=True), found["v"], strict=True))
    assert len(rows) == len(found["v"]), f"a key occurs twice: {sorted(found['id'])}"
    lost = [name for name in set(found["p"]) if storage.find(f"{name}/{PARTITION_METADATA_NAME}") is None]
    assert not lost, f"Hudi does not find the partitions {lost}"
    return rows


def writes_of(storage: Storage) -> int:
    """Return the number of completed writes."""
    return len(open_as(storage, 999).timeline.writes())


def leftovers(storage: Storage) -> list[str]:
    """Return pending instants, leftover files, and files that a commit names but that do not exist."""
    table = open_as(storage, 999)
    timeline: Timeline = table.timeline
    named = {stat.path for _, metadata in table.commits() for stat in metadata.stats}
    left = [f"pending {instant.requested}.{instant.action}" for instant in timeline.where(pending=True)]
    left += [f"missing {path}" for path in sorted(named - {file.path for file in storage.list("")})]
    left += strays_of_metadata(storage)
    archived = table.refresh().store.commits(table.archived())
    named |= {stat.path for _, metadata in archived for stat in metadata.stats}
    for file in storage.list(""):
        if file.path == DEFINITIONS_PATH or file.path.startswith(f"{METADATA}/"):
            continue
        partition, _, name = file.path.rpartition("/")
        is_data = parse_base_file(name, partition, 0) or parse_log_file(name, partition, 0)
        is_stray = file.path not in named and is_data is not None and not partition.startswith(".hoodie/timeline")
        if is_stray and table.config.names_logs_by_slice and is_undone(storage, file.path):
            continue
        if is_stray or is_temporary(file.path) or file.path.startswith((".hoodie/.", ".hoodie/lock")):
            left.append(file.path)
    return left


def is_undone(storage: Storage, path: str) -> bool:
    """Return whether a log file has no rows of a reader: a command block, or blocks that a later one rolls back.

    In version 6 such log files stay. The command block of a rollback is in the same slice.
    """
    partition, _, name = path.rpartition("/")
    log = parse_log_file(name, partition, 0)
    if log is None:
        return False
    blocks = scan_blocks(io.BytesIO(storage.get(path)))
    targets = set()
    for file in storage.list(partition):
        other = parse_log_file(file.name, partition, 0)
        if other and (other.file_id, other.instant) == (log.file_id, log.instant) and other.version > log.version:
            targets |= {block.target for block in scan_blocks(io.BytesIO(storage.get(file.path)))}
    return all(block.kind is BlockType.COMMAND or block.instant in targets for block in blocks)


def run_and_die(root: str, index: str, verb: str, step: int, mode: str) -> None:
    """Run an operation on a local table with a fault at one step; a fault of mode kill ends the current process."""
    storage = FaultyStorage(open_storage(root), step, mode)
    table = Table.open(root, options=call_options(index), env=Env(storage=storage))
    run_verb(verb, table)


def killed(root: str, index: str, verb: str, step: int, mode: str) -> int | None:
    """Run an operation in a process that is killed at a step; return its exit code, which is negative for a signal."""
    processes = forked()
    child = processes.Process(target=run_and_die, args=(root, index, verb, step, mode))
    child.start()
    child.join()
    return child.exitcode


def share(number: int) -> Rows:
    """Return the rows of one of several concurrent writers: a separate row in each of two common partitions."""
    return {("a", f"n{number}"): number, ("n", f"n{number}"): number}


def insist(root: str, number: int) -> None:
    """Upsert a writer's rows into a local table; retry after each RetryableError, up to 500 times."""
    table = Table.open(root)
    for _ in range(500):
        try:
            table.upsert(batch(share(number)))
            return
        except RetryableError as error:
            assert re.search(r"\d{17}|lock", str(error)), f"{error} names neither an instant nor a lock"
            SystemClock().sleep(0.01)
    raise AssertionError("500 attempts failed with retryable errors")


class _Killed(BaseException):
    """Ends a write before its commit, as a killed process does."""


def killed_before_commit(table: Table, rows: pa.Table) -> None:
    """Upsert rows in a process that ends before the commit; its heartbeat is expired."""
    with pytest.MonkeyPatch.context() as patch:

        def end(*_: object) -> None:
            raise _Killed

        patch.setattr(write, "complete_commit", end)
        patch.setattr(write, "abandon", lambda *_: False)
        with pytest.raises(_Killed):
            table.upsert(rows)
    storage = table.services_as_loaded.table.env.storage
    for file in storage.list(".hoodie/.heartbeat"):
        storage.delete(file.path)
