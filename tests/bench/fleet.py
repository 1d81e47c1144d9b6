"""The fleet scheduler: a pass over 1,000 tables of which 20 changed, and a simulated day of 70,000 service runs.

The pass is measured with real tables on local disk, and with catalogs on SQLite and on PostgreSQL. The day is a model
of the pool of jobs: delays from when a service is due to the start of its job, against a DAG per service that decides
in the pool of the jobs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database, upgrade
from lakehouse.platform.services.fleet_pass import PassSettings, run_pass
from tests.bench.decisions import counted, register_copies
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting
from tests.contract.test_table_states import counted_statements
from tests.support.fleet_model import each_dag_for_itself, needs_of_a_day, one_fleet_scheduler, table_of_delays
from tests.support.postgresql import server

TABLES, CHANGED = 1000, 20
TARGET_S = 3.0
RUNS, FLEET, SLOTS = 70_000, 10_000, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One measured pass: its name, the tables read, storage requests, statements of the catalog, and seconds."""

    name: str
    tables: int
    requests: int
    statements: int
    seconds: float
    cpu_seconds: float


def run(setting: Setting) -> list[Comparison]:
    """Print the passes on both databases and the simulated day; the sizes do not depend on `--rows`."""
    home = Path(setting.fresh("fleet"))
    home.mkdir(parents=True)
    lines: list[tuple[str, ...]] = [
        ("database", "pass", "tables read", "requests", "statements", "seconds", "cpu seconds", "of the first")
    ]
    with Catalog(Database(f"sqlite:///{home}/catalog.db"), SystemClock()) as catalog:
        register_copies(catalog, home, TABLES)
        lines += _lines("SQLite", _passes(catalog))
    with server() as running:
        engine = create_engine(running.url)
        upgrade(engine)
        engine.dispose()
        with Catalog(Database(running.url), SystemClock()) as catalog:
            for number in range(TABLES):
                catalog.register_table(f"bench.t{number}", str(home / f"t{number}"))
            lines += _lines("PostgreSQL", _passes(catalog))
    show_lines(lines)
    needs = needs_of_a_day(RUNS, FLEET)
    delays = {
        "each DAG for itself": each_dag_for_itself(needs, SLOTS, FLEET),
        "one fleet scheduler": one_fleet_scheduler(needs, SLOTS),
    }
    show_lines(table_of_delays(delays))
    return []


def _passes(catalog: Catalog) -> Iterator[Pass]:
    """Run a pass over all tables, two over the changed ones, and one without a change."""
    ids = [entry.id for entry in catalog.list_tables()]
    for name, changed in (("first", TABLES), ("changed", CHANGED), ("changed", CHANGED), ("idle", 0)):
        catalog.states.mark_changed(ids[:changed] if name == "changed" else [])
        with counted() as stores, counted_statements(catalog) as statements:
            wall, cpu = time.perf_counter(), time.process_time()
            result = run_pass(catalog, PassSettings(rules=load_rules({})))
            seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        yield Pass(
            name=name,
            tables=len(result.looks),
            requests=sum(sum(store.counts().values()) for store in stores),
            statements=len(statements),
            seconds=seconds,
            cpu_seconds=cpu_seconds,
        )


def _lines(database: str, passes: Iterable[Pass]) -> Iterator[tuple[str, ...]]:
    first = None
    for one in passes:
        first = one.seconds if first is None else first
        counts = str(one.tables), str(one.requests), str(one.statements)
        yield (
            database,
            one.name,
            *counts,
            f"{one.seconds:.2f}",
            f"{one.cpu_seconds:.2f}",
            f"{one.seconds / first:.1%}",
        )
