"""A storage that calls the world before each step, injects the faults of the seed and reports changes to a watcher.

crash     the process crashes before the call, after it, or during it: half of the bytes remain in a temporary file
lost      the call succeeds, but its reply is an error
twice     the call is delivered twice
stall     the process pauses before or after the call until its leases have expired
refused   this call and some of the next calls fail as with status 503
full      the disk is full
torn      only the first half of a heartbeat is written
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from lakehouse.core.storage.atomic_output import PassingOutput
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.local import temporary_name
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import FileInfo, Files, Level, NotFoundError, OutputFile
from lakehouse.core.timeline.locks.storage import LOCK_PATH
from lakehouse.errors import CommitStateUnknownError, RetryableError
from tests.simulation.world import BEGIN_MS, Process, World

T = TypeVar("T")
FAULTS = ("crash", "lost", "twice", "stall", "refused", "full", "torn")
#: Leases of the simulation, in milliseconds.
LOCK_LEASE_MS, HEARTBEAT_MS, MISSES = 2_000, 1_000, 2
#: Pauses. The long one exceeds every lease plus the difference of the clocks.
LONG_MS, SHORT_MS = 12_000, 2_900
_TIMELINE_WEIGHT = 5
_HEARTBEATS = ".hoodie/.heartbeat/"
#: The files that a lock holder reads to check its lock.
_LOCKS = (".hoodie/lock", LOCK_PATH, "row")


def timeline_name(path: str) -> str:
    """Return the name of a file on the timeline; empty for another file. In version 6 it lies in `.hoodie` itself."""
    folder, _, name = path.rpartition("/")
    return name if folder == ".hoodie/timeline" or (folder == ".hoodie" and name[:1].isdigit()) else ""


class Watcher(Protocol):
    """Receives each change before another process runs."""

    def wrote(self, path: str, data: bytes) -> None: ...
    def deleted(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The kinds of faults in a run, and the probability of a fault per call."""

    kinds: tuple[str, ...]
    rate: float


def plan_of(random: Random) -> Plan:
    """Return random faults for a run: up to three kinds."""
    kinds = random.sample(FAULTS, random.choice((0, 1, 1, 2, 3)))
    return Plan(tuple(kinds), random.choice((0.004, 0.01, 0.02, 0.05)))


class SimulatedStorage(FaultyStorage):
    """The store as one process sees it."""

    def __init__(self, inner: MemoryStorage, process: Process, plan: Plan, watcher: Watcher) -> None:
        super().__init__(inner)
        self.process, self.plan, self.watcher = process, plan, watcher
        self.world: World = process.world

    def put(self, path: str, data: bytes) -> None:
        def call() -> None:
            self._write(path, data)

        self._step("put", path, call, call, data)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        def call() -> bool:
            is_repeated = self._holds(path, data)
            made = self.inner.create(path, data, unique=unique)
            if made and not is_repeated:
                self._wrote(path, data)
            return made

        def again() -> bool:
            # As the protocol says: if a repeated create finds the same bytes, another writer may have created them.
            if not call() and self._holds(path, data) and not unique:
                raise CommitStateUnknownError(f"{path} existed when the request was repeated")
            return self._holds(path, data)

        return self._step("create", path, call, again, data)

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        def call() -> bool | None:
            made = self.inner.create_guarded(path, data, guard, tag)
            if made:
                self._wrote(path, data)
            return made

        return self._step("create_guarded", path, call, None, data)

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self.inner.get(path) == data
        except NotFoundError:
            return False

    def beside(self, other: MemoryStorage) -> SimulatedStorage:
        """Return another store as the same process sees it."""
        return SimulatedStorage(other, self.process, self.plan, self.watcher)

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        return self._step("replace_if", path, lambda: self.inner.replace_if(path, data, tag), None, data)

    def delete(self, path: str) -> bool:
        def call() -> bool:
            is_deleted = self.inner.delete(path)
            if is_deleted:
                self.watcher.deleted(path)
            return is_deleted

        return self._step("delete", path, call, lambda: bool(call()) and False)

    def delete_if(self, path: str, tag: str) -> bool:
        return self._step("delete_if", path, lambda: self.inner.delete_if(path, tag), None)

    def delete_many(self, paths: Iterable[str]) -> int:
        return sum([self.delete(path) for path in paths])

    def list(self, prefix: str) -> Files:
        return self._dated(super().list(prefix))

    def list_dir(self, prefix: str) -> Level:
        files, names = super().list_dir(prefix)
        return self._dated(files), names

    def open_output(self, path: str) -> OutputFile:
        return _Output(self, self._step("open_output", path, lambda: self.inner.open_output(path), None), path)

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Execute a call that only reads."""
        verb, _, path = name.partition(" ")
        return self._step(verb, path, call, call)

    def _write(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)
        self._wrote(path, data)

    def _wrote(self, path: str, data: bytes) -> None:
        self.world.modified[path] = self.world.now_ms
        self.watcher.wrote(path, data)

    def _dated(self, files: Files) -> Files:
        times = self.world.modified
        return [FileInfo(f.path, f.size_bytes, times.get(f.path, BEGIN_MS - 1)) for f in files]

    def _step(
        self, verb: str, path: str, call: Callable[[], T], again: Callable[[], T] | None, data: bytes | None = None
    ) -> T:
        self.world.pause(self.process)
        fault = self._fault(verb, path)
        self.world.trace.append(f"{self.world.now_ms % 10**7:07d} {self.process.name} {verb} {path} {fault}".rstrip())
        if not fault:
            return call()
        kind, _, when = fault.partition(" ")
        if kind in ("refused", "full"):
            raise RetryableError(f"{kind}: {verb} {path}")
        if kind == "stall":
            return self._stalled(call, when)
        if kind == "crash":
            return self._crash(call, when, path, data)
        if kind == "torn":
            assert data is not None
            self._write(path, data[: len(data) // 2])
            raise RetryableError(f"torn: {path}")
        if kind == "twice" and again is not None:
            call()
            return again()
        result = call()
        if kind == "lost":
            self.process.refusals = self.world.random.choice((0, 0, 1, 3))
            if verb in ("create", "create_guarded", "replace_if") and self.world.random.random() < 0.5:
                raise CommitStateUnknownError(f"no reply: {verb} {path}")
            raise RetryableError(f"no reply: {verb} {path}")
        return result

    def _fault(self, verb: str, path: str) -> str:
        """Return the fault of this call, or the empty text for none."""
        process, random = self.process, self.world.random
        if process.protected or self.world.is_beating:
            return ""
        if process.refusals:
            process.refusals -= 1
            return "refused"
        # Most defects appear at a create on the timeline, which is only one of twenty calls.
        weight = _TIMELINE_WEIGHT if verb.startswith("create") and timeline_name(path) else 1
        if not self.plan.kinds or random.random() >= self.plan.rate * weight:
            return ""
        kind = random.choice(self.plan.kinds)
        if kind == "crash":
            return f"crash {random.choice(('before', 'after', 'torn'))}"
        if kind == "stall":
            when = random.choice(("before", "after"))
            # Between the check of the lock and the protected call, only the lease keeps other writers out. A longer
            # pause is therefore simulated only for `create_guarded`, which verifies the lock itself.
            is_protected = verb in ("create", "delete") and timeline_name(path) != "" and when == "before"
            is_check = verb in ("get", "get_tagged") and path in _LOCKS and when == "after"
            return "" if is_protected or is_check else f"stall {when}"
        if kind == "refused":
            process.refusals = random.choice((0, 1, 4, 12))
        if kind == "full" and verb not in ("open_output", "close", "put"):
            return ""
        if kind == "torn" and not (verb == "put" and path.startswith(_HEARTBEATS)):
            return ""
        return kind

    def _crash(self, call: Callable[[], T], when: str, path: str, data: bytes | None) -> T:
        if when == "after":
            call()
        elif when == "torn" and data is not None and "/" in path:
            directory, _, name = path.rpartition("/")
            token = self.process.uuid()[:8]
            self._write(f"{directory}/{temporary_name(name, token)}", data[: len(data) // 2])
        raise self.process.die(f"crash {when} {path}")

    def _stalled(self, call: Callable[[], T], when: str) -> T:
        if when == "before":
            self._stand_still()
        if self.process.crashed:
            raise SimulatedCrash("the process crashed before")
        result = call()
        if when == "after":
            self._stand_still()
        return result

    def _stand_still(self) -> None:
        process, world = self.process, self.world
        process.stalled = process.has_stalled = True
        world.jump(world.random.choice((LONG_MS, LONG_MS, SHORT_MS)))
        process.wakes_ms = world.now_ms + world.random.choice((0, 20, 60, 150, 400))
        world.switch(process)


class _Output(PassingOutput):
    """An output file whose `close` is a step."""

    def __init__(self, owner: SimulatedStorage, inner: OutputFile, path: str) -> None:
        super().__init__(inner)
        self._owner, self._path = owner, path

    def close(self) -> None:
        if self.closed:
            return

        def call() -> None:
            self.inner.close()
            self._owner._wrote(self._path, b"")

        try:
            self._owner._step("close", self._path, call, None, b"half of a file")
        except BaseException:
            self.abort()
            raise
