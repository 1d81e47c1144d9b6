"""A world that a seed decides: who moves next, what time it is, who dies, whose reply is lost.

Every process runs real operations in a thread of its own, and exactly one of them moves at a time: before each call of
storage the one that moves asks the world, which hands the turn to whoever the seed names. Time is a number that grows
with the steps; a process that sleeps or stalls lets it jump. What operations do in the background (signs of life, the
renewal of a lease) happens when its virtual time has come, as long as the process runs.
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

#: Long before it, prepared tables were made.
BEGIN_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
MOST_STEPS = 20_000
#: Share of the processes that are in a container of their own, under the name of the host.
_CONTAINED = 0.1


class Violation(AssertionError):
    """An invariant does not hold; `invariant` is its name."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


@dataclass(eq=False)
class Process:
    """An actor as its world knows it; `wakes_ms` is when it may move again, `skew_ms` how far its clock is off."""

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
        """Return whether a process of this host lives; those that have come to their end are processes still.

        Those of another container are not to be seen from here.
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
        """Let the others move until the time has come."""
        self.wakes_ms = self.world.now_ms + max(1, int(seconds * 1000))
        self.world.switch(self)

    def uuid(self) -> str:
        """Return a fresh id."""
        return str(uuid.UUID(int=self.world.random.getrandbits(128), version=4))

    def die(self, why: str) -> SimulatedCrash:
        """Return what ends this process; the store answers it no more."""
        self.crashed = True
        self.world.timers = [timer for timer in self.world.timers if timer.process is not self]
        return SimulatedCrash(why)

    def env(self, storage: Any) -> Env:
        """Return the world of this process for the operations."""
        return Env(storage=storage, clock=self, timers=self, ids=self, processes=self, process_state=self.process_state)

    def every(self, seconds: float, function: Callable[[], None], name: str) -> SimulatedTimer:
        """Start a timer in virtual time; see `Timers`."""
        period_ms = int(seconds * 1000)
        timer = SimulatedTimer(self, function, period_ms, self.world.now_ms + period_ms)
        self.world.timers.append(timer)
        return timer


@dataclass(eq=False)
class SimulatedTimer:
    """A periodic call of a simulated process. The world makes the call when its virtual time has come."""

    process: Process
    function: Callable[[], None]
    period_ms: int
    due_ms: int
    is_stopped: bool = False

    def stop(self) -> None:
        """End the calls; none is under way, because the process itself is moving."""
        self.is_stopped = True


_worlds: list[World] = []


def here() -> World:
    """Return the world of this run."""
    return _worlds[-1]


@contextmanager
def living_in(world: World) -> Iterator[None]:
    """Make a world that of everything that runs."""
    _worlds.append(world)
    try:
        yield
    finally:
        _worlds.remove(world)


class World:
    """The processes, the time and the dice of one run. `trace` tells every step that was taken."""

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
        """Return a new process, which does not move yet."""
        # Drawn apart, so that seeds that are recorded elsewhere stay as they are where there is one container.
        drawn = Random(f"container {self.seed} {name}").random()
        container = f"pid:[{name}]" if drawn < _CONTAINED else "pid:[1]"
        made = Process(self, 1000 + len(self.processes), name, host, skew_ms, container, done=True)
        self.processes.append(made)
        return made

    def start(self, process: Process, work: Callable[[], None]) -> None:
        """Let a process begin `work` when it is chosen."""
        process.done = False
        process.wakes_ms = self.now_ms
        threading.Thread(target=self._live, args=(process, work), daemon=True).start()

    def play(self) -> None:
        """Run all processes to their ends; raise what a process could not bear, or the first violation."""
        with living_in(self):
            self._pass_turn()
            self._end.acquire()
        if self.failure is not None:
            raise self.failure

    def pause(self, process: Process) -> None:
        """Stop before a step, and come back when the seed says so."""
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
        """Hand the turn on, maybe back to the same process."""
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
        """Let time pass, and call the timers that are due."""
        self.now_ms += milliseconds
        self._beat()

    def beats_for(self, process: Process, instant: str) -> bool:
        """Return whether a process renews the heartbeat of an instant and never missed a renewal."""
        if process.crashed or process.has_stalled:
            return False
        mine = [timer for timer in self.timers if timer.process is process and not timer.is_stopped]
        return any(str(getattr(timer.function.__self__, "_path", "")).endswith(instant) for timer in mine)  # type: ignore[attr-defined]

    def fail(self, error: BaseException) -> None:
        """End the run: no process reaches storage any more. The first failure counts."""
        self.failure = self.failure or error
        raise self.failure

    def _choose(self) -> Process:
        living = [process for process in self.processes if not process.done]
        ready = [process for process in living if process.wakes_ms <= self.now_ms]
        if not ready:
            self.now_ms = min(process.wakes_ms for process in living)
            ready = [process for process in living if process.wakes_ms <= self.now_ms]
        return ready[0] if len(ready) == 1 else self.random.choice(ready)

    def _beat(self) -> None:
        """Take the turns of the background that are due, each at once as far as the others see."""
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
