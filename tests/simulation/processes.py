"""What a simulated process must be lent of a real one: threads, locks of its own, and nobody else at work in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest

from lakehouse.engine import local
from lakehouse.operations import load
from lakehouse.txn import heartbeat, lock, timeline_store
from tests.simulation.world import THREADING, here


class _Pool:
    """A pool without threads: work is done in order, by who asks."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __enter__(self) -> _Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return iter([function(*each) for each in zip(*items, strict=False)])


class _Registries(dict[str, threading.Lock]):
    """The locks that threads of one process queue at; each simulated process has its own."""

    def setdefault(self, key: str, default: threading.Lock | None = None) -> threading.Lock:
        return super().setdefault(f"{here().moving.pid} {key}", default or threading.Lock())


@contextmanager
def simulated() -> Iterator[None]:
    """Run operations as processes of a simulation."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (local, load, timeline_store):
            patch.setattr(module, "ThreadPoolExecutor", _Pool)
        patch.setattr(local, "os", SimpleNamespace(cpu_count=lambda: 2))
        patch.setattr(heartbeat, "threading", THREADING)
        patch.setattr(lock, "threading", THREADING)
        patch.setattr(lock, "_in_process", _Registries())
        yield
