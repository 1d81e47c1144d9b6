"""A run that waits has not failed, and an error that no other try resolves needs attention at the first time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from alembic import command as alembic
from alembic.config import Config

from lakehouse.cli import ingest_runs
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptLogError, RetryableError, SourceMissingError, TableBusyError, UserError
from lakehouse.platform.alarms.judge import judge_by_time
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database, _config
from lakehouse.platform.catalog.run_history import Run, RunState
from lakehouse.platform.catalog.run_records import RunKey, record_end
from lakehouse.platform.fleet_views.fleet import FleetQuery, fleet_page
from lakehouse.spec.contracts.fleet import TableState
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus
from lakehouse.spec.contracts.pages import FleetHealth
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

SPEC = "table: sales.orders\nlocation: {place}/orders\nrecord_key: id\ningest: {{path: {place}/landing}}\n"
TEMPLATE = (
    "table: shop\nlocation: {place}/shop\n"
    'ingest: {{source: mysql, connection: shop, tables: "shop.*", into: "{{table}}"}}\n'
)
MISSING = SourceMissingError("no file in landing/2026-01-01 yet", wait_for_s=3600)
DONE = IngestReport(status=JobStatus.NOTHING_TO_DO, table="sales.orders")


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_780_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self.ms += round(seconds * 1000)


class Fleet:
    """A catalog with one registered table whose ingestions are recorded at the times of a clock."""

    def __init__(self, place: Path) -> None:
        self.clock = ManualClock()
        self.catalog = Catalog(Database(f"sqlite:///{place}/catalog.db"), self.clock)
        self.spec = parse_spec(SPEC.format(place=place), source="orders.yaml")
        self.table = self.catalog.ensure_table(self.spec, create=False)
        self.catalog.states.record({self.table.id: TableState(looked_ms=self.clock.now_ms())})

    def start(self, run_id: str) -> None:
        """Record the start of a try."""
        self.clock.advance(60)
        self.catalog.history.start(run_id, self.table.id, "ingest")

    def record(self, run_id: str, result: Exception | IngestReport) -> Run:
        """Record one try with its outcome."""
        self.start(run_id)
        return self.end(run_id, result)

    def end(self, run_id: str, result: Exception | IngestReport) -> Run:
        """Record the outcome of the active try."""
        report = result
        if isinstance(result, Exception):
            report = IngestReport(status=JobStatus.FAILED, table="sales.orders", error=JobError.of(result))
        assert isinstance(report, IngestReport)
        record_end(self.catalog, RunKey(run_id=run_id, table_id=self.table.id, service="ingest"), report)
        return self.catalog.history.runs(self.table.id, "ingest")[0]

    def problems(self) -> set[str]:
        """Evaluate the rules, and return the names of the problems of the table."""
        found = judge_by_time(self.catalog, load_rules({})).problems
        return {problem.rule for problem in found.get(self.table.id, ())}

    def alarms(self) -> list[tuple[str, str]]:
        """Return the rules and states of all alarms that were ever raised."""
        with self.catalog.database.session() as session:
            return [
                (rule, state) for rule, state in session.execute(sa.text("SELECT rule, state FROM lakehouse_alarms"))
            ]

    def health(self) -> tuple[FleetHealth, str]:
        """Return the health of the table and the state of its newest run on the page Fleet."""
        with self.catalog.database.session() as session:
            (row,) = fleet_page(session, FleetQuery(), self.clock.now_ms()).rows
        assert row.last_run is not None
        return row.health, row.last_run.state


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    opened = Fleet(tmp_path)
    with opened.catalog:
        yield opened


@pytest.mark.parametrize("error", [MISSING, TableBusyError("another run holds the table")])
def test_run_that_waits_is_a_state_of_its_own_and_raises_no_alarm(fleet: Fleet, error: Exception) -> None:
    """The class of apache/airflow#49971: polls of a task that waits are counted as tries that failed."""
    for _ in range(6):
        fleet.start("scheduled")
        assert fleet.problems() == set()
        run = fleet.end("scheduled", error)
        assert (run.state, run.tries, run.failed_tries) == (RunState.WAITING, 1, 0)
        assert run.error is not None and str(error) in run.error
        assert fleet.problems() == set()
    assert fleet.record("scheduled", error).state is RunState.WAITING
    assert fleet.health() == (FleetHealth.HEALTHY, "waiting")
    done = fleet.record("scheduled", DONE)
    assert (done.state, done.waiting_since_ms, done.error) == (RunState.NOTHING_TO_DO, None, None)
    assert fleet.alarms() == []


def test_run_that_waited_longer_than_its_limit_has_failed(fleet: Fleet) -> None:
    """The class of apache/airflow#49971: the limit of a wait ends the run, and that needs attention."""
    assert fleet.record("scheduled", MISSING).state is RunState.WAITING
    fleet.clock.advance(3600)
    run = fleet.record("scheduled", MISSING)
    assert (run.state, run.failed_tries, run.permanent) == (RunState.FAILED, 1, True)
    assert "permanent_failure" in fleet.problems()
    assert fleet.health() == (FleetHealth.ATTENTION, "failed")


def test_run_that_waits_for_hours_without_a_limit_raises_one_alarm(fleet: Fleet) -> None:
    """The class of apache/airflow#14129: a task that is rescheduled for many hours is not noticed."""
    for _ in range(8):
        fleet.record("scheduled", TableBusyError("another run holds the table"))
        fleet.clock.advance(3600)
        fleet.problems()
    assert fleet.alarms() == [("long_wait", "open")]


@pytest.mark.parametrize(
    "error", [UserError("1 bad record, max_bad_records is 0"), CorruptLogError("a row ends early")]
)
def test_permanent_error_needs_attention_at_the_first_time(fleet: Fleet, error: Exception) -> None:
    """The class of apache/airflow#35550: runs that failed for good look like those that will try again."""
    fleet.record("scheduled", error)
    assert fleet.problems() == {"permanent_failure"}
    assert fleet.health()[0] is FleetHealth.ATTENTION
    # A later try that is active does not resolve the alarm.
    fleet.start("scheduled")
    assert fleet.problems() == {"permanent_failure"}
    fleet.record("scheduled", DONE)
    assert fleet.problems() == set() and fleet.health()[0] is FleetHealth.HEALTHY
    assert fleet.alarms() == [("permanent_failure", "resolved")]


def test_transient_failures_count_without_the_tries_that_waited(fleet: Fleet) -> None:
    """The class of apache/airflow#49971."""
    for _ in range(4):
        fleet.record("scheduled", MISSING)
    for number in (1, 2):
        run = fleet.record("scheduled", RetryableError("the storage does not answer"))
        assert (run.state, run.failed_tries, run.tries) == (RunState.FAILED, number, number)
        assert fleet.problems() == set()
    fleet.record("scheduled", RetryableError("the storage does not answer"))
    assert fleet.problems() == {"failed_runs"}
    fleet.start("scheduled")
    assert fleet.problems() == {"failed_runs"}
    fleet.record("scheduled", DONE)
    assert fleet.problems() == set()
    assert fleet.alarms() == [("failed_runs", "resolved")]


def test_run_whose_spec_contradicts_the_table_is_recorded_as_failed(fleet: Fleet) -> None:
    """The class of apache/airflow#35550: a run that ends before it begins leaves no trace."""
    Table.create(fleet.table.location, name="orders", record_key="id").upsert(pa.table({"id": ["a"]}))
    with pytest.raises(UserError, match="MERGE_ON_READ"):
        ingest_runs.begin(replace(fleet.spec, type="MERGE_ON_READ"), "scheduled")
    (run,) = fleet.catalog.history.runs(fleet.table.id, "ingest")
    assert (run.state, run.permanent) == (RunState.FAILED, True)


def template_of(place: Path) -> TableSpec:
    return parse_spec(TEMPLATE.format(place=place), source="shop.yaml")


def test_failed_runs_of_the_tables_of_a_template_are_recorded(fleet: Fleet, tmp_path: Path) -> None:
    """The class of apache/airflow#35550: the tables of one ingestion have each a history, with their failures."""
    spec = template_of(tmp_path)
    for name in ("orders", "items"):
        Table.create(tmp_path / "shop" / name, name=name, record_key="id").upsert(pa.table({"id": ["a"]}))
    written = tuple(IngestReport(status=JobStatus.COMMITTED, table=name, instant="1") for name in ("orders", "items"))
    ingest_runs.record_targets(spec, IngestReport(status=JobStatus.COMMITTED, table="shop", parts=written), "first")
    ids = {name: fleet.catalog.entry(f"default.{name}").id for name in ("orders", "items")}

    def states(name: str) -> list[RunState]:
        return [run.state for run in fleet.catalog.history.runs(ids[name], "ingest")]

    failed = IngestReport(status=JobStatus.FAILED, table="orders", error=JobError.of(UserError("no key")))
    nothing = IngestReport(status=JobStatus.NOTHING_TO_DO, table="items")
    ingest_runs.record_targets(spec, replace(failed, table="shop", parts=(failed, nothing)), "second")
    assert states("orders") == [RunState.FAILED, RunState.COMMITTED]
    assert states("items") == [RunState.NOTHING_TO_DO, RunState.COMMITTED]
    ingest_runs.record_failure(spec, UserError("access denied for user lake"), "third")
    assert states("orders")[0] is RunState.FAILED and states("items")[0] is RunState.FAILED
    found = judge_by_time(fleet.catalog, load_rules({})).problems
    assert {problem.rule for table in ids.values() for problem in found[table]} == {"permanent_failure"}


def test_upgraded_catalog_counts_the_failures_that_an_earlier_version_recorded(tmp_path: Path) -> None:
    """The class of apache/airflow#49971: failures before an upgrade stay failures."""
    url = f"sqlite:///{tmp_path}/old.db"
    engine = sa.create_engine(url)
    config: Config = _config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        alembic.upgrade(config, "0004")
        connection.execute(sa.text("INSERT INTO lakehouse_namespaces VALUES ('n', '{}', 1)"))
        connection.execute(
            sa.text(
                "INSERT INTO lakehouse_tables (id, namespace, name, location, spec_version, created_ms) "
                "VALUES (1, 'n', 't', '/t', 1, 1)"
            )
        )
        connection.execute(
            sa.text(
                "INSERT INTO lakehouse_runs "
                "(id, run_id, table_id, service, state, tries, started_ms, predicted, actual) "
                "VALUES (1, 'r', 1, 'ingest', 'failed', 3, 1, '{}', '{}')"
            )
        )
    engine.dispose()
    with Catalog(Database(url), ManualClock()) as catalog:
        (run,) = catalog.history.runs(1, "ingest")
    assert (run.failed_tries, run.tries, run.permanent) == (3, 3, False)
