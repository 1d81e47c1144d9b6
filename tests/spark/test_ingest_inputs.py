"""Several ingestions fill one table: each has its source, checkpoint and ordering column, and may run at any time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehouse import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.replay import run_replay
from lakehouse.platform.ingest.run import CHECKPOINT, DEAD_LETTERS, run_ingest
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand, ReplayCommand
from lakehouse.spec.sources.ingest_inputs import InputSpec
from lakehouse.spec.table.table_spec import load_spec

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[2] / "dags" / "examples" / "wide" / "trips.yaml"
COLUMNS = ("rider", "city", "fare", "amount")


class Trips:
    """The landing folders, and the table that three inputs fill."""

    def __init__(self, session: Any, home: Path) -> None:
        self.session, self.home = session, home
        self.spec = load_spec(EXAMPLE)
        for name in self.spec.inputs:
            (home / "landing" / name).mkdir(parents=True)

    def land(self, name: str, file: str, *rows: dict[str, Any]) -> None:
        """Write a file with rows for one input."""
        (self.home / "landing" / name / f"{file}.json").write_text("\n".join(json.dumps(row) for row in rows))

    def ingest(self, name: str) -> IngestReport:
        """Run the ingestion of one input."""
        command = IngestCommand(table="trips.yaml", input=name, run_id="same id")
        environ = {"LAKEHOUSE_HOME": str(self.home)}
        return run_ingest(self.session, self.spec.of_input(name), command, environ=environ)

    @property
    def table(self) -> Table:
        """Return the table."""
        return Table.open(str(self.home / "lake" / "trips"))

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each trip."""
        found = self.table.scan().to_arrow().to_pylist()
        assert len({row["trip_id"] for row in found}) == len(found)
        return {row["trip_id"]: tuple(row.get(name) for name in COLUMNS) for row in found}


@pytest.fixture
def trips(spark: Any, tmp_path: Path) -> Trips:
    return Trips(spark, tmp_path)


def test_inputs_that_run_at_once_fill_their_columns(trips: Trips) -> None:
    trips.land("riders", "1", {"trip_id": "t1", "rider_at": 5, "rider": "Ada", "city": "Rome"})
    trips.land(
        "orders", "1", {"trip_id": "t1", "order_at": 7, "fare": 9.5}, {"trip_id": "t2", "order_at": 1, "fare": 3.0}
    )
    trips.land("payments", "1", {"trip_id": "t2", "paid_at": 2, "amount": 3.0})
    # The first commit creates the table.
    trips.ingest("orders")
    with ThreadPoolExecutor(2) as threads:
        reports = list(threads.map(trips.ingest, ("riders", "payments")))
    assert [(report.status, report.rows) for report in reports] == [(JobStatus.COMMITTED, 1)] * 2
    assert trips.rows() == {"t1": ("Ada", "Rome", 9.5, None), "t2": (None, None, 3.0, 3.0)}


def test_each_input_continues_from_its_own_checkpoint(trips: Trips) -> None:
    trips.land("orders", "1", {"trip_id": "t1", "order_at": 7, "fare": 9.5})
    trips.land("payments", "1", {"trip_id": "t1", "paid_at": 8, "amount": 1.0})
    assert trips.ingest("orders").status is JobStatus.COMMITTED
    assert trips.ingest("payments").status is JobStatus.COMMITTED
    again = trips.ingest("orders")
    assert (again.status, again.instant) == (JobStatus.NOTHING_TO_DO, trips.table.commits()[0][0].requested)
    trips.land("orders", "2", {"trip_id": "t1", "order_at": 9, "fare": 11.0})
    assert trips.ingest("orders").rows == 1
    assert trips.rows() == {"t1": (None, None, 11.0, 1.0)}
    keys = [key for _, commit in trips.table.commits() for key in commit.extra if key.startswith(CHECKPOINT)]
    assert keys == [f"{CHECKPOINT}.orders", f"{CHECKPOINT}.payments", f"{CHECKPOINT}.orders"]


def test_late_rows_and_deletes_of_one_side_leave_the_other_sides_alone(trips: Trips) -> None:
    trips.land("orders", "1", {"trip_id": "t1", "order_at": 7, "fare": 9.5})
    ada = {"trip_id": "t1", "rider_at": 5, "rider": "Ada", "city": "Rome"}
    trips.land("riders", "1", ada, {"trip_id": "t2", "rider_at": 3, "rider": "Cy", "city": "Bern"})
    for name in ("orders", "riders"):
        trips.ingest(name)
    trips.land("orders", "2", {"trip_id": "t1", "order_at": 6, "fare": 1.0})
    # A file of deletes may lack the columns; in the same file, a row that lacks them keeps the stored values.
    trips.land(
        "riders", "2", {"trip_id": "t1", "rider_at": 8, "_hoodie_is_deleted": True}, {"trip_id": "t2", "rider_at": 4}
    )
    for name in ("orders", "riders"):
        trips.ingest(name)
    kept = {"t2": ("Cy", "Bern", None, None)}
    assert trips.rows() == {"t1": (None, None, 9.5, None), **kept}
    # A row that is older than the delete does not bring the values back; a newer one does.
    trips.land("riders", "3", {"trip_id": "t1", "rider_at": 6, "rider": "A.", "city": "?"})
    trips.ingest("riders")
    assert trips.rows() == {"t1": (None, None, 9.5, None), **kept}
    trips.table.services.compaction.run(force=True)
    trips.land("riders", "4", {"trip_id": "t1", "rider_at": 9, "rider": "Bo", "city": "Oslo"})
    trips.ingest("riders")
    assert trips.rows() == {"t1": ("Bo", "Oslo", 9.5, None), **kept}


def test_each_input_replays_its_own_dead_letters(trips: Trips) -> None:
    for name in ("riders", "orders"):
        (trips.home / "landing" / name / "1.json").write_text('{"trip_id": "t1", ')
        trips.spec = replace(trips.spec, inputs={**trips.spec.inputs, name: tolerant(trips.spec.inputs[name])})
        assert trips.ingest(name).bad_records == 1
    command = ReplayCommand(table="trips.yaml", input="riders", force=True)
    spec, environ = trips.spec.of_input("riders"), {"LAKEHOUSE_HOME": str(trips.home)}
    report = run_replay(trips.session, spec, command, environ=environ)
    (folder,) = report.folders
    assert (report.bad_records, report.rows) == (1, 0)
    named = {name: trips.table.last_commit_extra(f"{DEAD_LETTERS}.{name}") for name in ("riders", "orders")}
    assert folder == named["riders"] != named["orders"]


def tolerant(one: InputSpec) -> InputSpec:
    return replace(one, ingest=replace(one.ingest, max_bad_records=5))


def test_spec_with_inputs_needs_the_name_of_one(trips: Trips) -> None:
    command = IngestCommand(table="trips.yaml")
    with pytest.raises(UserError, match="several inputs: choose one of riders, orders, payments"):
        run_ingest(trips.session, trips.spec, command, environ={"LAKEHOUSE_HOME": str(trips.home)})
