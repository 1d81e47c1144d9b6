"""Runs of a service that are killed, suspended, doubled or cut off from the catalog: each plan is executed once.

Each round makes a table due, starts its compaction in a process of its own, and does one thing to it at a moment drawn
from the time that a run takes. Then the run is tried again under its own id, as Airflow does, until a try ends well.
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

ROUNDS = 20 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1"))
RETRYABLE = 75
LEASE_MS = 1000
KEYS = 12
#: Every commit makes the table due, and who gives no sign of life for 0.3 s is taken for dead.
OPTIONS = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.client.heartbeat.interval_in_ms": "100",
    "hoodie.write.lock.wait_time_ms": "2000",
}


def compact(url: str, run_id: str, report: str, busy_s: float) -> None:
    """Run the compaction of the table, as `lakehouse compaction run` does; for a process of its own."""
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
    """A merge-on-read table of a catalog, what its rows must be, and the compactions that were seen on it."""

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
            # The first one also starts the server of processes.
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
        # Rows that are there get logs.
        changed = {f"{n}": self.rounds for n in random.sample(range(KEYS), 4 if self.rows else KEYS)}
        ids = list(changed)
        table.upsert(pa.table({"id": ids, "p": [str(int(i) % 2) for i in ids], "v": list(changed.values())}))
        self.rows |= changed

    def due(self) -> str:
        """Change some rows, so that the table is due; return the id of the run that is to come."""
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
        """Return the last lines of what the runs of this round logged."""
        return [
            line
            for path in self.home.rglob(f"services.compaction/{self.rounds}/**/*.log")
            for line in path.read_text().splitlines()[-60:]
        ]

    def moment(self) -> float:
        return random.uniform(0.0, self.takes_s)

    def retry(self, run_id: str, tries: int = 40) -> dict[str, Any]:
        """Try a run again until it ends well, as Airflow does; return its report."""
        for _ in range(tries):
            if self.end(self.start(run_id)) == 0:
                return self.report(run_id)
            time.sleep(0.1)
        raise AssertionError("no try ended well")

    def report(self, run_id: str) -> dict[str, Any]:
        return dict(json.loads((self.home / f"{run_id}.json").read_text()))

    def compactions(self) -> list[str]:
        return [i.requested for i, metadata in self.table.commits() if metadata.operation == Operation.COMPACT]

    def run(self, run_id: str) -> Run | None:
        with self.catalog() as catalog:
            return catalog.history.run(run_id, catalog.entry("sales.t").id, "compaction")

    def check(self, run_id: str, report: dict[str, Any] | None = None) -> None:
        """Check that there is one compaction more, that it is this run's, and that nothing else changed."""
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
        # A lease that could not be released, because the catalog did not answer, expires.
        with self.catalog() as catalog:
            assert until(lambda: catalog.leases.holder("sales.t/compaction") is None)

    def finish(self) -> None:
        """Check that another run has its turn, and that no file is left over."""
        for unfinished in (self.home / "t").rglob(f"*{TEMPORARY_SUFFIX}"):
            # What somebody died over while writing to the timeline goes when it is older than a lock may be.
            os.utime(unfinished, (0, 0))
        last = self.due()
        self.check(last, self.retry(last, tries=1))
        assert leftovers(LocalStorage(str(self.home / "t"))) == []


def send(child: ForkServerProcess, number: int) -> None:
    """Send a signal to a run, which may be over."""
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
    """The same with a catalog on a server."""
    made = Lake(tmp_path, database.url, busy_s=1)
    try:
        yield made
        made.finish()
    finally:
        with made.catalog() as catalog:
            catalog.drop_table("sales.t")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "cleared"])
def test_a_run_that_is_ended_while_it_runs_is_finished_by_its_retry(lake: Lake, number: signal.Signals) -> None:
    for _ in range(ROUNDS):
        run_id = lake.due()
        child = lake.start(run_id)
        time.sleep(lake.moment())
        send(child, number)
        lake.check(run_id, lake.report(run_id) if lake.end(child) == 0 else lake.retry(run_id))


def test_a_suspended_run_that_its_retry_overtook_changes_nothing(shared: Lake) -> None:
    lake = shared
    # Most of this is waiting for who is suspended.
    for _ in range(ROUNDS // 4):
        run_id = lake.due()
        child = lake.start(run_id)
        time.sleep(lake.moment())
        send(child, signal.SIGSTOP)
        # Whoever is suspended within a transaction, or under the table's lock, is waited for in vain.
        second = lake.start(run_id)
        second.join(random.uniform(0.2, 0.8) + lake.takes_s)
        send(child, signal.SIGCONT)
        lake.end(second)
        lake.end(child)
        lake.check(run_id, lake.retry(run_id))


def test_a_suspended_run_that_another_run_overtook_is_told_so(shared: Lake) -> None:
    """The plan is the other run's, or it was the first one's before: each says what is true of it."""
    # Likewise, and for leases that run out.
    for _ in range(ROUNDS // 4):
        names = [f"{shared.due()}/{n}" for n in (1, 2)]
        child = shared.start(names[0])
        time.sleep(shared.moment())
        send(child, signal.SIGSTOP)
        # Until the lease of the first one is over, the other one leaves the table to it.
        time.sleep(random.choice([0.0, 1.1]))
        second = shared.start(names[1])
        second.join(random.uniform(0.2, 0.8) + shared.takes_s)
        send(child, signal.SIGCONT)
        shared.end(second)
        shared.end(child)
        reports = [shared.retry(name) for name in names]
        (winner,) = [name for name, report in zip(names, reports, strict=True) if report["instant"]]
        shared.check(winner, shared.report(winner))


def test_a_run_that_is_started_twice_at_once_runs_once(lake: Lake) -> None:
    for _ in range(ROUNDS):
        run_id = lake.due()
        children = [lake.start(run_id), lake.start(run_id)]
        for child in children:
            lake.end(child)
        lake.check(run_id, lake.retry(run_id))


def test_of_two_schedulers_that_start_runs_at_once_one_executes_the_plan(lake: Lake) -> None:
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


def test_a_catalog_whose_server_restarts_ends_no_run_untruly(shared: Lake, database: Server) -> None:
    for _ in range(ROUNDS):
        run_id = shared.due()
        child = shared.start(run_id)
        time.sleep(shared.moment())
        database.stop(random.choice([signal.SIGINT, signal.SIGQUIT]))
        time.sleep(random.uniform(0.0, 0.5))
        database.start()
        shared.check(run_id, shared.report(run_id) if shared.end(child) == 0 else shared.retry(run_id))


def test_a_catalog_that_is_busy_delays_a_run_or_has_it_tried_again(lake: Lake) -> None:
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


def test_a_run_that_died_is_shown_as_such_and_what_was_asked_of_it_is_asked_again(
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
        # A run that was only suspended tells how it ended.
        catalog.history.end(
            "dead", table_id, "compaction", RunOutcome(state=RunState.FAILED, error="lost"), try_number=1
        )
        late = catalog.history.run("dead", table_id, "compaction")
        assert late is not None and (late.state, late.error) == (RunState.FAILED, "lost")


def states(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the states of the newest run as `explain` and `status` show them, if they agree once."""
    capsys.readouterr()
    assert main(["services", "explain", "sales.t", "--service", "compaction", "--output", "json"]) == 0
    explained = json.loads(capsys.readouterr().out)["services"]["compaction"]["last_runs"][0]["state"]
    assert main(["services", "status", "--output", "json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out)["services"] if row["service"] == "compaction"]
    assert row["last_run"] == explained
    return [explained]
