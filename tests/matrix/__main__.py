"""Run the matrix, write its pins, and publish its results: `make matrix`, or `python -m tests.matrix --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch

from tests.matrix import pins, results, runner
from tests.matrix.cells import CELLS, Cell
from tests.matrix.results import FAILED, NOT_RUN


def main(words: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("action", nargs="?", default="run", choices=("run", "list", "pins", "publish"))
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a cell, or a pattern with *")
    parser.add_argument("--ci", action="store_true", help="the corners that CI runs, with their short suites")
    parser.add_argument("--jobs", type=int, default=2, help="cells that run at a time")
    parser.add_argument("--again", action="store_true", help="run cells too that passed with the same sources")
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="PATH",
        help="tests that run instead of those of the cells, such as tests/spark; their results are not stored",
    )
    given = parser.parse_args(words)
    cells = [cell for cell in CELLS if _is_chosen(cell, given.only) and (cell.in_ci or not given.ci)]
    if not cells:
        parser.error(f"no cell has such a name; cells are {', '.join(cell.name for cell in CELLS)}")
    if given.action == "list":
        print("\n".join(f"{cell.name}  {'CI  ' if cell.in_ci else ''}{cell.unsupported}" for cell in cells))
        return 0
    if given.action == "pins":
        return pins.write()
    if given.action == "publish":
        results.publish([result for cell in cells if (result := results.stored(cell)) is not None], CELLS)
        return 0
    started = time.monotonic()
    options = runner.Options(
        jobs=given.jobs, again=given.again, whole=not given.ci, strict=given.ci, suites=tuple(given.suite)
    )
    outcomes = runner.run_cells(cells, options)
    for result in outcomes:
        if result.outcome == NOT_RUN:
            print(f"not run: {result.name}: {result.reason}")
    print(runner.summary(outcomes, time.monotonic() - started))
    return int(any(result.outcome == FAILED for result in outcomes))


def _is_chosen(cell: Cell, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(cell.name, pattern) for pattern in patterns)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
