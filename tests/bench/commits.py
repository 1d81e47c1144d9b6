"""The cost of a commit besides its data: overhead, time under the table lock, and commit rate of concurrent writers.

Each commit writes one row to a merge-on-read table with the bucket index; each committer has its own partition. One
committer and twenty make the same number of commits, so that the timelines have the same length.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from unittest.mock import patch

import pyarrow as pa

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.operations.commit import complete as commit_module
from lakehouse.core.operations.write import write as write_module
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting

COMMITTERS, COMMITS = 20, 15
OVERHEAD_MS, LOCK_MS, RATE_SHARE = 50, 20, 0.8
_MODE = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
}


def run(setting: Setting) -> list[Comparison]:
    """Measure overhead and lock time of one committer, then the commit rates of one and of twenty committers."""
    overhead, held = _one(_create(setting, "commits-one"))
    alone = _rate(_create(setting, "commits-alone"), 1)
    together = _rate(_create(setting, "commits-together"), COMMITTERS)
    lines = [("what", "median", "target", "")]
    lines.append(_line("commit overhead, ms", overhead, OVERHEAD_MS, overhead <= OVERHEAD_MS, "<="))
    lines.append(_line("time under the lock, request and completion, ms", held, LOCK_MS, held <= LOCK_MS, "<="))
    share = together / alone
    name = f"commits per second: {alone:.0f} of one, {together:.0f} of {COMMITTERS}; share"
    lines.append(_line(name, share, RATE_SHARE, share >= RATE_SHARE, ">="))
    show_lines(lines)
    return []


def _line(what: str, value: float, target: float, holds: bool, sign: str) -> tuple[str, ...]:
    return what, f"{value:.2f}", f"{sign} {target}", "" if holds else "MISSED"


def _create(setting: Setting, name: str) -> str:
    location = setting.fresh(name)
    options = {key: value for key, value in _MODE.items() if "concurrency" not in key}
    table = Table.create(
        location,
        name="commits",
        record_key=["id"],
        partition_by=["p"],
        table_type="MERGE_ON_READ",
        options=options,
    )
    table.bulk_insert(
        pa.table({"id": ["x"] * COMMITTERS, "p": [f"p{n}" for n in range(COMMITTERS)], "v": [0] * COMMITTERS})
    )
    return location


def _row(committer: int, number: int) -> pa.Table:
    return pa.table({"id": ["x"], "p": [f"p{committer}"], "v": [number]})


def _one(location: str) -> tuple[float, float]:
    """Return the medians of the overhead and of the lock time of a commit, in milliseconds."""
    table = Table.open(location, options=_MODE)
    table.upsert(_row(0, 0))
    working, held = [0.0], [0.0]

    def timed(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            started = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                working[0] += time.perf_counter() - started

        return call

    @contextmanager
    def lock(*args: object) -> Iterator[TableLock]:
        with table_lock(*args) as acquired:  # type: ignore[arg-type]
            started = time.perf_counter()
            yield acquired
            held[0] += time.perf_counter() - started

    overheads, holds = [], []
    with (
        patch.object(LocalEngine, "run", timed(LocalEngine.run)),
        patch.object(LocalEngine, "exchange", timed(LocalEngine.exchange)),
        patch.object(write_module, "table_lock", lock),
        patch.object(commit_module, "table_lock", lock),
    ):
        for number in range(COMMITS):
            working[0] = held[0] = 0.0
            started = time.perf_counter()
            table.upsert(_row(0, number + 1))
            overheads.append((time.perf_counter() - started - working[0]) * 1000)
            holds.append(held[0] * 1000)
    return statistics.median(overheads), statistics.median(holds)


def _commit(location: str, committer: int, commits: int, go: float) -> float:
    """Commit rows from the time `go` on, in epoch seconds; return the time of the end."""
    table = Table.open(location, options=_MODE)
    time.sleep(max(go - time.time(), 0))
    for number in range(commits):
        table.upsert(_row(committer, number + 1))
    return time.time()


def _rate(location: str, committers: int) -> float:
    """Return the commits per second of `committers` processes that together make `COMMITTERS * COMMITS` commits."""
    each = COMMITTERS * COMMITS // committers
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(committers, mp_context=context) as pool:
        list(pool.map(time.sleep, [0.2] * committers))
        go = time.time() + 1
        ends = list(
            pool.map(_commit, [location] * committers, range(committers), [each] * committers, [go] * committers)
        )
    assert Table.open(location).scan().count() == COMMITTERS
    return committers * each / (max(ends) - go)
