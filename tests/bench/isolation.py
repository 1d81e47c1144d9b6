"""The effect of table services on a writer: latency of its commits with and without concurrent services.

One writer upserts batches with pauses, like a stream. In another process services are always due: compaction, clean
and archive of a table with the bucket index; clustering, clean and archive of a copy-on-write table without it, whose
writes meet the plans of the clustering. Both sides make the same commits on tables of the same shape, in turn, and
failed commits are counted.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting

ROWS, BATCH, COMMITS, PAUSE_S = 200_000, 2_000, 40, 0.25
TARGET = 1.1
_LOGS, _CLUSTERED = "compaction", "clustering"
#: Type and index of the table, and the services that run beside its writer.
_KINDS = {
    _LOGS: ("MERGE_ON_READ", {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}),
    _CLUSTERED: ("COPY_ON_WRITE", {"hoodie.index.type": "SIMPLE", "hoodie.parquet.small.file.limit": "0"}),
}
_MODE = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
_SERVICES = {
    **_MODE,
    "hoodie.compact.inline.max.delta.commits": "4",
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "8",
    "hoodie.clustering.async.max.commits": "2",
    "hoodie.clustering.plan.strategy.sort.columns": "v",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The commits of one side: median seconds, failed commits, completed actions of services, and dropped plans."""

    seconds: float
    failed: int = 0
    served: int = 0
    dropped: int = 0


def run(setting: Setting) -> list[Comparison]:
    """Measure both sides `rounds` times in turn, for each kind of table; print medians and the median of the ratios."""
    lines = [("what", "median", "target", "")]
    for kind in _KINDS:
        pairs = []
        for number in range(setting.rounds):
            alone = _side(setting.fresh(f"isolation-{kind}-off-{number}"), kind, services=False)
            beside = _side(setting.fresh(f"isolation-{kind}-on-{number}"), kind, services=True)
            pairs.append((alone, beside))
        lines += _lines(kind, pairs)
    show_lines(lines)
    return []


def _lines(kind: str, pairs: list[tuple[Side, Side]]) -> list[tuple[str, str, str, str]]:
    ratio = statistics.median(on.seconds / off.seconds for off, on in pairs)
    failed = sum(on.failed for _, on in pairs)
    return [
        (f"{kind}: commit, services off, ms", f"{statistics.median(o.seconds for o, _ in pairs) * 1000:.1f}", "", ""),
        (f"{kind}: commit, services on, ms", f"{statistics.median(o.seconds for _, o in pairs) * 1000:.1f}", "", ""),
        (f"{kind}: actions of services", f"{statistics.median(on.served for _, on in pairs):.0f}", "> 0", ""),
        (f"{kind}: plans dropped for a write", f"{sum(on.dropped for _, on in pairs)}", "", ""),
        (f"{kind}: failed commits of the writer", f"{failed}", "0", "" if not failed else "MISSED"),
        (f"{kind}: services on / off", f"{ratio:.2f}", f"<= {TARGET}", "" if ratio <= TARGET else "MISSED"),
    ]


def _side(location: str, kind: str, *, services: bool) -> Side:
    """Return the commits of one table, beside its services or alone."""
    table_type, index = _KINDS[kind]
    table = Table.create(location, name="isolation", record_key=["id"], table_type=table_type, options=index)
    table.bulk_insert(_rows(np.arange(ROWS), 0))
    context = multiprocessing.get_context("spawn")
    stop, dropped = context.Event(), context.Value("i", 0)
    server = context.Process(target=_serve, args=(location, kind, stop, dropped)) if services else None
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
    actions = ("replacecommit", "clean") if kind == _CLUSTERED else ("commit", "clean")
    done = [found for found in seconds if found is not None]
    return Side(
        seconds=statistics.median(done[5:]),
        failed=len(seconds) - len(done),
        served=sum(instant.action in actions for instant in timeline if instant.is_completed),
        dropped=dropped.value,
    )


def _commit(location: str, number: int) -> float | None:
    """Return the seconds of one commit; None if it failed."""
    keys = np.random.default_rng(number).choice(ROWS, BATCH, replace=False)
    rows, table = _rows(keys, number), Table.open(location, options=_MODE)
    started = time.perf_counter()
    try:
        table.upsert(rows)
    except LakehouseError as error:
        print(f"commit {number}: {error}")
        return None
    seconds = time.perf_counter() - started
    time.sleep(PAUSE_S)
    return seconds


def _serve(location: str, kind: str, stop: Event, dropped: Any) -> None:
    """Run the due services repeatedly until `stop` is set; count the plans that were dropped."""
    while not stop.is_set():
        services = Table.open(location, options=_SERVICES).services
        rewrite = services.clustering.run if kind == _CLUSTERED else services.compaction.run
        for service in (rewrite, services.clean.run, services.archive.run):
            try:
                outcome = service()
                dropped.value += len(getattr(outcome, "dropped", ()))
            except LakehouseError as error:
                print(f"services: {error}")
        stop.wait(0.1)


def _rows(keys: np.ndarray, value: int) -> pa.Table:  # type: ignore[type-arg]
    return pa.table({"id": pa.array(keys).cast(pa.string()), "v": np.full(len(keys), value), "w": keys * 2.0})
