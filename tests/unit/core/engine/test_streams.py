"""Sources of batches that are read in threads: order, bound of memory, errors and cancellation."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.engine.streams import Source, read_in_threads
from tests.support.tables import examples

_ROWS = 100
BATCH_BYTES = 8 * _ROWS


def batch(value: int) -> pa.RecordBatch:
    """Return a batch of `BATCH_BYTES` whose first value is `value`."""
    return pa.record_batch({"n": pa.array([value, *range(1, _ROWS)], pa.int64())})


def values_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """Return the first value of each batch."""
    return [one.column(0)[0].as_py() for one in batches]


class SourceError(Exception):
    """The planted error of a source."""


@given(
    counts=st.lists(st.integers(0, 4), max_size=12),
    threads=st.integers(1, 5),
    capacity=st.integers(0, 6),
    ordered=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
@examples(40)
def test_threads_yield_the_batches_of_one_thread(
    counts: list[int], threads: int, capacity: int, ordered: bool, seed: int
) -> None:
    chance = random.Random(seed)
    delays = [[chance.choice([0, 0, 0.001]) for _ in range(count)] for count in counts]

    def source(number: int) -> Iterator[pa.RecordBatch]:
        for place, delay in enumerate(delays[number]):
            time.sleep(delay)
            yield batch(100 * number + place)

    sources: list[Source] = [lambda number=number: source(number) for number in range(len(counts))]  # type: ignore[misc]
    expected = [100 * number + place for number, count in enumerate(counts) for place in range(count)]
    values = values_of(
        read_in_threads(sources, threads=threads, capacity_bytes=capacity * BATCH_BYTES, ordered=ordered)
    )
    assert (values if ordered else sorted(values)) == expected
    for number in range(len(counts)):
        own = [value for value in values if value // 100 == number]
        assert own == sorted(own), "the batches of one source stay in order"


@pytest.mark.parametrize("threads", [1, 3])
def test_error_of_a_source_comes_after_the_batches_before_it(threads: int) -> None:
    started: list[int] = []

    def source(number: int) -> Iterator[pa.RecordBatch]:
        started.append(number)
        yield batch(number)
        if number == 2:
            raise SourceError

    sources: list[Source] = [lambda number=number: source(number) for number in range(100)]  # type: ignore[misc]
    batches = read_in_threads(sources, threads=threads, capacity_bytes=2 * BATCH_BYTES)
    values = []
    with pytest.raises(SourceError):
        for one in batches:
            values.append(one.column(0)[0].as_py())
    assert values == [0, 1, 2]
    assert len(started) < 20, "no source is started after the error"


def test_error_while_the_next_source_is_prepared_is_raised_in_order() -> None:
    def sources() -> Iterator[Source]:
        yield lambda: iter([batch(0)])
        raise SourceError

    batches = read_in_threads(sources(), threads=2, capacity_bytes=BATCH_BYTES)
    assert next(batches).column(0)[0].as_py() == 0
    with pytest.raises(SourceError):
        next(batches)


@pytest.mark.parametrize("ordered", [True, False])
def test_waiting_batches_are_bounded_while_the_consumer_is_slow(ordered: bool) -> None:
    lock, alive, most = threading.Lock(), 0, 0

    def source(number: int) -> Iterator[pa.RecordBatch]:
        nonlocal alive, most
        for _ in range(5):
            with lock:
                alive += 1
                most = max(most, alive)
            yield batch(number)

    sources: list[Source] = [lambda number=number: source(number) for number in range(20)]  # type: ignore[misc]
    taken = 0
    for _ in read_in_threads(sources, threads=3, capacity_bytes=4 * BATCH_BYTES, ordered=ordered):
        taken += 1
        time.sleep(0.001)
        with lock:
            alive -= 1
    assert taken == 100
    # Four batches wait, each of three workers has one, the consumer has one, and one may exceed the bound.
    assert most <= 4 + 3 + 1 + 1


def test_closed_iterator_closes_its_sources_and_ends_its_threads() -> None:
    closed: list[int] = []

    def source(number: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield batch(number)
        finally:
            closed.append(number)

    sources: list[Source] = [lambda number=number: source(number) for number in range(10)]  # type: ignore[misc]
    batches = read_in_threads(sources, threads=3, capacity_bytes=4 * BATCH_BYTES)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(closed) == len(set(closed)) <= 3
    assert [thread.name for thread in threading.enumerate() if thread.name == "lakehouse-read"] == []
