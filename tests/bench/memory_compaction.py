"""Peak memory of Python workers that compact a slice of ten times the budget, with few and with many rows in logs."""

from __future__ import annotations

import numpy as np

from tests.bench.data import KEY, orders, updates, write_orders
from tests.bench.measure import Comparison, show_lines
from tests.bench.memory import TIMES, WorkerMemory
from tests.bench.merge_on_read import BUCKETS
from tests.bench.setting import Setting, create, read, spark

BUDGET_MB = 64
SHARES = (0.1, 1.0)
_MB = 1024 * 1024


def run(setting: Setting) -> list[Comparison]:
    """Append to the logs of one file group, read it and compact it; measure the memory of the workers."""
    bytes_per_row = orders(np.arange(10_000)).nbytes / 10_000
    rows = int(TIMES * BUDGET_MB * _MB / bytes_per_row)
    # A bloom filter of all keys in one file would exceed the budget, and the bucket index does not use bloom filters.
    options = {
        **BUCKETS,
        "lakehouse.write.memory.budget": str(BUDGET_MB * _MB),
        "hoodie.parquet.bloom.filter.enabled": "false",
    }
    base = write_orders(setting.home / f"memory-base-{rows}", np.arange(rows), files=4)
    lines = [("what", "rows in logs", "budget MB", "peak above idle MB", "")]
    for share in SHARES:
        numbers = updates(rows, share, 1)
        batch = write_orders(setting.home / f"memory-updates-{rows}-{share}", numbers, files=4, version=1)
        table = create(setting.fresh("memory-logs"), partitioned=False, options=options, merge_on_read=True)
        table.bulk_insert(read(base))
        for what, act in (
            ("append to logs", lambda table=table, batch=batch: table.upsert(read(batch))),
            (
                "snapshot read",
                lambda table=table: table.scan().to_spark(spark()).write.format("noop").mode("overwrite").save(),
            ),
            ("compaction", lambda table=table: table.services.compaction.run(force=True, spark=spark())),
        ):
            with WorkerMemory() as memory:
                act()
            verdict = "" if memory.peak_mb <= BUDGET_MB else "EXCEEDED"
            lines.append((what, f"{len(numbers):,}", str(BUDGET_MB), f"{memory.peak_mb:.0f}", verdict))
            print(f"    {what}, {share:.0%} in logs: {memory.peak_mb:.0f} MB", flush=True)
        assert table.scan(columns=[KEY]).count() == rows
    show_lines(lines)
    return []
