"""Leases of runs, with fencing tokens.

A lease shows that a run is active and prevents useless concurrent runs. It does not protect the table; the claim on the
timeline does. A database restored from a backup can therefore cause a useless run, but never lose a row.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from lakehouse.core.system.clock import Clock
from lakehouse.core.system.timers import Timers
from lakehouse.errors import LakehouseError, RetryableError
from lakehouse.platform.catalog.connect import Database, is_duplicate
from lakehouse.platform.catalog.models import LeaseRow

logger = logging.getLogger(__name__)
_RENEWALS = 3
#: Maximum number of keys in one statement.
_BATCH = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLease:
    """An acquired lease, valid until `expires_ms` unless it is renewed; `token` is greater than all earlier tokens."""

    key: str
    owner: str
    token: int
    expires_ms: int


class RunLeases:
    """The leases of one catalog."""

    def __init__(self, database: Database, clock: Clock, timers: Timers) -> None:
        self._database, self._clock, self._timers = database, clock, timers

    def acquire(self, key: str, owner: str, lease_ms: int) -> RunLease | None:
        """Acquire a lease that is free, expired or held by the same owner. Return None if another owner holds it."""
        now = self._clock.now_ms()
        with self._database.session() as session:
            row = session.get(LeaseRow, key, with_for_update=True)
            if row is not None and row.expires_ms > now and row.owner != owner:
                return None
            token = 1 if row is None else row.token + 1
            if row is not None:
                row.owner, row.token, row.expires_ms = owner, token, now + lease_ms
                return RunLease(key=key, owner=owner, token=token, expires_ms=now + lease_ms)
        try:
            with self._database.session() as session:
                session.execute(insert(LeaseRow).values(key=key, owner=owner, token=1, expires_ms=now + lease_ms))
        except RetryableError as error:
            if not is_duplicate(error):
                raise
            # Another transaction inserted the row first. It may be an earlier try of the same owner.
            return self.acquire(key, owner, lease_ms)
        return RunLease(key=key, owner=owner, token=1, expires_ms=now + lease_ms)

    def renew(self, lease: RunLease, lease_ms: int) -> RunLease:
        """Renew a lease; raise RetryableError with the new owner if it was taken over."""
        until = self._clock.now_ms() + lease_ms
        with self._database.session() as session:
            changed = session.execute(
                update(LeaseRow)
                .where(LeaseRow.key == lease.key, LeaseRow.token == lease.token)
                .values(expires_ms=until)
            )
            if not changed.rowcount:  # type: ignore[attr-defined]
                holder = session.scalar(select(LeaseRow.owner).where(LeaseRow.key == lease.key))
                raise RetryableError(f"{lease.key}: {holder} took over the lease of {lease.owner}", lease=lease.key)
        return RunLease(key=lease.key, owner=lease.owner, token=lease.token, expires_ms=until)

    def release(self, lease: RunLease) -> None:
        """Release a lease. Its row stays, expired, so that tokens never repeat."""
        with self._database.session() as session:
            session.execute(
                update(LeaseRow).where(LeaseRow.key == lease.key, LeaseRow.token == lease.token).values(expires_ms=0)
            )

    def holder(self, key: str) -> RunLease | None:
        """Return the active lease of a key, or None if there is none."""
        with self._database.session() as session:
            row = session.get(LeaseRow, key)
            if row is None or row.expires_ms <= self._clock.now_ms():
                return None
            return RunLease(key=key, owner=row.owner, token=row.token, expires_ms=row.expires_ms)

    def held_keys(self, keys: Collection[str]) -> frozenset[str]:
        """Return the keys whose lease is active."""
        ordered, taken = sorted(keys), set[str]()
        with self._database.session() as session:
            for start in range(0, len(ordered), _BATCH):
                mine = LeaseRow.key.in_(ordered[start : start + _BATCH]) & (LeaseRow.expires_ms > self._clock.now_ms())
                taken.update(session.scalars(select(LeaseRow.key).where(mine)))
        return frozenset(taken)

    def expired(self) -> dict[str, int]:
        """Return the expiry times of the leases that expired without a release, by key."""
        with self._database.session() as session:
            query = select(LeaseRow.key, LeaseRow.expires_ms)
            expired = LeaseRow.expires_ms.between(1, self._clock.now_ms())
            return {key: expires_ms for key, expires_ms in session.execute(query.where(expired))}

    def is_taken_over(self, lease: RunLease) -> bool:
        """Return whether the lease was acquired again, by another owner or another try of the same owner."""
        with self._database.session() as session:
            row = session.get(LeaseRow, lease.key)
            return row is None or row.token != lease.token

    def forget(self, prefix: str) -> None:
        """Delete the leases whose keys have a prefix, after their table was dropped."""
        with self._database.session() as session:
            session.execute(delete(LeaseRow).where(LeaseRow.key.startswith(prefix, autoescape=True)))

    @contextmanager
    def held(self, key: str, owner: str, lease_ms: int) -> Iterator[RunLease | None]:
        """Hold a lease during a block and renew it in the background; yield None if another owner holds it."""
        lease = self.acquire(key, owner, lease_ms)
        if lease is None:
            yield None
            return

        def renew() -> None:
            try:
                self.renew(lease, lease_ms)
            except LakehouseError as error:
                logger.warning("lease %s was not renewed: %s", key, error)

        timer = self._timers.every(lease_ms / 1000 / _RENEWALS, renew, f"lease-{lease.token}")
        try:
            yield lease
        finally:
            timer.stop()
            try:
                self.release(lease)
            except LakehouseError as error:
                logger.warning("lease %s was not released and will expire: %s", key, error)
