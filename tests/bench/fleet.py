"""The fleet scheduler: a pass over 1,000 tables of which 20 changed, and a simulated day of 70,000 service runs.

The pass is measured with real tables on local disk and SQLite. The day is a model of the pool of jobs: delays from when
a service is due to the start of its job, against a DAG per service that decides in the pool of the jobs.
"""

from __future__ import annotations

import time
from pathlib import Path

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.services.fleet_pass import PassSettings, run_pass
from tests.bench.decisions import counted, register_copies
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting
from tests.support.fleet_model import each_dag_for_itself, needs_of_a_day, one_fleet_scheduler, table_of_delays

TABLES, CHANGED = 1000, 20
TARGET_S = 3.0
RUNS, FLEET, SLOTS = 70_000, 10_000, 40


def run(setting: Setting) -> list[Comparison]:
    """Print the passes and the simulated day; the sizes do not depend on `--rows`."""
    home = Path(setting.fresh("fleet"))
    home.mkdir(parents=True)
    lines = [("pass", "tables read", "requests", "seconds", "cpu seconds")]
    with Catalog(Database(f"sqlite:///{home}/catalog.db"), SystemClock()) as catalog:
        register_copies(catalog, home, TABLES)
        ids = [entry.id for entry in catalog.list_tables()]
        for name, changed in (("first", TABLES), ("changed", CHANGED), ("changed", CHANGED), ("idle", 0)):
            catalog.states.mark_changed(ids[:changed] if name == "changed" else [])
            with counted() as stores:
                wall, cpu = time.perf_counter(), time.process_time()
                result = run_pass(catalog, PassSettings(rules=load_rules({})))
                took = f"{time.perf_counter() - wall:.2f}", f"{time.process_time() - cpu:.2f}"
            requests = sum(sum(store.counts().values()) for store in stores)
            lines.append((name, str(len(result.looks)), str(requests), *took))
    show_lines(lines)
    needs = needs_of_a_day(RUNS, FLEET)
    delays = {
        "each DAG for itself": each_dag_for_itself(needs, SLOTS, FLEET),
        "one fleet scheduler": one_fleet_scheduler(needs, SLOTS),
    }
    show_lines(table_of_delays(delays))
    return []
