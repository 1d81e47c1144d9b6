"""Run a few actors in every order of their storage steps, with one run per order.

An actor is a function with a store as parameter. Each actor runs in a separate thread and stops before every step until
it is selected. A run is therefore a sequence of choices and is repeatable. `orders` explores the sequences depth first.
It skips sequences that interrupt runnable actors more than `preemptions` times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import Storage

T = TypeVar("T")
Actor = Callable[[Storage], None]


class Stepped(FaultyStorage):
    """A store whose actor waits for its turn before every step."""

    def __init__(self, inner: Storage, wait: Callable[[str], None]) -> None:
        super().__init__(inner)
        self.wait = wait

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Wait for the turn, then execute the call."""
        self.wait(name)
        return super().step(name, call)


class _Player:
    """One actor in its thread."""

    def __init__(self, storage: Storage, actor: Actor) -> None:
        self.go, self.stopped = threading.Event(), threading.Event()
        self.at: str | None = ""
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._play, args=(Stepped(storage, self._wait), actor), daemon=True)
        self.thread.start()
        self.stopped.wait()

    def advance(self) -> None:
        """Run one step of the actor, until it stops before the next one."""
        self.stopped.clear()
        self.go.set()
        self.stopped.wait()

    def _wait(self, name: str) -> None:
        self.at = name
        self.stopped.set()
        self.go.wait()
        self.go.clear()

    def _play(self, storage: Storage, actor: Actor) -> None:
        try:
            actor(storage)
        except BaseException as error:
            self.error = error
        finally:
            self.at = None
            self.stopped.set()


def play(
    storage: Storage, actors: Sequence[Actor], choices: Sequence[int], *, any_numbers: bool = False
) -> tuple[list[str], list[tuple[int, ...]]]:
    """Run the actors in the order of `choices`, then the last one; return the steps and the runnable actors at each.

    With `any_numbers` a choice is any number; it selects one of the runnable actors.
    An error of an actor is raised after all actors have ended.
    """
    players = [_Player(storage, actor) for actor in actors]
    taken: list[str] = []
    could: list[tuple[int, ...]] = []
    last = -1
    while ready := tuple(number for number, player in enumerate(players) if player.at is not None):
        chosen = choices[len(could)] if len(could) < len(choices) else last if last in ready else ready[0]
        if any_numbers and len(could) < len(choices):
            chosen = ready[chosen % len(ready)]
        if chosen not in ready:
            raise AssertionError("\n".join([*taken, f"{chosen}: ended, although it had more steps in another order"]))
        could.append((chosen, *(number for number in ready if number != chosen)))
        taken.append(f"{chosen}: {players[chosen].at}")
        players[chosen].advance()
        last = chosen
    for player in players:
        player.thread.join()
        if player.error is not None:
            raise AssertionError("\n".join(taken)) from player.error
    return taken, could


def orders(
    world: Callable[[], tuple[Storage, Sequence[Actor]]], *, preemptions: int | None = None
) -> Iterator[list[str]]:
    """Run every order in a fresh world and yield the steps of each."""
    pending: list[list[int]] = [[]]
    while pending:
        choices = pending.pop()
        storage, actors = world()
        taken, could = play(storage, actors, choices)
        yield taken
        path = [options[0] for options in could]
        for at in range(len(choices), len(could)):
            for other in could[at][1:]:
                branch = [*path[:at], other]
                if preemptions is None or _interruptions(branch, could) <= preemptions:
                    pending.append(branch)


def _interruptions(branch: Sequence[int], could: Sequence[tuple[int, ...]]) -> int:
    return sum(branch[at] != branch[at - 1] and branch[at - 1] in could[at] for at in range(1, len(branch)))
