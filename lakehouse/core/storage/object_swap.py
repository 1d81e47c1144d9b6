"""Compare-and-swap on an object store: a put on the condition that the object has the version that was read.

A client without retries sends the request, and this module determines the outcome. A hidden retry in the client would
be refused if its own first request succeeded and only the reply was lost, because the version then differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from obstore.exceptions import AlreadyExistsError, PreconditionError

from lakehouse.core.storage.object_errors import Fate, ObjectStoreErrors, fate_of, is_passing, status_of, translate
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.system.clock import WaitClock
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_CONFLICT = 409


def tag_of(answer: Mapping[str, Any]) -> str:
    """Return the tag of an object version: its entity tag (S3, Azure) and its generation (GCS)."""
    return json.dumps([answer.get("e_tag"), answer.get("version")])


def version_of(tag: str) -> dict[str, str]:
    """Return obstore's condition for the version to be replaced."""
    e_tag, version = json.loads(tag)
    return {name: value for name, value in (("e_tag", e_tag), ("version", version)) if value is not None}


class Swap:
    """One conditional put of `data` under `path`, if the current version is `tag`."""

    def __init__(self, storage: Storage, path: str, data: bytes, tag: str | None, clock: WaitClock) -> None:
        self._clock = clock
        self._storage, self._path, self._data, self._tag = storage, path, data, tag
        self._fates: list[Fate] = []

    def carry_out(self, send: Callable[[], str], attempts: int) -> str | None:
        """Send until the store replies.

        Return the new tag, or None if the store has a different version (see `Storage`).
        """
        failure: BaseException | None = None
        for attempt in range(attempts):
            if attempt:
                self._clock.sleep(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))
            try:
                return send()
            except ObjectStoreErrors as error:
                failure = error
                self._fates.append(self._judge(error))
            if self._fates == [Fate.REFUSED]:
                return None
            data, tag = self._read_back()
            if data == self._data:
                return tag
            if tag != self._tag:
                # A delayed request of this call cannot replace another version.
                return None
        if Fate.LOST in self._fates:
            raise unknown(self._path, "the store answered no request, and one may take effect later") from failure
        raise RetryableError(
            f"{self._storage.root}: {self._path!r} was not written, the store kept failing", path=self._path
        ) from failure

    def _judge(self, error: BaseException) -> Fate:
        refused = isinstance(error, (AlreadyExistsError, PreconditionError))
        # The version to be replaced was deleted.
        missing = isinstance(error, FileNotFoundError) and self._tag is not None and "NoSuchBucket" not in str(error)
        if refused or missing:
            return Fate.BUSY if status_of(error) == _CONFLICT else Fate.REFUSED
        if not is_passing(error):
            raise translate(error, self._path, self._storage.root) from error
        return fate_of(error)

    def _read_back(self) -> tuple[bytes | None, str | None]:
        try:
            return self._storage.get_tagged(self._path)
        except NotFoundError:
            return None, None
        except LakehouseError as error:
            if Fate.LOST in self._fates or Fate.ANSWERED in self._fates:
                raise unknown(self._path, "the store could not be read back") from error
            raise


def unknown(path: str, reason: str) -> CommitStateUnknownError:
    """Return the error of a conditional write whose outcome is unknown."""
    return CommitStateUnknownError(
        f"{path!r} may or may not have been written: {reason}. Read it before you repeat the write.", path=path
    )
