"""Service runs that are killed, suspended, started twice or without a catalog: each plan is executed exactly once.

Each round makes a table due, starts its compaction in a separate process, and causes one fault at a random time of the
run. Then the run is retried under the same id, as Airflow does, until a try succeeds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import TEMPORARY_SUFFIX
from lakehouse.model.commit import Operation
from lakehouse.platform.catalog import connect
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import Run, RunOutcome, RunState
from lakehouse.platform.services import run as runs
from tests.support.killed import leftovers
from tests.support.postgresql import Server, server
from tests.support.processes import forked
from tests.support.waiting import until

#: With LAKEHOUSE_SHARE=0.5 half of the rounds run.
ROUNDS = round(20 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1")) * float(os.environ.get("LAKEHOUSE_SHARE", "1")))
RETRYABLE = 75
LEASE_MS = 1000
KEYS = 12
#: Each commit makes the table due. A heartbeat expires after three intervals, that is 0.3 s.
OPTIONS = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.client.heartbeat.interval_in_ms": "100",
    "hoodie.write.lock.wait_time_ms": "2000",
}


def compact(url: str, run_id: str, report: str, busy_s: float) -> None:
    """Run the compaction of the table as `lakehouse compaction run` does; the function of a separate process."""
    os.environ["LAKEHOUSE_CATALOG"] = url
    Path(report).parent.mkdir(parents=True, exist_ok=True)
    log = os.open(f"{report}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    connect._BUSY_S = busy_s  # type: ignore[assignment]
    connect._IDLE_S = busy_s  # type: ignore[assignment]
    runs.LEASE_MS = LEASE_MS
    words = [word for key, value in OPTIONS.items() for word in ("--option", f"{key}={value}")]
    code = main(["compaction", "run", "--table", "sales.t", "--run-id", run_id, "--report", report, *words])
    os._exit(code)


@dataclass
class Lake:
    """A merge-on-read table of a catalog, with its expected rows and the compactions that were checked."""

    home: Path
    url: str
    busy_s: float = 30
    rows: dict[str, int] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    rounds: int = 0
    takes_s: float = 0.0

    def __post_init__(self) -> None:
        made = Table.create(
            str(self.home / "t"), name="t", record_key=["id"], partition_by=["p"], table_type="MERGE_ON_READ"
        )
        self.write(made)
        with self.catalog() as catalog:
            catalog.register_table("sales.t", made.location)
        for _ in range(3):
            # The first run also starts the fork server, so only later runs give the usual duration.
            self.due()
            began = time.monotonic()
            assert self.end(self.start("measure")) == 0
            self.takes_s = time.monotonic() - began
            self.seen |= {self.compactions()[-1]}

    def catalog(self) -> Catalog:
        return load_catalog(self.url)

    @property
    def table(self) -> Table:
        return Table.open(str(self.home / "t"))

    def write(self, table: Table) -> None:
        self.rounds += 1
        # Updates of stored rows are written to log files.
        changed = {f"{n}": self.rounds for n in random.sample(range(KEYS), 4 if self.rows else KEYS)}
        ids = list(changed)
        table.upsert(pa.table({"id": ids, "p": [str(int(i) % 2) for i in ids], "v": list(changed.values())}))
        self.rows |= changed

    def due(self) -> str:
        """Change some rows so that the table is due; return the id of the next run."""
        self.write(self.table)
        return f"services.compaction/{self.rounds}/run.0"

    def start(self, run_id: str) -> ForkServerProcess:
        processes = forked()
        report = str(self.home / f"{run_id}.json")
        child = processes.Process(target=compact, args=(self.url, run_id, report, self.busy_s))
        child.start()
        return child

    def end(self, child: ForkServerProcess) -> int | None:
        child.join(90)
        assert child.exitcode in (0, RETRYABLE, -signal.SIGKILL, -signal.SIGTERM), "\n".join(self.logs())
        return child.exitcode

    def logs(self) -> list[str]:
        """Return the last log lines of the runs of this round."""
        return [
            line
            for path in self.home.rglob(f"services.compaction/{self.rounds}/**/*.log")
            for line in path.read_text().splitlines()[-60:]
        ]

    def moment(self) -> float:
        return random.uniform(0.0, self.takes_s)

    def retry(self, run_id: str, tries: int = 40) -> dict[str, Any]:
        """Retry a run until it succeeds, as Airflow does; return its report."""
        for _ in range(tries):
            if self.end(self.start(run_id)) == 0:
                return self.report(run_id)
            time.sleep(0.1)
        raise AssertionError("no try succeeded")

    def report(self, run_id: str) -> dict[str, Any]:
        return dict(json.loads((self.home / f"{run_id}.json").read_text()))

    def compactions(self) -> list[str]:
        return [i.requested for i, metadata in self.table.commits() if metadata.operation == Operation.COMPACT]

    def run(self, run_id: str) -> Run | None:
        with self.catalog() as catalog:
            return catalog.history.run(run_id, catalog.entry("sales.t").id, "compaction")

    def check(self, run_id: str, report: dict[str, Any] | None = None) -> None:
        """Check that exactly one new compaction exists, that this run recorded it, and that the rows are unchanged."""
        (made,) = set(self.compactions()) - self.seen
        self.seen.add(made)
        assert not list(self.table.timeline.where(pending=True))
        read = self.table.scan().to_arrow()
        assert dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)) == self.rows
        run = self.run(run_id)
        assert run is not None
        assert (run.state, run.instant) == (RunState.COMMITTED, made), run
        assert run.ended_ms is not None and run.error is None
        assert report is None or report["instant"] == made, report
        # If the catalog did not answer, the run could not release its lease, and the lease expires.
        with self.catalog() as catalog:
            assert until(lambda: catalog.leases.holder("sales.t/compaction") is None)

    def finish(self) -> None:
        """Check that another run succeeds and that no leftover file exists."""
        for unfinished in (self.home / "t").rglob(f"*{TEMPORARY_SUFFIX}"):
            # Cleanup deletes temporary files of crashed writers only when they are older than any lock.
            os.utime(unfinished, (0, 0))
        last = self.due()
        self.check(last, self.retry(last, tries=1))
        assert leftovers(LocalStorage(str(self.home / "t"))) == []


def send(child: ForkServerProcess, number: int) -> None:
    """Send a signal to a run; the run may have ended."""
    with suppress(ProcessLookupError):
        os.kill(child.pid or 0, number)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    made = Lake(tmp_path, f"sqlite:///{tmp_path}/catalog.db")
    yield made
    made.finish()


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    with server() as running:
        engine = connect._engine(running.url)
        connect.upgrade(engine)
        engine.dispose()
        yield running


@pytest.fixture
def shared(tmp_path: Path, database: Server) -> Iterator[Lake]:
    """Return a `Lake` with a catalog on a database server."""
    made = Lake(tmp_path, database.url, busy_s=1)
    try:
        yield made
        made.finish()
    finally:
        with made.catalog() as catalog:
            catalog.drop_table("sales.t")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "cleared"])
def test_retry_completes_a_run_that_a_signal_ended(lake: Lake, number: signal.Signals) -> None:
    for _ in range(ROUNDS):
        run_id = lake.due()
        child = lake.start(run_id)
        time.sleep(lake.moment())
        send(child, number)
        lake.check(run_id, lake.report(run_id) if lake.end(child) == 0 else lake.retry(run_id))


def test_suspended_run_changes_nothing_after_its_retry(shared: Lake) -> None:
    lake = shared
    # Fewer rounds, because most of the time is spent on waiting for the suspended run.
    for _ in range(ROUNDS // 4):
        run_id = lake.due()
        child = lake.start(run_id)
        time.sleep(lake.moment())
        send(child, signal.SIGSTOP)
        # The suspended run may hold a transaction or the table lock. Then the second run cannot end before it resumes.
        second = lake.start(run_id)
        second.join(random.uniform(0.2, 0.8) + lake.takes_s)
        send(child, signal.SIGCONT)
        lake.end(second)
        lake.end(child)
        lake.check(run_id, lake.retry(run_id))


def test_suspended_run_and_another_run_report_which_one_executed_the_plan(shared: Lake) -> None:
    """Exactly one of the two runs reports the instant of the compaction."""
    # Fewer rounds, because the test waits for the suspended run and for leases that expire.
    for _ in range(ROUNDS // 4):
        names = [f"{shared.due()}/{n}" for n in (1, 2)]
        child = shared.start(names[0])
        time.sleep(shared.moment())
        send(child, signal.SIGSTOP)
        # The second run starts before or after the lease of the first one expires.
        time.sleep(random.choice([0.0, 1.1]))
        second = shared.start(names[1])
        second.join(random.uniform(0.2, 0.8) + shared.takes_s)
        send(child, signal.SIGCONT)
        shared.end(second)
        shared.end(child)
        reports = [shared.retry(name) for name in names]
        (winner,) = [name for name, report in zip(names, reports, strict=True) if report["instant"]]
        shared.check(winner, shared.report(winner))


def test_run_that_is_started_twice_executes_its_plan_once(lake: Lake) -> None:
    for _ in range(ROUNDS):
        run_id = lake.due()
        children = [lake.start(run_id), lake.start(run_id)]
        for child in children:
            lake.end(child)
        lake.check(run_id, lake.retry(run_id))


def test_concurrent_runs_of_two_schedulers_execute_the_plan_once(lake: Lake) -> None:
    for _ in range(ROUNDS):
        names = [f"{lake.due()}/{n}" for n in (1, 2)]
        children = [lake.start(names[0])]
        time.sleep(random.choice([0.0, lake.moment()]))
        children.append(lake.start(names[1]))
        assert [lake.end(child) for child in children] == [0, 0]
        reports = [lake.report(name) for name in names]
        (winner,) = [n for n, report in zip(names, reports, strict=True) if report["status"] == "committed"]
        (other,) = [report for report in reports if report["status"] != "committed"]
        assert other["status"] == "nothing_to_do" and other["instant"] is None, other
        lake.check(winner)


def test_run_records_its_true_outcome_when_the_catalog_server_restarts(shared: Lake, database: Server) -> None:
    for _ in range(ROUNDS):
        run_id = shared.due()
        child = shared.start(run_id)
        time.sleep(shared.moment())
        database.stop(random.choice([signal.SIGINT, signal.SIGQUIT]))
        time.sleep(random.uniform(0.0, 0.5))
        database.start()
        shared.check(run_id, shared.report(run_id) if shared.end(child) == 0 else shared.retry(run_id))


def test_run_succeeds_at_once_or_by_a_retry_when_the_catalog_is_busy(lake: Lake) -> None:
    lake.busy_s = 0.1
    for _ in range(ROUNDS):
        run_id = lake.due()
        child = lake.start(run_id)
        time.sleep(lake.moment())
        with sqlite3.connect(lake.home / "catalog.db", isolation_level=None, timeout=30) as other:
            other.execute("BEGIN IMMEDIATE")
            time.sleep(random.uniform(0.0, 0.5))
            other.execute("COMMIT")
        other.close()
        lake.check(run_id, lake.report(run_id) if lake.end(child) == 0 else lake.retry(run_id))


def test_died_run_is_reported_as_died_and_the_next_run_succeeds(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", lake.url)
    with lake.catalog() as catalog:
        table_id = catalog.entry("sales.t").id
        catalog.history.request(table_id, "compaction")
        catalog.leases.acquire("sales.t/compaction", "dead", 60_000)
        catalog.history.start("dead", table_id, "compaction")
        assert states(capsys) == ["running"]
        lease = catalog.leases.acquire("sales.t/compaction", "dead", 60_000)
        assert lease is not None
        catalog.leases.release(lease)
        assert states(capsys) == ["died"]
        assert catalog.history.open_requests(table_id, "compaction") == ()
        run_id = lake.due()
        lake.check(run_id, lake.retry(run_id, tries=1))
        dead = catalog.history.run("dead", table_id, "compaction")
        assert dead is not None and dead.state is RunState.DIED
        assert not catalog.history.running()
        # A run that was only suspended reports its outcome later.
        catalog.history.end(
            "dead", table_id, "compaction", RunOutcome(state=RunState.FAILED, error="lost"), try_number=1
        )
        late = catalog.history.run("dead", table_id, "compaction")
        assert late is not None and (late.state, late.error) == (RunState.FAILED, "lost")


def states(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the states of the newest run from `explain`; check that `status` reports the same."""
    capsys.readouterr()
    assert main(["services", "explain", "--table", "sales.t", "--service", "compaction", "--output", "json"]) == 0
    explained = json.loads(capsys.readouterr().out)["services"]["compaction"]["last_runs"][0]["state"]
    assert main(["services", "status", "--output", "json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out)["services"] if row["service"] == "compaction"]
    assert row["last_run"] == explained
    return [explained]
