"""Measure alternatives in turn, A B A B ..., and compare them by the ratios of adjacent runs.

Ratios of adjacent runs are stable although the machine's speed drifts. The ratio of CPU time, of this process and all
its children, hardly changes when other processes use the machine.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the compared alternatives. `run` and `before` get the number of the round; only `run` is measured."""

    name: str
    run: Callable[[int], object]
    before: Callable[[int], object] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A line of a report: our side against another side."""

    what: str
    other: str
    ours_s: float
    other_s: float
    ratio: float
    spread: tuple[float, float]
    cpu_ratio: float
    target: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The elapsed time and the CPU time of one run, in seconds."""

    wall_s: float
    cpu_s: float


def interleave(sides: Sequence[Side], rounds: int, warmup: int = 1) -> dict[str, list[Sample]]:
    """Run the sides in turn; return the samples of each side, without the warm-up rounds."""
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    for number in range(warmup + rounds):
        for side in sides:
            side.before(number)
            gc.collect()
            cpu, wall = cpu_seconds(), time.perf_counter()
            side.run(number)
            took = Sample(wall_s=time.perf_counter() - wall, cpu_s=cpu_seconds() - cpu)
            if number >= warmup:
                samples[side.name].append(took)
            label = "warm-up" if number < warmup else f"round {number - warmup + 1}"
            print(f"    {label}: {side.name} {took.wall_s:.2f} s, cpu {took.cpu_s:.2f} s", flush=True)
    return samples


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children until now, in seconds."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def compare(
    what: str, samples: dict[str, list[Sample]], ours: str, other: str, target: float | None = None
) -> Comparison:
    """Compare our side with another side: the median times, and the median of the ratios of the rounds."""
    pairs = list(zip(samples[ours], samples[other], strict=True))
    ratios = [a.wall_s / b.wall_s for a, b in pairs]
    return Comparison(
        what=what,
        other=other,
        ours_s=statistics.median(a.wall_s for a, _ in pairs),
        other_s=statistics.median(b.wall_s for _, b in pairs),
        ratio=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        cpu_ratio=statistics.median(a.cpu_s / b.cpu_s for a, b in pairs),
        target=target,
    )


def show(comparisons: Sequence[Comparison]) -> None:
    """Print the comparisons as a table with ratios and seconds."""
    lines = [("what", "against", "ratio", "(min - max)", "target", "cpu ratio", "ours s", "other s")]
    for c in comparisons:
        target = "" if c.target is None else f"<= {c.target:.2f}" + ("" if c.ratio <= c.target else "  MISSED")
        spread = f"({c.spread[0]:.2f} - {c.spread[1]:.2f})"
        seconds = (f"{c.ours_s:.2f}", f"{c.other_s:.2f}")
        lines.append((c.what, c.other, f"{c.ratio:.2f}", spread, target, f"{c.cpu_ratio:.2f}", *seconds))
    show_lines(lines)


def show_lines(lines: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns; the first row is the header."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    print()
    for number, line in enumerate(lines):
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    print(flush=True)
