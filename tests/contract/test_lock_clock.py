"""The clock of a writer compared with the clock of its lock provider."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import pytest

from lakehouse.core.env import Env, process_state
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import FileInfo, Level
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.timeline.locks.protocol import skew_of
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import UserError
from tests.support.locks import LEASE_MS, Place, kinds

MANY = "OPTIMISTIC_CONCURRENCY_CONTROL"
#: At least two thirds of a lease remain at any time. The clocks of two hosts may differ by half of that each.
ALLOWED_MS = (LEASE_MS - LEASE_MS // 3) // 2


@dataclass
class Off:
    """The system clock with a fixed error of `by_ms`."""

    by_ms: int

    def now_ms(self) -> int:
        """Return the wrong time in UTC milliseconds."""
        return SystemClock().now_ms() + self.by_ms

    def monotonic_s(self) -> float:
        """Return the monotonic time without an error."""
        return SystemClock().monotonic_s()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        SystemClock().sleep(seconds)


class ObjectStore(MemoryStorage):
    """A memory store with an S3 address. Listings have the system time in whole seconds, like object stores."""

    def __init__(self) -> None:
        super().__init__()
        self.root = self.root.replace("memory://", "s3://bucket/")
        self.listings = 0

    def list_dir(self, prefix: str) -> Level:
        """Return files as written just now."""
        self.listings += 1
        files, names = super().list_dir(prefix)
        second = SystemClock().now_ms() // 1000 * 1000
        return [FileInfo(file.path, file.size_bytes, second) for file in files], names


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state(), "measured_clocks", {})


def visit(place: Place, by_ms: int, storage: MemoryStorage | None = None) -> None:
    """Acquire and check the lock in a mode with many writers, with a clock error of `by_ms`."""
    env = Env(storage=storage or place.storage, clock=Off(by_ms))
    with table_lock(env, replace(place.policy, concurrency=MANY)) as lock:
        lock.check()


@pytest.mark.parametrize(
    "place", kinds(("sqlalchemy-postgresql", "filesystem-s3", "storage-s3", "filesystem-memory")), indirect=True
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_clock_difference_above_the_limit_of_leases_is_refused(place: Place, sign: int) -> None:
    storage = ObjectStore() if place.kind.endswith("memory") else None
    visit(place, 0, storage)
    process_state().measured_clocks.clear()
    allowed = 135_000 if place.policy.lock.provider == "storage" else ALLOWED_MS
    direction = "ahead of" if sign > 0 else "behind"
    with pytest.raises(UserError, match=rf"clock of this host is .* s {direction} that of .*NTP"):
        visit(place, sign * (allowed + 3_000), storage)


@pytest.mark.parametrize("place", kinds(("filesystem-memory",)), indirect=True)
def test_clock_difference_above_half_of_the_limit_logs_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        visit(place, 0, ObjectStore())
        assert not caplog.records
        # The store shows whole seconds, so up to one second is not detected.
        visit(place, -(ALLOWED_MS // 2 + 1_200), ObjectStore())
    assert ["behind" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("place", kinds(("filesystem-memory",)), indirect=True)
def test_clock_is_measured_once_for_a_lock(place: Place) -> None:
    storage = ObjectStore()
    for _ in range(3):
        visit(place, 0, storage)
    assert storage.listings == 1


@pytest.mark.parametrize("place", kinds(("filesystem-local", "sqlalchemy-sqlite", "filesystem-memory")), indirect=True)
def test_clock_is_not_compared_with_itself(place: Place) -> None:
    visit(place, 1_000_000)


@pytest.mark.parametrize(
    ("theirs", "before", "after", "expected"),
    [
        (1000, 1000, 1010, 0),
        (1000, 1500, 1510, 0),
        (1000, 2500, 2510, 500),
        (1000, 900, 950, -50),
        (1000, 990, 1010, 0),
    ],
)
def test_skew_is_the_difference_that_is_certain(theirs: int, before: int, after: int, expected: int) -> None:
    assert skew_of(theirs, before, after, resolution_ms=1000) == expected
