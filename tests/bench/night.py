"""A night of small tables: what is due is decided, put into batches, and each batch is run by one process.

What a table costs beside the service itself (its lease, its record, its load) is to be small; and on one Spark session
the start is paid once, not by each table.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.services.choose import batches
from lakehouse.platform.services.run import run_tables
from lakehouse.platform.services.schedule import decide
from lakehouse.platform.services.service_run import runner
from lakehouse.spec.contracts.job import JobCommand, JobStatus
from tests.bench.data import orders
from tests.bench.decisions import register_copies
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting, spark

TABLES, ON_SPARK = 50, 10
TARGET_S = 1.0
_SERVICES = ("compaction", "clean")
_Line = tuple[str, ...]


def run(setting: Setting) -> list[Comparison]:
    """Print what a table takes beside its service, in this process and in one on Spark."""
    lines: list[_Line] = [
        ("engine", "service", "tables", "committed", "processes", "s to decide", "service s", "s beside it", "first s")
    ]
    lines += _night(Path(setting.fresh("night")), TABLES, None)
    started = time.perf_counter()
    session = spark()
    session.range(1).count()
    print(f"    a start of Spark takes {time.perf_counter() - started:.1f} s", flush=True)
    lines += _night(Path(setting.fresh("night-spark")), ON_SPARK, session)
    show_lines(lines)
    return []


def _night(home: Path, tables: int, session: Any) -> list[_Line]:
    """Return a line per service; seconds are those of one table, `first s` all that the first one took."""
    home.mkdir(parents=True)
    lines = []
    with Catalog(Database(f"sqlite:///{home}/catalog.db"), SystemClock()) as catalog:
        register_copies(catalog, home, tables, due_every=1)
        catalog.set_policy("bench", "clean", {"commits_retained": 1})
        for service in _SERVICES:
            if service == "clean":
                for entry in catalog.list_tables():
                    # A clean leaves what the newest write sees, so the compaction must not be that one.
                    catalog.load_table(entry.identifier).upsert(orders(np.arange(1), version=99))
            started = time.perf_counter()
            chosen = [choice.assessed for choice in decide(catalog, [service]) if choice.chosen]
            packed = batches(chosen, max_tables=50, max_seconds=3600)
            decided = time.perf_counter() - started
            took, inside, committed = [], 0.0, 0
            for number, batch in enumerate(packed):
                for name in batch:
                    started = time.perf_counter()
                    command = JobCommand(verb=service, action="run", table=name, run_id=f"night-{number}")
                    (report,) = run_tables(catalog, [name], command, runner(service, session))
                    took.append(time.perf_counter() - started)
                    assert report.status is not JobStatus.FAILED, report
                    inside += report.seconds
                    committed += report.status is JobStatus.COMMITTED
            assert committed == tables, f"{service}: {committed} of {tables}"
            each, beside = inside / tables, (sum(took) - inside) / tables
            assert beside <= TARGET_S, f"{service}: {beside:.2f} s beside the service"
            numbers = (decided / tables, each, beside, took[0])
            engine = "threads" if session is None else "Spark"
            counts = (str(tables), str(committed), str(len(packed)))
            lines.append((engine, service, *counts, *(f"{seconds:.3f}" for seconds in numbers)))
    return lines
