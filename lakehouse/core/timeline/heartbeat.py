"""Heartbeats: a pending write renews the file `.hoodie/.heartbeat/<instant>` while it is active (TL-7.1)."""

from __future__ import annotations

import logging

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.system.timers import Timer
from lakehouse.core.timeline.expiry import is_active, lease_record
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import LakehouseError
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)
_DIRECTORY = ".hoodie/.heartbeat"


class Heartbeat:
    """Renews the heartbeat of one write from `start` to `stop`. After a crash the heartbeat expires."""

    def __init__(self, env: Env, policy: TransactionPolicy) -> None:
        self._env, self._policy = env, policy
        self._path = ""
        self._timer: Timer | None = None

    def start(self, instant: str) -> None:
        """Write the heartbeat of `instant`, and renew it in the background.

        The heartbeat of an earlier instant is deleted.
        """
        if self._path:
            delete_leftovers(self._env.storage, [self._path])
        self._path = f"{_DIRECTORY}/{instant}"
        self._beat()
        if self._timer is None:
            seconds = self._policy.heartbeat_interval_ms / 1000
            self._timer = self._env.timers.every(seconds, self._renew_or_log, f"heartbeat-{instant}")

    def renew(self) -> None:
        """Renew the heartbeat now."""
        self._beat()

    def stop(self) -> None:
        """Stop the renewals. The file stays until the write is cleaned up."""
        if self._timer is not None:
            self._timer.stop()

    def discard(self) -> None:
        """Stop the renewals and delete the heartbeat, so that other writers can clean up after this one immediately."""
        self.stop()
        # Delete only once: after the instant is gone, another write may get the same instant time.
        path, self._path = self._path, ""
        if path:
            try:
                delete_leftovers(self._env.storage, [path])
            except LakehouseError as error:
                logger.warning("heartbeat %s was not deleted and will expire: %s", path, error)

    def _beat(self) -> None:
        lease = self._policy.heartbeat_lease_ms
        self._env.storage.put(self._path, lease_record(self._env, self._path, lease))

    def _renew_or_log(self) -> None:
        try:
            self._beat()
        except LakehouseError as error:
            # A missed renewal is only logged; the check before the commit decides whether too many were missed.
            logger.warning("heartbeat %s was not renewed: %s", self._path, error)


def active_writes(env: Env, policy: TransactionPolicy) -> frozenset[str]:
    """Return the instants with a valid heartbeat. A pending write without one has failed."""
    lease = policy.heartbeat_lease_ms
    now_ms = env.clock.now_ms()
    files, _ = env.storage.list_dir(_DIRECTORY)
    active = set()
    for file in files:
        try:
            if is_active(env, env.storage.get(file.path), now_ms=now_ms, expires_ms=file.modified_ms + lease):
                active.add(file.name)
        except NotFoundError:
            continue
    return frozenset(active)


def remove_heartbeat(env: Env, instant: str) -> None:
    """Delete the heartbeat of a write that has ended."""
    delete_leftovers(env.storage, [heartbeat_path(instant)])


def heartbeat_path(instant: str) -> str:
    """Return the path of a write's heartbeat."""
    return f"{_DIRECTORY}/{instant}"
