"""Upgrades and downgrades of registered tables: recorded runs, their leases, and their continuation after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.version import change_version
from lakehouse.core.operations.version.version_plan import VersionPlan, VersionRequest
from lakehouse.errors import RetryableError, TableBusyError, UnsupportedError, UserError
from lakehouse.platform.catalog import version_run
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.catalog.run_records import lease_key
from lakehouse.platform.catalog.version_run import run_version_change
from lakehouse.platform.fleet_views.queue import QueueQuery, queue_page
from lakehouse.platform.fleet_views.table import table_runs
from lakehouse.platform.services.pass_rules import end_crashed_runs
from lakehouse.platform.services.run import run_tables
from lakehouse.platform.services.service_run import runner
from lakehouse.spec.contracts.job import JobReason, ServiceReport
from lakehouse.spec.contracts.pages import QueueSection
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.table.services import SERVICES

NAME = "sales.orders"
VERSION = "hoodie.write.table.version"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """Return a catalog of one table of version 6 with log files."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    table = Table.create(
        str(tmp_path / "orders"),
        name="orders",
        record_key="id",
        ordering="ts",
        table_type="MERGE_ON_READ",
        options={VERSION: "6"},
    )
    table.insert(pa.table({"id": ["a", "b"], "ts": [1, 1], "v": [1, 1]}))
    table.upsert(pa.table({"id": ["a"], "ts": [2], "v": [2]}))
    with load_catalog() as opened:
        opened.register_table(NAME, str(tmp_path / "orders"))
        yield opened


def upgrade(to: int = 9, source: int | None = None) -> VersionRequest:
    return VersionRequest(to=to, upgrade=True, source=source)


def version(catalog: Catalog) -> int:
    return catalog.load_table(NAME).config.version


def values(catalog: Catalog) -> dict[str, int]:
    return {row["id"]: row["v"] for row in catalog.load_table(NAME).scan().to_arrow().to_pylist()}


def test_run_is_recorded_with_its_plan_and_the_present_version_has_nothing_to_do(catalog: Catalog) -> None:
    planned = run_version_change(catalog, NAME, VersionRequest(to=9, upgrade=True, dry_run=True))
    assert isinstance(planned.outcome, VersionPlan) and not planned.outcome.is_done
    entry = catalog.entry(NAME)
    assert catalog.history.runs(entry.id, "upgrade") == ()
    done = run_version_change(catalog, NAME, upgrade(), run_id="dag/run/act")
    assert isinstance(done.outcome, VersionPlan) and done.outcome.is_done
    (run,) = catalog.history.runs(entry.id, "upgrade")
    assert (run.run_id, run.state, run.tries) == ("dag/run/act", RunState.COMMITTED, 1)
    assert (run.predicted["source"], run.predicted["target"], run.predicted["groups"]) == (6, 9, 1)
    assert run.actual["files"] == done.outcome.timeline_files > 0
    assert values(catalog) == {"a": 2, "b": 1}
    # A retry that did not see the end of the first try does nothing, even after a change back.
    run_version_change(catalog, NAME, VersionRequest(to=6, upgrade=False), run_id="other")
    assert isinstance(run_version_change(catalog, NAME, upgrade(), run_id="dag/run/act").outcome, NothingToDo)
    assert version(catalog) == 6
    # Another change of the same job is not a retry.
    assert isinstance(run_version_change(catalog, NAME, upgrade(8), run_id="dag/run/act").outcome, VersionPlan)
    run_version_change(catalog, NAME, VersionRequest(to=6, upgrade=False), run_id="back")
    with pytest.raises(UserError, match="has table version 6, but the plan was made for version 8"):
        run_version_change(catalog, NAME, upgrade(source=8), run_id="third")
    assert catalog.history.runs(entry.id, "upgrade")[0].state is RunState.FAILED


def test_change_waits_for_services_and_services_wait_for_the_change(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with catalog.leases.held(lease_key(NAME, "compaction"), "busy", 60_000):
        with pytest.raises(TableBusyError, match="the run busy of compaction is active"):
            run_version_change(catalog, NAME, upgrade())
        assert catalog.leases.holder(lease_key(NAME, "upgrade")) is None
    reports: list[ServiceReport] = []
    states: list[tuple[str, str]] = []

    def changed(*arguments: object) -> object:
        command = ServiceCommand(service="compaction", table=NAME, run_id="second")
        reports.extend(run_tables(catalog, [NAME], command, runner("compaction")))
        with catalog.database.session() as session:
            running = queue_page(session, QueueQuery(section=QueueSection.RUNNING), catalog.clock.now_ms())
            (of_table,) = table_runs(session, NAME, catalog.clock.now_ms()).runs
        states.extend([(run.service, run.state) for run in (*running.runs, of_table)])
        return original(*arguments)  # type: ignore[arg-type]

    original = change_version.change_version
    monkeypatch.setattr(version_run, "change_version", changed)
    run_version_change(catalog, NAME, upgrade(), run_id="first")
    assert {report.code for report in reports} == {JobReason.OTHER_RUN_ACTIVE}
    assert "run first is active" in reports[0].reason
    assert set(states) == {("upgrade", "running")}
    assert catalog.leases.holder(lease_key(NAME, "compaction")) is None


def test_run_whose_lease_was_taken_over_does_not_switch_the_version(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = change_version._copied

    def take_over(*arguments: object) -> object:
        # A retry of the same run takes the lease over while this process is suspended.
        catalog.leases.acquire(lease_key(NAME, "upgrade"), "run", 60_000)
        return copied(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(change_version, "_copied", take_over)
    with pytest.raises(RetryableError, match="another run took over the lease of run"):
        run_version_change(catalog, NAME, upgrade(), run_id="run")
    assert version(catalog) == 6
    monkeypatch.undo()
    assert values(catalog) == {"a": 2, "b": 1}
    catalog.load_table(NAME).upsert(pa.table({"id": ["c"], "ts": [1], "v": [3]}))


def test_blocker_ends_the_run_before_anything_is_changed(catalog: Catalog) -> None:
    table = catalog.load_table(NAME)
    table.services.clustering.schedule(force=True)
    (pending,) = table.refresh().timeline.where(pending=True)
    with pytest.raises(UnsupportedError, match=f"{pending.requested} is pending; finish it with `lakehouse clustering"):
        run_version_change(catalog, NAME, upgrade(), run_id="run")
    (run,) = catalog.history.runs(catalog.entry(NAME).id, "upgrade")
    assert run.state is RunState.FAILED and "is pending" in (run.error or "")


def test_scheduler_ends_the_record_of_a_change_that_died(catalog: Catalog) -> None:
    entry = catalog.entry(NAME)
    catalog.history.start("dead", entry.id, "downgrade")
    end_crashed_runs(catalog, SERVICES)
    (run,) = catalog.history.runs(entry.id, "downgrade")
    assert run.state is RunState.DIED


KILLED = """
import os, signal
from lakehouse import load_catalog
from lakehouse.core.operations.version import change_version
from lakehouse.core.operations.version.version_plan import VersionRequest
from lakehouse.platform.catalog.version_run import run_version_change

setattr(change_version, {step!r}, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
with load_catalog() as catalog:
    run_version_change(catalog, "sales.orders", VersionRequest(to=9, upgrade=True), run_id="dag/run/act")
"""


@pytest.mark.parametrize(("step", "reached"), [("switch", 6), ("delete_source", 9)])
def test_killed_run_is_continued_by_its_retry(catalog: Catalog, step: str, reached: int, tmp_path: Path) -> None:
    environ = {**os.environ, "LAKEHOUSE_HOME": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", KILLED.format(step=step)], env=environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert version(catalog) == reached
    # Its leases have not expired, so another run has to wait; the retry takes them over.
    with pytest.raises(TableBusyError):
        run_version_change(catalog, NAME, upgrade(), run_id="another")
    done = run_version_change(catalog, NAME, upgrade(), run_id="dag/run/act").outcome
    assert isinstance(done, VersionPlan) and (done.is_done, done.source, done.target) == (True, 6, 9)
    assert version(catalog) == 9
    assert values(catalog) == {"a": 2, "b": 1}
    assert not list((tmp_path / "orders/.hoodie").glob("*.deltacommit"))
    (run,) = catalog.history.runs(catalog.entry(NAME).id, "upgrade")
    assert (run.tries, run.state) == (2, RunState.COMMITTED)
    assert catalog.load_table(NAME).validate(deep=True).findings == ()
