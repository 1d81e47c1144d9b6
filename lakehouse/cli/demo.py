"""`lakehouse demo`: ingest generated files or the user's files through Airflow and Spark, and show the result.

A separate Airflow below `--home` schedules the real DAGs, which submit Spark jobs. All files are below `--home`. A
second run continues with the state of the first one.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from rich.console import Console

from lakehouse.cli.group import Given
from lakehouse.cli.output import show
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.system.ids import RandomIds
from lakehouse.demo.chart import print_report
from lakehouse.demo.page import write_page
from lakehouse.demo.place import DemoPlace
from lakehouse.demo.sample_data import generate
from lakehouse.demo.steps import Setting, run_demo, run_own_table
from lakehouse.demo.ui import serve
from lakehouse.errors import UserError

_LOG_WIDTH = 160


def generate_files(given: Given) -> None:
    """Write files of ride-hailing events."""
    made = generate(Path(given.out), hours=given.hours, orders_per_hour=given.orders_per_hour, seed=given.seed)
    if given.output == "json":
        show({"files": len(made.files), "orders": made.orders, "trips": made.trips, "folder": given.out}, "json")
        return
    print(f"{len(made.files)} files, {made.orders} order events, {made.trips} trip events in {given.out}")


def run(given: Given) -> None:
    """Run the demo and show its report."""
    data = None if given.data is None else Path(given.data)
    if data is not None and given.table is None:
        raise UserError(
            "--data needs a table spec that declares the format of the files: --table spec.yaml (make TABLE=...)"
        )
    setting = _setting(given)
    facts = run_demo(setting) if given.table is None else run_own_table(setting, data, Path(given.table))
    page = write_page(facts, setting.place.home / "report.html")
    print_report(facts, setting.console)
    home = os.path.relpath(setting.place.home)
    first = facts.tables[0]
    setting.console.print(
        f"""
The same as a page: {os.path.relpath(page)}

Next steps
  .venv/bin/lakehouse table read --table {first.location} --limit 5
  .venv/bin/lakehouse timeline show --table {first.location}
  make ui        Airflow's pages with these DAGs and runs, at http://127.0.0.1:8080
  . {home}/env   while `make ui` runs: use the command `airflow` against it""",
        markup=False,
        highlight=False,
    )


def ui(given: Given) -> None:
    """Start Airflow's web pages and wait for Ctrl-C."""
    serve(_setting(given))


def _setting(given: Given) -> Setting:
    home = Path(given.home).absolute()
    place = DemoPlace(home=home, airflow_venv=Path(given.airflow_venv).absolute())
    place.check()
    home.mkdir(parents=True, exist_ok=True)
    # The steps of the demo say what the log lines would say.
    logging.getLogger("lakehouse").setLevel(logging.WARNING)
    # A log has no width of its own; the default of 80 columns would cut the tables.
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else _LOG_WIDTH)
    return Setting(place=place, wanted=given.database, clock=SystemClock(), ids=RandomIds(), console=console)
