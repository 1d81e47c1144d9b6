"""Parts of a task run by several threads: order of the results, errors, and values that are computed ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from lakehouse.core.system.threads import ahead, available_cores, parallel_map


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_parallel_map_returns_results_in_the_order_of_the_items(threads: int) -> None:
    assert parallel_map(threads, lambda item: item * item, range(50)) == [n * n for n in range(50)]
    assert parallel_map(threads, str, []) == []


def test_parallel_map_starts_no_item_after_an_error_and_raises_the_first_one() -> None:
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        if item >= 3:
            raise ValueError(f"item {item} is broken")
        return item

    with pytest.raises(ValueError, match="item 3 is broken"):
        parallel_map(3, work, range(1_000))
    assert len(started) <= 3 + 3


def test_parallel_map_waits_for_the_items_in_progress_before_it_raises() -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work(item: int) -> None:
        if threading.current_thread() is threading.main_thread():
            # Without a free helper this thread processes all items itself.
            began.wait(timeout=5)
            may_end.set()
            raise ValueError("broken")
        began.set()
        may_end.wait(timeout=5)
        ended.set()

    with pytest.raises(ValueError, match="broken"):
        parallel_map(2, work, [1, 2, 3])
    assert ended.is_set() == began.is_set()


def test_nested_calls_of_parallel_map_do_not_block_each_other() -> None:
    def outer(item: int) -> int:
        return sum(parallel_map(8, lambda inner: inner * item, range(20)))

    assert parallel_map(8, outer, range(20)) == [190 * n for n in range(20)]


@pytest.mark.parametrize("threads", [1, 3])
def test_ahead_yields_all_values_in_order_and_passes_an_error_on(threads: int) -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)
        raise ValueError("no sixth number")

    seen: list[int] = []
    with pytest.raises(ValueError, match="no sixth number"), closing(ahead(threads, numbers())) as values:
        seen.extend(values)
    assert seen == list(range(5))


def test_ahead_computes_at_most_one_value_before_it_is_wanted() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    with closing(ahead(2, numbers())) as values:
        for number in values:
            assert len(made) <= number + 2
            if number == 10:
                break
    # `close` waits for the value in progress, so nothing is computed afterwards.
    count = len(made)
    assert count <= 12 and len(made) == count


def test_available_cores_is_at_least_one() -> None:
    assert available_cores() >= 1
