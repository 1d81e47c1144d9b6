"""Plan a read several times in a new process and print times, requests and memory as JSON.

python -m tests.bench.scale_plan <location> <condition as JSON text, or null> <further plans>
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from lakehouse.core.env import Env
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table


def main() -> None:
    """Measure the first plan of the process, then the others; the requests are those of the last plan."""
    location, where, rounds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    storage = CountingStorage(open_storage(location))
    table = Table.open(location, env=Env(storage=storage))
    seconds, cpu = [], []
    for _ in range(1 + rounds):
        storage.reset()
        started, busy = time.perf_counter(), time.process_time()
        plan = table.scan(where=where).plan()
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - busy)
    found = {
        "first_s": seconds[0],
        "again_s": statistics.median(seconds[1:]),
        "first_cpu_s": cpu[0],
        "cpu_s": statistics.median(cpu[1:]),
        "files": len(plan.plan.slices),
        "peak_mb": _peak_mb(),
        "data_lists": len(storage.listed_data()),
        **storage.counts(),
    }
    print(json.dumps(found))


def _peak_mb() -> float:
    """Return the peak of the resident memory of this program; `getrusage` would include the parent's at the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main()
