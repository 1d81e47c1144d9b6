"""`lakehouse demo`: ingest generated files or the user's files through Airflow and Spark, and print the table.

    demo generate --out DIR [--hours 48] [--orders-per-hour 2000]
    demo run --airflow-venv DIR --home DIR [--data DIR --table spec.yaml]
    demo ui  --airflow-venv DIR --home DIR

`run` uses the real DAG: a separate Airflow below `--home` (SQLite) runs `ingest.<table>`, which submits the Spark job.
All files are below `--home`. A second run continues with the state of the first one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.services import status
from lakehouse.cli.table import open_table
from lakehouse.core.system.clock import SystemClock
from lakehouse.demo.sample_data import generate
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Instant
from lakehouse.platform.catalog.connect import DEFAULT
from lakehouse.spec.table import load_spec

_ROOT = Path(__file__).resolve().parents[2]
_SPECS = _ROOT / "dags" / "tables"
_HOURS, _ORDERS_PER_HOUR = 48, 2_000
_TAIL_LINES = 40

_LAYOUT = {
    "hoodie.clustering.plan.strategy.sort.columns": "zone,updated_at",
    "hoodie.layout.optimize.strategy": "z-order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoHome:
    """Folder of the demo, with its Airflow, landing zone and tables."""

    path: Path
    airflow_venv: Path
    specs: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of the demo's Airflow."""
        spark = Path(sys.prefix)
        return {
            **os.environ,
            "PATH": f"{self.airflow_venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "AIRFLOW_HOME": str(self.path / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(_ROOT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(_ROOT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
            "LAKEHOUSE_HOME": str(self.path),
            "LAKEHOUSE_SPECS": str(self.specs),
            "LAKEHOUSE_SPARK_HOME": str(spark),
            "PYTHONWARNINGS": "ignore",
        }


def demo(words: Sequence[str]) -> int:
    """Run `demo generate`, `demo run` or `demo ui`."""
    parser = argparse.ArgumentParser(prog="lakehouse demo")
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("generate", help="write files of ride-hailing events")
    making.add_argument("--out", type=Path, required=True)
    making.add_argument("--hours", type=int, default=_HOURS)
    making.add_argument("--orders-per-hour", type=int, default=_ORDERS_PER_HOUR)
    making.add_argument("--seed", type=int, default=7)
    running = verbs.add_parser("run", help="ingest files through Airflow and show the table")
    running.add_argument("--airflow-venv", type=Path, required=True)
    running.add_argument("--home", type=Path, required=True)
    running.add_argument("--data", type=Path, help="your files instead of generated ones; needs --table")
    running.add_argument("--table", type=Path, help="your table spec; needs an ingest section")
    looking = verbs.add_parser("ui", help="start Airflow's web pages with the demo's DAGs, until Ctrl-C")
    looking.add_argument("--airflow-venv", type=Path, required=True)
    looking.add_argument("--home", type=Path, required=True)
    given = parser.parse_args(list(words[1:]))
    if given.verb == "ui":
        _serve(DemoHome(path=given.home.absolute(), airflow_venv=given.airflow_venv.absolute(), specs=_SPECS))
    if given.verb == "generate":
        made = generate(given.out, hours=given.hours, orders_per_hour=given.orders_per_hour, seed=given.seed)
        print(f"{len(made.files)} files, {made.orders} order events, {made.trips} trip events in {given.out}")
        return 0
    return _run(given.airflow_venv.absolute(), given.home.absolute(), given.data, given.table)


def _run(airflow_venv: Path, home: Path, data: Path | None, table: Path | None) -> int:
    if not (airflow_venv / "bin" / "airflow").exists():
        raise UserError(f"{airflow_venv} has no airflow; run `make venvs` to create both environments")
    if data is not None and table is None:
        raise UserError(
            "--data needs a table spec that declares the format of the files: --table spec.yaml (make TABLE=...)"
        )
    home.mkdir(parents=True, exist_ok=True)
    os.environ["LAKEHOUSE_HOME"] = str(home)
    if table is not None:
        spec = _user_spec(home, data, table)
        place = DemoHome(path=home, airflow_venv=airflow_venv, specs=spec.parent)
        _prepare_airflow(place, 1, 2)
        _ingest(place, load_spec(spec).table, "2 of 2", None)
        _show(place, [spec])
        return 0
    place = DemoHome(path=home, airflow_venv=airflow_venv, specs=_SPECS)
    _step("1 of 6", f"ride-hailing events: {_HOURS} hours, {_ORDERS_PER_HOUR} orders an hour, some late, some twice")
    made = home / "generated"
    if not made.exists():
        generate(made, hours=_HOURS, orders_per_hour=_ORDERS_PER_HOUR)
    _land(made, home / "landing", "2026-01-01")
    _prepare_airflow(place, 2, 6)
    _ingest(place, "ride_orders", "3 of 6", None, "day one of the orders")
    _land(made, home / "landing", "2026-01-02")
    _ingest(place, "ride_orders", "4 of 6", None, "day two: new orders, and changes of yesterday's")
    _ingest(place, "ride_trips", "5 of 6", "2026-01-02", "the trips of the data interval that ended then")
    _step("6 of 6", "Airflow runs services.clustering: the orders are sorted by zone and time, without other changes")
    params = {"tables": ["default.ride_orders"], "force": True, "options": _LAYOUT}
    _airflow(place, ["dags", "test", "services.clustering", "--conf", json.dumps(params)], "services.clustering.log")
    status(Given(catalog=DEFAULT, output="text"))
    _show(place, [place.specs / "ride_orders.yaml", place.specs / "ride_trips.yaml"])
    return 0


def _user_spec(home: Path, data: Path | None, table: Path) -> Path:
    """Copy the user's spec into the demo's home and return the path of the copy; `data` replaces its source."""
    spec = load_spec(table)
    if spec.ingest is None:
        raise UserError(f"{table} has no section `ingest`; add one that declares the source")
    mapping = yaml.safe_load(table.read_text(encoding="utf-8"))
    if data is not None:
        if not data.exists():
            raise UserError(f"{data} does not exist")
        mapping["ingest"]["path"] = str(data.absolute())
    target = home / "tables" / table.name
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir(parents=True)
    target.write_text(yaml.safe_dump(mapping, sort_keys=False), encoding="utf-8")
    return target


def _prepare_airflow(place: DemoHome, number: int, steps: int) -> None:
    _step(f"{number} of {steps}", f"a separate Airflow in {place.path / 'airflow'}")
    _airflow(place, ["db", "migrate"], "migrate.log")
    for pool, work in (("ingest", "ingestion"), ("services", "table services"), ("publish", "publication")):
        _airflow(place, ["pools", "set", f"lakehouse_{pool}", "2", f"Jobs of {work}"], f"lakehouse_{pool}.log")


def _ingest(place: DemoHome, table: str, step: str, date: str | None, what: str = "your files") -> None:
    _step(step, f"Airflow runs ingest.{table}: {what}")
    words = ["dags", "test", f"ingest.{table}", *([date] if date else [])]
    spec = next(path for path in sorted(place.specs.glob("*.y*ml")) if load_spec(path).table == table)
    before = _commits(spec)
    _airflow(place, words, f"ingest.{table}.log")
    after = _commits(spec)
    if len(after) == len(before):
        print("      nothing new: files in a commit are not ingested again")
        return
    instant, metadata = after[-1]
    inserts, updates = (sum(getattr(s, f"num_{name}") for s in metadata.stats) for name in ("inserts", "updates"))
    print(f"      commit {instant.requested}: {inserts} inserted, {updates} updated, {len(metadata.stats)} files")


def _airflow(place: DemoHome, words: Sequence[str], log: str) -> str:
    """Run one airflow command and log its output to a file; raise LakehouseError with its last lines if it fails."""
    path = place.path / "logs" / log
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [str(place.airflow_venv / "bin" / "airflow"), *words]
    clock = SystemClock()
    started = clock.monotonic_s()
    done = subprocess.run(
        command, env=place.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    path.write_text(done.stdout, encoding="utf-8")
    failed = done.returncode != 0 or "state=failed" in done.stdout or "Task failed" in done.stdout
    if failed:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise LakehouseError(f"`airflow {' '.join(words)}` failed; the whole log is in {path}\n{tail}")
    print(f"      done in {clock.monotonic_s() - started:.0f} s, log in {os.path.relpath(path)}", flush=True)
    return done.stdout


def _commits(spec: Path) -> Sequence[tuple[Instant, CommitMetadata]]:
    try:
        return open_table(str(spec)).commits()
    except UserError:
        # The first ingestion creates the table.
        return ()


def _land(made: Path, landing: Path, day: str) -> None:
    """Copy the files of one day into the landing zone."""
    for stream in ("orders", "trips"):
        target = landing / stream / day
        if not target.exists():
            shutil.copytree(made / stream / day, target)


def _show(place: DemoHome, specs: Sequence[Path]) -> None:
    for spec in specs:
        table = open_table(str(spec))
        print(f"\n=== {table.name}: {table.scan(columns=['_hoodie_record_key']).count()} rows")
        show_document(table.describe(), "text", omitted=("schema",))
    first = os.path.relpath(specs[0])
    home = os.path.relpath(place.path)
    print(
        f"""
Next steps
  LAKEHOUSE_HOME={home} .venv/bin/lakehouse table read --table {first} --limit 5
  LAKEHOUSE_HOME={home} .venv/bin/lakehouse timeline show --table {first}
  make ui        Airflow's pages with these DAGs, at http://127.0.0.1:8080
  any Hudi reader: {open_table(str(specs[0])).location}"""
    )


def _serve(place: DemoHome) -> NoReturn:
    """Replace this process by `airflow standalone`, for this machine only and without a password."""
    variables = {
        **place.environment(),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
    }
    os.execve(place.airflow_venv / "bin" / "airflow", ["airflow", "standalone"], variables)


def _step(number: str, text: str) -> None:
    print(f"[{number}] {text}", flush=True)
