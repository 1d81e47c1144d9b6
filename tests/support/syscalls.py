"""Make a chosen system call of the local store fail, as a full or defective disk does.

A step is one system call of the local store, including writes to open files and closing them. A test runs an operation
once with `fail_at=None`, reads `steps`, and then runs the operation with each number.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakehouse.core.storage import local, local_links, local_reads

_CALLS = ("open", "link", "replace", "unlink", "scandir", "stat", "fstat", "makedirs", "pread", "rmdir")
#: Calls that fail on a full disk.
WRITING = ("open x", "write", "close w", "link", "replace", "makedirs")


@dataclass
class System:
    """Counts system calls and fails call number `fail_at`; with `lasting` all later calls that write fail as well."""

    errno: int = 0
    fail_at: int | None = None
    lasting: bool = False
    trace: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Return the number of calls so far."""
        return len(self.trace)

    def step(self, name: str, target: object, call: Callable[[], Any]) -> Any:
        """Count a call and execute it, or raise OSError if it has to fail."""
        self.trace.append(f"{name} {target}")
        at, number = self.fail_at, len(self.trace)
        if at is not None and (number == at or (self.lasting and number > at and name in WRITING)):
            self.failed.append(name)
            raise OSError(self.errno, os.strerror(self.errno), str(target))
        return call()

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of `os` that counts its calls as steps."""
        real = getattr(os, name)

        def call(*args: Any, **how: Any) -> Any:
            creates = name == "open" and len(args) > 1 and args[1] & os.O_CREAT
            return self.step("open x" if creates else name, args[0] if args else "", lambda: real(*args, **how))

        return call

    def open(self, file: Any, mode: str = "r", *rest: Any, **how: Any) -> Any:
        """Open a file whose calls count as steps."""
        name = "open x" if "x" in mode else "open"
        return _File(self, self.step(name, file, lambda: builtins.open(file, mode, *rest, **how)), "x" in mode)

    def flock(self, descriptor: int, operation: int) -> None:
        """Lock a file as a step; unlocking is not a step."""
        if operation == fcntl.LOCK_UN:
            fcntl.flock(descriptor, operation)
        else:
            self.step("flock", descriptor, lambda: fcntl.flock(descriptor, operation))


class _File:
    def __init__(self, system: System, file: Any, writes: bool) -> None:
        self._system, self._file, self._writes = system, file, writes

    def write(self, data: Any) -> Any:
        return self._system.step("write", self._file.name, lambda: self._file.write(data))

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._system.step("close w" if self._writes else "close", self._file.name, lambda: None)
        finally:
            self._file.close()

    def fileno(self) -> int:
        descriptor: int = self._file.fileno()
        return descriptor

    def readall(self) -> Any:
        return self._system.step("read", self._file.name, self._file.readall)

    def read(self) -> Any:
        return self._system.step("read", self._file.name, self._file.read)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.close()
        else:
            self._file.close()


@contextmanager
def failing(system: System) -> Iterator[System]:
    """Route the system calls of local storage through `system`."""
    shim = types.SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    for name in _CALLS:
        setattr(shim, name, system.function(name))
    arrow = types.SimpleNamespace(
        memory_map=lambda path, mode: system.step("map", path, lambda: local_pa.memory_map(path, mode)),
        OSFile=local_pa.OSFile,
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (local, local_links, local_reads):
            patch.setattr(module, "os", shim)
            patch.setattr(module, "open", system.open, raising=False)
        patch.setattr(local, "pa", arrow)
        patch.setattr(local, "fcntl", types.SimpleNamespace(**{**vars(fcntl), "flock": system.flock}))
        yield system


local_pa = local.pa
