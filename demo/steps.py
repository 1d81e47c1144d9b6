"""The steps of the demo: tables that need services, ingestions and a scheduler in Airflow, and what they changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from demo.airflow import AirflowApi, end_leftover, running_airflow, set_up
from demo.chapters import Chapter
from demo.database import Database, Wanted, open_database
from demo.facts import CommitFacts, DemoFacts, commits_of, table_facts, table_of
from demo.landing import Feed
from demo.order_chapters import (
    PublishedDay,
    alarm_chapter,
    bad_record_chapter,
    clustering_chapters,
    land_bad_record,
    publish_day,
    published_chapters,
)
from demo.place import DemoPlace, Ports
from demo.processes import free_port, interrupted_by_sigterm, only_one
from demo.progress import Live, Progress
from demo.runs import DagRun, end_interrupted_runs, follow, runs_of, schedule_run, trigger_run, wait_for_dag
from demo.story import CLUSTERED, GPS, GPS_QUERY, Story, open_story
from demo.texts import commit_text
from lakehouse.core.system.clock import Clock
from lakehouse.core.system.ids import Ids
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.connect import DEFAULT, catalog_url
from lakehouse.spec.table.table_spec import TableSpec, load_spec

#: Starts a run of a DAG.
Start = Callable[[AirflowApi, str, Live, Mapping[str, Any]], DagRun]

ORDERS, TRIPS = "ride_orders", "ride_trips"
_SCHEDULER = "services.schedule"
#: Conditions that a clustered table answers with fewer files, by the name of the table.
_QUERY = {GPS: GPS_QUERY}
#: The time that the scheduler gets to cluster a table, and the time between two looks.
_HEALED_S, _POLL_S = 240.0, 2.0
_API_PORT, _WORKER_LOG_PORT, _TRIGGER_LOG_PORT = 8080, 8793, 8794
_STEPS, _STEPS_OF_A_SPEC = 7, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The place of the demo, the wanted database, the sources of time and ids, and where to print."""

    place: DemoPlace
    wanted: Wanted
    clock: Clock
    ids: Ids
    console: Console

    def now(self) -> datetime:
        """Return the time of day."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, tz=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAirflow:
    """A running Airflow: its API, database, ports and first process."""

    api: AirflowApi
    database: Database
    ports: Ports
    process: subprocess.Popen[bytes]


@contextmanager
def opened(setting: Setting, line: Live) -> Iterator[OpenAirflow]:
    """Start the database and Airflow, create the pools, and stop both at the end of the block."""
    place = setting.place
    end_leftover(place, setting.clock)
    started = setting.now()
    with ExitStack() as stack:
        line.state("the database starts")
        database = stack.enter_context(open_database(place.home, setting.wanted, setting.clock, setting.ids))
        ports = Ports(
            api=free_port(_API_PORT), worker_log=free_port(_WORKER_LOG_PORT), trigger_log=free_port(_TRIGGER_LOG_PORT)
        )
        place.write_env(database, ports)
        line.state(f"Airflow starts on {database.description}")
        api, process = stack.enter_context(running_airflow(place, database, ports, setting.clock))
        end_interrupted_runs(api, started)
        line.state("airflow lakehouse setup")
        set_up(place, database, ports)
        yield OpenAirflow(api=api, database=database, ports=ports, process=process)


def run_demo(setting: Setting) -> DemoFacts:
    """Run all steps and return what the report shows. A second run continues with the state of the first one."""
    place = setting.place
    progress = Progress(setting.console, setting.clock, _STEPS)
    feed = Feed(generated=place.home / "generated", landing=place.landing)
    with only_one(place.home), interrupted_by_sigterm():
        with progress.step("ride-hailing events of the last two days: one file per hour, some events late or twice"):
            feed.generate_until(setting.now())
        first = feed.first_day(setting.now())
        feed.deliver("trips", first + timedelta(days=2))
        feed.deliver("orders", first + timedelta(days=1))
        with ExitStack() as stack:
            story = stack.enter_context(_story(place, progress))
            with progress.step(_airflow_text(place)) as line:
                airflow = stack.enter_context(opened(setting, line))
                for dag_id in (_SCHEDULER, f"ingest.{ORDERS}", f"ingest.{TRIPS}"):
                    wait_for_dag(airflow.api, dag_id, line)
                demo = _Demo(airflow, progress, setting)
                # In the background, while the runs below ingest.
                trigger_run(airflow.api, _SCHEDULER, line, {})
            _tell(progress, airflow)
            demo.ingest(
                "the first day of the orders, and yesterday's trips: scheduled runs",
                {ORDERS: {}, TRIPS: _interval(first + timedelta(days=1))},
                schedule_run,
            )
            published = demo.publish(first, story)
            feed.deliver("orders", first + timedelta(days=2))
            land_bad_record(place.landing / "orders", first + timedelta(days=1))
            demo.ingest(
                "the second day of the orders, with one bad record; and the trips of the day before: triggered runs",
                {ORDERS: {}, TRIPS: _interval(first)},
                trigger_run,
            )
            demo.heal(story)
            with progress.step("a report of the result"):
                facts = demo.facts((ORDERS, TRIPS), setting.now(), story)
                facts = replace(facts, chapters=demo.chapters(facts, story, published, first))
            feed.deliver("orders", _hour(setting.now()))
            feed.deliver("trips", _hour(setting.now()))
    return facts


def run_own_table(setting: Setting, data: Path | None, table: Path) -> DemoFacts:
    """Ingest the user's files by the user's spec and return what the report shows."""
    spec = _user_spec(setting.place.home, data, table)
    place = replace(setting.place, specs=spec.parent)
    setting = replace(setting, place=place)
    progress = Progress(setting.console, setting.clock, _STEPS_OF_A_SPEC)
    declared = load_spec(spec)
    name = declared.table
    with only_one(place.home), interrupted_by_sigterm(), ExitStack() as stack:
        with progress.step(_airflow_text(place)) as line:
            airflow = stack.enter_context(opened(setting, line))
            wait_for_dag(airflow.api, f"ingest.{name}", line)
        _tell(progress, airflow)
        demo = _Demo(airflow, progress, setting)
        # A DAG without a schedule has no scheduled runs.
        scheduled = declared.ingest is not None and declared.ingest.schedule is not None
        demo.ingest("your files", {name: {}}, schedule_run if scheduled else trigger_run)
        with progress.step("a report of the result"):
            return demo.facts((name,), setting.now())


class _Demo:
    """The tables of the demo and the Airflow that works on them."""

    def __init__(self, airflow: OpenAirflow, progress: Progress, setting: Setting) -> None:
        self._api, self._database, self._progress = airflow.api, airflow.database, progress
        self._started, place = setting.now(), setting.place
        self._environ = {**os.environ, "LAKEHOUSE_HOME": str(place.home)}
        specs = [load_spec(path) for path in sorted(place.specs.glob("*.y*ml"))]
        self._specs: dict[str, TableSpec] = {spec.table: spec for spec in specs}

    def ingest(self, text: str, tables: Mapping[str, Mapping[str, Any]], start: Start) -> None:
        """Start one run per table, at the same time, wait for them, and print the new commits.

        Args:
            text: What the runs ingest.
            tables: The parameters of the run by table.
            start: The function that starts a run.
        """
        before = {name: self._commits(name) for name in tables}
        with self._progress.step(f"Airflow ingests {text}") as line:
            runs = [start(self._api, f"ingest.{name}", line, conf) for name, conf in tables.items()]
            ended = follow(self._api, runs, line)
        for run, name in zip(ended, tables, strict=True):
            new = self._commits(name)[len(before[name]) :]
            for commit in new:
                self._progress.line(f"{_run_text(run)}: commit {commit.instant}: {commit_text(commit)}")
            if not new:
                self._progress.line(f"{_run_text(run)}: nothing new; files in a commit are not ingested again")

    def publish(self, day: datetime, story: Story) -> PublishedDay | None:
        """Publish a day of the orders; None in a second run of the demo, whose first run has published it."""
        table = table_of(self._specs[ORDERS], self._environ)
        return None if story.is_written or table is None else publish_day(table, day)

    def heal(self, story: Story) -> None:
        """Wait until the scheduler has clustered the small files and their alarm is resolved."""
        with self._progress.step(
            "the scheduler of services clusters the small files, and their alarm resolves"
        ) as line:
            deadline = self._api.clock.monotonic_s() + _HEALED_S
            is_requested = False
            while (open_alarms := story.open_alarms(GPS)) or story.files(GPS) > CLUSTERED:
                if self._api.clock.monotonic_s() > deadline:
                    raise LakehouseError(
                        f"{GPS} has {story.files(GPS)} files and {len(open_alarms)} open alarms after "
                        f"{_HEALED_S:.0f} s; the log of the last run of {_SCHEDULER} says why"
                    )
                if story.files(GPS) <= CLUSTERED and not is_requested:
                    # An event of the table starts a pass, too; this one follows at once.
                    trigger_run(self._api, _SCHEDULER, line, {"tables": [GPS]})
                    is_requested = True
                self._stop_if_failed()
                line.state(f"{GPS}: {story.files(GPS)} files, {len(open_alarms)} open alarms")
                self._api.clock.sleep(_POLL_S)

    def _stop_if_failed(self) -> None:
        """Raise LakehouseError if a run of the scheduler failed since the demo started."""
        for run in runs_of(self._api, _SCHEDULER):
            if run.state == "failed" and run.start is not None and run.start >= self._started:
                raise LakehouseError(f"the run {run.run_id} of {_SCHEDULER} failed; `make ui` shows its log")

    def chapters(
        self, facts: DemoFacts, story: Story, published: PublishedDay | None, day: datetime
    ) -> tuple[Chapter, ...]:
        """Return the chapters of the story; those of the first run in a second run of the demo."""
        if story.is_written:
            return tuple(story.chapters)
        clustered = [table.clustering for table in facts.tables if table.clustering is not None]
        chapters = [chapter for clustering in clustered for chapter in clustering_chapters(clustering)]
        chapters += [alarm_chapter(alarm) for alarm in story.resolved_alarms(GPS)[:1]] + story.chapters
        orders = table_of(self._specs[ORDERS], self._environ)
        if orders is not None and published is not None:
            chapters += published_chapters(orders, published, day)
            bad = bad_record_chapter(orders)
            chapters += [] if bad is None else [bad]
        story.keep(chapters)
        return tuple(chapters)

    def facts(self, tables: Sequence[str], now: datetime, story: Story | None = None) -> DemoFacts:
        """Read the tables and the runs."""
        tables_shown = [table_of(self._specs[name], self._environ) for name in tables]
        tables_shown += [] if story is None else [story.table(GPS)]
        runs = [run for run in runs_of(self._api) if run.start is not None]
        return DemoFacts(
            tables=tuple(table_facts(table, _QUERY.get(table.name)) for table in tables_shown if table is not None),
            runs=tuple(reversed(runs)),
            database=self._database.description,
            made_at=now,
        )

    def _commits(self, name: str) -> tuple[CommitFacts, ...]:
        return commits_of(table_of(self._specs[name], self._environ))


@contextmanager
def _story(place: DemoPlace, progress: Progress) -> Iterator[Story]:
    """Write the tables of the story, unless an earlier run of the demo did, and open their catalog."""
    url = catalog_url(DEFAULT, {**os.environ, "LAKEHOUSE_HOME": str(place.home)})
    with load_catalog(url) as catalog:
        story = open_story(place.home, catalog)
        with progress.step("tables that need services: small files, log files, late records, a bad write"):
            if not story.is_written:
                story.write()
        for chapter in story.chapters:
            progress.line(f"{chapter.table}: {chapter.measure}: {chapter.before} -> {chapter.after}")
        yield story


def _run_text(run: DagRun) -> str:
    seconds = "" if run.seconds is None else f" in {run.seconds:.0f} s"
    return f"{run.dag_id}, {run.run_type} run{seconds}"


def _airflow_text(place: DemoPlace) -> str:
    return f"a separate Airflow, with its scheduler, in {os.path.relpath(place.airflow_home)}"


def _tell(progress: Progress, airflow: OpenAirflow) -> None:
    progress.line(
        f"database: {airflow.database.description}; pages while this runs: http://127.0.0.1:{airflow.ports.api}"
    )
    if airflow.database.refusal is not None:
        progress.line(f"backfills are refused, because {airflow.database.refusal}")


def _interval(day: datetime) -> dict[str, str]:
    """Return the parameters of a run for the data interval of one day."""
    return {"interval_start": day.isoformat(), "interval_end": (day + timedelta(days=1)).isoformat()}


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _user_spec(home: Path, data: Path | None, table: Path) -> Path:
    """Copy the user's spec into the demo's home and return the path of the copy; `data` replaces its source."""
    spec = load_spec(table)
    if spec.inputs:
        raise UserError(f"{table} has several inputs, and the demo ingests one source; keep one as section `ingest`")
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
