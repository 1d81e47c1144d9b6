"""Everything nondeterministic in one value: storage, clock, ids, locks. Production and tests differ only in it."""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse.storage.protocol import Storage


class Clock(Protocol):
    """Time in UTC milliseconds, and waiting."""

    def now_ms(self) -> int: ...
    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Fresh identifiers."""

    def uuid(self) -> str: ...


class Processes(Protocol):
    """Who we are, and whether another process of this host still lives."""

    def me(self) -> tuple[str, int]: ...
    def is_alive(self, pid: int) -> bool: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return UTC milliseconds."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class RandomIds:
    """Version 4 UUIDs."""

    def uuid(self) -> str:
        """Return a fresh UUID as text."""
        return str(uuid.uuid4())


class SystemProcesses:
    """The operating system's processes."""

    def me(self) -> tuple[str, int]:
        """Return host name and process id."""
        return socket.gethostname(), os.getpid()

    def is_alive(self, pid: int) -> bool:
        """Return whether a process of this host has this id."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The world of one operation; `storage` is rooted at the table."""

    storage: Storage
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    processes: Processes = field(default_factory=SystemProcesses)
