"""The demo's command line, `python -m demo`: ingest files through Airflow and Spark, and show the result.

A separate Airflow below `--home` schedules the real DAGs, which submit Spark jobs. All files are below `--home`. A
second run continues with the state of the first one.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from demo.chart import print_report
from demo.database import Wanted
from demo.page import write_page
from demo.place import DemoPlace
from demo.sample_data import generate
from demo.steps import Setting, run_demo, run_own_table
from demo.ui import serve
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.system.ids import RandomIds
from lakehouse.errors import INTERRUPTED, LakehouseError, UserError

_LOG_WIDTH = 160
_HOME = (
    click.option("--airflow-venv", required=True, metavar="DIR", help="Virtual environment with Airflow."),
    click.option("--home", required=True, metavar="DIR", help="Folder of the demo: all its files are below."),
    click.option(
        "--database",
        type=click.Choice(["auto", "postgresql", "sqlite"]),
        default="auto",
        help="Database of Airflow. auto is PostgreSQL if it can run here, otherwise SQLite, which refuses backfills.",
    ),
)


@click.group(context_settings={"show_default": True})
def program() -> None:
    """Generate data, or run the demo through Airflow."""


def _with_home(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of the demo's place to a command."""
    for option in reversed(_HOME):
        command = option(command)
    return command


@program.command("generate")
@click.option("--out", required=True, metavar="DIR", help="Folder of the files.")
@click.option("--hours", type=int, default=48, help="Number of hours.")
@click.option("--orders-per-hour", type=int, default=2_000, help="Number of new orders per hour.")
@click.option("--seed", type=int, default=7, help="Seed of the random values.")
def generate_files(out: str, hours: int, orders_per_hour: int, seed: int) -> None:
    """Write files of ride-hailing events, one per hour and stream."""
    made = generate(Path(out), hours=hours, orders_per_hour=orders_per_hour, seed=seed)
    print(f"{len(made.files)} files, {made.orders} order events, {made.trips} trip events in {out}")


@program.command("run")
@_with_home
@click.option("--data", metavar="DIR", help="Your files instead of generated ones; needs --table.")
@click.option("--table", metavar="SPEC", help="Your table spec; needs a section `ingest`.")
def run(data: str | None, table: str | None, **place: Any) -> None:
    """Ingest files through Airflow and Spark, cluster a table, and show the result."""
    if data is not None and table is None:
        raise UserError(
            "--data needs a table spec that declares the format of the files: --table spec.yaml (make TABLE=...)"
        )
    setting = _setting(**place)
    if table is None:
        facts = run_demo(setting)
    else:
        facts = run_own_table(setting, None if data is None else Path(data), Path(table))
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


@program.command("ui")
@_with_home
def ui(**place: Any) -> None:
    """Start Airflow's web pages with the demo's DAGs and runs, until Ctrl-C."""
    serve(_setting(**place))


def main(words: Sequence[str]) -> int:
    """Run one command, and return its exit code: 0, or that of the error's class."""
    # The steps of the demo say what the log lines of lakehouse would say.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        program.main(list(words), prog_name="python -m demo", standalone_mode=False)
    except click.UsageError as error:
        print(f"UserError: {error.format_message()}", file=sys.stderr)
        return UserError.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except LakehouseError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _setting(*, home: str, airflow_venv: str, database: Wanted) -> Setting:
    place = DemoPlace(home=Path(home).absolute(), airflow_venv=Path(airflow_venv).absolute())
    place.check()
    place.home.mkdir(parents=True, exist_ok=True)
    # A log has no width of its own; the default of 80 columns would cut the tables.
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else _LOG_WIDTH)
    return Setting(place=place, wanted=database, clock=SystemClock(), ids=RandomIds(), console=console)
