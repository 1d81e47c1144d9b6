"""Queries of pages on SQLite and PostgreSQL: 1,000 tables with 7 services each, bounded numbers of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.platform.catalog.connect import Database, upgrade
from lakehouse.platform.catalog.models import AlarmRow, DecisionRow, LeaseRow, PolicyRow, RunRow
from lakehouse.platform.catalog.scans import record_scan
from lakehouse.platform.fleet_views.alarms import AlarmQuery, alarms_page
from lakehouse.platform.fleet_views.fleet import FleetQuery, fleet_page
from lakehouse.platform.fleet_views.names import UnknownTableError
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.platform.fleet_views.policies import (
    PolicyScope,
    namespace_policy_change,
    policy_change,
    policy_removal,
    table_policy_page,
)
from lakehouse.platform.fleet_views.queue import QueueQuery, queue_page
from lakehouse.platform.fleet_views.scans import ScanQuery, scan_page
from lakehouse.platform.fleet_views.silences import apply_silence, silence_change
from lakehouse.platform.fleet_views.stopping import AirflowTask, active_run, airflow_task, stop_effects
from lakehouse.platform.fleet_views.summary import fleet_summary
from lakehouse.platform.fleet_views.table import table_page, why_page
from lakehouse.spec.contracts.fleet_scan import FleetScan, ScannedTable, ScanTotals, TableKind
from lakehouse.spec.contracts.pages import FleetHealth, FleetOrder, QueueSection
from lakehouse.spec.table.services import SERVICES
from tests.support.fleet_rows import HOUR_MS, FleetTable, add_table, numbers
from tests.support.postgresql import server
from tests.support.queries import counted

NOW = 1_800_000_000_000
TABLES = 1000


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def catalog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A catalog of 1,000 tables, each with one due service, a running and an ended run; ten tables have problems."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db")
        fill(database)
        yield database
        return
    with server() as running:
        engine = create_engine(running.url)
        upgrade(engine)
        engine.dispose()
        database = Database(running.url)
        fill(database)
        yield database
        database.close()


def fill(database: Database) -> None:
    """Add the tables with their decisions, runs and alarms."""
    problem = {"rule": "freshness_lag", "severity": 2, "text": "late", "action": "look"}
    with database.session() as session:
        for number in range(TABLES):
            bad = number % 100 == 0
            name = f"n{number % 4}.t{number:04d}"
            found = numbers(NOW, log_bytes=number * 1000, last_commit_ms=NOW - number * 1000)
            growth = tuple(range(1000, 1030)) if number < 20 else ()
            table = FleetTable(
                name=name, numbers=found, severity=2 if bad else 0, problems=(problem,) if bad else (), growth=growth
            )
            row = add_table(session, table, NOW)
            session.add_all(decisions(row, number))
            session.add(run(row, "clean", "committed", ended=True))
            if number < 3:
                session.add(run(row, "compaction", "running"))
                session.add(
                    AlarmRow(rule="r", table_id=row, severity=2, state="open", text="t", raised_ms=1, seen_ms=2)
                )
        # The second of the three active runs has lost its lease.
        session.add_all(
            LeaseRow(key=f"n{number}.t{number:04d}/compaction", owner="run", token=1, expires_ms=NOW + HOUR_MS)
            for number in (0, 2)
        )


def decisions(table: int, number: int) -> list[DecisionRow]:
    """Return two decisions on each service; in the newest ones only clustering is due."""
    return [
        DecisionRow(
            table_id=table,
            service=service,
            decided_ms=NOW - age,
            due=age > 0 or service == "clustering",
            chosen=False,
            reason="r",
            priority=float(number),
            inputs={},
            predicted={},
        )
        for age in (HOUR_MS, 0)
        for service in SERVICES
    ]


def run(table: int, service: str, state: str, *, ended: bool = False) -> RunRow:
    """Return a run that began an hour ago."""
    return RunRow(
        run_id="run",
        table_id=table,
        service=service,
        state=state,
        started_ms=NOW - HOUR_MS,
        ended_ms=NOW if ended else None,
        predicted={},
        actual={"after": "x", "bytes": 5},
    )


#: Pages with the largest number of statements of each, whatever the number of tables.
BOUNDS: dict[str, tuple[Callable[[Session], Any], int]] = {
    "fleet": (lambda session: fleet_page(session, FleetQuery(paging=Paging(limit=200)), NOW), 5),
    "summary": (lambda session: fleet_summary(session, NOW), 5),
    "due": (lambda session: queue_page(session, QueueQuery(paging=Paging(limit=200)), NOW), 2),
    "done": (lambda session: queue_page(session, QueueQuery(section=QueueSection.DONE), NOW), 2),
    "alarms": (lambda session: alarms_page(session, AlarmQuery(), NOW), 3),
    "table": (lambda session: table_page(session, "n0.t0000", NOW), 10),
    "why": (lambda session: why_page(session, "n0.t0000", "clustering", NOW), 5),
    "policies": (lambda session: table_policy_page(session, "n0.t0000"), 4),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_page_takes_a_bounded_number_of_statements(catalog: Database, name: str) -> None:
    work, most = BOUNDS[name]
    with catalog.reading() as session, counted(catalog.engine) as statements:
        work(session)
    assert 0 < len(statements) <= most, statements


def names(database: Database, query: FleetQuery) -> list[str]:
    """Return the names of the tables of a page."""
    with database.reading() as session:
        return [row.table for row in fleet_page(session, query, NOW).rows]


def test_fleet_is_filtered_sorted_and_paged_by_the_database(catalog: Database) -> None:
    worst = names(catalog, FleetQuery(paging=Paging(limit=11)))
    assert worst[:10] == [f"n0.t{number:04d}" for number in range(0, TABLES, 100)]
    assert worst[10] == "n0.t0004"
    assert names(catalog, FleetQuery(order=FleetOrder.LOG_BYTES, paging=Paging(limit=1))) == ["n3.t0999"]
    assert names(catalog, FleetQuery(order=FleetOrder.FRESHNESS, paging=Paging(limit=1))) == ["n3.t0999"]
    second = FleetQuery(order=FleetOrder.TABLE, ascending=True, paging=Paging(offset=1, limit=1))
    assert names(catalog, second) == ["n0.t0004"]
    assert names(catalog, FleetQuery(search="T0123")) == ["n3.t0123"]
    assert names(catalog, FleetQuery(search="t_123")) == []
    assert len(names(catalog, FleetQuery(health=FleetHealth.ATTENTION))) == 10
    with catalog.reading() as session:
        page = fleet_page(session, FleetQuery(namespace="n1", search="t0001"), NOW)
    (row,) = page.rows
    assert (page.total, row.type, row.author, row.spec_version) == (1, "MERGE_ON_READ", "ada", 1)
    assert (row.history[-1], len(row.history) in (5, 6)) == (1029, True)
    assert list(row.history) == sorted(row.history)
    assert row.last_run is not None and row.last_run.started_ms == NOW - HOUR_MS


def test_scan_page_has_the_tables_of_a_place_with_their_names_in_the_catalog(catalog: Database) -> None:
    with catalog.reading() as session:
        assert scan_page(session, ScanQuery(), NOW).scans == ()
        location = fleet_page(session, FleetQuery(search="t0123"), NOW).rows[0].location
    scanned = [ScannedTable(location=location, kind=TableKind.HUDI, version=6)]
    scanned += [ScannedTable(location=f"/far/{n}", kind=TableKind.PARQUET, problem="damaged") for n in range(3)]
    record_scan(catalog, FleetScan(place="/lake", started_ms=NOW, tables=tuple(scanned)), "ada")
    record_scan(catalog, FleetScan(place="/old", started_ms=NOW - 1), "oleg")
    with catalog.reading() as session, counted(catalog.engine) as statements:
        page = scan_page(session, ScanQuery(paging=Paging(limit=2)), NOW)
    assert 0 < len(statements) <= 7, statements
    assert [scan.place for scan in page.scans] == ["/lake", "/old"]
    assert (page.place, page.total, page.scans[0].author, page.scans[0].tables) == ("/lake", 4, "ada", 4)
    assert page.totals == ScanTotals(tables=4, hudi=1, unreadable=0, registered=1)
    assert [(table.location, table.registered) for table in page.tables] == [(location, "n3.t0123"), ("/far/0", "")]
    with catalog.reading() as session:
        only = scan_page(session, ScanQuery(place="/lake", kind=TableKind.PARQUET, search="FAR/2"), NOW)
        assert ([table.location for table in only.tables], only.total) == (["/far/2"], 1)
        assert scan_page(session, ScanQuery(place="/old"), NOW).tables == ()
        assert scan_page(session, ScanQuery(place="/none"), NOW).place == "/none"


def test_summary_counts_tables_runs_and_due_services(catalog: Database) -> None:
    with catalog.reading() as session:
        found = fleet_summary(session, NOW)
    assert (found.tables, found.attention, found.running, found.due, found.alarms) == (TABLES, 10, 3, TABLES, 3)
    assert found.oldest_due_ms == NOW
    assert found.grown_bytes is not None


def test_queue_has_the_newest_due_decisions_and_runs_with_their_leases(catalog: Database) -> None:
    with catalog.reading() as session:
        due = queue_page(session, QueueQuery(paging=Paging(limit=2)), NOW)
        running = queue_page(session, QueueQuery(section=QueueSection.RUNNING), NOW)
        done = queue_page(session, QueueQuery(section=QueueSection.DONE, search="t0007", service="clean"), NOW)
    assert (due.total, [line.table for line in due.due]) == (TABLES, ["n3.t0999", "n2.t0998"])
    assert [(run.table, run.state) for run in running.runs] == [
        ("n0.t0000", "running"),
        ("n1.t0001", "died"),
        ("n2.t0002", "running"),
    ]
    assert [(run.table, dict(run.actual)) for run in done.runs] == [("n3.t0007", {"bytes": 5})]


def test_table_and_policy_change_are_described_and_wrong_names_refused(catalog: Database) -> None:
    with catalog.reading() as session:
        page = table_page(session, "n0.t0000", NOW)
        assert [line.service for line in page.services] == list(SERVICES)
        assert page.services[0].run is not None and page.services[0].run.state == "running"
        (change,) = policy_change(session, "n0.t0000", "clean", {"commits_retained": 77}).sentences
        assert change.startswith("clean.commits_retained of n0.t0000 becomes 77; it is ")
        with pytest.raises(UserError, match="commits_retained"):
            policy_change(session, "n0.t0000", "clean", {"commits_retaind": 7})
        with pytest.raises(UnknownTableError, match="Did you mean"):
            table_page(session, "n0.t000", NOW)


def test_silence_covers_open_alarms_until_it_is_ended(catalog: Database) -> None:
    given = {"scope": "n0", "duration": "2h", "reason": "moved to new disks"}
    with catalog.session() as session:
        change = silence_change(session, "silence", given, "ada", NOW)
        assert change.effects[1] == "1 open alarm is covered."
        number = apply_silence(session, change, NOW)["silence"]
        page = alarms_page(session, AlarmQuery(), NOW)
        assert {line.table: line.silenced for line in page.alarms} == {
            "n0.t0000": True,
            "n1.t0001": False,
            "n2.t0002": False,
        }
        (line,) = page.silences
        assert (line.author, line.until_ms, line.reason) == ("ada", NOW + 2 * HOUR_MS, "moved to new disks")
        ending = silence_change(session, "end_silence", {"silence": str(number)}, "bob", NOW)
        assert ending.effects[-1] == "1 open alarm can be sent now."
        assert apply_silence(session, ending, NOW) == {"silence": number, "ended": True}
        assert alarms_page(session, AlarmQuery(), NOW).silences == ()


def test_silence_of_an_unknown_scope_or_an_ended_one_is_refused_with_the_known_names(catalog: Database) -> None:
    with catalog.reading() as session:
        with pytest.raises(UnknownTableError, match=r"no namespace 'n0\.t000'.*Did you mean"):
            silence_change(session, "silence", {"scope": "n0.t000", "duration": "2h", "reason": "r"}, "ada", NOW)
        with pytest.raises(UserError, match="'7' is in force; in force: none"):
            silence_change(session, "end_silence", {"silence": "7"}, "ada", NOW)


@pytest.mark.parametrize(
    ("run", "task"),
    [
        ("services.clean/manual__2026-01-01T00:00:00+00:00/run", ("run", -1)),
        ("services.schedule/r/run.12", ("run", 12)),
        ("d/r/group.run", ("group.run", -1)),
    ],
)
def test_task_of_a_run_is_read_from_its_id(run: str, task: tuple[str, int]) -> None:
    found = airflow_task(run)
    assert (found.dag, (found.task, found.map_index)) == (run.partition("/")[0], task)


def test_stop_names_the_other_tables_of_the_job_and_refuses_runs_without_airflow(catalog: Database) -> None:
    with catalog.session() as session:
        rows = [run(number, "clustering", "running") for number in (5, 6)]
        for row in rows:
            row.run_id, row.progress = "services.schedule/r/run.2", {"done": 3, "total": 8, "unit": "file group"}
        session.add_all(rows)
        session.flush()
        tables = ("n0.t0004", "n1.t0005")
        found = active_run(session, tables[0], "clustering", rows[0].run_id)
        assert found.task == AirflowTask(dag="services.schedule", run="r", task="run", map_index=2)
        assert found.tables == tables
        text = " ".join(stop_effects(found, tables[0], is_finished=False).sentences)
        ended = stop_effects(found, tables[0], is_finished=True)
        assert ended.nothing_to_do and ended.sentences[0].startswith("Nothing to do: the task")
        assert "run[2] of the DAG services.schedule" in text
        assert "works on n1.t0005" in text and "3 of 8 file groups" in text
        with pytest.raises(UserError, match="'other' of clustering is active"):
            active_run(session, tables[0], "clustering", "other")
        with pytest.raises(UserError, match="'run' was not started by Airflow"):
            active_run(session, "n0.t0000", "compaction", "run")
        session.rollback()


def test_policy_of_a_namespace_names_the_tables_that_keep_their_values(catalog: Database) -> None:
    with catalog.session() as session:
        fixed = {"pattern": "", "service": "clean", "version": 1, "updated_ms": NOW, "author": "ada"}
        session.add(PolicyRow(namespace="n3", name="", settings={"commits_retained": 20}, **fixed))
        session.add(PolicyRow(namespace="n3", name="t0003", settings={"commits_retained": 5}, **fixed))
        session.flush()
        changes = namespace_policy_change(session, "n3", "clean", {"commits_retained": 30})
        assert not changes.nothing_to_do
        assert changes.sentences == (
            "clean.commits_retained of all tables of n3 becomes 30; it is 20.",
            "Tables with a value of their own keep it: n3.t0003.",
        )
        removed = policy_removal(session, PolicyScope(namespace="n3", name="t0003"), "clean")
        assert removed.sentences[0] == "The policy of clean for n3.t0003 is removed: commits_retained=5."
        nothing = policy_removal(session, PolicyScope(namespace="n3"), "ttl")
        assert nothing.nothing_to_do
        assert nothing.sentences == ("Nothing to do: there is no policy of ttl for all tables of n3.",)
        with pytest.raises(UserError, match="no namespace 'n33'"):
            namespace_policy_change(session, "n33", "clean", {"commits_retained": 30})
        session.rollback()
