"""Progress of the demo: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from lakehouse.core.system.clock import WaitClock

#: Without a terminal, the state is printed when it changes and after this time.
_REPEAT_S = 20.0


class Live(Protocol):
    """The line with the state of the current step."""

    def state(self, text: str) -> None: ...


class Progress:
    """Print the steps of the demo.

    Args:
        console: Where to print. A console without a terminal gets plain lines without colours.
        clock: The clock of durations.
        steps: The number of steps.
    """

    def __init__(self, console: Console, clock: WaitClock, steps: int) -> None:
        self.console, self._clock, self._steps = console, clock, steps
        self._number = 0

    @contextmanager
    def step(self, text: str) -> Iterator[Live]:
        """Print the heading of a step and its duration at the end; the value shows the state in between."""
        self._number += 1
        self.console.print(
            f"[bold][{self._number} of {self._steps}][/] {escape(text)}", soft_wrap=True, highlight=False
        )
        started = self._clock.monotonic_s()
        if self.console.is_terminal:
            line = _TerminalLine(self._clock)
            with self.console.status(line):
                yield line
        else:
            yield _PlainLine(self, self._clock)
        self.line(f"done in {self._clock.monotonic_s() - started:.0f} s")

    def line(self, text: str) -> None:
        """Print one indented line."""
        self.console.print(f"         {escape(text)}", soft_wrap=True, highlight=False)


class _TerminalLine:
    """The state and the time since the step began; rich draws it again several times per second."""

    def __init__(self, clock: WaitClock) -> None:
        self._clock, self._started, self._text = clock, clock.monotonic_s(), ""

    def state(self, text: str) -> None:
        self._text = text

    def __rich__(self) -> Text:
        seconds = f"{self._clock.monotonic_s() - self._started:.0f} s"
        parts = [f"{self._text}, "] if self._text else []
        return Text.assemble(*parts, (seconds, "dim"))


class _PlainLine:
    def __init__(self, progress: Progress, clock: WaitClock) -> None:
        self._progress, self._clock, self._started = progress, clock, clock.monotonic_s()
        self._text, self._printed = "", self._started

    def state(self, text: str) -> None:
        now = self._clock.monotonic_s()
        if text == self._text and now - self._printed < _REPEAT_S:
            return
        self._text, self._printed = text, now
        self._progress.line(f"{text}, {now - self._started:.0f} s")
