"""The environment of an operation: everything nondeterministic in one value.

Production, tests and the simulation run the same code and differ only in this value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.core.system.ids import Ids, RandomIds
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.system.processes import Processes, SystemProcesses
from lakehouse.core.system.timers import SystemTimers, Timers

_PROCESS_STATE = ProcessState()


def process_state() -> ProcessState:
    """Return the state that all environments of this process share, unless they are created with another one."""
    return _PROCESS_STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The environment of one operation on one table. `storage` is rooted at the table."""

    storage: Storage
    clock: Clock = field(default_factory=SystemClock)
    timers: Timers = field(default_factory=SystemTimers)
    ids: Ids = field(default_factory=RandomIds)
    processes: Processes = field(default_factory=SystemProcesses)
    process_state: ProcessState = field(default_factory=process_state)
