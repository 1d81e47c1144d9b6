"""Peak memory of Python workers in writes of batches that have ten times the memory budget of a task.

The measure is the anonymous memory of a worker minus that of an idle worker. Mapped files do not count, because they
belong to the page cache.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import psutil

from lakehouse.model.attempt import Attempt
from lakehouse.spark.engine import SparkEngine
from tests.bench.data import orders, write_orders
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import CORES, Setting, create, read, spark

#: Budgets with the measured layouts: partitioned or not. The second budget is near the default; it is measured with
#: partitions, which share the budget.
BUDGETS_MB = {64: (True, False), 256: (True,)}
TIMES = 10
_POLL_S = 0.02
_POLLS_PER_LISTING = 50
_MB = 1024 * 1024


def run(setting: Setting) -> list[Comparison]:
    """Bulk insert and upsert ten times the budget; exit with an error if a worker exceeds the budget.

    Half of the upserted rows are updates.
    """
    lines = [("what", "rows", "in memory MB", "budget MB", "peak above idle MB", "")]
    for budget_mb, layouts in BUDGETS_MB.items():
        for partitioned in layouts:
            lines += _measure(setting, budget_mb, partitioned)
    show_lines(lines)
    if any(line[-1] for line in lines):
        raise SystemExit("a worker used more memory than its budget")
    return []


def _measure(setting: Setting, budget_mb: int, partitioned: bool) -> list[tuple[str, ...]]:
    bytes_per_row = orders(np.arange(10_000)).nbytes / 10_000
    batch_rows = int(TIMES * budget_mb * _MB / bytes_per_row)
    base = write_orders(setting.home / f"memory-base-{batch_rows}", np.arange(batch_rows), files=4)
    changed = np.arange(batch_rows // 2, batch_rows + batch_rows // 2)
    batch = write_orders(setting.home / f"memory-batch-{batch_rows}", changed, files=4, version=1)
    options = {"lakehouse.write.memory.budget": str(budget_mb * _MB)}
    table = create(setting.fresh("memory"), partitioned=partitioned, options=options)
    lines = []
    for what, act in (
        ("bulk_insert", lambda: table.bulk_insert(read(base))),
        ("upsert", lambda: table.upsert(read(batch))),
    ):
        with WorkerMemory() as memory:
            act()
        verdict = "" if memory.peak_mb <= budget_mb else "EXCEEDED"
        name = f"{what}, {'20 partitions' if partitioned else 'no partitions'}"
        size = f"{batch_rows * bytes_per_row / _MB:.0f}"
        lines.append((name, f"{batch_rows:,}", size, str(budget_mb), f"{memory.peak_mb:.0f}", verdict))
        print(f"    {name}, budget {budget_mb} MB: {memory.peak_mb:.0f} MB", flush=True)
    return lines


@dataclass(slots=True)
class WorkerMemory:
    """Measures the peak memory of the session's Python workers while the block runs."""

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


@cache
def _idle_worker_mb() -> float:
    """Return the memory of a worker that has imported all modules but has not processed rows, in MB."""

    def measure(_: Attempt, __: int) -> float:

        # Arrow imports pandas when it converts its first numpy array.
        np.asarray(orders(np.arange(10)).column("seats"))
        return _anonymous_mb(psutil.Process().pid)

    return min(SparkEngine(spark(), 64 * _MB).run(measure, range(CORES)))


def _workers() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if child.name().startswith("python")]


def _anonymous_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:")) / 1024
