"""`make ui`: Airflow's pages over the demo's tables, until Ctrl-C."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from datetime import timedelta

from demo.airflow import log_tail
from demo.landing import Feed
from demo.processes import interrupted_by_sigterm, only_one
from demo.progress import Progress
from demo.steps import OpenAirflow, Setting, opened
from lakehouse.errors import LakehouseError

#: A file is delivered this long before its hour ends, so that the run at the end of the hour finds it.
_LEAD = timedelta(seconds=30)
_POLL_S = 1.0


def serve(setting: Setting) -> None:
    """Run the demo's Airflow until SIGINT or SIGTERM. Meanwhile the landing zone gets a file at the end of each hour.

    Raises:
        LakehouseError: Airflow ended by itself.
    """
    place, console = setting.place, setting.console
    feed = Feed(generated=place.home / "generated", landing=place.landing)
    with suppress(KeyboardInterrupt), only_one(place.home), interrupted_by_sigterm(), ExitStack() as stack:
        _deliver(setting, feed)
        with Progress(console, setting.clock, 1).step("Airflow starts; Ctrl-C stops it") as line:
            airflow = stack.enter_context(opened(setting, line))
        console.print(_banner(setting, airflow), markup=False, highlight=False)
        while airflow.process.poll() is None:
            _deliver(setting, feed)
            setting.clock.sleep(_POLL_S)
        raise LakehouseError(f"Airflow ended with exit code {airflow.process.returncode}\n{log_tail(place)}")
    console.print("Airflow and its database are stopped; `make ui` starts them again with the same runs")


def _deliver(setting: Setting, feed: Feed) -> None:
    """Deliver the files of all hours that have passed, if the demo has run."""
    if feed.generated.exists():
        until = (setting.now() + _LEAD).replace(minute=0, second=0, microsecond=0)
        feed.generate_until(until)
        feed.deliver("orders", until)
        feed.deliver("trips", until)


def _banner(setting: Setting, airflow: OpenAirflow) -> str:
    env = os.path.relpath(setting.place.home / "env")
    ready = f"""
Airflow's pages    http://127.0.0.1:{airflow.ports.api}  (no password; only this machine can open them)
Airflow's commands . {env}
                   airflow dags list
Database           {airflow.database.description}
Logs               {os.path.relpath(setting.place.airflow_log)}"""
    # With its offset, the day does not depend on the time zone of Airflow.
    day = f"{setting.now() - timedelta(days=1):%Y-%m-%d}T00:00:00+00:00"
    backfill = f"airflow backfill create --dag-id ingest.ride_trips --from-date {day} --to-date {day}"
    if airflow.database.refusal is None:
        return f"{ready}\nBackfills          {backfill}\n"
    return f"{ready}\nBackfills          are refused, because {airflow.database.refusal}\n"
