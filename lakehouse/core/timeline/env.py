"""Everything nondeterministic in one value: storage, clock, ids, locks. Production and tests differ only in it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.process_identity import Processes, SystemProcesses


class Clock(Protocol):
    """Time in UTC milliseconds, and waiting."""

    def now_ms(self) -> int: ...
    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Fresh identifiers."""

    def uuid(self) -> str: ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The world of one operation; `storage` is rooted at the table."""

    storage: Storage
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    processes: Processes = field(default_factory=SystemProcesses)
