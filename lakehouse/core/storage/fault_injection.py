"""A store that fails at the n-th step, so that a test can fail a run at every storage call.

Steps are numbered from 1, in the order of the calls. `delete_many` has one step per file. `open_output` has one step
for the open and one for the `close` that gives the file its name. To test all steps, run once with `fail_at=None`, read
`steps`, then run with each number.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar

from lakehouse.core.storage.atomic_output import PassingOutput
from lakehouse.core.storage.protocol import FileInfo, Files, InputFile, Level, Names, OutputFile, Storage, Tagged
from lakehouse.errors import LakehouseError, RetryableError

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The simulated crash of the process. It is not an Exception, so that no `except Exception` handles it."""


class FaultMode(StrEnum):
    """The kind of failure at the step."""

    CRASH_BEFORE = "crash_before"
    CRASH_AFTER = "crash_after"
    KILL_BEFORE = "kill_before"
    KILL_AFTER = "kill_after"
    LOSE_REPLY = "lose_reply"


class FaultyStorage:
    """Pass every call to the inner store and fail at step `fail_at` (None: never).

    After a simulated crash every further call crashes, including calls in `finally` blocks. Tests read the result from
    the inner store. A lost reply raises RetryableError after the call took effect. An unpickled copy starts at step 0
    and fails at the same number.
    """

    def __init__(self, inner: Storage, fail_at: int | None = None, mode: str = FaultMode.CRASH_BEFORE) -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.mode = FaultMode(mode)
        self.steps = 0
        self.trace: list[str] = []
        self._crashed = False
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[FaultyStorage], tuple[Storage, int | None, str]]:
        return FaultyStorage, (self.inner, self.fail_at, str(self.mode))

    @property
    def root(self) -> str:
        """The root of the inner store."""
        return self.inner.root

    def above(self) -> Storage | None:
        """Return the parent store; neither this call nor its requests are steps."""
        return self.inner.above()

    def get(self, path: str) -> bytes:
        """Count as one step."""
        return self.step(f"get {path}", lambda: self.inner.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Count as one step."""
        return self.step(f"get_range {path}", lambda: self.inner.get_range(path, start, length))

    def put(self, path: str, data: bytes) -> None:
        """Count as one step."""
        self.step(f"put {path}", lambda: self.inner.put(path, data))

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        """Count as one step."""
        return self.step(f"create {path}", lambda: self.inner.create(path, data, unique=unique))

    def create_guarded(self, path: str, data: bytes, guard: str, tag: str) -> bool | None:
        """One step with the name of a `create` step."""
        return self.step(f"create {path}", lambda: self.inner.create_guarded(path, data, guard, tag))

    def get_tagged(self, path: str) -> Tagged:
        """Count as one step."""
        return self.step(f"get_tagged {path}", lambda: self.inner.get_tagged(path))

    def replace_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Count as one step."""
        return self.step(f"replace_if {path}", lambda: self.inner.replace_if(path, data, tag))

    def delete_if(self, path: str, tag: str) -> bool:
        """Count as one step."""
        return self.step(f"delete_if {path}", lambda: self.inner.delete_if(path, tag))

    def delete(self, path: str) -> bool:
        """Count as one step."""
        return self.step(f"delete {path}", lambda: self.inner.delete(path))

    def delete_many(self, paths: Iterable[str]) -> int:
        """One step per file: a crash leaves some of them."""
        return sum([self.delete(path) for path in paths])

    def list_after(self, after: str) -> Files:
        """Count as one step."""
        return self.step(f"list {after}", lambda: self.inner.list_after(after))

    def find(self, path: str) -> FileInfo | None:
        """Count as one step."""
        return self.step(f"find {path}", lambda: self.inner.find(path))

    def list_dir(self, prefix: str) -> Level:
        """Count as one step."""
        return self.step(f"list_dir {prefix}", lambda: self.inner.list_dir(prefix))

    def list_names(self, prefix: str) -> Names:
        """Count as one step."""
        return self.step(f"list_dir {prefix}", lambda: self.inner.list_names(prefix))

    def open_input(self, path: str) -> InputFile:
        """One step; reads of the open file are not steps."""
        return self.step(f"open_input {path}", lambda: self.inner.open_input(path))

    def open_output(self, path: str) -> OutputFile:
        """One step, and another one for the `close` of the file."""
        opened: list[OutputFile] = []

        def open_inner() -> OutputFile:
            opened.append(self.inner.open_output(path))
            return opened[0]

        try:
            return _FaultyOutput(self, self.step(f"open_output {path}", open_inner), path)
        except BaseException:
            for file in opened:
                file.abort()
            raise

    def native(self, path: str) -> str:
        """No step."""
        return self.inner.native(path)

    def list(self, prefix: str) -> Files:
        """Count as one step."""
        return self.step(f"list {prefix}", lambda: self.inner.list(prefix))

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Count a call as a step, and execute it or fail. `trace` records the name of each step."""
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(f"{name}: the process crashed before")
            self.steps += 1
            self.trace.append(name)
            hit = self.steps == self.fail_at
            if hit and self.mode is FaultMode.CRASH_BEFORE:
                self._crashed = True
        if not hit:
            return call()
        if self.mode is FaultMode.KILL_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode is FaultMode.CRASH_BEFORE:
            raise SimulatedCrash(f"before step {self.fail_at}: {name}")
        try:
            call()
        except LakehouseError:
            # An error is a reply, too. A crashed process does not receive it.
            if self.mode is FaultMode.LOSE_REPLY:
                raise
        if self.mode is FaultMode.KILL_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode is FaultMode.LOSE_REPLY:
            raise RetryableError(f"the reply of step {self.fail_at} was lost: {name}", step=self.fail_at)
        with self._lock:
            self._crashed = True
        raise SimulatedCrash(f"after step {self.fail_at}: {name}")


class _FaultyOutput(PassingOutput):
    """An output whose `close` is a step."""

    def __init__(self, owner: FaultyStorage, inner: OutputFile, path: str) -> None:
        super().__init__(inner)
        self._owner = owner
        self._path = path

    def close(self) -> None:
        """Publish the file or fail."""
        if self.closed:
            return
        try:
            self._owner.step(f"close {self._path}", self.inner.close)
        except BaseException:
            self.abort()
            raise
