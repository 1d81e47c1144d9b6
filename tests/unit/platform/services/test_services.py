"""The scheduler on real tables of a real catalog: decisions, runs, and the recorded history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.core.engine.progress import Stage, observed_stage, observing
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Action, State
from lakehouse.model.keys import KeyConfig, KeyGeneratorType, TimestampFormat
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.catalog.run_progress import EVERY_MS, RecordedProgress
from lakehouse.platform.fleet_views.queue import QueueQuery, queue_page
from lakehouse.platform.services.choose import Choice
from lakehouse.platform.services.partition_filter import partitions_in, selected_partitions
from lakehouse.platform.services.run import Runner, run_tables
from lakehouse.platform.services.schedule import decide
from lakehouse.platform.services.service_run import runner
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.job import JobStatus, ServiceReport
from lakehouse.spec.contracts.pages import QueueSection
from lakehouse.spec.job_command import JobCommand, ServiceCommand
from lakehouse.spec.table.services import SERVICES
from tests.support.progress import CountingObserver
from tests.support.tables import SteadyClock

BUSY = {"hoodie.parquet.small.file.limit": "0"}


def rows(*days: str, value: int = 0) -> pa.Table:
    ids = [f"{day}-{n}" for day in days for n in range(3)]
    return pa.table({"id": ids, "day": [day for day in days for _ in range(3)], "v": [value] * len(ids)})


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """Return a catalog of three tables.

    `orders` has log files, `items` has several versions of its base files, and `gone` has lost its properties file.
    """
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    with load_catalog() as opened:
        for name in ("orders", "items", "gone"):
            kind = "COPY_ON_WRITE" if name == "items" else "MERGE_ON_READ"
            table = Table.create(
                str(tmp_path / name), name=name, record_key=["id"], partition_by=["day"], table_type=kind
            )
            for value in range(6):
                table.upsert(rows("2026-03-01", "2026-03-02", value=value))
            opened.register_table(f"sales.{name}", str(tmp_path / name))
        for path in (tmp_path / "gone" / ".hoodie").glob("hoodie.properties*"):
            path.unlink()
        yield opened


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command that must succeed, and return its JSON output."""
    capsys.readouterr()
    assert main(words if "--output" in words else (*words, "--output", "json")) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def by_table(choices: Sequence[Choice], service: str) -> dict[str, Choice]:
    return {c.assessed.table: c for c in choices if c.assessed.service == service}


def test_scheduler_chooses_due_services_and_records_reasons(catalog: Catalog) -> None:
    choices = decide(catalog, SERVICES)
    assert len(choices) == 3 * len(SERVICES)
    compaction = by_table(choices, "compaction")
    assert compaction["sales.orders"].chosen
    # Each of two partitions has a base file and five logs.
    assert compaction["sales.orders"].assessed.assessment.cost.files == 12
    assert compaction["sales.orders"].assessed.assessment.cost.benefit == 10
    assert "no logs to compact" in compaction["sales.items"].reason
    assert "cannot be read: UserError" in compaction["sales.gone"].reason
    assert compaction["sales.gone"].code is DecisionReason.UNREADABLE
    (kept,) = catalog.history.decisions(catalog.entry("sales.orders").id, "compaction")
    assert kept.chosen and kept.inputs["delta_commits"] == 6 and kept.predicted["files"] == 12


def test_run_of_several_tables_continues_after_the_failure_of_one(
    catalog: Catalog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    tables = [word for name in ("gone", "orders", "items") for word in ("--table", f"sales.{name}")]
    assert main(["clean", "run", *tables, "--report", str(report), "--option", "hoodie.clean.commits.retained=1"]) == 64
    printed = json.loads(report.read_text())
    assert [part["status"] for part in printed["parts"]] == ["failed", "nothing_to_do", "committed"]
    assert printed["error"]["message"].startswith("1 of 3 tables: sales.gone: UserError")
    history = catalog.history
    states = {name: history.runs(catalog.entry(f"sales.{name}").id, "clean") for name in ("gone", "orders", "items")}
    assert {name: str(found[0].state) for name, found in states.items()} == {
        "gone": "failed",
        "orders": "nothing_to_do",
        "items": "committed",
    }
    assert states["items"][0].actual["files"] > 0 and "no .hoodie/hoodie.properties" in str(states["gone"][0].error)


def test_run_has_a_prediction_a_result_and_an_explanation(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "services", "due", "--service", "compaction", "--output", "json")
    assert found["batches"] == {"compaction": [["sales.orders"]]}
    before = Table.open(catalog.entry("sales.orders").location).scan().to_arrow()
    run(capsys, "compaction", "run", "--table", "sales.orders", "--run-id", "r1")
    after = Table.open(catalog.entry("sales.orders").location)
    assert after.scan().to_arrow().sort_by("id").select(["id", "v"]) == before.sort_by("id").select(["id", "v"])
    assert len(after.timeline.where(action=Action.COMMIT, state=State.COMPLETED)) == 1
    explain = ("services", "explain", "--table", "sales.orders")
    explained = run(capsys, *explain, "--service", "compaction", "--output", "json")
    (last,) = explained["services"]["compaction"]["last_runs"]
    assert last["run"] == "r1" and last["state"] == "committed" and last["tries"] == 1
    assert last["predicted"]["files"] == 12 and last["actual"]["files"] == 2
    assert explained["services"]["compaction"]["decision"]["due"]
    again = run(capsys, "services", "due", "--service", "compaction", "--output", "json")
    assert again["batches"] == {"compaction": []}
    rows = run(capsys, "services", "status", "--output", "json")
    assert {"sales.orders", "sales.gone"} <= {row["table"] for row in rows["services"]}
    assert main([*explain]) == 0
    assert "last runs" in capsys.readouterr().out


def test_active_run_has_its_progress_in_the_catalog_and_in_the_queue(catalog: Catalog) -> None:
    command = ServiceCommand(service="compaction", table="sales.orders", run_id="r1")
    seen: list[dict[str, Any]] = []

    def observed(table: Table, given: JobCommand) -> ServiceReport:
        stage = Stage(name="compaction", table=table.name, unit="file group", total=4)
        with observed_stage(stage) as running:
            running.report(lambda observer: observer.advanced(stage, 3, 0))
            with catalog.database.reading() as session:
                page = queue_page(session, QueueQuery(section=QueueSection.RUNNING), catalog.clock.now_ms())
                seen.extend(dict(line.progress) for line in page.runs)
        return ServiceReport(status=JobStatus.NOTHING_TO_DO, table=table.name)

    outer = CountingObserver()
    with observing(outer):
        run_tables(catalog, ["sales.orders"], command, observed)
    # Three groups are done, but the progress was written less than ten seconds ago.
    assert seen == [{"stage": "compaction", "unit": "file group", "done": 0, "total": 4}]
    assert outer.units["compaction"] == 3, "the observer of the caller still sees the progress"


def test_progress_is_written_at_the_begin_of_a_stage_and_then_every_ten_seconds() -> None:
    written: list[int] = []
    clock = SteadyClock()
    shown = RecordedProgress(lambda progress: written.append(progress["done"]), clock)
    stage = Stage(name="clustering", table="orders", unit="file group", total=9)
    shown.started(stage)
    for _ in range(3):
        shown.advanced(stage, 1, 0)
    clock.now += EVERY_MS
    shown.advanced(stage, 1, 0)
    shown.advanced(stage, 1, 0)
    shown.ended(stage, failed=False)
    assert written == [0, 4]


def test_progress_that_the_catalog_refuses_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: Mapping[str, Any]) -> None:
        raise RetryableError("the catalog does not answer")

    shown = RecordedProgress(refuse, SteadyClock())
    stage = Stage(name="clean", table="orders", unit="file", total=2)
    shown.started(stage)
    shown.started(stage)
    assert len(caplog.records) == 1
    assert "orders: the progress of the run is not written any more" in caplog.text


def test_run_skips_a_table_with_an_active_run(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    entry = catalog.entry("sales.orders")
    with catalog.leases.held("sales.orders/compaction", "other", 60_000):
        catalog.history.start("other", entry.id, "compaction")
        report = run(capsys, "compaction", "run", "--table", "sales.orders")
        assert report["status"] == "nothing_to_do" and "run other is active" in report["reason"]
        assert main(["compaction", "run", "--table", "sales.orders", "--force"]) == 75
        assert "try the requested run again after it" in capsys.readouterr().err
        waiting = by_table(decide(catalog, ["compaction", "clustering"], force=True), "clustering")["sales.orders"]
        assert waiting.code is DecisionReason.FILE_GROUPS_HELD
        assert waiting.reason == "compaction runs on this table, and both hold file groups"
    # The lease of the other run has expired, so the run has died.
    number = catalog.history.request(entry.id, "compaction")
    catalog.history.start("other", entry.id, "compaction")
    assert not catalog.history.open_requests(entry.id, "compaction")
    choice = by_table(decide(catalog, ["clustering", "compaction"]), "compaction")["sales.orders"]
    assert choice.chosen and choice.code is DecisionReason.REQUESTED
    (died,) = catalog.history.runs(entry.id, "compaction")
    assert (str(died.state), [request.id for request in catalog.history.open_requests(entry.id, "compaction")]) == (
        "died",
        [number],
    )
    assert by_table(decide(catalog, ["compaction"]), "compaction")["sales.orders"].chosen
    assert run(capsys, "compaction", "run", "--table", "sales.orders")["status"] == "committed"


def test_requested_service_runs_even_if_it_is_not_due(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("services", "request", "--table", "sales.orders", "--service", "compaction", "--by", "ada")
    run(capsys, "compaction", "run", "--table", "sales.orders")
    Table.open(catalog.entry("sales.orders").location).upsert(rows("2026-03-01", "2026-03-02", value=9))
    assert not by_table(decide(catalog, ["compaction"]), "compaction")["sales.orders"].chosen
    run(capsys, *words, "--partition", "2026-03-02", "--output", "json")
    choice = by_table(decide(catalog, ["compaction"]), "compaction")["sales.orders"]
    assert choice.chosen and choice.code is DecisionReason.REQUESTED
    report = run(capsys, "compaction", "run", "--table", "sales.orders")
    assert report["status"] == "committed" and report["files"] == 1
    assert catalog.history.open_requests(catalog.entry("sales.orders").id, "compaction") == ()


def test_committed_run_stays_committed_after_a_failed_retry(catalog: Catalog) -> None:
    """The results of later tries do not replace the recorded commit."""
    command = ServiceCommand(service="compaction", table="sales.orders", run_id="run")

    def fails(*_: Any) -> ServiceReport:
        raise RetryableError("the executor of the plan is active")

    def tried(how: Runner) -> ServiceReport:
        (report,) = run_tables(catalog, ["sales.orders"], command, how)
        return report

    made = tried(runner("compaction"))
    assert made.status is JobStatus.COMMITTED and made.instant is not None
    assert tried(fails).status is JobStatus.FAILED
    for _ in range(2):
        again = tried(runner("compaction"))
        assert (again.status, again.instant) == (JobStatus.NOTHING_TO_DO, made.instant)
        (recorded,) = catalog.history.runs(catalog.entry("sales.orders").id, "compaction")
        assert (recorded.state, recorded.instant) == (RunState.COMMITTED, made.instant)


def test_service_run_is_limited_to_partitions_or_to_an_interval(
    catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    interval = ("--interval-start", "2026-03-02T00:00:00", "--interval-end", "2026-03-03T00:00:00")
    table = ("--table", "sales.orders", "--force")
    assert run(capsys, "compaction", "run", *table, *interval)["files"] == 1
    outside = ("--interval-start", "2025-03-02T00:00:00", "--interval-end", "2025-03-03T00:00:00")
    assert "no partition is in the interval" in run(capsys, "compaction", "run", *table, *outside)["reason"]
    assert main(["compaction", "run", *table, "--partition", "2026-04-01"]) == 64
    assert "has no partition '2026-04-01'" in capsys.readouterr().err
    assert main(["clean", "run", *table, "--partition", "2026-03-01"]) == 64
    assert "clean works on whole tables" in capsys.readouterr().err
    assert main(["compaction", "run", *table, "--table", str(Path(catalog.entry("sales.items").location))]) == 64
    assert "must be catalog names" in capsys.readouterr().err


def test_selected_partitions_contains_all_partitions_of_a_long_list(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), name="t", record_key="id", partition_by="hour", table_type="MERGE_ON_READ")
    hours = [f"2026-{month:02d}-{day:02d}-{hour:02d}" for month in (1, 2) for day in (1, 2, 3) for hour in range(24)]
    table.upsert(pa.table({"id": hours, "hour": [f"region=north-west/{hour}" for hour in hours]}))
    command = ServiceCommand(service="compaction", table="t", partitions=tuple(table.partitions()))
    assert selected_partitions("compaction", table, command) == tuple(table.partitions())
    one = ServiceCommand(service="compaction", table="t", partitions=(table.partitions()[0],))
    assert selected_partitions("compaction", table, one) == (table.partitions()[0],)


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (
            ["day=2026-02-28", "day=2026-03-01", "day=2026-03-31", "day=2026-04-01"],
            ["day=2026-03-01", "day=2026-03-31"],
        ),
        (["2026/02/28", "2026/03/01"], ["2026/03/01"]),
        (["region=eu/dt=20260315", "other"], ["region=eu/dt=20260315"]),
        (["month=2026-03", "month=2026-02"], ["month=2026-03"]),
    ],
)
def test_partitions_of_an_interval_are_selected_by_dates_in_paths(partitions: list[str], expected: list[str]) -> None:
    march = ServiceCommand(
        service="clustering", table="t", interval_start="2026-03-01", interval_end="2026-04-01"
    ).interval
    assert march is not None
    assert partitions_in(partitions, march) == expected
    with pytest.raises(UserError, match="no partition path contains a date"):
        partitions_in(["region=eu"], march)


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (["2026-03-01-06", "2026-03-01-07", "2026-03-01-08"], ["2026-03-01-07"]),
        (["at=2026030106", "at=2026030107"], ["at=2026030107"]),
        (["day=2026-03-01/hour=06", "day=2026-03-01/hour=7"], ["day=2026-03-01/hour=7"]),
        (["day=2026-03-01/store=07", "day=2026-03-02/store=07"], ["day=2026-03-01/store=07"]),
        (["dt=2026-03-01", "dt=2026-02-28"], ["dt=2026-03-01"]),
        (["9999-12-31-23", "2026-03-01T07"], ["2026-03-01T07"]),
    ],
)
def test_partitions_of_an_hour_are_selected_by_times_in_paths(partitions: list[str], expected: list[str]) -> None:
    command = ServiceCommand(
        service="compaction",
        table="t",
        interval_start="2026-03-01T07:00:00+00:00",
        interval_end="2026-03-01T08:00:00+00:00",
    )
    assert command.interval is not None
    assert partitions_in(partitions, command.interval) == expected


@pytest.mark.parametrize("pattern", ["%Y-%m-%d-%H", "day=%Y-%m-%d/hour=%H"])
def test_each_hour_of_a_day_selects_the_partition_of_this_hour(pattern: str) -> None:
    first, hour = datetime(2026, 3, 1, tzinfo=UTC), timedelta(hours=1)
    partitions = [f"{first + number * hour:{pattern}}" for number in range(-2, 26)]
    for number in range(24):
        interval = first + number * hour, first + (number + 1) * hour
        assert partitions_in(partitions, interval) == [partitions[number + 2]]


def test_partitions_of_an_hour_are_selected_by_the_field_and_the_format_of_the_table() -> None:
    hour = (datetime(2026, 3, 1, 7, tzinfo=UTC), datetime(2026, 3, 1, 8, tzinfo=UTC))
    simple = KeyConfig(
        generator=KeyGeneratorType.COMPLEX, record_key_fields=("id",), partition_fields=("day", "event_hour")
    )
    paths = ["2026-03-01/06", "2026-03-01/07"]
    assert partitions_in(paths, hour, simple) == ["2026-03-01/07"]
    assert partitions_in(paths, hour) == paths, "without names a second level may be anything"
    zoned = KeyConfig(
        generator=KeyGeneratorType.TIMESTAMP,
        record_key_fields=("id",),
        partition_fields=("ts",),
        partition_types=("TIMESTAMP",),
        timestamp=TimestampFormat(type="EPOCHMILLISECONDS", output_format="yyyy/MM/dd/HH", output_timezone="+02:00"),
    )
    assert partitions_in(["2026/03/01/07", "2026/03/01/09"], hour, zoned) == ["2026/03/01/09"]


def test_deadline_counts_from_the_time_at_which_the_service_became_due(catalog: Catalog) -> None:
    catalog.set_policy("sales.orders", "compaction", {"deadline": "2h"})
    catalog = Catalog(catalog.database, SteadyClock(step_ms=0))
    first = by_table(decide(catalog, ["compaction"]), "compaction")["sales.orders"].assessed.deadline_ms
    again = by_table(decide(catalog, ["compaction"]), "compaction")["sales.orders"].assessed.deadline_ms
    assert first == again == catalog.clock.now_ms() + 7_200_000
    catalog.set_policy("sales", "compaction", {"enabled": False})
    assert "switched off" in by_table(decide(catalog, ["compaction"]), "compaction")["sales.orders"].reason
