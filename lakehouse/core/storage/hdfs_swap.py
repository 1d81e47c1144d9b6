"""Compare-and-swap on HDFS: an exclusive claim of a file that can be broken at any time without harm.

HDFS compares nothing when it renames, so a swap needs mutual exclusion that a stale process cannot violate. A claim is
a directory that is renamed into its place, which succeeds for one process only, and whose one entry has a unique name:

    .<name>.swap.tmp/.<id>.tmp/.<id>.tmp    the new bytes, written and closed; not yet claimed
    .<name>.swap.tmp/claim/.<id>.tmp        claimed by <id>

    1  write the new bytes
    2  rename the directory to `claim`, without overwriting: one process succeeds, others wait
    3  read the file and compare
    4  rename claim/.<id>.tmp over the file: the swap, and the end of the claim, in one atomic step
    5  delete the directory `claim`

A claim whose process was killed or suspended is broken: another process deletes claim/.<id>.tmp, then the empty
directory. The rename of step 4 needs this entry as its source. The namenode executes one of the two requests first, so
a broken claim cannot swap, and a swap cannot be broken. If step 4 succeeds, the claim was in place since step 2, so no
other process swapped after the comparison. No argument uses time; the patience only decides how long others wait.

A conditional delete renames the file into its claim, and a guarded create renames the claimed bytes to another path.
Both need the claim in the same way. Readers of the file see the old or the new version in each step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from lakehouse.core.storage.hdfs_client import ATTEMPTS, HdfsClient
from lakehouse.core.storage.hdfs_errors import (
    is_absent,
    is_cut,
    is_hdfs_error,
    is_lost,
    is_not_empty,
    is_passing,
    needs_parent,
    translate,
)
from lakehouse.core.storage.local import temporary_name
from lakehouse.core.storage.object_swap import unknown
from lakehouse.core.storage.protocol import TEMPORARY_SUFFIX, NotFoundError
from lakehouse.core.system.clock import WaitClock
from lakehouse.core.system.ids import Ids
from lakehouse.errors import LakehouseError, RetryableError

#: Seconds after which the unchanged claim of another process is broken.
PATIENCE_S = 3.0
#: Seconds after which a process gives up, because others claim the file all the time.
_LIMIT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1
_UNCLAIMED_MS = 600_000
_CLAIM = "claim"


class Reader(Protocol):
    """The part of a store that a swap reads."""

    @property
    def root(self) -> str: ...
    def get(self, path: str) -> bytes: ...


class Claims:
    """Swaps of one file."""

    # parameters: the parts of a store
    def __init__(self, storage: Reader, client: HdfsClient, base: str, path: str, clock: WaitClock, ids: Ids) -> None:
        self._storage, self._client, self._clock, self._ids = storage, client, clock, ids
        self._base, self._path = base, path
        parent, _, name = path.rpartition("/")
        self._place = f"{base}{parent}/" if parent else base
        self._place += temporary_name(name, "swap")
        self._claim = f"{self._place}/{_CLAIM}"

    def replace(self, data: bytes, tag: str) -> bool:
        """Write the file if its version is `tag`; the bytes are unique."""
        return bool(self._swap(data, tag, lambda entry: self._rename(entry, self._path, data, overwrite=True)))

    def create(self, path: str, data: bytes, tag: str) -> bool | None:
        """Create the file `path` if the claimed file has the version `tag`; None if it has another one."""
        return self._swap(data, tag, lambda entry: self._rename(entry, path, data, overwrite=False))

    def delete(self, tag: str) -> bool:
        """Delete the file if its version is `tag`."""
        return bool(self._swap(None, tag, self._move_into))

    def _swap(self, data: bytes | None, tag: str, carry_out: Callable[[str], bool | None]) -> bool | None:
        """Compare under a claim and carry out the change; return None if the file has another version.

        `carry_out` gets the path of the claim's entry, and returns None if the claim was broken before.
        """
        deadline = self._clock.monotonic_s() + _LIMIT_S
        while True:
            entry = self._acquire(data, deadline)
            try:
                current = self._storage.get(self._path)
            except NotFoundError:
                current = None
            except BaseException:
                self._release()
                raise
            if current is None or digest(current) != tag:
                self._release()
                return None
            outcome = carry_out(entry)
            self._release()
            if outcome is not None:
                return outcome
            self._check(deadline)

    def _acquire(self, data: bytes | None, deadline: float) -> str:
        """Claim the file and return the path of the claim's entry."""
        name, prepared = "", ""
        seen, seen_s, pause = "", 0.0, _FIRST_PAUSE_S
        while True:
            if not prepared:
                name = f".{self._ids.uuid()}{TEMPORARY_SUFFIX}"
                prepared = f"{self._place}/{name}"
                self._prepare(f"{prepared}/{name}", data)
            answer = self._claim_once(prepared, name)
            if answer:
                return f"{self._claim}/{name}"
            if answer is None:
                # A cleanup deleted the unclaimed directory.
                prepared = ""
            self._check(deadline)
            holder = self._holder()
            now_s = self._clock.monotonic_s()
            if holder is None:
                continue
            if holder != seen:
                seen, seen_s, pause = holder, now_s, _FIRST_PAUSE_S
            if not holder or now_s - seen_s > PATIENCE_S:
                self._break(holder)
                continue
            self._clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _claim_once(self, prepared: str, name: str) -> bool | None:
        """Rename the prepared directory; return False if another process claims, None if it does not exist."""
        for attempt in range(ATTEMPTS):
            try:
                self._client.native().rename(prepared, self._claim)
                return True
            except FileExistsError:
                return False
            except BaseException as error:
                if not is_hdfs_error(error):
                    raise
                if is_absent(error):
                    # The source is missing: an earlier request took effect, or a cleanup deleted the directory.
                    return True if self._holder() == name else None
                if attempt + 1 == ATTEMPTS or not (is_cut(error) or is_passing(error)):
                    raise translate(error, self._path, self._storage.root, writing=True) from error
            self._client.pause(attempt)
        raise AssertionError("the loop returns or raises")

    def _prepare(self, entry: str, data: bytes | None) -> None:
        """Write the entry of a claim; an empty directory for a delete."""

        def made(client: Any) -> None:
            if data is None:
                client.mkdirs(entry, create_parent=True)
                return
            try:
                writer = client.create(entry)
            except FileExistsError:
                # A repeated request finds the file of the first one, whose writer is lost.
                client.delete(entry)
                writer = client.create(entry)
            writer.write(data)
            writer.close()

        self._client.call(made, self._path, writing=True)

    def _rename(self, entry: str, path: str, data: bytes, *, overwrite: bool) -> bool | None:
        """Rename the entry of the claim; return False if the target exists, None if the claim was broken."""
        was_lost, failure = False, None
        for attempt in range(ATTEMPTS):
            if attempt:
                self._client.pause(attempt - 1)
            try:
                self._client.native().rename(entry, self._base + path, overwrite)
                return True
            except FileExistsError:
                return False
            except BaseException as error:
                if not is_hdfs_error(error):
                    raise
                failure = error
            if needs_parent(failure):
                self._make_parent(path)
                continue
            if is_absent(failure):
                return self._read_back(path, data, overwrite=overwrite)
            was_lost = was_lost or is_lost(failure)
            if not (is_cut(failure) or is_passing(failure)):
                break
        assert failure is not None
        if was_lost:
            raise unknown(path, "HDFS answered no request, and one may take effect later") from failure
        raise translate(failure, path, self._storage.root, writing=True) from failure

    def _make_parent(self, path: str) -> None:
        parent = (self._base + path).rpartition("/")[0]
        self._client.call(lambda client: client.mkdirs(parent, create_parent=True), path, writing=True)

    def _read_back(self, path: str, data: bytes, *, overwrite: bool) -> bool | None:
        """Return whether the target has the bytes of this call; None if the claim was broken before the rename."""
        try:
            content = self._storage.get(path)
        except NotFoundError:
            return None
        except LakehouseError as error:
            raise unknown(path, "HDFS could not be read back") from error
        if content == data:
            return True
        return None if overwrite else False

    def _move_into(self, entry: str) -> bool | None:
        """Move the file into the entry of the claim, and return True; None if the claim was broken."""
        moved = f"{entry}/{TEMPORARY_SUFFIX}"
        for attempt in range(ATTEMPTS):
            try:
                self._client.native().rename(self._base + self._path, moved)
                return True
            except FileExistsError:
                return True
            except BaseException as error:
                if not is_hdfs_error(error):
                    raise
                if is_absent(error):
                    # Without the directory the claim was broken; without the file an earlier request moved it.
                    return None if needs_parent(error) else True
                if attempt + 1 == ATTEMPTS or not (is_cut(error) or is_passing(error)):
                    raise translate(error, self._path, self._storage.root, writing=True) from error
            self._client.pause(attempt)
        raise AssertionError("the loop returns or raises")

    def _holder(self) -> str | None:
        """Return the name of the claim's entry, `""` for a claim that ended, None if there is no claim."""

        def names(client: Any) -> list[str]:
            return [status.path.rpartition("/")[2] for status in client.list_status(self._claim)]

        try:
            return next(iter(self._client.call(names, self._path)), "")
        except NotFoundError:
            return None

    def _break(self, name: str) -> None:
        """Delete the entry `name` of a claim, and the claim if it is empty."""

        def broken(client: Any) -> None:
            if name:
                client.delete(f"{self._claim}/{name}", True)
            client.delete(self._claim)

        with suppress(LakehouseError):
            self._client.call(broken, self._path)

    def _release(self) -> None:
        """End a claim. Another process that claimed since then only loses its claim, and repeats its swap."""

        def released(client: Any) -> None:
            client.delete(self._claim, True)
            try:
                client.delete(self._place)
            except BaseException as error:
                if not is_not_empty(error):
                    raise
                self._delete_unclaimed(client)

        with suppress(LakehouseError):
            self._client.call(released, self._path)

    def _delete_unclaimed(self, client: Any) -> None:
        """Delete what killed processes wrote before their claim; a slow process only writes it again."""
        now_ms = client.get_file_info(self._place).modification_time
        for status in client.list_status(self._place):
            if status.modification_time < now_ms - _UNCLAIMED_MS:
                client.delete(f"{self._place}/{status.path.rpartition('/')[2]}", True)

    def _check(self, deadline: float) -> None:
        if self._clock.monotonic_s() > deadline:
            raise RetryableError(
                f"{self._storage.root}: other processes change {self._path!r} all the time; run again", path=self._path
            )


def digest(data: bytes) -> str:
    """Return the tag of a version."""
    return hashlib.sha256(data).hexdigest()
