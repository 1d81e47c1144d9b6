"""Patches for operations in simulated processes: no thread pools, and a simulated lock database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from lakehouse.core.engine import local
from lakehouse.core.env import Env
from lakehouse.core.files.stage import near_files
from lakehouse.core.system import threads
from lakehouse.core.timeline import table_lock as lock
from lakehouse.core.timeline.locks.lease import FileRegister, LeaseLock
from lakehouse.core.timeline.locks.lease_record import LeaseRecordCodec
from lakehouse.core.timeline.locks.protocol import Lock
from lakehouse.core.timeline.table_lock import open_lock
from lakehouse.spec.options.lock import LockPolicy
from tests.simulation.world import current_world


class _Pool:
    """A pool without threads. The caller runs the calls in order."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __enter__(self) -> _Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return iter([function(*each) for each in zip(*items, strict=False)])


def _open_lock(env: Env, policy: LockPolicy) -> Lock:
    """Return the lock of the provider. A lock database is a separate simulated store with the same faults."""
    if policy.provider != "sqlalchemy":
        return open_lock(env, policy)
    lease_ms = policy.lease_ms
    row = FileRegister(env.storage.beside(current_world().database), "row")  # type: ignore[attr-defined]
    return LeaseLock(env, row, LeaseRecordCodec(env), name="row", lease_ms=lease_ms, renew_ms=lease_ms // 3)


@contextmanager
def simulated(*, stages_in_storage: bool = False) -> Iterator[None]:
    """Apply the patches for the operations of the block; optionally, no staged rows stay in memory."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("lakehouse.core.") and hasattr(module, "ThreadPoolExecutor"):
                patch.setattr(module, "ThreadPoolExecutor", _Pool)
        patch.setattr(local, "available_cores", lambda: 2)
        patch.setattr(threads, "_pool", lambda: _Pool(1))
        patch.setattr(lock, "open_lock", _open_lock)
        if stages_in_storage:
            patch.setattr(near_files, "_MOST_BYTES", 0)
        yield
