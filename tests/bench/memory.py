"""Peak memory of Python workers in an upsert whose batch is ten times the budget of a task.

Counted are anonymous pages of a worker, less those of an idle one: mapped files belong to the system's cache.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from tests.bench.data import orders, write_orders
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting, create, read, spark

BUDGET_MB = 64
TIMES = 10
_POLL_S = 0.02
_POLLS_PER_LISTING = 50
_MB = 1024 * 1024


def run(setting: Setting) -> list[Comparison]:
    """Upsert into a stored table, half of the batch as updates; and bulk_insert the same batch."""
    bytes_per_row = orders(np.arange(10_000)).nbytes / 10_000
    batch_rows = int(TIMES * BUDGET_MB * _MB / bytes_per_row)
    options = {"lakehouse.write.memory.budget": str(BUDGET_MB * _MB)}
    base = write_orders(setting.home / f"memory-base-{batch_rows}", np.arange(batch_rows), files=4)
    changed = np.arange(batch_rows // 2, batch_rows + batch_rows // 2)
    batch = write_orders(setting.home / f"memory-batch-{batch_rows}", changed, files=4, version=1)
    lines = [("what", "rows", "in memory MB", "budget MB", "peak above idle MB", "")]
    for partitioned in (True, False):
        table = create(setting.fresh("memory"), partitioned=partitioned, options=options)
        for what, act in (
            ("bulk_insert", lambda table=table: table.bulk_insert(read(base))),
            ("upsert", lambda table=table: table.upsert(read(batch))),
        ):
            with WorkerMemory() as memory:
                act()
            verdict = "" if memory.peak_mb <= BUDGET_MB else "EXCEEDED"
            name = f"{what}, {'20 partitions' if partitioned else 'no partitions'}"
            size = f"{batch_rows * bytes_per_row / _MB:.0f}"
            lines.append((name, f"{batch_rows:,}", size, str(BUDGET_MB), f"{memory.peak_mb:.0f}", verdict))
            print(f"    {name}: {memory.peak_mb:.0f} MB", flush=True)
    show_lines(lines)
    return []


@dataclass(slots=True)
class WorkerMemory:
    """Watches the Python workers of the session while the block runs."""

    peak_mb: float = 0.0
    _idle_mb: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> WorkerMemory:
        self._idle_mb = _idle_worker_mb()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _watch(self) -> None:
        polls = itertools.count()
        while not self._stop.wait(_POLL_S):
            if next(polls) % _POLLS_PER_LISTING == 0:
                workers = _workers()
            self.peak_mb = max([self.peak_mb, *(_anonymous_mb(pid) - self._idle_mb for pid in workers)])


def _idle_worker_mb() -> float:
    """Return the memory of a worker that has loaded everything and holds no rows."""

    def measure(_: int) -> float:
        import lakehouse.io.bulk_writer
        import lakehouse.io.group_writer
        import lakehouse.io.match  # noqa: F401

        # Arrow looks for pandas when it sees its first numpy array.
        np.asarray(orders(np.arange(10)).column("seats"))
        return _anonymous_mb(psutil.Process().pid)

    return max(spark().sparkContext.parallelize(range(2), 2).map(measure).collect())


def _workers() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if child.name().startswith("python")]


def _anonymous_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:")) / 1024
