"""A simulated environment with a seeded schedule: the seed decides the order of steps, the time, crashes and faults.

Each process runs real operations in a separate thread, and exactly one thread runs at a time. Before each storage call
the running process asks the world, which passes the turn to the process that the seed selects. Time is a number that
grows with the steps; it jumps when a process sleeps or stalls. Background work (heartbeats, the renewal of a lease)
runs when its virtual time is reached, as long as the process runs.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.system.processes import ProcessId

#: The time at which a run begins. Prepared tables are older.
BEGIN_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
MOST_STEPS = 20_000
#: The share of processes that run in a separate container with the host name of the host.
_CONTAINED = 0.1


class Violation(AssertionError):
    """An invariant does not hold; `invariant` is its name."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


@dataclass(eq=False)
class Process:
    """A simulated process, with its clock, ids and timers.

    `wakes_ms` is the time from which it may run again; `skew_ms` is the error of its clock.
    """

    world: World
    pid: int
    name: str
    host: str
    skew_ms: int = 0
    container: str = "pid:[1]"
    wakes_ms: int = 0
    stalled: bool = False
    has_stalled: bool = False
    crashed: bool = False
    done: bool = False
    protected: bool = False
    refusals: int = 0
    process_state: ProcessState = field(default_factory=ProcessState)
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def current(self) -> ProcessId:
        """Return this process."""
        return ProcessId(host=self.host, pid=self.pid, boot=self.host, namespace=self.container, started=str(self.pid))

    def is_running(self, process: ProcessId) -> bool:
        """Return whether a process of this host runs. A process that ended normally counts as running.

        Processes of other containers are not visible.
        """
        if process.namespace != self.container:
            return False
        return not any(other.pid == process.pid and other.crashed for other in self.world.processes)

    def now_ms(self) -> int:
        """Return the time on the clock of this process."""
        return self.world.now_ms + self.skew_ms

    def monotonic_s(self) -> float:
        """Return the time of the world in seconds."""
        return self.world.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time while other processes run."""
        self.wakes_ms = self.world.now_ms + max(1, int(seconds * 1000))
        self.world.switch(self)

    def uuid(self) -> str:
        """Return a fresh id."""
        return str(uuid.UUID(int=self.world.random.getrandbits(128), version=4))

    def die(self, why: str) -> SimulatedCrash:
        """Mark this process as crashed and return the exception that ends it. Its later storage calls fail."""
        self.crashed = True
        self.world.timers = [timer for timer in self.world.timers if timer.process is not self]
        return SimulatedCrash(why)

    def env(self, storage: Any) -> Env:
        """Return the environment that operations of this process use."""
        return Env(storage=storage, clock=self, timers=self, ids=self, processes=self, process_state=self.process_state)

    def every(self, seconds: float, function: Callable[[], None], name: str) -> SimulatedTimer:
        """Start a timer in virtual time; see `Timers`."""
        period_ms = int(seconds * 1000)
        timer = SimulatedTimer(self, function, period_ms, self.world.now_ms + period_ms)
        self.world.timers.append(timer)
        return timer


@dataclass(eq=False)
class SimulatedTimer:
    """A periodic call of a simulated process. The world makes the call when its virtual time is reached."""

    process: Process
    function: Callable[[], None]
    period_ms: int
    due_ms: int
    is_stopped: bool = False

    def stop(self) -> None:
        """End the calls. No call is in progress, because the process itself is running."""
        self.is_stopped = True


_worlds: list[World] = []


def current_world() -> World:
    """Return the world of the current run."""
    return _worlds[-1]


@contextmanager
def running_in(world: World) -> Iterator[None]:
    """Make `world` the current world."""
    _worlds.append(world)
    try:
        yield
    finally:
        _worlds.remove(world)


class World:
    """The processes, the time and the random numbers of one run. `trace` lists every step of the run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = BEGIN_MS
        self.processes: list[Process] = []
        self.timers: list[SimulatedTimer] = []
        self.trace: list[str] = []
        self.modified: dict[str, int] = {}
        self.database = MemoryStorage()
        self.stays = self.random.choice((0.3, 0.7, 0.9, 0.97))
        self.steps = 0
        self.failure: BaseException | None = None
        self.moving: Process = self.process("origin", "origin")
        self.is_beating = False
        self._end = threading.Semaphore(0)

    def process(self, name: str, host: str, skew_ms: int = 0) -> Process:
        """Return a new process, which has not started."""
        # A separate generator, so that recorded seeds keep their schedule if there is only one container.
        drawn = Random(f"container {self.seed} {name}").random()
        container = f"pid:[{name}]" if drawn < _CONTAINED else "pid:[1]"
        made = Process(self, 1000 + len(self.processes), name, host, skew_ms, container, done=True)
        self.processes.append(made)
        return made

    def start(self, process: Process, work: Callable[[], None]) -> None:
        """Start a process. It begins `work` when the world selects it."""
        process.done = False
        process.wakes_ms = self.now_ms
        threading.Thread(target=self._live, args=(process, work), daemon=True).start()

    def play(self) -> None:
        """Run all processes until they end; raise the first violation or unexpected error."""
        with running_in(self):
            self._pass_turn()
            self._end.acquire()
        if self.failure is not None:
            raise self.failure

    def pause(self, process: Process) -> None:
        """Stop the process before a step, and return when the seed selects it."""
        if process.crashed or self.failure is not None:
            raise SimulatedCrash("the process crashed before")
        if self.is_beating:
            return
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Violation("Progress", f"no end after {MOST_STEPS} steps")
        self.now_ms += self.random.choice((0, 0, 1, 1, 2, 7))
        if self.random.random() >= self.stays:
            self.switch(process)
        elif self.timers:
            self._beat()

    def switch(self, process: Process) -> None:
        """Pass the turn to a process, which may be the same one."""
        chosen = self._choose()
        if chosen is not process:
            chosen.turn.release()
            process.turn.acquire()
        if self.failure is not None:
            raise SimulatedCrash("the run is over")
        self.moving = process
        if process.stalled:
            process.stalled = False
            for timer in self.timers:
                if timer.process is process:
                    timer.due_ms = self.now_ms + self.random.choice((0, timer.period_ms))
        self._beat()

    def jump(self, milliseconds: int) -> None:
        """Advance the time and call the timers that are due."""
        self.now_ms += milliseconds
        self._beat()

    def beats_for(self, process: Process, instant: str) -> bool:
        """Return whether a process renews the heartbeat of an instant and never missed a renewal."""
        if process.crashed or process.has_stalled:
            return False
        mine = [timer for timer in self.timers if timer.process is process and not timer.is_stopped]
        return any(str(getattr(timer.function.__self__, "_path", "")).endswith(instant) for timer in mine)  # type: ignore[attr-defined]

    def fail(self, error: BaseException) -> None:
        """End the run with `error`, unless it failed before. Later storage calls of all processes fail."""
        self.failure = self.failure or error
        raise self.failure

    def _choose(self) -> Process:
        active = [process for process in self.processes if not process.done]
        ready = [process for process in active if process.wakes_ms <= self.now_ms]
        if not ready:
            self.now_ms = min(process.wakes_ms for process in active)
            ready = [process for process in active if process.wakes_ms <= self.now_ms]
        return ready[0] if len(ready) == 1 else self.random.choice(ready)

    def _beat(self) -> None:
        """Call the timers that are due. Other processes see each call as one step."""
        for timer in [timer for timer in self.timers if timer.due_ms <= self.now_ms and not timer.process.stalled]:
            if timer.is_stopped:
                self.timers.remove(timer)
                continue
            moving, self.moving, self.is_beating = self.moving, timer.process, True
            try:
                timer.function()
            finally:
                self.moving, self.is_beating = moving, False
            timer.due_ms = self.now_ms + timer.period_ms

    def _live(self, process: Process, work: Callable[[], None]) -> None:
        process.turn.acquire()
        try:
            if self.failure is None:
                self.moving = process
                work()
        except SimulatedCrash:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            process.done = True
            self.timers = [timer for timer in self.timers if timer.process is not process]
            self._pass_turn()

    def _pass_turn(self) -> None:
        if all(process.done for process in self.processes):
            self._end.release()
        else:
            self._choose().turn.release()
