"""The effect of table services on a writer: latency of its commits with and without concurrent services.

One writer upserts batches with pauses, like a stream. In another process compaction, clean and archive are always due.
Both sides make the same commits on tables of the same shape, in turn.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Event

import numpy as np
import pyarrow as pa

from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting

ROWS, BATCH, COMMITS, PAUSE_S = 200_000, 2_000, 40, 0.25
TARGET = 1.1
_INDEX = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
_MODE = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
_SERVICES = {
    **_MODE,
    "hoodie.compact.inline.max.delta.commits": "4",
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "8",
}


def run(setting: Setting) -> list[Comparison]:
    """Measure both sides `rounds` times in turn; print medians and the median of the ratios."""
    pairs = []
    for number in range(setting.rounds):
        alone, _ = _side(setting.fresh(f"isolation-off-{number}"), services=False)
        beside, served = _side(setting.fresh(f"isolation-on-{number}"), services=True)
        pairs.append((alone, beside, served))
    ratio = statistics.median(beside / alone for alone, beside, _ in pairs)
    lines = [("what", "median", "target", "")]
    lines.append(("commit, services off, ms", f"{statistics.median(p[0] for p in pairs) * 1000:.1f}", "", ""))
    lines.append(("commit, services on, ms", f"{statistics.median(p[1] for p in pairs) * 1000:.1f}", "", ""))
    lines.append(("actions of services per side", f"{statistics.median(p[2] for p in pairs):.0f}", "> 0", ""))
    lines.append(("services on / off", f"{ratio:.2f}", f"<= {TARGET}", "" if ratio <= TARGET else "MISSED"))
    show_lines(lines)
    return []


def _side(location: str, *, services: bool) -> tuple[float, int]:
    """Return the median seconds of a commit, and the number of service actions on the timeline."""
    table = Table.create(location, name="isolation", record_key=["id"], table_type="MERGE_ON_READ", options=_INDEX)
    table.bulk_insert(_rows(np.arange(ROWS), 0))
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    server = context.Process(target=_serve, args=(location, stop)) if services else None
    if server is not None:
        server.start()
        time.sleep(2)
    try:
        seconds = [_commit(location, number) for number in range(1, COMMITS + 1)]
    finally:
        stop.set()
        if server is not None:
            server.join(60)
    timeline = Table.open(location).timeline
    served = sum(instant.action in ("commit", "clean") for instant in timeline if instant.is_completed)
    return statistics.median(seconds[5:]), served


def _commit(location: str, number: int) -> float:
    keys = np.random.default_rng(number).choice(ROWS, BATCH, replace=False)
    rows, table = _rows(keys, number), Table.open(location, options=_MODE)
    started = time.perf_counter()
    table.upsert(rows)
    seconds = time.perf_counter() - started
    time.sleep(PAUSE_S)
    return seconds


def _serve(location: str, stop: Event) -> None:
    """Run the due services repeatedly until `stop` is set."""
    while not stop.is_set():
        services = Table.open(location, options=_SERVICES).services
        for service in (services.compaction.run, services.clean.run, services.archive.run):
            try:
                service()
            except LakehouseError as error:
                print(f"services: {error}")
        stop.wait(0.1)


def _rows(keys: np.ndarray, value: int) -> pa.Table:  # type: ignore[type-arg]
    return pa.table({"id": pa.array(keys).cast(pa.string()), "v": np.full(len(keys), value), "w": keys * 2.0})
