"""Services of many small tables: the scheduler decides which are due, groups them into batches, and runs each batch.

The overhead of a table besides the service itself (lease, run record, loading the table) must be small. With one Spark
session all tables share its start time.
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
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import ServiceCommand
from tests.bench.data import orders
from tests.bench.decisions import register_copies
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting, spark

TABLES, ON_SPARK = 50, 10
TARGET_S = 1.0
_SERVICES = ("compaction", "clean")
_Line = tuple[str, ...]


def run(setting: Setting) -> list[Comparison]:
    """Print the overhead of a table besides its service, with threads and on Spark."""
    lines: list[_Line] = [
        ("engine", "service", "tables", "committed", "processes", "decision s", "service s", "overhead s", "first s")
    ]
    lines += _service_batches(Path(setting.fresh("batches")), TABLES, None)
    started = time.perf_counter()
    session = spark()
    session.range(1).count()
    print(f"    the start of Spark takes {time.perf_counter() - started:.1f} s", flush=True)
    lines += _service_batches(Path(setting.fresh("batches-spark")), ON_SPARK, session)
    show_lines(lines)
    return []


def _service_batches(home: Path, tables: int, session: Any) -> list[_Line]:
    """Return a line for each service with seconds per table; `first s` is the total time of the first table."""
    home.mkdir(parents=True)
    lines = []
    with Catalog(Database(f"sqlite:///{home}/catalog.db"), SystemClock()) as catalog:
        register_copies(catalog, home, tables, due_every=1)
        catalog.set_policy("bench", "clean", {"commits_retained": 1})
        for service in _SERVICES:
            if service == "clean":
                for entry in catalog.list_tables():
                    # Clean keeps the files of the newest write. A newer write than the compaction lets it delete files.
                    catalog.load_table(entry.identifier).upsert(orders(np.arange(1), version=99))
            started = time.perf_counter()
            chosen = [choice.assessed for choice in decide(catalog, [service]) if choice.chosen]
            packed = batches(chosen, max_tables=50, max_seconds=3600)
            decided = time.perf_counter() - started
            took, inside, committed = [], 0.0, 0
            for number, batch in enumerate(packed):
                for name in batch:
                    started = time.perf_counter()
                    command = ServiceCommand(service=service, table=name, run_id=f"batch-{number}")
                    (report,) = run_tables(catalog, [name], command, runner(service, session))
                    took.append(time.perf_counter() - started)
                    assert report.status is not JobStatus.FAILED, report
                    inside += report.seconds
                    committed += report.status is JobStatus.COMMITTED
            assert committed == tables, f"{service}: {committed} of {tables}"
            each, overhead = inside / tables, (sum(took) - inside) / tables
            assert overhead <= TARGET_S, f"{service}: the overhead of a table is {overhead:.2f} s"
            numbers = (decided / tables, each, overhead, took[0])
            engine = "threads" if session is None else "Spark"
            counts = (str(tables), str(committed), str(len(packed)))
            lines.append((engine, service, *counts, *(f"{seconds:.3f}" for seconds in numbers)))
    return lines
