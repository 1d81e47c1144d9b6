"""Lock provider `filesystem`: a lease in `holder.json`, and the file `lock` that Hudi's writers respect.

Writers of this project compete by compare-and-swap on `holder.json`. Hudi's FileSystemBasedLockProvider uses `lock`,
which exists while the lock is held and is created if absent. Both kinds of writers exclude each other:

    acquire   swap holder.json, create lock (if Hudi holds it: release and wait; if it is a leftover: replace)
    release   delete lock if this acquisition created it, swap holder.json

Hudi deletes its lock by name. A Hudi writer that runs longer than its own `expire` may therefore delete the lock of
another writer, so `check` reads both files. On object stores `lock` is not used, because Hudi does not use this
provider there.
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
HOLDER, LOCK_FILE = "holder.json", "lock"
_RENEWALS_PER_LEASE = 3
_HUDI_LOCKS_IN = ("/", "memory://", "hdfs://", "viewfs://")


def open_lock(env: Env, options: FilesystemLockOptions, timing: LockTiming) -> FilesystemLock:
    """Return the lock in the table's `.hoodie`, or in the directory from the options."""
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
            name=f"{storage.root}/{lead}{LOCK_FILE}",
            lease_ms=lease_ms,
            renew_ms=lease_ms // _RENEWALS_PER_LEASE,
        )
        self.lease_ms = lease_ms
        self._hudi_expire_ms = hudi_expire_ms
        # Bytes and version of the file `lock`; set as soon as the file may exist.
        self._lock_file = FileRegister(storage, lead + LOCK_FILE) if storage.root.startswith(_HUDI_LOCKS_IN) else None
        self._lock_file_version: tuple[bytes, str | None] | None = None

    @property
    def name(self) -> str:
        """Return the path of the lock."""
        return self._lease.name

    @property
    def renew_ms(self) -> int:
        """Return a third of the lease."""
        return self._lease.renew_ms

    def try_acquire(self) -> int | Held:
        """Acquire the lease, then create the file `lock` for Hudi."""
        token = self._lease.try_acquire()
        if self._lock_file is None or isinstance(token, Held):
            return token
        hudi = self._create_lock_file(self._lock_file, token)
        if hudi is None:
            return token
        self._lease.release()
        return hudi

    def check(self) -> None:
        """Raise RetryableError unless both files belong to this acquisition."""
        self._lease.check()
        if self._lock_file is not None:
            content, _ = self._lock_file.read()
            if content is None or owner_of(content) != self._lease.owner:
                raise lock_lost(self.name, repr(content))

    def continues(self) -> bool:
        """Return whether no other writer of this project held the lock since the last release of this process."""
        return self._lease.continues()

    def is_fresh(self) -> bool:
        """Return whether the lease was proven recently; False where a writer of Hudi may delete the file `lock`."""
        return self._lock_file is None and self._lease.is_fresh()

    def release_held(self) -> bool | None:
        """Release the lease; None where the file `lock` belongs to the lock, too."""
        return self._lease.release_held() if self._lock_file is None else None

    def guard(self, *, reread: bool) -> tuple[str, str] | None:
        """Return `holder.json`. Only `check` reads the file `lock`."""
        return self._lease.guard(reread=reread)

    def skew_ms(self) -> int | None:
        """Return the clock difference that `holder.json` shows."""
        return self._lease.skew_ms()

    def renew(self) -> None:
        """Extend the lease and rewrite the file `lock`, because Hudi expires it by its age."""
        self._lease.renew()
        if (
            self._lock_file is not None
            and self._lock_file_version is not None
            and self._lock_file_version[1] is not None
        ):
            data = self._lease_record(self._codec.decode(self._lock_file_version[0]))
            tag = swap_once(self._lock_file, data, self._lock_file_version[1])
            if tag is not None:
                self._lock_file_version = data, tag

    def release(self) -> None:
        """Delete the file `lock` and release the lease."""
        if self._lock_file is not None and self._lock_file_version is not None:
            self._delete_lock_file(self._lock_file, self._lock_file_version[1])
            self._lock_file_version = None
        self._lease.release()

    def _create_lock_file(self, lock_file: FileRegister, token: int) -> Held | None:
        data = self._lease_record(LockLease(owner=self._lease.owner, token=token, until_ms=0))
        # Set before the swap: from here on the file may exist and must be deleted.
        self._lock_file_version = data, None
        tag = swap_once(lock_file, data, None)
        if tag is None:
            content, found_tag = lock_file.read()
            if content is not None and not self._may_replace(content, token):
                self._lock_file_version = None
                return Held(
                    f"{content!r}, which is a lock of Hudi (delete it if its holder no longer runs, or set "
                    "hoodie.write.lock.filesystem.expire),"
                )
            tag = swap_once(lock_file, data, found_tag)
        if tag is None:
            # Hudi's writers create and delete the file repeatedly. The caller waits before the next try.
            self._lock_file_version = None
            return Held(f"{self.name}, which changes continuously,")
        self._lock_file_version = data, tag
        return None

    def _delete_lock_file(self, lock_file: FileRegister, tag: str | None) -> None:
        if tag is not None and self._storage.delete_if(lock_file.path, tag):
            return
        content, found_tag = lock_file.read()
        if content is not None and found_tag is not None and owner_of(content) == self._lease.owner:
            self._storage.delete_if(lock_file.path, found_tag)

    def _may_replace(self, content: bytes, token: int) -> bool:
        """Return whether `lock` was left by a writer that no longer holds the lock."""
        ours = self._codec.decode(content)
        if ours is not None and ours.token <= token:
            # The swap of holder.json has already decided between the two writers.
            return True
        now_ms = self._env.clock.now_ms()
        expires_ms = self._hudi_expires_ms()
        return not is_active(self._env, content, now_ms=now_ms, expires_ms=expires_ms, grace_ms=CLOCK_DRIFT_MS)

    def _hudi_expires_ms(self) -> int | None:
        """Return the time at which a lock of Hudi expires by its age, in UTC milliseconds, or None for never."""
        if not self._hudi_expire_ms or self._lock_file is None:
            return None
        directory, _, _ = self._lock_file.path.rpartition("/")
        try:
            files, _ = self._storage.list_dir(directory)
        except NotFoundError:
            return None
        ages = [file.modified_ms for file in files if file.path == self._lock_file.path]
        return max(ages) + self._hudi_expire_ms if ages else None

    def _lease_record(self, lease: LockLease | None) -> bytes:
        assert lease is not None, "bytes that this class encoded must decode"
        until_ms = self._env.clock.now_ms() + self.lease_ms
        return self._codec.encode(LockLease(owner=lease.owner, token=lease.token, until_ms=until_ms))


def _place(env: Env, directory: str) -> tuple[Storage, str]:
    """Return the storage and the directory of the lock; a directory in the table uses the storage of the table."""
    if not directory:
        return env.storage, DIRECTORY
    if "://" not in directory and not directory.startswith(("/", "file:")):
        return env.storage, check_prefix(directory)
    elsewhere, root = open_storage(directory), env.storage.root
    if elsewhere.root == root or elsewhere.root.startswith(f"{root}/"):
        return env.storage, elsewhere.root[len(root) + 1 :]
    return elsewhere, ""
