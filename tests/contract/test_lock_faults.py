"""Every lock provider with a fault at every step of its store: full disk, disk error, missing access, signal.

An acquisition ends within its wait time with an error that names the cause. Its leftover files do not block the next
acquisition.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from sqlalchemy import event
from sqlalchemy.engine import Engine

from lakehouse.core.env import Env, process_state
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.timeline.locks.metastore_client import MetastoreClient
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.locks import Place, kinds
from tests.support.syscalls import System, failing
from tests.support.tables import SteadyClock

ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EACCES", "EINTR")}
FILES = ("filesystem-local", "storage-local", "in_process")
SERVED = ("sqlalchemy-sqlite", "sqlalchemy-postgresql", "zookeeper", "hivemetastore")
WAIT_MS = 1_000
#: The limit of calls per visit. A loop without a pause makes many more calls within its wait time.
MOST_STEPS = 600

each_error = pytest.mark.parametrize("error", ERRORS)
each_file = pytest.mark.parametrize("place", kinds(FILES), indirect=True)
each_served = pytest.mark.parametrize("place", kinds(SERVED), indirect=True)


def visit(place: Place) -> None:
    """Acquire, check, renew and release the lock, as a process that has not compared the recorded lock yet."""
    process_state().compared_locks.clear()
    with table_lock(place.env(1), replace(place.policy, lock=replace(place.policy.lock, wait_ms=WAIT_MS))) as lock:
        lock.check()
        lock._lock.renew()
        lock.check()


def judge(place: Place, error: str, faults: AbstractContextManager[System]) -> LakehouseError | None:
    """Visit with faults and return the error. It must name the cause within the wait time; a later visit succeeds."""
    before = place.clock.now_ms()
    raised: LakehouseError | None = None
    with faults as system:
        try:
            visit(place)
        except LakehouseError as failure:
            raised = failure
    assert place.clock.now_ms() - before < 3 * WAIT_MS, system.failed
    assert system.steps < MOST_STEPS, system.failed
    if raised is not None:
        assert isinstance(raised, UserError if error == "EACCES" else RetryableError), f"{system.failed}: {raised!r}"
        assert os.strerror(ERRORS[error]) in str(raised), system.failed
    visit(place)
    return raised


@each_file
@each_error
def test_lock_in_files_ends_within_its_wait_time_at_every_failing_call(place: Place, error: str) -> None:
    visit(place)
    with failing(System()) as whole:
        visit(place)
    raised = [
        judge(place, error, failing(System(errno=ERRORS[error], fail_at=number)))
        for number in range(1, whole.steps + 1)
    ]
    assert any(raised) or place.kind == "in_process"


@each_file
def test_lock_in_files_reports_a_disk_that_fills_up_and_stays_full(place: Place) -> None:
    visit(place)
    with failing(System()) as whole:
        visit(place)
    raised = [
        judge(place, "ENOSPC", failing(System(errno=errno.ENOSPC, fail_at=number, lasting=True)))
        for number in range(1, whole.steps + 1)
    ]
    assert any(raised) or place.kind == "in_process"


@contextmanager
def served(system: System) -> Iterator[System]:
    """Let the clients of databases, ZooKeeper and the metastore make their requests through `system`."""

    def statement(connection: Any, cursor: Any, text: str, *_: Any) -> None:
        system.step("statement", text, lambda: None)

    def commit(connection: Any) -> None:
        system.step("commit", "", lambda: None)

    def through(owner: type, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)
        return lambda self, *args, **how: system.step(name, owner.__name__, lambda: real(self, *args, **how))

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", commit)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("start", *(f"{verb}_async" for verb in ("ensure_path", "get_children", "create", "exists"))):
                patch.setattr(KazooClient, name, through(KazooClient, name))
            for name in ("sync_async", "get_async", "delete_async"):
                patch.setattr(KazooClient, name, through(KazooClient, name))
            patch.setattr(MetastoreClient, "_connect", through(MetastoreClient, "_connect"))
            call = MetastoreClient.call

            def asked(self: MetastoreClient, ask: Callable[[Any], Any], *answers: type[Exception]) -> Any:
                return call(self, lambda client: system.step("ask", "metastore", lambda: ask(client)), *answers)

            patch.setattr(MetastoreClient, "call", asked)
            yield system
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Engine, "commit", commit)


@each_served
@each_error
def test_lock_of_a_service_ends_within_its_wait_time_at_every_failing_request(place: Place, error: str) -> None:
    visit(place)
    with served(System()) as whole:
        visit(place)
    raised = [
        judge(place, error, served(System(errno=ERRORS[error], fail_at=number))) for number in range(1, whole.steps + 1)
    ]
    assert whole.steps > 3
    assert any(raised)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.parametrize("provider", ["filesystem", "storage"])
@pytest.mark.parametrize("is_first", [False, True])
def test_lock_on_a_full_disk_reports_it_at_once(provider: str, is_first: bool, small_disk: Path) -> None:
    env = Env(storage=LocalStorage(str(small_disk / "t")), clock=SteadyClock())
    policy = TransactionPolicy(lock=LockPolicy(provider=provider, wait_ms=60_000))
    if not is_first:
        with table_lock(env, policy):
            pass
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"x" * 4096)
    before = env.clock.now_ms()
    with pytest.raises(RetryableError, match=r"disk is full at .*No space left on device"), table_lock(env, policy):
        pass
    assert env.clock.now_ms() - before < policy.lock.wait_ms
    (small_disk / "filler").unlink()
    with table_lock(env, policy) as lock:
        lock.check()
