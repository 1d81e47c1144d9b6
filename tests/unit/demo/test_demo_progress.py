"""The lines of the demo's steps on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from demo.progress import Progress


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def drawn(shown: object, width: int = 60) -> str:
    output = io.StringIO()
    Console(file=output, force_terminal=True, width=width, color_system=None).print(shown)
    return output.getvalue().rstrip()


def test_line_on_a_terminal_counts_seconds_while_its_state_is_unchanged() -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    with Progress(console, clock, 1).step("Airflow") as line:
        assert drawn(line) == "0 s"
        line.state("Airflow starts")
        assert drawn(line) == "Airflow starts, 0 s"
        clock.sleep(41)
        assert drawn(line) == "Airflow starts, 41 s"
        line.state("run [0] of 'a'")
        assert drawn(line) == "run [0] of 'a', 41 s"


@pytest.mark.parametrize("waited", [0.0, 5.0])
def test_line_without_a_terminal_is_printed_when_its_state_changes_and_after_a_time(waited: float) -> None:
    clock, output = Clock(), io.StringIO()
    with Progress(Console(file=output, width=60), clock, 1).step("Airflow") as line:
        line.state("it starts")
        clock.sleep(waited)
        line.state("it starts")
        clock.sleep(30)
        line.state("it starts")
    assert output.getvalue().splitlines() == [
        "[1 of 1] Airflow",
        "         it starts, 0 s",
        f"         it starts, {30 + waited:.0f} s",
        f"         done in {30 + waited:.0f} s",
    ]
