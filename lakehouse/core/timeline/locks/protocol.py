"""What a lock provider offers to one who wants the lock once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lakehouse.errors import RetryableError

#: Clocks of different hosts may differ by this much before a lease is taken for over (Hudi allows the same).
CLOCK_DRIFT_MS = 500


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has the lock; `by` shows who, as far as that is known."""

    by: str


class Lock(Protocol):
    """One try at the lock, from the first question to the release; never used for a second acquisition.

    All verbs raise RetryableError when what keeps the lock cannot be reached or cannot write (TableBusyError: others
    are writing to it, and the next try may succeed), and UserError when it refuses us. `renew` may run in another
    thread.
    """

    @property
    def name(self) -> str:
        """What a message calls the lock; never a secret."""
        ...

    @property
    def lease_ms(self) -> int:
        """How long an acquisition or a renewal lasts, in milliseconds; 0: a server or the process decides."""
        ...

    @property
    def renew_ms(self) -> int:
        """How often `renew` must be called while the lock is held, in milliseconds; 0: never."""
        ...

    def try_acquire(self) -> int | Held:
        """Ask once, without waiting, and return the fencing token or who has the lock.

        May be asked again until it returns a token. A lock whose holder died or whose lease is over is taken over here.
        """
        ...

    def check(self) -> None:
        """Raise RetryableError unless the lock is still ours, with our token."""
        ...

    def guard(self, *, reread: bool) -> tuple[str, str] | None:
        """Return a file of the table's store and the version of it that says that the lock is ours.

        None where the lock is kept elsewhere, or in a store that cannot create one file on the condition of another
        (see `Storage.create_guarded`). `reread` asks the store for the version, after the known one was refused.
        """
        ...

    def skew_ms(self) -> int | None:
        """Return by how much our clock is ahead of that of what keeps the held lock; None where it does not matter."""
        ...

    def renew(self) -> None:
        """Prolong the lease; raise RetryableError if the lock was lost."""
        ...

    def release(self) -> None:
        """Give back what is ours, a place in the queue or an acquisition of unknown fate included; nothing else."""
        ...


def lock_lost(name: str, holder: str) -> RetryableError:
    """Return the error of a holder that finds out that it is none any more."""
    return RetryableError(f"{name}: the table lock was lost to {holder}; nothing was committed")


def skew_of(theirs_ms: int, before_ms: int, after_ms: int, *, resolution_ms: int = 1) -> int:
    """Return how far our clock is ahead of another one, which was read between two readings of ours; 0: maybe not."""
    if before_ms >= theirs_ms + resolution_ms:
        return before_ms - theirs_ms - resolution_ms
    return min(after_ms - theirs_ms, 0)
