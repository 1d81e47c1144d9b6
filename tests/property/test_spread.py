"""Spreading of values with a skew: no task has more than twice the mean, large values have tasks of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.index.file_index import pieces, spread
from tests.support.tables import examples

WEIGHTS = st.dictionaries(st.text(max_size=3), st.integers(0, 10_000) | st.floats(0, 1e6, width=32), max_size=40)


@examples(400)
@given(weights=WEIGHTS, tasks=st.integers(1, 40))
def test_no_task_has_more_than_twice_the_mean(weights: dict[str, float], tasks: int) -> None:
    found = spread(weights, tasks)
    total = sum(weights.values())
    assert len(found.weights) == tasks
    assert max(found.weights) <= 2 * total / tasks * (1 + 1e-9)
    assert sum(found.weights) == pytest.approx(total)
    assert set(found.tasks_of) == set(weights)
    loads = [0.0] * tasks
    owners: dict[int, set[str]] = {}
    for value, numbers in found.tasks_of.items():
        assert numbers and len(set(numbers)) == len(numbers)
        for number in numbers:
            loads[number] += weights[value] / len(numbers)
            owners.setdefault(number, set()).add(value)
    assert loads == pytest.approx(list(found.weights))
    # A divided value shares none of its tasks, so small values never wait behind a large one. If large values have all
    # tasks, the rest weighs nothing.
    assert set(found.shared) <= set(range(tasks))
    for value, numbers in found.tasks_of.items():
        if len(numbers) > 1 and len(found.shared) < tasks:
            assert all(owners[number] == {value} for number in numbers)
            assert not set(numbers) & set(found.shared)


@examples(100)
@given(weights=WEIGHTS, tasks=st.integers(1, 10), seed=st.randoms(use_true_random=False))
def test_assignment_depends_on_weights_only(weights: dict[str, float], tasks: int, seed: object) -> None:
    pairs = list(weights.items())
    seed.shuffle(pairs)  # type: ignore[attr-defined]
    assert spread(dict(pairs), tasks) == spread(weights, tasks)


def test_zipf_weights_are_spread_almost_equally() -> None:
    weights = {number: 1 / number**1.1 for number in range(1, 17)}
    assert max(weights.values()) * 16 / sum(weights.values()) > 5
    assert spread(weights, 16).skew <= 1.5
    assert spread(weights, 2).skew <= 1.1


def test_unknown_values_share_tasks_with_small_ones() -> None:
    found = spread({"large": 90.0, "small": 10.0}, 10)
    assert found.tasks_of["small"][0] in found.shared
    assert not set(found.tasks_of["large"]) & set(found.shared)
    assert spread({}, 3).shared == (0, 1, 2)


@examples(100)
@given(weights=WEIGHTS, most=st.floats(1, 1e5))
def test_pieces_weigh_at_most_the_limit(weights: dict[str, float], most: float) -> None:
    found = pieces(weights, most)
    assert set(found) == set(weights)
    for value, count in found.items():
        assert weights[value] / count <= most * (1 + 1e-9)
        assert count == 1 or weights[value] / (count - 1) > most * (1 - 1e-9)
