"""Dead letters of files are parsed again after their cause was repaired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.replay import run_replay
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import command_of
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import file_ingest

pytestmark = pytest.mark.spark
LARGE = 3_000_000_000


def spec_of(root: Path, format: str) -> TableSpec:
    """Return the spec of a table that ingests files of the folder `landing`."""
    (root / "landing").mkdir()
    return TableSpec(
        table="t",
        location=str(root / "table"),
        record_key=("id",),
        ordering=("ts",),
        schema={"id": "string", "n": "int", "ts": "bigint"},
        ingest=file_ingest(path=f"{root}/landing/", format=format, max_bad_records=10),
    )


def run(spark: SparkSession, spec: TableSpec, action: str) -> IngestReport:
    """Run an ingestion or a replay."""
    command = command_of("ingest", action, table="x")
    return (run_replay if action == "replay" else run_ingest)(spark, spec, command, environ={})


def rows(spec: TableSpec) -> dict[str, int]:
    """Return `n` of each row by key."""
    return {row["id"]: row["n"] for row in Table.open(spec.location).scan(columns=["id", "n"]).to_arrow().to_pylist()}


def test_lines_of_json_files_become_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "json")
    lines = ['{"id": "a", "n": 3000000000, "ts": 1}', '{"id": "b", "n": 1, "ts": 1}', '{"n": 1}', "broken"]
    (tmp_path / "landing" / "a.json").write_text("\n".join(lines))
    assert run(spark, spec, "run").bad_records == 3
    (tmp_path / "landing" / "a.json").unlink()
    spec = replace(spec, schema=spec.schema | {"n": "bigint"})
    report = run(spark, spec, "replay")
    assert (report.rows, report.bad_records, rows(spec)) == (1, 2, {"a": LARGE, "b": 1})
    again = run(spark, spec, "replay")
    assert (again.status, again.bad_records) == (JobStatus.NOTHING_TO_DO, 2)
    assert rows(spec) == {"a": LARGE, "b": 1}


def test_lines_of_csv_files_are_parsed_by_the_header_of_their_file(spark: SparkSession, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "csv")
    (tmp_path / "landing" / "a.csv").write_text("id,n,ts\na,3000000000,1\nb,1,1\n")
    (tmp_path / "landing" / "b.csv").write_text("ts,n,id\n1,3000000000,c\n")
    assert run(spark, spec, "run").bad_records == 2
    spec = replace(spec, schema=spec.schema | {"n": "bigint"})
    other = tmp_path / "landing" / "b.csv"
    text = other.read_text()
    other.unlink()
    with pytest.raises(UserError, match=r"b\.csv is gone, and its header is needed to parse its dead letters"):
        run(spark, spec, "replay")
    other.write_text(text)
    assert run(spark, spec, "replay").rows == 2
    assert rows(spec) == {"a": LARGE, "b": 1, "c": LARGE}
