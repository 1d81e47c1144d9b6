"""Run two processes in every order of their steps, up to a number of switches.

A process runs until it is preempted, waits, or ends; then the other process runs. If a step commutes with all steps of
the other process between two switches, a switch before the step and one after it have the same result. Then only one of
them is run. Two steps commute unless one of them changes a path that the other one reads, lists or changes.

    A  1 2 | 3 4 5 |              a switch before 3 and a switch before 4 are equivalent
    B      1 2     3 4            if step 3 of A touches no path that steps 1 and 2 of B touch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from lakehouse.core.storage.fault_injection import SimulatedCrash
from tests.simulation.actors import Setting
from tests.simulation.invariants import Checker
from tests.simulation.processes import simulated
from tests.simulation.run import recover
from tests.simulation.store import Plan, SimulatedStorage
from tests.simulation.tables import Shape, prepared
from tests.simulation.world import HOUR_MS, Process, World
from tests.support.killed import copy_of

Actor = Callable[[Setting, SimulatedStorage, Process], None]
#: Verb and path.
Step = tuple[str, str]
_CHANGES = ("put", "create", "create_guarded", "replace_if", "delete", "delete_if", "close")
_LISTS = ("list", "list_dir")
_NAMES = ("A", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two actors on one table."""

    shape: Shape
    actors: tuple[Actor, Actor]
    non_blocking: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of two processes.

    Attributes:
        first: The number of the process that begins.
        switches: The steps before which the processes are preempted in turn, each counted in its own process.
        dies: The first process crashes at its switch instead.
    """

    first: int
    switches: tuple[int, ...] = ()
    dies: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """The executed steps as (process, verb, path), and the number of steps before each switch that took place."""

    steps: tuple[tuple[str, str, str], ...]
    switched_at: tuple[int, ...]


class Scheduled(World):
    """A world that follows a schedule instead of random numbers."""

    def __init__(self, schedule: Schedule) -> None:
        # The seed of ids. It differs from the seed of the prepared tables, so that ids differ.
        super().__init__(1)
        self.schedule = schedule
        self.taken: dict[str, int] = {}
        self.switched_at: list[int] = []

    def pause(self, process: Process) -> None:
        """Preempt the process before a step if the schedule names the step."""
        if process.crashed or self.failure is not None:
            raise SimulatedCrash("the run is over")
        if self.is_beating:
            return
        self.now_ms += 1
        done = len(self.switched_at)
        is_due = (
            done < len(self.schedule.switches) and self.taken.get(process.name, 0) + 1 == (self.schedule.switches[done])
        )
        # The processes are preempted in turn; the first process begins.
        if is_due and process.name == _NAMES[(self.schedule.first + done) % 2]:
            self.switched_at.append(len(self.trace))
            if self.schedule.dies:
                raise process.die("as scheduled")
            self.switch(process)
        self.taken[process.name] = self.taken.get(process.name, 0) + 1

    def _choose(self) -> Process:
        active = [process for process in self.processes if not process.done]
        ready = [process for process in active if process.wakes_ms <= self.now_ms]
        if not ready:
            self.now_ms = min(process.wakes_ms for process in active)
            ready = [process for process in active if process.wakes_ms <= self.now_ms]
        others = [process for process in ready if process is not self.moving]
        return (others or ready)[0]


def play(pair: Pair, schedule: Schedule) -> Played:
    """Run one schedule; raise Violation if an invariant does not hold."""
    world = Scheduled(schedule)
    stored, versions = prepared(pair.shape)
    storage = copy_of(stored)
    checker = Checker(world, storage, versions, pair.shape)
    setting = Setting(shape=pair.shape, non_blocking=pair.non_blocking, options={}, checker=checker)
    with simulated():
        for number in (schedule.first, 1 - schedule.first):
            process = world.process(_NAMES[number], "host")
            process.protected = True
            store = SimulatedStorage(storage, process, Plan((), 0), checker)
            world.start(process, partial(pair.actors[number], setting, store, process))
        world.play()
        steps = tuple(_step(line) for line in world.trace)
        if schedule.dies:
            world.now_ms += HOUR_MS
            doctor = world.process("doctor", "host")
            doctor.protected = True
            store = SimulatedStorage(storage, doctor, Plan((), 0), checker)
            world.start(doctor, partial(recover, setting, store, doctor))
            world.play()
    return Played(steps, tuple(world.switched_at))


def schedules(pair: Pair, switches: int, *, every: int = 1) -> Iterator[tuple[Schedule, Played]]:
    """Run all schedules of a pair that are not equivalent, and yield each.

    With `every` above 1, only every `every`-th schedule with one switch is extended by further switches.
    """
    for first in (0, 1):
        yield from _with_more(pair, Schedule(first), play(pair, Schedule(first)), switches, every)


def deaths(pair: Pair) -> Iterator[tuple[Schedule, Played]]:
    """Crash each process after each of its changes, before the other process begins; yield the schedules."""
    for first in (0, 1):
        alone = play(pair, Schedule(first))
        own = [step for process, *step in alone.steps if process == _NAMES[first]]
        for number in [1, *(n + 1 for n, (verb, _) in enumerate(own, 1) if verb in _CHANGES and n < len(own))]:
            schedule = Schedule(first, (number,), dies=True)
            yield schedule, play(pair, schedule)


def _with_more(
    pair: Pair, schedule: Schedule, played: Played, switches: int, every: int
) -> Iterator[tuple[Schedule, Played]]:
    """Yield a schedule and its extensions by one more preemption of the process that runs after the last switch."""
    yield schedule, played
    done = len(schedule.switches)
    if done == switches:
        return
    process = _NAMES[(schedule.first + done) % 2]
    begins = played.switched_at[-1] if played.switched_at else 0
    before = sum(name == process for name, *_ in played.steps[:begins])
    own = [(verb, path) for name, verb, path in played.steps[begins:] if name == process]
    others: list[Step] | None = None
    for number in range(before + 2, before + len(own) + 1):
        last = own[number - before - 2]
        if others is not None and not any(_touch(last, step) for step in others):
            continue
        more = Schedule(schedule.first, (*schedule.switches, number))
        found = play(pair, more)
        if len(found.switched_at) != done + 1:
            continue
        others = _until_back(found, process)
        goes_on = done > 0 or number % every == 0
        if others:
            yield from _with_more(pair, more, found, switches if goes_on else done + 1, every)


def _until_back(played: Played, process: str) -> list[Step]:
    """Return the steps of the other process between the last switch and the next step of `process`."""
    found: list[Step] = []
    for name, verb, path in played.steps[played.switched_at[-1] :]:
        if name == process:
            break
        found.append((verb, path))
    return found


def _touch(one: Step, other: Step) -> bool:
    if one[0] not in _CHANGES and other[0] not in _CHANGES:
        return False
    return _covers(one, other) or _covers(other, one)


def _covers(one: Step, other: Step) -> bool:
    (verb, path), (_, touched) = one, other
    return path == touched or (verb in _LISTS and (not path or touched.startswith(path.rstrip("/") + "/")))


def _step(line: str) -> tuple[str, str, str]:
    _, process, verb, path = [*line.split(" "), ""][:4]
    return process, verb, path
