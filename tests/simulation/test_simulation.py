"""Random runs of writers, services and readers with crashes, stalls and lost replies.

LAKEHOUSE_SEEDS=20000 pytest tests/simulation       more runs than by default
LAKEHOUSE_SEED=17 pytest tests/simulation           replay of one run, with its steps
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.run import Run, failure_of, version_of
from tests.support.processes import forked

# `make reliability` runs more.
SEEDS = int(os.environ.get("LAKEHOUSE_SEEDS", "1200"))
ONE = os.environ.get("LAKEHOUSE_SEED")
_CHUNK = 50
_SHOWN = 3


def failures(seeds: range) -> list[tuple[int, str]]:
    """Run some seeds and return the failed ones with their reports."""
    # Operations log each failed cleanup. In a simulation that happens in most runs.
    logging.disable(logging.WARNING)
    outcomes = [(seed, failure_of(seed, version=version_of(seed))) for seed in seeds]
    return [(seed, failure[1]) for seed, failure in outcomes if failure is not None]


@pytest.mark.skipif(ONE is not None, reason="LAKEHOUSE_SEED names one run")
def test_every_invariant_holds_in_random_runs() -> None:
    chunks = [range(first, min(first + _CHUNK, SEEDS)) for first in range(0, SEEDS, _CHUNK)]
    processes = forked()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=processes) as pool:
        found = [failure for failing in pool.map(failures, chunks) for failure in failing]
    assert not found, f"seeds {[seed for seed, _ in found]}\n" + "\n\n".join(text for _, text in found[:_SHOWN])


@pytest.mark.skipif(ONE is None, reason="LAKEHOUSE_SEED names no run")
def test_every_invariant_holds_in_the_run_of_one_seed() -> None:
    failure = failure_of(int(ONE or 0), version=version_of(int(ONE or 0)))
    assert failure is None, failure[1]


@pytest.mark.parametrize("seed", [1, 20, 302])
def test_run_of_a_seed_is_repeatable_step_by_step(seed: int) -> None:
    traces = []
    for _ in range(2):
        run = Run(seed, version=version_of(seed))
        run.play()
        traces.append(run.world.trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 30
