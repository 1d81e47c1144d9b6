"""A lock as a lease in a register with compare-and-swap: a file, an object, or a row of a database.

Every change is one swap on the version that was read. If two processes see the same expired lease, only one of them
takes it over. A stale holder changes nothing, however late it resumes:

    register   A, token 7        B, token 8        B released
    A          ...suspended....  check: lost       release: the version of A is gone, no effect
    B              swaps A for B
    C              swaps A for C: refused

The register is never emptied, so fencing tokens keep growing.

Three of these facts save requests:

- A process remembers the version of the file that its release wrote. Its next acquisition swaps that version without
  reading it. If another process acquired the lock in between, the swap is refused, and the file is read. Rows of a
  database are read, because their version is only a number.
- The swap of the release succeeds only if the lock was held until then, so it also is the last check of the lock.
- Clocks differ by at most half of what remains of a lease at its renewal (`table_lock.check_clock`). Therefore no other
  process takes the lock over less than a renewal interval after a proof of the holder.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Protocol

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.locks.protocol import Held, lock_lost, skew_of
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError

#: Roots of storages that can create a file on the condition of another file. Object stores cannot do this in one
#: request.
_COMPARES_TWO_FILES = ("/", "memory://", "hdfs://", "viewfs://")

#: Roots of storages with the clock of this host.
_OWN_CLOCK = ("/", "memory://")

#: Object stores show modification times in whole seconds.
_LAST_MODIFIED_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LockLease:
    """The lease of a lock: its owner, fencing token and expiry time (UTC milliseconds), and whether it was released."""

    owner: str
    token: int
    until_ms: int
    released: bool = False


class Register(Protocol):
    """One value with a version. `swap` replaces the value if its version is still `tag`."""

    def read(self) -> tuple[bytes | None, str | None]: ...
    def swap(self, data: bytes, tag: str | None) -> str | None: ...


class Codec(Protocol):
    """Encodes leases, decides whether a stored lease has expired, and creates the next one."""

    def encode(self, lease: LockLease) -> bytes: ...
    def decode(self, data: bytes) -> LockLease | None: ...
    def is_over(self, data: bytes, lease: LockLease) -> bool: ...
    def next(self, owner: str, until_ms: int, before: LockLease | None) -> LockLease: ...


@dataclass(frozen=True, slots=True)
class FileRegister:
    """A file or object as a register."""

    storage: Storage
    path: str

    def read(self) -> tuple[bytes | None, str | None]:
        """Return the bytes and the version; two Nones if the file does not exist."""
        try:
            return self.storage.get_tagged(self.path)
        except NotFoundError:
            return None, None

    def swap(self, data: bytes, tag: str | None) -> str | None:
        """Replace the version `tag` and return the new version; None if the file has another version."""
        return self.storage.replace_if(self.path, data, tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Released:
    """The lease that a release of this process wrote, and its version."""

    lease: LockLease
    tag: str


def swap_once(register: Register, data: bytes, tag: str | None) -> str | None:
    """Replace the register's content. If the reply is lost, read the register to find out whether the swap succeeded.

    The bytes contain a new id, so equal bytes were written by this call. If the version is unchanged, the write failed,
    and the error of the register is raised.
    """
    try:
        return register.swap(data, tag)
    except (CommitStateUnknownError, RetryableError):
        content, found_tag = register.read()
        if content == data:
            return found_tag
        if found_tag == tag:
            raise
        return None


class LeaseLock:
    """A lock kept in a register; see `Lock`."""

    # parameters: the parts of a lease lock; each of its providers sets them once
    def __init__(
        self, env: Env, register: Register, codec: Codec, *, name: str, lease_ms: int, renew_ms: int, owner: str = ""
    ) -> None:
        self._env, self._register, self._codec = env, register, codec
        self._name, self._lease_ms, self._renew_ms = name, lease_ms, renew_ms
        self.owner = owner or env.ids.uuid()
        self._mutex = threading.Lock()
        self._held: tuple[LockLease, str] | None = None
        self._asked = self._continues = False
        self._asked_ms = self._proven_ms = 0

    @property
    def _place(self) -> str:
        """The path of the file that contains the lease; empty if it is not in a file."""
        register = self._register
        return f"{register.storage.root}/{register.path}" if isinstance(register, FileRegister) else ""

    @property
    def name(self) -> str:
        """Return the name of the lock in messages."""
        return self._name

    @property
    def lease_ms(self) -> int:
        """Return how long an acquisition or a renewal lasts, in milliseconds."""
        return self._lease_ms

    @property
    def renew_ms(self) -> int:
        """Return the time between two renewals, in milliseconds."""
        return self._renew_ms

    def try_acquire(self) -> int | Held:
        """Acquire the lock if it is free, released or expired."""
        token = self._take_again()
        if token is not None:
            return token
        data, tag = self._register.read()
        current = None if data is None else self._codec.decode(data)
        if current is not None and tag is not None and current.owner == self.owner and not current.released:
            # An earlier request with a lost reply took effect after the read-back.
            self._held = current, tag
            # The lease may be old, so the register must be read before it is used.
            self._proven_ms = -self._renew_ms
            return current.token
        if data is not None and current is None:
            return Held(f"{data!r}, which is not a lease (delete it if its holder no longer runs),")
        is_free = current is not None and (
            current.released or current.owner in self._env.process_state.abandoned_owners
        )
        if data is not None and current is not None and not (is_free or self._codec.is_over(data, current)):
            return Held(repr(data))
        return self._take(current, tag)

    def _take_again(self) -> int | None:
        """Acquire the lock if its version is the one that the last release of this process wrote, otherwise None."""
        released = self._env.process_state.released_locks.pop(self._place, None)
        if not isinstance(released, _Released):
            return None
        token = self._take(released.lease, released.tag)
        self._continues = isinstance(token, int)
        return token if isinstance(token, int) else None

    def continues(self) -> bool:
        """Return whether this acquisition swapped the version that this process released last."""
        return self._continues

    def _take(self, current: LockLease | None, tag: str | None) -> int | Held:
        self._asked_ms = self._env.clock.now_ms()
        lease = self._codec.next(self.owner, self._asked_ms + self._lease_ms, current)
        self._asked = True
        try:
            tag = swap_once(self._register, self._codec.encode(lease), tag)
        except CommitStateUnknownError as error:
            return Held(f"an unknown holder, because the store did not reply: {error}")
        if tag is None:
            return Held("another process, which acquired it first")
        self._held, self._proven_ms = (lease, tag), self._asked_ms
        return lease.token

    def check(self) -> None:
        """Raise RetryableError unless the register contains this acquisition and its lease is valid."""
        asked_ms = self._env.clock.now_ms()
        data, _ = self._register.read()
        current = None if data is None else self._codec.decode(data)
        is_ours = current is not None and self._held is not None and self._is_mine(current, self._held[0])
        if current is None or not is_ours or self._env.clock.now_ms() > current.until_ms:
            raise lock_lost(self._name, repr(data))
        self._proven_ms = max(self._proven_ms, min(asked_ms, current.until_ms - self._lease_ms))

    def is_fresh(self) -> bool:
        """Return whether the lease was proven less than a renewal interval ago."""
        with self._mutex:
            age_ms = self._env.clock.now_ms() - self._proven_ms
            return self._held is not None and 0 <= age_ms < self._renew_ms

    def release_held(self) -> bool:
        """Release the lock; return False if another process has acquired it since."""
        with self._mutex:
            if self._held is None or not self._free(*self._held):
                return False
            self._held, self._asked = None, False
            return True

    def guard(self, *, reread: bool) -> tuple[str, str] | None:
        """Return the file of the lease and its version, if the storage of the table can compare it; see `Lock`."""
        register, held = self._register, self._held
        if not isinstance(register, FileRegister) or register.storage is not self._env.storage or held is None:
            return None
        if not register.storage.root.startswith(_COMPARES_TWO_FILES):
            return None
        if not reread:
            return register.path, held[1]
        data, tag = register.read()
        current = None if data is None else self._codec.decode(data)
        if current is None or tag is None or not self._is_mine(current, held[0]):
            raise lock_lost(self._name, repr(data))
        return register.path, tag

    def skew_ms(self) -> int | None:
        """Return how far the local clock is ahead of the clock of the store, or None on local disks.

        A renewal in between shows a later modification time, so the second reading is taken after the listing.
        """
        register = self._register
        if not isinstance(register, FileRegister) or register.storage.root.startswith(_OWN_CLOCK):
            return None
        files, _ = register.storage.list_dir(register.path.rpartition("/")[0])
        times = [file.modified_ms for file in files if file.path == register.path]
        if not times:
            return None
        return skew_of(times[0], self._asked_ms, self._env.clock.now_ms(), resolution_ms=_LAST_MODIFIED_MS)

    def renew(self) -> None:
        """Extend the lease. An expired lease becomes valid again if no other process has taken the lock over."""
        with self._mutex:
            if self._held is None:
                return
            lease, tag = self._held
            began_ms = self._env.clock.now_ms()
            longer = replace(lease, until_ms=max(self._env.clock.now_ms() + self._lease_ms, lease.until_ms + 1))
            renewed = swap_once(self._register, self._codec.encode(longer), tag)
            if renewed is not None:
                self._held, self._proven_ms = (longer, renewed), began_ms
                return
            data, tag_now = self._register.read()
            current = None if data is None else self._codec.decode(data)
            if current is None or tag_now is None or not self._is_mine(current, lease):
                raise lock_lost(self._name, repr(data))
            # An earlier renewal took effect late.
            self._held = current, tag_now

    def release(self) -> None:
        """Record in the register that the lock is free, if this acquisition still holds it.

        If that fails, for example on a full disk, the lease expires by time, and for this process immediately.
        """
        try:
            self._release()
        except LakehouseError:
            self._env.process_state.abandoned_owners.add(self.owner)
            raise

    def _release(self) -> None:
        with self._mutex:
            if self._held is not None and self._free(*self._held):
                self._held, self._asked = None, False
            if not self._asked:
                return
            data, tag = self._register.read()
            current = None if data is None else self._codec.decode(data)
            if current is not None and tag is not None and current.owner == self.owner and not current.released:
                self._free(current, tag)
            self._held, self._asked = None, False

    def _free(self, lease: LockLease, tag: str) -> bool:
        released = replace(lease, released=True)
        written = swap_once(self._register, self._codec.encode(released), tag)
        if written is not None and self._place:
            self._env.process_state.released_locks[self._place] = _Released(lease=released, tag=written)
        return written is not None

    def _is_mine(self, current: LockLease, held: LockLease) -> bool:
        return current.owner == self.owner and current.token >= held.token and not current.released
