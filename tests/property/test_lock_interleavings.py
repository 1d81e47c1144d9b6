"""File-based locks in every order of their storage steps: one holder at a time, and the lock stays usable.

The clock stands still while actors run, so no lease expires on its own: two holders at once are always a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.expiry import is_active, lease_record, owner_of
from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.core.timeline.table_lock import open_lock
from lakehouse.errors import RetryableError
from lakehouse.spec.options.lock import LockPolicy
from tests.support.interleave import Actor, orders
from tests.support.killed import Host

LEASE_MS = 300_000
PROVIDERS = ("filesystem", "storage")
START_MS = 1_750_000_000_000
HUDIS_LOCK = b'{"lockCreateTime":"2026-01-01 00:00:00.000","lockThreadName":"main"}'


@dataclass
class Stopped:
    """A clock that stands still unless it is moved."""

    now: int = START_MS

    def now_ms(self) -> int:
        """Return the current time."""
        return self.now

    def monotonic_s(self) -> float:
        """Return the same time in seconds."""
        return self.now / 1000

    def sleep(self, seconds: float) -> None:
        """Move the time forward without waiting."""
        self.now += int(seconds * 1000)


@dataclass
class World:
    """One table with its lock, the common clock, and the processes that hold the lock at the moment."""

    provider: str
    storage: Storage = field(default_factory=MemoryStorage)
    clock: Stopped = field(default_factory=Stopped)
    inside: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def lock(self, storage: Storage, pid: int, dead: Iterable[int] = ()) -> Lock:
        """Return the lock as process `pid` opens it; `dead` are the processes that have ended."""
        env = Env(storage=storage, clock=self.clock, processes=Host(pid, frozenset(dead)))
        return open_lock(env, LockPolicy(provider=self.provider, lease_ms=LEASE_MS))

    def with_expired_lease(self) -> Lock:
        """Return the lock of a holder that paused for longer than its lease."""
        stale = self.lock(self.storage, 1)
        token = stale.try_acquire()
        assert not isinstance(token, Held)
        self.tokens.append(token)
        self.clock.sleep((LEASE_MS + 1000) / 1000)
        return stale

    def visit(self, pid: int) -> Actor:
        """Return an actor that tries twice to acquire the lock, and holds it until after its check."""

        def actor(storage: Storage) -> None:
            lock = self.lock(storage, pid)
            for _ in range(2):
                token = lock.try_acquire()
                if not isinstance(token, Held):
                    assert token > max(self.tokens, default=0), "a later holder needs a greater fencing token"
                    self.tokens.append(token)
                    self.inside.append(pid)
                    assert self.inside == [pid]
                    lock.check()
                    assert self.inside == [pid]
                    self.inside.remove(pid)
                    break
            lock.release()

        return actor

    def usable(self) -> None:
        """Assert that the next process acquires the lock at once."""
        lock = self.lock(self.storage, 9)
        token = lock.try_acquire()
        assert not isinstance(token, Held), token
        assert token > max(self.tokens)
        lock.check()
        lock.release()
        assert not [file.path for file in self.storage.list("") if file.path.endswith("/lock")]


def explore(world: Callable[[], tuple[World, list[Actor]]], *, preemptions: int | None = None) -> int:
    """Run the actors in every order of their steps, and return the number of orders."""
    last: list[World] = []

    def fresh() -> tuple[Storage, list[Actor]]:
        made, actors = world()
        last[:] = [made]
        return made.storage, actors

    runs = 0
    for taken in orders(fresh, preemptions=preemptions):
        runs += 1
        assert len(last[0].tokens) >= 1, taken
        last[0].usable()
    return runs


@pytest.mark.parametrize("provider", PROVIDERS)
def test_free_lock_is_acquired_by_one_of_two_processes_in_any_order(provider: str) -> None:
    def world() -> tuple[World, list[Actor]]:
        made = World(provider)
        return made, [made.visit(2), made.visit(3)]

    assert explore(world, preemptions=3) >= 30


@pytest.mark.parametrize("provider", PROVIDERS)
def test_expired_lock_is_taken_over_by_one_of_two_processes_in_any_order(provider: str) -> None:
    def world() -> tuple[World, list[Actor]]:
        made = World(provider)
        made.with_expired_lease()
        return made, [made.visit(2), made.visit(3)]

    assert explore(world, preemptions=3) >= 30


@pytest.mark.parametrize("provider", PROVIDERS)
def test_stale_holder_detects_its_loss_and_disturbs_no_other_holder(provider: str) -> None:
    def world() -> tuple[World, list[Actor]]:
        made = World(provider)
        stale = made.with_expired_lease()

        def resumes(storage: Storage) -> None:
            # The stale holder gets the actor's storage, so that its own steps are interleaved too.
            register = stale._lease if provider == "filesystem" else stale  # type: ignore[attr-defined]
            for holder in {id(stale): stale, id(register): register}.values():
                for name in ("_register", "_sign"):
                    if getattr(holder, name, None) is not None:
                        setattr(holder, name, replace(getattr(holder, name), storage=storage))
                if hasattr(holder, "_storage"):
                    holder._storage = storage
            with pytest.raises(RetryableError, match="lost"):
                stale.check()
            stale.release()

        return made, [made.visit(2), resumes, made.visit(3)]

    assert explore(world, preemptions=2) >= 30


def test_filesystem_lock_is_never_held_by_hudi_and_another_process_together() -> None:
    def world() -> tuple[World, list[Actor]]:
        made = World("filesystem")
        made.tokens.append(0)

        def hudi(storage: Storage) -> None:
            for _ in range(2):
                if storage.create(".hoodie/lock", HUDIS_LOCK):
                    made.inside.append(0)
                    assert made.inside == [0]
                    storage.get(".hoodie/lock")
                    assert made.inside == [0]
                    made.inside.remove(0)
                    storage.delete(".hoodie/lock")
                    return

        return made, [made.visit(2), hudi, made.visit(3)]

    assert explore(world, preemptions=2) >= 30


class DeleteThenCreate:
    """A planted bug: the takeover deletes the expired lock and creates its own lock in two separate steps."""

    name, renew_ms = "lock", 0

    def __init__(self, env: Env) -> None:
        self._env, self._owner = env, env.ids.uuid()

    def try_acquire(self) -> int | Held:
        """Create the lock, or delete an expired one and try again."""
        for _ in range(2):
            if self._env.storage.create("lock", lease_record(self._env, self._owner, LEASE_MS), unique=True):
                return self._env.clock.now_ms()
            try:
                held = self._env.storage.get("lock")
            except NotFoundError:
                continue
            if is_active(self._env, held, now_ms=self._env.clock.now_ms()):
                return Held(repr(held))
            self._env.storage.delete("lock")
        return Held("another process")

    def check(self) -> None:
        """Raise an error if another process owns the lock."""
        if owner_of(self._env.storage.get("lock")) != self._owner:
            raise RetryableError("lost")

    def release(self) -> None:
        """Delete the lock without a check of its owner."""
        self._env.storage.delete("lock")


def test_planted_takeover_in_two_steps_is_detected() -> None:
    class Planted(World):
        def lock(self, storage: Storage, pid: int, dead: Iterable[int] = ()) -> Lock:
            return DeleteThenCreate(Env(storage=storage, clock=self.clock, processes=Host(pid)))  # type: ignore[return-value]

    def world() -> tuple[World, list[Actor]]:
        made = Planted("")
        made.with_expired_lease()
        made.tokens[:] = [0]
        return made, [made.visit(2), made.visit(3)]

    with pytest.raises(AssertionError, match="delete lock"):
        explore(world, preemptions=2)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_check_fails_if_another_process_acquired_the_lock_before_it(provider: str) -> None:
    """The clock moves at any step here: leases expire while their holders work, renew, check and release."""
    passed: list[int] = []

    def world() -> tuple[World, list[Actor]]:
        made = World(provider)
        made.tokens.append(0)

        def work(pid: int) -> Actor:
            def actor(storage: Storage) -> None:
                lock = made.lock(storage, pid)
                token = lock.try_acquire()
                if not isinstance(token, Held):
                    made.tokens.append(token)
                    for verb in (lock.check, lock.renew, lock.check):
                        newest = max(made.tokens)
                        try:
                            verb()
                        except RetryableError:
                            continue
                        assert newest == token, "the check of a stale holder passed"
                        passed.append(token)
                lock.release()

            return actor

        def time_passes(storage: Storage) -> None:
            for _ in range(2):
                storage.list("")
                made.clock.sleep((LEASE_MS + 1000) / 1000)

        return made, [work(2), work(3), time_passes]

    assert explore(world, preemptions=2) >= 30
    assert passed
