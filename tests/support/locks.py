"""The places of table locks for the contract tests: each combination of a lock provider and a store or server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.core.timeline.locks.protocol import Lock
from lakehouse.core.timeline.table_lock import TableLock, open_lock
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import (
    LOCK_PROVIDERS,
    HiveMetastoreLockOptions,
    SqlAlchemyLockOptions,
    StorageLockOptions,
    ZookeeperLockOptions,
)
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.options.values import declared_options
from tests.support import hive
from tests.support.killed import Host
from tests.support.stores import make_store
from tests.support.tables import SteadyClock
from tests.support.waiting import until

LEASE_MS = 10_000
FILE_KINDS = tuple(
    f"{provider}-{store}" for provider in ("filesystem", "storage") for store in ("local", "memory", "s3", "hdfs")
)
DATABASE_KINDS = ("sqlalchemy-sqlite", "sqlalchemy-postgresql")
#: Locks that expire by the local clock. Tests move this clock instead of waiting.
LEASED = (*FILE_KINDS, *DATABASE_KINDS)
#: Locks that can expire.
MORTAL = (*LEASED, "zookeeper", "hivemetastore")
ALL = ("in_process", *MORTAL)
_MARKS = {"s3": pytest.mark.s3, "hivemetastore": pytest.mark.slow}
_numbers = itertools.count(1)
SESSION_MS = 2_000


@dataclass
class Place:
    """The place of the lock of one table, and how its lease expires."""

    kind: str
    storage: Storage
    policy: TransactionPolicy
    clock: Clock = field(default_factory=SteadyClock)
    opened: list[Lock] = field(default_factory=list)

    @property
    def lease_s(self) -> float:
        """Seconds without renewal after which the lock expires."""
        options = self.policy.lock.options
        return options.validity_s if isinstance(options, StorageLockOptions) else self.policy.lock.lease_ms / 1000

    def env(self, pid: int = 1, *, storage: Storage | None = None, dead: tuple[int, ...] = ()) -> Env:
        """Return the environment of the process `pid`; the processes `dead` no longer run."""
        return Env(storage=storage or self.storage, clock=self.clock, processes=Host(pid, frozenset(dead)))

    def lock(self, pid: int = 1, **seen: Any) -> Lock:
        """Return the provider's lock for one acquisition."""
        lock = open_lock(self.env(pid, **seen), self.policy.lock)
        self.opened.append(lock)
        return lock

    def table_lock(self, pid: int = 1, *, wait_ms: int | None = None, **seen: Any) -> TableLock:
        """Return the table lock as operations use it."""
        lock = self.policy.lock if wait_ms is None else replace(self.policy.lock, wait_ms=wait_ms)
        return TableLock(self.env(pid, **seen), replace(self.policy, lock=lock))

    def live(self, lock: Lock) -> None:
        """Let three quarters of the lease pass, then renew it."""
        self.clock.sleep(self.lease_s * 0.75)
        lock.renew()

    def die(self, lock: Lock) -> None:
        """Let the lease expire without renewal."""
        self.clock.sleep(self.lease_s + 1)

    def real(self) -> Place:
        """Return the same place with the system clock."""
        return replace(self, clock=SystemClock(), opened=[])


class ZookeeperPlace(Place):
    """A place whose server expires locks by its own clock."""

    def live(self, lock: Lock) -> None:
        """Let three quarters of a session pass; the client sends heartbeats by itself."""
        time.sleep(SESSION_MS * 0.75 / 1000)

    def die(self, lock: Lock) -> None:
        """End the session of the holder from another client, as the server does after its timeout."""
        of_holder = lock._client  # type: ignore[attr-defined]
        options = self.policy.lock.options
        assert isinstance(options, ZookeeperLockOptions)
        impostor = KazooClient(
            hosts=options.url, timeout=of_holder._session_timeout / 1000, client_id=of_holder.client_id
        )
        impostor.start(timeout=10)
        impostor.stop()
        impostor.close()


class HivePlace(Place):
    """A place whose server expires locks by its own clock, every second."""

    def live(self, lock: Lock) -> None:
        """Let three quarters of the timeout of the metastore pass, then renew."""
        time.sleep(hive.TIMEOUT_S * 0.75)
        lock.renew()

    def die(self, lock: Lock) -> None:
        """Send no heartbeat until the metastore has dropped the lock."""
        assert until(lambda: self._is_dropped(lock), 30)

    def _is_dropped(self, lock: Lock) -> bool:
        # Listing the locks does not renew the lock; checking the lock would.
        number, lock._number = lock._number, None  # type: ignore[attr-defined]
        try:
            return lock._find() is None  # type: ignore[attr-defined]
        finally:
            lock._number = number  # type: ignore[attr-defined]


_PLACES: dict[str, type[Place]] = {"zookeeper": ZookeeperPlace, "hivemetastore": HivePlace}


def make_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a new place of a kind of ALL; servers start for the first test that needs them."""
    provider, _, where = kind.partition("-")
    options, lease_ms = LOCK_PROVIDERS[provider].options(), LEASE_MS
    store = where if provider in ("filesystem", "storage") else "local"
    if where == "sqlite":
        options = SqlAlchemyLockOptions(url=f"sqlite:///{tmp_path}/locks.db")
    elif where == "postgresql":
        options = SqlAlchemyLockOptions(url=request.getfixturevalue("postgresql_url"))
    elif kind == "zookeeper":
        options = ZookeeperLockOptions(
            url=request.getfixturevalue("zookeeper_hosts"),
            base_path=f"/locks/{next(_numbers)}",
            lock_key="orders",
            session_ms=SESSION_MS,
        )
    elif kind == "hivemetastore":
        uris, table = request.getfixturevalue("hive_uri"), f"orders_{next(_numbers)}"
        options, lease_ms = HiveMetastoreLockOptions(uris=uris, database="sales", table=table), 3_000
    policy = TransactionPolicy(lock=LockPolicy.of(options, wait_ms=1_000, lease_ms=lease_ms))
    place = _PLACES.get(kind, Place)
    return place(kind, make_store(store, request, tmp_path / str(next(_numbers))), policy)


def options_of(policy: LockPolicy) -> dict[str, str]:
    """Return the options that differ from their defaults, as a user would set them."""
    return {
        declared.metadata["key"]: str(value)
        for declared, value in declared_options(policy)
        if value != declared.default
    }


def kinds(chosen: tuple[str, ...]) -> list[Any]:
    """Return parameters for kinds of places, with the marks of the servers they need."""
    return [pytest.param(kind, marks=[m for name, m in _MARKS.items() if kind.endswith(name)]) for kind in chosen]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The place whose kind is the (indirect) parameter; its locks are released at the end."""
    made = make_place(request.param, request, tmp_path)
    yield made
    for lock in made.opened:
        lock.release()


def count_up(location: str, options: dict[str, str], policy: TransactionPolicy, counter: str, rounds: int) -> None:
    """Increment a counter in a file under the lock; runs in a separate process."""
    env = Env(storage=open_storage(location, options))
    for _ in range(rounds):
        lock = TableLock(env, policy)
        try:
            lock.acquire()
            number = int(Path(counter).read_text())
            time.sleep(0.002)
            lock.check()
            Path(counter).write_text(str(number + 1))
        finally:
            lock.release()
