"""Writer priority: after repeated conflicts a writer gets priority for its next attempt, so that it does not starve.

    first lost conflict    pause, plan again, try again
    later lost conflicts   create .hoodie/next_writer.json; other writers wait for its deletion before an attempt

A waiting writer with repeated conflicts takes the priority next; otherwise all waiting writers would begin at once.

Priority is a request, not a lock. It expires after about twice the duration of the last attempt, at most after 30
seconds. It therefore helps writers of large batches little, and other writers do not wait long for them. A file with
unexpected content is ignored.
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
    """The priority of one write. Only writers with optimistic concurrency control use it; others have no conflicts."""

    def __init__(self, env: Env, policy: TransactionPolicy) -> None:
        self._env = env
        self._is_used = policy.many_writers and not policy.non_blocking
        self._owner = ""

    def wait(self, lost: int, try_ms: int) -> None:
        """Wait while another writer has priority; request it next after repeated conflicts.

        `lost` is the number of lost attempts, `try_ms` the duration of the last one in milliseconds.
        """
        if not self._is_used or self._owner:
            return
        deadline = self._env.clock.now_ms() + _LONGEST_MS
        while self._env.clock.now_ms() < deadline:
            now_ms = self._env.clock.now_ms()
            try:
                data = self._env.storage.get(PATH)
            except NotFoundError:
                data = None
            if data is None or not is_active(self._env, data, now_ms=now_ms, expires_ms=0):
                if lost < _LOST:
                    return
                self.request(lost, try_ms)
                if self._owner:
                    return
            self._env.clock.sleep(_POLL_S)

    def request(self, lost: int, try_ms: int) -> None:
        """Request priority after `lost` lost attempts, unless another writer has it; see `wait` for the arguments."""
        if not self._is_used or self._owner or lost < _LOST:
            return
        owner = self._env.ids.uuid()
        data = lease_record(self._env, owner, min(2 * try_ms + 1000, _LONGEST_MS))
        try:
            if self._env.storage.create(PATH, data):
                self._owner = owner
                return
            now_ms = self._env.clock.now_ms()
            found, tag = self._env.storage.get_tagged(PATH)
            if (
                not is_active(self._env, found, now_ms=now_ms, expires_ms=0)
                and self._env.storage.replace_if(PATH, data, tag) is not None
            ):
                self._owner = owner
        except LakehouseError as error:
            logger.info("%s: writer priority was not requested: %s", self._env.storage.root, error)

    def release(self) -> None:
        """Give up the priority; waiting writers continue."""
        if not self._owner:
            return
        try:
            if owner_of(self._env.storage.get(PATH)) == self._owner:
                delete_leftovers(self._env.storage, [PATH])
        except LakehouseError as error:
            logger.info("%s: the writer priority was not released and will expire: %s", self._env.storage.root, error)
        self._owner = ""
