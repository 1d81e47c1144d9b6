"""Merge-on-read tables of specs: creation, ingestion, compaction by the command line, custom mergers."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.functions import lit

from demo.sample_data import generate
from lakehouse.cli.main import main
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spark import register
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import load_spec

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[2]
MERGER = "mergers.retention:merge"
RIDES = """
table: orders
location: ${LAKEHOUSE_HOME}/orders
type: MERGE_ON_READ
record_key: order_id
ordering: [updated_at, status]
partition_by: order_date
options: {hoodie.parquet.small.file.limit: 0}
ingest: {path: "landing/orders/{start:%Y-%m-%d}/{start:%H}.json"}
"""


def run(spark: Any, spec: Path, home: Path, start: str, end: str) -> IngestReport:
    command = IngestCommand(table=str(spec), interval_start=start, interval_end=end)
    return run_ingest(spark, load_spec(spec), command, environ={"LAKEHOUSE_HOME": str(home)})


def command_line(home: Path, *words: str, submit: tuple[str, ...] = (), **environ: str) -> str:
    """Return the output of `lakehouse ...` in a new process; with `submit`, spark-submit starts it."""
    application = [str(Path(sys.executable).with_name("spark-submit")), *submit] if submit else [sys.executable]
    environ |= {"LAKEHOUSE_HOME": str(home), "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])}
    done = subprocess.run(
        [*application, str(REPOSITORY / "lakehouse" / "__main__.py"), *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def orders(table: Table, **scan: Any) -> dict[str, tuple[str, float]]:
    rows = table.scan(["order_id", "status", "fare"], **scan).to_arrow().to_pylist()
    assert len(rows) == len({row["order_id"] for row in rows})
    return {row["order_id"]: (row["status"], row["fare"]) for row in rows}


def test_rides_are_ingested_into_logs_and_compacted_by_the_command_line(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path / "landing", hours=4, orders_per_hour=60, seed=7)
    spec = tmp_path / "orders.yaml"
    spec.write_text(RIDES)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    assert main(["table", "create", "--table", str(spec), "--output", "json"]) == 0
    newest: dict[str, tuple[str, str, float]] = {}
    for hour in range(4):
        run(spark, spec, tmp_path, f"2026-01-01T{hour:02}:00:00", f"2026-01-01T{hour + 1:02}:00:00")
        for line in (tmp_path / f"landing/orders/2026-01-01/{hour:02}.json").read_text().splitlines():
            event = json.loads(line)
            order, version = event["order_id"], (event["updated_at"], event["status"])
            if order not in newest or version >= newest[order][:2]:
                newest[order] = (*version, event["fare"])
    table = Table.open(str(tmp_path / "orders"))
    assert table.config.merge_rule.ordering == ("updated_at", "status")
    expected = {order: (status, fare) for order, (_, status, fare) in newest.items()}
    order = min(order for order, (status, _) in expected.items() if status == "completed")
    assert orders(table) == expected
    assert orders(table, read_optimized=True) != expected
    assert any(file_slice.logs for file_slice in table.scan().plan().plan.slices)
    capsys.readouterr()
    assert main(["compaction", "plan", "--table", str(spec), "--force", "--output", "json"]) == 0
    planned = json.loads(capsys.readouterr().out)["instant"]
    # A writer does not wait for the plan, and the compaction keeps its rows.
    stored = table.scan(where=f"order_id = '{order}'").to_spark(spark)
    table.upsert(stored.withColumns({"status": lit("voided"), "fare": lit(0.0)}))
    expected[order] = ("voided", 0.0)
    report = json.loads(command_line(tmp_path, "compaction", "run", "--table", str(spec), "--output", "json"))
    assert (report["status"], report["instant"]) == ("committed", planned)
    assert orders(Table.open(table.location)) == expected
    assert command_line(tmp_path, "compaction", "due", "--table", str(spec), "--output", "json").startswith("{")
    assert main(["table", "read", "--table", str(spec), "--where", f"order_id = '{order}'", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["status"] == "voided"


DAYS, USERS = 5, 40
RETENTION = """
SELECT day, count_if(active & 1 > 0) AS users,
  count_if(active & 1 > 0 AND active & 2 > 0) AS one, count_if(active & 1 > 0 AND active & 8 > 0) AS three
FROM retention GROUP BY day HAVING users > 0
"""


def activity(root: Path) -> list[set[str]]:
    """Write five days of visits, some users several times a day, and return the active users of each day."""
    draw = random.Random(3)
    seen = []
    for day in range(DAYS):
        visits = [f"u{draw.randrange(USERS):03d}" for _ in range(USERS)]
        folder = root / f"landing/activity/2026-01-{day + 1:02d}"
        folder.mkdir(parents=True)
        lines = [json.dumps({"user_id": user, "day": f"2026-01-{day + 1:02d}"}) for user in visits]
        (folder / "visits.json").write_text("\n".join(lines) + "\n")
        seen.append(set(visits))
    return seen


def counted(seen: list[set[str]]) -> dict[str, tuple[int, int, int]]:
    """Return for each day the numbers of users, of users active a day later, and of users active three days later."""
    after = [*seen, *([set()] * 3)]
    return {
        f"2026-01-{day + 1:02d}": (len(users), len(users & after[day + 1]), len(users & after[day + 3]))
        for day, users in enumerate(seen)
    }


@pytest.fixture
def mergers(tmp_path: Path) -> Path:
    """The archive with mergers that a job sends to workers."""
    return Path(shutil.make_archive(str(tmp_path / "mergers"), "zip", REPOSITORY / "dags/examples", "mergers"))


def test_retention_tags_of_five_days_equal_a_naive_count(
    spark: Any, tmp_path: Path, mergers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Like spark-submit with --py-files: the archive is on the path of the driver and of workers.
    spark.sparkContext.addPyFile(str(mergers))
    spec = REPOSITORY / "dags/examples/mergers/retention.yaml"
    seen = activity(tmp_path)
    for day in (0, 1, 3, 2, 4, 2):
        report = run(spark, spec, tmp_path, f"2026-01-{day + 1:02d}", f"2026-01-{day + 2:02d}")
        assert report.rows in (0, 7 * len(seen[day]))
    table = Table.open(str(tmp_path / "lake/retention"), allowed_functions=[MERGER])
    slices = [s for s in table.scan().plan().plan.slices if s.partition == "2026-01-01"]
    assert sum(len(s.logs) for s in slices) >= DAYS - 1

    def counts(frame: Any) -> dict[str, tuple[int, int, int]]:
        frame.createOrReplaceTempView("retention")
        return {row.day: (row.users, row.one, row.three) for row in spark.sql(RETENTION).collect()}

    assert counts(table.scan(["day", "active"]).to_spark(spark)) == counted(seen)
    register(spark)
    reader = spark.read.format("lakehouse")
    assert counts(reader.option("allowed_functions", MERGER).load(table.location)) == counted(seen)
    with pytest.raises(Exception, match=r"'mergers\.retention:merge', which the table names"):
        spark.read.format("lakehouse").load(table.location).collect()
    table.services.compaction.run(force=True, spark=spark)
    assert counts(table.scan(["day", "active"], read_optimized=True).to_spark(spark)) == counted(seen)


def test_merger_that_workers_lack_is_reported_with_a_hint(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here_alone.py").write_text("def merge(older, newer):\n    return newer\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = Table.create(
        str(tmp_path / "t"), name="t", record_key=["id"], table_type="MERGE_ON_READ", merger="here_alone:merge"
    )
    for value in (1, 2):
        table.upsert(pa.table({"id": ["a"], "value": [value]}))
    with pytest.raises(UserError, match=r"'here_alone:merge' cannot be loaded.*PYTHONPATH.*--py-files"):
        table.services.compaction.run(force=True, spark=spark)
    with pytest.raises(Exception, match=r"'here_alone:merge' cannot be loaded"):
        table.scan().to_spark(spark).collect()
    # The plan stays scheduled for an executor that has the merger.
    assert table.services.compaction.run().metadata.stats[0].num_writes == 1
    assert table.scan(["value"], read_optimized=True).to_arrow().column(0).to_pylist() == [2]


@pytest.mark.slow
def test_compaction_job_sends_the_merger_to_workers(
    tmp_path: Path, mergers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "lake/retention")
    spec = ("--table", str(REPOSITORY / "dags/examples/mergers/retention.yaml"))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "dags/examples"))
        patch.setenv("LAKEHOUSE_HOME", str(tmp_path))
        assert main(["table", "create", *spec]) == 0
        options = load_spec(Path(spec[1])).write_options()
        for bit, users in ((1, "ab"), (2, "bc")):
            rows = [{"user_id": user, "day": "2026-01-01", "active": bit} for user in users]
            Table.open(location, options=options, allowed_functions=[MERGER]).upsert(pa.Table.from_pylist(rows))
    submit = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--py-files", str(mergers))
    report = tmp_path / "report.json"
    command_line(tmp_path, "compaction", "run", *spec, "--force", "--report", str(report), submit=submit)
    assert json.loads(report.read_text())["status"] == "committed"
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "dags/examples"))
        table = Table.open(location, allowed_functions=[MERGER])
        compacted = table.scan(["user_id", "active"], read_optimized=True).to_arrow().to_pylist()
    assert {row["user_id"]: row["active"] for row in compacted} == {"a": 1, "b": 3, "c": 2}
