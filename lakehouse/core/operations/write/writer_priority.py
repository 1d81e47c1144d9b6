"""Turns: a writer that lost again and again is let go first, so that nobody starves.

    lost once        pause, plan again, try again
    lost more often  leave a note, .hoodie/next_writer.json; who begins a try meanwhile waits for the end of this write

Of those who wait, one that lost as often takes the next turn before it goes on: else all would begin at once.

A note asks, it does not exclude: it holds for about as long as the last try took, and half a minute at most. Writers of
long batches hardly gain by it, and no others have to wait for them. What is no note of ours asks for nothing.
"""

from __future__ import annotations

import logging

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.expiry import is_active, lease_record, owner_of
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import LakehouseError
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

PATH = ".hoodie/next_writer.json"
_LOST = 2
_POLL_S = 0.05
_LONGEST_MS = 30_000


class WriterPriority:
    """The turn of one write; optimistic writers only, since nobody else loses."""

    def __init__(self, env: Env, policy: TransactionPolicy) -> None:
        self._env = env
        self._is_used = policy.many_writers and not policy.non_blocking
        self._owner = ""

    def wait(self, lost: int, try_ms: int) -> None:
        """Wait while another writer asks to go first; after `lost` tries, the last of `try_ms`, take the next turn."""
        if not self._is_used or self._owner:
            return
        deadline = self._env.clock.now_ms() + _LONGEST_MS
        while self._env.clock.now_ms() < deadline:
            try:
                data = self._env.storage.get(PATH)
            except NotFoundError:
                data = None
            if data is None or not is_active(self._env, data, expires_ms=0):
                if lost < _LOST:
                    return
                self.request(lost, try_ms)
                if self._owner:
                    return
            self._env.clock.sleep(_POLL_S)

    def request(self, lost: int, try_ms: int) -> None:
        """Ask to go first, after so many lost tries of which the last one took `try_ms`; one at a time may."""
        if not self._is_used or self._owner or lost < _LOST:
            return
        owner = self._env.ids.uuid()
        data = lease_record(self._env, owner, min(2 * try_ms + 1000, _LONGEST_MS))
        try:
            if self._env.storage.create(PATH, data):
                self._owner = owner
                return
            found, tag = self._env.storage.get_tagged(PATH)
            if (
                not is_active(self._env, found, expires_ms=0)
                and self._env.storage.replace_if(PATH, data, tag) is not None
            ):
                self._owner = owner
        except LakehouseError as error:
            logger.info("%s: not asked to go first: %s", self._env.storage.root, error)

    def release(self) -> None:
        """Let the others go on."""
        if not self._owner:
            return
        try:
            if owner_of(self._env.storage.get(PATH)) == self._owner:
                delete_leftovers(self._env.storage, [PATH])
        except LakehouseError as error:
            logger.info("%s: a turn ends by itself: %s", self._env.storage.root, error)
        self._owner = ""
