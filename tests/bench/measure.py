"""Sides run in turn, A B A B ...; the ratio is taken pair by pair, because the machine's speed drifts."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do the work. `run` gets the number of the round and is timed, or returns the seconds it measured."""

    name: str
    run: Callable[[int], float | None]
    before: Callable[[int], object] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One line of a table: ours against another side."""

    what: str
    other: str
    ours_s: float
    other_s: float
    ratio: float
    spread: tuple[float, float]
    target: float | None = None


def interleave(sides: Sequence[Side], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Run the sides in turn and return the seconds of each round that counts."""
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(warmup + rounds):
        for side in sides:
            side.before(number)
            gc.collect()
            started = time.perf_counter()
            told = side.run(number)
            took = time.perf_counter() - started if told is None else told
            if number >= warmup:
                seconds[side.name].append(took)
            print(f"    {'warm-up' if number < warmup else f'round {number}'}: {side.name} {took:.2f} s", flush=True)
    return seconds


def compare(
    what: str, seconds: dict[str, list[float]], ours: str, other: str, target: float | None = None
) -> Comparison:
    """Return ours against another side: medians, and the median of the ratios of each round."""
    ratios = [a / b for a, b in zip(seconds[ours], seconds[other], strict=True)]
    return Comparison(
        what=what,
        other=other,
        ours_s=statistics.median(seconds[ours]),
        other_s=statistics.median(seconds[other]),
        ratio=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        target=target,
    )


def show(comparisons: Sequence[Comparison]) -> None:
    """Print the comparisons as a table of ratios, seconds beside."""
    lines = [("what", "against", "ratio", "(min - max)", "target", "ours s", "other s")]
    for c in comparisons:
        target = "" if c.target is None else f"<= {c.target:.2f}" + ("" if c.ratio <= c.target else "  MISSED")
        spread = f"({c.spread[0]:.2f} - {c.spread[1]:.2f})"
        lines.append((c.what, c.other, f"{c.ratio:.2f}", spread, target, f"{c.ours_s:.2f}", f"{c.other_s:.2f}"))
    show_lines(lines)


def show_lines(lines: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns; the first row is the head."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    print()
    for number, line in enumerate(lines):
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    print(flush=True)
