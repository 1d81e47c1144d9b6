"""The lock of a file system: `holder.json` tells who has it, and `lock` stands beside it while somebody does.

Among ourselves `holder.json` decides, by compare and swap. `lock` is what Hudi's FileSystemBasedLockProvider knows: it
exists while the lock is held, whoever holds it, and is made by create-if-absent. So each keeps the other out:

    acquire   swap holder.json   create lock (there: Hudi's? give back, wait. left by our predecessor? swap)
    release   delete lock, if it is the one we made   swap holder.json

Hudi itself deletes its lock by name. A Hudi writer that outlived its own `expire` may therefore delete ours: `check`
looks at both files. Object stores have no `lock`: Hudi does not use this provider there.
"""

from __future__ import annotations

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import NotFoundError, Storage, check_prefix
from lakehouse.core.timeline.expiry import is_active, owner_of
from lakehouse.core.timeline.locks.lease import FileRegister, LeaseLock, LockLease, swap_once
from lakehouse.core.timeline.locks.lease_record import LeaseRecordCodec
from lakehouse.core.timeline.locks.protocol import CLOCK_DRIFT_MS, Held, lock_lost
from lakehouse.spec.options.lock_providers import FilesystemLockOptions, LockTiming

DIRECTORY = ".hoodie"
HOLDER, SIGN = "holder.json", "lock"
_RENEWALS_PER_LEASE = 3
_HUDI_LOCKS_IN = ("/", "memory://")


def open_lock(env: Env, options: FilesystemLockOptions, timing: LockTiming) -> FilesystemLock:
    """Return the lock of the table, or of the directory that the options name."""
    storage, directory = _place(env, options.directory)
    lead = f"{directory}/" if directory else ""
    return FilesystemLock(env, storage, lead, lease_ms=timing.lease_ms, hudi_expire_ms=options.expire_minutes * 60_000)


class FilesystemLock:
    """See `Lock`."""

    def __init__(self, env: Env, storage: Storage, lead: str, *, lease_ms: int, hudi_expire_ms: int) -> None:
        self._env, self._storage = env, storage
        self._codec = LeaseRecordCodec(env)
        self._lease = LeaseLock(
            env,
            FileRegister(storage, lead + HOLDER),
            self._codec,
            name=f"{storage.root}/{lead}{SIGN}",
            lease_ms=lease_ms,
            renew_ms=lease_ms // _RENEWALS_PER_LEASE,
        )
        self.lease_ms = lease_ms
        self._hudis_expire_ms = hudi_expire_ms
        # What Hudi sees of us: bytes and tag of `lock`, once it may be there.
        self._sign = FileRegister(storage, lead + SIGN) if storage.root.startswith(_HUDI_LOCKS_IN) else None
        self._signed: tuple[bytes, str | None] | None = None

    @property
    def name(self) -> str:
        """Return where the lock is."""
        return self._lease.name

    @property
    def renew_ms(self) -> int:
        """Return a third of the lease."""
        return self._lease.renew_ms

    def try_acquire(self) -> int | Held:
        """Take the lock among ourselves, then put up the sign for Hudi."""
        token = self._lease.try_acquire()
        if self._sign is None or isinstance(token, Held):
            return token
        hudi = self._put_up(self._sign, token)
        if hudi is None:
            return token
        self._lease.release()
        return hudi

    def check(self) -> None:
        """Raise RetryableError unless both files are ours."""
        self._lease.check()
        if self._sign is not None:
            found, _ = self._sign.read()
            if found is None or owner_of(found) != self._lease.owner:
                raise lock_lost(self.name, repr(found))

    def guard(self, *, reread: bool) -> tuple[str, str] | None:
        """Return `holder.json`; Hudi's `lock` beside it is looked at by `check`."""
        return self._lease.guard(reread=reread)

    def skew_ms(self) -> int | None:
        """Return that of `holder.json`."""
        return self._lease.skew_ms()

    def renew(self) -> None:
        """Prolong the lease, and freshen the sign, whose age is what Hudi judges it by."""
        self._lease.renew()
        if self._sign is not None and self._signed is not None and self._signed[1] is not None:
            data = self._note(self._codec.decode(self._signed[0]))
            tag = swap_once(self._sign, data, self._signed[1])
            if tag is not None:
                self._signed = data, tag

    def release(self) -> None:
        """Take the sign down and give the lock back."""
        if self._sign is not None and self._signed is not None:
            self._take_down(self._sign, self._signed[1])
            self._signed = None
        self._lease.release()

    def _put_up(self, sign: FileRegister, token: int) -> Held | None:
        data = self._note(LockLease(owner=self._lease.owner, token=token, until_ms=0))
        # Before the swap, not after it: what may be there has to be taken down.
        self._signed = data, None
        tag = swap_once(sign, data, None)
        if tag is None:
            found, found_tag = sign.read()
            if found is not None and not self._may_replace(found, token):
                self._signed = None
                return Held(
                    f"{found!r}, which is not ours (delete it if its holder is gone, or say by "
                    "hoodie.write.lock.filesystem.expire when it may be taken),"
                )
            tag = swap_once(sign, data, found_tag)
        if tag is None:
            # Hudi's writers make and delete it: a waiting process sleeps before the next try.
            self._signed = None
            return Held(f"{self.name}, which changes all the time,")
        self._signed = data, tag
        return None

    def _take_down(self, sign: FileRegister, tag: str | None) -> None:
        if tag is not None and self._storage.delete_if(sign.path, tag):
            return
        found, found_tag = sign.read()
        if found is not None and found_tag is not None and owner_of(found) == self._lease.owner:
            self._storage.delete_if(sign.path, found_tag)

    def _may_replace(self, found: bytes, token: int) -> bool:
        """Return whether `lock` was left by somebody who does not hold the lock any more."""
        ours = self._codec.decode(found)
        if ours is not None and ours.token <= token:
            # The holder's file has decided between us.
            return True
        return not is_active(self._env, found, expires_ms=self._hudis_end(), grace_ms=CLOCK_DRIFT_MS)

    def _hudis_end(self) -> int | None:
        """Return when a lock of Hudi's is over by its age, in UTC milliseconds; None: never."""
        if not self._hudis_expire_ms or self._sign is None:
            return None
        directory, _, _ = self._sign.path.rpartition("/")
        try:
            files, _ = self._storage.list_dir(directory)
        except NotFoundError:
            return None
        ages = [file.modified_ms for file in files if file.path == self._sign.path]
        return max(ages) + self._hudis_expire_ms if ages else None

    def _note(self, lease: LockLease | None) -> bytes:
        assert lease is not None, "our own note must be readable, and nothing else is ever signed"
        until_ms = self._env.clock.now_ms() + self.lease_ms
        return self._codec.encode(LockLease(owner=lease.owner, token=lease.token, until_ms=until_ms))


def _place(env: Env, given: str) -> tuple[Storage, str]:
    """Return the store and the directory in it: of the table, where the named one is in the table."""
    if not given:
        return env.storage, DIRECTORY
    if "://" not in given and not given.startswith(("/", "file:")):
        return env.storage, check_prefix(given)
    elsewhere, root = open_storage(given), env.storage.root
    if elsewhere.root == root or elsewhere.root.startswith(f"{root}/"):
        return env.storage, elsewhere.root[len(root) + 1 :]
    return elsewhere, ""
