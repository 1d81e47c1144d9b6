"""The protocol of lock providers: one object per acquisition of a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lakehouse.errors import RetryableError

#: Tolerated difference between the clocks of hosts before a lease counts as expired. Hudi tolerates the same.
CLOCK_DRIFT_MS = 500


@dataclass(frozen=True, slots=True)
class Held:
    """The lock is held by another process; `by` describes the holder for messages."""

    by: str


class Lock(Protocol):
    """One acquisition of a lock, from the first try to the release; never reused for another one.

    All methods raise RetryableError if the system that keeps the lock cannot be reached or cannot write (TableBusyError
    if it is busy and the next try may succeed), and UserError if it refuses this client. `renew` may run in another
    thread.
    """

    @property
    def name(self) -> str:
        """The name of the lock in messages; contains no secret."""
        ...

    @property
    def lease_ms(self) -> int:
        """How long an acquisition or a renewal lasts, in milliseconds; 0 means that a server or the process decides."""
        ...

    @property
    def renew_ms(self) -> int:
        """Time between two calls of `renew` while the lock is held, in milliseconds; 0 means that none are needed."""
        ...

    def try_acquire(self) -> int | Held:
        """Try once, without waiting; return the fencing token, or `Held` if another process holds the lock.

        May be called again until it returns a token. An expired lock is taken over.
        """
        ...

    def check(self) -> None:
        """Raise RetryableError if this acquisition no longer holds the lock."""
        ...

    def continues(self) -> bool:
        """Return whether no other process acquired the lock between the last release of this process and now.

        Call while the lock is held. False if the provider cannot tell.
        """
        ...

    def is_fresh(self) -> bool:
        """Return whether a reply proved the acquisition less than one renewal interval ago, by the local clock.

        Then no other process has taken the lock over, unless the clocks differ by more than leases tolerate. Use it
        only before a step that is verified afterwards. Returns False if `check` costs nothing or must be called.
        """
        ...

    def release_held(self) -> bool | None:
        """Release the lock in one step that proves that it was held until then.

        Returns False, without a change, if the lock was lost. Returns None if the provider has no such step.
        """
        ...

    def guard(self, *, reread: bool) -> tuple[str, str] | None:
        """Return a file in the table's storage, and the version of it that proves that the lock is held.

        Returns None if the lock is kept elsewhere, or if the storage cannot create one file on the condition of another
        (`Storage.create_guarded`). With `reread` the version is read again, after the known one was refused.
        """
        ...

    def skew_ms(self) -> int | None:
        """Return how far the local clock is ahead of the lock system's clock, or None if that is irrelevant.

        Call while the lock is held. Unit: milliseconds.
        """
        ...

    def renew(self) -> None:
        """Extend the lease; raise RetryableError if the lock was lost."""
        ...

    def release(self) -> None:
        """Release the lock, a place in its queue, or an acquisition whose reply was lost."""
        ...


def lock_lost(name: str, holder: str) -> RetryableError:
    """Return the error for a holder that has lost the lock to `holder`."""
    return RetryableError(f"{name}: the table lock was lost to {holder}; nothing was committed")


def skew_of(theirs_ms: int, before_ms: int, after_ms: int, *, resolution_ms: int = 1) -> int:
    """Return how far the local clock is ahead of another one, in milliseconds; 0 if no difference is certain.

    Args:
        theirs_ms: The reading of the other clock.
        before_ms: The reading of the local clock before it.
        after_ms: The reading of the local clock after it.
        resolution_ms: The resolution of the other clock.
    """
    if before_ms >= theirs_ms + resolution_ms:
        return before_ms - theirs_ms - resolution_ms
    return min(after_ms - theirs_ms, 0)
