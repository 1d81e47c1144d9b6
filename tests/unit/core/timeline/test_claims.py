"""Fencing tokens of claims and leases: a stale executor or lock holder aborts before it changes anything."""

from __future__ import annotations

import pytest

from lakehouse.core.env import Env
from lakehouse.core.timeline.claims import check_claim, claim, holds_claim
from lakehouse.core.timeline.locks.lease import swap_once
from lakehouse.core.timeline.table_lock import open_lock
from lakehouse.errors import CommitStateUnknownError, RetryableError
from lakehouse.spec.options.parser import parse_options
from tests.support.tables import make_env

INSTANT = "20260101000000000"
STORAGE = parse_options({"hoodie.write.lock.provider": "storage"}).transaction


def test_claim_token_grows_and_only_the_newest_is_valid() -> None:
    env = make_env()
    first, second = claim(env, INSTANT), claim(env, INSTANT)
    assert second > first
    assert (holds_claim(env, INSTANT, first), holds_claim(env, INSTANT, second)) == (False, True)
    with pytest.raises(RetryableError, match="taken over"):
        check_claim(env, INSTANT, first)
    check_claim(env, INSTANT, second)


def test_claim_does_not_reuse_the_token_of_a_deleted_claim() -> None:
    env = make_env()
    numbers = [claim(env, INSTANT) for _ in range(3)]
    env.storage.delete(f".hoodie/.staging/{INSTANT}/claim-{numbers[0]}")
    assert claim(env, INSTANT) == max(numbers) + 1


def test_check_fails_for_a_valid_lease_of_another_owner() -> None:
    env = make_env()
    first = open_lock(env, STORAGE.lock)
    first.try_acquire()
    first.check()
    (path,) = [file.path for file in env.storage.list(".hoodie") if file.name.endswith(".json")]
    mine = env.storage.get(path)
    env.storage.delete(path)
    other = open_lock(Env(storage=env.storage, clock=env.clock), STORAGE.lock)
    other.try_acquire()
    assert env.storage.get(path) != mine
    with pytest.raises(RetryableError):
        first.check()
    other.check()


class LostReplies:
    """A register that performs the swap and loses the reply."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.version = 0

    def read(self) -> tuple[bytes | None, str | None]:
        """Return bytes and tag."""
        return self.data, None if self.data is None else str(self.version)

    def swap(self, data: bytes, tag: str | None) -> str | None:
        """Swap, then fail."""
        self.data, self.version = data, self.version + 1
        raise CommitStateUnknownError("the reply was lost")


def test_swap_with_a_lost_reply_succeeds_if_its_bytes_are_stored() -> None:
    assert swap_once(LostReplies(), b"mine", None) == "1"
